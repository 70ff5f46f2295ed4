// A tensor of four dimensions as the kernel library takes arrays.
#pragma once

#include <ATen/core/Tensor.h>

#include "torch/row_view.h"
#include "tsallis/attention.h"

namespace tsallis {

// [batch, heads, rows, columns], of a dtype that CheckScores lets through.
inline MutableArray4 Write(const at::Tensor& tensor) {
  return {tensor.mutable_data_ptr(),
          KernelDType(tensor),
          {tensor.stride(0), tensor.stride(1), tensor.stride(2), tensor.stride(3)}};
}

inline ConstArray4 View(const at::Tensor& tensor) {
  return {tensor.const_data_ptr(),
          KernelDType(tensor),
          {tensor.stride(0), tensor.stride(1), tensor.stride(2), tensor.stride(3)}};
}

}  // namespace tsallis
