#include "tsallis/rows.h"

#include <string>
#include <vector>

#include "core/elements.h"
#include "core/parallel.h"
#include "simplex/check.h"
#include "simplex/cuda/cuda.h"
#include "simplex/fast.h"
#include "simplex/map.h"
#include "simplex/reference.h"
#include "tsallis/error.h"

namespace tsallis {
namespace {

void LoadRow(const ConstRows& rows, std::int64_t row, std::vector<double>& out) {
  out.resize(rows.length);
  for (std::int64_t j = 0; j < rows.length; ++j) {
    out[j] = LoadElement<double>(rows.data, rows.dtype, row * rows.row_stride + j * rows.stride);
  }
}

void StoreRow(const std::vector<double>& values, std::int64_t row, const MutableRows& rows) {
  for (std::int64_t j = 0; j < rows.length; ++j) {
    StoreElement(rows.data, rows.dtype, row * rows.row_stride + j * rows.stride, values[j]);
  }
}

void StoreStats(const RowResult& result, std::int64_t row, const RowStats& stats) {
  if (stats.tau != nullptr) stats.tau[row] = result.tau;
  if (stats.support_size != nullptr) stats.support_size[row] = result.support_size;
  if (stats.entropy != nullptr) stats.entropy[row] = result.entropy;
}

}  // namespace

void RowsForward(const Context& context, const RowMapParams& params, const ConstRows& scores,
                 const MutableRows& probabilities, const RowStats& stats) {
  CheckRows("scores", scores);
  CheckMatches("probabilities", probabilities, "scores", scores);
  CheckParams(params, scores.rows, context.device);
  if (context.device == DeviceKind::kCuda) {
    return cuda::RowsForward(context, params, scores, probabilities, stats);
  }
  if (scores.dtype != DType::kFloat64) {
    FastForward(context, {&params, scores, probabilities, stats});
    return;
  }
  ParallelFor(context, scores.rows, RowGrain(scores.length),
              [&](std::int64_t begin, std::int64_t end) {
                ReferenceScratch scratch;
                RowSpecs specs(params);
                std::vector<double> row_scores;
                for (std::int64_t row = begin; row < end; ++row) {
                  LoadRow(scores, row, row_scores);
                  StoreStats(ReferenceForward(specs[row], row_scores.data(), scores.length,
                                              row_scores.data(), scratch),
                             row, stats);
                  StoreRow(row_scores, row, probabilities);
                }
              });
}

void RowsBackward(const Context& context, const RowMapParams& params, const ConstRows& scores,
                  const ConstRows& probabilities, const ConstRows& d_probabilities,
                  const MutableRows& d_scores, double* d_alpha) {
  CheckRows("scores", scores);
  CheckMatches("probabilities", probabilities, "scores", scores);
  CheckMatches("d_probabilities", d_probabilities, "scores", scores);
  CheckMatches("d_scores", d_scores, "scores", scores);
  CheckParams(params, scores.rows, context.device);
  if (d_alpha != nullptr && FindMap(params.map).d_alpha == nullptr) {
    throw InvalidArgument("d_alpha", "null for a map without a gradient in alpha",
                          FindMap(params.map).name);
  }
  if (context.device == DeviceKind::kCuda) {
    return cuda::RowsBackward(context, params, scores, probabilities, d_probabilities, d_scores,
                              d_alpha);
  }
  if (scores.dtype != DType::kFloat64) {
    FastBackward(context, {&params, scores, probabilities, d_probabilities, d_scores, d_alpha});
    return;
  }
  ParallelFor(
      context, scores.rows, RowGrain(scores.length), [&](std::int64_t begin, std::int64_t end) {
        ReferenceScratch scratch;
        RowSpecs specs(params);
        std::vector<double> s, p, dp;
        for (std::int64_t row = begin; row < end; ++row) {
          LoadRow(scores, row, s);
          LoadRow(probabilities, row, p);
          LoadRow(d_probabilities, row, dp);
          ReferenceBackward(specs[row], s.data(), p.data(), dp.data(), scores.length, dp.data(),
                            d_alpha != nullptr ? d_alpha + row : nullptr, scratch);
          StoreRow(dp, row, d_scores);
        }
      });
}

void FenchelYoungLoss(const Context& context, const RowMapParams& params, const ConstRows& scores,
                      const std::int64_t* targets, std::int64_t ignore_index, double* losses,
                      const MutableRows& d_scores) {
  CheckRows("scores", scores);
  CheckParams(params, scores.rows, context.device);
  const ReferenceMap& map = FindMap(params.map);
  if (map.generator == nullptr) {
    throw InvalidArgument("map", "a map with a Fenchel-Young loss", map.name);
  }
  const bool wants_gradient = d_scores.data != nullptr;
  if (wants_gradient) {
    CheckMatches("d_scores", d_scores, "scores", scores, /*same_dtype=*/false);
    const DType expected = SizeOf(scores.dtype) == 2 ? DType::kFloat32 : scores.dtype;
    if (d_scores.dtype != expected) {
      throw InvalidArgument("d_scores", Name(expected), Name(d_scores.dtype));
    }
  }
  if (scores.rows > 0 && targets == nullptr) throw InvalidArgument("targets", "data", "null");
  if (scores.rows > 0 && losses == nullptr) throw InvalidArgument("losses", "data", "null");
  if (context.device == DeviceKind::kCuda) {
    return cuda::FenchelYoungLoss(context, params, scores, targets, ignore_index, losses, d_scores);
  }
  for (std::int64_t row = 0; row < scores.rows; ++row) {
    const std::int64_t target = targets[row];
    if (target == ignore_index || (target >= 0 && target < scores.length)) continue;
    throw InvalidArgument("targets[" + std::to_string(row) + "]",
                          "ignore_index or a class in [0, " + std::to_string(scores.length) + ")",
                          std::to_string(target));
  }
  ParallelFor(
      context, scores.rows, RowGrain(scores.length), [&](std::int64_t begin, std::int64_t end) {
        ReferenceScratch scratch;
        RowSpecs specs(params);
        std::vector<double> s, p(scores.length);
        for (std::int64_t row = begin; row < end; ++row) {
          if (targets[row] == ignore_index) {
            losses[row] = 0.0;
            std::fill(p.begin(), p.end(), 0.0);
          } else {
            const RowSpec& spec = specs[row];
            LoadRow(scores, row, s);
            ReferenceForward(spec, s.data(), scores.length, p.data(), scratch);
            losses[row] = ReferenceLoss(spec, s.data(), p.data(), scores.length, targets[row]);
            // A target of -inf is absent: the loss is infinite and nothing can be done about its
            // score.
            if (s[targets[row]] > -__builtin_inf()) p[targets[row]] -= 1.0;
            for (double& value : p) value /= spec.temperature;
          }
          if (wants_gradient) StoreRow(p, row, d_scores);
        }
      });
}

}  // namespace tsallis
