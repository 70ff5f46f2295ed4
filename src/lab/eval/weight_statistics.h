// Counts over the weights of a trained sequence model's heads, on whole samples: how many are above
// zero, alone and in blocks, and how far the heads of a layer differ (E8 and E11 in
// docs/definitions.md). For every map: the weights come from the kernels, sparse.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

#include "lab/nn/decoder.h"
#include "lab/tasks/sequence.h"

namespace tsallis::lab {

inline constexpr std::array<std::int64_t, 3> kWeightBlocks = {16, 64, 128};

struct HeadWeights {
  std::int64_t layer = 0, head = 0;
  std::optional<double> alpha;  // of softmax (1) and entmax, learned or not
  double density = 0.0;         // weights > 0, as a share of the keys so far
  // Blocks of queries and keys with a weight > 0, as a share of those that hold a key so far, by
  // kWeightBlocks; none where a sample is shorter than two blocks.
  std::array<std::optional<double>, 3> blocks;
};

struct LayerWeights {
  std::int64_t layer = 0;
  // Jensen-Shannon divergence of the heads' weights, H(mean p) - mean H(p) in nats, mean over
  // queries (Correia, Niculae and Martins 2019, figure 13). Weights that do not sum to 1 are
  // divided by their sum; queries without a weight in some head are left out.
  double divergence = 0.0;
};

struct WeightStatistics {
  std::int64_t n = 0;        // the length
  std::int64_t samples = 0;  // the first of the split
  std::int64_t tokens = 0;   // of a sample, the longest
  std::vector<HeadWeights> heads;
  std::vector<LayerWeights> layers;
};

// On the first SamplesToObserve test samples of length n (observe_heads.h), whose errors it throws;
// Interrupted when `stop` becomes true.
WeightStatistics MeasureWeights(Decoder& model, const SequenceTask& task, std::int64_t n,
                                const std::atomic<bool>& stop);

}  // namespace tsallis::lab
