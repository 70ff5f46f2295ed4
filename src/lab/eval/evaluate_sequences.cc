#include "lab/eval/evaluate_sequences.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "lab/errors.h"
#include "lab/tasks/sequence_batch.h"
#include "lab/train/safetensors.h"

namespace tsallis::lab {
namespace {

// Tokens that are evaluated at a time: memory does not grow with the number of samples.
constexpr std::int64_t kTokens = 1 << 14;

}  // namespace

SequenceLengthScore EvaluateLength(Decoder& model, const SequenceTask& task, Split split,
                                   std::int64_t n, std::int64_t samples,
                                   const std::atomic<bool>& stop) {
  SequenceLengthScore score{.n = n, .samples = samples};
  const auto tokens =
      static_cast<std::int64_t>(task.Draw(kEvaluationSeed, split, 0, n).tokens.size());
  const std::int64_t chunk = std::max<std::int64_t>(1, kTokens / tokens);
  for (std::int64_t first = 0; first < samples; first += chunk) {
    if (stop) throw Interrupted("evaluation stopped");
    const std::int64_t count = std::min(chunk, samples - first);
    const SequenceScore part =
        model.Evaluate(DrawBatch(task, kEvaluationSeed, split, first, count, n));
    score.hits += task.Generates() ? part.exact : part.hits;
    score.asked += task.Generates() ? part.sequences : part.scored;
  }
  return score;
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

std::optional<std::vector<SequenceLengthScore>> LoadSequenceScores(
    const std::filesystem::path& path, const std::vector<std::int64_t>& lengths,
    std::int64_t samples) {
  std::ifstream in(path);
  if (!in) return std::nullopt;
  const nlohmann::json rows = nlohmann::json::parse(in, nullptr, false);
  if (!rows.is_array() || rows.size() != lengths.size()) return std::nullopt;
  std::vector<SequenceLengthScore> scores;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const nlohmann::json& row = rows[i];
    scores.push_back({row.at("n"), row.at("samples"), row.at("hits"), row.at("asked")});
    if (scores.back().n != lengths[i] || scores.back().samples != samples) return std::nullopt;
  }
  return scores;
}

}  // namespace tsallis::lab
