// ATen's tensors and the handles of src/stable: both are one at::Tensor, so nothing is copied.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <optional>
#include <stdexcept>

#include "stable/tensor.h"

namespace tsallis {

// Empty for a tensor that is not defined or not there.
stable::Tensor Handle(const at::Tensor& tensor);
stable::Tensor Handle(const std::optional<at::Tensor>& tensor);

// Takes the handle's tensor over; undefined for an empty one.
at::Tensor FromHandle(stable::Tensor handle);

// Runs `body`; mistakes become c10::ValueError and c10::IndexError.
template <typename Body>
auto Translated(Body&& body) {
  try {
    return body();
  } catch (const std::invalid_argument& error) {
    TORCH_CHECK_VALUE(false, error.what());
  } catch (const std::out_of_range& error) {
    TORCH_CHECK_INDEX(false, error.what());
  }
}

}  // namespace tsallis
