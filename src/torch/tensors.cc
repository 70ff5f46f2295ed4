#include "torch/tensors.h"

#include <torch/csrc/inductor/aoti_torch/utils.h>

#include <memory>
#include <utility>

namespace tsallis {

stable::Tensor Handle(const at::Tensor& tensor) {
  if (!tensor.defined()) return {};
  auto owned = std::make_unique<at::Tensor>(tensor);
  return stable::Tensor(torch::aot_inductor::tensor_pointer_to_tensor_handle(owned.release()));
}

stable::Tensor Handle(const std::optional<at::Tensor>& tensor) {
  return tensor ? Handle(*tensor) : stable::Tensor();
}

at::Tensor FromHandle(stable::Tensor handle) {
  if (!handle.defined()) return {};
  return std::move(*torch::aot_inductor::tensor_handle_to_tensor_pointer(handle.get()));
}

}  // namespace tsallis
