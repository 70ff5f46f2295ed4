#include "lab/nn/gelu.h"

#include "lab/nn/set_kernels.h"

namespace tsallis::lab {
namespace {

class GeluFunction : public torch::autograd::Function<GeluFunction> {
 public:
  static torch::Tensor forward(torch::autograd::AutogradContext* context,
                               const torch::Tensor& input) {
    const torch::Tensor z = input.contiguous();
    torch::Tensor a = torch::empty_like(z);
    Gelu(z.const_data_ptr<float>(), a.mutable_data_ptr<float>(), z.numel());
    context->save_for_backward({z});
    return a;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    const torch::Tensor z = context->get_saved_variables()[0];
    const torch::Tensor da = grads[0].contiguous();
    torch::Tensor dz = torch::empty_like(z);
    GeluBackward(z.const_data_ptr<float>(), da.const_data_ptr<float>(),
                 dz.mutable_data_ptr<float>(), z.numel());
    return {dz};
  }
};

}  // namespace

torch::Tensor GeluOp(const torch::Tensor& z) { return GeluFunction::apply(z); }

}  // namespace tsallis::lab
