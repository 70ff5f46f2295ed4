// A layer's attention of the decoder of blocks: heads may differ in map, length scaling and
// positions (layer_attention.h is the same with gradients of its own).
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "lab/nn/decoder.h"
#include "lab/nn/device_attention.h"
#include "lab/nn/layer_attention.h"
#include "lab/nn/sequence_part.h"
#include "lab/nn/stages.h"

namespace tsallis::lab {

// The parameters of a decoder on a device, as autograd's leaves: names, shapes, values and places
// in the flat memory are that decoder's.
class DecoderLeaves {
 public:
  DecoderLeaves(const Decoder& decoder, const c10::Device& device);

  const at::Tensor& At(const std::string& name) const { return leaves_.at(name); }
  at::Tensor Find(const std::string& name) const;  // undefined if there is none
  // The memory from a parameter on, as one leaf of this shape: parts that are multiplied together.
  at::Tensor From(const std::string& name, const std::vector<std::int64_t>& shape) const;

  const at::Tensor& Flat() const { return flat_; }
  const at::Tensor& FlatGradients() const { return gradients_; }
  const std::vector<std::pair<std::string, at::Tensor>>& Named() const { return named_; }

 private:
  at::Tensor flat_, gradients_;
  std::vector<std::pair<std::string, at::Tensor>> named_;
  std::map<std::string, at::Tensor> leaves_;
};

class PaddedAttention {
 public:
  PaddedAttention(const DecoderConfig& config, std::int64_t layer, at::ScalarType products,
                  const DecoderLeaves& leaves, RowWorkers& workers);

  // stream: [sequences length, width], sequences of equal length, causal, or `part` of each (null:
  // all of it); gain: of its norm. Returns the outputs of all heads, [rows, inner].
  at::Tensor operator()(const at::Tensor& stream, const at::Tensor& gain, std::int64_t sequences,
                        const SequencePart* part);

  // Lines that tell people how heads attend.
  std::vector<std::string> Notes() const;

 private:
  // Heads that attend in one call. Numbers of heads count from the first of the plan.
  struct Group {
    std::vector<std::int64_t> heads;
    AttentionConfig config;
    at::Tensor index;  // [heads of the group] int64; undefined: all of the plan
    DeviceAttention attend;
  };
  // Neighbouring heads that this process attends with.
  struct Plan {
    std::int64_t first = 0, count = 0;
    std::vector<Group> groups;
    // [count] int64: where a head stands among the outputs of the groups; undefined: one group
    at::Tensor back;
  };
  struct Scaling {
    ScaledHeads heads;
    QueryScaling config;
    std::map<std::string, at::Tensor> leaves;  // by the end of their names
  };

  Plan PlanOf(std::int64_t first, std::int64_t count) const;
  void PrepareRotation(std::int64_t length, const c10::Device& device);
  // c, [sequences, heads, length] float32. place: [length] positions; projected: the columns of
  // the projection that scalings read.
  at::Tensor Scales(const Tensors& projected, std::int64_t sequences,
                    const at::Tensor& place) const;
  at::Tensor ScaleOf(const Scaling& scaling, const at::Tensor& projected, std::int64_t sequences,
                     const at::Tensor& place) const;

  std::int64_t heads_, head_dim_;
  bool qk_norm_;
  StageCall call_;                     // without inputs
  std::vector<AttentionConfig> head_;  // [heads]
  Plan whole_, own_;                   // of all heads, of those of a part
  std::vector<Scaling> scalings_;
  // [3 inner and what scalings read, width]; how many columns each of these takes
  at::Tensor projection_;
  std::vector<std::int64_t> columns_;
  at::Tensor slopes_, alpha_, sink_;        // [heads] leaves, where some are learned
  at::Tensor fixed_slopes_, learns_slope_;  // [heads]; undefined where no head has a slope
  at::Tensor fixed_sinks_, learns_sink_;    // [heads]; likewise
  // Tables of the positions so far: [heads or 1, positions, head_dim / 2]; undefined: no head
  // turns.
  at::Tensor cosine_, sine_;
  std::int64_t table_length_ = 0;
};

}  // namespace tsallis::lab
