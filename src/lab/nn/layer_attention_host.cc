// Attention of a layer by the kernels of the host, on the rows of its projection.
#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "lab/nn/layer_attention.h"

namespace tsallis::lab {
namespace {

using at::Tensor;

// Bytes of support lists that one call may keep for its backward pass.
constexpr std::size_t kListBudget = std::size_t{1} << 28;

}  // namespace

class LayerAttention::Pass : public HostPass {
 public:
  // All must outlive the pass.
  Pass(const LayerAttention& attention, const SequenceRows& rows, Queries queries,
       const SequenceRows* memory_rows)
      : attention_(attention), rows_(rows), queries_(queries), memory_rows_(memory_rows) {}

  Tensors Forward(const Tensors& in, bool keep) override {
    inputs_ = {.stream = {},
               .projected = in[0],
               .c = in[1],
               .alpha = in[2],
               .slopes = in[3],
               .sinks = in[4],
               .memory = {{}, in[5], memory_rows_}};
    const Tensor out = attention_.OutputOf(inputs_);
    attention_.Forward(inputs_, rows_, queries_, out, keep ? &kept_ : nullptr, nullptr, {});
    return {out};
  }
  Tensors Backward(Tensors& d_out) override {
    return attention_.Backward(inputs_, rows_, queries_, d_out[0].contiguous(), kept_);
  }

 private:
  const LayerAttention& attention_;
  const SequenceRows& rows_;
  Queries queries_;
  const SequenceRows* memory_rows_;
  Inputs inputs_{};
  Kept kept_;
};

Tensor LayerAttention::OnHost(const Inputs& inputs, const SequenceRows& rows,
                              Queries queries) const {
  return Record(std::make_unique<Pass>(*this, rows, queries, inputs.memory.rows),
                {inputs.projected, inputs.c, inputs.alpha, inputs.slopes, inputs.sinks,
                 inputs.memory.projected})
      .front();
}

Tensor LayerAttention::OutputOf(const Inputs& inputs) const {
  return at::empty({inputs.projected.size(0), heads_ * head_dim_}, inputs.projected.options());
}

template <class Array>
Array LayerAttention::HeadsIn(const Tensor& matrix, std::int64_t row, std::int64_t column,
                              const CallHeads& call, std::int64_t length) const {
  const std::int64_t stride = matrix.size(1);
  return {(CellsOf(matrix) + (row * stride + column + call.first * head_dim_)).data,
          DTypeOf(matrix),
          {length * stride, call.step * head_dim_, stride, 1}};
}

LayerAttention::Columns LayerAttention::KeysOf(const Inputs& inputs) const {
  if (sight_ == Sight::kOther) return {inputs.memory.projected, 0};
  return {inputs.projected, heads_ * head_dim_};
}

LayerAttention::Columns LayerAttention::ValuesOf(const Inputs& inputs) const {
  const Columns keys = KeysOf(inputs);
  return {keys.matrix, keys.first + heads_ * head_dim_};
}

AttentionParams LayerAttention::ParamsOf(const CallHeads& call, const SequenceRows& rows,
                                         Queries queries, const Inputs& inputs) const {
  const SequenceRows& keys = inputs.KeyRows(rows);
  AttentionParams p;
  p.batch = rows.Sequences();
  p.heads = p.kv_heads = call.count;
  const bool last = queries == Queries::kLast;
  const bool packed = rows.packed || keys.packed || last;
  p.q_len = packed ? rows.rows : rows.length;
  p.k_len = packed ? keys.rows : keys.length;
  p.head_dim = p.value_dim = head_dim_;
  const Columns k = KeysOf(inputs), v = ValuesOf(inputs);
  p.q = HeadsIn<ConstArray4>(inputs.projected, 0, 0, call, rows.length);
  p.k = HeadsIn<ConstArray4>(k.matrix, 0, k.first, call, keys.length);
  p.v = HeadsIn<ConstArray4>(v.matrix, 0, v.first, call, keys.length);
  p.mask.causal = sight_ == Sight::kBefore;
  if (packed) {
    p.ranges = {(last ? rows.last_begin : rows.begin).data(), rows.end.data(), keys.begin.data(),
                keys.end.data(), true};
  }
  p.terms = TermsOf(call, 0, rows.length, inputs);
  return p;
}

AttentionTerms LayerAttention::TermsOf(const CallHeads& call, std::int64_t begin,
                                       std::int64_t count, const Inputs& inputs) const {
  AttentionTerms terms;
  SetDistances(HeadOf(call.first), terms);
  if (inputs.c.defined()) {
    terms.length_scale = {inputs.c.const_data_ptr<float>() + begin * heads_ + call.first,
                          DType::kFloat32,
                          {count * heads_, call.step, heads_, 1}};
  }
  if (inputs.slopes.defined()) {
    terms.alibi_slopes = {
        inputs.slopes.const_data_ptr<float>() + call.first, DType::kFloat32, {0, call.step, 0, 0}};
  }
  return terms;
}

void LayerAttention::SetMap(AttentionParams& params, const CallHeads& call,
                            const MapNumbers& numbers) const {
  params.setting() = SettingOf(HeadOf(call.first));
  params.alpha = numbers.alphas.front();
  const bool equal = std::all_of(numbers.alphas.begin(), numbers.alphas.end(),
                                 [&](double alpha) { return alpha == params.alpha; });
  if (!equal) params.alpha_per_head = numbers.alphas.data();
  if (!numbers.sinks.empty()) params.terms.sink = numbers.sinks.data();
}

LayerAttention::MapNumbers LayerAttention::NumbersOf(const CallHeads& call,
                                                     const Inputs& inputs) const {
  MapNumbers numbers;
  bool any = false;
  for (std::int64_t h = 0; h < call.count; ++h) {
    const std::int64_t head = call.first + h * call.step;
    numbers.alphas.push_back(inputs.alpha.const_data_ptr<double>()[head]);
    if (inputs.sinks.defined()) {
      numbers.sinks.push_back(inputs.sinks.const_data_ptr<double>()[head]);
    }
    any = any || HeadOf(head).sink != "none";
  }
  if (!any) numbers.sinks.clear();
  return numbers;
}

void LayerAttention::Forward(const Inputs& inputs, const SequenceRows& rows, Queries queries,
                             const Tensor& out, Kept* keep, Statistics* statistics,
                             const Tensor& visible) const {
  if (keep != nullptr) {
    keep->tau.resize(calls_.size());
    keep->lists.resize(calls_.size());
  }
  if (statistics != nullptr) {
    statistics->entropy.resize(calls_.size());
    statistics->support.resize(calls_.size());
  }
  for (std::size_t i = 0; i < calls_.size(); ++i) {
    const CallHeads& call = calls_[i];
    AttentionParams p = ParamsOf(call, rows, queries, inputs);
    const MapNumbers numbers = NumbersOf(call, inputs);
    SetMap(p, call, numbers);
    AttentionOutputs outputs;
    outputs.out = HeadsIn<MutableArray4>(out, 0, 0, call, rows.length);
    if (keep != nullptr) {
      keep->tau[i] = at::empty({rows.rows * call.count}, at::kDouble);
      outputs.tau = keep->tau[i].mutable_data_ptr<double>();
      const std::size_t budget = PatternOf(call) != nullptr ? 0 : kListBudget;
      const auto bytes = static_cast<std::int64_t>(AttentionSavedBytes({}, p, budget));
      keep->lists[i] = at::empty({bytes}, at::kByte);
      outputs.saved = bytes > 0 ? keep->lists[i].data_ptr() : nullptr;
      outputs.saved_bytes = static_cast<std::size_t>(bytes);
    }
    if (statistics != nullptr) {
      const auto count = static_cast<std::size_t>(rows.rows * call.count);
      statistics->entropy[i].resize(count);
      statistics->support[i].resize(count);
      outputs.entropy = statistics->entropy[i].data();
      outputs.support_size = statistics->support[i].data();
    }
    Attend(call, p, visible, outputs);
  }
}

Tensors LayerAttention::Backward(const Inputs& inputs, const SequenceRows& rows, Queries queries,
                                 const Tensor& d_out, const Kept& kept) const {
  const std::int64_t inner = heads_ * head_dim_;
  const Tensor d_projected = at::empty_like(inputs.projected);
  const Tensor d_memory =
      inputs.memory.projected.defined() ? at::empty_like(inputs.memory.projected) : Tensor();
  // What scalings read has its gradient from them.
  d_projected.narrow(1, parts_ * inner, columns_ - parts_ * inner).zero_();
  if (queries == Queries::kLast) {  // queries that did not attend
    for (std::size_t b = 0; b < rows.begin.size(); ++b) {
      d_projected.narrow(0, rows.begin[b], rows.last_begin[b] - rows.begin[b])
          .narrow(1, 0, inner)
          .zero_();
    }
  }
  const auto zeros = [](const Tensor& like) {
    return like.defined() ? at::zeros_like(like) : like;
  };
  const Tensor d_c = zeros(inputs.c), d_alpha = zeros(inputs.alpha),
               d_slopes = zeros(inputs.slopes), d_sinks = zeros(inputs.sinks);
  for (std::size_t i = 0; i < calls_.size(); ++i) {
    const CallHeads& call = calls_[i];
    AttentionParams p = ParamsOf(call, rows, queries, inputs);
    const MapNumbers numbers = NumbersOf(call, inputs);
    SetMap(p, call, numbers);
    AttentionGradients g;
    g.d_out = HeadsIn<ConstArray4>(d_out, 0, 0, call, rows.length);
    g.tau = kept.tau[i].const_data_ptr<double>();
    g.saved = kept.lists[i].numel() > 0 ? kept.lists[i].data_ptr() : nullptr;
    g.saved_bytes = static_cast<std::size_t>(kept.lists[i].numel());
    const std::int64_t keys = inputs.KeyRows(rows).length;
    const Tensor& d_keys = d_memory.defined() ? d_memory : d_projected;
    g.dq = HeadsIn<MutableArray4>(d_projected, 0, 0, call, rows.length);
    g.dk = HeadsIn<MutableArray4>(d_keys, 0, KeysOf(inputs).first, call, keys);
    g.dv = HeadsIn<MutableArray4>(d_keys, 0, ValuesOf(inputs).first, call, keys);
    const std::int64_t batch = p.ranges.packed ? 1 : rows.Sequences();
    const auto count = static_cast<std::size_t>(call.count);
    const auto doubles = [](bool wanted, std::size_t size) {
      return std::vector<double>(wanted ? size : 0);
    };
    std::vector<double> scale =
        doubles(d_c.defined(), static_cast<std::size_t>(rows.rows * call.count));
    std::vector<double> slopes =
        doubles(learns_slope_.defined(), static_cast<std::size_t>(batch) * count);
    std::vector<double> alpha = doubles(learns_alpha_.defined() && p.map == RowMap::kEntmax, count);
    std::vector<double> sink = doubles(learns_sink_.defined() && !numbers.sinks.empty(), count);
    const auto data = [](std::vector<double>& of) { return of.empty() ? nullptr : of.data(); };
    g.d_length_scale = data(scale);
    g.d_slopes = data(slopes);
    g.d_alpha = data(alpha);
    g.d_sink = data(sink);
    AttendBackward(call, p, g);

    // [batch, heads, length] -> [rows, heads]
    const std::int64_t length = p.q_len;
    for (std::int64_t b = 0; b < batch && !scale.empty(); ++b) {
      for (std::int64_t h = 0; h < call.count; ++h) {
        const double* from = scale.data() + (b * call.count + h) * length;
        float* to = Data(d_c) + b * length * heads_ + call.first + h * call.step;
        for (std::int64_t r = 0; r < length; ++r) to[r * heads_] = static_cast<float>(from[r]);
      }
    }
    for (std::size_t h = 0; h < count; ++h) {
      const std::int64_t head = call.first + static_cast<std::int64_t>(h) * call.step;
      double slope = 0.0;
      for (std::size_t at = h; at < slopes.size(); at += count) slope += slopes[at];
      if (!slopes.empty()) Data(d_slopes)[head] = static_cast<float>(slope);
      if (!alpha.empty()) d_alpha.mutable_data_ptr<double>()[head] = alpha[h];
      if (!sink.empty()) d_sinks.mutable_data_ptr<double>()[head] = sink[h];
    }
  }
  return {d_projected, d_c, d_alpha, d_slopes, d_sinks, d_memory};
}

// ---- without a gradient

Tensor LayerAttention::Look(const Inputs& inputs, const SequenceRows& rows, Queries queries,
                            Statistics* statistics, const Tensor& visible) const {
  const Tensor mask = Checked(rows, inputs, visible), out = OutputOf(inputs);
  Forward(inputs, rows, queries, out, nullptr, statistics, mask);
  return out;
}

void LayerAttention::Append(const Columns& keys, const Columns& values, const SequenceRows& rows,
                            const CacheLayer& cached) const {
  for (std::size_t b = 0; b < rows.begin.size(); ++b) {
    const auto array = [&](const Columns& columns) {
      return HeadsIn<ConstArray4>(columns.matrix, rows.begin[b], columns.first, {0, 1, heads_}, 0);
    };
    cached.cache.Append(Threads(), cached.sequences[b], cached.layer, array(keys), array(values),
                        rows.end[b] - rows.begin[b]);
  }
}

Tensor LayerAttention::ExtendOnHost(const Inputs& inputs, const SequenceRows& rows,
                                    const CacheLayer& cached) const {
  const Tensor out = OutputOf(inputs);
  const std::int64_t counted = rows.end.back();
  if (counted < rows.rows) out.narrow(0, counted, rows.rows - counted).zero_();
  if (sight_ == Sight::kOther) {
    // The queries of a call are the newest tokens of their sequence, so that a row which sees all
    // of it stands for itself.
    std::vector<KvCache::Sequence> of_rows;
    for (std::size_t b = 0; b < rows.begin.size(); ++b) {
      of_rows.insert(of_rows.end(), static_cast<std::size_t>(rows.end[b] - rows.begin[b]),
                     cached.sequences[b]);
    }
    for (const CallHeads& call : calls_) {
      ExtendCall({0, of_rows.size(), 0, 1}, {cached.cache, of_rows, cached.layer}, call, inputs,
                 out);
    }
    return out;
  }
  bool fresh = true;
  for (const KvCache::Sequence sequence : cached.sequences) {
    fresh = fresh && cached.cache.Length(sequence, cached.layer) == 0;
  }
  Append(KeysOf(inputs), ValuesOf(inputs), rows, cached);
  if (fresh) {  // the projection holds all there is
    Forward(inputs, rows, Queries::kAll, out, nullptr, nullptr, {});
    return out;
  }
  for (std::size_t b = 0; b < rows.begin.size();) {
    Chunk chunk{b, b + 1, rows.begin[b], rows.end[b] - rows.begin[b]};
    while (chunk.last < rows.begin.size() &&
           rows.end[chunk.last] - rows.begin[chunk.last] == chunk.count) {
      ++chunk.last;
    }
    for (const CallHeads& call : calls_) ExtendCall(chunk, cached, call, inputs, out);
    b = chunk.last;
  }
  return out;
}

void LayerAttention::ExtendCall(const Chunk& chunk, const CacheLayer& cached, const CallHeads& call,
                                const Inputs& inputs, const Tensor& out) const {
  const MapNumbers numbers = NumbersOf(call, inputs);
  // The keys that a pattern hides depend on the number of a sequence's tokens.
  const bool apart = PatternOf(call) != nullptr;
  for (std::size_t b = chunk.first; b < chunk.last; b = apart ? b + 1 : chunk.last) {
    const std::int64_t begin =
        chunk.begin + static_cast<std::int64_t>(b - chunk.first) * chunk.count;
    DecodeParams p;
    p.layer = cached.layer;
    p.sequences = cached.sequences.data() + b;
    p.batch = apart ? 1 : static_cast<std::int64_t>(chunk.last - b);
    p.heads = p.kv_heads = call.count;
    p.kv_first = call.first;
    p.kv_step = call.step;
    p.q_len = chunk.count;
    p.q = HeadsIn<ConstArray4>(inputs.projected, begin, 0, call, chunk.count);
    p.terms = TermsOf(call, begin, chunk.count, inputs);
    SetMap(p, call, numbers);
    SetPattern(call, cached.cache.Length(cached.sequences[b], cached.layer) - chunk.count, p.mask);
    Decode(Threads(), cached.cache, p,
           {.out = HeadsIn<MutableArray4>(out, begin, 0, call, chunk.count)});
  }
}

}  // namespace tsallis::lab
