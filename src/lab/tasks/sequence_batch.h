// Samples of a sequence task as tensors.
#pragma once

#include <cstdint>
#include <vector>

#include "lab/tasks/sequence.h"

namespace tsallis::lab {

// Samples [first, first + count) of a split, all of one length parameter, padded on the right with
// the task's pad token. UsageError for a length
// that the task does not have.
TokenBatch DrawBatch(const SequenceTask& task, std::uint64_t seed, Split split, std::int64_t first,
                     std::int64_t count, std::int64_t length);

// Such samples, whatever they are of, one or more.
TokenBatch BatchOf(const SequenceTask& task, const std::vector<Sample>& samples);

// The length parameter of training step `step`, uniform in [min, max]. All samples of a batch share
// it: no position is padding (a batch of lengths 32 to 64 padded to its longest would be one
// quarter padding), every sample's length is still uniform, and the kernels see one shape. It
// changes one thing: the loss of a batch no longer weighs long samples more than short ones.
std::int64_t TrainingLength(std::uint64_t seed, std::int64_t step, std::int64_t min,
                            std::int64_t max);

// Validation and test samples come from this seed whatever the seed of the run, so that all methods
// and seeds are compared on the same ones.
constexpr std::uint64_t kEvaluationSeed = 0x73657175656e6365;

}  // namespace tsallis::lab
