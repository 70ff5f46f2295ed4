// The fit of adaptive temperature's polynomial (rows.h) on tensors. It has no gradient, and its
// number of samples depends on the data: on CPU tensors only.
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <algorithm>
#include <tuple>

#include "torch/row_view.h"

namespace tsallis {
namespace {

using at::Tensor;

std::tuple<Tensor, std::int64_t, double> Fit(const Tensor& scores, const Tensor& targets,
                                             std::int64_t degree, double theta_max,
                                             double theta_step) {
  CheckScores(scores, "scores");
  WrapDim(scores, -1);
  TORCH_CHECK_VALUE(at::isIntegralType(targets.scalar_type(), /*includeBool=*/false),
                    "targets: expected an integer dtype, got ", targets.scalar_type());
  const at::IntArrayRef expected = scores.sizes().slice(0, scores.dim() - 1);
  TORCH_CHECK_VALUE(targets.sizes() == expected,
                    "targets: expected the shape of scores without the last dimension, ", expected,
                    ", got ", targets.sizes());
  TORCH_CHECK_VALUE(degree >= 0 && degree <= 16, "degree: expected 0 to 16, got ", degree);
  // 16-bit scores have too few digits to tell temperatures apart.
  const Tensor wide =
      scores.detach().to(scores.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  const InputRows input = ViewInput(wide, wide.dim() - 1);
  const Tensor classes = targets.to(at::kLong).contiguous();
  const AdaptiveTemperatureFit fit = Translated([&] {
    return FitAdaptiveTemperature(
        TorchContext(), input.rows, classes.const_data_ptr<std::int64_t>(),
        {.degree = static_cast<int>(degree), .theta_max = theta_max, .theta_step = theta_step});
  });
  const auto count = static_cast<std::int64_t>(fit.coefficients.size());
  const Tensor coefficients = at::empty({count}, at::kDouble);
  std::copy(fit.coefficients.begin(), fit.coefficients.end(),
            coefficients.mutable_data_ptr<double>());
  return {coefficients, fit.samples, fit.rms_error};
}

TORCH_LIBRARY_IMPL(tsallis, CPU, m) { m.impl("fit_adaptive_temperature", Fit); }

}  // namespace
}  // namespace tsallis
