#include "lab/eval/evaluate_sets.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "lab/base/errors.h"
#include "lab/base/files.h"

namespace tsallis::lab {
namespace {

// Items encoded at a time: two activations of this many rows of 128 floats stay within a 2 MiB
// second-level cache.
constexpr std::int64_t kChunkItems = 2048;

// Appends, set by set, the weights of the kHeatItems largest items in ascending order of priority.
void AppendHeat(const SetBatch& batch, const at::Tensor& weights, std::vector<float>& heat) {
  const at::Tensor priority = batch.items.select(2, 0).contiguous();
  const at::Tensor top = std::get<1>(priority.topk(kHeatItems, 1)).flip(1);
  const at::Tensor picked = weights.gather(1, top).contiguous();
  const std::int64_t room = kHeatSets * kHeatItems - static_cast<std::int64_t>(heat.size());
  const float* values = picked.const_data_ptr<float>();
  heat.insert(heat.end(), values, values + std::min(room, picked.numel()));
}

}  // namespace

std::int64_t EvalSets(const TaskConfig& task, std::int64_t n) {
  return std::clamp(task.eval_items / n, task.eval_sets_min, task.eval_sets_max);
}

LengthScore EvaluateSetsAt(SetAttention& model, const MaxRetrieval& task, Split split,
                           std::int64_t n, std::int64_t sets, const std::atomic<bool>& stop) {
  LengthScore score;
  score.n = n;
  score.answers.asked = sets;
  const std::int64_t chunk = std::max<std::int64_t>(1, kChunkItems / n);
  for (std::int64_t first = 0; first < sets; first += chunk) {
    if (stop) throw Interrupted("evaluation stopped");
    const std::int64_t count = std::min(chunk, sets - first);
    const SetBatch batch = task.EvalBatch(split, n, first, count);
    AttentionView view;
    const at::Tensor scores = model.Forward(batch, &view);
    score.answers.hits += scores.argmax(1).eq(batch.target).sum().item<std::int64_t>();
    score.entropy += view.entropy.sum().item<double>();
    score.support += view.support_size.sum().item<double>();
    if (n >= kHeatItems && static_cast<std::int64_t>(score.heat.size()) < kHeatSets * kHeatItems) {
      AppendHeat(batch, view.weights, score.heat);
    }
  }
  score.entropy /= static_cast<double>(sets);
  score.support /= static_cast<double>(sets);
  return score;
}

std::vector<LengthScore> EvaluateSets(SetAttention& model, const TaskConfig& config, bool heat,
                                      const std::atomic<bool>& stop) {
  const MaxRetrieval task(config);
  std::vector<LengthScore> scores;
  for (const std::int64_t n : config.eval_lengths) {
    scores.push_back(EvaluateSetsAt(model, task, Split::kTest, n, EvalSets(config, n), stop));
    if (!heat) scores.back().heat.clear();
  }
  return scores;
}

void SaveScores(const std::filesystem::path& path, const std::vector<LengthScore>& scores) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const LengthScore& score : scores) {
    nlohmann::ordered_json& row = rows.emplace_back();
    row = {{"n", score.n},
           {"sets", score.answers.asked},
           {"hits", score.answers.hits},
           {"entropy", score.entropy},
           {"support", score.support}};
    if (score.heat.empty()) continue;
    // Pictures need three digits; the file is kept with the results.
    row["heat"] = nlohmann::ordered_json::array();
    for (const float weight : score.heat) row["heat"].push_back(std::round(weight * 1e3) / 1e3);
  }
  WriteFileAtomically(path, rows.dump() + "\n");
}

std::optional<std::vector<LengthScore>> LoadScores(const std::filesystem::path& path,
                                                   const TaskConfig& task) {
  std::ifstream in(path);
  if (!in) return std::nullopt;
  const nlohmann::json rows = nlohmann::json::parse(in, nullptr, false);
  if (!rows.is_array() || rows.size() != task.eval_lengths.size()) return std::nullopt;
  std::vector<LengthScore> scores;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const nlohmann::json& row = rows[i];
    LengthScore score{.n = row.at("n"),
                      .answers = {.asked = row.at("sets"), .hits = row.at("hits")},
                      .entropy = row.at("entropy"),
                      .support = row.at("support"),
                      .heat = row.value("heat", std::vector<float>())};
    if (score.n != task.eval_lengths[i] || score.answers.asked != EvalSets(task, score.n))
      return std::nullopt;
    scores.push_back(std::move(score));
  }
  return scores;
}

}  // namespace tsallis::lab
