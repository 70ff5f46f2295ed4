// Autograd and registration of tsallis::fenchel_young_loss (docs/definitions.md, M6). The gradient
// p - e_y is found with the loss and kept, as the map would have to be solved again otherwise.
#include <ATen/EmptyTensor.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <string_view>
#include <tuple>
#include <utility>

#include "torch/operators.h"
#include "torch/row_view.h"

namespace tsallis {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

using LossSignature = Tensor(const Tensor&, const Tensor&, std::string_view, double, double,
                             std::int64_t);
using ForwardSignature = std::tuple<Tensor, Tensor>(const Tensor&, const Tensor&, bool,
                                                    std::string_view, double, double, std::int64_t);

const c10::TypedOperatorHandle<LossSignature>& LossOperator() {
  static const auto handle = c10::Dispatcher::singleton()
                                 .findSchemaOrThrow("tsallis::fenchel_young_loss", "")
                                 .typed<LossSignature>();
  return handle;
}

const c10::TypedOperatorHandle<ForwardSignature>& ForwardOperator() {
  static const auto handle = c10::Dispatcher::singleton()
                                 .findSchemaOrThrow("tsallis::fenchel_young_loss_forward", "")
                                 .typed<ForwardSignature>();
  return handle;
}

void Check(const Tensor& scores, const Tensor& targets) {
  CheckScores(scores, "scores");
  WrapDim(scores, -1);
  TORCH_CHECK_VALUE(at::isIntegralType(targets.scalar_type(), /*includeBool=*/false),
                    "targets: expected an integer dtype, got ", targets.scalar_type());
  TORCH_CHECK_VALUE(targets.device() == scores.device(), "targets: expected the device of scores, ",
                    scores.device(), ", got ", targets.device());
  const c10::SymIntArrayRef expected = scores.sym_sizes().slice(0, scores.dim() - 1);
  TORCH_CHECK_VALUE(targets.sym_sizes() == expected,
                    "targets: expected the shape of scores without the classes, ", expected,
                    ", got ", targets.sym_sizes());
}

// float32 for 16-bit scores: a loss is one number a row, and its gradient is added to others.
at::ScalarType WideDtype(const Tensor& scores) {
  return scores.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

std::tuple<Tensor, Tensor> LossCpu(const Tensor& scores, const Tensor& targets,
                                   const RowMapParams& params, std::int64_t ignore_index,
                                   bool want_gradient) {
  const std::int64_t dim = scores.dim() - 1;
  const InputRows input = ViewInput(scores, dim);
  const Tensor classes = targets.to(at::kLong).contiguous();
  const Tensor losses = at::Tensor(at::detail::empty_cpu(targets.sizes(), at::kDouble));
  Tensor gradient;
  const auto run = [&](const MutableRows& d_scores) {
    Translated([&] {
      FenchelYoungLoss(TorchContext(), params, input.rows, classes.const_data_ptr<std::int64_t>(),
                       ignore_index, losses.mutable_data_ptr<double>(), d_scores);
    });
  };
  if (want_gradient) {
    OutputRows output(scores, dim, WideDtype(scores));
    run(output.rows());
    gradient = output.Finish();
  } else {
    run({});
  }
  return {losses.to(WideDtype(scores)), std::move(gradient)};
}

RowMapParams Params(std::string_view map, double alpha, double temperature) {
  RowMapParams params;
  params.map = RowMapFromName(map);
  params.alpha = alpha;
  params.temperature = temperature;
  return params;
}

std::tuple<Tensor, Tensor> Forward(const Tensor& scores, const Tensor& targets,
                                   const RowMapParams& params, std::int64_t ignore_index,
                                   bool want_gradient) {
  if (IsPlainCpu(scores) && IsPlainCpu(targets)) {
    return LossCpu(scores, targets, params, ignore_index, want_gradient);
  }
  return ForwardOperator().call(scores, targets, want_gradient, Name(params.map), params.alpha,
                                params.temperature, ignore_index);
}

class LossFunction : public Function<LossFunction> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& scores, const Tensor& targets,
                        const RowMapParams* params, std::int64_t ignore_index) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    auto [losses, gradient] = Forward(scores, targets, *params, ignore_index, true);
    context->save_for_backward({gradient});
    context->saved_data["dtype"] = static_cast<std::int64_t>(scores.scalar_type());
    return losses;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    // The saved gradient has no history: a second derivative would silently miss its part.
    TORCH_CHECK_NOT_IMPLEMENTED(!at::GradMode::is_enabled(),
                                "tsallis: the gradient of a Fenchel-Young loss cannot be "
                                "differentiated again (create_graph=True is not supported)");
    const auto dtype = static_cast<at::ScalarType>(context->saved_data.at("dtype").toInt());
    const Tensor gradient = context->get_saved_variables()[0];
    return {(gradient * gradients[0].unsqueeze(-1)).to(dtype), Tensor(), Tensor(), Tensor()};
  }
};

Tensor LossAutograd(const Tensor& scores, const Tensor& targets, const RowMapParams& params,
                    std::int64_t ignore_index) {
  if (at::GradMode::is_enabled() && scores.requires_grad()) {
    return LossFunction::apply(scores, targets, &params, ignore_index);
  }
  const at::AutoDispatchBelowADInplaceOrView guard;
  return std::get<0>(Forward(scores, targets, params, ignore_index, false));
}

// ---- the operators ------------------------------------------------------------------------------

Tensor OpCpu(const Tensor& scores, const Tensor& targets, std::string_view map, double alpha,
             double temperature, std::int64_t ignore_index) {
  Check(scores, targets);
  return std::get<0>(
      LossCpu(scores, targets, Params(map, alpha, temperature), ignore_index, false));
}

std::tuple<Tensor, Tensor> OpForwardCpu(const Tensor& scores, const Tensor& targets,
                                        bool want_gradient, std::string_view map, double alpha,
                                        double temperature, std::int64_t ignore_index) {
  Check(scores, targets);
  auto [losses, gradient] =
      LossCpu(scores, targets, Params(map, alpha, temperature), ignore_index, want_gradient);
  if (!gradient.defined()) gradient = at::empty({0}, losses.options());
  return {std::move(losses), std::move(gradient)};
}

Tensor OpMeta(const Tensor& scores, const Tensor& targets, std::string_view map, double, double,
              std::int64_t) {
  Check(scores, targets);
  RowMapFromName(map);
  return at::empty_symint(targets.sym_sizes(), scores.options().dtype(WideDtype(scores)));
}

std::tuple<Tensor, Tensor> OpForwardMeta(const Tensor& scores, const Tensor& targets,
                                         bool want_gradient, std::string_view map, double alpha,
                                         double temperature, std::int64_t ignore_index) {
  const auto options = scores.options().dtype(WideDtype(scores));
  return {OpMeta(scores, targets, map, alpha, temperature, ignore_index),
          want_gradient ? at::empty_symint(scores.sym_sizes(), options) : at::empty({0}, options)};
}

Tensor OpAutograd(const Tensor& scores, const Tensor& targets, std::string_view map, double alpha,
                  double temperature, std::int64_t ignore_index) {
  Check(scores, targets);
  return LossAutograd(scores, targets, Params(map, alpha, temperature), ignore_index);
}

Tensor OpAutocast(const Tensor& scores, const Tensor& targets, std::string_view map, double alpha,
                  double temperature, std::int64_t ignore_index) {
  const c10::impl::ExcludeDispatchKeyGuard guard(c10::autocast_dispatch_keyset);
  return LossOperator().call(at::autocast::cached_cast(at::kFloat, scores, scores.device().type()),
                             targets, map, alpha, temperature, ignore_index);
}

}  // namespace

Tensor FenchelYoungLosses(const Tensor& scores, const Tensor& targets, const RowMapParams& params,
                          std::int64_t ignore_index) {
  Check(scores, targets);
  if (IsPlainCpu(scores) && IsPlainCpu(targets)) {
    return LossAutograd(scores, targets, params, ignore_index);
  }
  return LossOperator().call(scores, targets, Name(params.map), params.alpha, params.temperature,
                             ignore_index);
}

TORCH_LIBRARY_IMPL(tsallis, CPU, m) {
  m.impl("fenchel_young_loss", OpCpu);
  m.impl("fenchel_young_loss_forward", OpForwardCpu);
}

TORCH_LIBRARY_IMPL(tsallis, Meta, m) {
  m.impl("fenchel_young_loss", OpMeta);
  m.impl("fenchel_young_loss_forward", OpForwardMeta);
}

TORCH_LIBRARY_IMPL(tsallis, Autograd, m) { m.impl("fenchel_young_loss", OpAutograd); }

TORCH_LIBRARY_IMPL(tsallis, AutocastCPU, m) { m.impl("fenchel_young_loss", OpAutocast); }

}  // namespace tsallis
