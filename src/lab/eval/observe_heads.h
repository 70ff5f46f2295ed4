// Observes the heads of a trained sequence model, length by length: entropy and support of their
// weights, their learned numbers, and attention maps of chosen ones.
#pragma once

#include <atomic>
#include <filesystem>
#include <vector>

#include "lab/base/safetensors.h"
#include "lab/eval/head_data.h"
#include "lab/nn/sequence_model.h"
#include "lab/tasks/sequence.h"

namespace tsallis::lab {

// Longest sample, in tokens, whose attention is drawn unasked: the cost is quadratic.
constexpr std::int64_t kMapTokens = 4096;

// The lengths whose attention is drawn unless others are asked for: the shortest, and the longest
// whose samples have at most kMapTokens tokens.
std::vector<std::int64_t> MapLengths(const SequenceTask& task,
                                     const std::vector<std::int64_t>& lengths);

// Test samples of length n that heads are looked at on: as many as make 2^14 tokens, 1 to 32.
// UsageError for a length that the task does not have.
std::int64_t SamplesToObserve(const SequenceTask& task, std::int64_t n);

// The heads on the first SamplesToObserve test samples of length n. Throws likewise.
LengthHeads ObserveHeads(SequenceModel& model, const SequenceTask& task, std::int64_t n);

// The heads that maps show, by the HeadTables of a length: of the first, middle and last layer, of
// the heads with a slope and of those without, the one of the lowest normalised entropy (the first
// of equals).
struct HeadPlace {
  std::int64_t layer = 0;
  std::int64_t head = 0;
  bool operator==(const HeadPlace&) const = default;
};
std::vector<HeadPlace> ChooseHeads(const nlohmann::ordered_json& tables);

// Attention of these heads on the first test sample of length n. Throws as above, and Interrupted
// when `stop` becomes true.
std::vector<AttentionMap> DrawMaps(SequenceModel& model, const SequenceTask& task, std::int64_t n,
                                   const std::vector<HeadPlace>& places,
                                   const std::atomic<bool>& stop);

// The inputs of every layer's attention on the first test sample of length n, for `tsallis bench
// attention --inputs`: HeadArrays as "layers.<l>.q", ".k", ".v", ".alpha", ".slopes" and ".c", map
// and length scale as metadata "layers.<l>.map" and ".scale_invariant". Throws as above, as
// LayerAttention::Arrays, and UsageError for heads with sinks.
TensorFile AttentionInputs(SequenceModel& model, const SequenceTask& task, std::int64_t n);

// Observes what is not in the file yet, which is kept up to date: heads at each of `lengths`, maps
// at each of `map_lengths` (of decoders alone), of the heads chosen at the shortest of `lengths`.
// Throws as above, and std::runtime_error if the file cannot be written.
void ObserveMissing(SequenceModel& model, const SequenceTask& task,
                    const std::vector<std::int64_t>& lengths,
                    const std::vector<std::int64_t>& map_lengths, const std::filesystem::path& path,
                    const std::atomic<bool>& stop);

}  // namespace tsallis::lab
