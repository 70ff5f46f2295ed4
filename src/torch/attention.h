// Attention on tensors: what the checks, the CPU kernels and autograd share.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/SymInt.h>

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <tuple>
#include <utility>

#include "torch/operators.h"

namespace tsallis {

// Sizes as the tensors have them; symbols while torch.compile traces. Packed: batch is 1.
struct AttentionSizes {
  c10::SymInt batch, heads, kv_heads, q_len, k_len, head_dim, value_dim;
};

// Checks everything that shapes, dtypes and settings tell; throws c10::ValueError. v undefined: not
// looked at (the weights do not need it).
AttentionSizes CheckAttentionTensors(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                     const AttentionOptions& options);

// Throws c10::ValueError unless `tensor` broadcasts to `target`; axes: names of its dimensions.
void CheckBroadcasts(const at::Tensor& tensor, const char* argument, const char* axes,
                     at::ArrayRef<c10::SymInt> target);

// Strides of a result of `sizes` that keeps the order in which `like` has heads and rows in memory:
// projections are usually [batch, rows, heads, dim] seen as [batch, heads, rows, dim], and a result
// in that order is merged again without a copy.
std::array<c10::SymInt, 4> AttentionLayout(const std::array<c10::SymInt, 4>& sizes,
                                           const at::Tensor& like);

// Bytes of lists that tsallis::attention_forward returns. Tracing must know the size without
// knowing the sizes of the tensors, so it cannot be the kernel's own answer: room for 64 entries a
// row, several times the usual support, within the budget. Memory that no list needs is not
// touched.
c10::SymInt ReservedBytes(const at::Tensor& q, const AttentionOptions& options);

// Tensors that autograd may ask gradients for, in this order: q, k, v and those of
// kAttentionSettings.
enum AttentionInput : std::uint8_t {
  kQ,
  kK,
  kV,
  kAlpha,
  kLengthScale,
  kSlopes,
  kBias,
  kSink,
  kInputs
};
using AttentionWanted = std::array<bool, kInputs>;

// The type that operators return: a tuple of so many tensors.
template <std::size_t kCount>
using Tensors = decltype(std::tuple_cat(std::declval<std::array<at::Tensor, kCount>>()));

struct AttentionResults {
  at::Tensor out;
  at::Tensor tau;                             // [batch, heads, q_len], float64
  at::Tensor saved;                           // [bytes], uint8
  at::Tensor support_size, entropy, maximum;  // [batch, heads, q_len]; float64 where not integers
};

// Below autograd, on checked arguments: tensors that are not asked for stay undefined. saved_bytes:
// negative: what the kernel that runs can use.
struct AttentionRequest {
  bool tau = false;
  bool stats = false;  // tau as well
  std::int64_t saved_bytes = 0;
};

// Says who may read the tensors. The host checks the contents of ranges; of a device's tensors it
// reads nothing but alphas, since reading waits for the device.
enum class Reader : std::uint8_t { kHost, kDevice };

// The kernels that run where the tensors are.
struct AttentionPasses {
  Reader reader = Reader::kHost;
  bool saves = false;  // lists of the support; else they get no memory for them
  std::function<void(const AttentionParams&, const AttentionOutputs&)> forward;
  std::function<void(const AttentionParams&, const AttentionGradients&)> backward;
  // tsallis/attention.h: AttentionWeightCounts, AttentionWeights.
  std::function<void(const AttentionParams&, std::int64_t* counts)> weight_counts;
  std::function<void(const AttentionParams&, const std::int64_t* row_offsets, std::int64_t* columns,
                     float* values)>
      weights;
};
// A device's kernels load 16 bytes at once: a copy of rows that do not begin at multiples, as
// autograd's expanded gradients do not.
at::Tensor Readable(const at::Tensor& tensor, Reader reader);
AttentionResults AttentionForwardBy(const AttentionPasses& passes, const at::Tensor& q,
                                    const at::Tensor& k, const at::Tensor& v,
                                    const AttentionOptions& options,
                                    const AttentionRequest& request);
std::array<at::Tensor, kInputs> AttentionBackwardBy(const AttentionPasses& passes,
                                                    const at::Tensor& d_out, const at::Tensor& q,
                                                    const at::Tensor& k, const at::Tensor& v,
                                                    const at::Tensor& tau, const at::Tensor& saved,
                                                    const AttentionOptions& options,
                                                    const AttentionWanted& wanted);

// row_offsets: [batch heads q_len + 1], columns, values: [entries]. Synchronises with the device,
// since the number of entries must be counted first.
Tensors<3> AttentionWeightsBy(const AttentionPasses& passes, const at::Tensor& q,
                              const at::Tensor& k, const AttentionOptions& options);

AttentionResults AttentionForwardCpu(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                     const AttentionOptions& options,
                                     const AttentionRequest& request);
std::array<at::Tensor, kInputs> AttentionBackwardCpu(const at::Tensor& d_out, const at::Tensor& q,
                                                     const at::Tensor& k, const at::Tensor& v,
                                                     const at::Tensor& tau, const at::Tensor& saved,
                                                     const AttentionOptions& options,
                                                     const AttentionWanted& wanted);
Tensors<3> AttentionWeightsCpu(const at::Tensor& q, const at::Tensor& k,
                               const AttentionOptions& options);

// Calls run(context) in the current stream of a CUDA device, with so much of torch's memory as its
// workspace. Errors of the kernel library that are about the device name q.
void RunOnCuda(const at::Device& device,
               const std::function<std::size_t(const Context&)>& workspace_bytes,
               const std::function<void(const Context&)>& run);

// On CUDA devices, in the current stream of the tensors' own; memory is torch's.
AttentionResults AttentionForwardCuda(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                      const AttentionOptions& options,
                                      const AttentionRequest& request);
std::array<at::Tensor, kInputs> AttentionBackwardCuda(const at::Tensor& d_out, const at::Tensor& q,
                                                      const at::Tensor& k, const at::Tensor& v,
                                                      const at::Tensor& tau,
                                                      const at::Tensor& saved,
                                                      const AttentionOptions& options,
                                                      const AttentionWanted& wanted);
Tensors<3> AttentionWeightsCuda(const at::Tensor& q, const at::Tensor& k,
                                const AttentionOptions& options);

// Statistics as callers get them: floats for inputs other than float64.
AttentionStatTensors StatsOf(const AttentionResults& results, at::ScalarType dtype);

// With autograd, for tensors of any kind.
at::Tensor AttentionAutograd(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                             const AttentionOptions& options, AttentionStatTensors* stats);

}  // namespace tsallis
