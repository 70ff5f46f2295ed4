#include "lab/eval/evaluate_sets.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "lab/base/errors.h"

namespace tsallis::lab {
namespace {

// Items encoded at a time: two activations of this many rows of 128 floats stay within a 2 MiB
// second-level cache.
constexpr std::int64_t kChunkItems = 2048;

// Appends, set by set, the weights of the kHeatItems largest items in ascending order of priority,
// with three digits: pictures need no more, and the file is kept with the results.
void AppendHeat(const SetBatch& batch, const at::Tensor& weights, std::vector<double>& heat) {
  const at::Tensor priority = batch.items.select(2, 0).contiguous();
  const at::Tensor top = std::get<1>(priority.topk(kHeatItems, 1)).flip(1);
  const at::Tensor picked = weights.gather(1, top).contiguous();
  const std::int64_t room = kHeatSets * kHeatItems - static_cast<std::int64_t>(heat.size());
  const float* values = picked.const_data_ptr<float>();
  std::transform(values, values + std::min(room, picked.numel()), std::back_inserter(heat),
                 [](float weight) { return std::round(weight * 1e3) / 1e3; });
}

}  // namespace

Score EvaluateSets(SetAttention& model, const MaxRetrieval& task, Split split, std::int64_t n,
                   std::int64_t sets, bool heat, const std::atomic<bool>& stop) {
  std::int64_t hits = 0;
  double entropy = 0.0, support = 0.0;
  std::vector<double> drawn;
  const std::int64_t chunk = std::max<std::int64_t>(1, kChunkItems / n);
  for (std::int64_t first = 0; first < sets; first += chunk) {
    if (stop) throw Interrupted("evaluation stopped");
    const std::int64_t count = std::min(chunk, sets - first);
    const SetBatch batch = task.EvalBatch(split, n, first, count);
    AttentionView view;
    const at::Tensor scores = model.Forward(batch, &view);
    hits += scores.argmax(1).eq(batch.target).sum().item<std::int64_t>();
    entropy += view.entropy.sum().item<double>();
    support += view.support_size.sum().item<double>();
    if (heat && n >= kHeatItems && drawn.size() < kHeatSets * kHeatItems) {
      AppendHeat(batch, view.weights, drawn);
    }
  }
  Score score = {{"n", n},
                 {"sets", sets},
                 {"hits", hits},
                 {"entropy", entropy / static_cast<double>(sets)},
                 {"support", support / static_cast<double>(sets)}};
  if (!drawn.empty()) score["heat"] = drawn;
  return score;
}

}  // namespace tsallis::lab
