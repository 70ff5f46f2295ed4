#include "lab/eval/observe_heads.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "lab/base/errors.h"
#include "lab/eval/observe_packed.h"
#include "lab/nn/layer_view.h"
#include "lab/tasks/sequence_batch.h"

namespace tsallis::lab {
namespace {

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

std::vector<HeadPlace> ChooseHeads(const LengthHeads& heads) {
  std::int64_t layers = 0;
  std::set<std::pair<std::int64_t, std::int64_t>> sloped;  // layer, head
  for (const HeadNumber& number : heads.numbers) {
    layers = std::max(layers, number.layer + 1);
    if (number.quantity.ends_with("slope")) sloped.insert({number.layer, number.head});
  }
  std::vector<HeadPlace> chosen;
  const std::set<std::int64_t> shown = {0, layers / 2, layers - 1};
  for (const std::int64_t layer : shown) {
    for (const bool with_slope : {true, false}) {
      const HeadNumber* best = nullptr;
      for (const HeadNumber& number : heads.numbers) {
        if (number.layer != layer || number.quantity != "normalised entropy" ||
            sloped.contains({layer, number.head}) != with_slope) {
          continue;
        }
        if (best == nullptr || number.mean < best->mean) best = &number;
      }
      if (best != nullptr) chosen.push_back({layer, best->head});
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
    known.lengths.push_back(context ? ObservePacked(model, task, n, stop)
                                    : ObserveHeads(model, task, n));
    SaveHeads(path, known);
  }
  if (map_lengths.empty()) return;
  const std::vector<HeadPlace> places =
      ChooseHeads(*known.At(*std::min_element(lengths.begin(), lengths.end())));
  for (const std::int64_t n : map_lengths) {
    if (known.HasMaps(n)) continue;
    for (AttentionMap& map : DrawMaps(model, task, n, places, stop)) {
      known.maps.push_back(std::move(map));
    }
    SaveHeads(path, known);
  }
}

}  // namespace tsallis::lab
