// The maps whose rows stream: a weight from how far z lies above tau, queries in the lanes of a
// vector. Included once per instruction set.
#if defined(TSALLIS_ATTENTION_CPU_STREAM_MAPS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TSALLIS_ATTENTION_CPU_STREAM_MAPS_INL_H_
#undef TSALLIS_ATTENTION_CPU_STREAM_MAPS_INL_H_
#else
#define TSALLIS_ATTENTION_CPU_STREAM_MAPS_INL_H_
#endif

#include "attention/cpu/stream/strips-inl.h"
#include "attention/geometry.h"
#include "simplex/entmax-inl.h"

#if TSALLIS_VECTORS_HERE
HWY_BEFORE_NAMESPACE();
namespace tsallis {
namespace HWY_NAMESPACE {

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

// z = s log2(e), tau = the log-sum-exp in base 2.
struct StreamSoftmax {
  static constexpr bool kSums = false;  // whether tau is the root of sum p = 1, to be solved for
  HWY_INLINE VF Weight(VF above) const { return Exp2(above); }
  // Weighs the mean of dp and the gradient of a score, but for a factor of the row.
  HWY_INLINE VF Slope(VF, VF p) const { return p; }
  // ln p where p > 0.
  HWY_INLINE VF Log(VF above, VF) const {
    return hn::Mul(above, hn::Set(DF(), static_cast<float>(kLn2)));
  }
};

// Adaptive temperature: weights of softmax, of scores times beta.
struct StreamAdaptive : StreamSoftmax {};

// z = (alpha - 1) s, p = [z - tau]_+^b, and p^(2 - alpha) = [z - tau]_+^(b - 1), b = 1/(alpha - 1).
template <class Power>
struct StreamEntmax {
  static constexpr bool kSums = true;
  HWY_INLINE VF Weight(VF above) const {
    const DF d;
    return power.Value(d, hn::Max(above, hn::Zero(d)));
  }
  HWY_INLINE VF Slope(VF above, VF p) const {
    const DF d;
    return power.Slope(d, hn::Max(above, hn::Zero(d)), p);
  }
  HWY_INLINE VF Log(VF, VF p) const {
    const DF d;
    return hn::Log(d, hn::IfThenElse(hn::Gt(p, hn::Zero(d)), p, hn::Set(d, 1.0f)));
  }
  Power power;
};

// Calls body with the map of head h.
template <class Body>
HWY_INLINE auto WithStreamMap(const AttentionParams& params, std::int64_t h, const Body& body) {
  if (params.map == RowMap::kAdaptiveTemperature) return body(StreamAdaptive());
  if (params.map != RowMap::kEntmax) return body(StreamSoftmax());
  return WithPower(AlphaOf(params, h) - 1.0, [&](const auto& power) {
    return body(StreamEntmax<std::decay_t<decltype(power)>>{power});
  });
}

// z in units of s.
inline double StreamUnit(const AttentionParams& params, std::int64_t h) {
  return params.map == RowMap::kEntmax ? AlphaOf(params, h) - 1.0 : kLog2E;
}

// A sum over strips, with what rounding took from it: a flat row of 65 536 keys adds the same
// number 512 times.
struct StripSum {
  HWY_INLINE StripSum() : sum(hn::Zero(DF())), rest(hn::Zero(DF())) {}
  HWY_INLINE void Add(VF v) {
    const VF y = hn::Add(v, rest), next = hn::Add(sum, y);
    rest = hn::Sub(y, hn::Sub(next, sum));
    sum = next;
  }
  HWY_INLINE void Scale(VF by) {
    sum = hn::Mul(sum, by);
    rest = hn::Mul(rest, by);
  }
  VF sum, rest;
};

}  // namespace HWY_NAMESPACE
}  // namespace tsallis
HWY_AFTER_NAMESPACE();
#endif  // TSALLIS_VECTORS_HERE

#endif  // per-target include guard
