#include "lab/nn/layer_view.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cmath>
#include <cstddef>

#include "lab/base/errors.h"

namespace tsallis::lab {
namespace {

void AddTo(HeadQuantities& head, const std::string& name, double value) {
  for (auto& [known, moments] : head) {
    if (known == name) return moments.Add(value);
  }
  head.emplace_back(name, Moments()).second.Add(value);
}

}  // namespace

double Moments::Deviation() const {
  return count_ > 1 ? std::sqrt(squares_ / static_cast<double>(count_ - 1)) : 0.0;
}

std::optional<double> LayerInput::Alpha(std::int64_t head) const {
  const std::string& map = attention.HeadOf(head).map;
  if (map == "softmax") return 1.0;
  return map == "entmax" ? std::optional(inputs.alpha.const_data_ptr<double>()[head])
                         : std::nullopt;
}

void LayerView::Describe(std::vector<HeadQuantities>& heads) const {
  const std::int64_t count = attention.heads_;
  heads.resize(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < attention.calls_.size(); ++i) {
    const LayerAttention::CallHeads& call = attention.calls_[i];
    for (std::int64_t own = 0; own < call.count; ++own) {
      const std::int64_t h = call.first + own * call.step;
      HeadQuantities& head = heads[static_cast<std::size_t>(h)];
      for (const std::int64_t row : scored) {
        // [batch, heads, length], or [heads, rows] if packed.
        const bool packed = rows.packed || inputs.KeyRows(rows).packed;
        const std::int64_t length = packed ? rows.rows : rows.length;
        const std::int64_t sequence = row / length;
        const auto at =
            static_cast<std::size_t>((sequence * call.count + own) * length + row % length);
        const double entropy = statistics.entropy[i][at];
        const auto keys = static_cast<double>(attention.VisibleKeys(rows, inputs, h, row));
        AddTo(head, "entropy", entropy);
        if (keys > 1.0) AddTo(head, "normalised entropy", entropy / std::log(keys));
        AddTo(head, "support", static_cast<double>(statistics.support[i][at]));
        AddTo(head, "keys", keys);
      }
    }
  }
  for (std::int64_t h = 0; h < count; ++h) {
    const AttentionConfig& config = attention.HeadOf(h);
    HeadQuantities& head = heads[static_cast<std::size_t>(h)];
    if (HasSlope(config, count, h)) {
      AddTo(head, config.positions.learn_slopes ? "learned slope" : "slope",
            inputs.slopes.const_data_ptr<float>()[h]);
    }
    if (config.learn_alpha != "no") AddTo(head, "alpha", inputs.alpha.const_data_ptr<double>()[h]);
    if (config.sink == "learned") AddTo(head, "sink", inputs.sinks.const_data_ptr<double>()[h]);
  }
  for (const LayerAttention::Scaling& scaling : attention.scalings_) {
    const auto terms = scaling.scale->Terms(inputs.projected, scaling.column);
    for (std::int64_t own = 0; own < scaling.heads.count; ++own) {
      const std::int64_t h = scaling.heads.first + own;
      HeadQuantities& head = heads[static_cast<std::size_t>(h)];
      for (const std::int64_t row : scored) {
        AddTo(head, "c", inputs.c.const_data_ptr<float>()[row * count + h]);
        for (const auto& [name, values] : terms) {
          const std::int64_t of_row = values.size(0) == 1 ? 0 : row;
          AddTo(head, name, values.accessor<double, 2>()[of_row][own]);
        }
      }
    }
  }
}

HeadArrays LayerInput::Arrays(std::int64_t sequence) const {
  using Columns = LayerAttention::Columns;
  const AttentionConfig& config = attention.HeadOf(0);
  const auto refuse_if = [](bool found, const std::string& what) {
    if (!found) return;
    throw UsageError(
        "arrays of attention: expected a layer whose heads all have softmax or entmax, got one "
        "with " +
        what);
  };
  refuse_if(attention.calls_.size() > 1, "heads that differ in map or in scale-invariant scores");
  refuse_if(config.map != "softmax" && config.map != "entmax", config.map);
  refuse_if(attention.PatternOf(attention.calls_.front()) != nullptr,
            "a pattern of the keys that they see");
  refuse_if(config.scale_invariant_alpha || config.scale_invariant_beta,
            "scale-invariant scores of another alpha or beta");
  const auto index = static_cast<std::size_t>(sequence);
  const auto rows_of = [&](const SequenceRows& of, const at::Tensor& matrix) {
    return matrix.narrow(0, of.begin[index], of.end[index] - of.begin[index]);
  };
  const auto heads_of = [&](const SequenceRows& of, const Columns& columns) {
    return rows_of(of, columns.matrix)
        .narrow(1, columns.first, attention.heads_ * attention.head_dim_)
        .unflatten(1, {attention.heads_, attention.head_dim_})
        .transpose(0, 1)
        .contiguous();
  };
  const SequenceRows& keys = inputs.KeyRows(rows);
  HeadArrays arrays{.map = config.map,
                    .q = heads_of(rows, {inputs.projected, 0}),
                    .k = heads_of(keys, attention.KeysOf(inputs)),
                    .v = heads_of(keys, attention.ValuesOf(inputs)),
                    .alpha = {},
                    .slopes = {},
                    .sinks = {},
                    .c = {},
                    .scale_invariant = config.scale_invariant};
  if (inputs.c.defined()) {
    arrays.c = rows_of(rows, inputs.c).t().contiguous();
    arrays.q = (arrays.q.to(at::kFloat) * arrays.c.unsqueeze(-1)).to(arrays.k.scalar_type());
  }
  if (config.map == "entmax") arrays.alpha = inputs.alpha.clone();
  if (inputs.slopes.defined()) arrays.slopes = inputs.slopes.clone();
  if (inputs.sinks.defined()) arrays.sinks = inputs.sinks.clone();
  return arrays;
}

SparseRows LayerInput::Weights(std::int64_t sequence, std::int64_t head, std::int64_t begin,
                               std::int64_t end) const {
  const LayerAttention::CallHeads call{head, 1, 1};
  // One sequence by itself, with the keys that the last of the queries sees; causal queries stand
  // at the end of the keys.
  const auto index = static_cast<std::size_t>(sequence);
  const SequenceRows& keys = inputs.KeyRows(rows);
  const std::int64_t first = rows.begin[index], first_key = keys.begin[index];
  AttentionParams p = LayerAttention::Alone(
      attention.ParamsOf(call, rows, LayerAttention::Queries::kAll, inputs),
      {first + begin, end - begin, first_key,
       attention.sight_ == Sight::kBefore ? end : keys.end[index] - first_key});
  const LayerAttention::MapNumbers numbers = attention.NumbersOf(call, inputs);
  attention.SetMap(p, call, numbers);
  attention.SetPattern(call, begin, p.mask);
  SparseRows out;
  const auto queries = static_cast<std::size_t>(p.q_len);
  out.offsets.resize(queries + 1);
  AttentionWeightCounts(attention.Threads(), p, out.offsets.data() + 1);
  for (std::size_t i = 0; i < queries; ++i) out.offsets[i + 1] += out.offsets[i];
  out.keys.resize(static_cast<std::size_t>(out.offsets.back()));
  out.weights.resize(out.keys.size());
  AttentionWeights(attention.Threads(), p, out.offsets.data(), out.keys.data(), out.weights.data());
  return out;
}

at::Tensor LayerInput::Weights(std::int64_t sequence, std::int64_t head) const {
  const auto count = [index = static_cast<std::size_t>(sequence)](const SequenceRows& of) {
    return of.end[index] - of.begin[index];
  };
  const std::int64_t queries = count(rows), keys = count(inputs.KeyRows(rows));
  const SparseRows sparse = Weights(sequence, head, 0, queries);
  const at::Tensor dense = at::zeros({queries, keys});
  for (std::size_t i = 0; i < static_cast<std::size_t>(queries); ++i) {
    float* row = dense.mutable_data_ptr<float>() + static_cast<std::int64_t>(i) * keys;
    for (auto e = static_cast<std::size_t>(sparse.offsets[i]);
         e < static_cast<std::size_t>(sparse.offsets[i + 1]); ++e) {
      row[sparse.keys[e]] = sparse.weights[e];
    }
  }
  return dense;
}

}  // namespace tsallis::lab
