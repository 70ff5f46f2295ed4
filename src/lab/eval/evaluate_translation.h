// Translations that a model writes, and how good they are.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "lab/nn/sequence_model.h"
#include "lab/tasks/sequence.h"
#include "lab/text/translation_scores.h"

namespace tsallis::lab {

// Beams of the search that test samples are translated by.
constexpr std::int64_t kTestBeams = 4;

// Translations of sources, which are tokens of `task` without special ones; at most 2 n + 16 tokens
// for one of n. codec: the task's. beams: 1 writes the likeliest token each time. UsageError for a
// task that is no translation; Interrupted when `stop` becomes true.
std::vector<std::string> Translate(SequenceModel& model, const SequenceTask& task, TextCodec& codec,
                                   const std::vector<std::vector<std::int64_t>>& sources,
                                   std::int64_t beams, const std::atomic<bool>& stop);

// How good the translations of samples [first, first + samples) of a split at length n are. Throws
// as Translate(), and UsageError for a length that the task does not have.
TranslationScores ScoreSamples(SequenceModel& model, const SequenceTask& task, Split split,
                               std::int64_t n, std::int64_t first, std::int64_t samples,
                               std::int64_t beams, const std::atomic<bool>& stop);

}  // namespace tsallis::lab
