// Rows of the sparse baselines: top-k softmax, sigmoid, softpick, stick-breaking. Included once per
// instruction set.
#if defined(TSALLIS_SIMPLEX_BASELINES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TSALLIS_SIMPLEX_BASELINES_INL_H_
#undef TSALLIS_SIMPLEX_BASELINES_INL_H_
#else
#define TSALLIS_SIMPLEX_BASELINES_INL_H_
#endif

#include <hwy/contrib/math/math-inl.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "simplex/backward-inl.h"
#include "simplex/map.h"
#include "simplex/softmax-inl.h"
#include "simplex/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tsallis {
namespace HWY_NAMESPACE {

HWY_INLINE bool IsBaseline(RowMap map) {
  return map == RowMap::kTopKSoftmax || map == RowMap::kSigmoid || map == RowMap::kSoftpick ||
         map == RowMap::kStickBreaking;
}

// Calls step(i, count) for the vectors of a row of n, the last of which may be short.
template <class Step>
HWY_INLINE void ForVectors(std::size_t n, const Step& step) {
  const std::size_t lanes = hn::Lanes(DF());
  for (std::size_t i = 0; i < n; i += lanes) step(i, HWY_MIN(lanes, n - i));
}

HWY_INLINE VF LoadSome(const float* p, std::size_t count, float fill) {
  const DF d;
  return count == hn::Lanes(d) ? hn::LoadU(d, p) : LoadPart(d, p, count, fill);
}

HWY_INLINE void StoreSome(VF v, float* p, std::size_t count) {
  const DF d;
  if (count == hn::Lanes(d)) return hn::StoreU(v, d, p);
  StorePart(d, v, p, count);
}

// sum of p dp where p > 0. p, dp: [n].
HWY_INLINE double WeightedSum(const float* p, const float* dp, std::size_t n) {
  const DF d;
  VD total = hn::Zero(DD());
  VF sum = hn::Zero(d);
  std::size_t terms = 0;
  ForVectors(n, [&](std::size_t i, std::size_t count) HWY_ATTR {
    const VF vp = LoadSome(p + i, count, 0.0f);
    const auto positive = hn::Gt(vp, hn::Zero(d));
    sum = hn::Add(sum, hn::IfThenElseZero(positive, hn::Mul(vp, LoadSome(dp + i, count, 0.0f))));
    if (++terms % kBurst != 0) return;
    total = AddWidened(total, sum);
    sum = hn::Zero(d);
  });
  return Total(AddWidened(total, sum));
}

// ---- top-k softmax ------------------------------------------------------------------------------

// How many of x are at least `least`, a finite number. x: [n].
HWY_INLINE std::int64_t CountFrom(const float* x, std::size_t n, float least) {
  const DF d;
  const VF bar = hn::Set(d, least), one = hn::Set(d, 1.0f);
  double count, unused;
  SumTwo(x, n, -kInfinityF, &count, &unused, [&](VF v, VF& a, VF&) HWY_ATTR {
    a = hn::Add(a, hn::IfThenElseZero(hn::Ge(v, bar), one));
  });
  return static_cast<std::int64_t>(count);
}

// Numbers in the order of their floats, and back.
HWY_INLINE std::int64_t OrderOf(float x) {
  const auto bits = std::bit_cast<std::int32_t>(x);
  return bits >= 0 ? bits : std::int64_t{std::numeric_limits<std::int32_t>::min()} - bits;
}
HWY_INLINE float FloatAt(std::int64_t order) {
  constexpr std::int64_t kLeast = std::numeric_limits<std::int32_t>::min();
  return std::bit_cast<float>(static_cast<std::int32_t>(order >= 0 ? order : kLeast - order));
}

// A number that the `kept` largest finite entries of x reach, and no entry that is less than all of
// them. Bisects the floats in their order: at most 32 counts. x: [n].
HWY_INLINE float LeastKept(const float* x, std::size_t n, std::int64_t kept, float maximum) {
  std::int64_t low = OrderOf(std::numeric_limits<float>::lowest()), high = OrderOf(maximum);
  while (low < high) {
    const std::int64_t middle = high - (high - low) / 2;
    const std::int64_t count = CountFrom(x, n, FloatAt(middle));
    if (count >= kept) low = middle;
    if (count == kept) break;
    if (count < kept) high = middle - 1;
  }
  return FloatAt(low);
}

// Returns the log-sum-exp of what is kept.
HWY_INLINE double TopKRow(const TopK& top_k, const float* x, std::size_t n, float maximum,
                          double scale, float* y) {
  const DF d;
  const std::int64_t finite = CountFrom(x, n, std::numeric_limits<float>::lowest());
  const float least = LeastKept(x, n, KeptOf(top_k, finite), maximum);
  const VF top = hn::Set(d, maximum), factor = hn::Set(d, static_cast<float>(scale));
  const VF bar = hn::Set(d, least);
  double sum, unused;
  MapSumTwo(x, n, -kInfinityF, y, &sum, &unused, [&](VF v, VF& a, VF&) HWY_ATTR {
    const VF e =
        hn::IfThenElseZero(hn::Ge(v, bar), ExpNonPositive(hn::Mul(hn::Sub(v, top), factor)));
    a = hn::Add(a, e);
    return e;
  });
  ScaleRow(y, n, static_cast<float>(1.0 / sum));
  return std::log(sum) + scale * static_cast<double>(maximum);
}

// ---- sigmoid ------------------------------------------------------------------------------------

HWY_INLINE VF SigmoidOf(VF z) {
  const DF d;
  const VF e = ExpNonPositive(hn::Neg(hn::Abs(z))), one = hn::Set(d, 1.0f);
  return hn::Div(hn::IfThenElse(hn::Ge(z, hn::Zero(d)), one, e), hn::Add(one, e));
}

// Returns minus the bias.
HWY_INLINE double SigmoidRow(const RowSpec& spec, const float* x, std::size_t n, double scale,
                             float* y) {
  const DF d;
  const double bias = SigmoidBias(spec, CountFrom(x, n, std::numeric_limits<float>::lowest()));
  const VF factor = hn::Set(d, static_cast<float>(scale));
  const VF shift = hn::Set(d, static_cast<float>(bias));
  ForVectors(n, [&](std::size_t i, std::size_t count) HWY_ATTR {
    const VF v = LoadSome(x + i, count, -kInfinityF);
    StoreSome(SigmoidOf(hn::MulAdd(v, factor, shift)), y + i, count);
  });
  return -bias;
}

HWY_INLINE void SigmoidBackwardRow(const float* p, const float* dp, std::size_t n, float factor,
                                   float* ds) {
  const DF d;
  const VF one = hn::Set(d, 1.0f), scale = hn::Set(d, factor);
  ForVectors(n, [&](std::size_t i, std::size_t count) HWY_ATTR {
    const VF vp = LoadSome(p + i, count, 0.0f), vdp = LoadSome(dp + i, count, 0.0f);
    const VF slope = hn::Mul(hn::Mul(vp, scale), hn::Sub(one, vp));
    StoreSome(hn::IfThenElseZero(hn::Gt(vp, hn::Zero(d)), hn::Mul(slope, vdp)), ds + i, count);
  });
}

// ---- softpick -----------------------------------------------------------------------------------

// Exponentials relative to that of the largest score, or of 0 if it is larger.
struct SoftpickScale {
  SoftpickScale(float maximum, double row_scale)
      : scale(row_scale),
        peak(std::max(0.0f, maximum)),
        top(row_scale * static_cast<double>(peak)),
        low(std::exp(-top)) {}

  // (e^z - 1) / e^top, 0 for absent entries; z = scale v.
  HWY_INLINE VF Excess(VF v) const {
    const DF d;
    const VF z = hn::Mul(v, hn::Set(d, static_cast<float>(scale)));
    const VF one = hn::Set(d, 1.0f), base = hn::Set(d, static_cast<float>(low));
    // Near 0 the difference of exponentials has no digits.
    const VF small = hn::Expm1(d, hn::Min(hn::Max(z, hn::Set(d, -100.0f)), one));
    const VF excess =
        hn::IfThenElse(hn::Lt(z, one), hn::Mul(small, base), hn::Sub(Exponential(v), base));
    return hn::IfThenElseZero(hn::Gt(v, hn::Set(d, -kInfinityF)), excess);
  }
  // e^{z - top}
  HWY_INLINE VF Exponential(VF v) const {
    const DF d;
    const VF below = hn::Sub(v, hn::Set(d, peak));
    return ExpNonPositive(hn::Mul(below, hn::Set(d, static_cast<float>(scale))));
  }
  // sum |e^z - 1| + epsilon, relative to e^top. x: [n].
  double Denominator(const float* x, std::size_t n) const {
    double sum, unused;
    SumTwo(x, n, -kInfinityF, &sum, &unused,
           [&](VF v, VF& a, VF&) HWY_ATTR { a = hn::Add(a, hn::Abs(Excess(v))); });
    return sum + kSoftpickEpsilon * low;
  }

  double scale;
  float peak;
  double top, low;
};

// Returns the logarithm of the denominator.
HWY_INLINE double SoftpickRow(const float* x, std::size_t n, float maximum, double scale,
                              float* y) {
  const DF d;
  const SoftpickScale relative(maximum, scale);
  double sum, unused;
  MapSumTwo(x, n, -kInfinityF, y, &sum, &unused, [&](VF v, VF& a, VF&) HWY_ATTR {
    const VF excess = relative.Excess(v);
    a = hn::Add(a, hn::Abs(excess));
    return hn::Max(excess, hn::Zero(d));
  });
  sum += kSoftpickEpsilon * relative.low;
  ScaleRow(y, n, static_cast<float>(1.0 / sum));
  return relative.top + std::log(sum);
}

// See simplex/softpick.cc for the formula.
HWY_INLINE void SoftpickBackwardRow(const float* x, const float* p, const float* dp, std::size_t n,
                                    float factor, float* ds) {
  const DF d;
  const double scale = factor;
  const SoftpickScale relative(RowMaximum(x, n), scale);
  const VF mean = hn::Set(d, static_cast<float>(WeightedSum(p, dp, n)));
  const VF share = hn::Set(d, static_cast<float>(scale / relative.Denominator(x, n)));
  const VF zero = hn::Zero(d), none = hn::Set(d, -kInfinityF);
  ForVectors(n, [&](std::size_t i, std::size_t count) HWY_ATTR {
    const VF v = LoadSome(x + i, count, -kInfinityF), vp = LoadSome(p + i, count, 0.0f);
    const VF known = hn::IfThenElseZero(hn::Gt(vp, zero), LoadSome(dp + i, count, 0.0f));
    const VF slope = hn::Mul(relative.Exponential(v), share);
    const VF above = hn::IfThenElseZero(hn::Gt(v, zero), hn::Mul(slope, hn::Sub(known, mean)));
    const auto is_below = hn::And(hn::Lt(v, zero), hn::Gt(v, none));
    StoreSome(hn::IfThenElse(is_below, hn::Mul(slope, mean), above), ds + i, count);
  });
}

// ---- stick-breaking -----------------------------------------------------------------------------

// ln(1 + e^{-|z|}), which is all that ln sigmoid(z) and ln sigmoid(-z) need beside z.
HWY_INLINE VF LogOnePlus(VF z) {
  const DF d;
  return hn::Log1p(d, ExpNonPositive(hn::Neg(hn::Abs(z))));
}

// Returns the logarithm of what is left of the stick.
HWY_INLINE double StickRow(const float* x, std::size_t n, double scale, float* y) {
  // Weights below this are no floats.
  constexpr double kUsedUp = -104.0;
  const DF d;
  const std::size_t lanes = hn::Lanes(d);
  const VF factor = hn::Set(d, static_cast<float>(scale)), zero = hn::Zero(d);
  HWY_ALIGN float pieces[hn::MaxLanes(d)];
  double rest = 0.0;
  std::size_t end = n;
  while (end > 0 && rest > kUsedUp) {
    const std::size_t count = HWY_MIN(lanes, end), begin = end - count;
    const VF z = hn::Mul(LoadSome(x + begin, count, -kInfinityF), factor);
    const VF part = LogOnePlus(z);
    hn::Store(hn::Add(hn::Max(z, zero), part), d, pieces);
    for (std::size_t j = count; j-- > 0;) {
      const float piece = pieces[j];
      pieces[j] = static_cast<float>(rest);
      rest -= static_cast<double>(piece);
    }
    const VF log_p = hn::Add(hn::Sub(hn::Min(z, zero), part), hn::Load(d, pieces));
    StoreSome(ExpNonPositive(log_p), y + begin, count);
    end = begin;
  }
  std::fill(y, y + end, 0.0f);
  double unread, unused;
  SumTwo(x, end, -kInfinityF, &unread, &unused, [&](VF v, VF& a, VF&) HWY_ATTR {
    const VF z = hn::Mul(v, factor);
    a = hn::Add(a, hn::Add(hn::Max(z, zero), LogOnePlus(z)));
  });
  return rest - unread;
}

// See simplex/sigmoid.cc for the formula.
HWY_INLINE void StickBackwardRow(const float* x, const float* p, const float* dp, std::size_t n,
                                 float factor, float* ds) {
  const DF d;
  const VF by = hn::Set(d, factor), zero = hn::Zero(d), none = hn::Set(d, -kInfinityF);
  HWY_ALIGN float sums[hn::MaxLanes(d)];
  double before = 0.0;
  ForVectors(n, [&](std::size_t i, std::size_t count) HWY_ATTR {
    const VF vp = LoadSome(p + i, count, 0.0f);
    // Most of a long row lies beyond the end of the stick.
    if (before == 0.0 && hn::AllTrue(d, hn::Eq(vp, zero))) return StoreSome(zero, ds + i, count);
    const VF v = LoadSome(x + i, count, -kInfinityF), z = hn::Mul(v, by);
    const VF share =
        hn::IfThenElseZero(hn::Gt(vp, zero), hn::Mul(vp, LoadSome(dp + i, count, 0.0f)));
    hn::Store(share, d, sums);
    for (std::size_t j = 0; j < count; ++j) {
      const float piece = sums[j];
      sums[j] = static_cast<float>(before);
      before += static_cast<double>(piece);
    }
    const VF gain = hn::Mul(SigmoidOf(hn::Neg(z)), share);
    const VF loss = hn::Mul(SigmoidOf(z), hn::Load(d, sums));
    const VF slope = hn::Mul(by, hn::Sub(gain, loss));
    StoreSome(hn::IfThenElseZero(hn::Gt(v, none), slope), ds + i, count);
  });
}

// ---- all of them --------------------------------------------------------------------------------

// Calls, so that the maps with thresholds keep short code.

// y = map(scale x) for a row with a finite entry and nothing beyond; returns tau. x, y: [n], apart.
HWY_NOINLINE inline double BaselineRow(const RowSpec& spec, const float* x, std::size_t n,
                                       float maximum, double scale, float* y) {
  switch (spec.map) {
    case RowMap::kTopKSoftmax: return TopKRow(spec.top_k, x, n, maximum, scale, y);
    case RowMap::kSigmoid: return SigmoidRow(spec, x, n, scale, y);
    case RowMap::kSoftpick: return SoftpickRow(x, n, maximum, scale, y);
    default: return StickRow(x, n, scale, y);
  }
}

// p, dp, ds: [n]; ds may be dp. x: [n], read by softpick and stick-breaking. factor: 1 /
// temperature.
HWY_NOINLINE inline void BaselineBackwardRow(RowMap map, const float* x, const float* p,
                                             const float* dp, std::size_t n, float factor,
                                             float* ds) {
  if (n == 0) return;
  if (map == RowMap::kTopKSoftmax) return BackwardRow(SelfWeight(), p, dp, n, factor, ds);
  if (std::isnan(p[0])) {  // then all of them
    std::fill(ds, ds + n, std::numeric_limits<float>::quiet_NaN());
    return;
  }
  switch (map) {
    case RowMap::kSigmoid: return SigmoidBackwardRow(p, dp, n, factor, ds);
    case RowMap::kSoftpick: return SoftpickBackwardRow(x, p, dp, n, factor, ds);
    default: return StickBackwardRow(x, p, dp, n, factor, ds);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tsallis
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
