// The maps of the lane kernel: from a block's scores to its weights, and from the gradient of the
// weights to that of the scores. Included once per instruction set.
//
// z = unit s with unit = alpha - 1 (softmax: 1); tau as AttentionOutputs::tau, in z.
#if defined(TSALLIS_ATTENTION_CPU_LANES_MAP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TSALLIS_ATTENTION_CPU_LANES_MAP_INL_H_
#undef TSALLIS_ATTENTION_CPU_LANES_MAP_INL_H_
#else
#define TSALLIS_ATTENTION_CPU_LANES_MAP_INL_H_
#endif

#include <cmath>
#include <cstdint>
#include <limits>

#include "attention/cpu/lanes/products-inl.h"
#include "simplex/entmax-inl.h"

#if TSALLIS_VECTORS_HERE
HWY_BEFORE_NAMESPACE();
namespace tsallis {
namespace HWY_NAMESPACE {

using MF = hn::Mask<DF>;
constexpr float kNaNF = std::numeric_limits<float>::quiet_NaN();

// A block of queries, and which keys (counted from the sequence's first) each of them sees.
struct Block {
  std::int64_t row = 0;   // of the first lane
  std::size_t count = 0;  // lanes in use; the others repeat the last query
  // Tiles that some query sees something of, and those that all queries see whole; multiples of
  // kPadding and of kParts.
  std::size_t begin = 0, end = 0, seen_begin = 0, seen_end = 0;
  std::int64_t distance = 0;  // of the first lane from key 0
  HWY_ALIGN std::int32_t first[kLanes];
  HWY_ALIGN std::int32_t last[kLanes];  // one behind
  HWY_ALIGN float c_scale[kLanes];      // c scale
  bool careful = false;                 // NaN or infinity may be about
  bool tiles = false;                   // products on bfloat16 tiles
};

HWY_INLINE MF Visible(const Block& block, std::size_t j) {
  const DI di;
  const VI at = hn::Set(di, static_cast<std::int32_t>(j));
  const auto before = hn::Gt(hn::Load(di, block.first), at);
  return hn::RebindMask(DF(), hn::AndNot(before, hn::Gt(hn::Load(di, block.last), at)));
}

// Maxima of disjoint parts of each lane's keys, which also bound its threshold from below.
constexpr std::size_t kParts = 8;
struct Maxima {
  VF part[kParts];
  HWY_INLINE VF Top() const {
    return hn::Max(hn::Max(hn::Max(part[0], part[1]), hn::Max(part[2], part[3])),
                   hn::Max(hn::Max(part[4], part[5]), hn::Max(part[6], part[7])));
  }
};

// Sets the scores of invisible keys to -inf and returns each lane's maxima; *nan tells of lanes
// with a NaN. scores: [keys][kLanes].
template <bool kCareful>
HWY_INLINE Maxima MaskAndMaximum(const Block& block, float* HWY_RESTRICT scores, MF* nan) {
  const DF d;
  const VF none = hn::Set(d, -kInfinityF);
  Maxima maxima = {{none, none, none, none, none, none, none, none}};
  *nan = hn::IsNaN(none);
  // Tiles lie at multiples of kParts.
  const auto edge = [&](std::size_t begin, std::size_t end) HWY_ATTR {
    for (std::size_t j = begin; j < end; j += kParts) {
      HWY_UNROLL(8)
      for (std::size_t i = 0; i < kParts; ++i) {
        const VF z =
            hn::IfThenElse(Visible(block, j + i), hn::Load(d, scores + (j + i) * kLanes), none);
        hn::Store(z, d, scores + (j + i) * kLanes);
        maxima.part[i] = hn::Max(maxima.part[i], z);
        if constexpr (kCareful) *nan = hn::Or(*nan, hn::IsNaN(z));
      }
    }
  };
  const std::size_t seen_begin = kCareful ? block.end : block.seen_begin;
  const std::size_t seen_end = kCareful ? block.end : block.seen_end;
  edge(block.begin, seen_begin);
  for (std::size_t j = seen_begin; j < seen_end; j += kParts) {
    HWY_UNROLL(8)
    for (std::size_t i = 0; i < kParts; ++i) {
      maxima.part[i] = hn::Max(maxima.part[i], hn::Load(d, scores + (j + i) * kLanes));
    }
  }
  edge(seen_end, block.end);
  return maxima;
}

// The solution of a map for each lane: tau = maximum + high + low, and the factor that makes the
// weights sum to one.
struct Solution {
  VF high, low, factor;
};

// ---- alpha = 1 ----------------------------------------------------------------------------------

struct SoftmaxLanes {
  static constexpr double kUnit = 1.0;
  double Unit() const { return kUnit; }
  double Eps() const { return 0.0; }

  // weights = e^(z - top). scores, weights: [keys][kLanes].
  HWY_INLINE Solution Solve(const Block& block, const Maxima&, VF top, MF,
                            float* HWY_RESTRICT scores, float* HWY_RESTRICT weights) const {
    const DF d;
    VF sum = hn::Zero(d);
    for (std::size_t j = block.begin; j < block.end; j += 4) {
      VF p[4];
      HWY_UNROLL(4)
      for (std::size_t i = 0; i < 4; ++i) {
        p[i] = ExpNonPositive(hn::Sub(hn::Load(d, scores + (j + i) * kLanes), top));
        hn::Store(p[i], d, weights + (j + i) * kLanes);
      }
      sum = hn::Add(sum, hn::Add(hn::Add(p[0], p[1]), hn::Add(p[2], p[3])));
    }
    const auto some = hn::Gt(sum, hn::Zero(d));
    const VF safe = hn::IfThenElse(some, sum, hn::Set(d, 1.0f));
    return {hn::Log(d, safe), hn::Zero(d),
            hn::IfThenElseZero(some, hn::Div(hn::Set(d, 1.0f), safe))};
  }

  // x = z - tau. p and its slope p^{2 - alpha}.
  HWY_INLINE void Weigh(VF x, VF& p, VF& slope) const {
    p = slope = ExpNonPositive(hn::Min(x, hn::Zero(DF())));
  }
};

// ---- 1 < alpha <= 2 -----------------------------------------------------------------------------

// The equation is that of simplex/entmax-inl.h: ||[z - tau]_+||_b = 1, b = 1/(alpha - 1).
template <class Power>
struct EntmaxLanes {
  // tau lies below -n^{-eps} and above -1. A rounding error of the bound does no harm: it only
  // keeps the largest entry above tau.
  EntmaxLanes(const Power& lane_power, double lane_eps, std::size_t keys)
      : power(lane_power), eps(lane_eps) {
    const double n = static_cast<double>(HWY_MAX(keys, std::size_t{1}));
    most = static_cast<float>(-0.999 * (eps == 0.5 ? 1.0 / std::sqrt(n) : std::pow(n, -eps)));
  }

  Power power;
  double eps;  // alpha - 1
  float most;
  double Unit() const { return eps; }
  double Eps() const { return eps; }

  // One pass: weights = [x - tau]_+^b with their sum and slope, tile by tile so that no float sum
  // takes many equal terms. In the first pass, x = scores - top is stored.
  template <bool kFirst>
  HWY_INLINE void Pass(const Block& block, VF top, VF tau, float* HWY_RESTRICT scores,
                       float* HWY_RESTRICT weights, VF* sum, VF* slope) const {
    const DF d;
    const VF zero = hn::Zero(d);
    *sum = *slope = zero;
    for (std::size_t j = block.begin; j < block.end; j += 8) {
      VF s[4], g[4];
      HWY_UNROLL(8)
      for (std::size_t i = 0; i < 8; ++i) {
        VF x = hn::Load(d, scores + (j + i) * kLanes);
        if constexpr (kFirst) {
          x = hn::Sub(x, top);
          hn::Store(x, d, scores + (j + i) * kLanes);
        }
        const VF u = hn::Max(hn::Sub(x, tau), zero);
        const VF p = power.Value(d, u);
        hn::Store(p, d, weights + (j + i) * kLanes);
        const VF slope_here = power.Slope(d, u, p);
        s[i % 4] = i < 4 ? p : hn::Add(s[i % 4], p);
        g[i % 4] = i < 4 ? slope_here : hn::Add(g[i % 4], slope_here);
      }
      *sum = hn::Add(*sum, hn::Add(hn::Add(s[0], s[1]), hn::Add(s[2], s[3])));
      *slope = hn::Add(*slope, hn::Add(hn::Add(g[0], g[1]), hn::Add(g[2], g[3])));
    }
  }

  // `active`: lanes with a finite maximum. The scores become z - top.
  HWY_INLINE Solution Solve(const Block& block, const Maxima& maxima, VF top, MF active,
                            float* HWY_RESTRICT scores, float* HWY_RESTRICT weights) const {
    const DF d;
    const VF one = hn::Set(d, 1.0f);
    const VF zero = hn::Zero(d), least = hn::Set(d, -1.0f), highest = hn::Set(d, most);
    // The threshold of a few entries is a lower bound of the row's: one step on the maxima in
    // registers, from -1, spares a pass over all of them (4.9 -> 3.9 at n = 64 in a
    // simulation).
    VF tau = least, sum = zero, slope = zero, step;
    HWY_UNROLL(8)
    for (std::size_t i = 0; i < kParts; ++i) {
      const VF u = hn::Max(hn::Add(hn::Sub(maxima.part[i], top), one), zero);
      const VF p = power.Value(d, u);
      sum = hn::Add(sum, p);
      slope = hn::Add(slope, power.Slope(d, u, p));
    }
    tau = hn::Min(hn::Max(hn::Sub(NewtonStep(power, sum, slope), one), least), highest);
    // Lanes without entries, or with NaN.
    tau = hn::IfThenElse(active, tau, least);
    Pass<true>(block, top, tau, scores, weights, &sum, &slope);
    // Every lane goes on until its own sum is right or float has no better tau. The bound is a
    // guard: five passes are usual.
    for (int passes = 0;; ++passes) {
      step = NewtonStep(power, sum, slope);
      const VF next = hn::Min(hn::Max(hn::Add(tau, step), least), highest);
      const auto off = hn::Gt(hn::Abs(hn::Sub(sum, one)), hn::Set(d, 1e-6f));
      const auto moving = hn::And(hn::And(active, off), hn::Ne(next, tau));
      if (hn::AllFalse(d, moving) || passes == 64) break;
      tau = hn::IfThenElse(moving, next, tau);
      Pass<false>(block, top, tau, scores, weights, &sum, &slope);
    }
    const auto some = hn::And(active, hn::Gt(sum, hn::Zero(d)));
    return {tau, hn::IfThenElseZero(some, step),
            hn::IfThenElseZero(some, hn::Div(one, hn::IfThenElse(some, sum, one)))};
  }

  HWY_INLINE void Weigh(VF x, VF& p, VF& slope) const {
    const DF d;
    const VF u = hn::Max(x, hn::Zero(d));
    p = power.Value(d, u);
    slope = power.Slope(d, u, p);
  }
};

// Calls `run` with the map of one head, for rows of at most `keys` entries.
template <class Run>
HWY_INLINE void WithLanesMap(RowMap map, double alpha, std::size_t keys, const Run& run) {
  if (map == RowMap::kSoftmax || alpha == 1.0) {
    run(SoftmaxLanes());
  } else {
    const double eps = alpha - 1.0;
    WithPower(eps, [&](const auto& power) HWY_ATTR {
      run(EntmaxLanes<std::decay_t<decltype(power)>>(power, eps, keys));
    });
  }
}

// ---- statistics ---------------------------------------------------------------------------------

// Entries with p > 0 and -sum p ln p of each lane, p = factor weights.
HWY_NOINLINE void Describe(const Block& block, const float* weights, VF factor, VF* support,
                           VF* entropy) {
  const DF d;
  *support = *entropy = hn::Zero(d);
  for (std::size_t j = block.begin; j < block.end; ++j) {
    const VF p = hn::Mul(hn::Load(d, weights + j * kLanes), factor);
    const auto positive = hn::Gt(p, hn::Zero(d));
    const VF safe =
        hn::IfThenElse(positive, hn::Max(p, hn::Set(d, 1.17549435e-38f)), hn::Set(d, 1.0f));
    *support = hn::Add(*support, hn::IfThenElseZero(positive, hn::Set(d, 1.0f)));
    *entropy = hn::NegMulAdd(p, hn::Log(d, safe), *entropy);
  }
}

// ---- the gradient in alpha ----------------------------------------------------------------------

// Sums of one lane for dp/dalpha (simplex/entmax.cc): with L = ln p and
// R = (p^{-eps} - 1 + eps L)/eps^2, D = sum p^{1 - eps},
//   sum dp_j dp_j/dalpha = (<R> <g> - <g R> - eps (<R> <g L> - <L> <g R>))/D, <x> = sum p x,
// g = dp less any constant.
struct AlphaSums {
  VF r, l, g, gr, gl;
};

// p R; `slope` is p^{1 - eps}.
HWY_INLINE VF WeightedR(VF p, VF log_p, VF slope, float eps) {
  const DF d;
  const VF x = hn::Mul(log_p, hn::Set(d, -eps));
  // phi(x) = (e^x - 1 - x)/x^2 by its series, where the difference would cancel.
  VF phi = hn::Set(d, 1.0f / 40320);
  for (const float c : {1.0f / 5040, 1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f}) {
    phi = hn::MulAdd(phi, x, hn::Set(d, c));
  }
  const VF near = hn::Mul(hn::Mul(p, phi), hn::Mul(log_p, log_p));
  if (eps == 0.0f) return near;
  const VF far = hn::Mul(hn::Sub(hn::Sub(slope, p), hn::Mul(p, x)), hn::Set(d, 1.0f / (eps * eps)));
  return hn::IfThenElse(hn::Lt(x, hn::Set(d, 0.5f)), near, far);
}

}  // namespace HWY_NAMESPACE
}  // namespace tsallis
HWY_AFTER_NAMESPACE();
#endif  // TSALLIS_VECTORS_HERE

#endif  // per-target include guard
