// Accuracy of a sequence model against length.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "lab/nn/decoder.h"
#include "lab/tasks/sequence.h"

namespace tsallis::lab {

// Of the samples at one length. For tasks that generate: samples whose every scored token has the
// largest logit, which is when greedy decoding gives target and eos; otherwise scored tokens.
struct SequenceLengthScore {
  std::int64_t n = 0;
  std::int64_t samples = 0;
  std::int64_t hits = 0;
  std::int64_t asked = 0;

  double Accuracy() const {  // %
    return asked == 0 ? 0.0 : 100.0 * static_cast<double>(hits) / static_cast<double>(asked);
  }
  bool operator==(const SequenceLengthScore&) const = default;
};

// Samples [first, first + samples) of a split at length n. Throws Interrupted when `stop` becomes
// true, UsageError for a length that the task does not have.
SequenceLengthScore EvaluateSamples(Decoder& model, const SequenceTask& task, Split split,
                                    std::int64_t n, std::int64_t first, std::int64_t samples,
                                    const std::atomic<bool>& stop);

// The first `samples` of them.
SequenceLengthScore EvaluateLength(Decoder& model, const SequenceTask& task, Split split,
                                   std::int64_t n, std::int64_t samples,
                                   const std::atomic<bool>& stop);

// What has been evaluated, on disk. Loading gives nothing if there is no such file, or if it is not
// one of scores.
void SaveSequenceScores(const std::filesystem::path& path,
                        const std::vector<SequenceLengthScore>& scores);
std::vector<SequenceLengthScore> LoadSequenceScores(const std::filesystem::path& path);

// The score at a length, if it is of that many samples.
std::optional<SequenceLengthScore> FindScore(const std::vector<SequenceLengthScore>& scores,
                                             std::int64_t n, std::int64_t samples);

}  // namespace tsallis::lab
