// Attention on CPU tensors.
#include <ATen/ATen.h>

#include <tuple>

#include "torch/attention.h"
#include "torch/attention_arguments.h"
#include "torch/row_view.h"

namespace tsallis {

using at::Tensor;

namespace {

const AttentionPasses& CpuPasses() {
  static const AttentionPasses passes = {
      .reader = Reader::kHost,
      .saves = true,
      .forward =
          [](const AttentionParams& params, const AttentionOutputs& outputs) {
            AttentionForward(TorchContext(), params, outputs);
          },
      .backward =
          [](const AttentionParams& params, const AttentionGradients& gradients) {
            AttentionBackward(TorchContext(), params, gradients);
          }};
  return passes;
}

}  // namespace

AttentionResults AttentionForwardCpu(const Tensor& q, const Tensor& k, const Tensor& v,
                                     const AttentionOptions& options,
                                     const AttentionRequest& request) {
  return AttentionForwardBy(CpuPasses(), q, k, v, options, request);
}

std::array<Tensor, kInputs> AttentionBackwardCpu(const Tensor& d_out, const Tensor& q,
                                                 const Tensor& k, const Tensor& v,
                                                 const Tensor& tau, const Tensor& saved,
                                                 const AttentionOptions& options,
                                                 const AttentionWanted& wanted) {
  return AttentionBackwardBy(CpuPasses(), d_out, q, k, v, tau, saved, options, wanted);
}

std::tuple<Tensor, Tensor, Tensor> AttentionWeightsCpu(const Tensor& q, const Tensor& k,
                                                       const AttentionOptions& options) {
  const KernelArguments call(q, k, Tensor(), options, Reader::kHost);
  const AttentionParams& params = call.params();
  const std::int64_t rows =
      (params.ranges.packed ? std::min<std::int64_t>(params.batch, 1) : params.batch) *
      params.heads * params.q_len;
  const Tensor counts = at::empty({rows}, at::kLong);
  const Tensor row_offsets = at::zeros({rows + 1}, at::kLong);
  Tensor columns, values;
  Renamed([&] {
    AttentionWeightCounts(TorchContext(), params, counts.mutable_data_ptr<std::int64_t>());
    auto* offsets = row_offsets.mutable_data_ptr<std::int64_t>();
    const auto* sizes = counts.const_data_ptr<std::int64_t>();
    for (std::int64_t row = 0; row < rows; ++row) offsets[row + 1] = offsets[row] + sizes[row];
    columns = at::empty({offsets[rows]}, at::kLong);
    values = at::empty({offsets[rows]}, at::kFloat);
    AttentionWeights(TorchContext(), params, offsets, columns.mutable_data_ptr<std::int64_t>(),
                     values.mutable_data_ptr<float>());
  });
  return {row_offsets, columns, values};
}

}  // namespace tsallis
