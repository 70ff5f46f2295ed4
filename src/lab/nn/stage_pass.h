// What the kernels of stages on the host have in common. Only for files of stages.h.
#pragma once

#include <memory>
#include <vector>

#include "lab/nn/host_pass.h"
#include "lab/nn/stages.h"

namespace tsallis::lab {

// A pass that a stage's call describes.
class StagePass : public HostPass {
 public:
  explicit StagePass(const StageCall& call) : call_(call) { call_.inputs.clear(); }

 protected:
  RowWorkers& Workers() { return call_.workers != nullptr ? *call_.workers : own_; }
  // Calls body(begin, count) on blocks of rows.
  template <class Body>
  void ForRows(std::int64_t rows, const Body& body) {
    Workers().ForBlocks(rows, kRowBlock,
                        [&](std::int64_t begin, std::int64_t end, RowWorkers::Scratch&) {
                          body(begin, end - begin);
                        });
  }

  // A learned tensor, and whether its gradient goes to memory of its own.
  struct Learned {
    Parameter parameter;
    bool own = false;
  };
  Learned Take(const at::Tensor& in, at::ScalarType products, bool keep) const {
    if (!in.defined()) return {};
    if (call_.parameters != nullptr) {
      if (const auto found = call_.parameters->Find(in)) return {*found, true};
    }
    const at::Tensor value = in.contiguous();
    return {{value, keep ? at::zeros_like(value) : at::Tensor(),
             value.dim() == 2 ? value.to(products) : value}};
  }
  // What autograd is told.
  static at::Tensor Gradient(const Learned& learned) {
    return learned.own ? at::Tensor() : learned.parameter.gradient;
  }

  StageCall call_;

 private:
  RowWorkers own_;
};

template <class Pass>
Tensors OnHost(const StageCall& call) {
  return Record(std::make_unique<Pass>(call), call.inputs);
}

// The rows of Stages() whose kernels are chains (stage_chains.cc).
std::vector<Stage> ChainStages();

}  // namespace tsallis::lab
