// Observes the heads of an encoder-decoder, by the kind of their attention: the numbers behind
// figures 11 to 14 of Adaptively Sparse Transformers (Correia, Niculae and Martins 2019).
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

#include "lab/eval/head_data.h"
#include "lab/nn/sequence_model.h"
#include "lab/tasks/sequence.h"

namespace tsallis::lab {

// The weights of one head of the context: those of a target's tokens on its source's.
struct ContextWeights {
  std::int64_t layer = 0, head = 0;
  std::optional<double> alpha;  // of softmax (1) and entmax
  double density = 0.0;         // weights above 0, as a share of all
  at::Tensor weights;           // [target, source] float32, on the CPU
};

// Whether the model has such heads.
bool HasContext(const SequenceModel& model);

// The weights of every head on one sample: the batch has no other. Rows are the positions at which
// the model says the target's tokens, columns the tokens of the source, its first special token
// included.
std::vector<ContextWeights> ContextOf(SequenceModel& model, const TokenBatch& sample);

// On the first test samples of length n, 256 if there are as many. Of every head, under the names
// "encoder X", "decoder X" and "context X" by where it stands:
//   alpha       of softmax (1) and entmax, learned or not
//   density     keys with a weight above 0, as a share of those that the query may see
//   divergence  of the head's weights from the mean of its layer's heads, Kullback-Leibler in
//               nats: over the heads of a layer its mean is their Jensen-Shannon divergence
// means over queries. UsageError for a length that the task does not have; Interrupted when `stop`
// becomes true.
LengthHeads ObservePacked(SequenceModel& model, const SequenceTask& task, std::int64_t n,
                          const std::atomic<bool>& stop);

}  // namespace tsallis::lab
