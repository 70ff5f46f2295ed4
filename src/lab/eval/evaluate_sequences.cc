#include "lab/eval/evaluate_sequences.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "lab/base/errors.h"
#include "lab/base/safetensors.h"
#include "lab/tasks/sequence_batch.h"

namespace tsallis::lab {
namespace {

// Tokens that are evaluated at a time: memory does not grow with the number of samples.
constexpr std::int64_t kTokens = 1 << 14;

}  // namespace

SequenceLengthScore EvaluateSamples(Decoder& model, const SequenceTask& task, Split split,
                                    std::int64_t n, std::int64_t first, std::int64_t samples,
                                    const std::atomic<bool>& stop) {
  SequenceLengthScore score{.n = n, .samples = samples};
  const auto tokens =
      static_cast<std::int64_t>(task.Draw(kEvaluationSeed, split, 0, n).tokens.size());
  const std::int64_t chunk = std::max<std::int64_t>(1, kTokens / tokens);
  for (std::int64_t done = 0; done < samples; done += chunk) {
    if (stop) throw Interrupted("evaluation stopped");
    const std::int64_t count = std::min(chunk, samples - done);
    const SequenceScore part =
        model.Evaluate(DrawBatch(task, kEvaluationSeed, split, first + done, count, n));
    score.hits += task.Generates() ? part.exact : part.hits;
    score.asked += task.Generates() ? part.sequences : part.scored;
  }
  return score;
}

SequenceLengthScore EvaluateLength(Decoder& model, const SequenceTask& task, Split split,
                                   std::int64_t n, std::int64_t samples,
                                   const std::atomic<bool>& stop) {
  return EvaluateSamples(model, task, split, n, 0, samples, stop);
}

void SaveSequenceScores(const std::filesystem::path& path,
                        const std::vector<SequenceLengthScore>& scores) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const SequenceLengthScore& score : scores) {
    rows.push_back(
        {{"n", score.n}, {"samples", score.samples}, {"hits", score.hits}, {"asked", score.asked}});
  }
  WriteFileAtomically(path, rows.dump() + "\n");
}

std::vector<SequenceLengthScore> LoadSequenceScores(const std::filesystem::path& path) {
  std::ifstream in(path);
  if (!in) return {};
  const nlohmann::json rows = nlohmann::json::parse(in, nullptr, false);
  std::vector<SequenceLengthScore> scores;
  if (!rows.is_array()) return scores;
  for (const nlohmann::json& row : rows) {
    if (!row.is_object()) return {};
    scores.push_back({.n = row.value("n", std::int64_t{0}),
                      .samples = row.value("samples", std::int64_t{0}),
                      .hits = row.value("hits", std::int64_t{0}),
                      .asked = row.value("asked", std::int64_t{0})});
  }
  return scores;
}

std::optional<SequenceLengthScore> FindScore(const std::vector<SequenceLengthScore>& scores,
                                             std::int64_t n, std::int64_t samples) {
  for (const SequenceLengthScore& score : scores) {
    if (score.n == n && score.samples == samples) return score;
  }
  return std::nullopt;
}

}  // namespace tsallis::lab
