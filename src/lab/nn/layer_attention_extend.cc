// Attention of a layer's new tokens on a cache.
#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>

#include "lab/nn/layer_attention.h"

namespace tsallis::lab {
namespace {

// What Decode() takes.
bool OnPages(const AttentionConfig& head, const std::vector<double>& alphas) {
  const std::string& map = head.map;
  if (head.pattern.kind != "none") return false;
  if (map == "softmax") return true;
  return map == "entmax" && std::all_of(alphas.begin(), alphas.end(), [](double alpha) {
           return alpha == 1.0 || (alpha >= 1.1 && alpha <= 4.0);
         });
}

}  // namespace

void LayerAttention::Extend(const Context& context, const SequenceRows& rows, const Grown& grown,
                            const at::Tensor& projected, const at::Tensor& out, Kept& kept) const {
  const std::int64_t inner = heads_ * head_dim_;
  const std::int64_t counted = rows.end.back();
  if (counted < rows.rows) out.narrow(0, counted, rows.rows - counted).zero_();
  bool fresh = true;
  for (const KvCache::Sequence sequence : grown.sequences) {
    fresh = fresh && grown.cache.Length(sequence, grown.layer) == 0;
  }
  for (std::size_t b = 0; b < rows.begin.size(); ++b) {
    const auto part = [&](std::int64_t index) {
      return ConstArray4{(CellsOf(projected) + (rows.begin[b] * columns_ + index * inner)).data,
                         DTypeOf(projected),
                         {0, head_dim_, columns_, 1}};
    };
    grown.cache.Append(context, grown.sequences[b], grown.layer, part(1), part(2),
                       rows.end[b] - rows.begin[b]);
  }
  if (fresh) {  // the projection holds all there is
    Forward(context, rows, Queries::kAll, projected, out, false, kept);
    return;
  }
  Scale(rows, projected, kept);
  std::vector<Call> on_pages;
  std::vector<Call> on_copy;
  for (const Call& call : calls_) {
    const AttentionConfig& head = head_[static_cast<std::size_t>(call.first)];
    (OnPages(head, NumbersOf(call).alphas) ? on_pages : on_copy).push_back(call);
  }
  for (std::size_t b = 0; b < rows.begin.size();) {
    Chunk chunk{b, b + 1, rows.begin[b], rows.end[b] - rows.begin[b]};
    while (chunk.last < rows.begin.size() &&
           rows.end[chunk.last] - rows.begin[chunk.last] == chunk.count) {
      ++chunk.last;
    }
    if (!on_pages.empty()) ExtendOnPages(context, chunk, grown, on_pages, projected, out, kept.c);
    for (const Call& call : on_copy) {
      ExtendOnCopy(context, chunk, grown, call, projected, out, kept.c);
    }
    b = chunk.last;
  }
}

// Maps share a call, for softmax is alpha = 1. Where heads differ in more, all heads are computed
// for each kind, and those of the kind are taken.
void LayerAttention::ExtendOnPages(const Context& context, const Chunk& chunk, const Grown& grown,
                                   const std::vector<Call>& calls, const at::Tensor& projected,
                                   const at::Tensor& out, const at::Tensor& c) const {
  const std::int64_t inner = heads_ * head_dim_;
  const auto sequences = static_cast<std::int64_t>(chunk.last - chunk.first);
  std::vector<double> alphas(static_cast<std::size_t>(heads_), 1.0);
  std::vector<const AttentionConfig*> kinds;  // heads that differ in what distances do
  std::int64_t served = 0;
  for (const Call& call : calls) {
    const AttentionConfig& head = head_[static_cast<std::size_t>(call.first)];
    const std::vector<double> own = NumbersOf(call).alphas;
    for (std::int64_t h = 0; h < call.count && head.map != "softmax"; ++h) {
      alphas[static_cast<std::size_t>(call.first + h * call.step)] =
          own[static_cast<std::size_t>(h)];
    }
    served += call.count;
    const auto same = [&](const AttentionConfig* kind) { return SameDistances(*kind, head); };
    if (std::none_of(kinds.begin(), kinds.end(), same)) kinds.push_back(&head);
  }
  const bool softmax =
      std::all_of(alphas.begin(), alphas.end(), [](double alpha) { return alpha == 1.0; });
  const bool direct = kinds.size() == 1 && served == heads_;
  const at::Tensor target = direct ? out.narrow(0, chunk.begin, sequences * chunk.count)
                                   : at::empty({sequences * chunk.count, inner}, out.options());
  const MapNumbers all = NumbersOf({0, 1, heads_});
  for (const AttentionConfig* kind : kinds) {
    DecodeParams params;
    params.layer = grown.layer;
    params.sequences = grown.sequences.data() + chunk.first;
    params.batch = sequences;
    params.heads = heads_;
    params.q_len = chunk.count;
    params.q = {(CellsOf(projected) + chunk.begin * columns_).data,
                DTypeOf(projected),
                {chunk.count * columns_, head_dim_, columns_, 1}};
    params.map = softmax ? RowMap::kSoftmax : RowMap::kEntmax;
    params.alpha_per_head = alphas.data();
    params.terms = TermsOf({0, 1, heads_}, chunk.begin, chunk.count, c);
    SetDistances(*kind, params.terms);
    if (!all.sinks.empty()) params.terms.sink = all.sinks.data();
    Decode(context, grown.cache, params,
           {.out = {target.data_ptr(), DTypeOf(out), {chunk.count * inner, head_dim_, inner, 1}}});
    for (const Call& call : calls) {
      if (direct || !SameDistances(head_[static_cast<std::size_t>(call.first)], *kind)) continue;
      for (std::int64_t h = 0; h < call.count; ++h) {
        const std::int64_t column = (call.first + h * call.step) * head_dim_;
        out.narrow(0, chunk.begin, sequences * chunk.count)
            .narrow(1, column, head_dim_)
            .copy_(target.narrow(1, column, head_dim_));
      }
    }
  }
}

void LayerAttention::ExtendOnCopy(const Context& context, const Chunk& chunk, const Grown& grown,
                                  const Call& call, const at::Tensor& projected,
                                  const at::Tensor& out, const at::Tensor& c) const {
  const std::int64_t inner = heads_ * head_dim_;
  const MapNumbers numbers = NumbersOf(call);
  for (std::size_t b = chunk.first; b < chunk.last; ++b) {
    const auto index = static_cast<std::int64_t>(b - chunk.first);
    const std::int64_t begin = chunk.begin + index * chunk.count;
    const std::int64_t tokens = grown.cache.Length(grown.sequences[b], grown.layer);
    const at::Tensor copy = at::empty({2, heads_, tokens, head_dim_}, projected.options());
    const auto rows = [&](std::int64_t part, std::int64_t head, std::int64_t step) {
      return MutableArray4{
          copy[part][head].data_ptr(), DTypeOf(copy), {0, step * tokens * head_dim_, head_dim_, 1}};
    };
    grown.cache.Read(grown.sequences[b], grown.layer, 0, tokens, rows(0, 0, 1), rows(1, 0, 1));
    AttentionParams p;
    p.batch = 1;
    p.heads = p.kv_heads = call.count;
    p.q_len = chunk.count;
    p.k_len = tokens;
    p.head_dim = p.value_dim = head_dim_;
    p.q = {(CellsOf(projected) + (begin * columns_ + call.first * head_dim_)).data,
           DTypeOf(projected),
           {0, call.step * head_dim_, columns_, 1}};
    p.k = rows(0, call.first, call.step);
    p.v = rows(1, call.first, call.step);
    p.mask.causal = true;
    p.terms = TermsOf(call, begin, chunk.count, c);
    SetMap(p, call, numbers);
    SetPattern(call, tokens - chunk.count, p.mask);
    AttentionForward(context, p,
                     {.out = {(CellsOf(out) + (begin * inner + call.first * head_dim_)).data,
                              DTypeOf(out),
                              {0, call.step * head_dim_, inner, 1}}});
  }
}

}  // namespace tsallis::lab
