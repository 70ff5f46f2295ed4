// How right a sequence model is, against length.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lab/nn/sequence_model.h"
#include "lab/tasks/metric.h"
#include "lab/tasks/sequence.h"

namespace tsallis::lab {

// The score of the samples at one length, by the task's scoring rule.
struct SequenceLengthScore {
  std::int64_t n = 0;
  std::int64_t samples = 0;  // that were asked for; of sentences there may be fewer
  Answers answers{};
  Answers tokens{};  // of tasks scored by whole answers: their tokens, one by one
  // Tasks scored by their loss: of the positions [PositionBin(i), PositionBin(i + 1)) of all
  // samples, [bins]; the last ends with the samples.
  std::vector<Answers> by_position{};
  // Tasks scored by BLEU: chrF of the same texts, 0 to 100. Their `answers` are sentences, of which
  // those that are right word by word are hits, and `tokens` their tokens, each with the reference
  // before it.
  std::optional<double> chrf{};
  // Tasks with kinds of samples: the answers of each, in the order of SequenceTask::Groups().
  std::vector<Answers> by_group{};
};

// The first position of a bin: 0, 1, 2, 3, 4, 6, 8, 12, 16, ...: halves of octaves.
std::int64_t PositionBin(std::size_t bin);

// Samples [first, first + samples) of a split at length n. Throws Interrupted when `stop` becomes
// true, UsageError for a length that the task does not have. beams: of the search that texts are
// written by, where they are scored.
SequenceLengthScore EvaluateSamples(SequenceModel& model, const SequenceTask& task, Split split,
                                    std::int64_t n, std::int64_t first, std::int64_t samples,
                                    const std::atomic<bool>& stop, std::int64_t beams = 1);

// The first `samples` of them, texts by kTestBeams (evaluate_translation.h).
SequenceLengthScore EvaluateLength(SequenceModel& model, const SequenceTask& task, Split split,
                                   std::int64_t n, std::int64_t samples,
                                   const std::atomic<bool>& stop);

// Save and load the scores of lengths. Loading gives nothing if there is no such file, or if it is
// not one of scores.
void SaveSequenceScores(const std::filesystem::path& path,
                        const std::vector<SequenceLengthScore>& scores);
std::vector<SequenceLengthScore> LoadSequenceScores(const std::filesystem::path& path);

// The score at a length, if it is of that many samples.
std::optional<SequenceLengthScore> FindScore(const std::vector<SequenceLengthScore>& scores,
                                             std::int64_t n, std::int64_t samples);

}  // namespace tsallis::lab
