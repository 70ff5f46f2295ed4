// Autograd and autocast of tsallis::attention and its relatives. The order of the dispatch keys is
// that of row_map.cc: autocast casts, autograd records, then CPU or Meta computes
// (attention_operators.cc); on ordinary tensors the steps are plain calls.
#include "torch/attention.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <tuple>
#include <utility>
#include <vector>

#include "torch/attention_settings.h"
#include "torch/row_view.h"

namespace tsallis {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// Handles of the operators, by their signatures in library.cc.
template <typename Signature>
c10::TypedOperatorHandle<Signature> FindOperator(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

const auto& PlainOperator() {
  using Signature = AttentionSignature<Tensor, const Tensor&, const Tensor&, const Tensor&>;
  static const auto handle = FindOperator<Signature>("tsallis::attention");
  return handle;
}

const auto& StatsOperator() {
  using Signature = AttentionSignature<Tensors<5>, const Tensor&, const Tensor&, const Tensor&>;
  static const auto handle = FindOperator<Signature>("tsallis::attention_stats");
  return handle;
}

const auto& ForwardOperator() {
  using Signature =
      AttentionSignature<Tensors<6>, const Tensor&, const Tensor&, const Tensor&, bool>;
  static const auto handle = FindOperator<Signature>("tsallis::attention_forward");
  return handle;
}

const auto& BackwardOperator() {
  using Signature =
      AttentionSignature<Tensors<kInputs>, const Tensor&, const Tensor&, const Tensor&,
                         const Tensor&, const Tensor&, const Tensor&, AttentionWanted>;
  static const auto handle = FindOperator<Signature>("tsallis::attention_backward");
  return handle;
}

const auto& WeightsOperator() {
  using Signature = AttentionSignature<Tensors<3>, const Tensor&, const Tensor&>;
  static const auto handle = FindOperator<Signature>("tsallis::attention_weights");
  return handle;
}

bool ArePlain(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& options) {
  if (!IsPlainCpu(q) || !IsPlainCpu(k) || !IsPlainCpu(v)) return false;
  bool plain = true;
  ForEachTensor(options, [&](const char*, const OptionalTensor& tensor) {
    plain = plain && (!tensor || IsPlainCpu(*tensor));
  });
  return plain;
}

// ---- below autograd: the kernel itself, or whatever the dispatcher puts in its place ------------

AttentionResults ForwardThroughOperator(const Tensor& q, const Tensor& k, const Tensor& v,
                                        const AttentionOptions& options, bool want_stats) {
  AttentionResults r;
  AttentionOptions kept = options;
  // The CUDA kernels save no lists, and while tracing only autograd knows the device.
  if (q.is_cuda()) kept.saved_budget = 0;
  std::tie(r.out, r.tau, r.saved, r.support_size, r.entropy, r.maximum) =
      CallWithSettings(ForwardOperator(), kept, q, k, v, want_stats);
  return r;
}

std::array<Tensor, kInputs> BackwardThroughOperator(const Tensor& d_out, const Tensor& q,
                                                    const Tensor& k, const Tensor& v,
                                                    const Tensor& tau, const Tensor& saved,
                                                    const AttentionOptions& options,
                                                    const AttentionWanted& wanted) {
  return std::apply(
      [](auto&&... gradient) { return std::array<Tensor, kInputs>{std::move(gradient)...}; },
      CallWithSettings(BackwardOperator(), options, d_out, q, k, v, tau, saved, wanted));
}

// ---- autograd -----------------------------------------------------------------------------------

// Keeps settings for the backward pass, numbers in the context and tensors at the end of `saved`,
// and gives them back from there.
void SaveSettings(AutogradContext& context, const AttentionOptions& options, variable_list& saved) {
  KeptSettings kept;
  ForEachSetting([&](const auto& setting) {
    using Kind = typename std::decay_t<decltype(setting)>::Kind;
    if constexpr (!Kind::kTensor) kept.Put(setting.member(options));
  });
  context.saved_data["numbers"] = std::move(kept.numbers);
  context.saved_data["integers"] = std::move(kept.integers);
  ForEachTensor(options, [&](const char*, const OptionalTensor& tensor) {
    saved.push_back(tensor.value_or(Tensor()));
  });
}

AttentionOptions LoadSettings(const AutogradContext& context, const variable_list& saved,
                              std::size_t first) {
  const KeptSettings kept{context.saved_data.at("numbers").toDoubleVector(),
                          context.saved_data.at("integers").toIntVector()};
  SettingsReader reader{kept};
  AttentionOptions options;
  ForEachSetting([&](const auto& setting) {
    using Kind = typename std::decay_t<decltype(setting)>::Kind;
    if constexpr (!Kind::kTensor) reader.Get(setting.member(options));
  });
  ForEachTensor(options, [&](const char*, OptionalTensor& tensor) {
    const Tensor& kept_tensor = saved[first++];
    if (kept_tensor.defined()) tensor = kept_tensor;
  });
  return options;
}

class AttentionFunction : public Function<AttentionFunction> {
 public:
  // The tensors of `options` that can have gradients are given once more, for autograd to see.
  // Statistics leave through `stats`: they never carry gradients.
  template <typename... GradientTensors>
  static Tensor forward(AutogradContext* context, const Tensor& q, const Tensor& k, const Tensor& v,
                        const AttentionOptions* options, AttentionStatTensors* stats,
                        const GradientTensors&...) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    const bool want_stats = stats != nullptr;
    const AttentionResults results =
        ArePlain(q, k, v, *options)
            ? AttentionForwardCpu(q, k, v, *options,
                                  {.tau = true, .stats = want_stats, .saved_bytes = -1})
            : ForwardThroughOperator(q, k, v, *options, want_stats);
    if (want_stats) *stats = StatsOf(results, q.scalar_type());
    variable_list saved = {q, k, v, results.tau, results.saved};
    SaveSettings(*context, *options, saved);
    context->save_for_backward(std::move(saved));
    return results.out;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    const AttentionOptions options = LoadSettings(*context, saved, 5);
    const Tensor &q = saved[0], &k = saved[1], &v = saved[2], &d_out = gradients[0];
    AttentionWanted wanted{};
    std::size_t edge = 0;  // absent tensors have none
    for (const AttentionInput input : {kQ, kK, kV}) {
      wanted[input] = context->needs_input_grad(edge++);
    }
    ForEachGradientTensor(options, [&](std::size_t index, const OptionalTensor& tensor) {
      if (tensor) wanted[kAlpha + index] = context->needs_input_grad(edge++);
    });
    // With gradients on, the operator's own autograd must see the call, to refuse a second
    // derivative.
    auto results =
        !at::GradMode::is_enabled() && IsPlainCpu(d_out) && ArePlain(q, k, v, options)
            ? AttentionBackwardCpu(d_out, q, k, v, saved[3], saved[4], options, wanted)
            : BackwardThroughOperator(d_out, q, k, v, saved[3], saved[4], options, wanted);
    variable_list list(kInputs + 2);  // options and statistics stand behind v
    for (int i = 0; i < kInputs; ++i) {
      if (wanted[i]) list[i < kAlpha ? i : i + 2] = std::move(results[i]);
    }
    return list;
  }
};

class AttentionBackwardFunction : public Function<AttentionBackwardFunction> {
 public:
  template <typename... GradientTensors>
  static variable_list forward(AutogradContext*, const Tensor& d_out, const Tensor& q,
                               const Tensor& k, const Tensor& v, const Tensor* tau,
                               const Tensor* saved, const AttentionOptions* options,
                               AttentionWanted wanted, const GradientTensors&...) {
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
  bool needs = q.requires_grad() || k.requires_grad() || v.requires_grad();
  ForEachGradientTensor(options, [&](std::size_t, const OptionalTensor& tensor) {
    needs = needs || (tensor && tensor->requires_grad());
  });
  return needs;
}

Tensor OpAutograd(const AttentionOptions& options, const Tensor& q, const Tensor& k,
                  const Tensor& v) {
  CheckAttentionTensors(q, k, v, options);
  return AttentionAutograd(q, k, v, options, nullptr);
}

Tensors<5> OpStatsAutograd(const AttentionOptions& options, const Tensor& q, const Tensor& k,
                           const Tensor& v) {
  CheckAttentionTensors(q, k, v, options);
  AttentionStatTensors stats;
  Tensor out = AttentionAutograd(q, k, v, options, &stats);
  return {std::move(out), stats.tau, stats.support_size, stats.entropy, stats.maximum};
}

Tensors<kInputs> OpBackwardAutograd(const AttentionOptions& options, const Tensor& d_out,
                                    const Tensor& q, const Tensor& k, const Tensor& v,
                                    const Tensor& tau, const Tensor& saved,
                                    AttentionWanted wanted) {
  const variable_list results = WithGradientTensors(options, [&](const auto&... tensor) {
    return AttentionBackwardFunction::apply(d_out, q, k, v, &tau, &saved, &options, wanted,
                                            tensor...);
  });
  std::array<Tensor, kInputs> gradients;
  std::copy(results.begin(), results.end(), gradients.begin());
  return std::tuple_cat(gradients);
}

Tensors<3> OpWeightsAutograd(const AttentionOptions& options, const Tensor& q, const Tensor& k) {
  const at::AutoDispatchBelowADInplaceOrView guard;  // weights carry no gradients
  return CallWithSettings(WeightsOperator(), options, q, k);
}

// Casts as torch's own attention does: the products are in autocast's dtype. Small tensors are kept
// exact.
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

Tensor OpAutocast(const AttentionOptions& options, const Tensor& q, const Tensor& k,
                  const Tensor& v) {
  const c10::impl::ExcludeDispatchKeyGuard guard(c10::autocast_dispatch_keyset);
  return CallWithSettings(PlainOperator(), CastOptions(options), Cast(q), Cast(k), Cast(v));
}

Tensors<5> OpStatsAutocast(const AttentionOptions& options, const Tensor& q, const Tensor& k,
                           const Tensor& v) {
  const c10::impl::ExcludeDispatchKeyGuard guard(c10::autocast_dispatch_keyset);
  return CallWithSettings(StatsOperator(), CastOptions(options), Cast(q), Cast(k), Cast(v));
}

Tensors<3> OpWeightsAutocast(const AttentionOptions& options, const Tensor& q, const Tensor& k) {
  const c10::impl::ExcludeDispatchKeyGuard guard(c10::autocast_dispatch_keyset);
  return CallWithSettings(WeightsOperator(), CastOptions(options), Cast(q), Cast(k));
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
  if (stats == nullptr) return CallWithSettings(PlainOperator(), options, q, k, v);
  Tensor out;
  std::tie(out, stats->tau, stats->support_size, stats->entropy, stats->maximum) =
      CallWithSettings(StatsOperator(), options, q, k, v);
  return out;
}

}  // namespace

Tensor AttentionAutograd(const Tensor& q, const Tensor& k, const Tensor& v,
                         const AttentionOptions& options, AttentionStatTensors* stats) {
  if (NeedsGraph(q, k, v, options)) {
    return WithGradientTensors(options, [&](const auto&... tensor) {
      return AttentionFunction::apply(q, k, v, &options, stats, tensor...);
    });
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
  m.impl("attention", AttentionOperator<OpAutograd>::Call);
  m.impl("attention_stats", AttentionOperator<OpStatsAutograd>::Call);
  m.impl("attention_backward", AttentionOperator<OpBackwardAutograd>::Call);
  m.impl("attention_weights", AttentionOperator<OpWeightsAutograd>::Call);
}

namespace {

void RegisterAutocast(torch::Library& m) {
  m.impl("attention", AttentionOperator<OpAutocast>::Call);
  m.impl("attention_stats", AttentionOperator<OpStatsAutocast>::Call);
  m.impl("attention_weights", AttentionOperator<OpWeightsAutocast>::Call);
}

}  // namespace

TORCH_LIBRARY_IMPL(tsallis, AutocastCPU, m) { RegisterAutocast(m); }
TORCH_LIBRARY_IMPL(tsallis, AutocastCUDA, m) { RegisterAutocast(m); }

TORCH_LIBRARY_IMPL(tsallis, FuncTorchBatched, m) {
  for (const char* name : {"attention", "attention_stats", "attention_forward",
                           "attention_backward", "attention_weights"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&RefuseVmap>());
  }
}

}  // namespace tsallis
