// Autograd and autocast of tsallis::attention and its relatives. The order of the dispatch keys is
// that of row_map.cc: autocast casts, autograd records, then CPU or Meta computes
// (attention_operators.cc); on ordinary tensors the steps are plain calls.
#include "torch/attention.h"

#include <ATen/autocast_mode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <utility>
#include <vector>

#include "torch/attention_schema.h"
#include "torch/row_view.h"

namespace tsallis {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

const auto& AttentionOperator() {
  static const auto handle = FindOperator<AttentionSignature>("tsallis::attention");
  return handle;
}

const auto& StatsOperator() {
  static const auto handle = FindOperator<AttentionStatsSignature>("tsallis::attention_stats");
  return handle;
}

const auto& ForwardOperator() {
  static const auto handle = FindOperator<AttentionForwardSignature>("tsallis::attention_forward");
  return handle;
}

const auto& BackwardOperator() {
  static const auto handle =
      FindOperator<AttentionBackwardSignature>("tsallis::attention_backward");
  return handle;
}

const auto& WeightsOperator() {
  static const auto handle = FindOperator<AttentionWeightsSignature>("tsallis::attention_weights");
  return handle;
}

bool ArePlain(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& options) {
  if (!IsPlainCpu(q) || !IsPlainCpu(k) || !IsPlainCpu(v)) return false;
  for (const OptionalTensor AttentionOptions::*member : kOptionTensors) {
    if (options.*member && !IsPlainCpu(*(options.*member))) return false;
  }
  return true;
}

// ---- below autograd: the kernel itself, or whatever the dispatcher puts in its place ------------

AttentionResults ForwardThroughOperator(const Tensor& q, const Tensor& k, const Tensor& v,
                                        const AttentionOptions& options, bool want_stats) {
  AttentionResults r;
  std::tie(r.out, r.tau, r.saved, r.support_size, r.entropy, r.maximum) =
      CallWithOptions(ForwardOperator(), options, q, k, v, want_stats);
  return r;
}

std::array<Tensor, kInputs> BackwardThroughOperator(const Tensor& d_out, const Tensor& q,
                                                    const Tensor& k, const Tensor& v,
                                                    const Tensor& tau, const Tensor& saved,
                                                    const AttentionOptions& options,
                                                    const AttentionWanted& wanted) {
  auto [dq, dk, dv, d_alpha, d_length_scale, d_slopes, d_bias, d_sink] =
      CallWithOptions(BackwardOperator(), options, d_out, q, k, v, tau, saved, wanted);
  return {dq, dk, dv, d_alpha, d_length_scale, d_slopes, d_bias, d_sink};
}

// ---- autograd -----------------------------------------------------------------------------------

class AttentionFunction : public Function<AttentionFunction> {
 public:
  // The tensors of `options` that can have gradients are given once more, for autograd to see.
  // Statistics leave through `stats`: they never carry gradients.
  static Tensor forward(AutogradContext* context, const Tensor& q, const Tensor& k, const Tensor& v,
                        const OptionalTensor&, const OptionalTensor&, const OptionalTensor&,
                        const OptionalTensor&, const OptionalTensor&,
                        const AttentionOptions* options, AttentionStatTensors* stats) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    const bool want_stats = stats != nullptr;
    const AttentionResults results =
        ArePlain(q, k, v, *options)
            ? AttentionForwardCpu(q, k, v, *options,
                                  {.tau = true, .stats = want_stats, .saved_bytes = -1})
            : ForwardThroughOperator(q, k, v, *options, want_stats);
    if (want_stats) *stats = StatsOf(results, q.scalar_type());
    variable_list saved = {q, k, v, results.tau, results.saved};
    SaveOptions(*context, *options, saved);
    context->save_for_backward(std::move(saved));
    return results.out;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    const AttentionOptions options = LoadOptions(*context, saved, 5);
    const Tensor &q = saved[0], &k = saved[1], &v = saved[2], &d_out = gradients[0];
    const auto present = HasGradientInput(options);
    AttentionWanted wanted{};
    std::size_t edge = 0;  // absent tensors have none
    for (int i = 0; i < kInputs; ++i) {
      if (present[i]) wanted[i] = context->needs_input_grad(edge++);
    }
    // With gradients on, the operator's own autograd must see the call, to refuse a second
    // derivative.
    auto results =
        !at::GradMode::is_enabled() && IsPlainCpu(d_out) && ArePlain(q, k, v, options)
            ? AttentionBackwardCpu(d_out, q, k, v, saved[3], saved[4], options, wanted)
            : BackwardThroughOperator(d_out, q, k, v, saved[3], saved[4], options, wanted);
    variable_list list(kInputs + 2);
    for (int i = 0; i < kInputs; ++i) {
      if (wanted[i]) list[i] = std::move(results[i]);
    }
    return list;
  }
};

class AttentionBackwardFunction : public Function<AttentionBackwardFunction> {
 public:
  static variable_list forward(AutogradContext*, const Tensor& d_out, const Tensor& q,
                               const Tensor& k, const Tensor& v, const OptionalTensor&,
                               const OptionalTensor&, const OptionalTensor&, const OptionalTensor&,
                               const OptionalTensor&, const Tensor* tau, const Tensor* saved,
                               const AttentionOptions* options, AttentionWanted wanted) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    const auto results = BackwardThroughOperator(d_out, q, k, v, *tau, *saved, *options, wanted);
    return {results.begin(), results.end()};
  }

  static variable_list backward(AutogradContext*, const variable_list&) {
    TORCH_CHECK_NOT_IMPLEMENTED(false,
                                "tsallis: the gradient of attention cannot be differentiated again "
                                "(second derivatives are not implemented)");
  }
};

bool NeedsGraph(const Tensor& q, const Tensor& k, const Tensor& v,
                const AttentionOptions& options) {
  if (!at::GradMode::is_enabled()) return false;
  const auto requires_grad = [](const OptionalTensor& tensor) {
    return tensor && tensor->requires_grad();
  };
  return q.requires_grad() || k.requires_grad() || v.requires_grad() ||
         requires_grad(options.alpha_heads) || requires_grad(options.length_scale) ||
         requires_grad(options.alibi_slopes) || requires_grad(options.bias) ||
         requires_grad(options.sink);
}

Tensor OpAutograd(const Tensor& q, const Tensor& k, const Tensor& v, TSALLIS_OPTIONS) {
  const AttentionOptions options = Pack(TSALLIS_OPTION_NAMES);
  CheckAttentionTensors(q, k, v, options);
  return AttentionAutograd(q, k, v, options, nullptr);
}

Tuple5 OpStatsAutograd(const Tensor& q, const Tensor& k, const Tensor& v, TSALLIS_OPTIONS) {
  const AttentionOptions options = Pack(TSALLIS_OPTION_NAMES);
  CheckAttentionTensors(q, k, v, options);
  AttentionStatTensors stats;
  Tensor out = AttentionAutograd(q, k, v, options, &stats);
  return {std::move(out), stats.tau, stats.support_size, stats.entropy, stats.maximum};
}

Tuple8 OpBackwardAutograd(const Tensor& d_out, const Tensor& q, const Tensor& k, const Tensor& v,
                          const Tensor& tau, const Tensor& saved, AttentionWanted wanted,
                          TSALLIS_OPTIONS) {
  const AttentionOptions options = Pack(TSALLIS_OPTION_NAMES);
  const variable_list r = AttentionBackwardFunction::apply(
      d_out, q, k, v, options.alpha_heads, options.length_scale, options.alibi_slopes, options.bias,
      options.sink, &tau, &saved, &options, wanted);
  return {r[0], r[1], r[2], r[3], r[4], r[5], r[6], r[7]};
}

Tuple3 OpWeightsAutograd(const Tensor& q, const Tensor& k, TSALLIS_OPTIONS) {
  const at::AutoDispatchBelowADInplaceOrView guard;  // weights carry no gradients
  return WeightsOperator().call(q, k, TSALLIS_OPTION_NAMES);
}

// As torch's own attention: the products in autocast's dtype. What is small is kept exact.
Tensor Cast(const Tensor& tensor) {
  const at::DeviceType device = tensor.device().type();
  return at::autocast::cached_cast(at::autocast::get_autocast_dtype(device), tensor, device);
}

AttentionOptions CastOptions(AttentionOptions options) {
  for (OptionalTensor* tensor :
       {&options.alpha_heads, &options.length_scale, &options.alibi_slopes, &options.sink}) {
    if (!*tensor) continue;
    *tensor = at::autocast::cached_cast(at::kFloat, **tensor, (*tensor)->device().type());
  }
  return options;
}

Tensor OpAutocast(const Tensor& q, const Tensor& k, const Tensor& v, TSALLIS_OPTIONS) {
  const c10::impl::ExcludeDispatchKeyGuard guard(c10::autocast_dispatch_keyset);
  return CallWithOptions(AttentionOperator(), CastOptions(Pack(TSALLIS_OPTION_NAMES)), Cast(q),
                         Cast(k), Cast(v));
}

Tuple5 OpStatsAutocast(const Tensor& q, const Tensor& k, const Tensor& v, TSALLIS_OPTIONS) {
  const c10::impl::ExcludeDispatchKeyGuard guard(c10::autocast_dispatch_keyset);
  return CallWithOptions(StatsOperator(), CastOptions(Pack(TSALLIS_OPTION_NAMES)), Cast(q), Cast(k),
                         Cast(v));
}

Tuple3 OpWeightsAutocast(const Tensor& q, const Tensor& k, TSALLIS_OPTIONS) {
  const c10::impl::ExcludeDispatchKeyGuard guard(c10::autocast_dispatch_keyset);
  return CallWithOptions(WeightsOperator(), CastOptions(Pack(TSALLIS_OPTION_NAMES)), Cast(q),
                         Cast(k));
}

// torch would run the call once for every slice, which is never what somebody in search of speed
// wants.
void RefuseVmap(const c10::OperatorHandle& handle, c10::DispatchKeySet, torch::jit::Stack*) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, handle.schema().name(),
                              ": torch.vmap is not supported; attention takes batches: fold the "
                              "mapped dimension into that of the batch");
}

// The operator, through the dispatcher.
Tensor CallOperator(const Tensor& q, const Tensor& k, const Tensor& v,
                    const AttentionOptions& options, AttentionStatTensors* stats) {
  if (stats == nullptr) return CallWithOptions(AttentionOperator(), options, q, k, v);
  Tensor out;
  std::tie(out, stats->tau, stats->support_size, stats->entropy, stats->maximum) =
      CallWithOptions(StatsOperator(), options, q, k, v);
  return out;
}

}  // namespace

Tensor AttentionAutograd(const Tensor& q, const Tensor& k, const Tensor& v,
                         const AttentionOptions& options, AttentionStatTensors* stats) {
  if (NeedsGraph(q, k, v, options)) {
    return AttentionFunction::apply(q, k, v, options.alpha_heads, options.length_scale,
                                    options.alibi_slopes, options.bias, options.sink, &options,
                                    stats);
  }
  const at::AutoDispatchBelowADInplaceOrView guard;
  if (ArePlain(q, k, v, options)) {
    const AttentionResults results =
        AttentionForwardCpu(q, k, v, options, {.stats = stats != nullptr});
    if (stats != nullptr) *stats = StatsOf(results, q.scalar_type());
    return results.out;
  }
  return CallOperator(q, k, v, options, stats);
}

Tensor Attention(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& options,
                 AttentionStatTensors* stats) {
  if (ArePlain(q, k, v, options)) {
    CheckAttentionTensors(q, k, v, options);
    return AttentionAutograd(q, k, v, options, stats);
  }
  return CallOperator(q, k, v, options, stats);
}

TORCH_LIBRARY_IMPL(tsallis, Autograd, m) {
  m.impl("attention", OpAutograd);
  m.impl("attention_stats", OpStatsAutograd);
  m.impl("attention_backward", OpBackwardAutograd);
  m.impl("attention_weights", OpWeightsAutograd);
}

TORCH_LIBRARY_IMPL(tsallis, AutocastCPU, m) {
  m.impl("attention", OpAutocast);
  m.impl("attention_stats", OpStatsAutocast);
  m.impl("attention_weights", OpWeightsAutocast);
}

TORCH_LIBRARY_IMPL(tsallis, FuncTorchBatched, m) {
  for (const char* name : {"attention", "attention_stats", "attention_forward",
                           "attention_backward", "attention_weights"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&RefuseVmap>());
  }
}

}  // namespace tsallis
