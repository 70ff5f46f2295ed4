// The operators of attention below autograd: CPU, CUDA and Meta.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <array>
#include <tuple>
#include <utility>

#include "torch/attention.h"
#include "torch/attention_settings.h"

namespace tsallis {
namespace {

using at::Tensor;

// The functions that call the kernels of a device (attention.h).
struct Cpu {
  static constexpr auto Forward = AttentionForwardCpu;
  static constexpr auto Backward = AttentionBackwardCpu;
  static constexpr auto Weights = AttentionWeightsCpu;
};
struct Cuda {
  static constexpr auto Forward = AttentionForwardCuda;
  static constexpr auto Backward = AttentionBackwardCuda;
  static constexpr auto Weights = AttentionWeightsCuda;
};

template <class Device>
Tensor OpPlain(const AttentionOptions& options, const Tensor& q, const Tensor& k, const Tensor& v) {
  CheckAttentionTensors(q, k, v, options);
  return Device::Forward(q, k, v, options, {}).out;
}

template <class Device>
Tensors<5> OpStats(const AttentionOptions& options, const Tensor& q, const Tensor& k,
                   const Tensor& v) {
  CheckAttentionTensors(q, k, v, options);
  const AttentionResults results = Device::Forward(q, k, v, options, {.stats = true});
  const AttentionStatTensors stats = StatsOf(results, q.scalar_type());
  return {results.out, stats.tau, stats.support_size, stats.entropy, stats.maximum};
}

template <class Device>
Tensors<6> OpForward(const AttentionOptions& options, const Tensor& q, const Tensor& k,
                     const Tensor& v, bool want_stats) {
  CheckAttentionTensors(q, k, v, options);
  AttentionResults r = Device::Forward(
      q, k, v, options,
      {.tau = true, .stats = want_stats, .saved_bytes = ReservedBytes(q, options).expect_int()});
  for (Tensor* tensor : {&r.support_size, &r.entropy, &r.maximum}) {
    if (tensor->defined()) continue;
    *tensor =
        at::empty({0}, r.tau.options().dtype(tensor == &r.support_size ? at::kLong : at::kDouble));
  }
  return {r.out, r.tau, r.saved, r.support_size, r.entropy, r.maximum};
}

// A gradient that was not asked for is an empty tensor.
Tensors<kInputs> Filled(std::array<Tensor, kInputs> results, const Tensor& q) {
  for (Tensor& tensor : results) {
    if (!tensor.defined()) tensor = at::empty({0}, q.options());
  }
  return std::tuple_cat(results);
}

void CheckBackward(const Tensor& d_out, const Tensor& q, const Tensor& v, const Tensor& tau,
                   const AttentionSizes& sizes, const AttentionOptions& options,
                   const AttentionWanted& wanted) {
  const c10::SymInt out[4] = {sizes.batch, sizes.heads, sizes.q_len, sizes.value_dim};
  TORCH_CHECK_VALUE(d_out.sym_sizes() == c10::SymIntArrayRef(out),
                    "d_out: expected the shape of the output, ", c10::SymIntArrayRef(out), ", got ",
                    d_out.sym_sizes());
  TORCH_CHECK_VALUE(d_out.scalar_type() == q.scalar_type(), "d_out: expected the dtype of q, ",
                    q.scalar_type(), ", got ", d_out.scalar_type());
  TORCH_CHECK_VALUE(v.defined(), "v: expected a tensor");
  const c10::SymIntArrayRef rows(out, 3);
  TORCH_CHECK_VALUE(tau.scalar_type() == at::kDouble && tau.sym_sizes() == rows,
                    "tau: expected that of attention_forward, float64 of ", rows, ", got ",
                    tau.scalar_type(), " of ", tau.sym_sizes());
  ForEachGradientTensor(options, [&](std::size_t index, const OptionalTensor& tensor) {
    TORCH_CHECK_VALUE(tensor || !wanted[kAlpha + index], "wanted[", kAlpha + index,
                      "]: expected False for an argument that is None, got True");
  });
}

template <class Device>
Tensors<kInputs> OpBackward(const AttentionOptions& options, const Tensor& d_out, const Tensor& q,
                            const Tensor& k, const Tensor& v, const Tensor& tau,
                            const Tensor& saved, AttentionWanted wanted) {
  CheckBackward(d_out, q, v, tau, CheckAttentionTensors(q, k, v, options), options, wanted);
  return Filled(Device::Backward(d_out, q, k, v, tau, saved, options, wanted), q);
}

template <class Device>
Tensors<3> OpWeights(const AttentionOptions& options, const Tensor& q, const Tensor& k) {
  CheckAttentionTensors(q, k, Tensor(), options);
  return Device::Weights(q, k, options);
}

Tensor EmptyLayout(const c10::SymInt& d0, const c10::SymInt& d1, const c10::SymInt& d2,
                   const c10::SymInt& d3, const Tensor& like) {
  const std::array<c10::SymInt, 4> sizes = {d0, d1, d2, d3};
  return at::empty_strided_symint(sizes, AttentionLayout(sizes, like), like.options());
}

AttentionResults MetaForward(const Tensor& q, const Tensor& k, const Tensor& v,
                             const AttentionOptions& options, bool want_stats) {
  const AttentionSizes sizes = CheckAttentionTensors(q, k, v, options);
  const std::array<c10::SymInt, 3> rows = {sizes.batch, sizes.heads, sizes.q_len};
  const std::array<c10::SymInt, 1> none = {c10::SymInt(0)};
  const auto wide = q.options().dtype(at::kDouble);
  const c10::SymIntArrayRef stats = want_stats ? c10::SymIntArrayRef(rows) : none;
  AttentionResults r;
  r.out = EmptyLayout(sizes.batch, sizes.heads, sizes.q_len, sizes.value_dim, q);
  r.tau = at::empty_symint(rows, wide);
  r.saved = at::empty_symint({ReservedBytes(q, options)}, q.options().dtype(at::kByte));
  r.support_size = at::empty_symint(stats, wide.dtype(at::kLong));
  r.entropy = at::empty_symint(stats, wide);
  r.maximum = at::empty_symint(stats, wide);
  return r;
}

Tensor OpMeta(const AttentionOptions& options, const Tensor& q, const Tensor& k, const Tensor& v) {
  return MetaForward(q, k, v, options, false).out;
}

Tensors<5> OpStatsMeta(const AttentionOptions& options, const Tensor& q, const Tensor& k,
                       const Tensor& v) {
  const AttentionResults r = MetaForward(q, k, v, options, true);
  const AttentionStatTensors stats = StatsOf(r, q.scalar_type());
  return {r.out, stats.tau, stats.support_size, stats.entropy, stats.maximum};
}

Tensors<6> OpForwardMeta(const AttentionOptions& options, const Tensor& q, const Tensor& k,
                         const Tensor& v, bool want_stats) {
  const AttentionResults r = MetaForward(q, k, v, options, want_stats);
  return {r.out, r.tau, r.saved, r.support_size, r.entropy, r.maximum};
}

Tensors<kInputs> OpBackwardMeta(const AttentionOptions& options, const Tensor& d_out,
                                const Tensor& q, const Tensor& k, const Tensor& v,
                                const Tensor& tau, const Tensor&, AttentionWanted wanted) {
  CheckBackward(d_out, q, v, tau, CheckAttentionTensors(q, k, v, options), options, wanted);
  std::array<Tensor, kInputs> results;
  const auto like = [&](AttentionInput input, const Tensor& t) {
    if (!wanted[input]) return;
    results[input] = EmptyLayout(t.sym_size(0), t.sym_size(1), t.sym_size(2), t.sym_size(3), t);
  };
  like(kQ, q);
  like(kK, k);
  like(kV, v);
  ForEachGradientTensor(options, [&](std::size_t index, const OptionalTensor& tensor) {
    if (!wanted[kAlpha + index]) return;
    results[kAlpha + index] = at::empty_like(*tensor, at::MemoryFormat::Contiguous);
  });
  return Filled(std::move(results), q);
}

Tensors<3> OpWeightsMeta(const AttentionOptions&, const Tensor&, const Tensor&) {
  // Not TORCH_CHECK_NOT_IMPLEMENTED: torch.compile takes that for a missing function, and drops the
  // message.
  TORCH_CHECK(
      false,
      "tsallis: the weights of attention cannot be traced: how many there are depends on the "
      "data. Ask for them outside of torch.compile and on real tensors");
}

}  // namespace

TORCH_LIBRARY_IMPL(tsallis, CPU, m) {
  m.impl("attention", AttentionOperator<OpPlain<Cpu>>::Call);
  m.impl("attention_stats", AttentionOperator<OpStats<Cpu>>::Call);
  m.impl("attention_forward", AttentionOperator<OpForward<Cpu>>::Call);
  m.impl("attention_backward", AttentionOperator<OpBackward<Cpu>>::Call);
  m.impl("attention_weights", AttentionOperator<OpWeights<Cpu>>::Call);
}

TORCH_LIBRARY_IMPL(tsallis, CUDA, m) {
  m.impl("attention", AttentionOperator<OpPlain<Cuda>>::Call);
  m.impl("attention_stats", AttentionOperator<OpStats<Cuda>>::Call);
  m.impl("attention_forward", AttentionOperator<OpForward<Cuda>>::Call);
  m.impl("attention_backward", AttentionOperator<OpBackward<Cuda>>::Call);
  m.impl("attention_weights", AttentionOperator<OpWeights<Cuda>>::Call);
}

TORCH_LIBRARY_IMPL(tsallis, Meta, m) {
  m.impl("attention", AttentionOperator<OpMeta>::Call);
  m.impl("attention_stats", AttentionOperator<OpStatsMeta>::Call);
  m.impl("attention_forward", AttentionOperator<OpForwardMeta>::Call);
  m.impl("attention_backward", AttentionOperator<OpBackwardMeta>::Call);
  m.impl("attention_weights", AttentionOperator<OpWeightsMeta>::Call);
}

}  // namespace tsallis
