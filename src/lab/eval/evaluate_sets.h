// Accuracy, attention entropy and attention maps of a set-attention model against set size.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "lab/config/recipe.h"
#include "lab/nn/set_attention.h"

namespace tsallis::lab {

struct LengthScore {
  std::int64_t n = 0;
  Answers answers{};
  double entropy = 0.0;  // nats, mean over sets
  double support = 0.0;  // weights > 0, mean over sets
  std::vector<float>
      heat{};  // [kHeatSets, kHeatItems]: weights of the largest items, ascending priority
};

constexpr std::int64_t kHeatSets = 32;  // Velickovic et al. 2024, figure 2
constexpr std::int64_t kHeatItems = 16;

// Sets evaluated at length n.
std::int64_t EvalSets(const TaskConfig& task, std::int64_t n);

// The first `sets` of a split's list for length n. Throws Interrupted when `stop` becomes true.
LengthScore EvaluateSetsAt(SetAttention& model, const MaxRetrieval& task, Split split,
                           std::int64_t n, std::int64_t sets, const std::atomic<bool>& stop);

// The test sets at each of task.eval_lengths; without `heat`, none is kept. Throws Interrupted when
// `stop` becomes true.
std::vector<LengthScore> EvaluateSets(SetAttention& model, const TaskConfig& task, bool heat,
                                      const std::atomic<bool>& stop);

// A finished evaluation on disk. Loading gives nothing if there is none for exactly these lengths
// and set counts.
void SaveScores(const std::filesystem::path& path, const std::vector<LengthScore>& scores);
std::optional<std::vector<LengthScore>> LoadScores(const std::filesystem::path& path,
                                                   const TaskConfig& task);

}  // namespace tsallis::lab
