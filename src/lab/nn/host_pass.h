// Kernels of the host, and other code with a gradient of its own, as functions of torch's autograd.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

namespace tsallis::lab {

using Tensors = std::vector<at::Tensor>;

// One call of it.
class HostPass {
 public:
  virtual ~HostPass() = default;

  // keep: Backward() follows.
  virtual Tensors Forward(const Tensors& in, bool keep) = 0;
  // The gradients of the inputs from those of the outputs, which it may take over; undefined where
  // there is none. Called once.
  virtual Tensors Backward(Tensors& d_out) = 0;
};

// Runs the pass on the inputs, some of which may be undefined, and records it where a gradient is
// wanted.
Tensors Record(std::unique_ptr<HostPass> pass, const Tensors& inputs);

// A gradient that a pass may write to: `given` itself where nobody else holds it, else a copy.
// Memory that is as large as a batch is not copied where a chain of passes hands it on.
at::Tensor Owned(at::Tensor& given);

}  // namespace tsallis::lab
