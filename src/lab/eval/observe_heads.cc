#include "lab/eval/observe_heads.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "lab/base/errors.h"
#include "lab/eval/observe_packed.h"
#include "lab/nn/layer_view.h"
#include "lab/tasks/sequence_batch.h"

namespace tsallis::lab {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t kTokens = 1 << 14;
constexpr std::int64_t kSamples = 32;

// Weights of a head that are held at a time: twelve bytes each.
constexpr std::int64_t kEntries = 1 << 22;

std::int64_t TokensAt(const SequenceTask& task, std::int64_t n) {
  return static_cast<std::int64_t>(task.Draw(kEvaluationSeed, Split::kTest, 0, n).tokens.size());
}

AttentionMap Draw(const LayerView& view, std::int64_t head, std::int64_t n, std::int64_t tokens,
                  const std::atomic<bool>& stop) {
  AttentionMap map{
      .n = n, .layer = view.layer, .head = head, .tokens = tokens, .cell = 1, .weights = {}};
  map.cell = (tokens + kMapCells - 1) / kMapCells;
  const std::int64_t cells = map.Cells();
  map.weights.assign(static_cast<std::size_t>(cells * cells), 0.0F);
  const std::int64_t block = std::max<std::int64_t>(1, kEntries / tokens);
  for (std::int64_t begin = 0; begin < tokens; begin += block) {
    if (stop) throw Interrupted("evaluation stopped");
    const std::int64_t end = std::min(tokens, begin + block);
    const SparseRows rows = view.Weights(0, head, begin, end);
    for (std::int64_t query = begin; query < end; ++query) {
      const std::int64_t down = query / map.cell;
      const std::int64_t queries = std::min(tokens, (down + 1) * map.cell) - down * map.cell;
      const auto at = static_cast<std::size_t>(query - begin);
      for (auto e = static_cast<std::size_t>(rows.offsets[at]);
           e < static_cast<std::size_t>(rows.offsets[at + 1]); ++e) {
        map.weights[static_cast<std::size_t>(down * cells + rows.keys[e] / map.cell)] +=
            rows.weights[e] / static_cast<float>(queries);
      }
    }
  }
  return map;
}

}  // namespace

std::vector<std::int64_t> MapLengths(const SequenceTask& task,
                                     const std::vector<std::int64_t>& lengths) {
  std::vector<std::int64_t> chosen = {*std::min_element(lengths.begin(), lengths.end())};
  std::int64_t longest = chosen[0];
  for (const std::int64_t n : lengths) {
    if (n > longest && TokensAt(task, n) <= kMapTokens) longest = n;
  }
  if (longest > chosen[0]) chosen.push_back(longest);
  return chosen;
}

std::int64_t SamplesToObserve(const SequenceTask& task, std::int64_t n) {
  return std::clamp<std::int64_t>(kTokens / TokensAt(task, n), 1,
                                  std::min(kSamples, task.Available(Split::kTest, n)));
}

LengthHeads ObserveHeads(SequenceModel& model, const SequenceTask& task, std::int64_t n) {
  LengthHeads found{.n = n, .samples = SamplesToObserve(task, n), .numbers = {}};
  const TokenBatch batch = DrawBatch(task, kEvaluationSeed, Split::kTest, 0, found.samples, n);
  model.VisitLayers(batch, [&](const LayerView& view) {
    std::vector<HeadQuantities> heads;
    view.Describe(heads);
    for (std::size_t h = 0; h < heads.size(); ++h) {
      for (const auto& [name, moments] : heads[h]) {
        found.numbers.push_back(
            {view.layer, static_cast<std::int64_t>(h), name, moments.Mean(), moments.Deviation()});
      }
    }
  });
  return found;
}

std::vector<HeadPlace> ChooseHeads(const Json& tables) {
  std::set<std::pair<std::size_t, std::size_t>> sloped;  // layer, head
  Json entropy = Json::array();
  for (const Json& table : tables) {
    const std::string quantity = table.at("quantity");
    const Json& means = table.at("mean");
    if (quantity == "normalised entropy") entropy = means;
    if (!quantity.ends_with("slope")) continue;
    for (std::size_t layer = 0; layer < means.size(); ++layer) {
      for (std::size_t head = 0; head < means[layer].size(); ++head) {
        if (!means[layer][head].is_null()) sloped.insert({layer, head});
      }
    }
  }
  std::vector<HeadPlace> chosen;
  if (entropy.empty()) return chosen;
  for (const std::size_t layer : std::set{std::size_t{0}, entropy.size() / 2, entropy.size() - 1}) {
    for (const bool with_slope : {true, false}) {
      const Json& heads = entropy[layer];
      std::optional<std::size_t> best;
      for (std::size_t head = 0; head < heads.size(); ++head) {
        if (heads[head].is_null() || sloped.contains({layer, head}) != with_slope) continue;
        if (!best || heads[head] < heads[*best]) best = head;
      }
      if (!best) continue;
      chosen.push_back({static_cast<std::int64_t>(layer), static_cast<std::int64_t>(*best)});
    }
  }
  return chosen;
}

std::vector<AttentionMap> DrawMaps(SequenceModel& model, const SequenceTask& task, std::int64_t n,
                                   const std::vector<HeadPlace>& places,
                                   const std::atomic<bool>& stop) {
  std::vector<AttentionMap> maps;
  const TokenBatch batch = DrawBatch(task, kEvaluationSeed, Split::kTest, 0, 1, n);
  model.VisitLayers(batch, [&](const LayerView& view) {
    for (const HeadPlace& place : places) {
      if (place.layer != view.layer) continue;
      maps.push_back(Draw(view, place.head, n, batch.tokens.size(1), stop));
    }
  });
  return maps;
}

TensorFile AttentionInputs(SequenceModel& model, const SequenceTask& task, std::int64_t n) {
  TensorFile file;
  const TokenBatch batch = DrawBatch(task, kEvaluationSeed, Split::kTest, 0, 1, n);
  model.VisitLayers(batch, [&](const LayerView& view) {
    const HeadArrays arrays = view.Arrays(0);
    if (arrays.sinks.defined()) {
      throw UsageError(
          "arrays of attention: expected a layer whose heads all have softmax or entmax, got one "
          "with a sink");
    }
    const std::string prefix = "layers." + std::to_string(view.layer) + ".";
    file.metadata[prefix + "map"] = arrays.map;
    file.tensors.emplace_back(prefix + "q", arrays.q);
    file.tensors.emplace_back(prefix + "k", arrays.k);
    file.tensors.emplace_back(prefix + "v", arrays.v);
    if (arrays.alpha.defined()) file.tensors.emplace_back(prefix + "alpha", arrays.alpha);
    if (arrays.slopes.defined()) file.tensors.emplace_back(prefix + "slopes", arrays.slopes);
    if (arrays.c.defined()) file.tensors.emplace_back(prefix + "c", arrays.c);
    if (arrays.scale_invariant) {
      file.metadata[prefix + "scale_invariant"] = fmt::format("{}", *arrays.scale_invariant);
    }
  });
  return file;
}

void ObserveMissing(SequenceModel& model, const SequenceTask& task,
                    const std::vector<std::int64_t>& lengths,
                    const std::vector<std::int64_t>& map_lengths, const std::filesystem::path& path,
                    const std::atomic<bool>& stop) {
  HeadObservations known = LoadHeads(path);
  const bool context = HasContext(model);
  for (const std::int64_t n : lengths) {
    if (known.At(n) != nullptr) continue;
    if (stop) throw Interrupted("evaluation stopped");
    known.lengths.push_back(
        ToJson(context ? ObservePacked(model, task, n, stop) : ObserveHeads(model, task, n)));
    SaveHeads(path, known);
  }
  if (map_lengths.empty()) return;
  const std::vector<HeadPlace> places =
      ChooseHeads(known.At(*std::min_element(lengths.begin(), lengths.end()))->at("tables"));
  for (const std::int64_t n : map_lengths) {
    if (known.HasMaps(n)) continue;
    for (const AttentionMap& map : DrawMaps(model, task, n, places, stop)) {
      known.maps.push_back(ToJson(map));
    }
    SaveHeads(path, known);
  }
}

}  // namespace tsallis::lab
