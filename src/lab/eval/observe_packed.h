// What the heads of an encoder-decoder do, by the kind of their attention: the numbers behind
// figures 11 to 14 of Adaptively Sparse Transformers (Correia, Niculae and Martins 2019).
#pragma once

#include <atomic>
#include <cstdint>

#include "lab/eval/head_data.h"
#include "lab/nn/encoder_decoder.h"
#include "lab/tasks/sequence.h"

namespace tsallis::lab {

// Weights of one sample, of the kernels that the model attends with: [heads, queries, keys].
at::Tensor WeightsOf(const PackedAttention& attention, std::int64_t sample);

// On the first test samples of length n, 256 if there are as many. Of every head, under the names
// "encoder X", "decoder X" and "context X" by where it stands:
//   alpha       of softmax (1) and entmax, learned or not
//   density     keys with a weight above 0, as a share of those that the query may see
//   divergence  of the head's weights from the mean of its layer's heads, Kullback-Leibler in
//               nats: over the heads of a layer its mean is their Jensen-Shannon divergence
// means over queries. UsageError for a length that the task does not have; Interrupted when `stop`
// becomes true.
LengthHeads ObservePacked(EncoderDecoder& model, const SequenceTask& task, std::int64_t n,
                          const std::atomic<bool>& stop);

}  // namespace tsallis::lab
