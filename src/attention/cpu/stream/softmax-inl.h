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
#include <iterator>

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
  HWY_INLINE void Take(std::int64_t, const Weight&) const {}
  VF maximum(std::int64_t group) const { return maximum_[group]; }

 private:
  const StreamBlock<Engine>& block_;
  VF maximum_[Engine::kGroups];
  VF shrink_[Engine::kGroups];
};

// The same, with the depths sum_j p_j (z_j - top) that entropies need.
template <class Engine>
class DeepTops : public RunningTops<Engine> {
 public:
  explicit DeepTops(const StreamBlock<Engine>& block) : RunningTops<Engine>(block) {
    std::fill_n(depth_, Engine::kGroups, StripSum());
  }

  HWY_INLINE bool Move(bool plain, std::int64_t keys, const float* scores, StripSum* sum) {
    VF before[Engine::kGroups];
    for (std::int64_t group = 0; group < Engine::kGroups; ++group) {
      before[group] = this->maximum(group);
    }
    if (!RunningTops<Engine>::Move(plain, keys, scores, sum)) return false;
    const DF d;
    for (std::int64_t group = 0; group < Engine::kGroups; ++group) {
      // `sum` has shrunk already.
      const VF fall = hn::IfThenElseZero(hn::Gt(before[group], hn::Set(d, -kInfinityF)),
                                         hn::Sub(before[group], this->maximum(group)));
      depth_[group].Scale(this->shrink()[group]);
      depth_[group].Add(hn::Mul(sum[group].sum, fall));
    }
    return true;
  }

  struct Weight : RunningTops<Engine>::Weight {
    HWY_INLINE VF operator()(VF score) {
      const DF d;
      const VF below = this->Below(score), p = Exp2(below);
      depth = hn::MulAdd(p, hn::IfThenElseZero(hn::Gt(p, hn::Zero(d)), below), depth);
      return p;
    }
    VF depth;
  };
  HWY_INLINE Weight At(bool plain, std::int64_t group) const {
    return {RunningTops<Engine>::At(plain, group), hn::Zero(DF())};
  }
  HWY_INLINE void Take(std::int64_t group, const Weight& weight) {
    depth_[group].Add(weight.depth);
  }
  VF depth(std::int64_t group) const { return depth_[group].sum; }

 private:
  StripSum depth_[Engine::kGroups];
};

// The softmax of a block's rows, before adaptive temperature (Velickovic et al. 2024) sharpens it.
template <class Engine>
struct StreamSoft {
  static constexpr std::int64_t kRows = Engine::kShape.rows;

  // Of every `stride`th strip of keys.
  void Set(const DeepTops<Engine>& tops, const StripSum* sum, std::int64_t stride) {
    const DF d;
    HWY_ALIGN float sums[kRows], depths[kRows];
    for (std::int64_t group = 0; group < Engine::kGroups; ++group) {
      hn::Store(tops.maximum(group), d, top + group * kStreamLanes);
      hn::Store(sum[group].sum, d, sums + group * kStreamLanes);
      hn::Store(tops.depth(group), d, depths + group * kStreamLanes);
    }
    for (std::int64_t i = 0; i < kRows; ++i) {
      log_sum[i] = -INFINITY;
      entropy[i] = 0.0;
      if (!(sums[i] > 0.0f)) continue;
      const double mass = static_cast<double>(stride) * static_cast<double>(sums[i]);
      log_sum[i] = std::log2(mass);
      entropy[i] =
          kLn2 * (log_sum[i] - static_cast<double>(depths[i]) / static_cast<double>(sums[i]));
    }
    whole = stride == 1;
  }

  bool whole = false;          // whether it is of all keys
  HWY_ALIGN float top[kRows];  // in base 2, as log_sum; -inf: no key
  double log_sum[kRows];       // of 2^(z - top)
  double entropy[kRows];       // in nats
};

// One pass over every `stride`th strip of keys, of queries that stand in `columns`.
template <class Engine>
void StreamEntropies(const StreamBlock<Engine>& block, const std::byte* columns,
                     std::int64_t stride, const stream::Scratch& scratch,
                     StreamSoft<Engine>* soft) {
  DeepTops<Engine> tops(block);
  StripSum sum[Engine::kGroups];
  StreamOver<false>(block, columns, stride, scratch, tops, sum);
  soft->Set(tops, sum, stride);
}

// Whether beta is 1 whatever small change the scores undergo, for an entropy or in every row.
inline bool IsBlunt(const AttentionParams& params, double entropy) {
  double derivative = 0.0;
  return BetaOfEntropy(params.adaptive, entropy, &derivative) == 1.0 && derivative == 0.0;
}
template <class Engine>
bool IsBlunt(const AttentionParams& params, const StreamSoft<Engine>& soft) {
  return std::all_of(std::begin(soft.entropy), std::end(soft.entropy),
                     [&](double entropy) { return IsBlunt(params, entropy); });
}

// Whether a few keys say that every beta of a block is 1, as it is in rows of many keys (from 5.94
// nats on by the published polynomial).
template <class Engine>
bool LooksBlunt(const StreamBlock<Engine>& block, const std::byte* columns,
                const stream::Scratch& scratch, StreamSoft<Engine>* soft) {
  // No row has more entropy than one whose keys are alike.
  const auto keys = static_cast<double>(std::max<std::int64_t>(block.end - block.begin, 1));
  if (!IsBlunt(block.params, std::log(keys))) return false;
  // Two or three strips tell most sharp blocks, at little cost where all of a head's are sharp.
  const std::int64_t stride = (block.end - block.begin) / Engine::kShape.strip / 2;
  if (stride < 2) return true;
  StreamEntropies(block, columns, stride, scratch, soft);
  return IsBlunt(block.params, *soft);
}

// Whether every beta of a block is 1, so that its rows are softmax's: then scratch.sums and sum
// hold what StreamMix makes. If not, `soft` may be whole nevertheless.
template <class Engine>
bool StreamBlunt(const StreamBlock<Engine>& block, const std::byte* columns,
                 const stream::Scratch& scratch, DeepTops<Engine>& tops, StripSum* sum,
                 StreamSoft<Engine>* soft) {
  if (!LooksBlunt(block, columns, scratch, soft)) return false;
  StreamMix(block, columns, scratch, tops, sum);
  soft->Set(tops, sum, 1);
  return IsBlunt(block.params, *soft);
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

// Outputs and statistics of a block whose weights were mixed against running maxima. soft: of
// adaptive temperature, else null. sharpened: by betas that are not all 1.
template <class Engine>
void StreamSoftmaxStore(const StreamBlock<Engine>& block, const stream::Scratch& scratch,
                        const RunningTops<Engine>& tops, const StripSum* sum,
                        const StreamSoft<Engine>* soft, bool sharpened) {
  const DF d;
  const AttentionOutputs& outputs = *block.call.outputs;
  StreamRows<Engine> rows;
  rows.saves = !sharpened;
  for (std::int64_t group = 0; group < Engine::kGroups; ++group) {
    hn::Store(tops.maximum(group), d, rows.top + group * kStreamLanes);
    hn::Store(sum[group].sum, d, rows.mass + group * kStreamLanes);
  }
  const std::int64_t index = RowIndex(block.params, block.head.sequence, block.h, block.row);
  for (std::int64_t i = 0; i < Engine::kShape.rows; ++i) {
    const bool some = rows.mass[i] > 0.0f;
    const double log_mass = some ? std::log2(static_cast<double>(rows.mass[i])) : 0.0;
    rows.tau[i] = some ? static_cast<float>(rows.top[i] + log_mass) : kInfinityF;
    rows.tau[Engine::kShape.rows + i] = 0.0f;
    if (soft != nullptr) rows.top[i] = soft->top[i];
    if (i < block.count && outputs.tau != nullptr) {
      const double top = rows.top[i];
      outputs.tau[index + i] =
          kLn2 * (some ? top + (soft != nullptr ? soft->log_sum[i] : log_mass) : top);
    }
  }
  StreamStore(block, scratch, StreamSoftmax(), rows);
}

// False: something might not be finite, or rows of adaptive temperature that are sharpened are for
// the dense kernel.
template <class Engine>
bool StreamSoftmaxForward(StreamBlock<Engine>& block, double q_bound,
                          const stream::Scratch& scratch) {
  StripSum sum[Engine::kGroups];
  if (block.params.map != RowMap::kAdaptiveTemperature) {
    RunningTops<Engine> tops(block);
    StreamMix(block, scratch.columns, scratch, tops, sum);
    StreamSoftmaxStore<Engine>(block, scratch, tops, sum, nullptr, false);
    return true;
  }
  StreamSoft<Engine> soft;
  DeepTops<Engine> blunt(block);
  if (StreamBlunt(block, scratch.columns, scratch, blunt, sum, &soft)) {
    StreamSoftmaxStore<Engine>(block, scratch, blunt, sum, &soft, false);
    return true;
  }
  if constexpr (!Engine::kSolves) {
    return false;
  } else {
    if (!soft.whole) StreamEntropies(block, scratch.columns, 1, scratch, &soft);
    if (!block.IsSafe(StreamSharpen(block, soft) * q_bound)) return false;
    RunningTops<Engine> tops(block);
    std::fill_n(sum, Engine::kGroups, StripSum());
    StreamMix(block, scratch.columns, scratch, tops, sum);
    StreamSoftmaxStore<Engine>(block, scratch, tops, sum, &soft, true);
    return true;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tsallis
HWY_AFTER_NAMESPACE();
#endif  // TSALLIS_VECTORS_HERE

#endif  // per-target include guard
