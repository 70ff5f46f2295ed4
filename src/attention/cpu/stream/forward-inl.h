// The forward passes of what streams: softmax with running maxima, and entmax, whose thresholds are
// solved for first. Included once per instruction set.
#if defined(TSALLIS_ATTENTION_CPU_STREAM_FORWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TSALLIS_ATTENTION_CPU_STREAM_FORWARD_INL_H_
#undef TSALLIS_ATTENTION_CPU_STREAM_FORWARD_INL_H_
#else
#define TSALLIS_ATTENTION_CPU_STREAM_FORWARD_INL_H_
#endif

#include <algorithm>
#include <cmath>

#include "attention/cpu/stream/block-inl.h"
#include "simplex/map.h"

#if TSALLIS_STREAM_HERE
HWY_BEFORE_NAMESPACE();
namespace tsallis {
namespace HWY_NAMESPACE {

// ---- softmax ------------------------------------------------------------------------------------

// Moves the running maxima on to those of a strip; shrink: what it costs all that was summed up.
// Returns whether any moved. kAdjusted: scores are z, else products.
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

// Weights of softmax against the maxima so far.
class RunningTops {
 public:
  explicit RunningTops(const StreamBlock& block) : block_(block) {}

  // Returns whether what was summed up so far shrinks.
  HWY_INLINE bool Move(bool plain, std::int64_t keys, const float* scores, StripSum* sum) {
    const bool moved = plain ? StreamMaxima<false>(block_, keys, scores, maximum_, shrink_)
                             : StreamMaxima<true>(block_, keys, scores, maximum_, shrink_);
    for (std::int64_t group = 0; group < kGroups; ++group) sum[group].Scale(shrink_[group]);
    return moved;
  }
  const VF* shrink() const { return shrink_; }

  struct Weight {
    HWY_INLINE VF operator()(VF score) const { return Exp2(hn::MulSub(score, factor, top)); }
    VF factor, top;
  };
  HWY_INLINE Weight At(bool plain, std::int64_t group) const {
    const DF d;
    const VF top = maximum_[group];
    return {plain ? hn::Load(d, block_.factors + group * stream::kLanes) : hn::Set(d, 1.0f),
            hn::IfThenElseZero(hn::Gt(top, hn::Set(d, -kInfinityF)), top)};
  }
  VF maximum(std::int64_t group) const { return maximum_[group]; }

 private:
  const StreamBlock& block_;
  VF maximum_[kGroups] = {hn::Set(DF(), -kInfinityF), hn::Set(DF(), -kInfinityF)};
  VF shrink_[kGroups];
};

// Adaptive temperature (Velickovic et al. 2024): the entropy of each row's softmax, by a pass of
// its own, and from it beta. top, log_sum: [kRows], of the softmax, in base 2; -inf: no key.
// Returns the largest beta.
template <class Tiles>
double StreamSharpen(StreamBlock& block, const stream::Scratch& scratch, float* top,
                     double* log_sum) {
  const DF d;
  const VF zero = hn::Zero(d), none = hn::Set(d, -kInfinityF);
  VF maximum[kGroups] = {none, none}, sum[kGroups] = {zero, zero}, depth[kGroups] = {zero, zero};
  for (std::int64_t at = block.begin; at < block.end; at += kStrip) {
    const std::int64_t keys = std::min(kStrip, block.end - at);
    RunSteps(StreamProducts<Tiles>(block, scratch.columns, at, keys, scratch.scores));
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

template <class Tiles>
bool StreamSoftmaxForward(StreamBlock& block, double q_bound, const stream::Scratch& scratch) {
  const DF d;
  const AttentionParams& params = block.params;
  const AttentionOutputs& outputs = *block.call.outputs;
  const bool adaptive = params.map == RowMap::kAdaptiveTemperature;
  HWY_ALIGN float soft_top[stream::kRows];
  double soft_sum[stream::kRows];
  if (adaptive) {
    const double beta = StreamSharpen<Tiles>(block, scratch, soft_top, soft_sum);
    if (!block.IsSafe(beta * q_bound)) return false;
  }
  RunningTops tops(block);
  StripSum sum[kGroups];
  StreamMix<Tiles>(block, scratch, tops, sum);
  StreamRows rows;
  for (std::int64_t group = 0; group < kGroups; ++group) {
    hn::Store(tops.maximum(group), d, rows.top + group * stream::kLanes);
    hn::Store(sum[group].sum, d, rows.mass + group * stream::kLanes);
  }
  const std::int64_t index = RowIndex(params, block.head.sequence, block.h, block.row);
  for (std::int64_t i = 0; i < stream::kRows; ++i) {
    const bool some = rows.mass[i] > 0.0f;
    const double log_mass = some ? std::log2(static_cast<double>(rows.mass[i])) : 0.0;
    rows.tau[i] = some ? static_cast<float>(rows.top[i] + log_mass) : kInfinityF;
    rows.tau[stream::kRows + i] = 0.0f;
    if (adaptive) rows.top[i] = soft_top[i];
    if (i < block.count && outputs.tau != nullptr) {
      const double top = rows.top[i];
      outputs.tau[index + i] = kLn2 * (some ? top + (adaptive ? soft_sum[i] : log_mass) : top);
    }
  }
  StreamStore<Tiles>(block, scratch, StreamSoftmax(), rows);
  return true;
}

// ---- entmax -------------------------------------------------------------------------------------

// Thresholds of a block's rows, in two parts, and what the last pass over their keys found.
struct StreamThresholds {
  HWY_INLINE StreamThresholds() {
    for (std::int64_t group = 0; group < kGroups; ++group) {
      high[group] = low[group] = hn::Zero(DF());
      top[group] = hn::Set(DF(), -kInfinityF);
    }
  }
  VF high[kGroups], low[kGroups];
  StripSum sum[kGroups], slope[kGroups];  // of weights, and of their slopes
  VF top[kGroups];                        // the largest z
};

// One pass over every `stride`th strip. While it sums up a strip, the tile unit finds the scores of
// the next.
template <class Tiles, class Map>
TSALLIS_STREAM_TILES void StreamSums(const StreamBlock& block, const stream::Scratch& scratch,
                                     const Map& map, std::int64_t stride, StreamThresholds* t) {
  const DF d;
  const VF zero = hn::Zero(d), none = hn::Set(d, -kInfinityF);
  HWY_ALIGN float tau[2 * stream::kRows];
  for (std::int64_t group = 0; group < kGroups; ++group) {
    t->sum[group] = t->slope[group] = StripSum();
    t->top[group] = none;
    hn::Store(t->high[group], d, tau + group * stream::kLanes);
    hn::Store(t->low[group], d, tau + stream::kRows + group * stream::kLanes);
  }
  const auto products = [&](std::int64_t at, float* scores) {
    return StreamProducts<Tiles>(block, scratch.columns, at, std::min(kStrip, block.end - at),
                                 scores);
  };
  float* scores = scratch.scores;
  float* next_scores = scratch.gradients;
  if (block.begin < block.end) RunSteps(products(block.begin, scores));
  const std::int64_t step = stride * kStrip;
  for (std::int64_t at = block.begin; at < block.end; at += step) {
    const std::int64_t keys = std::min(kStrip, block.end - at);
    const bool plain = block.IsPlain(at, keys);
    if (!plain) block.Adjust(at, keys, scores);
    TileWork<Tiles> work(
        at + step < block.end ? products(at + step, next_scores) : ProductSteps<Tiles>(),
        MixSteps<Tiles>(), kGroups * keys / kSlotKeys);
    for (std::int64_t group = 0; group < kGroups; ++group) {
      const StreamWeight<Map> weight(block, map, tau, plain, group);
      const float* HWY_RESTRICT from = scores + group * kGroupScores;
      VF sum[2] = {zero, zero}, slope[2] = {zero, zero}, top[2] = {none, none};
      for (std::int64_t slot = 0; slot < keys; slot += kSlotKeys) {
        work.Slot();
        for (std::int64_t j = slot; j < slot + kSlotKeys; j += 2) {
          HWY_UNROLL(2)
          for (std::int64_t i = 0; i < 2; ++i) {
            const VF above = weight.Above(hn::Load(d, from + (j + i) * stream::kLanes));
            const VF p = map.Weight(above);
            sum[i] = hn::Add(sum[i], p);
            slope[i] = hn::Add(slope[i], map.Slope(above, p));
            top[i] = hn::Max(top[i], above);
          }
        }
      }
      t->sum[group].Add(hn::Add(sum[0], sum[1]));
      t->slope[group].Add(hn::Add(slope[0], slope[1]));
      t->top[group] = hn::Max(t->top[group],
                              hn::Add(hn::Add(hn::Max(top[0], top[1]), weight.high), weight.low));
    }
    std::swap(scores, next_scores);
  }
}

// Solves sum p = 1 for every row, by Newton's method on the norm (simplex/entmax-inl.h), from the
// solution on an eighth of the strips where there are many: passes over all of them are what costs.
// False: some row is not there after many steps.
template <class Tiles, class Map>
bool StreamSolve(const StreamBlock& block, const stream::Scratch& scratch, const Map& map,
                 StreamThresholds* t) {
  const DF d;
  const VF one = hn::Set(d, 1.0f), none = hn::Set(d, -kInfinityF);
  constexpr std::int64_t kStride = 8, kManyStrips = 32;
  constexpr int kMostSteps = 24;
  const std::int64_t strips = (block.end - block.begin + kStrip - 1) / kStrip;
  const bool sampled = strips >= kManyStrips;
  // The threshold lies less than 1 below the largest z. Rows without keys stay at 0; those without
  // keys in the sample go on from there.
  StreamSums<Tiles>(block, scratch, map, sampled ? kStride : 1, t);
  for (std::int64_t group = 0; group < kGroups; ++group) {
    const VF top = t->top[group];
    t->high[group] = hn::IfThenElseZero(hn::Gt(top, none), hn::Sub(top, one));
  }
  bool solved = false;
  for (const std::int64_t stride : {kStride, std::int64_t{1}}) {
    if (stride > 1 && !sampled) continue;
    solved = false;
    const VF share = hn::Set(d, static_cast<float>(stride));
    const float enough = stride > 1 ? 0.02f : 2e-4f;
    for (int i = 0; i < kMostSteps && !solved; ++i) {
      StreamSums<Tiles>(block, scratch, map, stride, t);
      VF farthest = hn::Zero(d);
      for (std::int64_t group = 0; group < kGroups; ++group) {
        const VF sum = hn::Mul(t->sum[group].sum, share),
                 slope = hn::Mul(t->slope[group].sum, share);
        const auto keys = hn::Gt(t->top[group], none);
        // From a start that was no bound the sum may be 0 or beyond a float, or the step may lead
        // too far.
        const VF least = hn::Sub(hn::Sub(t->top[group], one), t->high[group]);
        const VF moved = hn::Add(t->low[group], NewtonStep(map.power, sum, slope));
        const auto usable = hn::And(hn::Gt(slope, hn::Zero(d)), hn::IsFinite(moved));
        const VF low = hn::IfThenElse(usable, hn::Max(moved, least), least);
        const VF high = hn::Add(t->high[group], low);
        const VF rest = hn::Sub(low, hn::Sub(high, t->high[group]));
        t->high[group] = hn::IfThenElse(keys, high, t->high[group]);
        t->low[group] = hn::IfThenElse(keys, rest, t->low[group]);
        farthest = hn::Max(farthest, hn::IfThenElseZero(keys, hn::Abs(hn::Sub(sum, one))));
      }
      // The error of the next sum is about the square of this one's.
      solved = hn::GetLane(hn::MaxOfLanes(d, farthest)) < enough;
    }
  }
  return solved;
}

// Weights of a map whose tau is known.
template <class Map>
class KnownTau {
 public:
  KnownTau(const StreamBlock& block, const Map& map, const float* tau)
      : block_(block), map_(map), tau_(tau) {}

  HWY_INLINE bool Move(bool, std::int64_t, const float*, StripSum*) { return false; }
  const VF* shrink() const { return nullptr; }
  HWY_INLINE StreamWeight<Map> At(bool plain, std::int64_t group) const {
    return {block_, map_, tau_, plain, group};
  }

 private:
  const StreamBlock& block_;
  const Map& map_;
  const float* tau_;
};

template <class Tiles, class Map>
bool StreamEntmaxForward(const StreamBlock& block, const stream::Scratch& scratch, const Map& map) {
  const DF d;
  StreamThresholds t;
  if (!StreamSolve<Tiles>(block, scratch, map, &t)) return false;
  StreamRows rows;
  for (std::int64_t group = 0; group < kGroups; ++group) {
    hn::Store(t.high[group], d, rows.tau + group * stream::kLanes);
    hn::Store(t.low[group], d, rows.tau + stream::kRows + group * stream::kLanes);
    hn::Store(t.top[group], d, rows.top + group * stream::kLanes);
  }
  if (block.call.outputs->maximum != nullptr) {
    // Above a threshold of 0 the largest z is what it is; above another, it was rounded.
    StreamThresholds at_zero;
    StreamSums<Tiles>(block, scratch, map, 1, &at_zero);
    for (std::int64_t group = 0; group < kGroups; ++group) {
      hn::Store(at_zero.top[group], d, rows.top + group * stream::kLanes);
    }
  }
  KnownTau<Map> tau(block, map, rows.tau);
  StripSum sum[kGroups];
  StreamMix<Tiles>(block, scratch, tau, sum);
  for (std::int64_t group = 0; group < kGroups; ++group) {
    hn::Store(sum[group].sum, d, rows.mass + group * stream::kLanes);
  }
  StreamStore<Tiles>(block, scratch, map, rows);
  if (block.call.outputs->tau == nullptr) return true;
  const std::int64_t index = RowIndex(block.params, block.head.sequence, block.h, block.row);
  for (std::int64_t i = 0; i < block.count; ++i) {
    block.call.outputs->tau[index + i] =
        rows.top[i] > -kInfinityF
            ? static_cast<double>(rows.tau[i]) + static_cast<double>(rows.tau[stream::kRows + i])
            : -INFINITY;
  }
  return true;
}

template <class Tiles>
bool StreamForward(const stream::StreamCall& call, const stream::PackedKv& head, std::int64_t h,
                   std::int64_t q_begin, std::int64_t count, stream::Scratch& scratch) {
  const AttentionParams& params = call.params;
  const stream::Widths widths(params);
  StreamBlock block(call, head, h, q_begin, count);
  const float q_bound = StreamLoad(HeadRows::Of(params.q, head.sequence.array_batch, h, q_begin),
                                   count, params.head_dim, widths.d_depth, scratch.halves);
  if (!block.IsSafe(q_bound)) return false;
  StreamColumns(scratch.halves, widths.d_depth, scratch.columns);
  return WithStreamMap(params, h, [&](const auto& map) HWY_ATTR {
    if constexpr (std::decay_t<decltype(map)>::kSums) {
      return StreamEntmaxForward<Tiles>(block, scratch, map);
    } else {
      return StreamSoftmaxForward<Tiles>(block, q_bound, scratch);
    }
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace tsallis
HWY_AFTER_NAMESPACE();
#endif  // TSALLIS_STREAM_HERE

#endif  // per-target include guard
