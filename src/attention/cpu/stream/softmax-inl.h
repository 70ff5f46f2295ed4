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
    HWY_INLINE VF Below(VF score) const { return hn::MulSub(score, factor, top); }
    HWY_INLINE VF operator()(VF score) const { return Exp2(Below(score)); }
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

// The softmax of a block's rows, before adaptive temperature (Velickovic et al. 2024) sharpens it.
template <class Engine>
struct StreamSoft {
  static constexpr std::int64_t kRows = Engine::kShape.rows;
  HWY_ALIGN float top[kRows];        // in base 2, as log_sum; -inf: no key
  double log_sum[kRows];             // of 2^(z - top)
  double entropy[kRows] = {};        // in nats
  HWY_ALIGN float mean[kRows] = {};  // of dp
};

// One pass over every `stride`th strip of keys, of queries that stand in `columns`. kMeans: of the
// gradients of weights too, whose d_out stand in d_out_columns.
template <bool kMeans, class Engine>
void StreamEntropies(const StreamBlock<Engine>& block, const std::byte* columns,
                     const std::byte* d_out_columns, std::int64_t stride,
                     const stream::Scratch& scratch, StreamSoft<Engine>* soft) {
  const DF d;
  const VF zero = hn::Zero(d), none = hn::Set(d, -kInfinityF);
  RunningTops<Engine> tops(block);
  // Of p, p (z - top) and p dp.
  StripSum sum[Engine::kGroups], depth[Engine::kGroups], mean[Engine::kGroups];
  for (std::int64_t at = block.begin; at < block.end; at += stride * Engine::kShape.strip) {
    const std::int64_t keys = std::min(Engine::kShape.strip, block.end - at);
    StreamProducts(block, columns, at, keys, scratch.scores);
    if constexpr (kMeans) {
      Engine::MultiplyValues(block.head, block.params, d_out_columns, at, keys, scratch.gradients);
    }
    const bool plain = block.IsPlain(at, keys);
    if (!plain) block.Adjust(at, keys, scratch.scores);
    VF before[Engine::kGroups];
    for (std::int64_t group = 0; group < Engine::kGroups; ++group) {
      before[group] = tops.maximum(group);
    }
    if (tops.Move(plain, keys, scratch.scores, sum)) {
      for (std::int64_t group = 0; group < Engine::kGroups; ++group) {
        // What stands in `sum` has shrunk already.
        const VF fall = hn::IfThenElseZero(hn::Gt(before[group], none),
                                           hn::Sub(before[group], tops.maximum(group)));
        depth[group].Scale(tops.shrink()[group]);
        depth[group].Add(hn::Mul(sum[group].sum, fall));
        mean[group].Scale(tops.shrink()[group]);
      }
    }
    for (std::int64_t group = 0; group < Engine::kGroups; ++group) {
      const typename RunningTops<Engine>::Weight weight = tops.At(plain, group);
      const float* from = scratch.scores + group * Engine::kGroupStride;
      const float* gradients = scratch.gradients + group * Engine::kGroupStride;
      VF s[2] = {zero, zero}, w[2] = {zero, zero}, m[2] = {zero, zero};
      for (std::int64_t j = 0; j < keys; j += 2) {
        HWY_UNROLL(2)
        for (std::int64_t i = 0; i < 2; ++i) {
          const VF below = weight.Below(hn::Load(d, from + (j + i) * Engine::kKeyStride));
          const VF p = Exp2(below);
          s[i] = hn::Add(s[i], p);
          w[i] = hn::MulAdd(p, hn::IfThenElseZero(hn::Gt(p, zero), below), w[i]);
          if constexpr (kMeans) {
            m[i] = hn::MulAdd(p, hn::Load(d, gradients + (j + i) * Engine::kKeyStride), m[i]);
          }
        }
      }
      sum[group].Add(hn::Add(s[0], s[1]));
      depth[group].Add(hn::Add(w[0], w[1]));
      if constexpr (kMeans) mean[group].Add(hn::Add(m[0], m[1]));
    }
  }
  HWY_ALIGN float sums[Engine::kShape.rows], depths[Engine::kShape.rows];
  for (std::int64_t group = 0; group < Engine::kGroups; ++group) {
    hn::Store(tops.maximum(group), d, soft->top + group * kStreamLanes);
    hn::Store(sum[group].sum, d, sums + group * kStreamLanes);
    hn::Store(depth[group].sum, d, depths + group * kStreamLanes);
    hn::Store(hn::Div(mean[group].sum, hn::Max(sum[group].sum, hn::Set(d, 1e-30f))), d,
              soft->mean + group * kStreamLanes);
  }
  for (std::int64_t i = 0; i < Engine::kShape.rows; ++i) {
    soft->log_sum[i] = -INFINITY;
    if (!(sums[i] > 0.0f)) continue;
    const double mass = static_cast<double>(stride) * static_cast<double>(sums[i]);
    soft->log_sum[i] = std::log2(mass);
    soft->entropy[i] =
        kLn2 * (soft->log_sum[i] - static_cast<double>(depths[i]) / static_cast<double>(sums[i]));
  }
}

// Whether beta is 1 whatever small change the scores undergo, in every row.
template <class Engine>
bool IsBlunt(const AttentionParams& params, const StreamSoft<Engine>& soft) {
  for (const double entropy : soft.entropy) {
    double derivative;
    if (BetaOfEntropy(params.adaptive, entropy, &derivative) != 1.0 || derivative != 0.0) {
      return false;
    }
  }
  return true;
}

// Sharpens the scores of the block; returns the largest beta.
template <class Engine>
double StreamSharpen(StreamBlock<Engine>& block, const StreamSoft<Engine>& soft) {
  double largest = 1.0;
  for (std::int64_t i = 0; i < Engine::kShape.rows; ++i) {
    if (soft.log_sum[i] == -INFINITY) continue;
    const double beta = BetaOfEntropy(block.params.adaptive, soft.entropy[i], nullptr);
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
  StreamSoft<Engine> soft;
  if constexpr (Engine::kSolves) {
    if (adaptive) {
      StreamEntropies<false>(block, scratch.columns, nullptr, 1, scratch, &soft);
      if (!block.IsSafe(StreamSharpen(block, soft) * q_bound)) return false;
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
    if (adaptive) rows.top[i] = soft.top[i];
    if (i < block.count && outputs.tau != nullptr) {
      const double top = rows.top[i];
      outputs.tau[index + i] = kLn2 * (some ? top + (adaptive ? soft.log_sum[i] : log_mass) : top);
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
