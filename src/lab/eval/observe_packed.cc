#include "lab/eval/observe_packed.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "lab/base/errors.h"
#include "lab/nn/head_numbers.h"
#include "lab/nn/layer_view.h"
#include "lab/tasks/sequence_batch.h"

namespace tsallis::lab {
namespace {

using at::Tensor;

constexpr std::int64_t kSamples = 256;
// Samples that are looked at at a time.
constexpr std::int64_t kChunk = 32;

// [queries]: keys that each may see.
Tensor Visible(Sight sight, const Tensor& weights) {
  const std::int64_t queries = weights.size(1), keys = weights.size(2);
  if (sight != Sight::kBefore) return at::full({queries}, static_cast<double>(keys), at::kDouble);
  return at::arange(keys - queries + 1, keys + 1, at::kDouble);
}

// p ln(p / q), 0 where p is.
Tensor Divergence(const Tensor& p, const Tensor& q) {
  return at::where(p > 0, p * (p / q).log(), at::zeros({}, at::kDouble)).sum(-1);
}

void Add(const Tensor& of_queries, Moments& moments) {
  const Tensor values = of_queries.contiguous();
  for (std::int64_t i = 0; i < values.numel(); ++i) {
    moments.Add(values.const_data_ptr<double>()[i]);
  }
}

}  // namespace

bool HasContext(const SequenceModel& model) {
  const std::vector<LayerPlace> places = model.Places();
  return std::any_of(places.begin(), places.end(),
                     [](const LayerPlace& place) { return place.sight == Sight::kOther; });
}

std::vector<ContextWeights> ContextOf(SequenceModel& model, const TokenBatch& sample) {
  std::vector<ContextWeights> found;
  model.VisitLayers(sample, [&](const LayerView& view) {
    if (view.sight != Sight::kOther) return;
    for (std::int64_t head = 0; head < model.Config().heads; ++head) {
      const Tensor weights = view.Weights(0, head);
      found.push_back({view.layer, head, view.Alpha(head),
                       (weights > 0).to(at::kDouble).mean().item<double>(), weights});
    }
  });
  return found;
}

LengthHeads ObservePacked(SequenceModel& model, const SequenceTask& task, std::int64_t n,
                          const std::atomic<bool>& stop) {
  LengthHeads found{
      .n = n, .samples = std::min(kSamples, task.Available(Split::kTest, n)), .numbers = {}};
  // In the order in which the model shows them: layers of one kind follow each other.
  std::vector<std::pair<std::string, std::int64_t>> places;  // kind, layer
  std::map<std::pair<std::string, std::int64_t>, std::vector<std::map<std::string, Moments>>> all;
  for (std::int64_t first = 0; first < found.samples; first += kChunk) {
    const std::int64_t count = std::min(kChunk, found.samples - first);
    const TokenBatch batch = DrawBatch(task, kEvaluationSeed, Split::kTest, first, count, n);
    model.VisitLayers(batch, [&](const LayerView& view) {
      if (stop) throw Interrupted("evaluation stopped");
      const std::pair place{view.kind, view.layer};
      if (!all.contains(place)) places.push_back(place);
      auto& heads = all[place];
      heads.resize(static_cast<std::size_t>(model.Config().heads));
      for (std::int64_t sample = 0; sample < count; ++sample) {
        std::vector<Tensor> of_heads;
        for (std::size_t h = 0; h < heads.size(); ++h) {
          of_heads.push_back(view.Weights(sample, static_cast<std::int64_t>(h)));
        }
        const Tensor weights = at::stack(of_heads).to(at::kDouble);
        const Tensor mean = weights.mean(0), visible = Visible(view.sight, weights);
        for (std::size_t h = 0; h < heads.size(); ++h) {
          const auto head = static_cast<std::int64_t>(h);
          if (const auto alpha = view.Alpha(head)) heads[h]["alpha"].Add(*alpha);
          Add((weights[head] > 0).sum(-1).to(at::kDouble) / visible, heads[h]["density"]);
          Add(Divergence(weights[head], mean), heads[h]["divergence"]);
        }
      }
    });
  }
  for (const auto& place : places) {
    const auto& heads = all.at(place);
    for (std::size_t h = 0; h < heads.size(); ++h) {
      for (const auto& [name, moments] : heads[h]) {
        found.numbers.push_back({place.second, static_cast<std::int64_t>(h),
                                 place.first + " " + name, moments.Mean(), moments.Deviation()});
      }
    }
  }
  return found;
}

}  // namespace tsallis::lab
