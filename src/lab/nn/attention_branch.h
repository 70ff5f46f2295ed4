// x + n(attention(n(x))), n as the configuration says: the attention of a layer with what is around
// it, in every model and for all that is asked of it: to learn, to be looked into, to go on on a
// cache.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "lab/nn/decoder_rows.h"
#include "lab/nn/layer_attention.h"
#include "lab/nn/layer_view.h"
#include "lab/nn/text_cache.h"

namespace tsallis::lab {

class AttentionBranch;

// What a pass over the layers is about beside its rows.
struct LayerPass {
  const SequencePart* part = nullptr;  // of the sequences that the rows are
  // The decoder calls it in the backward pass, with the gradient of the stream that entered a
  // layer.
  std::function<void(const AttentionBranch& of, const at::Tensor& d_x)> reached = nullptr;
  std::function<void(const LayerView&)> visit = nullptr;           // after attention
  std::function<at::Tensor(const LayerInput&)> visible = nullptr;  // before it; the keys seen
  // The rows in a cache that they continue, and in the sequences of it that are their memories.
  const CachedRows* own = nullptr;
  const CachedRows* sources = nullptr;
};

// What Sight::kOther sees, [rows, width] before its norm.
struct MemoryStream {
  at::Tensor stream;
  const at::Tensor& gain;
  const DecoderRows& rows;
};

class AttentionBranch : Fixed {
 public:
  // Names of parameters begin with `prefix`. products: what they are computed in.
  AttentionBranch(const DecoderConfig& config, LayerPlace place, const std::string& prefix,
                  ParameterList& parameters, RowWorkers& workers, at::ScalarType products);

  // x: [rows, width]. picked: the rows that leave it; undefined: all. memory: of Sight::kOther,
  // null on a cache, which has it; its stream becomes that for the next layer. All must outlive the
  // gradient.
  at::Tensor operator()(const at::Tensor& x, const DecoderRows& rows, const LayerPass& pass,
                        const at::Tensor& picked = {}, MemoryStream* memory = nullptr);
  // Adds a memory to a cache. Throws CacheFull.
  void Remember(MemoryStream& memory, const CachedRows& cached);

  const LayerPlace& Place() const { return place_; }
  std::vector<std::string> Notes() const { return attention_.Notes(); }
  // The first of its parameters.
  const at::Tensor& First() const {
    return gain_.value.defined() ? gain_.value : attention_.Projection();
  }

 private:
  LayerAttention::Memory Projected(MemoryStream& memory);
  at::Tensor Attended(const LayerAttention::Inputs& inputs, const DecoderRows& rows, bool picks,
                      const LayerPass& pass);

  LayerPlace place_;
  RowWorkers& workers_;
  Gain gain_;
  LayerAttention attention_;
  JoinBlock join_;
};

}  // namespace tsallis::lab
