// GeLU (tanh form) as an autograd operation over the vector kernel: about six times faster than ATen's on one core.
#pragma once

#include <torch/torch.h>

namespace tsallis::lab {

// z: float32, any shape, made contiguous. Returns gelu(z).
torch::Tensor GeluOp(const torch::Tensor& z);

}  // namespace tsallis::lab
