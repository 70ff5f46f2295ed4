// A block of queries over strips of keys: scores, weights, what they add up to. Included once per
// instruction set.
#if defined(TSALLIS_ATTENTION_CPU_STREAM_BLOCK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TSALLIS_ATTENTION_CPU_STREAM_BLOCK_INL_H_
#undef TSALLIS_ATTENTION_CPU_STREAM_BLOCK_INL_H_
#else
#define TSALLIS_ATTENTION_CPU_STREAM_BLOCK_INL_H_
#endif

#include <algorithm>
#include <cmath>

#include "attention/cpu/stream/maps-inl.h"
#include "attention/cpu/terms-inl.h"

#if TSALLIS_STREAM_HERE
HWY_BEFORE_NAMESPACE();
namespace tsallis {
namespace HWY_NAMESPACE {

// ---- weights ------------------------------------------------------------------------------------

// The nearest bf16 to each lane, in the upper half of the word, and what is left of it.
struct SplitWords {
  HWY_INLINE explicit SplitWords(VF v) {
    const DU du;
    const auto half = hn::Set(du, 0x8000u), upper = hn::Set(du, 0xFFFF0000u);
    high = hn::And(hn::Add(hn::BitCast(du, v), half), upper);
    const VF rest = hn::Sub(v, hn::BitCast(DF(), high));
    low = hn::And(hn::Add(hn::BitCast(du, rest), half), upper);
  }
  hn::Vec<DU> high, low;
};

// Weights of two neighbouring keys as pairs, both parts.
HWY_INLINE void StorePairs(const SplitWords& first, const SplitWords& second, std::uint32_t* to) {
  const DU du;
  hn::Store(hn::Or(hn::ShiftRight<16>(first.high), second.high), du, to);
  hn::Store(hn::Or(hn::ShiftRight<16>(first.low), second.low), du, to + kPartPairs);
}

// Offset of the pairs of keys j and j + 1.
HWY_INLINE std::int64_t PairOffset(std::int64_t j, std::int64_t group) {
  return (j / kDepth * kGroups + group) * kTileFloats + j % kDepth / 2 * stream::kLanes;
}

// ---- a block of queries -------------------------------------------------------------------------

// Scores are z, in units of StreamUnit().
struct StreamBlock {
  StreamBlock(const stream::StreamCall& stream_call, const stream::PackedKv& packed,
              std::int64_t query_head, std::int64_t q_begin, std::int64_t rows)
      : call(stream_call),
        params(call.params),
        head(packed),
        h(query_head),
        row(q_begin),
        count(rows),
        terms(HeadTerms::Of(params, head.sequence, h, call.distances,
                            StreamUnit(params, query_head))) {
    const Sequence& sequence = head.sequence;
    const std::int64_t first_key = sequence.k.begin;
    distance = sequence.Distance(row, first_key);
    begin = head.keys;
    seen_end = head.keys;
    const double scale = ScaleOf(params);
    double largest = scale;
    for (std::int64_t i = 0; i < stream::kRows; ++i) {
      const Span span = i < count ? sequence.VisibleKeys(params.mask, row + i) : Span();
      // A row that sees nothing may name any empty span.
      const std::int64_t from = span.size() == 0 ? 0 : span.begin - first_key;
      const std::int64_t to = from + span.size();
      first[i] = static_cast<std::int32_t>(from);
      last[i] = static_cast<std::int32_t>(to);
      double factor = scale;
      if (i < count) {
        if (span.size() > 0) begin = std::min(begin, from);
        end = std::max(end, to);
        seen_begin = std::max(seen_begin, from);
        seen_end = std::min(seen_end, to);
        if (span.size() > 0) factor = RowFactor(params, sequence, h, row + i);
      }
      c_scale[i] = static_cast<float>(factor);
      factors[i] = static_cast<float>(factor * terms.unit);
      betas[i] = 1.0f;
      RaiseBound(&largest, std::abs(factor));
    }
    begin = begin / kDepth * kDepth;
    end = begin < end ? RoundUp(end, kDepth) : begin;
    // a_d of the usual scale-invariant term stays below 10 for any distance that memory holds.
    const double most = std::max(10.0, terms.distances.largest);
    reach = most * head.k_bound * static_cast<double>(params.head_dim) * largest;
    rest = std::abs(terms.slope) *
               (std::abs(static_cast<double>(distance)) + static_cast<double>(end)) +
           head.k_bound + head.v_bound;
  }

  // Scores, and their sums with values of this size, are finite beyond doubt; and no z exceeds 2^24
  // (reach has room for distances that count tenfold, and log2(e) is 1.44): beyond, it is rounded
  // by more than 1, and a multiply-add that rounds later puts the maximum's weight anywhere.
  bool IsSafe(double q_bound) const {
    return reach * q_bound + rest + q_bound < 1e30 && 0.15 * reach * q_bound < 0x1p24;
  }

  // Multiplies the scores of row i.
  void Sharpen(std::int64_t i, double beta) {
    factors[i] = static_cast<float>(factors[i] * beta);
    betas[i] = static_cast<float>(beta);
  }

  // Scores of keys [at, at + keys) are factors times products; else Adjust() has more to do.
  bool IsPlain(std::int64_t at, std::int64_t keys) const {
    return !terms.any() && at >= seen_begin && at + keys <= seen_end;
  }

  LaneTerms LaneTermsOf(std::int64_t group) const {
    return LaneTerms(terms, hn::Load(DF(), betas + group * stream::kLanes));
  }
  // Distance of a group's first query from key j.
  std::int64_t DistanceOf(std::int64_t group, std::int64_t j) const {
    return distance + group * stream::kLanes - j;
  }

  // Products to z: factors, terms and masks. scores: [kGroups][kStrip][kLanes].
  void Adjust(std::int64_t at, std::int64_t keys, float* scores) const {
    const DF d;
    const DI di;
    const VF none = hn::Set(d, -kInfinityF);
    for (std::int64_t group = 0; group < kGroups; ++group) {
      const LaneTerms lane_terms = LaneTermsOf(group);
      const VF factor = hn::Load(d, factors + group * stream::kLanes);
      const VI from = hn::Load(di, first + group * stream::kLanes);
      const VI to = hn::Load(di, last + group * stream::kLanes);
      float* HWY_RESTRICT z_at = scores + group * kGroupScores;
      for (std::int64_t j = at; j < at + keys; ++j, z_at += kLanes) {
        VF z = hn::Mul(hn::Load(d, z_at), factor);
        z = lane_terms.Score(z, DistanceOf(group, j));
        const VI key = hn::Set(di, static_cast<std::int32_t>(j));
        const auto seen = hn::AndNot(hn::Gt(from, key), hn::Gt(to, key));
        hn::Store(hn::IfThenElse(hn::RebindMask(d, seen), z, none), d, z_at);
      }
    }
  }

  const stream::StreamCall& call;
  const AttentionParams& params;
  const stream::PackedKv& head;
  std::int64_t h, row, count;
  HeadTerms terms;                            // in units of z
  std::int64_t distance = 0;                  // of the first query from key 0
  std::int64_t begin = 0, end = 0;            // whole tiles of keys that some query sees
  std::int64_t seen_begin = 0, seen_end = 0;  // keys that all of them see
  double reach = 0.0, rest = 0.0;
  HWY_ALIGN std::int32_t first[stream::kRows];
  HWY_ALIGN std::int32_t last[stream::kRows];  // one behind
  HWY_ALIGN float c_scale[stream::kRows];      // c scale
  HWY_ALIGN float factors[stream::kRows];      // the same in units of z, times beta
  HWY_ALIGN float betas[stream::kRows];        // of adaptive temperature; else 1
};

// The products of the block's queries, whose tiles are `columns`, with keys [at, at + keys).
template <class Tiles>
HWY_INLINE ProductSteps<Tiles> StreamProducts(const StreamBlock& block,
                                              const std::uint32_t* columns, std::int64_t at,
                                              std::int64_t keys, float* scores) {
  const std::int64_t chunks = stream::Widths(block.params).d_depth / kDepth;
  return {block.head.k_rows + at / 16 * chunks * kTileWords, columns, chunks, keys, scores};
}

// z less tau from the score: z or, if plain, a product. tau in two parts: [2][kRows].
template <class Map>
struct StreamWeight {
  HWY_INLINE StreamWeight(const StreamBlock& block, const Map& row_map, const float* tau,
                          bool is_plain, std::int64_t group)
      : map(row_map),
        factor(is_plain ? hn::Load(DF(), block.factors + group * stream::kLanes)
                        : hn::Set(DF(), 1.0f)),
        high(hn::Load(DF(), tau + group * stream::kLanes)),
        low(hn::Load(DF(), tau + stream::kRows + group * stream::kLanes)) {}
  HWY_INLINE VF Above(VF score) const { return hn::Sub(hn::MulSub(score, factor, high), low); }
  HWY_INLINE VF operator()(VF score) const { return map.Weight(Above(score)); }
  Map map;
  VF factor, high, low;
};

// Weights of a strip as pairs, and their sums; tiles work meanwhile. weigh(group): from a score to
// its weight.
template <class Tiles, class Weigh>
TSALLIS_STREAM_TILES void StreamWeights(std::int64_t keys, const float* scores, const Weigh& weigh,
                                        StripSum* sum, std::uint32_t* pairs,
                                        TileWork<Tiles>& work) {
  const DF d;
  const VF zero = hn::Zero(d);
  for (std::int64_t group = 0; group < kGroups; ++group) {
    const float* HWY_RESTRICT at = scores + group * kGroupScores;
    const auto weight = weigh(group);
    VF s[4] = {zero, zero, zero, zero};
    for (std::int64_t slot = 0; slot < keys; slot += kSlotKeys) {
      work.Slot();
      std::uint32_t* HWY_RESTRICT to = pairs + PairOffset(slot, group);
      for (std::int64_t j = slot; j < slot + kSlotKeys; j += 4, to += 2 * stream::kLanes) {
        VF p[4];
        HWY_UNROLL(4)
        for (std::int64_t i = 0; i < 4; ++i) {
          p[i] = weight(hn::Load(d, at + (j + i) * stream::kLanes));
          s[i] = hn::Add(s[i], p[i]);
        }
        StorePairs(SplitWords(p[0]), SplitWords(p[1]), to);
        StorePairs(SplitWords(p[2]), SplitWords(p[3]), to + stream::kLanes);
      }
    }
    sum[group].Add(hn::Add(hn::Add(s[0], s[1]), hn::Add(s[2], s[3])));
  }
}

// Entries with a weight > 0 and -sum p ln p of each lane. tau: [2][kRows]; support, entropy:
// [kRows].
template <class Tiles, class Map>
void StreamDescribe(const StreamBlock& block, const stream::Scratch& scratch, const Map& map,
                    const float* tau, float* support, float* entropy) {
  const DF d;
  const VF zero = hn::Zero(d), one = hn::Set(d, 1.0f);
  VF counts[kGroups] = {zero, zero}, sums[kGroups] = {zero, zero};
  for (std::int64_t at = block.begin; at < block.end; at += kStrip) {
    const std::int64_t keys = std::min(kStrip, block.end - at);
    RunSteps(StreamProducts<Tiles>(block, scratch.columns, at, keys, scratch.scores));
    block.Adjust(at, keys, scratch.scores);
    for (std::int64_t group = 0; group < kGroups; ++group) {
      const StreamWeight<Map> weight(block, map, tau, /*is_plain=*/false, group);
      VF sum = zero;
      for (std::int64_t j = 0; j < keys; ++j) {
        const VF above =
            weight.Above(hn::Load(d, scratch.scores + group * kGroupScores + j * stream::kLanes));
        const VF p = map.Weight(above);
        const auto positive = hn::Gt(p, zero);
        counts[group] = hn::Add(counts[group], hn::IfThenElseZero(positive, one));
        sum = hn::NegMulAdd(p, hn::IfThenElseZero(positive, map.Log(above, p)), sum);
      }
      sums[group] = hn::Add(sums[group], sum);
    }
  }
  for (std::int64_t group = 0; group < kGroups; ++group) {
    hn::StoreU(counts[group], d, support + group * stream::kLanes);
    hn::StoreU(sums[group], d, entropy + group * stream::kLanes);
  }
}

// sums: [tiles][kGroups] tiles.
HWY_INLINE void StreamShrink(const VF* shrink, std::int64_t tiles, float* HWY_RESTRICT sums) {
  const DF d;
  for (std::int64_t tile = 0; tile < tiles; ++tile) {
    for (std::int64_t group = 0; group < kGroups; ++group) {
      for (std::int64_t x = 0; x < kTileFloats; x += stream::kLanes, sums += stream::kLanes) {
        hn::Store(hn::Mul(hn::Load(d, sums), shrink[group]), d, sums);
      }
    }
  }
}

// scratch.sums = sum over all keys of weight times value, and the weights' sums. While the weights
// of a strip are computed, the tile unit finds the scores of the next and adds up the values of the
// one before.
template <class Tiles, class Tau>
void StreamMix(const StreamBlock& block, const stream::Scratch& scratch, Tau& tau, StripSum* sum) {
  const stream::PackedKv& head = block.head;
  const stream::Widths widths(block.params);
  const std::int64_t tiles = widths.e_padded / 16;
  std::fill_n(scratch.sums, tiles * kGroups * kTileFloats, 0.0f);
  const auto products = [&](std::int64_t at, float* scores) {
    return StreamProducts<Tiles>(block, scratch.columns, at, std::min(kStrip, block.end - at),
                                 scores);
  };
  const auto mix = [&](std::int64_t at, const std::uint32_t* pairs) {
    return MixSteps<Tiles>(head.v_columns + at / kDepth * tiles * kTileWords, tiles, pairs,
                           std::min(kStrip, block.end - at), scratch.sums);
  };
  float* scores = scratch.scores;
  float* next_scores = scratch.gradients;
  std::uint32_t* pairs = scratch.pairs;
  std::uint32_t* last_pairs = reinterpret_cast<std::uint32_t*>(scratch.rows);
  if (block.begin < block.end) RunSteps(products(block.begin, scores));
  for (std::int64_t at = block.begin; at < block.end; at += kStrip) {
    const std::int64_t keys = std::min(kStrip, block.end - at);
    const bool plain = block.IsPlain(at, keys);
    if (!plain) block.Adjust(at, keys, scores);
    const bool moved = tau.Move(plain, keys, scores, sum);
    TileWork<Tiles> work(
        at + kStrip < block.end ? products(at + kStrip, next_scores) : ProductSteps<Tiles>(),
        at > block.begin ? mix(at - kStrip, last_pairs) : MixSteps<Tiles>(),
        kGroups * keys / kSlotKeys);
    StreamWeights<Tiles>(
        keys, scores, [&](std::int64_t group) HWY_ATTR { return tau.At(plain, group); }, sum, pairs,
        work);
    if (moved) StreamShrink(tau.shrink(), tiles, scratch.sums);
    std::swap(scores, next_scores);
    std::swap(pairs, last_pairs);
  }
  if (block.begin < block.end) {
    const std::int64_t last = block.begin + (block.end - 1 - block.begin) / kStrip * kStrip;
    RunSteps(mix(last, last_pairs));
  }
}

// The results of a block, by row. tau: in units of z, two parts.
struct StreamRows {
  HWY_ALIGN float tau[2 * stream::kRows], mass[stream::kRows], top[stream::kRows];
};

// scratch.sums over the rows' masses to the output; tau, maximum and what `map` says of the
// weights.
template <class Tiles, class Map>
void StreamStore(const StreamBlock& block, const stream::Scratch& scratch, const Map& map,
                 const StreamRows& rows) {
  const DF d;
  const AttentionParams& params = block.params;
  const AttentionOutputs& outputs = *block.call.outputs;
  const stream::Widths widths(params);
  const std::int64_t b = block.head.sequence.array_batch, tiles = widths.e_padded / 16;
  HWY_ALIGN float factors[stream::kRows];
  for (std::int64_t group = 0; group * stream::kLanes < block.count; ++group) {
    const std::int64_t lane0 = group * stream::kLanes;
    const VF mass = hn::Load(d, rows.mass + lane0);
    hn::Store(hn::IfThenElseZero(hn::Gt(mass, hn::Zero(d)), hn::Div(hn::Set(d, 1.0f), mass)), d,
              factors + lane0);
    StreamRowsOut(scratch.sums, tiles, group, scratch.block);
    StoreRows(scratch.block, static_cast<std::size_t>(widths.e_padded), factors + lane0,
              static_cast<std::size_t>(std::min<std::int64_t>(block.count - lane0, stream::kLanes)),
              static_cast<std::size_t>(params.value_dim), outputs.out, b, block.h,
              block.row + lane0, false);
  }
  HWY_ALIGN float support[stream::kRows], entropy[stream::kRows];
  if (outputs.support_size != nullptr || outputs.entropy != nullptr) {
    StreamDescribe<Tiles>(block, scratch, map, rows.tau, support, entropy);
  }
  const std::int64_t index = RowIndex(params, block.head.sequence, block.h, block.row);
  for (std::int64_t i = 0; i < block.count; ++i) {
    if (outputs.maximum != nullptr) {
      outputs.maximum[index + i] = static_cast<double>(rows.top[i]) / block.terms.unit;
    }
    if (outputs.support_size != nullptr) {
      outputs.support_size[index + i] = static_cast<std::int64_t>(support[i]);
    }
    if (outputs.entropy != nullptr) outputs.entropy[index + i] = entropy[i];
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tsallis
HWY_AFTER_NAMESPACE();
#endif  // TSALLIS_STREAM_HERE

#endif  // per-target include guard
