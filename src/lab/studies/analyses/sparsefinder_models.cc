#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>

#include "lab/base/errors.h"
#include "lab/nn/layer_view.h"
#include "lab/studies/analyses/sparsefinder.h"

namespace tsallis::lab::sparsefinder {
namespace {

using at::Tensor;

void CheckZeros(const std::string& layer, const HeadArrays& arrays) {
  if (arrays.alpha.defined() && arrays.alpha.min().item<double>() > 1.0) return;
  throw UsageError(fmt::format(
      "--decoder: expected a model whose heads have entmax with alpha above 1, got {} in {}: every "
      "pair has weight there",
      arrays.alpha.defined() ? "a smaller alpha" : arrays.map, layer));
}

LayerQueriesKeys Of(std::size_t layer, const HeadArrays& arrays) {
  return {layer, arrays.q.to(at::kFloat), arrays.k.to(at::kFloat)};
}

}  // namespace

Subject::Subject(SequenceModel& model) : model_(model), places_(model.Places()) {
  for (const LayerPlace& place : places_) {
    layers_.push_back({fmt::format("{} {}", place.kind, place.layer + 1), place.sight});
  }
}

std::size_t Subject::LayerOf(const LayerPlace& place) const {
  return static_cast<std::size_t>(std::find(places_.begin(), places_.end(), place) -
                                  places_.begin());
}

void Subject::VisitLayers(
    const TokenBatch& sample,
    const std::function<void(const LayerQueriesKeys&, const Weights&)>& visit) {
  model_.VisitLayers(sample, [&](const LayerView& view) {
    const HeadArrays arrays = view.Arrays(0);
    const std::size_t layer = LayerOf(view);
    CheckZeros(layers_[layer].name, arrays);
    visit(Of(layer, arrays), [&](std::int64_t head) { return view.Weights(0, head); });
  });
}

SequenceScore Subject::Evaluate(const TokenBatch& batch, const Joined& joined) {
  if (!joined) return model_.Evaluate(batch);
  return model_.Evaluate(batch, [&](const LayerInput& input) {
    const std::int64_t sequences = input.rows.Sequences();
    const std::int64_t keys = input.inputs.KeyRows(input.rows).length;
    Tensor visible;
    for (std::int64_t s = 0; s < sequences; ++s) {
      const Tensor own = joined(Of(LayerOf(input), input.Arrays(s)));
      if (s == 0) {
        visible = at::zeros({sequences, own.size(0), input.rows.length, keys}, at::kBool);
      }
      visible[s].narrow(1, 0, own.size(1)).narrow(2, 0, own.size(2)).copy_(own);
    }
    return visible;
  });
}

Tensor Visible(Sight sight, std::int64_t queries, std::int64_t keys) {
  const Tensor all = at::ones({queries, keys}, at::kBool);
  return sight == Sight::kBefore ? all.tril() : all;
}

}  // namespace tsallis::lab::sparsefinder
