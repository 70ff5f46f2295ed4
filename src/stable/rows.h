// The row maps and their losses on tensors. Without autograd, which stands above
// (python/tsallis/_autograd.py, src/torch).
#pragma once

#include <cstdint>
#include <optional>
#include <tuple>

#include "stable/device.h"
#include "stable/settings.h"
#include "stable/tensor.h"
#include "tsallis/rows.h"

namespace tsallis::stable {

struct RowArguments {
  RowMapParams params;
  std::int64_t dim = -1;
  Mistake mistake;
};

struct LossArguments {
  RowMapParams params;
  std::int64_t ignore_index = -100;
  Mistake mistake;
};

// Statistics are empty where not asked for; their shape is that of the scores less `dim`.
struct RowResults {
  Tensor probabilities;
  Tensor tau, support_size, entropy;  // float64, int64, float64
};

// scores: any rank from 1, any strides; alpha_rows: broadcasts to the scores with
// size 1 in `dim`. Throws InvalidArgument; std::out_of_range for a `dim` out of range.
RowResults MapRows(const RowPasses& passes, const Tensor& scores,
                   const std::optional<Tensor>& alpha_rows, RowArguments& arguments,
                   bool want_stats);

// `scores` is read where BackwardReadsScores (rows.h) says so; else the probabilities may be given
// in its place. d_alpha: float64, the shape of the scores with size 1 in `dim`, not yet summed over
// what alpha repeats; empty unless it is wanted.
struct RowGradients {
  Tensor d_scores, d_alpha;
};
RowGradients MapRowsBackward(const RowPasses& passes, const Tensor& d_probabilities,
                             const Tensor& scores, const Tensor& probabilities,
                             const std::optional<Tensor>& alpha_rows, RowArguments& arguments,
                             bool want_alpha);

// scores: [..., classes]; targets: [...], any integer dtype. Both results are float32, float64 for
// float64 scores; the gradient p - e_y is empty unless it is wanted. Throws InvalidArgument.
struct LossResults {
  Tensor losses, gradient;
};
LossResults FenchelYoungLosses(const RowPasses& passes, const Tensor& scores, const Tensor& targets,
                               LossArguments& arguments, bool want_gradient);

// The fit of adaptive temperature's polynomial: its coefficients, float64 [degree + 1], the number
// of samples and the error (AdaptiveTemperatureFit). CPU tensors alone. Throws InvalidArgument.
std::tuple<Tensor, std::int64_t, double> FitTemperature(const Tensor& scores, const Tensor& targets,
                                                        std::int64_t degree, double theta_max,
                                                        double theta_step);

}  // namespace tsallis::stable
