#include "simplex/cuda/cuda.h"

#include "core/cuda/support.h"

namespace tsallis::cuda {
namespace {

const RowLaunches& Served(const RowMapParams& params, const ConstRows& scores) {
  CheckMost("scores.rows", scores.rows, 0x7FFFFFFF);
  CheckMost("scores.length", scores.length, std::int64_t{1} << 30);
  CheckMost("adaptive.coefficients", static_cast<std::int64_t>(params.adaptive.coefficients.size()),
            kMostCoefficients);
#if defined(TSALLIS_HAS_CUDA)
  return kRowLaunches[static_cast<int>(scores.dtype)];
#else
  ThrowNotCompiled();
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
