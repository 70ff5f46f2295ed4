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
          },
      .weight_counts =
          [](const AttentionParams& params, std::int64_t* counts) {
            AttentionWeightCounts(TorchContext(), params, counts);
          },
      .weights =
          [](const AttentionParams& params, const std::int64_t* row_offsets, std::int64_t* columns,
             float* values) {
            AttentionWeights(TorchContext(), params, row_offsets, columns, values);
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

Tensors<3> AttentionWeightsCpu(const Tensor& q, const Tensor& k, const AttentionOptions& options) {
  return AttentionWeightsBy(CpuPasses(), q, k, options);
}

}  // namespace tsallis
