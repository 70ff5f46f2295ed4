// Attention of a layer's new tokens on a cache.
#include <ATen/ATen.h>

#include "lab/nn/layer_attention.h"

namespace tsallis::lab {

void LayerAttention::Extend(const Context& context, const SequenceRows& rows,
                            const CacheLayer& cached, const at::Tensor& projected,
                            const at::Tensor& out, Kept& kept) const {
  const std::int64_t inner = heads_ * head_dim_;
  const std::int64_t counted = rows.end.back();
  if (counted < rows.rows) out.narrow(0, counted, rows.rows - counted).zero_();
  bool fresh = true;
  for (const KvCache::Sequence sequence : cached.sequences) {
    fresh = fresh && cached.cache.Length(sequence, cached.layer) == 0;
  }
  for (std::size_t b = 0; b < rows.begin.size(); ++b) {
    const auto part = [&](std::int64_t index) {
      return ConstArray4{(CellsOf(projected) + (rows.begin[b] * columns_ + index * inner)).data,
                         DTypeOf(projected),
                         {0, head_dim_, columns_, 1}};
    };
    cached.cache.Append(context, cached.sequences[b], cached.layer, part(1), part(2),
                        rows.end[b] - rows.begin[b]);
  }
  if (fresh) {  // the projection holds all there is
    Forward(context, rows, Queries::kAll, projected, out, false, kept);
    return;
  }
  Scale(rows, projected, kept);
  for (std::size_t b = 0; b < rows.begin.size();) {
    Chunk chunk{b, b + 1, rows.begin[b], rows.end[b] - rows.begin[b]};
    while (chunk.last < rows.begin.size() &&
           rows.end[chunk.last] - rows.begin[chunk.last] == chunk.count) {
      ++chunk.last;
    }
    for (const CallHeads& call : calls_)
      ExtendCall(context, chunk, cached, call, projected, out, kept.c);
    b = chunk.last;
  }
}

void LayerAttention::ExtendCall(const Context& context, const Chunk& chunk,
                                const CacheLayer& cached, const CallHeads& call,
                                const at::Tensor& projected, const at::Tensor& out,
                                const at::Tensor& c) const {
  const std::int64_t inner = heads_ * head_dim_;
  const MapNumbers numbers = NumbersOf(call);
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
    p.q = {(CellsOf(projected) + (begin * columns_ + call.first * head_dim_)).data,
           DTypeOf(projected),
           {chunk.count * columns_, call.step * head_dim_, columns_, 1}};
    p.terms = TermsOf(call, begin, chunk.count, c);
    SetMap(p, call, numbers);
    SetPattern(call, cached.cache.Length(cached.sequences[b], cached.layer) - chunk.count, p.mask);
    Decode(context, cached.cache, p,
           {.out = {(CellsOf(out) + (begin * inner + call.first * head_dim_)).data,
                    DTypeOf(out),
                    {chunk.count * inner, call.step * head_dim_, inner, 1}}});
  }
}

}  // namespace tsallis::lab
