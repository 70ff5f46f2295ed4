// A block of queries over panels of keys: scores, weights, the forward pass. Included once per instruction
// set.
#if defined(TSALLIS_ATTENTION_STREAM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TSALLIS_ATTENTION_STREAM_INL_H_
#undef TSALLIS_ATTENTION_STREAM_INL_H_
#else
#define TSALLIS_ATTENTION_STREAM_INL_H_
#endif

#include <algorithm>
#include <cmath>

#include "attention/cpu/stream_tiles-inl.h"
#include "simplex/map.h"

#if TSALLIS_STREAM_HERE
HWY_BEFORE_NAMESPACE();
namespace tsallis {
namespace HWY_NAMESPACE {

// ---- weights ------------------------------------------------------------------------------------

// 2^x for x <= 1, 0 below -126 (and for -inf); error below 2 ulp.
HWY_INLINE VF Exp2(VF x) {
  const DF d;
  const DI di;
  const auto alive = hn::Gt(x, hn::Set(d, -126.0f));
  // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits.
  const VF magic = hn::Set(d, 12582912.0f);
  const VF shifted = hn::Add(x, magic);
  const VF r = hn::Sub(x, hn::Sub(shifted, magic));
  // Least relative error on [-1/2, 1/2]: 7.5e-8.
  VF e = hn::Set(d, 1.32764715e-3f);
  e = hn::MulAdd(e, r, hn::Set(d, 9.67554133e-3f));
  e = hn::MulAdd(e, r, hn::Set(d, 5.55071327e-2f));
  e = hn::MulAdd(e, r, hn::Set(d, 2.40221197e-1f));
  e = hn::MulAdd(e, r, hn::Set(d, 6.93146967e-1f));
  e = hn::MulAdd(e, r, hn::Set(d, 1.00000007f));
  const auto scaled = hn::Add(hn::BitCast(di, e), hn::ShiftLeft<23>(hn::BitCast(di, shifted)));
  return hn::IfThenElseZero(alive, hn::BitCast(d, scaled));
}

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

// Where pairs of keys j and j + 1 go.
HWY_INLINE std::int64_t PairOffset(std::int64_t j, std::int64_t group) {
  return (j / kDepth * kGroups + group) * kTileFloats + j % kDepth / 2 * stream::kLanes;
}

// ---- a block of queries -------------------------------------------------------------------------

// Scores are in base 2: z = s log2(e).
struct StreamBlock {
  StreamBlock(const stream::Call& stream_call, const stream::PackedKv& packed,
              std::int64_t query_head, std::int64_t q_begin, std::int64_t rows)
      : call(stream_call),
        params(call.params),
        head(packed),
        h(query_head),
        row(q_begin),
        count(rows) {
    const Sequence& sequence = head.sequence;
    const std::int64_t first_key = sequence.k.begin, b = sequence.array_batch;
    distance = sequence.Distance(row, first_key);
    begin = head.keys;
    seen_end = head.keys;
    const ConstArray4& c = params.terms.length_scale;
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
        if (c.data != nullptr && span.size() > 0) {
          factor *= LoadElement<double>(c.data, c.dtype, Offset(c.strides, b, h, row + i));
        }
      }
      c_scale[i] = static_cast<float>(factor);
      factors[i] = static_cast<float>(factor * kLog2E);
      betas[i] = 1.0f;
      RaiseBound(&largest, std::abs(factor));
    }
    begin = begin / kDepth * kDepth;
    end = begin < end ? stream::RoundUp(end, kDepth) : begin;
    const ConstArray4& slopes = params.terms.alibi_slopes;
    if (slopes.data != nullptr) {
      slope = LoadElement<double>(slopes.data, slopes.dtype, Offset(slopes.strides, b, h, 0));
    }
    terms = slope != 0.0 || !call.distances.empty();
    // a_d of the scale-invariant term stays below 10 for any distance that memory holds.
    reach = 10.0 * head.k_bound * static_cast<double>(params.head_dim) * largest;
    rest = std::abs(slope) * (std::abs(static_cast<double>(distance)) + static_cast<double>(end)) +
           head.k_bound + head.v_bound;
  }

  // Scores, and their sums with values of this size, are finite beyond doubt; and no z exceeds 2^24 (reach has
  // room for distances that count tenfold, and log2(e) is 1.44): beyond, it is rounded by more than 1, and a
  // multiply-add that rounds later puts the maximum's weight anywhere.
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
    return !terms && at >= seen_begin && at + keys <= seen_end;
  }

  // Products to z: factors, terms and masks. scores: [kGroups][kPanel][kLanes].
  void Adjust(std::int64_t at, std::int64_t keys, float* scores) const {
    const DF d;
    const DI di;
    const VF none = hn::Set(d, -kInfinityF);
    for (std::int64_t group = 0; group < kGroups; ++group) {
      const VF beta = hn::Load(d, betas + group * stream::kLanes);
      const VF minus_slope = hn::Mul(hn::Set(d, static_cast<float>(-slope * kLog2E)), beta);
      const VF log2e = hn::Mul(hn::Set(d, static_cast<float>(kLog2E)), beta);
      const VF factor = hn::Load(d, factors + group * stream::kLanes);
      const VI from = hn::Load(di, first + group * stream::kLanes);
      const VI to = hn::Load(di, last + group * stream::kLanes);
      const VF lane = hn::Iota(d, static_cast<float>(group * stream::kLanes));
      float* HWY_RESTRICT z_at = scores + group * kGroupScores;
      for (std::int64_t j = at; j < at + keys; ++j, z_at += kLanes) {
        VF z = hn::Mul(hn::Load(d, z_at), factor);
        const std::int64_t apart = distance - j;
        if (!call.distances.empty()) {
          const std::size_t i =
              static_cast<std::size_t>(apart + group * stream::kLanes - call.distances.least);
          z = hn::MulAdd(z, hn::LoadU(d, call.distances.a.data() + i),
                         hn::Mul(log2e, hn::LoadU(d, call.distances.m.data() + i)));
        }
        const VF far = hn::Abs(hn::Add(lane, hn::Set(d, static_cast<float>(apart))));
        z = hn::MulAdd(minus_slope, far, z);
        const VI key = hn::Set(di, static_cast<std::int32_t>(j));
        const auto seen = hn::AndNot(hn::Gt(from, key), hn::Gt(to, key));
        hn::Store(hn::IfThenElse(hn::RebindMask(d, seen), z, none), d, z_at);
      }
    }
  }

  const stream::Call& call;
  const AttentionParams& params;
  const stream::PackedKv& head;
  std::int64_t h, row, count;
  std::int64_t distance = 0;                  // of the first query from key 0
  std::int64_t begin = 0, end = 0;            // whole tiles of keys that some query sees
  std::int64_t seen_begin = 0, seen_end = 0;  // keys that all of them see
  double slope = 0.0, reach = 0.0, rest = 0.0;
  bool terms = false;
  HWY_ALIGN std::int32_t first[stream::kRows];
  HWY_ALIGN std::int32_t last[stream::kRows];  // one behind
  HWY_ALIGN float c_scale[stream::kRows];      // c scale
  HWY_ALIGN float factors[stream::kRows];      // in base 2, times beta
  HWY_ALIGN float betas[stream::kRows];        // of adaptive temperature; else 1
};

// Moves the running maxima on to those of a panel; shrink: what it costs all that was summed up. Returns
// whether any moved. kAdjusted: scores are z, else products.
template <bool kAdjusted>
HWY_INLINE bool StreamMaxima(const StreamBlock& block, std::int64_t keys, const float* scores,
                             VF* maximum, VF* shrink) {
  const DF d;
  const VF none = hn::Set(d, -kInfinityF);
  bool moved = false;
  for (std::int64_t group = 0; group < kGroups; ++group) {
    const float* HWY_RESTRICT at = scores + group * kGroupScores;
    const VF factor = hn::Load(d, block.factors + group * stream::kLanes);
    VF most[4] = {none, none, none, none};
    for (std::int64_t j = 0; j < keys; j += 4) {
      HWY_UNROLL(4)
      for (std::int64_t i = 0; i < 4; ++i) {
        VF z = hn::Load(d, at + (j + i) * stream::kLanes);
        if constexpr (!kAdjusted) z = hn::Mul(z, factor);
        most[i] = hn::Max(most[i], z);
      }
    }
    const VF before = maximum[group];
    const VF top = hn::Max(before, hn::Max(hn::Max(most[0], most[1]), hn::Max(most[2], most[3])));
    // -inf less -inf would be NaN.
    const auto same = hn::Eq(top, before);
    shrink[group] = hn::IfThenElse(same, hn::Set(d, 1.0f), Exp2(hn::Sub(before, top)));
    moved = moved || !hn::AllTrue(d, same);
    maximum[group] = top;
  }
  return moved;
}

// Weights of a panel against the maxima, as pairs, and their sums; tiles work meanwhile.
template <class Tiles, bool kAdjusted>
TSALLIS_STREAM_TILES void StreamWeights(const StreamBlock& block, std::int64_t keys,
                                        const float* scores, const VF* maximum, VF* sum,
                                        std::uint32_t* pairs, TileWork<Tiles>& work) {
  const DF d;
  const VF zero = hn::Zero(d);
  for (std::int64_t group = 0; group < kGroups; ++group) {
    const float* HWY_RESTRICT at = scores + group * kGroupScores;
    const VF factor = hn::Load(d, block.factors + group * stream::kLanes);
    const VF top = maximum[group];
    const VF safe = hn::IfThenElse(hn::Eq(top, hn::Set(d, -kInfinityF)), zero, top);
    VF s[4] = {zero, zero, zero, zero};
    for (std::int64_t slot = 0; slot < keys; slot += kSlotKeys) {
      work.Slot();
      std::uint32_t* HWY_RESTRICT to = pairs + PairOffset(slot, group);
      for (std::int64_t j = slot; j < slot + kSlotKeys; j += 4, to += 2 * stream::kLanes) {
        VF p[4];
        HWY_UNROLL(4)
        for (std::int64_t i = 0; i < 4; ++i) {
          const VF z = hn::Load(d, at + (j + i) * stream::kLanes);
          if constexpr (kAdjusted) {
            p[i] = Exp2(hn::Sub(z, safe));
          } else {
            p[i] = Exp2(hn::MulSub(z, factor, safe));
          }
          s[i] = hn::Add(s[i], p[i]);
        }
        StorePairs(SplitWords(p[0]), SplitWords(p[1]), to);
        StorePairs(SplitWords(p[2]), SplitWords(p[3]), to + stream::kLanes);
      }
    }
    sum[group] = hn::Add(sum[group], hn::Add(hn::Add(s[0], s[1]), hn::Add(s[2], s[3])));
  }
}

// Entries with a weight > 0 and -sum p ln p of each lane, whose log-sum-exp in base 2 is `tau`.
// support, entropy: [kRows].
template <class Tiles>
void StreamDescribe(const StreamBlock& block, const stream::Scratch& scratch, const float* tau,
                    float* support, float* entropy) {
  const DF d;
  const VF zero = hn::Zero(d), one = hn::Set(d, 1.0f);
  const std::int64_t chunks = stream::Widths(block.params).d_depth / kDepth;
  VF counts[kGroups] = {zero, zero}, sums[kGroups] = {zero, zero};
  for (std::int64_t at = block.begin; at < block.end; at += kPanel) {
    const std::int64_t keys = std::min(kPanel, block.end - at);
    RunSteps(ProductSteps<Tiles>(block.head.k_rows + at / 16 * chunks * kTileWords, scratch.columns,
                                 chunks, keys, scratch.scores));
    block.Adjust(at, keys, scratch.scores);
    for (std::int64_t group = 0; group < kGroups; ++group) {
      const VF top = hn::Load(d, tau + group * stream::kLanes);
      VF sum = zero;
      for (std::int64_t j = 0; j < keys; ++j) {
        const VF z = hn::Load(d, scratch.scores + group * kGroupScores + j * stream::kLanes);
        const VF below = hn::Sub(z, top), p = Exp2(below);
        const auto positive = hn::Gt(p, zero);
        counts[group] = hn::Add(counts[group], hn::IfThenElseZero(positive, one));
        sum = hn::NegMulAdd(p, hn::IfThenElseZero(positive, below), sum);
      }
      sums[group] = hn::Add(sums[group], sum);
    }
  }
  for (std::int64_t group = 0; group < kGroups; ++group) {
    hn::StoreU(counts[group], d, support + group * stream::kLanes);
    hn::StoreU(hn::Mul(sums[group], hn::Set(d, static_cast<float>(kLn2))), d,
               entropy + group * stream::kLanes);
  }
}

// Adaptive temperature (Velickovic et al. 2024): the entropy of each row's softmax, by a pass of its own, and
// from it beta. top, log_sum: [kRows], of the softmax, in base 2; -inf: no key. Returns the largest beta.
template <class Tiles>
double StreamSharpen(StreamBlock& block, const stream::Scratch& scratch, float* top,
                     double* log_sum) {
  const DF d;
  const VF zero = hn::Zero(d), none = hn::Set(d, -kInfinityF);
  const std::int64_t chunks = stream::Widths(block.params).d_depth / kDepth;
  VF maximum[kGroups] = {none, none}, sum[kGroups] = {zero, zero}, depth[kGroups] = {zero, zero};
  for (std::int64_t at = block.begin; at < block.end; at += kPanel) {
    const std::int64_t keys = std::min(kPanel, block.end - at);
    RunSteps(ProductSteps<Tiles>(block.head.k_rows + at / 16 * chunks * kTileWords, scratch.columns,
                                 chunks, keys, scratch.scores));
    block.Adjust(at, keys, scratch.scores);
    VF shrink[kGroups];
    const VF before[kGroups] = {maximum[0], maximum[1]};
    StreamMaxima<true>(block, keys, scratch.scores, maximum, shrink);
    for (std::int64_t group = 0; group < kGroups; ++group) {
      // sum p (z - maximum), p = 2^(z - maximum), over the keys so far.
      const VF fall =
          hn::IfThenElseZero(hn::Gt(before[group], none), hn::Sub(before[group], maximum[group]));
      depth[group] = hn::Mul(shrink[group], hn::MulAdd(sum[group], fall, depth[group]));
      sum[group] = hn::Mul(sum[group], shrink[group]);
      const VF safe = hn::IfThenElseZero(hn::Gt(maximum[group], none), maximum[group]);
      VF s[2] = {zero, zero}, w[2] = {zero, zero};
      for (std::int64_t j = 0; j < keys; j += 2) {
        HWY_UNROLL(2)
        for (std::int64_t i = 0; i < 2; ++i) {
          const VF z =
              hn::Load(d, scratch.scores + group * kGroupScores + (j + i) * stream::kLanes);
          const VF below = hn::Sub(z, safe), p = Exp2(below);
          s[i] = hn::Add(s[i], p);
          w[i] = hn::MulAdd(p, hn::IfThenElseZero(hn::Gt(p, zero), below), w[i]);
        }
      }
      sum[group] = hn::Add(sum[group], hn::Add(s[0], s[1]));
      depth[group] = hn::Add(depth[group], hn::Add(w[0], w[1]));
    }
  }
  HWY_ALIGN float sums[stream::kRows], depths[stream::kRows];
  for (std::int64_t group = 0; group < kGroups; ++group) {
    hn::StoreU(maximum[group], d, top + group * stream::kLanes);
    hn::Store(sum[group], d, sums + group * stream::kLanes);
    hn::Store(depth[group], d, depths + group * stream::kLanes);
  }
  double largest = 1.0;
  for (std::int64_t i = 0; i < stream::kRows; ++i) {
    log_sum[i] = -INFINITY;
    if (!(sums[i] > 0.0f)) continue;
    const double mass = sums[i];
    log_sum[i] = std::log2(mass);
    const double entropy = kLn2 * (log_sum[i] - static_cast<double>(depths[i]) / mass);
    const double beta = BetaOfEntropy(block.params.adaptive, entropy, nullptr);
    block.Sharpen(i, beta);
    largest = std::max(largest, beta);
  }
  return largest;
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

template <class Tiles>
bool StreamForward(const stream::Call& call, const stream::PackedKv& head, std::int64_t h,
                   std::int64_t q_begin, std::int64_t count, stream::Scratch& scratch) {
  const DF d;
  const AttentionParams& params = call.params;
  const AttentionOutputs& outputs = *call.outputs;
  const stream::Widths widths(params);
  const std::int64_t b = head.sequence.array_batch;
  const std::int64_t chunks = widths.d_depth / kDepth, tiles = widths.e_padded / 16;
  StreamBlock block(call, head, h, q_begin, count);
  const float q_bound =
      StreamLoad(params.q, b, h, q_begin, count, params.head_dim, widths.d_depth, scratch.halves);
  if (!block.IsSafe(q_bound)) return false;
  StreamColumns(scratch.halves, widths.d_depth, scratch.columns);
  const bool adaptive = params.map == RowMap::kAdaptiveTemperature;
  HWY_ALIGN float soft_top[stream::kRows];
  double soft_sum[stream::kRows];
  if (adaptive) {
    const double beta = StreamSharpen<Tiles>(block, scratch, soft_top, soft_sum);
    if (!block.IsSafe(beta * static_cast<double>(q_bound))) return false;
  }
  std::fill_n(scratch.sums, tiles * kGroups * kTileFloats, 0.0f);
  const VF none = hn::Set(d, -kInfinityF), zero = hn::Zero(d);
  VF maximum[kGroups] = {none, none}, sum[kGroups] = {zero, zero};
  // While the weights of a panel are computed, the tile unit finds the scores of the next and adds up the values
  // of the one before.
  const auto products = [&](std::int64_t at, float* scores) {
    return ProductSteps<Tiles>(head.k_rows + at / 16 * chunks * kTileWords, scratch.columns, chunks,
                               std::min(kPanel, block.end - at), scores);
  };
  const auto mix = [&](std::int64_t at, const std::uint32_t* pairs) {
    return MixSteps<Tiles>(head.v_columns + at / kDepth * tiles * kTileWords, tiles, pairs,
                           std::min(kPanel, block.end - at), scratch.sums);
  };
  float* scores = scratch.scores;
  float* next_scores = scratch.gradients;
  std::uint32_t* pairs = scratch.pairs;
  std::uint32_t* last_pairs = reinterpret_cast<std::uint32_t*>(scratch.rows);
  if (block.begin < block.end) RunSteps(products(block.begin, scores));
  for (std::int64_t at = block.begin; at < block.end; at += kPanel) {
    const std::int64_t keys = std::min(kPanel, block.end - at);
    const bool plain = block.IsPlain(at, keys);
    if (!plain) block.Adjust(at, keys, scores);
    VF shrink[kGroups];
    const bool moved = plain ? StreamMaxima<false>(block, keys, scores, maximum, shrink)
                             : StreamMaxima<true>(block, keys, scores, maximum, shrink);
    for (std::int64_t group = 0; group < kGroups; ++group) {
      sum[group] = hn::Mul(sum[group], shrink[group]);
    }
    TileWork<Tiles> work(
        at + kPanel < block.end ? products(at + kPanel, next_scores) : ProductSteps<Tiles>(),
        at > block.begin ? mix(at - kPanel, last_pairs) : MixSteps<Tiles>(),
        kGroups * keys / kSlotKeys);
    if (plain) {
      StreamWeights<Tiles, false>(block, keys, scores, maximum, sum, pairs, work);
    } else {
      StreamWeights<Tiles, true>(block, keys, scores, maximum, sum, pairs, work);
    }
    if (moved) StreamShrink(shrink, tiles, scratch.sums);
    std::swap(scores, next_scores);
    std::swap(pairs, last_pairs);
  }
  if (block.begin < block.end) {
    const std::int64_t last = block.begin + (block.end - 1 - block.begin) / kPanel * kPanel;
    RunSteps(mix(last, last_pairs));
  }
  HWY_ALIGN float tops[stream::kRows], sums[stream::kRows], factors[stream::kRows];
  for (std::int64_t group = 0; group < kGroups; ++group) {
    const std::int64_t lane0 = group * stream::kLanes;
    hn::Store(maximum[group], d, tops + lane0);
    hn::Store(sum[group], d, sums + lane0);
    const auto some = hn::Gt(sum[group], zero);
    hn::Store(hn::IfThenElseZero(some, hn::Div(hn::Set(d, 1.0f), sum[group])), d, factors + lane0);
    if (lane0 >= count) break;
    StreamRowsOut(scratch.sums, tiles, group, scratch.block);
    StoreRows(scratch.block, static_cast<std::size_t>(widths.e_padded), factors + lane0,
              static_cast<std::size_t>(std::min<std::int64_t>(count - lane0, stream::kLanes)),
              static_cast<std::size_t>(params.value_dim), outputs.out, b, h, q_begin + lane0,
              false);
  }
  HWY_ALIGN float tau[stream::kRows] = {}, support[stream::kRows], entropy[stream::kRows];
  for (std::int64_t i = 0; i < count; ++i) {
    tau[i] = sums[i] > 0.0f ? tops[i] + std::log2(sums[i]) : kInfinityF;
  }
  const bool described = outputs.support_size != nullptr || outputs.entropy != nullptr;
  if (described) StreamDescribe<Tiles>(block, scratch, tau, support, entropy);
  const std::int64_t index = RowIndex(params, head.sequence, h, q_begin);
  for (std::int64_t i = 0; i < count; ++i) {
    const double top = kLn2 * static_cast<double>(adaptive ? soft_top[i] : tops[i]);
    if (outputs.maximum != nullptr) outputs.maximum[index + i] = top;
    if (outputs.tau != nullptr) {
      const double log_sum = adaptive         ? kLn2 * soft_sum[i]
                             : sums[i] > 0.0f ? std::log(static_cast<double>(sums[i]))
                                              : 0.0;
      outputs.tau[index + i] = sums[i] > 0.0f ? top + log_sum : top;
    }
    if (outputs.support_size != nullptr) {
      outputs.support_size[index + i] = static_cast<std::int64_t>(support[i]);
    }
    if (outputs.entropy != nullptr) outputs.entropy[index + i] = entropy[i];
  }
  return true;
}

}  // namespace HWY_NAMESPACE
}  // namespace tsallis
HWY_AFTER_NAMESPACE();
#endif  // TSALLIS_STREAM_HERE

#endif  // per-target include guard
