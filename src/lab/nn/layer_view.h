// A view of one layer's attention on a batch: numbers of every head, and the weights of chosen
// heads. Reports show them, and a SequenceModel::VisibleKeys chooses keys by them. A model hands a
// view to its visitors, layer by layer.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lab/nn/layer_attention.h"

namespace tsallis::lab {

// Which of a model's attention it is.
struct LayerPlace {
  std::string kind;  // "layer"; of an encoder-decoder "encoder", "decoder", "context"
  std::int64_t layer = 0;
  Sight sight = Sight::kBefore;

  bool operator==(const LayerPlace&) const = default;
};

// The inputs with which a layer is about to attend. All by reference, valid during one call of a
// visitor.
struct LayerInput : LayerPlace {
  const LayerAttention& attention;
  const SequenceRows& rows;
  const LayerAttention::Inputs& inputs;

  // The alpha of a head, learned or not; of softmax 1, of other maps than entmax none.
  std::optional<double> Alpha(std::int64_t head) const;
  HeadArrays Arrays(std::int64_t sequence) const {
    return attention.Arrays(rows, inputs, sequence);
  }
  // The weights of queries [begin, end) of a sequence.
  SparseRows Weights(std::int64_t sequence, std::int64_t head, std::int64_t begin,
                     std::int64_t end) const {
    return attention.Weights(rows, inputs, sequence, head, begin, end);
  }
  // Those of all queries of a sequence, [queries, keys] float32.
  at::Tensor Weights(std::int64_t sequence, std::int64_t head) const {
    return attention.Weights(rows, inputs, sequence, head);
  }
};

// A layer after its attention, with its statistics: SequenceModel::VisitLayers() shows it.
struct LayerView : LayerInput {
  const std::vector<std::int64_t>& scored;  // rows whose logits are wanted
  const LayerAttention::Statistics& statistics;

  // Adds the scored rows to the quantities of each head: [heads]; names in the order in which the
  // head's first row adds them.
  void Describe(std::vector<HeadQuantities>& heads) const {
    attention.Describe(rows, scored, inputs, statistics, heads);
  }
};

}  // namespace tsallis::lab
