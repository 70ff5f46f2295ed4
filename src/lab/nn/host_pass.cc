#include "lab/nn/host_pass.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace tsallis::lab {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct KeptPass : torch::CustomClassHolder {
  std::unique_ptr<HostPass> pass;
  std::vector<bool> given;  // of all inputs: autograd takes those that are there
};

class PassFunction : public torch::autograd::Function<PassFunction> {
 public:
  static variable_list forward(AutogradContext* context, at::TensorList inputs,
                               const c10::intrusive_ptr<KeptPass>& kept) {
    context->saved_data["pass"] = c10::IValue::make_capsule(kept);
    context->set_materialize_grads(false);
    const at::AutoDispatchBelowADInplaceOrView no_autograd;
    Tensors all(kept->given.size());
    for (std::size_t i = 0, next = 0; i < all.size(); ++i) {
      if (kept->given[i]) all[i] = inputs[next++];
    }
    return kept->pass->Forward(all, true);
  }
  static variable_list backward(AutogradContext* context, variable_list& d_out) {
    const auto kept = context->saved_data.at("pass").toCapsule();
    auto& held = static_cast<KeptPass&>(*kept);
    if (held.pass == nullptr) throw std::logic_error("the gradient of a stage was taken already");
    const at::AutoDispatchBelowADInplaceOrView no_autograd;
    Tensors all = held.pass->Backward(d_out);
    held.pass.reset();  // its memory serves the stages before it
    variable_list gradients;
    for (std::size_t i = 0; i < held.given.size(); ++i) {
      if (held.given[i]) gradients.push_back(std::move(all[i]));
    }
    gradients.resize(gradients.size() + 1);
    return gradients;
  }
};

}  // namespace

Tensors Record(std::unique_ptr<HostPass> pass, const Tensors& inputs) {
  const bool recorded =
      c10::GradMode::is_enabled() && std::any_of(inputs.begin(), inputs.end(), [](const Tensor& x) {
        return x.defined() && x.requires_grad();
      });
  if (!recorded) {
    const at::AutoDispatchBelowADInplaceOrView no_autograd;
    return pass->Forward(inputs, false);
  }
  const auto kept = c10::make_intrusive<KeptPass>();
  kept->pass = std::move(pass);
  Tensors given;
  for (const Tensor& x : inputs) {
    kept->given.push_back(x.defined());
    if (x.defined()) given.push_back(x);
  }
  return PassFunction::apply(at::TensorList(given), kept);
}

Tensor Owned(Tensor& given) {
  const bool alone = given.use_count() == 1 && given.storage().use_count() == 1;
  Tensor own = std::move(given);
  return alone && own.is_contiguous() ? own : own.clone(at::MemoryFormat::Contiguous);
}

}  // namespace tsallis::lab
