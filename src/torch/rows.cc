// Autograd of the row maps and their losses for C++.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <optional>
#include <utility>

#include "stable/rows.h"
#include "torch/operators.h"
#include "torch/tensors.h"

namespace tsallis {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;
using OptionalTensor = std::optional<Tensor>;

std::optional<stable::Tensor> OptionalHandle(const OptionalTensor& tensor) {
  if (!tensor || !tensor->defined()) return std::nullopt;
  return Handle(*tensor);
}

stable::RowArguments Arguments(const RowMapParams& params, std::int64_t dim) {
  return {.params = params, .dim = dim, .mistake = {}};
}

Tensor Forward(const Tensor& scores, const RowMapParams& params, const OptionalTensor& alpha,
               std::int64_t dim, RowStatTensors* stats) {
  auto results = Translated([&] {
    if (params.alpha_per_row != nullptr) {
      throw InvalidArgument("alpha_per_row", "null (pass a tensor instead)", "a pointer");
    }
    stable::RowArguments arguments = Arguments(params, dim);
    const stable::Tensor given = Handle(scores);
    return stable::WithRowPassesOf(given, [&](const stable::RowPasses& passes) {
      return stable::MapRows(passes, given, OptionalHandle(alpha), arguments, stats != nullptr);
    });
  });
  if (stats != nullptr) {
    const auto kind = scores.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    *stats = {FromHandle(std::move(results.tau)).to(kind),
              FromHandle(std::move(results.support_size)),
              FromHandle(std::move(results.entropy)).to(kind)};
  }
  return FromHandle(std::move(results.probabilities));
}

struct KeptParams : torch::CustomClassHolder {
  RowMapParams params;
};

class RowMapFunction : public Function<RowMapFunction> {
 public:
  // Statistics leave through `stats`, not as outputs: they never carry gradients.
  static Tensor forward(AutogradContext* context, const Tensor& scores, const OptionalTensor& alpha,
                        const RowMapParams* params, std::int64_t dim, RowStatTensors* stats) {
    Tensor probabilities = Forward(scores, *params, alpha, dim, stats);
    // Scores would keep as much memory again alive as the probabilities.
    RowMapParams asked = *params;
    const double per_row = 0.0;
    if (alpha) asked.alpha_per_row = &per_row;  // only that there is one matters here
    const bool needs_scores = BackwardReadsScores(asked, stable::KernelDType(Handle(scores)));
    context->save_for_backward(
        {probabilities, needs_scores ? scores : Tensor(), alpha.value_or(Tensor())});
    const auto kept = c10::make_intrusive<KeptParams>();
    kept->params = *params;
    context->saved_data["params"] = c10::IValue::make_capsule(kept);
    context->saved_data["dim"] = dim;
    return probabilities;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    TORCH_CHECK_NOT_IMPLEMENTED(!at::GradMode::is_enabled(),
                                "tsallis: the gradient of a row map cannot be differentiated again "
                                "(second derivatives are not implemented)");
    const variable_list saved = context->get_saved_variables();
    const Tensor &probabilities = saved[0], &alpha = saved[2];
    const Tensor& scores = saved[1].defined() ? saved[1] : probabilities;
    // The second edge exists only if there is an alpha.
    const bool want_alpha = alpha.defined() && context->needs_input_grad(1);
    auto results = Translated([&] {
      stable::RowArguments arguments =
          Arguments(static_cast<KeptParams&>(*context->saved_data.at("params").toCapsule()).params,
                    context->saved_data.at("dim").toInt());
      const stable::Tensor given = Handle(scores);
      return stable::WithRowPassesOf(given, [&](const stable::RowPasses& passes) {
        return stable::MapRowsBackward(passes, Handle(gradients[0]), given, Handle(probabilities),
                                       OptionalHandle(alpha), arguments, want_alpha);
      });
    });
    Tensor d_alpha = FromHandle(std::move(results.d_alpha));
    if (want_alpha) d_alpha = d_alpha.sum_to_size(alpha.sizes()).to(alpha.scalar_type());
    return {FromHandle(std::move(results.d_scores)), d_alpha, Tensor(), Tensor(), Tensor()};
  }
};

stable::LossResults Losses(const Tensor& scores, const Tensor& targets, const RowMapParams& params,
                           std::int64_t ignore_index, bool want_gradient) {
  return Translated([&] {
    stable::LossArguments arguments{.params = params, .ignore_index = ignore_index, .mistake = {}};
    const stable::Tensor given = Handle(scores);
    return stable::WithRowPassesOf(given, [&](const stable::RowPasses& passes) {
      return stable::FenchelYoungLosses(passes, given, Handle(targets), arguments, want_gradient);
    });
  });
}

class LossFunction : public Function<LossFunction> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& scores, const Tensor& targets,
                        const RowMapParams* params, std::int64_t ignore_index) {
    stable::LossResults results = Losses(scores, targets, *params, ignore_index, true);
    context->save_for_backward({FromHandle(std::move(results.gradient))});
    context->saved_data["dtype"] = static_cast<std::int64_t>(scores.scalar_type());
    return FromHandle(std::move(results.losses));
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    TORCH_CHECK_NOT_IMPLEMENTED(!at::GradMode::is_enabled(),
                                "tsallis: the gradient of a Fenchel-Young loss cannot be "
                                "differentiated again (create_graph=True is not supported)");
    const auto dtype = static_cast<at::ScalarType>(context->saved_data.at("dtype").toInt());
    const Tensor gradient = context->get_saved_variables()[0];
    return {(gradient * gradients[0].unsqueeze(-1)).to(dtype), Tensor(), Tensor(), Tensor()};
  }
};

}  // namespace

Tensor MapRows(const Tensor& scores, const RowMapParams& params, const OptionalTensor& alpha,
               std::int64_t dim) {
  return MapRows(scores, params, alpha, dim, nullptr);
}

Tensor MapRows(const Tensor& scores, const RowMapParams& params, const OptionalTensor& alpha,
               std::int64_t dim, RowStatTensors* stats) {
  const bool needs_graph =
      at::GradMode::is_enabled() && (scores.requires_grad() || (alpha && alpha->requires_grad()));
  if (!needs_graph) return Forward(scores, params, alpha, dim, stats);
  TORCH_CHECK_VALUE(params.map != RowMap::kNormmax || !alpha || !alpha->requires_grad(),
                    "alpha: expected a tensor that requires no gradient for normmax (it has none), "
                    "got one that does");
  return RowMapFunction::apply(scores, alpha, &params, dim, stats);
}

Tensor Entmax(const Tensor& scores, double alpha, std::int64_t dim) {
  RowMapParams params;
  params.alpha = alpha;
  return MapRows(scores, params, std::nullopt, dim);
}

Tensor FenchelYoungLosses(const Tensor& scores, const Tensor& targets, const RowMapParams& params,
                          std::int64_t ignore_index) {
  if (at::GradMode::is_enabled() && scores.requires_grad()) {
    return LossFunction::apply(scores, targets, &params, ignore_index);
  }
  return FromHandle(Losses(scores, targets, params, ignore_index, false).losses.Share());
}

}  // namespace tsallis
