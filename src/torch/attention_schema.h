// The arguments that every operator of attention ends with (TSALLIS_ATTENTION_SETTINGS in
// library.cc), as C++ parameters, as AttentionOptions and as what autograd keeps.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/custom_function.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <tuple>

#include "torch/attention.h"

namespace tsallis {

using OptionalTensor = std::optional<at::Tensor>;
using OptionalDoubles = std::optional<at::ArrayRef<double>>;

#define TSALLIS_OPTIONS                                                                           \
  const OptionalTensor &alpha_heads, const OptionalTensor &length_scale,                          \
      const OptionalTensor &alibi_slopes, const OptionalTensor &bias, const OptionalTensor &mask, \
      const OptionalTensor &block_mask, const OptionalTensor &lengths,                            \
      const OptionalTensor &query_lengths, const OptionalTensor &cu_seqlens_q,                    \
      const OptionalTensor &cu_seqlens_k, std::string_view map, double alpha,                     \
      std::optional<double> scale, std::optional<double> scale_invariant, bool causal,            \
      std::string_view alignment, std::int64_t left, std::int64_t right, std::int64_t block_q,    \
      std::int64_t block_k, std::string_view padding, OptionalDoubles coefficients,               \
      std::optional<double> threshold, std::int64_t saved_budget, const OptionalTensor &sink,     \
      std::int64_t top_k, double top_k_fraction, std::optional<double> sigmoid_bias
#define TSALLIS_OPTION_NAMES                                                                   \
  alpha_heads, length_scale, alibi_slopes, bias, mask, block_mask, lengths, query_lengths,     \
      cu_seqlens_q, cu_seqlens_k, map, alpha, scale, scale_invariant, causal, alignment, left, \
      right, block_q, block_k, padding, coefficients, threshold, saved_budget, sink, top_k,    \
      top_k_fraction, sigmoid_bias

AttentionOptions Pack(TSALLIS_OPTIONS);

const char* Name(Alignment alignment);
const char* Name(Padding padding);

// Calls an operator's handle with `first` and the options behind it.
template <typename Handle, typename... First>
auto CallWithOptions(const Handle& handle, const AttentionOptions& o, const First&... first) {
  return handle.call(first..., o.alpha_heads, o.length_scale, o.alibi_slopes, o.bias, o.mask,
                     o.block_mask, o.lengths, o.query_lengths, o.cu_seqlens_q, o.cu_seqlens_k,
                     Name(o.map), o.alpha, o.scale, o.scale_invariant, o.causal, Name(o.alignment),
                     o.left, o.right, o.block_q, o.block_k, Name(o.padding),
                     OptionalDoubles(o.adaptive.coefficients),
                     std::optional<double>(o.adaptive.threshold), o.saved_budget, o.sink, o.top_k.k,
                     o.top_k.fraction, o.sigmoid_bias);
}

using Tuple3 = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
using Tuple5 = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;
using Tuple6 = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;
using Tuple8 = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor,
                          at::Tensor, at::Tensor>;

// Signatures of the operators, named as in the schemas.
using AttentionSignature = at::Tensor(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                      TSALLIS_OPTIONS);
using AttentionStatsSignature = Tuple5(const at::Tensor& q, const at::Tensor& k,
                                       const at::Tensor& v, TSALLIS_OPTIONS);
using AttentionForwardSignature = Tuple6(const at::Tensor& q, const at::Tensor& k,
                                         const at::Tensor& v, bool want_stats, TSALLIS_OPTIONS);
using AttentionBackwardSignature = Tuple8(const at::Tensor& d_out, const at::Tensor& q,
                                          const at::Tensor& k, const at::Tensor& v,
                                          const at::Tensor& tau, const at::Tensor& saved,
                                          AttentionWanted wanted, TSALLIS_OPTIONS);
using AttentionWeightsSignature = Tuple3(const at::Tensor& q, const at::Tensor& k, TSALLIS_OPTIONS);

template <typename Signature>
c10::TypedOperatorHandle<Signature> FindOperator(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

// The tensors among the options.
inline constexpr OptionalTensor AttentionOptions::*kOptionTensors[] = {
    &AttentionOptions::alpha_heads,  &AttentionOptions::length_scale,
    &AttentionOptions::alibi_slopes, &AttentionOptions::bias,
    &AttentionOptions::mask,         &AttentionOptions::block_mask,
    &AttentionOptions::lengths,      &AttentionOptions::query_lengths,
    &AttentionOptions::cu_seqlens_q, &AttentionOptions::cu_seqlens_k,
    &AttentionOptions::sink};

// Which of the tensors that can have gradients are there.
AttentionWanted HasGradientInput(const AttentionOptions& options);

// Keeps options for the backward pass: numbers in the context, as values that autograd can keep (and
// compiled autograd can compare), tensors at the end of `saved`; and gives them back from there.
void SaveOptions(torch::autograd::AutogradContext& context, const AttentionOptions& options,
                 torch::autograd::variable_list& saved);
AttentionOptions LoadOptions(const torch::autograd::AutogradContext& context,
                             const torch::autograd::variable_list& saved, std::size_t first);

}  // namespace tsallis
