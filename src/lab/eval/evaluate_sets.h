// Accuracy, attention entropy and attention maps of a set-attention model against set size.
#pragma once

#include <atomic>
#include <cstdint>

#include "lab/nn/set_attention.h"
#include "lab/tasks/max_retrieval.h"

namespace tsallis::lab {

constexpr std::int64_t kHeatSets = 32;  // Velickovic et al. 2024, figure 2
constexpr std::int64_t kHeatItems = 16;

// The first `sets` of a split's list for length n: "hits" of "sets", and means over sets of
// "entropy" in nats and "support", the weights > 0. heat: with "heat", [kHeatSets, kHeatItems], the
// weights of the largest items by ascending priority, where there are so many. Throws Interrupted
// when `stop` becomes true.
Score EvaluateSets(SetAttention& model, const MaxRetrieval& task, Split split, std::int64_t n,
                   std::int64_t sets, bool heat, const std::atomic<bool>& stop);

}  // namespace tsallis::lab
