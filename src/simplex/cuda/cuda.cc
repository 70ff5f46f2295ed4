#include "simplex/cuda/cuda.h"

#include <string>

#include "tsallis/cuda.h"
#include "tsallis/error.h"

namespace tsallis::cuda {
namespace {

void CheckMost(const char* name, std::int64_t size, std::int64_t most) {
  if (size <= most) return;
  throw InvalidArgument(name, "at most " + std::to_string(most) + " on a CUDA device",
                        std::to_string(size));
}

const RowLaunches& Served(const RowMapParams& params, const ConstRows& scores) {
  CheckMost("scores.rows", scores.rows, 0x7FFFFFFF);
  CheckMost("scores.length", scores.length, std::int64_t{1} << 30);
  CheckMost("adaptive.coefficients", static_cast<std::int64_t>(params.adaptive.coefficients.size()),
            kMostCoefficients);
#if defined(TSALLIS_HAS_CUDA)
  return kRowLaunches[static_cast<int>(scores.dtype)];
#else
  throw InvalidArgument(
      "context.device",
      "kCpu, as this library was built without CUDA kernels (" + QueryCuda().why_not_compiled + ")",
      "kCuda");
#endif
}

}  // namespace

void RowsForward(const Context& context, const RowMapParams& params, const ConstRows& scores,
                 const MutableRows& probabilities, const RowStats& stats) {
  Served(params, scores).forward(context, params, scores, probabilities, stats);
}

void RowsBackward(const Context& context, const RowMapParams& params, const ConstRows& scores,
                  const ConstRows& probabilities, const ConstRows& d_probabilities,
                  const MutableRows& d_scores, double* d_alpha) {
  Served(params, scores)
      .backward(context, params, scores, probabilities, d_probabilities, d_scores, d_alpha);
}

void FenchelYoungLoss(const Context& context, const RowMapParams& params, const ConstRows& scores,
                      const std::int64_t* targets, std::int64_t ignore_index, double* losses,
                      const MutableRows& d_scores) {
  Served(params, scores).loss(context, params, scores, targets, ignore_index, losses, d_scores);
}

}  // namespace tsallis::cuda
