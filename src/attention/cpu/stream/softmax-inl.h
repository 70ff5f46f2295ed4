// Softmax with running maxima, as it streams; adaptive temperature is softmax behind a pass for
// each row's entropy. Included once per instruction set.
#if defined(TSALLIS_ATTENTION_CPU_STREAM_SOFTMAX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TSALLIS_ATTENTION_CPU_STREAM_SOFTMAX_INL_H_
#undef TSALLIS_ATTENTION_CPU_STREAM_SOFTMAX_INL_H_
#else
#define TSALLIS_ATTENTION_CPU_STREAM_SOFTMAX_INL_H_
#endif

#include <algorithm>
#include <cmath>

#include "attention/cpu/stream/block-inl.h"
#include "simplex/map.h"

#if TSALLIS_VECTORS_HERE
HWY_BEFORE_NAMESPACE();
namespace tsallis {
namespace HWY_NAMESPACE {

// Moves the running maxima on to those of a strip; shrink: what it costs all that was summed up.
// Returns whether any moved. kAdjusted: scores are z, else products.
template <bool kAdjusted, class Engine>
HWY_INLINE bool StreamMaxima(const StreamBlock<Engine>& block, std::int64_t keys,
                             const float* scores, VF* maximum, VF* shrink) {
  const DF d;
  const VF none = hn::Set(d, -kInfinityF);
  bool moved = false;
  for (std::int64_t group = 0; group < Engine::kGroups; ++group) {
    const float* HWY_RESTRICT at = scores + group * Engine::kGroupStride;
    const VF factor = hn::Load(d, block.factors + group * kStreamLanes);
    VF most[4] = {none, none, none, none};
    for (std::int64_t j = 0; j < keys; j += 4) {
      HWY_UNROLL(4)
      for (std::int64_t i = 0; i < 4; ++i) {
        VF z = hn::Load(d, at + (j + i) * Engine::kKeyStride);
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
template <class Engine>
class RunningTops {
 public:
  explicit RunningTops(const StreamBlock<Engine>& block) : block_(block) {
    std::fill_n(maximum_, Engine::kGroups, hn::Set(DF(), -kInfinityF));
  }

  // Returns whether what was summed up so far shrinks.
  HWY_INLINE bool Move(bool plain, std::int64_t keys, const float* scores, StripSum* sum) {
    const bool moved = plain ? StreamMaxima<false>(block_, keys, scores, maximum_, shrink_)
                             : StreamMaxima<true>(block_, keys, scores, maximum_, shrink_);
    for (std::int64_t group = 0; group < Engine::kGroups; ++group) sum[group].Scale(shrink_[group]);
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
    return {plain ? hn::Load(d, block_.factors + group * kStreamLanes) : hn::Set(d, 1.0f),
            hn::IfThenElseZero(hn::Gt(top, hn::Set(d, -kInfinityF)), top)};
  }
  VF maximum(std::int64_t group) const { return maximum_[group]; }

 private:
  const StreamBlock<Engine>& block_;
  VF maximum_[Engine::kGroups];
  VF shrink_[Engine::kGroups];
};

// Adaptive temperature (Velickovic et al. 2024): the entropy of each row's softmax, by a pass of
// its own, and from it beta. top, log_sum: [kRows], of the softmax, in base 2; -inf: no key.
// Returns the largest beta.
template <class Engine>
double StreamSharpen(StreamBlock<Engine>& block, const stream::Scratch& scratch, float* top,
                     double* log_sum) {
  const DF d;
  const VF zero = hn::Zero(d), none = hn::Set(d, -kInfinityF);
  VF maximum[Engine::kGroups], sum[Engine::kGroups], depth[Engine::kGroups];
  for (std::int64_t group = 0; group < Engine::kGroups; ++group) {
    maximum[group] = none;
    sum[group] = depth[group] = zero;
  }
  for (std::int64_t at = block.begin; at < block.end; at += Engine::kShape.strip) {
    const std::int64_t keys = std::min(Engine::kShape.strip, block.end - at);
    StreamProducts(block, scratch.columns, at, keys, scratch.scores);
    block.Adjust(at, keys, scratch.scores);
    VF shrink[Engine::kGroups];
    VF before[Engine::kGroups];
    std::copy_n(maximum, Engine::kGroups, before);
    StreamMaxima<true>(block, keys, scratch.scores, maximum, shrink);
    for (std::int64_t group = 0; group < Engine::kGroups; ++group) {
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
          const VF z = hn::Load(
              d, scratch.scores + group * Engine::kGroupStride + (j + i) * Engine::kKeyStride);
          const VF below = hn::Sub(z, safe), p = Exp2(below);
          s[i] = hn::Add(s[i], p);
          w[i] = hn::MulAdd(p, hn::IfThenElseZero(hn::Gt(p, zero), below), w[i]);
        }
      }
      sum[group] = hn::Add(sum[group], hn::Add(s[0], s[1]));
      depth[group] = hn::Add(depth[group], hn::Add(w[0], w[1]));
    }
  }
  HWY_ALIGN float sums[Engine::kShape.rows], depths[Engine::kShape.rows];
  for (std::int64_t group = 0; group < Engine::kGroups; ++group) {
    hn::StoreU(maximum[group], d, top + group * kStreamLanes);
    hn::Store(sum[group], d, sums + group * kStreamLanes);
    hn::Store(depth[group], d, depths + group * kStreamLanes);
  }
  double largest = 1.0;
  for (std::int64_t i = 0; i < Engine::kShape.rows; ++i) {
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

template <class Engine>
bool StreamSoftmaxForward(StreamBlock<Engine>& block, double q_bound,
                          const stream::Scratch& scratch) {
  const DF d;
  const AttentionParams& params = block.params;
  const AttentionOutputs& outputs = *block.call.outputs;
  const bool adaptive = Engine::kSolves && params.map == RowMap::kAdaptiveTemperature;
  HWY_ALIGN float soft_top[Engine::kShape.rows];
  double soft_sum[Engine::kShape.rows];
  if constexpr (Engine::kSolves) {
    if (adaptive) {
      const double beta = StreamSharpen(block, scratch, soft_top, soft_sum);
      if (!block.IsSafe(beta * q_bound)) return false;
    }
  }
  RunningTops<Engine> tops(block);
  StripSum sum[Engine::kGroups];
  StreamMix(block, scratch.columns, scratch, tops, sum);
  StreamRows<Engine> rows;
  for (std::int64_t group = 0; group < Engine::kGroups; ++group) {
    hn::Store(tops.maximum(group), d, rows.top + group * kStreamLanes);
    hn::Store(sum[group].sum, d, rows.mass + group * kStreamLanes);
  }
  const std::int64_t index = RowIndex(params, block.head.sequence, block.h, block.row);
  for (std::int64_t i = 0; i < Engine::kShape.rows; ++i) {
    const bool some = rows.mass[i] > 0.0f;
    const double log_mass = some ? std::log2(static_cast<double>(rows.mass[i])) : 0.0;
    rows.tau[i] = some ? static_cast<float>(rows.top[i] + log_mass) : kInfinityF;
    rows.tau[Engine::kShape.rows + i] = 0.0f;
    if (adaptive) rows.top[i] = soft_top[i];
    if (i < block.count && outputs.tau != nullptr) {
      const double top = rows.top[i];
      outputs.tau[index + i] = kLn2 * (some ? top + (adaptive ? soft_sum[i] : log_mass) : top);
    }
  }
  StreamStore(block, scratch, StreamSoftmax(), rows);
  return true;
}

}  // namespace HWY_NAMESPACE
}  // namespace tsallis
HWY_AFTER_NAMESPACE();
#endif  // TSALLIS_VECTORS_HERE

#endif  // per-target include guard
