// How right a sequence model is, against length.
#pragma once

#include <atomic>
#include <cstdint>

#include "lab/nn/sequence_model.h"
#include "lab/tasks/sequence.h"

namespace tsallis::lab {

// The first position of a bin: 0, 1, 2, 3, 4, 6, 8, 12, 16, ...: halves of octaves.
std::int64_t PositionBin(std::size_t bin);

// What a task counts of such sums: "hits" and "asked" of its answers; where these are whole
// samples, "token_hits" and "tokens" too; where the loss counts, "loss", a sum in nats.
Score NumbersOf(const SequenceScore& sums, Scoring scoring);

// Samples [first, first + samples) of a split at length n. Beside NumbersOf() a score has
//   "by_group": the samples of each of the task's groups, [asked, hits];
//   "by_position": of tasks that are scored by their loss, [asked, loss] of the positions
//       [PositionBin(i), PositionBin(i + 1)) of all samples; the last bin ends with the samples;
//   the scores of written texts (evaluate_translation.h). Of these there may be fewer than were
//   asked for.
// Throws Interrupted when `stop` becomes true, UsageError for a length that the task does not have.
// beams: of the search that texts are written by.
Score EvaluateSamples(SequenceModel& model, const SequenceTask& task, Split split, std::int64_t n,
                      std::int64_t first, std::int64_t samples, const std::atomic<bool>& stop,
                      std::int64_t beams = 1);

// The first `samples` of them, texts by kTestBeams.
Score EvaluateLength(SequenceModel& model, const SequenceTask& task, Split split, std::int64_t n,
                     std::int64_t samples, const std::atomic<bool>& stop);

}  // namespace tsallis::lab
