// Entmax rows for alpha in (0, 2], alpha = 1 excepted. Included once per instruction set.
//
// For alpha > 1: z = scale (x - maximum), scale = (alpha - 1)/temperature, and tau in [-1, 0)
// relative to the maximum. The equation solved is ||[z - tau]_+||_b = 1, b = 1/(alpha - 1) >= 1: a
// norm of a convex function, so Newton from a lower bound never overshoots, and unlike sum [z -
// tau]^b = 1 it is nearly linear from afar (exactly so on a flat row): 4-6 steps instead of 10-15.
#if defined(TSALLIS_SIMPLEX_ENTMAX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TSALLIS_SIMPLEX_ENTMAX_INL_H_
#undef TSALLIS_SIMPLEX_ENTMAX_INL_H_
#else
#define TSALLIS_SIMPLEX_ENTMAX_INL_H_
#endif

#include <hwy/contrib/math/math-inl.h>

#include <cmath>
#include <type_traits>

#include "simplex/map.h"
#include "simplex/scratch.h"
#include "simplex/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tsallis {
namespace HWY_NAMESPACE {

// How u^b and its slope u^(b-1) are had from u = [z - tau]_+: one of the five below. Root() is
// sum^(1 - 1/b), which Newton's step on the norm takes.
struct SquarePower {  // alpha = 1.5
  HWY_INLINE VF Value(DF, VF u) const { return hn::Mul(u, u); }
  HWY_INLINE VF Slope(DF, VF u, VF) const { return u; }
  double Root(double sum) const { return std::sqrt(sum); }
  HWY_INLINE VF Root(DF, VF sum) const { return hn::Sqrt(sum); }
};

struct IdentityPower {  // alpha = 2
  HWY_INLINE VF Value(DF, VF u) const { return u; }
  HWY_INLINE VF Slope(DF d, VF u, VF) const {
    return hn::IfThenElseZero(hn::Gt(u, hn::Zero(d)), hn::Set(d, 1.0f));
  }
  double Root(double) const { return 1.0; }
  HWY_INLINE VF Root(DF d, VF) const { return hn::Set(d, 1.0f); }
};

// sum^(1 - 1/exponent)
HWY_INLINE VF RootOfSum(DF d, VF sum, double exponent) {
  return hn::Exp(d, hn::Mul(hn::Log(d, sum), hn::Set(d, static_cast<float>(1.0 - 1.0 / exponent))));
}

struct FourthPower {  // alpha = 1.25
  HWY_INLINE VF Value(DF, VF u) const { return hn::Mul(hn::Mul(u, u), hn::Mul(u, u)); }
  HWY_INLINE VF Slope(DF, VF u, VF) const { return hn::Mul(u, hn::Mul(u, u)); }
  double Root(double sum) const { return std::sqrt(sum) * std::sqrt(std::sqrt(sum)); }
  HWY_INLINE VF Root(DF, VF sum) const {
    const VF root = hn::Sqrt(sum);
    return hn::Mul(root, hn::Sqrt(root));
  }
};

struct IntegerPower {  // alpha = 4/3, 1.2 ...: no logarithms
  int exponent;        // b >= 2
  HWY_INLINE VF Raise(DF d, VF u, int power) const {
    VF out = hn::Set(d, 1.0f);
    for (;; u = hn::Mul(u, u)) {
      if (power & 1) out = hn::Mul(out, u);
      power >>= 1;
      if (power == 0) return out;
    }
  }
  HWY_INLINE VF Value(DF d, VF u) const { return Raise(d, u, exponent); }
  HWY_INLINE VF Slope(DF d, VF u, VF) const { return Raise(d, u, exponent - 1); }
  double Root(double sum) const { return std::pow(sum, 1.0 - 1.0 / exponent); }
  HWY_INLINE VF Root(DF d, VF sum) const { return RootOfSum(d, sum, exponent); }
};

struct GeneralPower {
  double exponent;  // b
  HWY_INLINE VF Value(DF d, VF u) const {
    const auto positive = hn::Gt(u, hn::Zero(d));
    const VF log_u = hn::Log(d, hn::IfThenElse(positive, u, hn::Set(d, 1.0f)));
    const VF log_p = hn::Mul(log_u, hn::Set(d, static_cast<float>(exponent)));
    return hn::IfThenElseZero(positive, ExpNonPositive(hn::Min(log_p, hn::Zero(d))));
  }
  HWY_INLINE VF Slope(DF d, VF u, VF p) const {
    return hn::IfThenElseZero(hn::Gt(u, hn::Zero(d)), hn::Div(p, u));
  }
  double Root(double sum) const { return std::pow(sum, 1.0 - 1.0 / exponent); }
  HWY_INLINE VF Root(DF d, VF sum) const { return RootOfSum(d, sum, exponent); }
};

// Calls `solve` with the cheapest power for alpha = 1 + eps, 0 < eps <= 1.
template <class Solve>
HWY_INLINE auto WithPower(double eps, const Solve& solve) {
  if (eps == 0.5) return solve(SquarePower());
  if (eps == 1.0) return solve(IdentityPower());
  if (eps == 0.25) return solve(FourthPower());
  const double exponent = 1.0 / eps;
  if (std::abs(exponent - std::round(exponent)) < 1e-14 * exponent) {
    return solve(IntegerPower{static_cast<int>(std::lround(exponent))});
  }
  return solve(GeneralPower{exponent});
}

// Newton's step on the norm for a row a lane: sum = sum u^b, slope = sum u^(b - 1). Approximate
// where the instruction set has 14 bits of it: the next step takes the error of this one away, and
// waiting for the root and the quotient would cost as much as the sums.
template <class Power>
HWY_INLINE VF NewtonStep(const Power& power, VF sum, VF slope) {
  const DF d;
#if HWY_TARGET <= HWY_AVX3
  if constexpr (std::is_same_v<Power, SquarePower>) {
    // sum - sqrt(sum), free of cancellation near 1.
    const VF one = hn::Set(d, 1.0f);
    const VF root = hn::Mul(sum, hn::ApproximateReciprocalSqrt(sum));
    return hn::Mul(hn::Mul(hn::Sub(sum, one), root),
                   hn::ApproximateReciprocal(hn::Mul(hn::Add(root, one), slope)));
  }
  return hn::Mul(hn::Sub(sum, power.Root(d, sum)), hn::ApproximateReciprocal(slope));
#else
  return hn::Div(hn::Sub(sum, power.Root(d, sum)), slope);
#endif
}

// A threshold with more digits than a float: many entries may lie so close above it that rounding
// it to float alone would cost the sum 1e-4 (n = 1e6 ties at z - tau = 1e-3, tau = -0.5).
struct SplitThreshold {
  explicit SplitThreshold(double tau)
      : high(static_cast<float>(tau)), low(static_cast<float>(tau - static_cast<double>(high))) {}
  float high, low;
};

template <class Power>
class EntmaxSolver {
 public:
  EntmaxSolver(const Power& power, float maximum, double scale)
      : power_(power), maximum_(maximum), scale_(static_cast<float>(scale)) {}

  // One Newton step from `tau`: the sum at tau, and tau moved.
  HWY_INLINE double Step(const float* x, std::size_t n, double* tau) const {
    double sum, slope;
    const DF d;
    const Distance distance(*this, *tau);
    SumTwo(x, n, -kInfinityF, &sum, &slope, [&](VF v, VF& a, VF& b) HWY_ATTR {
      const VF u = distance(v);
      const VF p = power_.Value(d, u);
      a = hn::Add(a, p);
      b = hn::Add(b, power_.Slope(d, u, p));
    });
    *tau += Newton(sum, slope);
    return sum;
  }

  // From a lower bound `tau` to the root; y = [z - tau]^b, summing to 1. x, y: [n], apart.
  HWY_INLINE double Solve(const float* x, std::size_t n, double tau, float* y) const {
    // Quadratic convergence. Only the first step is known not to land; the others write what they
    // find (a flat row is done after one).
    Step(x, n, &tau);
    return Finish(x, n, tau, y);
  }

  // Solves from a `tau` that may be the root already.
  HWY_INLINE double Finish(const float* x, std::size_t n, double tau, float* y) const {
    double previous_error = 1e30;
    for (;;) {
      const double before = tau;
      const double sum = Write(x, n, &tau, y);
      const double error = std::abs(sum - 1.0);
      if (error <= 2.5e-7) return before;
      if (error >= 0.5 * previous_error && error < 1e-4) {
        // The floor of float: what is left is a common factor.
        const float factor = static_cast<float>(1.0 / sum);
        for (std::size_t j = 0; j < n; ++j) y[j] *= factor;
        return before;
      }
      previous_error = error;
    }
  }

  // y = [z - tau]^b, if that sums to 1 but for rounding.
  HWY_INLINE bool Accepts(const float* x, std::size_t n, double tau, float* y) const {
    double moved = tau;
    return std::abs(Write(x, n, &moved, y) - 1.0) <= 5e-7;
  }

  float maximum() const { return maximum_; }

 private:
  // One Newton step from `tau` that leaves y = [z - tau]^b behind.
  HWY_INLINE double Write(const float* x, std::size_t n, double* tau, float* y) const {
    double sum, slope;
    const DF d;
    const Distance distance(*this, *tau);
    MapSumTwo(x, n, -kInfinityF, y, &sum, &slope, [&](VF v, VF& a, VF& b) HWY_ATTR {
      const VF u = distance(v);
      const VF p = power_.Value(d, u);
      a = hn::Add(a, p);
      b = hn::Add(b, power_.Slope(d, u, p));
      return p;
    });
    *tau += Newton(sum, slope);
    return sum;
  }

  // u = [z - tau]_+ of a vector of scores.
#if HWY_TARGET <= HWY_AVX2 || HWY_ARCH_ARM_A64
  // One rounding in scale v - (scale maximum + tau), which counts on a fused multiply-add.
  struct Distance {
    HWY_INLINE Distance(const EntmaxSolver& solver, double tau)
        : Distance(solver.scale_,
                   SplitThreshold(static_cast<double>(solver.scale_) * solver.maximum_ + tau)) {}
    HWY_INLINE Distance(float factor, const SplitThreshold& bar)
        : scale(hn::Set(DF(), factor)),
          high(hn::Set(DF(), bar.high)),
          low(hn::Set(DF(), bar.low)) {}
    HWY_INLINE VF operator()(VF v) const {
      return hn::Max(hn::Sub(hn::MulSub(v, scale, high), low), hn::Zero(DF()));
    }
    VF scale, high, low;
  };
#else
  struct Distance {
    HWY_INLINE Distance(const EntmaxSolver& solver, double tau)
        : top(hn::Set(DF(), solver.maximum_)),
          scale(hn::Set(DF(), solver.scale_)),
          high(hn::Set(DF(), SplitThreshold(tau).high)),
          low(hn::Set(DF(), SplitThreshold(tau).low)) {}
    HWY_INLINE VF operator()(VF v) const {
      const VF z = hn::Mul(hn::Sub(v, top), scale);
      return hn::Max(hn::Sub(hn::Sub(z, high), low), hn::Zero(DF()));
    }
    VF top, scale, high, low;
  };
#endif

  double Newton(double sum, double slope) const { return (sum - power_.Root(sum)) / slope; }

  Power power_;
  float maximum_, scale_;
};

// Lists the entries of x that can be in the support, in one pass: those above a threshold that
// rises with the running maximum and with `raise`, which is called when the list has grown, may
// shorten it and returns a score that the threshold of the whole row exceeds. Returns false if the
// list outgrew `scratch.capacity`: the row is dense. *maximum as RowMaximum's.
//
// reach: no entry below maximum - reach is in the support.
template <class Raise>
HWY_INLINE bool CollectCandidates(const float* HWY_RESTRICT x, std::size_t n, double reach,
                                  CandidateScratch& list, float* maximum, const Raise& raise) {
  const DF d;
  const hn::RebindToUnsigned<DF> du;
  const std::size_t lanes = hn::Lanes(d);
  // In long rows, the maxima of parts of the first block, a subset of the row, bound the threshold
  // from below before anything is listed.
  float top = RowMaximum(x, HWY_MIN(n, kCollectBlock), list.value.get());
  double bar = static_cast<double>(top) - reach;
  if (n >= 1024 && std::abs(top) < kInfinityF) {  // neither NaN nor infinite
    list.count = 4 * lanes;
    bar = HWY_MAX(bar, raise(top));
  }
  list.count = 0;
  const auto float_below = [](double value) {
    return std::nextafterf(static_cast<float>(value), -kInfinityF);
  };
  VF running = hn::Set(d, top);
  auto bad = hn::IsNaN(running);
  std::size_t raise_at = 256;
  // Iota inside the loop costs GCC 12 a trip through memory with a stalled load.
  const auto first_columns = hn::Iota(du, 0);
  for (std::size_t start = 0; start < n; start += kCollectBlock) {
    const std::size_t end = HWY_MIN(n, start + kCollectBlock);
    const VF threshold = hn::Set(d, float_below(bar));
    std::size_t i = start;
    // Locals: the compiler must assume that a vector store changes any member.
    float* HWY_RESTRICT value = list.value.get();
    std::uint32_t* HWY_RESTRICT index = list.index.get();
    std::size_t count = list.count;
    const auto append = [&](VF v, std::size_t at) HWY_ATTR {
      const auto mask = hn::Gt(v, threshold);
      const auto columns = hn::Add(first_columns, hn::Set(du, static_cast<std::uint32_t>(at)));
      count += StoreTaken(mask, v, value + count, columns, index + count);
    };
    for (; i + 4 * lanes <= end; i += 4 * lanes) {
      const VF v0 = hn::LoadU(d, x + i), v1 = hn::LoadU(d, x + i + lanes);
      const VF v2 = hn::LoadU(d, x + i + 2 * lanes), v3 = hn::LoadU(d, x + i + 3 * lanes);
      const VF most = hn::Max(hn::Max(v0, v1), hn::Max(v2, v3));
      bad = hn::Or(bad, hn::IsNaN(hn::Add(hn::Add(v0, v1), hn::Add(v2, v3))));
      running = hn::Max(running, most);
      if (hn::AllFalse(d, hn::Gt(most, threshold))) continue;
      append(v0, i);
      append(v1, i + lanes);
      append(v2, i + 2 * lanes);
      append(v3, i + 3 * lanes);
    }
    for (; i < end; i += lanes) {
      const VF v =
          end - i >= lanes ? hn::LoadU(d, x + i) : LoadPart(d, x + i, end - i, -kInfinityF);
      bad = hn::Or(bad, hn::IsNaN(v));
      running = hn::Max(running, v);
      append(v, i);
    }
    list.count = count;
    if (!hn::AllFalse(d, bad)) break;
    top = LargestLane(running);
    bar = HWY_MAX(bar, static_cast<double>(top) - reach);
    if (list.count >= HWY_MIN(raise_at, list.capacity)) {
      bar = HWY_MAX(bar, raise(top));
      if (list.count >= list.capacity) {
        *maximum = RowMaximum(x, n);
        return false;
      }
      raise_at = HWY_MAX(std::size_t{256}, 2 * list.count);
    }
  }
  *maximum = hn::AllFalse(d, bad) && top < kInfinityF ? top : RowMaximum(x, n);
  // Scores whose sum overflowed look bad but may be fine; the list is then unfinished.
  return hn::AllFalse(d, bad) || std::isnan(*maximum);
}

// Drops the entries at or below `bar`.
HWY_INLINE void Compact(CandidateScratch& list, double bar) {
  const DF d;
  const hn::RebindToUnsigned<DF> du;
  const std::size_t lanes = hn::Lanes(d);
  const VF threshold = hn::Set(d, std::nextafterf(static_cast<float>(bar), -kInfinityF));
  std::size_t kept = 0;
  for (std::size_t i = 0; i < list.count; i += lanes) {
    const VF v = list.count - i >= lanes
                     ? hn::LoadU(d, list.value.get() + i)
                     : LoadPart(d, list.value.get() + i, list.count - i, -kInfinityF);
    const auto columns = hn::LoadU(du, list.index.get() + i);
    const auto mask = hn::Gt(v, threshold);
    kept += StoreTaken(mask, v, list.value.get() + kept, columns, list.index.get() + kept);
  }
  list.count = kept;
}

// A caller's guesses about a row before it is solved. A wrong guess costs time only.
struct RowHint {
  double tau = NAN;    // the threshold, as RowStats reports it (kEntmax only)
  bool dense = false;  // much of the row is in the support, so that lists save nothing
};

// Scores so large that scale * maximum + tau loses digits of tau, or all of them: Newton would not
// end.
HWY_INLINE bool IsVast(double scale, float maximum) {
  return std::abs(scale * static_cast<double>(maximum)) > 0x1p20;
}

// Rows so long that a sample of them is worth solving first: passes over all of a row are what
// costs.
inline constexpr std::size_t kSampledRow = 1024;

// About the threshold, relative to the maximum: that of every eighth block of 64 entries, each of
// which counts for eight. Below 0, so that the sum of the weights there is not. sample: [n / 8 +
// 64].
template <class Power>
HWY_INLINE double SampledThreshold(const Power& power, const float* x, std::size_t n, double scale,
                                   float maximum, float* sample) {
  constexpr std::size_t kBlock = 64, kStride = 8;
  std::size_t count = 0;
  for (std::size_t i = 0; i + kBlock <= n; i += kStride * kBlock, count += kBlock) {
    std::memcpy(sample + count, x + i, kBlock * sizeof(float));
  }
  // Root(c) is c^(1 - 1/b), and c equal entries weigh as much as one whose u is c^(1/b) as large.
  const double of_one = static_cast<double>(n) / static_cast<double>(count);
  const double copies = of_one / power.Root(of_one);
  const EntmaxSolver<Power> solver(power, maximum, scale * copies);
  double tau = -1.0;
  for (int step = 0; step < 8; ++step) {
    const double before = tau, sum = solver.Step(sample, count, &tau);
    if (!std::isfinite(tau)) tau = before;  // no entry of the sample lies above
    if (std::abs(sum - 1.0) < 0.02 || tau == before) break;
  }
  // The largest weight is at least 1 / n.
  const double entries = static_cast<double>(n);
  return HWY_MAX(-1.0, HWY_MIN(tau / copies, -power.Root(entries) / entries));
}

// Entmax of one row without NaN handling left to do: *maximum tells (as RowMaximum's), and y is
// written only if it is finite. Returns tau relative to the maximum, NaN if the row is vast and
// left to others; *listed tells whether the support is in `list` (p and index) besides y. x, y:
// [n], apart.
template <class Power>
HWY_INLINE double EntmaxRow(const Power& power, const float* x, std::size_t n, double scale,
                            float* y, CandidateScratch& list, float* maximum, bool* listed,
                            const RowHint& hint) {
  *listed = false;
  if (n > kShortRow && n <= 0xFFFFFFFFu && !hint.dense && std::isnan(hint.tau)) {
    double tau = -1.0;
    float tau_of = -kInfinityF;  // the maximum that tau is relative to
    // tau, relative to the maximum so far, stays a lower bound as the maximum rises.
    const auto rebase = [&](float top) {
      if (tau_of > -kInfinityF) tau += scale * (static_cast<double>(tau_of) - top);
      tau = HWY_MAX(-1.0, tau);
      tau_of = top;
    };
    const auto raise = [&](float top) HWY_ATTR {
      if (IsVast(scale, top)) return static_cast<double>(top) - 1.0 / scale;
      const EntmaxSolver<Power> solver(power, top, scale);
      rebase(top);
      for (int step = 0; step < 6; ++step) {
        if (solver.Step(list.value.get(), list.count, &tau) < 1.01) break;
      }
      // Sums in float may carry Newton past the root by a rounding error.
      tau = HWY_MAX(-1.0, tau - 1e-6);
      const double bar = static_cast<double>(top) + tau / scale;
      Compact(list, bar);
      return bar;
    };
    if (CollectCandidates(x, n, 1.0 / scale, list, maximum, raise)) {
      if (!(*maximum > -kInfinityF)) return 0.0;  // NaN or -inf
      if (IsVast(scale, *maximum)) return NAN;
      if (list.count > 256) raise(*maximum);
      rebase(*maximum);
      const EntmaxSolver<Power> solver(power, *maximum, scale);
      tau = solver.Solve(list.value.get(), list.count, tau, list.p.get());
      std::memset(y, 0, n * sizeof(float));
      for (std::size_t i = 0; i < list.count; ++i) y[list.index[i]] = list.p[i];
      *listed = true;
      return tau;
    }
  } else {
    *maximum = RowMaximum(x, n);
  }
  if (!(*maximum > -kInfinityF)) return 0.0;
  if (IsVast(scale, *maximum)) return NAN;
  const EntmaxSolver<Power> solver(power, *maximum, scale);
  const double guess = hint.tau - scale * static_cast<double>(*maximum);
  if (guess >= -1.0 && guess < 0.0 && solver.Accepts(x, n, guess, y)) return guess;
  if (n >= kSampledRow) {
    return solver.Finish(x, n, SampledThreshold(power, x, n, scale, *maximum, list.value.get()), y);
  }
  return solver.Solve(x, n, -1.0, y);
}

// Entmax for alpha so close to 1 that z - tau = 1 + O(alpha - 1) has no digits left: with
// w = ln p_max, p = exp(w + log1p(-r)/eps), r = eps depth e^{-eps w}, solved for w (see solve.h).
// Returns w. x, y: [n], apart.
HWY_INLINE double NearSoftmaxRow(double eps, const float* x, std::size_t n, float maximum,
                                 double inverse_temperature, float* y) {
  const DF d;
  const VF top = hn::Set(d, maximum), one = hn::Set(d, 1.0f);
  double low = -std::log(static_cast<double>(n)) - 1e-6, high = 0.0;
  double w = 0.5 * low, previous_error = 1e30;
  for (;;) {
    double sum, slope;
    const VF shrink =
        hn::Set(d, static_cast<float>(eps * inverse_temperature * std::exp(-eps * w)));
    const VF inverse_eps = hn::Set(d, static_cast<float>(1.0 / eps));
    const VF peak = hn::Set(d, static_cast<float>(std::exp(w)));
    MapSumTwo(x, n, -kInfinityF, y, &sum, &slope, [&](VF v, VF& a, VF& b) HWY_ATTR {
      const VF r = hn::Mul(hn::Sub(top, v), shrink);
      const VF rest = hn::Sub(one, r);
      const auto alive = hn::Gt(rest, hn::Zero(d));
      const VF safe = hn::IfThenElse(alive, rest, one);
      // log1p(-r) = log(1 - r) r / (1 - (1 - r)) undoes the rounding of 1 - r.
      const VF lost = hn::Sub(one, safe);
      const VF ratio = hn::IfThenElse(
          hn::Gt(lost, hn::Zero(d)),
          hn::Mul(hn::Log(d, safe), hn::Div(r, hn::Max(lost, hn::Set(d, 1e-8f)))), hn::Neg(r));
      const VF p = hn::IfThenElseZero(
          alive, hn::Mul(peak, ExpNonPositive(hn::Min(hn::Mul(ratio, inverse_eps), hn::Zero(d)))));
      a = hn::Add(a, p);
      b = hn::Add(b, hn::Div(p, safe));
      return p;
    });
    const double error = std::abs(sum - 1.0);
    if (error <= 2.5e-7) return w;
    if (error >= 0.5 * previous_error && error < 1e-4) {
      const float factor = static_cast<float>(1.0 / sum);
      for (std::size_t j = 0; j < n; ++j) y[j] *= factor;
      return w;
    }
    previous_error = error;
    (sum < 1.0 ? low : high) = w;
    const double next = w - std::log(sum) * sum / slope;
    w = next > low && next < high ? next : 0.5 * (low + high);
  }
}

// Entmax for alpha = 1 - g, 0 < g < 1. Every finite score has a weight:
//   p = (y + g depth)^{-1/g} = exp(w - log1p(t)/g),  y = e^{-g w},  t = g depth e^{g w},
// with depth = (maximum - x)/temperature and w = ln p_max in [-ln n, 0]. The equation solved is
// ||y + g depth||_{-1/g} = 1, y >= 1: a norm of negative order, concave and increasing in y, so
// that every Newton step ends at or below the root and from there on they only rise; on a flat row
// the first lands. Returns w. x, y: [n], apart. guess: of w, where Newton begins; 0 if it cannot be
// true.
HWY_INLINE double FullSupportRow(double g, const float* x, std::size_t n, float maximum,
                                 double inverse_temperature, double guess, float* y) {
  const DF d;
  const VF top = hn::Set(d, maximum), one = hn::Set(d, 1.0f);
  const VF inverse_g = hn::Set(d, static_cast<float>(1.0 / g));
  const double least = -std::log(static_cast<double>(n)) - 1e-6;
  double w = guess >= least && guess < 0.0 ? guess : 0.0, previous_error = 1e30;
  for (;;) {
    double sum, slope;
    const VF shrink = hn::Set(d, static_cast<float>(g * inverse_temperature * std::exp(g * w)));
    const VF peak = hn::Set(d, static_cast<float>(std::exp(w)));
    MapSumTwo(x, n, -kInfinityF, y, &sum, &slope, [&](VF v, VF& a, VF& b) HWY_ATTR {
      const VF t = hn::Mul(hn::Sub(top, v), shrink);
      // Absent, or as good as absent: beyond what float and its logarithm hold.
      const auto alive = hn::Lt(t, hn::Set(d, 1e38f));
      const VF rest = hn::Add(one, hn::IfThenElseZero(alive, t));
      // log1p(t) = log(1 + t) t / ((1 + t) - 1) undoes the rounding of 1 + t.
      const VF gained = hn::Sub(rest, one);
      const VF log_rest = hn::IfThenElse(
          hn::Gt(gained, hn::Zero(d)),
          hn::Mul(hn::Log(d, rest), hn::Div(t, hn::Max(gained, hn::Set(d, 1e-8f)))), t);
      const VF p = hn::IfThenElseZero(
          alive, hn::Mul(peak, ExpNonPositive(hn::Neg(hn::Mul(log_rest, inverse_g)))));
      a = hn::Add(a, p);
      b = hn::Add(b, hn::Div(p, rest));
      return p;
    });
    const double error = std::abs(sum - 1.0);
    if (error <= 2.5e-7) return w;
    if (error >= 0.5 * previous_error && error < 1e-4) {
      const float factor = static_cast<float>(1.0 / sum);
      for (std::size_t j = 0; j < n; ++j) y[j] *= factor;
      return w;
    }
    previous_error = error;
    // Newton's step on the norm, as a part of y. From above the root it may end below y = 1.
    const double step = sum * std::expm1(g * std::log(sum)) / slope;
    w = step > -1.0 ? std::fmin(0.0, w - std::log1p(step) / g) : 0.0;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tsallis
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
