// The forward passes of what streams; entmax's thresholds are solved for first. Included once per
// instruction set.
#if defined(TSALLIS_ATTENTION_CPU_STREAM_FORWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TSALLIS_ATTENTION_CPU_STREAM_FORWARD_INL_H_
#undef TSALLIS_ATTENTION_CPU_STREAM_FORWARD_INL_H_
#else
#define TSALLIS_ATTENTION_CPU_STREAM_FORWARD_INL_H_
#endif

#include <algorithm>
#include <cmath>

#include "attention/cpu/stream/softmax-inl.h"

#if TSALLIS_VECTORS_HERE
HWY_BEFORE_NAMESPACE();
namespace tsallis {
namespace HWY_NAMESPACE {

// ---- entmax -------------------------------------------------------------------------------------

// Thresholds of a block's rows, in two parts, and what the last pass over their keys found.
template <class Engine>
struct StreamThresholds {
  HWY_INLINE StreamThresholds() {
    for (std::int64_t group = 0; group < Engine::kGroups; ++group) {
      high[group] = low[group] = hn::Zero(DF());
      top[group] = hn::Set(DF(), -kInfinityF);
    }
  }
  VF high[Engine::kGroups], low[Engine::kGroups];
  StripSum sum[Engine::kGroups], slope[Engine::kGroups];  // of weights, and of their slopes
  VF top[Engine::kGroups];                                // the largest z
};

// One pass over every `stride`th strip. While it sums up a strip, the tile unit finds the scores of
// the next.
template <class Engine, class Map>
TSALLIS_STREAM_TILES void StreamSums(const StreamBlock<Engine>& block,
                                     const stream::Scratch& scratch, const Map& map,
                                     std::int64_t stride, StreamThresholds<Engine>* t) {
  const DF d;
  const VF zero = hn::Zero(d), none = hn::Set(d, -kInfinityF);
  HWY_ALIGN float tau[2 * Engine::kShape.rows];
  for (std::int64_t group = 0; group < Engine::kGroups; ++group) {
    t->sum[group] = t->slope[group] = StripSum();
    t->top[group] = none;
    hn::Store(t->high[group], d, tau + group * kStreamLanes);
    hn::Store(t->low[group], d, tau + Engine::kShape.rows + group * kStreamLanes);
  }
  typename Engine::Strips strips(block.head, block.params, scratch, scratch.columns, block.begin,
                                 block.end, stride,
                                 /*mixes=*/false);
  for (std::int64_t at = block.begin; at < block.end; at += stride * Engine::kShape.strip) {
    const std::int64_t keys = std::min(Engine::kShape.strip, block.end - at);
    float* scores = strips.Scores(at);
    const bool plain = block.IsPlain(at, keys);
    if (!plain) block.Adjust(at, keys, scores);
    auto work = strips.Work(at, Engine::kGroups * keys / kSlotKeys);
    for (std::int64_t group = 0; group < Engine::kGroups; ++group) {
      const StreamWeight<Map> weight(block, map, tau, plain, group);
      const float* from = scores + group * Engine::kGroupStride;
      VF sum[2] = {zero, zero}, slope[2] = {zero, zero}, top[2] = {none, none};
      for (std::int64_t slot = 0; slot < keys; slot += kSlotKeys) {
        work.Slot();
        for (std::int64_t j = slot; j < slot + kSlotKeys; j += 2) {
          HWY_UNROLL(2)
          for (std::int64_t i = 0; i < 2; ++i) {
            const VF above = weight.Above(hn::Load(d, from + (j + i) * Engine::kKeyStride));
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
    strips.Next(at);
  }
}

// Solves sum p = 1 for every row, by Newton's method on the norm (simplex/entmax-inl.h), from the
// solution on an eighth of the strips where there are many: passes over all of them are what costs.
// False: some row is not there after many steps.
template <class Engine, class Map>
bool StreamSolve(const StreamBlock<Engine>& block, const stream::Scratch& scratch, const Map& map,
                 StreamThresholds<Engine>* t) {
  const DF d;
  const VF one = hn::Set(d, 1.0f), none = hn::Set(d, -kInfinityF);
  constexpr int kMostSteps = 24;
  const bool sampled = block.HasSample();
  // The threshold lies less than 1 below the largest z. Rows without keys stay at 0; those without
  // keys in the sample go on from there.
  StreamSums(block, scratch, map, sampled ? kSampleStride : 1, t);
  for (std::int64_t group = 0; group < Engine::kGroups; ++group) {
    const VF top = t->top[group];
    t->high[group] = hn::IfThenElseZero(hn::Gt(top, none), hn::Sub(top, one));
  }
  bool solved = false;
  for (const std::int64_t stride : {kSampleStride, std::int64_t{1}}) {
    if (stride > 1 && !sampled) continue;
    solved = false;
    const VF share = hn::Set(d, static_cast<float>(stride));
    const float enough = stride > 1 ? 0.02f : 2e-4f;
    for (int i = 0; i < kMostSteps && !solved; ++i) {
      StreamSums(block, scratch, map, stride, t);
      VF farthest = hn::Zero(d);
      for (std::int64_t group = 0; group < Engine::kGroups; ++group) {
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
template <class Engine, class Map>
class KnownTau {
 public:
  KnownTau(const StreamBlock<Engine>& block, const Map& map, const float* tau)
      : block_(block), map_(map), tau_(tau) {}

  HWY_INLINE bool Move(bool, std::int64_t, const float*, StripSum*) { return false; }
  const VF* shrink() const { return nullptr; }
  HWY_INLINE StreamWeight<Map> At(bool plain, std::int64_t group) const {
    return {block_, map_, tau_, plain, group};
  }
  HWY_INLINE void Take(std::int64_t, const StreamWeight<Map>&) const {}

 private:
  const StreamBlock<Engine>& block_;
  const Map& map_;
  const float* tau_;
};

template <class Engine, class Map>
bool StreamEntmaxForward(const StreamBlock<Engine>& block, const stream::Scratch& scratch,
                         const Map& map) {
  const DF d;
  StreamThresholds<Engine> t;
  if (!StreamSolve(block, scratch, map, &t)) return false;
  StreamRows<Engine> rows;
  for (std::int64_t group = 0; group < Engine::kGroups; ++group) {
    hn::Store(t.high[group], d, rows.tau + group * kStreamLanes);
    hn::Store(t.low[group], d, rows.tau + Engine::kShape.rows + group * kStreamLanes);
    hn::Store(t.top[group], d, rows.top + group * kStreamLanes);
  }
  if (block.call.outputs->maximum != nullptr) {
    // Above a threshold of 0 the largest z is what it is; above another, it was rounded.
    StreamThresholds<Engine> at_zero;
    StreamSums(block, scratch, map, 1, &at_zero);
    for (std::int64_t group = 0; group < Engine::kGroups; ++group) {
      hn::Store(at_zero.top[group], d, rows.top + group * kStreamLanes);
    }
  }
  KnownTau<Engine, Map> tau(block, map, rows.tau);
  StripSum sum[Engine::kGroups];
  StreamMix(block, scratch.columns, scratch, tau, sum);
  for (std::int64_t group = 0; group < Engine::kGroups; ++group) {
    hn::Store(sum[group].sum, d, rows.mass + group * kStreamLanes);
  }
  StreamStore(block, scratch, map, rows);
  if (block.call.outputs->tau == nullptr) return true;
  const std::int64_t index = RowIndex(block.params, block.head.sequence, block.h, block.row);
  for (std::int64_t i = 0; i < block.count; ++i) {
    block.call.outputs->tau[index + i] =
        rows.top[i] > -kInfinityF ? static_cast<double>(rows.tau[i]) +
                                        static_cast<double>(rows.tau[Engine::kShape.rows + i])
                                  : -INFINITY;
  }
  return true;
}

template <class Engine>
bool StreamLooksBlunt(const stream::StreamCall& call, const stream::PackedKv& head, std::int64_t h,
                      std::int64_t q_begin, std::int64_t count, stream::Scratch& scratch) {
  const AttentionParams& params = call.params;
  const StreamBlock<Engine> block(call, head, h, q_begin, count);
  const auto q = Engine::Load(HeadRows::Of(params.q, head.sequence.array_batch, h, q_begin), count,
                              params.head_dim, scratch);
  if (!block.IsSafe(q.bound)) return false;
  q.Columns(scratch.columns);
  StreamSoft<Engine> soft;
  return LooksBlunt(block, scratch.columns, scratch, &soft);
}

template <class Engine>
bool StreamForward(const stream::StreamCall& call, const stream::PackedKv& head, std::int64_t h,
                   std::int64_t q_begin, std::int64_t count, stream::Scratch& scratch) {
  const AttentionParams& params = call.params;
  StreamBlock<Engine> block(call, head, h, q_begin, count);
  const auto q = Engine::Load(HeadRows::Of(params.q, head.sequence.array_batch, h, q_begin), count,
                              params.head_dim, scratch);
  if (!block.IsSafe(q.bound)) return false;
  q.Columns(scratch.columns);
  if constexpr (!Engine::kSolves) {
    return StreamSoftmaxForward(block, q.bound, scratch);
  } else {
    return WithStreamMap(params, h, [&](const auto& map) HWY_ATTR {
      if constexpr (std::decay_t<decltype(map)>::kSums) {
        return StreamEntmaxForward(block, scratch, map);
      } else {
        return StreamSoftmaxForward(block, q.bound, scratch);
      }
    });
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tsallis
HWY_AFTER_NAMESPACE();
#endif  // TSALLIS_VECTORS_HERE

#endif  // per-target include guard
