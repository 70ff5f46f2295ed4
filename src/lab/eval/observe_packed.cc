#include "lab/eval/observe_packed.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "lab/base/errors.h"
#include "lab/nn/head_numbers.h"
#include "lab/tasks/sequence_batch.h"

namespace tsallis::lab {
namespace {

using at::Tensor;

constexpr std::int64_t kSamples = 256;
// Samples that are looked at at a time.
constexpr std::int64_t kChunk = 32;
// Keys whose weights one call gives.
constexpr std::int64_t kKeys = 256;

// [queries]: keys that each may see.
Tensor Visible(const PackedAttention& attention, const Tensor& weights) {
  const std::int64_t queries = weights.size(1), keys = weights.size(2);
  if (!attention.seen.options.causal) {
    return at::full({queries}, static_cast<double>(keys), at::kDouble);
  }
  return at::arange(keys - queries + 1, keys + 1, at::kDouble);
}

// The alpha of softmax (1) and entmax, learned or not.
std::optional<double> AlphaOf(const AttentionOptions& options, std::int64_t head) {
  if (options.alpha_heads) return (*options.alpha_heads)[head].item<double>();
  if (options.map == RowMap::kSoftmax) return 1.0;
  return options.map == RowMap::kEntmax ? std::optional(options.alpha) : std::nullopt;
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

Tensor WeightsOf(const PackedAttention& attention, std::int64_t sample) {
  const auto part = [&](const Tensor& rows, const Tensor& begins) {
    const std::int64_t begin = begins[sample].item<std::int64_t>();
    return rows.narrow(2, begin, begins[sample + 1].item<std::int64_t>() - begin).cpu();
  };
  const Tensor q = part(attention.seen.q, attention.queries_begin);
  const Tensor k = part(attention.seen.k, attention.keys_begin);
  AttentionOptions options = attention.seen.options;
  options.cu_seqlens_q.reset();
  options.cu_seqlens_k.reset();
  for (auto* setting : {&options.alpha_heads, &options.length_scale, &options.alibi_slopes,
                        &options.bias, &options.sink, &options.mask, &options.block_mask}) {
    if (*setting) *setting = (*setting)->cpu();
  }
  // With the rows of the identity as values, the output of a query is its weights.
  const std::int64_t keys = k.size(2);
  const Tensor identity = at::eye(keys);
  std::vector<Tensor> weights;
  for (std::int64_t begin = 0; begin < keys; begin += kKeys) {
    const Tensor v = identity.narrow(1, begin, std::min(kKeys, keys - begin));
    weights.push_back(
        tsallis::Attention(q, k, v.expand({1, k.size(1), keys, v.size(1)}), options)[0]);
  }
  return at::cat(weights, 2);
}

std::vector<ContextWeights> ContextOf(EncoderDecoder& model, const TokenBatch& sample) {
  std::vector<ContextWeights> found;
  model.VisitLayers(sample, [&](const PackedAttention& attention) {
    if (std::string(attention.kind) != "context") return;
    const Tensor weights = WeightsOf(attention, 0);
    for (std::int64_t head = 0; head < weights.size(0); ++head) {
      found.push_back({attention.layer, head, AlphaOf(attention.seen.options, head),
                       (weights[head] > 0).to(at::kDouble).mean().item<double>(), weights[head]});
    }
  });
  return found;
}

LengthHeads ObservePacked(EncoderDecoder& model, const SequenceTask& task, std::int64_t n,
                          const std::atomic<bool>& stop) {
  LengthHeads found{
      .n = n, .samples = std::min(kSamples, task.Available(Split::kTest, n)), .numbers = {}};
  // In the order in which the model shows them: layers of one kind follow each other.
  std::vector<std::pair<std::string, std::int64_t>> places;  // kind, layer
  std::map<std::pair<std::string, std::int64_t>, std::vector<std::map<std::string, Moments>>> all;
  for (std::int64_t first = 0; first < found.samples; first += kChunk) {
    const std::int64_t count = std::min(kChunk, found.samples - first);
    const TokenBatch batch = DrawBatch(task, kEvaluationSeed, Split::kTest, first, count, n);
    model.VisitLayers(batch, [&](const PackedAttention& attention) {
      if (stop) throw Interrupted("evaluation stopped");
      const std::pair<std::string, std::int64_t> place{attention.kind, attention.layer};
      if (!all.contains(place)) places.push_back(place);
      auto& heads = all[place];
      const AttentionOptions& options = attention.seen.options;
      for (std::int64_t sample = 0; sample < count; ++sample) {
        const Tensor weights = WeightsOf(attention, sample).to(at::kDouble);
        heads.resize(static_cast<std::size_t>(weights.size(0)));
        const Tensor mean = weights.mean(0);
        const Tensor visible = Visible(attention, weights);
        for (std::size_t h = 0; h < heads.size(); ++h) {
          const auto head = static_cast<std::int64_t>(h);
          if (const auto alpha = AlphaOf(options, head)) heads[h]["alpha"].Add(*alpha);
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
