#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>

#include "lab/base/errors.h"
#include "lab/nn/layer_view.h"
#include "lab/studies/analyses/sparsefinder.h"

namespace tsallis::lab::sparsefinder {

using at::Tensor;

Tensor Visible(Sight sight, std::int64_t queries, std::int64_t keys) {
  const Tensor all = at::ones({queries, keys}, at::kBool);
  return sight == Sight::kBefore ? all.tril() : all;
}

std::string NameOf(const LayerPlace& place) {
  return fmt::format("{} {}", place.kind, place.layer + 1);
}

LayerQueriesKeys QueriesKeysOf(const SequenceModel& model, const LayerInput& input,
                               std::int64_t sequence) {
  const HeadArrays arrays = input.Arrays(sequence);
  if (!arrays.alpha.defined() || arrays.alpha.min().item<double>() <= 1.0) {
    throw UsageError(fmt::format(
        "--decoder: expected a model whose heads have entmax with alpha above 1, got {} in {}: "
        "every pair has weight there",
        arrays.alpha.defined() ? "a smaller alpha" : arrays.map, NameOf(input)));
  }
  const std::vector<LayerPlace> places = model.Places();
  const auto place = std::find(places.begin(), places.end(), static_cast<const LayerPlace&>(input));
  return {static_cast<std::size_t>(place - places.begin()), arrays.q.to(at::kFloat),
          arrays.k.to(at::kFloat)};
}

SequenceScore Evaluate(SequenceModel& model, const TokenBatch& batch, const Joined& joined) {
  if (!joined) return model.Evaluate(batch);
  return model.Evaluate(batch, [&](const LayerInput& input) {
    const std::int64_t sequences = input.rows.Sequences();
    const std::int64_t keys = input.inputs.KeyRows(input.rows).length;
    Tensor visible;
    for (std::int64_t s = 0; s < sequences; ++s) {
      const Tensor own = joined(QueriesKeysOf(model, input, s));
      if (s == 0) {
        visible = at::zeros({sequences, own.size(0), input.rows.length, keys}, at::kBool);
      }
      visible[s].narrow(1, 0, own.size(1)).narrow(2, 0, own.size(2)).copy_(own);
    }
    return visible;
  });
}

}  // namespace tsallis::lab::sparsefinder
