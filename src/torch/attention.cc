// Autograd of attention for C++.
#include "torch/attention.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <array>
#include <optional>
#include <utility>

#include "stable/attention.h"
#include "torch/tensors.h"

namespace tsallis {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;
using OptionalTensor = std::optional<Tensor>;

// Those with gradients first, in the order of stable::AttentionInput.
constexpr std::array<OptionalTensor AttentionOptions::*, 11> kTensors = {
    &AttentionOptions::alpha_heads,   &AttentionOptions::length_scale,
    &AttentionOptions::alibi_slopes,  &AttentionOptions::bias,
    &AttentionOptions::sink,          &AttentionOptions::mask,
    &AttentionOptions::block_mask,    &AttentionOptions::lengths,
    &AttentionOptions::query_lengths, &AttentionOptions::cu_seqlens_q,
    &AttentionOptions::cu_seqlens_k};
constexpr int kGradientTensors = stable::kInputs - stable::kAlpha;

AttentionStatTensors StatsOf(stable::AttentionResults& results, at::ScalarType dtype) {
  const auto wide = [&](stable::Tensor tensor) {
    return FromHandle(std::move(tensor)).to(dtype == at::kDouble ? at::kDouble : at::kFloat);
  };
  return {wide(std::move(results.tau)), FromHandle(std::move(results.support_size)),
          wide(std::move(results.entropy)), wide(std::move(results.maximum))};
}

// While it lives torch has so many threads; 0: as many as before.
class Threads {
 public:
  explicit Threads(int count)
      : before_(at::get_num_threads()), differs_(count > 0 && count != before_) {
    if (differs_) at::set_num_threads(count);
  }
  ~Threads() {
    if (differs_) at::set_num_threads(before_);
  }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

 private:
  int before_;
  bool differs_;
};

stable::AttentionResults Forward(const Tensor& q, const Tensor& k, const Tensor& v,
                                 const AttentionOptions& options,
                                 const stable::AttentionRequest& request) {
  const Threads threads(options.threads);
  return Translated([&] {
    stable::AttentionArguments arguments;
    TakeOptions(options, arguments);
    const stable::Tensor queries = Handle(q);
    return stable::WithPassesOf(queries, [&](const stable::AttentionPasses& passes) {
      return stable::AttentionForward(passes, queries, Handle(k), Handle(v), arguments, request);
    });
  });
}

// The options without their tensors, which autograd keeps.
struct KeptOptions : torch::CustomClassHolder {
  AttentionOptions options;
};

class AttentionFunction : public Function<AttentionFunction> {
 public:
  // The options' tensors are given once more, for autograd to see those that can have gradients.
  // Statistics leave through `stats`: they never carry gradients.
  static Tensor forward(AutogradContext* context, const Tensor& q, const Tensor& k, const Tensor& v,
                        const AttentionOptions* options, AttentionStatTensors* stats,
                        const OptionalTensor&, const OptionalTensor&, const OptionalTensor&,
                        const OptionalTensor&, const OptionalTensor&) {
    stable::AttentionResults results =
        Forward(q, k, v, *options,
                {.tau = true, .stats = stats != nullptr, .saves = stable::Saves::kUseful});
    Tensor out = FromHandle(std::move(results.out));
    variable_list saved = {q, k, v, FromHandle(results.tau.Share()),
                           FromHandle(std::move(results.saved))};
    if (stats != nullptr) *stats = StatsOf(results, q.scalar_type());
    const auto kept = c10::make_intrusive<KeptOptions>();
    kept->options = *options;
    for (const auto member : kTensors) {
      saved.push_back((kept->options.*member).value_or(Tensor()));
      (kept->options.*member).reset();
    }
    context->saved_data["options"] = c10::IValue::make_capsule(kept);
    context->save_for_backward(std::move(saved));
    return out;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    // What was saved has no history: a second derivative would silently miss its part.
    TORCH_CHECK_NOT_IMPLEMENTED(!at::GradMode::is_enabled(),
                                "tsallis: the gradient of attention cannot be differentiated again "
                                "(second derivatives are not implemented)");
    const variable_list saved = context->get_saved_variables();
    AttentionOptions options =
        static_cast<KeptOptions&>(*context->saved_data.at("options").toCapsule()).options;
    for (std::size_t i = 0; i < kTensors.size(); ++i) {
      if (saved[5 + i].defined()) options.*kTensors[i] = saved[5 + i];
    }
    stable::AttentionWanted wanted{};
    std::size_t edge = 0;  // absent tensors have none
    for (const auto input : {stable::kQ, stable::kK, stable::kV}) {
      wanted[input] = context->needs_input_grad(edge++);
    }
    for (int i = 0; i < kGradientTensors; ++i) {
      if (options.*kTensors[i]) wanted[stable::kAlpha + i] = context->needs_input_grad(edge++);
    }
    const Threads threads(options.threads);
    auto results = Translated([&] {
      stable::AttentionArguments arguments;
      TakeOptions(options, arguments);
      const stable::Tensor q = Handle(saved[0]);
      return stable::WithPassesOf(q, [&](const stable::AttentionPasses& passes) {
        return stable::AttentionBackward(passes, Handle(gradients[0]), q, Handle(saved[1]),
                                         Handle(saved[2]), Handle(saved[3]), Handle(saved[4]),
                                         arguments, wanted);
      });
    });
    variable_list list(stable::kInputs + 2);  // options and statistics stand behind v
    for (int i = 0; i < stable::kInputs; ++i) {
      if (!wanted[i]) continue;
      Tensor gradient = FromHandle(std::move(results[i]));
      if (i >= stable::kAlpha) {
        const Tensor& tensor = *(options.*kTensors[i - stable::kAlpha]);
        gradient = gradient.sum_to_size(tensor.sizes()).to(tensor.scalar_type());
      }
      list[i < stable::kAlpha ? i : i + 2] = std::move(gradient);
    }
    return list;
  }
};

bool NeedsGraph(const Tensor& q, const Tensor& k, const Tensor& v,
                const AttentionOptions& options) {
  if (!at::GradMode::is_enabled()) return false;
  bool needs = q.requires_grad() || k.requires_grad() || v.requires_grad();
  for (int i = 0; i < kGradientTensors; ++i) {
    const OptionalTensor& tensor = options.*kTensors[i];
    needs = needs || (tensor && tensor->requires_grad());
  }
  return needs;
}

}  // namespace

void TakeOptions(const AttentionOptions& options, stable::AttentionArguments& arguments) {
  stable::Tensor* const tensors[] = {
      &arguments.alpha_heads,  &arguments.length_scale, &arguments.alibi_slopes,
      &arguments.bias,         &arguments.sink,         &arguments.mask,
      &arguments.block_mask,   &arguments.lengths,      &arguments.query_lengths,
      &arguments.cu_seqlens_q, &arguments.cu_seqlens_k};
  for (std::size_t i = 0; i < kTensors.size(); ++i) *tensors[i] = Handle(options.*kTensors[i]);
  AttentionParams& params = arguments.params;
  params.setting() = options;
  params.terms = options.terms;
  params.mask.causal = options.causal;
  params.mask.alignment = options.alignment;
  params.mask.left = options.left;
  params.mask.right = options.right;
  params.mask.block_q = options.block_q;
  params.mask.block_k = options.block_k;
  arguments.padding = static_cast<stable::Padding>(options.padding);
  arguments.saved_budget = options.saved_budget;
}

Tensor Attention(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& options,
                 AttentionStatTensors* stats) {
  if (NeedsGraph(q, k, v, options)) {
    return AttentionFunction::apply(q, k, v, &options, stats, options.alpha_heads,
                                    options.length_scale, options.alibi_slopes, options.bias,
                                    options.sink);
  }
  stable::AttentionResults results = Forward(q, k, v, options, {.stats = stats != nullptr});
  Tensor out = FromHandle(std::move(results.out));
  if (stats != nullptr) *stats = StatsOf(results, q.scalar_type());
  return out;
}

Tensor AttentionOnPages(const Tensor& q, const Tensor& k_pages, const Tensor& v_pages,
                        const Tensor& table, const AttentionOptions& options) {
  const Threads threads(options.threads);
  return Translated([&] {
    stable::AttentionArguments arguments;
    TakeOptions(options, arguments);
    const stable::Tensor queries = Handle(q), keys = Handle(k_pages), values = Handle(v_pages),
                         pages = Handle(table), none;
    return stable::WithPassesOf(queries, [&](const stable::AttentionPasses& passes) {
      return FromHandle(stable::AttentionOnPages(passes, {queries, keys, values, pages, none, none},
                                                 arguments, false)
                            .out);
    });
  });
}

}  // namespace tsallis
