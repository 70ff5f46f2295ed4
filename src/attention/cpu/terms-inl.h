// terms.h for vectors: many queries at one key, or one query at many keys. Included once per
// instruction set.
#if defined(TSALLIS_ATTENTION_CPU_TERMS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TSALLIS_ATTENTION_CPU_TERMS_INL_H_
#undef TSALLIS_ATTENTION_CPU_TERMS_INL_H_
#else
#define TSALLIS_ATTENTION_CPU_TERMS_INL_H_
#endif

#include <hwy/contrib/math/math-inl.h>

#include "attention/terms.h"
#include "simplex/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tsallis {
namespace HWY_NAMESPACE {

// The gradient of a product from ds, that of its score. A key that the query does not see has ds =
// 0, and its derivative may be NaN.
HWY_INLINE VF ThroughTerms(VF ds, VF derivative) {
  return hn::IfThenZeroElse(hn::Eq(ds, hn::Zero(DF())), hn::Mul(ds, derivative));
}

// Queries side by side in the lanes of a vector, at one key. A distance is i - j of the first lane.
class LaneTerms {
 public:
  // z is times `sharpness`: adaptive temperature's beta, else 1.
  HWY_INLINE LaneTerms(const HeadTerms& terms, VF sharpness)
      : distances_(terms.distances),
        capped_(terms.softcap != 0.0),
        lane_(hn::Iota(DF(), 0.0f)),
        unit_(hn::Mul(hn::Set(DF(), static_cast<float>(terms.unit)), sharpness)),
        minus_slope_(hn::Mul(hn::Set(DF(), static_cast<float>(-terms.slope)), sharpness)),
        softcap_(hn::Mul(hn::Set(DF(), static_cast<float>(terms.softcap)), sharpness)) {}

  // z from unit x.
  HWY_INLINE VF Score(VF z, std::int64_t distance) const {
    const DF d;
    if (capped_) z = hn::Mul(softcap_, hn::CallTanh(d, hn::Div(z, softcap_)));
    if (distances_.any()) {
      z = hn::MulAdd(z, hn::LoadU(d, distances_.a(distance)),
                     hn::Mul(unit_, hn::LoadU(d, distances_.m(distance))));
    }
    return hn::MulAdd(minus_slope_, Distances(distance), z);
  }
  // Whether ds / dx is anything but 1; only then does it take x, and only if capped.
  HWY_INLINE bool has_derivative() const { return capped_ || distances_.any(); }
  HWY_INLINE bool capped() const { return capped_; }
  HWY_INLINE VF Derivative(VF z, std::int64_t distance) const {
    const DF d;
    VF derivative = hn::Set(d, 1.0f);
    if (capped_) {
      const VF t = hn::CallTanh(d, hn::Div(z, softcap_));
      derivative = hn::NegMulAdd(t, t, derivative);
    }
    if (!distances_.any()) return derivative;
    return hn::Mul(derivative, hn::LoadU(d, distances_.a(distance)));
  }
  // |i - j|
  HWY_INLINE VF Distances(std::int64_t distance) const {
    return hn::Abs(hn::Add(lane_, hn::Set(DF(), static_cast<float>(distance))));
  }

 private:
  DistanceFactors distances_;
  bool capped_;
  VF lane_, unit_, minus_slope_, softcap_;
};

// One query at keys side by side, of which the first is at i - j = distance: x [n] becomes z, but
// for a bias. derivatives: [n] to work in; null: not wanted. Returns dz / dx if that is wanted and
// not 1 everywhere.
HWY_INLINE const float* RowTerms(const HeadTerms& terms, std::int64_t distance, std::int64_t n,
                                 float* HWY_RESTRICT x, float* HWY_RESTRICT derivatives) {
  const DF d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const float* HWY_RESTRICT a = terms.distances.any() ? terms.distances.a(-distance) : nullptr;
  const bool capped = terms.softcap != 0.0;
  if (capped) {
    const VF softcap = hn::Set(d, static_cast<float>(terms.softcap)), one = hn::Set(d, 1.0f);
    for (std::int64_t j = 0; j < n; j += lanes) {
      const auto count = static_cast<std::size_t>(std::min(lanes, n - j));
      const VF t = hn::CallTanh(d, hn::Div(LoadPart(d, x + j, count, 0.0f), softcap));
      StorePart(d, hn::Mul(softcap, t), x + j, count);
      if (derivatives != nullptr) StorePart(d, hn::NegMulAdd(t, t, one), derivatives + j, count);
    }
  }
  if (a != nullptr) {
    const float* HWY_RESTRICT m = terms.distances.m(-distance);
    for (std::int64_t j = 0; j < n; ++j) x[j] = a[j] * x[j] + m[j];
    for (std::int64_t j = 0; capped && derivatives != nullptr && j < n; ++j) derivatives[j] *= a[j];
  }
  const auto slope = static_cast<float>(terms.slope);
  if (slope != 0.0f) {
    const auto first = static_cast<float>(distance);
    for (std::int64_t j = 0; j < n; ++j) x[j] -= slope * std::abs(first - static_cast<float>(j));
  }
  if (derivatives == nullptr) return nullptr;
  return capped ? derivatives : a;
}

}  // namespace HWY_NAMESPACE
}  // namespace tsallis
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
