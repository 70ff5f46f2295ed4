// The threshold of a list of scores, in double.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "attention/cpu/decode/decode.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attention/cpu/decode/solve.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include <hwy/contrib/math/math-inl.h>

#include "simplex/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tsallis {
namespace HWY_NAMESPACE {

// u^b of u >= 0 and, from that, u^(b - 1), b = 1 / (alpha - 1); both are 0 at 0, also for b = 1.
// Root() is sum^(1 - 1/b). As in entmax-inl.h, but in double.
struct WideSquare {
  HWY_INLINE VD Value(DD, VD u) const { return hn::Mul(u, u); }
  HWY_INLINE VD Slope(DD, VD u, VD) const { return u; }
  double Root(double sum) const { return std::sqrt(sum); }
};
struct WideIdentity {
  HWY_INLINE VD Value(DD, VD u) const { return u; }
  HWY_INLINE VD Slope(DD d, VD u, VD) const {
    return hn::IfThenElseZero(hn::Gt(u, hn::Zero(d)), hn::Set(d, 1.0));
  }
  double Root(double) const { return 1.0; }
};
struct WideFourth {  // alpha = 1.25
  HWY_INLINE VD Value(DD, VD u) const { return hn::Mul(hn::Mul(u, u), hn::Mul(u, u)); }
  HWY_INLINE VD Slope(DD, VD u, VD) const { return hn::Mul(u, hn::Mul(u, u)); }
  double Root(double sum) const { return std::sqrt(sum) * std::sqrt(std::sqrt(sum)); }
};
struct WideGeneral {
  double b;
  HWY_INLINE VD Value(DD d, VD u) const {
    const auto positive = hn::Gt(u, hn::Zero(d));
    const VD log = hn::Log(d, hn::IfThenElse(positive, u, hn::Set(d, 1.0)));
    return hn::IfThenElseZero(positive, hn::Exp(d, hn::Mul(log, hn::Set(d, b))));
  }
  HWY_INLINE VD Slope(DD d, VD u, VD value) const {
    return hn::IfThenElseZero(hn::Gt(u, hn::Zero(d)), hn::Div(value, u));
  }
  double Root(double sum) const { return std::pow(sum, 1.0 - 1.0 / b); }
};

template <class Run>
HWY_INLINE auto WithWidePower(double alpha, const Run& run) {
  if (alpha == 1.5) return run(WideSquare());
  if (alpha == 2.0) return run(WideIdentity());
  if (alpha == 1.25) return run(WideFourth());
  return run(WideGeneral{1.0 / (alpha - 1.0)});
}

constexpr double kBelowAll = -std::numeric_limits<double>::infinity();

// Numbers of a list in whole pairs of vectors: the places behind the last hold -inf, which no sum
// sees.
HWY_INLINE std::size_t WholePairs(std::size_t n) {
  const std::size_t pair = 2 * hn::Lanes(DD());
  return (n + pair - 1) / pair * pair;
}
HWY_INLINE void FillPair(double* z, std::size_t n) {
  std::fill(z + n, z + WholePairs(n), kBelowAll);
}

struct PowerSums {
  double value, slope;
};

// Of [z - tau]^b and [z - tau]^(b - 1), b as above. Sums side by side wait for no other.
template <class Power>
HWY_INLINE PowerSums SumsAt(const Power& power, const double* HWY_RESTRICT z, std::size_t n,
                            double tau) {
  const DD d;
  const std::size_t lanes = hn::Lanes(d), end = WholePairs(n);
  const VD zero = hn::Zero(d), at = hn::Set(d, tau);
  VD value[2] = {zero, zero}, slope[2] = {zero, zero};
  for (std::size_t i = 0; i < end; i += 2 * lanes) {
    for (std::size_t half = 0; half < 2; ++half) {
      const VD u = hn::Max(hn::Sub(hn::LoadU(d, z + i + half * lanes), at), zero);
      const VD raised = power.Value(d, u);
      value[half] = hn::Add(value[half], raised);
      slope[half] = hn::Add(slope[half], power.Slope(d, u, raised));
    }
  }
  return {Total(hn::Add(value[0], value[1])), Total(hn::Add(slope[0], slope[1]))};
}

// A tau that is none too high: the mean of u^b is at least the mean of u to the power of b >= 1, so
// that n times (mean z - tau)^b is 1 at most. Of a flat row it is the threshold.
HWY_INLINE double LeastByMean(const double* HWY_RESTRICT z, std::size_t n, double exponent) {
  if (exponent < 1.0) return -1.0;
  const DD d;
  const std::size_t lanes = hn::Lanes(d);
  VD total = hn::Zero(d);
  std::size_t i = 0;
  for (; i + lanes <= n; i += lanes) total = hn::Add(total, hn::LoadU(d, z + i));
  double sum = Total(total);
  for (; i < n; ++i) sum += z[i];
  const auto count = static_cast<double>(n);
  return std::max(-1.0, sum / count - std::pow(count, -1.0 / exponent));
}

// The tau with sum [z - tau]^b = 1. z <= 0 with one of 0, so that tau lies in [-1, 0). Newton's
// steps on the norm of [z - tau] do not overshoot from below where b >= 1 (entmax-inl.h); where
// they leave the bracket it is halved.
template <class Power>
double WideThreshold(const Power& power, double exponent, const double* z, std::size_t n) {
  double low = -1.0, high = 0.0, tau = LeastByMean(z, n, exponent);
  for (int step = 0; step < 200; ++step) {
    const auto [sum, slope] = SumsAt(power, z, n, tau);
    (sum >= 1.0 ? low : high) = tau;
    double next = tau + (sum - power.Root(sum)) / slope;
    if (!(next > low && next < high)) {
      // It stands at the root, or on the wrong side of it by a rounding.
      if (std::abs(next - tau) <= 4e-16) return tau;
      next = 0.5 * (low + high);
    }
    if (std::abs(next - tau) <= 1e-16 || next == low || next == high) return next;
    tau = next;
  }
  return tau;
}

// z of the keys and, behind them, of the sink if there is one, relative to the largest score, which
// it returns. z: room for WholePairs(n + 1).
double Relative(const decode::Map& map, const double* HWY_RESTRICT s, std::size_t n,
                double* HWY_RESTRICT z, std::size_t* count) {
  const DD d;
  const std::size_t lanes = hn::Lanes(d);
  VD most = hn::Set(d, map.sink);
  std::size_t i = 0;
  for (; i + lanes <= n; i += lanes) most = hn::Max(most, hn::LoadU(d, s + i));
  double top = hn::GetLane(hn::MaxOfLanes(d, most));
  for (; i < n; ++i) top = std::max(top, s[i]);
  const double factor = map.alpha - 1.0;
  const VD by = hn::Set(d, factor), from = hn::Set(d, top);
  for (i = 0; i + lanes <= n; i += lanes) {
    hn::StoreU(hn::Mul(by, hn::Sub(hn::LoadU(d, s + i), from)), d, z + i);
  }
  for (; i < n; ++i) z[i] = factor * (s[i] - top);
  *count = n;
  if (map.sink > kBelowAll) z[(*count)++] = factor * (map.sink - top);
  FillPair(z, *count);
  return top;
}

double SolveList(const decode::Map& map, const double* s, std::size_t n, double* z, double* support,
                 float* HWY_RESTRICT p) {
  const DD d;
  const hn::Rebind<float, DD> df;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t count;
  const double top = Relative(map, s, n, z, &count);
  const double exponent = 1.0 / (map.alpha - 1.0);
  return WithWidePower(map.alpha, [&](const auto& power) HWY_ATTR {
    // First on all, then on the support alone, from the start: what else is in the list leaves no
    // trace.
    const double least = WideThreshold(power, exponent, z, count) - 1e-12;
    std::size_t kept = 0;
    for (std::size_t i = 0; i < count; ++i) {
      support[kept] = z[i];
      kept += z[i] >= least ? 1 : 0;
    }
    FillPair(support, kept);
    const double tau = WideThreshold(power, exponent, support, kept);
    const VD at = hn::Set(d, tau), zero = hn::Zero(d);
    const VD by = hn::Set(d, 1.0 / SumsAt(power, support, kept, tau).value);
    for (std::size_t i = 0; i < WholePairs(n); i += lanes) {
      const VD u = hn::Max(hn::Sub(hn::LoadU(d, z + i), at), zero);
      hn::StoreU(hn::DemoteTo(df, hn::Mul(power.Value(d, u), by)), df, p + i);
    }
    return tau + (map.alpha - 1.0) * top;
  });
}

double LeastOfList(const decode::Map& map, const double* s, std::size_t n, double* z) {
  std::size_t count;
  const double top = Relative(map, s, n, z, &count);
  const double tau = WithWidePower(map.alpha, [&](const auto& power) HWY_ATTR {
    return WideThreshold(power, 1.0 / (map.alpha - 1.0), z, count);
  });
  return top + (tau - 1e-12) / (map.alpha - 1.0);
}

}  // namespace HWY_NAMESPACE
}  // namespace tsallis
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tsallis {

HWY_EXPORT(SolveList);
HWY_EXPORT(LeastOfList);

namespace decode {
namespace {

// The sink, and the rest of a pair of the longest vectors.
constexpr std::int64_t kMore = 1 + 16;

}  // namespace

double Solve(const Map& map, const std::vector<double>& s, SolveMemory* memory) {
  const auto room = static_cast<std::int64_t>(s.size()) + kMore;
  return HWY_DYNAMIC_DISPATCH(SolveList)(map, s.data(), s.size(), memory->z.Reserve(room),
                                         memory->support.Reserve(room), memory->p.Reserve(room));
}

double LeastThreshold(const Map& map, const std::vector<double>& s, SolveMemory* memory) {
  const auto room = static_cast<std::int64_t>(s.size()) + kMore;
  return HWY_DYNAMIC_DISPATCH(LeastOfList)(map, s.data(), s.size(), memory->z.Reserve(room));
}

}  // namespace decode
}  // namespace tsallis
#endif  // HWY_ONCE
