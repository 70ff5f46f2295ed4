#include "lab/eval/scores.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "lab/base/files.h"

namespace tsallis::lab {
namespace {

// Null where a score does not say it.
Score SamplesOf(const Score& score) {
  return score.contains("samples") ? score["samples"] : score.value("sets", Score());
}

bool IsScore(const Score& score) {
  return score.is_object() && score.contains("n") && score["n"].is_number_integer() &&
         score.contains("hits") && score["hits"].is_number_integer() &&
         SamplesOf(score).is_number_integer();
}

}  // namespace

void SaveScores(const std::filesystem::path& path, const std::vector<Score>& scores) {
  WriteFileAtomically(path, Score(scores).dump() + "\n");
}

std::vector<Score> LoadScores(const std::filesystem::path& path) {
  const Score scores = ReadJson(path);
  if (!scores.is_array() || !std::all_of(scores.begin(), scores.end(), IsScore)) return {};
  return scores;
}

const Score* FindScore(const std::vector<Score>& scores, std::int64_t n, std::int64_t samples) {
  for (const Score& score : scores) {
    if (score["n"] == n && SamplesOf(score) == samples) return &score;
  }
  return nullptr;
}

}  // namespace tsallis::lab
