// Autograd and registration of tsallis::row_map, row_map_stats and row_map_backward.
//
// Order of the dispatch keys: Autocast casts to float32 (as torch does for softmax on accelerators:
// a map's threshold wants the digits), Autograd records, then CPU or Meta computes. While
// torch.compile traces, the dispatcher must see every step, so nothing there calls a kernel
// directly; on ordinary tensors the steps are plain calls.
#include "torch/row_map.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <utility>
#include <vector>

#include "torch/row_view.h"

namespace tsallis {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;
using OptionalTensor = std::optional<Tensor>;

// The settings that every schema ends with, in this order.
#define TSALLIS_SETTINGS                                                                   \
  std::string_view map, double alpha, std::int64_t dim, double temperature, double budget, \
      OptionalDoubles coefficients, std::optional<double> threshold, std::int64_t top_k,   \
      double top_k_fraction, std::optional<double> sigmoid_bias
#define TSALLIS_SETTING_NAMES \
  map, alpha, dim, temperature, budget, coefficients, threshold, top_k, top_k_fraction, sigmoid_bias

using MapSignature = Tensor(const Tensor&, const OptionalTensor&, TSALLIS_SETTINGS);
using StatsSignature = std::tuple<Tensor, Tensor, Tensor, Tensor>(const Tensor&,
                                                                  const OptionalTensor&,
                                                                  TSALLIS_SETTINGS);
using BackwardSignature = std::tuple<Tensor, Tensor>(const Tensor&, const Tensor&, const Tensor&,
                                                     const OptionalTensor&, bool, TSALLIS_SETTINGS);

template <typename Signature>
c10::TypedOperatorHandle<Signature> Find(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

const c10::TypedOperatorHandle<MapSignature>& MapOperator() {
  static const auto handle = Find<MapSignature>("tsallis::row_map");
  return handle;
}

const c10::TypedOperatorHandle<StatsSignature>& StatsOperator() {
  static const auto handle = Find<StatsSignature>("tsallis::row_map_stats");
  return handle;
}

const c10::TypedOperatorHandle<BackwardSignature>& BackwardOperator() {
  static const auto handle = Find<BackwardSignature>("tsallis::row_map_backward");
  return handle;
}

// Calls an operator's handle with the settings of `call` behind `first`.
template <typename Handle, typename... First>
auto CallWithSettings(const Handle& handle, const RowMapCall& call, const First&... first) {
  const RowMapParams& params = call.params;
  return handle.call(first..., Name(params.map), params.alpha, call.dim, params.temperature,
                     params.budget, OptionalDoubles(params.adaptive.coefficients),
                     std::optional<double>(params.adaptive.threshold), params.top_k.k,
                     params.top_k.fraction, params.sigmoid_bias);
}

// ---- below autograd: the kernel itself, or whatever the dispatcher puts in its place ------------

Tensor Forward(const Tensor& scores, const OptionalTensor& alpha_rows, const RowMapCall& call,
               RowStatTensors* stats) {
  if (IsPlainCpu(scores) && (!alpha_rows || IsPlainCpu(*alpha_rows))) {
    return RowMapCpu(scores, alpha_rows, call, stats);
  }
  if (stats == nullptr) return CallWithSettings(MapOperator(), call, scores, alpha_rows);
  Tensor probabilities;
  std::tie(probabilities, stats->tau, stats->support_size, stats->entropy) =
      CallWithSettings(StatsOperator(), call, scores, alpha_rows);
  return probabilities;
}

// ---- autograd -----------------------------------------------------------------------------------

// Saves what backward needs of the call, as values that autograd can keep (and compiled autograd
// can compare).
void Save(AutogradContext* context, const RowMapCall& call) {
  const RowMapParams& params = call.params;
  std::vector<double> numbers = {params.alpha,          params.temperature,
                                 params.budget,         params.adaptive.threshold,
                                 params.top_k.fraction, params.sigmoid_bias.value_or(0.0)};
  numbers.insert(numbers.end(), params.adaptive.coefficients.begin(),
                 params.adaptive.coefficients.end());
  context->saved_data["numbers"] = std::move(numbers);
  context->saved_data["map"] = static_cast<std::int64_t>(params.map);
  context->saved_data["dim"] = call.dim;
  context->saved_data["top_k"] = params.top_k.k;
  context->saved_data["has_sigmoid_bias"] = params.sigmoid_bias.has_value();
}

RowMapCall Load(const AutogradContext& context) {
  const std::vector<double> numbers = context.saved_data.at("numbers").toDoubleVector();
  RowMapCall call;
  call.params.map = static_cast<RowMap>(context.saved_data.at("map").toInt());
  call.params.alpha = numbers[0];
  call.params.temperature = numbers[1];
  call.params.budget = numbers[2];
  call.params.adaptive.threshold = numbers[3];
  call.params.adaptive.coefficients.assign(numbers.begin() + 6, numbers.end());
  call.params.top_k = {.k = context.saved_data.at("top_k").toInt(), .fraction = numbers[4]};
  if (context.saved_data.at("has_sigmoid_bias").toBool()) call.params.sigmoid_bias = numbers[5];
  call.dim = context.saved_data.at("dim").toInt();
  return call;
}

std::tuple<Tensor, Tensor> Backward(const Tensor& d_probabilities, const Tensor& scores,
                                    const Tensor& probabilities, const OptionalTensor& alpha_rows,
                                    const RowMapCall& call, bool want_alpha) {
  // With gradients on, the operator's own autograd must see the call, to refuse a second
  // derivative.
  if (!at::GradMode::is_enabled() && IsPlainCpu(d_probabilities) && IsPlainCpu(scores)) {
    return RowMapBackwardCpu(d_probabilities, scores, probabilities, alpha_rows, call, want_alpha);
  }
  return CallWithSettings(BackwardOperator(), call, d_probabilities, scores, probabilities,
                          alpha_rows, want_alpha);
}

class RowMapFunction : public Function<RowMapFunction> {
 public:
  // Statistics leave through `stats`, not as outputs: they never carry gradients.
  static Tensor forward(AutogradContext* context, const Tensor& scores,
                        const OptionalTensor& alpha_rows, const RowMapCall* call,
                        RowStatTensors* stats) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    Tensor probabilities = Forward(scores, alpha_rows, *call, stats);
    // Scores would keep as much memory again alive as the probabilities.
    RowMapParams params = call->params;
    const double per_row = 0.0;
    if (alpha_rows) params.alpha_per_row = &per_row;  // only that there is one matters here
    const bool needs_scores = BackwardReadsScores(params, KernelDType(scores));
    context->save_for_backward(
        {probabilities, needs_scores ? scores : Tensor(), alpha_rows.value_or(Tensor())});
    Save(context, *call);
    return probabilities;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    OptionalTensor alpha_rows;
    if (saved[2].defined()) alpha_rows = saved[2];
    // The second edge exists only if there is an alpha.
    const bool want_alpha = alpha_rows && context->needs_input_grad(1);
    const Tensor& probabilities = saved[0];
    const Tensor& scores = saved[1].defined() ? saved[1] : probabilities;
    auto [d_scores, d_alpha] =
        Backward(gradients[0], scores, probabilities, alpha_rows, Load(*context), want_alpha);
    if (!want_alpha) d_alpha = Tensor();
    return {d_scores, d_alpha, Tensor(), Tensor()};
  }
};

class RowMapBackwardFunction : public Function<RowMapBackwardFunction> {
 public:
  static variable_list forward(AutogradContext* context, const Tensor& d_probabilities,
                               const Tensor& scores, const Tensor& probabilities,
                               const OptionalTensor& alpha_rows, const RowMapCall* call,
                               bool want_alpha) {
    (void)context;
    const at::AutoDispatchBelowADInplaceOrView guard;
    auto [d_scores, d_alpha] = CallWithSettings(BackwardOperator(), *call, d_probabilities, scores,
                                                probabilities, alpha_rows, want_alpha);
    return {d_scores, d_alpha};
  }

  static variable_list backward(AutogradContext*, const variable_list&) {
    TORCH_CHECK_NOT_IMPLEMENTED(false,
                                "tsallis: the gradient of a row map cannot be differentiated again "
                                "(second derivatives are not implemented)");
  }
};

bool NeedsGraph(const Tensor& scores, const OptionalTensor& alpha_rows) {
  return at::GradMode::is_enabled() &&
         (scores.requires_grad() || (alpha_rows && alpha_rows->requires_grad()));
}

// ---- the operators ------------------------------------------------------------------------------

Tensor OpCpu(const Tensor& scores, const OptionalTensor& alpha_rows, TSALLIS_SETTINGS) {
  return RowMapCpu(scores, alpha_rows, MakeRowMapCall(scores, alpha_rows, TSALLIS_SETTING_NAMES),
                   nullptr);
}

std::tuple<Tensor, Tensor, Tensor, Tensor> OpStatsCpu(const Tensor& scores,
                                                      const OptionalTensor& alpha_rows,
                                                      TSALLIS_SETTINGS) {
  RowStatTensors stats;
  Tensor probabilities = RowMapCpu(
      scores, alpha_rows, MakeRowMapCall(scores, alpha_rows, TSALLIS_SETTING_NAMES), &stats);
  return {std::move(probabilities), stats.tau, stats.support_size, stats.entropy};
}

void CheckBackward(const Tensor& d_probabilities, const Tensor& scores,
                   const Tensor& probabilities) {
  const auto check = [&](const Tensor& tensor, const char* argument) {
    TORCH_CHECK_VALUE(tensor.scalar_type() == scores.scalar_type(), argument,
                      ": expected the dtype of scores, ", scores.scalar_type(), ", got ",
                      tensor.scalar_type());
    TORCH_CHECK_VALUE(tensor.sym_sizes() == scores.sym_sizes(), argument,
                      ": expected the shape of scores, ", scores.sym_sizes(), ", got ",
                      tensor.sym_sizes());
  };
  check(d_probabilities, "d_probabilities");
  check(probabilities, "probabilities");
}

std::tuple<Tensor, Tensor> OpBackwardCpu(const Tensor& d_probabilities, const Tensor& scores,
                                         const Tensor& probabilities,
                                         const OptionalTensor& alpha_rows, bool want_alpha,
                                         TSALLIS_SETTINGS) {
  const RowMapCall call = MakeRowMapCall(scores, alpha_rows, TSALLIS_SETTING_NAMES);
  CheckBackward(d_probabilities, scores, probabilities);
  auto [d_scores, d_alpha] =
      RowMapBackwardCpu(d_probabilities, scores, probabilities, alpha_rows, call, want_alpha);
  if (!d_alpha.defined()) d_alpha = at::empty({0}, scores.options());
  return {std::move(d_scores), std::move(d_alpha)};
}

Tensor OpMeta(const Tensor& scores, const OptionalTensor& alpha_rows, TSALLIS_SETTINGS) {
  MakeRowMapCall(scores, alpha_rows, TSALLIS_SETTING_NAMES);
  return at::empty_like(scores, at::MemoryFormat::Contiguous);
}

std::tuple<Tensor, Tensor, Tensor, Tensor> OpStatsMeta(const Tensor& scores,
                                                       const OptionalTensor& alpha_rows,
                                                       TSALLIS_SETTINGS) {
  const RowMapCall call = MakeRowMapCall(scores, alpha_rows, TSALLIS_SETTING_NAMES);
  std::vector<c10::SymInt> shape = scores.sym_sizes().vec();
  shape.erase(shape.begin() + call.dim);
  const auto options =
      scores.options().dtype(scores.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  return {at::empty_like(scores, at::MemoryFormat::Contiguous), at::empty_symint(shape, options),
          at::empty_symint(shape, options.dtype(at::kLong)), at::empty_symint(shape, options)};
}

std::tuple<Tensor, Tensor> OpBackwardMeta(const Tensor& d_probabilities, const Tensor& scores,
                                          const Tensor& probabilities,
                                          const OptionalTensor& alpha_rows, bool want_alpha,
                                          TSALLIS_SETTINGS) {
  MakeRowMapCall(scores, alpha_rows, TSALLIS_SETTING_NAMES);
  CheckBackward(d_probabilities, scores, probabilities);
  return {at::empty_like(scores, at::MemoryFormat::Contiguous),
          want_alpha && alpha_rows ? at::empty_like(*alpha_rows, at::MemoryFormat::Contiguous)
                                   : at::empty({0}, scores.options())};
}

Tensor OpAutograd(const Tensor& scores, const OptionalTensor& alpha_rows, TSALLIS_SETTINGS) {
  return RowMapAutograd(scores, alpha_rows,
                        MakeRowMapCall(scores, alpha_rows, TSALLIS_SETTING_NAMES), nullptr);
}

std::tuple<Tensor, Tensor, Tensor, Tensor> OpStatsAutograd(const Tensor& scores,
                                                           const OptionalTensor& alpha_rows,
                                                           TSALLIS_SETTINGS) {
  RowStatTensors stats;
  Tensor probabilities = RowMapAutograd(
      scores, alpha_rows, MakeRowMapCall(scores, alpha_rows, TSALLIS_SETTING_NAMES), &stats);
  return {std::move(probabilities), stats.tau, stats.support_size, stats.entropy};
}

std::tuple<Tensor, Tensor> OpBackwardAutograd(const Tensor& d_probabilities, const Tensor& scores,
                                              const Tensor& probabilities,
                                              const OptionalTensor& alpha_rows, bool want_alpha,
                                              TSALLIS_SETTINGS) {
  const RowMapCall call = MakeRowMapCall(scores, alpha_rows, TSALLIS_SETTING_NAMES);
  const variable_list gradients = RowMapBackwardFunction::apply(
      d_probabilities, scores, probabilities, alpha_rows, &call, want_alpha);
  return {gradients[0], gradients[1]};
}

Tensor ToFloat(const Tensor& tensor) {
  return at::autocast::cached_cast(at::kFloat, tensor, tensor.device().type());
}

Tensor OpAutocast(const Tensor& scores, const OptionalTensor& alpha_rows, TSALLIS_SETTINGS) {
  const c10::impl::ExcludeDispatchKeyGuard guard(c10::autocast_dispatch_keyset);
  return MapOperator().call(ToFloat(scores), alpha_rows, TSALLIS_SETTING_NAMES);
}

std::tuple<Tensor, Tensor, Tensor, Tensor> OpStatsAutocast(const Tensor& scores,
                                                           const OptionalTensor& alpha_rows,
                                                           TSALLIS_SETTINGS) {
  const c10::impl::ExcludeDispatchKeyGuard guard(c10::autocast_dispatch_keyset);
  return StatsOperator().call(ToFloat(scores), alpha_rows, TSALLIS_SETTING_NAMES);
}

#undef TSALLIS_SETTINGS
#undef TSALLIS_SETTING_NAMES

}  // namespace

RowMapCall MakeRowMapCall(const Tensor& scores, const OptionalTensor& alpha_rows,
                          const RowMapParams& params, std::int64_t dim) {
  CheckScores(scores, "scores");
  RowMapCall call;
  call.params = params;
  call.dim = WrapDim(scores, dim);
  TORCH_CHECK_VALUE(params.alpha_per_row == nullptr,
                    "alpha_per_row: expected null (pass a tensor instead), got a pointer");
  if (!alpha_rows) return call;
  const Tensor& alpha = *alpha_rows;
  RefuseTangent(alpha, "alpha");
  TORCH_CHECK_VALUE(params.map == RowMap::kEntmax || params.map == RowMap::kNormmax,
                    "alpha: expected none for ", Name(params.map), ", got a tensor");
  TORCH_CHECK_VALUE(at::isFloatingType(alpha.scalar_type()),
                    "alpha: expected a floating-point tensor, got ", alpha.scalar_type());
  TORCH_CHECK_VALUE(alpha.device() == scores.device(), "alpha: expected the device of scores, ",
                    scores.device(), ", got ", alpha.device());
  TORCH_CHECK_VALUE(params.map == RowMap::kEntmax || !alpha.requires_grad(),
                    "alpha: expected a tensor that requires no gradient for normmax (it has none), "
                    "got one that does");
  bool fits = alpha.dim() <= scores.dim();
  const std::int64_t offset = scores.dim() - alpha.dim();
  for (std::int64_t d = 0; fits && d < alpha.dim(); ++d) {
    const c10::SymInt size = alpha.sym_size(d);
    fits = size == 1 || (d + offset != call.dim && size == scores.sym_size(d + offset));
  }
  TORCH_CHECK_VALUE(fits, "alpha: expected a shape that broadcasts to that of scores, ",
                    scores.sym_sizes(), ", with size 1 in dimension ", call.dim, ", got ",
                    alpha.sym_sizes());
  return call;
}

RowMapCall MakeRowMapCall(const Tensor& scores, const OptionalTensor& alpha_rows,
                          std::string_view map, double alpha, std::int64_t dim, double temperature,
                          double budget, OptionalDoubles coefficients,
                          std::optional<double> threshold, std::int64_t top_k,
                          double top_k_fraction, std::optional<double> sigmoid_bias) {
  RowMapParams params;
  params.map = RowMapFromName(map);
  params.alpha = alpha;
  params.temperature = temperature;
  params.budget = budget;
  if (coefficients) params.adaptive.coefficients = coefficients->vec();
  if (threshold) params.adaptive.threshold = *threshold;
  params.top_k = {.k = top_k, .fraction = top_k_fraction};
  params.sigmoid_bias = sigmoid_bias;
  return MakeRowMapCall(scores, alpha_rows, params, dim);
}

Tensor RowMapAutograd(const Tensor& scores, const OptionalTensor& alpha_rows,
                      const RowMapCall& call, RowStatTensors* stats) {
  if (!NeedsGraph(scores, alpha_rows)) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    return Forward(scores, alpha_rows, call, stats);
  }
  return RowMapFunction::apply(scores, alpha_rows, &call, stats);
}

Tensor MapRows(const Tensor& scores, const RowMapParams& params, const OptionalTensor& alpha,
               std::int64_t dim) {
  return MapRows(scores, params, alpha, dim, nullptr);
}

Tensor MapRows(const Tensor& scores, const RowMapParams& params, const OptionalTensor& alpha,
               std::int64_t dim, RowStatTensors* stats) {
  const RowMapCall call = MakeRowMapCall(scores, alpha, params, dim);
  if (IsPlainCpu(scores)) return RowMapAutograd(scores, alpha, call, stats);
  if (stats == nullptr) return CallWithSettings(MapOperator(), call, scores, alpha);
  Tensor probabilities;
  std::tie(probabilities, stats->tau, stats->support_size, stats->entropy) =
      CallWithSettings(StatsOperator(), call, scores, alpha);
  return probabilities;
}

Tensor Entmax(const Tensor& scores, double alpha, std::int64_t dim) {
  RowMapParams params;
  params.alpha = alpha;
  return MapRows(scores, params, std::nullopt, dim);
}

TORCH_LIBRARY_IMPL(tsallis, CPU, m) {
  m.impl("row_map", OpCpu);
  m.impl("row_map_stats", OpStatsCpu);
  m.impl("row_map_backward", OpBackwardCpu);
}

TORCH_LIBRARY_IMPL(tsallis, Meta, m) {
  m.impl("row_map", OpMeta);
  m.impl("row_map_stats", OpStatsMeta);
  m.impl("row_map_backward", OpBackwardMeta);
}

TORCH_LIBRARY_IMPL(tsallis, Autograd, m) {
  m.impl("row_map", OpAutograd);
  m.impl("row_map_stats", OpStatsAutograd);
  m.impl("row_map_backward", OpBackwardAutograd);
}

TORCH_LIBRARY_IMPL(tsallis, AutocastCPU, m) {
  m.impl("row_map", OpAutocast);
  m.impl("row_map_stats", OpStatsAutocast);
}

}  // namespace tsallis
