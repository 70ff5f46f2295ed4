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
  // Both must outlive the pass.
  Pass(const LayerAttention& attention, const SequenceRows& rows, Queries queries)
      : attention_(attention), rows_(rows), queries_(queries) {}

  Tensors Forward(const Tensors& in, bool keep) override {
    inputs_ = {.stream = {},
               .projected = in[0],
               .c = in[1],
               .alpha = in[2],
               .slopes = in[3],
               .sinks = in[4]};
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
  Inputs inputs_{};
  Kept kept_;
};

Tensor LayerAttention::OnHost(const Inputs& inputs, const SequenceRows& rows,
                              Queries queries) const {
  return Record(std::make_unique<Pass>(*this, rows, queries),
                {inputs.projected, inputs.c, inputs.alpha, inputs.slopes, inputs.sinks})
      .front();
}

Tensor LayerAttention::OutputOf(const Inputs& inputs) const {
  return at::empty({inputs.projected.size(0), heads_ * head_dim_}, inputs.projected.options());
}

AttentionParams LayerAttention::ParamsOf(const CallHeads& call, const SequenceRows& rows,
                                         Queries queries, const Inputs& inputs) const {
  const std::int64_t inner = heads_ * head_dim_;
  AttentionParams p;
  p.batch = rows.Sequences();
  p.heads = p.kv_heads = call.count;
  const bool last = queries == Queries::kLast;
  const bool packed = rows.packed || last;
  p.q_len = p.k_len = packed ? rows.rows : rows.length;
  p.head_dim = p.value_dim = head_dim_;
  const Cells cells = CellsOf(inputs.projected);
  const auto view = [&](std::int64_t part) {
    return ConstArray4{(cells + (part * inner + call.first * head_dim_)).data,
                       DTypeOf(inputs.projected),
                       {rows.length * columns_, call.step * head_dim_, columns_, 1}};
  };
  p.q = view(0);
  p.k = view(1);
  p.v = view(2);
  p.mask.causal = true;
  if (packed) {
    p.ranges = {(last ? rows.last_begin : rows.begin).data(), rows.end.data(), rows.begin.data(),
                rows.end.data(), true};
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
    outputs.out = {
        (CellsOf(out) + call.first * head_dim_).data,
        DTypeOf(out),
        {rows.length * heads_ * head_dim_, call.step * head_dim_, heads_ * head_dim_, 1}};
    if (keep != nullptr) {
      keep->tau[i] = at::empty({rows.rows * call.count}, at::kDouble);
      outputs.tau = keep->tau[i].mutable_data_ptr<double>();
      const std::size_t budget = PatternOf(call) != nullptr ? 0 : kListBudget;
      const auto bytes = static_cast<std::int64_t>(AttentionSavedBytes(p, budget));
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
  // What scalings read has its gradient from them.
  d_projected.narrow(1, 3 * inner, columns_ - 3 * inner).zero_();
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
    g.d_out = {(CellsOf(d_out) + call.first * head_dim_).data,
               DTypeOf(d_out),
               {rows.length * inner, call.step * head_dim_, inner, 1}};
    g.tau = kept.tau[i].const_data_ptr<double>();
    g.saved = kept.lists[i].numel() > 0 ? kept.lists[i].data_ptr() : nullptr;
    g.saved_bytes = static_cast<std::size_t>(kept.lists[i].numel());
    const auto view = [&](std::int64_t part) {
      return MutableArray4{(CellsOf(d_projected) + (part * inner + call.first * head_dim_)).data,
                           DTypeOf(d_projected),
                           {rows.length * columns_, call.step * head_dim_, columns_, 1}};
    };
    g.dq = view(0);
    g.dk = view(1);
    g.dv = view(2);
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
  return {d_projected, d_c, d_alpha, d_slopes, d_sinks};
}

// ---- without a gradient

Tensor LayerAttention::Look(const Inputs& inputs, const SequenceRows& rows, Queries queries,
                            Statistics* statistics, const Tensor& visible) const {
  const Tensor mask = Checked(rows, visible), out = OutputOf(inputs);
  Forward(inputs, rows, queries, out, nullptr, statistics, mask);
  return out;
}

Tensor LayerAttention::Extend(const Inputs& inputs, const SequenceRows& rows,
                              const CacheLayer& cached) const {
  const std::int64_t inner = heads_ * head_dim_;
  const Tensor out = OutputOf(inputs);
  const std::int64_t counted = rows.end.back();
  if (counted < rows.rows) out.narrow(0, counted, rows.rows - counted).zero_();
  bool fresh = true;
  for (const KvCache::Sequence sequence : cached.sequences) {
    fresh = fresh && cached.cache.Length(sequence, cached.layer) == 0;
  }
  for (std::size_t b = 0; b < rows.begin.size(); ++b) {
    const auto part = [&](std::int64_t index) {
      return ConstArray4{
          (CellsOf(inputs.projected) + (rows.begin[b] * columns_ + index * inner)).data,
          DTypeOf(inputs.projected),
          {0, head_dim_, columns_, 1}};
    };
    cached.cache.Append(Threads(), cached.sequences[b], cached.layer, part(1), part(2),
                        rows.end[b] - rows.begin[b]);
  }
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
  const std::int64_t inner = heads_ * head_dim_;
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
    p.q = {(CellsOf(inputs.projected) + (begin * columns_ + call.first * head_dim_)).data,
           DTypeOf(inputs.projected),
           {chunk.count * columns_, call.step * head_dim_, columns_, 1}};
    p.terms = TermsOf(call, begin, chunk.count, inputs);
    SetMap(p, call, numbers);
    SetPattern(call, cached.cache.Length(cached.sequences[b], cached.layer) - chunk.count, p.mask);
    Decode(Threads(), cached.cache, p,
           {.out = {(CellsOf(out) + (begin * inner + call.first * head_dim_)).data,
                    DTypeOf(out),
                    {chunk.count * inner, call.step * head_dim_, inner, 1}}});
  }
}

}  // namespace tsallis::lab
