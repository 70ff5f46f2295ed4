// The passes of attention on tensors: results become tensors, and so do gradients.
#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <vector>

#include "torch/array_view.h"
#include "torch/attention.h"
#include "torch/attention_arguments.h"

namespace tsallis {
namespace {

using at::Tensor;
using Sizes4 = std::array<std::int64_t, 4>;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// An empty tensor on the device of `like`.
Tensor Empty(at::IntArrayRef sizes, at::ScalarType dtype, const Tensor& like) {
  if (like.is_cpu()) return at::Tensor(at::detail::empty_cpu(sizes, dtype));
  return at::empty(sizes, like.options().dtype(dtype));
}

Tensor EmptyLike(const Sizes4& sizes, const Tensor& like) {
  const auto symbols = AttentionLayout(
      {c10::SymInt(sizes[0]), c10::SymInt(sizes[1]), c10::SymInt(sizes[2]), c10::SymInt(sizes[3])},
      like);
  Sizes4 strides;
  for (int i = 0; i < 4; ++i) strides[i] = symbols[i].expect_int();
  if (!like.is_cpu()) return at::empty_strided(sizes, strides, like.options());
  return at::Tensor(at::detail::empty_strided_cpu(sizes, strides, like.scalar_type()));
}

// An output of the kernel, zeroed where it would leave elements unwritten.
Tensor Output(const Sizes4& sizes, const Tensor& like, bool has_gaps) {
  Tensor tensor = EmptyLike(sizes, like);
  if (has_gaps) tensor.zero_();
  return tensor;
}

}  // namespace

Tensor Readable(const Tensor& tensor, Reader reader) {
  if (reader == Reader::kHost || !tensor.defined()) return tensor;
  const auto size = static_cast<std::int64_t>(tensor.element_size());
  bool aligned = reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr()) % 16 == 0 &&
                 (tensor.size(3) <= 1 || tensor.stride(3) == 1);
  for (int d = 0; d < 3; ++d) {
    aligned = aligned && (tensor.size(d) <= 1 || tensor.stride(d) * size % 16 == 0);
  }
  return aligned ? tensor : tensor.clone(at::MemoryFormat::Contiguous);
}

AttentionResults AttentionForwardBy(const AttentionPasses& passes, const Tensor& q, const Tensor& k,
                                    const Tensor& v, const AttentionOptions& options,
                                    const AttentionRequest& request) {
  const Tensor q_rows = Readable(q, passes.reader), k_rows = Readable(k, passes.reader);
  const Tensor v_rows = Readable(v, passes.reader);
  const KernelArguments call(q_rows, k_rows, v_rows, options, passes.reader);
  const AttentionParams& params = call.params();
  AttentionResults results;
  results.out = Output({call.array_batch(), params.heads, params.q_len, params.value_dim}, q,
                       call.q_has_gaps());
  AttentionOutputs outputs{.out = Write(results.out)};
  // Kernels write the statistics of every row that they write the output of.
  const auto statistic = [&](at::ScalarType dtype, double outside) {
    Tensor tensor = Empty(call.Rows(), dtype, q);
    if (call.q_has_gaps()) tensor.fill_(outside);
    return tensor;
  };
  if (request.tau || request.stats) {
    results.tau = statistic(at::kDouble, -kInfinity);
    outputs.tau = results.tau.mutable_data_ptr<double>();
  }
  if (request.stats) {
    results.support_size = statistic(at::kLong, 0);
    results.entropy = statistic(at::kDouble, 0.0);
    results.maximum = statistic(at::kDouble, -kInfinity);
    outputs.support_size = results.support_size.mutable_data_ptr<std::int64_t>();
    outputs.entropy = results.entropy.mutable_data_ptr<double>();
    outputs.maximum = results.maximum.mutable_data_ptr<double>();
  }
  Renamed([&] {
    std::int64_t bytes = std::max<std::int64_t>(request.saved_bytes, 0);
    if (request.saved_bytes < 0 && passes.saves) {
      bytes = static_cast<std::int64_t>(
          AttentionSavedBytes(params, static_cast<std::size_t>(options.saved_budget)));
    }
    results.saved = Empty({bytes}, at::kByte, q);
    if (bytes > 0 && passes.saves) {
      outputs.saved = results.saved.mutable_data_ptr();
      outputs.saved_bytes = static_cast<std::size_t>(bytes);
    }
    passes.forward(params, outputs);
  });
  return results;
}

std::array<Tensor, kInputs> AttentionBackwardBy(const AttentionPasses& passes, const Tensor& d_out,
                                                const Tensor& q, const Tensor& k, const Tensor& v,
                                                const Tensor& tau, const Tensor& saved,
                                                const AttentionOptions& options,
                                                const AttentionWanted& wanted) {
  const Tensor q_rows = Readable(q, passes.reader), k_rows = Readable(k, passes.reader);
  const Tensor v_rows = Readable(v, passes.reader), d_out_rows = Readable(d_out, passes.reader);
  const KernelArguments call(q_rows, k_rows, v_rows, options, passes.reader);
  const AttentionParams& params = call.params();
  // torch may have copied what the forward pass kept (checkpoints, hooks).
  const Tensor thresholds = tau.contiguous();
  Tensor lists = saved.contiguous();
  if (reinterpret_cast<std::uintptr_t>(lists.const_data_ptr()) % 64 != 0) lists = lists.clone();
  AttentionGradients gradients;
  gradients.d_out = View(d_out_rows);
  gradients.tau = thresholds.const_data_ptr<double>();
  if (lists.numel() > 0 && passes.saves) {
    gradients.saved = lists.const_data_ptr();
    gradients.saved_bytes = static_cast<std::size_t>(lists.numel());
  }
  std::array<Tensor, kInputs> results;
  const auto like = [&](AttentionInput input, const Tensor& tensor, bool has_gaps) {
    if (!wanted[input]) return MutableArray4{};
    results[input] =
        Output({tensor.size(0), tensor.size(1), tensor.size(2), tensor.size(3)}, tensor, has_gaps);
    return Write(results[input]);
  };
  gradients.dq = like(kQ, q, call.q_has_gaps());
  gradients.dk = like(kK, k, call.k_has_gaps());
  gradients.dv = like(kV, v, call.k_has_gaps());
  const auto doubles = [&](AttentionInput input, const std::vector<std::int64_t>& sizes) {
    if (!wanted[input]) return static_cast<double*>(nullptr);
    results[input] = at::zeros(sizes, q.options().dtype(at::kDouble));
    return results[input].mutable_data_ptr<double>();
  };
  gradients.d_alpha = doubles(kAlpha, {params.heads});
  gradients.d_length_scale = doubles(kLengthScale, call.Rows());
  gradients.d_slopes = doubles(kSlopes, {call.array_batch(), params.heads});
  gradients.d_sink = doubles(kSink, {params.heads});
  if (wanted[kBias]) {
    const Tensor& bias = *options.bias;
    results[kBias] =
        Empty(bias.sizes(), bias.scalar_type() == at::kDouble ? at::kDouble : at::kFloat, q);
    // Without a single score the kernel has nothing to write.
    if (params.batch * params.heads * params.q_len * params.k_len == 0) results[kBias].zero_();
    gradients.d_bias = Write(results[kBias].expand(call.Scores()));
  }
  Renamed([&] { passes.backward(params, gradients); });
  const auto finish = [&](AttentionInput input, const OptionalTensor& tensor) {
    if (!wanted[input]) return;
    results[input] = As(results[input].sum_to_size(tensor->sizes()), tensor->scalar_type());
  };
  finish(kAlpha, options.alpha_heads);
  finish(kLengthScale, options.length_scale);
  finish(kSlopes, options.alibi_slopes);
  finish(kBias, options.bias);
  finish(kSink, options.sink);
  return results;
}

Tensors<3> AttentionWeightsBy(const AttentionPasses& passes, const Tensor& q, const Tensor& k,
                              const AttentionOptions& options) {
  const Tensor q_rows = Readable(q, passes.reader), k_rows = Readable(k, passes.reader);
  const KernelArguments call(q_rows, k_rows, Tensor(), options, passes.reader);
  const AttentionParams& params = call.params();
  const std::int64_t rows =
      (params.ranges.packed ? std::min<std::int64_t>(params.batch, 1) : params.batch) *
      params.heads * params.q_len;
  const Tensor counts = Empty({rows}, at::kLong, q);
  const Tensor row_offsets = Empty({rows + 1}, at::kLong, q).zero_();
  Tensor columns, values;
  Renamed([&] {
    passes.weight_counts(params, counts.mutable_data_ptr<std::int64_t>());
    row_offsets.narrow(0, 1, rows).copy_(counts.cumsum(0));
    const auto entries = row_offsets[rows].item<std::int64_t>();
    columns = Empty({entries}, at::kLong, q);
    values = Empty({entries}, at::kFloat, q);
    passes.weights(params, row_offsets.const_data_ptr<std::int64_t>(),
                   columns.mutable_data_ptr<std::int64_t>(), values.mutable_data_ptr<float>());
  });
  return {row_offsets, columns, values};
}

AttentionStatTensors StatsOf(const AttentionResults& results, at::ScalarType dtype) {
  const at::ScalarType kind = dtype == at::kDouble ? at::kDouble : at::kFloat;
  return {As(results.tau, kind), results.support_size, As(results.entropy, kind),
          As(results.maximum, kind)};
}

}  // namespace tsallis
