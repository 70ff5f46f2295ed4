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
                  const DecoderLeaves& leaves);

  // in: [sequences length, width], sequences of equal length, causal, or `part` of each (null: all
  // of it). Those rows of the output that `picked` ([n] int64) names; undefined: all.
  at::Tensor operator()(const at::Tensor& in, std::int64_t sequences, const at::Tensor& picked,
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
    at::Tensor projection;                     // adaptive: [2 count, width]
    std::map<std::string, at::Tensor> leaves;  // by the end of their names
  };

  Plan PlanOf(std::int64_t first, std::int64_t count) const;
  void PrepareRotation(std::int64_t length, const c10::Device& device);
  // Rows of consecutive positions from `begin` on.
  at::Tensor Rotated(const at::Tensor& x, std::int64_t begin) const;
  // c, [sequences, heads, length] float32.
  at::Tensor Scales(const at::Tensor& in, std::int64_t sequences, std::int64_t begin,
                    std::int64_t length) const;
  at::Tensor ScaleOf(const Scaling& scaling, const at::Tensor& in, std::int64_t sequences,
                     std::int64_t begin, std::int64_t length) const;

  std::int64_t heads_, head_dim_;
  bool qk_norm_;
  at::ScalarType products_;
  std::vector<AttentionConfig> head_;  // [heads]
  Plan whole_, own_;                   // of all heads, of those of a part
  std::vector<Scaling> scalings_;
  at::Tensor projection_, out_;             // [3 inner, width], [width, inner]
  at::Tensor slopes_, alpha_, sink_;        // [heads] leaves, where some are learned
  at::Tensor fixed_slopes_, learns_slope_;  // [heads]; undefined where no head has a slope
  at::Tensor fixed_sinks_, learns_sink_;    // [heads]; likewise
  // Tables of the positions so far: [heads or 1, positions, head_dim / 2]; undefined: no head
  // turns.
  at::Tensor cosine_, sine_;
  std::int64_t table_length_ = 0;
};

}  // namespace tsallis::lab
