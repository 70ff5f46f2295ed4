#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <optional>
#include <tuple>
#include <vector>

#include "torch/row_map.h"
#include "torch/row_view.h"

namespace tsallis {
namespace {

// Shape of one value a row: that of the scores less the mapped dimension.
std::vector<std::int64_t> RowShape(const at::Tensor& scores, std::int64_t dim) {
  std::vector<std::int64_t> shape = scores.sizes().vec();
  shape.erase(shape.begin() + dim);
  return shape;
}

// alpha of every row, contiguous doubles in row order. [rows]
at::Tensor AlphaOfRows(const at::Tensor& alpha, const at::Tensor& scores, std::int64_t dim) {
  std::vector<std::int64_t> shape = scores.sizes().vec();
  shape[dim] = 1;
  return alpha.to(at::kDouble).expand(shape).contiguous();
}

}  // namespace

at::Tensor RowMapCpu(const at::Tensor& scores, const std::optional<at::Tensor>& alpha_rows,
                     const RowMapCall& call, RowStatTensors* stats) {
  const InputRows input = ViewInput(scores, call.dim);
  OutputRows output(scores, call.dim, scores.scalar_type());
  RowStats row_stats;
  if (stats != nullptr) {
    const std::vector<std::int64_t> shape = RowShape(scores, call.dim);
    stats->tau = at::Tensor(at::detail::empty_cpu(shape, at::kDouble));
    stats->support_size = at::Tensor(at::detail::empty_cpu(shape, at::kLong));
    stats->entropy = at::Tensor(at::detail::empty_cpu(shape, at::kDouble));
    row_stats = {stats->tau.mutable_data_ptr<double>(),
                 stats->support_size.mutable_data_ptr<std::int64_t>(),
                 stats->entropy.mutable_data_ptr<double>()};
  }
  if (alpha_rows) {
    const at::Tensor alpha = AlphaOfRows(*alpha_rows, scores, call.dim);
    RowMapParams params = call.params;
    params.alpha_per_row = alpha.const_data_ptr<double>();
    Translated([&] { RowsForward(TorchContext(), params, input.rows, output.rows(), row_stats); });
  } else {
    Translated(
        [&] { RowsForward(TorchContext(), call.params, input.rows, output.rows(), row_stats); });
  }
  if (stats != nullptr && scores.scalar_type() != at::kDouble) {
    stats->tau = stats->tau.to(at::kFloat);
    stats->entropy = stats->entropy.to(at::kFloat);
  }
  return output.Finish();
}

std::tuple<at::Tensor, at::Tensor> RowMapBackwardCpu(const at::Tensor& d_probabilities,
                                                     const at::Tensor& scores,
                                                     const at::Tensor& probabilities,
                                                     const std::optional<at::Tensor>& alpha_rows,
                                                     const RowMapCall& call, bool want_alpha) {
  const InputRows s = ViewInput(scores, call.dim);
  const InputRows p = ViewInput(probabilities, call.dim);
  const InputRows dp = ViewInput(d_probabilities, call.dim);
  OutputRows output(scores, call.dim, scores.scalar_type());
  RowMapParams params = call.params;
  at::Tensor alpha;
  at::Tensor d_alpha;
  if (alpha_rows) {
    alpha = AlphaOfRows(*alpha_rows, scores, call.dim);
    params.alpha_per_row = alpha.const_data_ptr<double>();
    if (want_alpha) d_alpha = at::Tensor(at::detail::empty_cpu(alpha.sizes(), at::kDouble));
  }
  double* const d_alpha_data = d_alpha.defined() ? d_alpha.mutable_data_ptr<double>() : nullptr;
  Translated([&] {
    RowsBackward(TorchContext(), params, s.rows, p.rows, dp.rows, output.rows(), d_alpha_data);
  });
  if (d_alpha.defined()) {
    d_alpha = d_alpha.sum_to_size(alpha_rows->sizes()).to(alpha_rows->scalar_type());
  }
  return {output.Finish(), std::move(d_alpha)};
}

}  // namespace tsallis
