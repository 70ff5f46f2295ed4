// A view of one layer's attention on a batch: numbers of every head, and the weights of chosen
// heads. Reports show them, and a SequenceModel::VisibleKeys chooses keys by them. A model hands a
// view to its visitors, layer by layer.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lab/nn/head_numbers.h"
#include "lab/nn/layer_attention.h"

namespace tsallis::lab {

// Queries, keys and values of a layer's heads for one sequence of n tokens, for callers that
// compute the attention of this layer with other code.
struct HeadArrays {
  std::string map;
  at::Tensor q, k, v;  // [heads, n, head_dim], rotated; q times its length scaling c
  at::Tensor alpha;    // [heads] float64; undefined for softmax
  at::Tensor slopes;   // [heads] float32, ALiBi's; undefined where no head has one
  at::Tensor sinks;    // [heads] float64, -inf for heads without; undefined where no head has one
  at::Tensor c;        // [heads, n] float32; undefined without length scaling
  std::optional<double> scale_invariant;  // length scale
};

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
  // The heads' arrays for one sequence. UsageError for heads that HeadArrays cannot describe: of
  // several kinds, of maps other than softmax and entmax, with patterns.
  HeadArrays Arrays(std::int64_t sequence) const;
  // The weights of queries [begin, end) of a sequence.
  SparseRows Weights(std::int64_t sequence, std::int64_t head, std::int64_t begin,
                     std::int64_t end) const;
  // Those of all queries of a sequence, [queries, keys] float32.
  at::Tensor Weights(std::int64_t sequence, std::int64_t head) const;
};

// A layer after its attention, with its statistics: SequenceModel::VisitLayers() shows it.
struct LayerView : LayerInput {
  const std::vector<std::int64_t>& scored;  // rows whose logits are wanted
  const LayerAttention::Statistics& statistics;

  // Adds the scored rows to the quantities of each head: [heads]; names in the order in which the
  // head's first row adds them.
  //   entropy             of the weights, nats
  //   normalised entropy  entropy / ln keys, of rows that see at least two keys
  //   support             weights > 0
  //   keys                that the row sees
  //   slope               of ALiBi ("learned slope" if it is), where the head has one
  //   alpha, sink         where it is learned
  //   c                   the length scaling, where there is one, and its QueryScale::Terms()
  void Describe(std::vector<HeadQuantities>& heads) const;
};

}  // namespace tsallis::lab
