// One row through a map and back, in float32 with double where float has too few digits: what
// RowsForward, RowsBackward and fused attention run on. Included once per instruction set.
#if defined(TSALLIS_SIMPLEX_ROW_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TSALLIS_SIMPLEX_ROW_INL_H_
#undef TSALLIS_SIMPLEX_ROW_INL_H_
#else
#define TSALLIS_SIMPLEX_ROW_INL_H_
#endif

#include <algorithm>
#include <cmath>

#include "simplex/backward-inl.h"
#include "simplex/baselines-inl.h"
#include "simplex/entmax-inl.h"
#include "simplex/reference.h"
#include "simplex/scratch.h"
#include "simplex/softmax-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tsallis {
namespace HWY_NAMESPACE {

// Below this, alpha - 1 leaves z - tau without digits (NearSoftmaxRow).
constexpr double kNearSoftmax = 0.05;

// The row by its double-precision definition.
inline RowResult WideForwardRow(const RowSpec& spec, const float* x, std::size_t n, float* y,
                                RowScratch& scratch) {
  scratch.wide_scores.assign(x, x + n);
  scratch.wide_p.resize(n);
  const RowResult result =
      ReferenceForward(spec, scratch.wide_scores.data(), static_cast<std::int64_t>(n),
                       scratch.wide_p.data(), scratch.reference);
  for (std::size_t j = 0; j < n; ++j) y[j] = static_cast<float>(scratch.wide_p[j]);
  return result;
}

// For maps with support within `reach` of the maximum whose float32 threshold has too few digits:
// candidates by vectors, the equation in double.
inline RowResult ListedForwardRow(const RowSpec& spec, double reach, const float* x, std::size_t n,
                                  float* y, RowScratch& scratch) {
  CandidateScratch& list = scratch.candidates;
  float maximum;
  const auto raise = [&](float top) {
    const double bar = static_cast<double>(top) - reach;
    Compact(list, bar);
    return bar;
  };
  if (n < 16 || n > 0xFFFFFFFFu || !CollectCandidates(x, n, reach, list, &maximum, raise) ||
      !(maximum > -kInfinityF)) {
    return WideForwardRow(spec, x, n, y, scratch);
  }
  raise(maximum);
  scratch.wide_scores.assign(list.value.get(), list.value.get() + list.count);
  scratch.wide_p.resize(list.count);
  const RowResult result =
      ReferenceForward(spec, scratch.wide_scores.data(), static_cast<std::int64_t>(list.count),
                       scratch.wide_p.data(), scratch.reference);
  std::memset(y, 0, n * sizeof(float));
  for (std::size_t i = 0; i < list.count; ++i) {
    y[list.index[i]] = static_cast<float>(scratch.wide_p[i]);
  }
  return result;
}

// Support size and entropy of y: [n].
HWY_INLINE void Describe(const float* y, std::size_t n, RowResult* result) {
  const DF d;
  double support, entropy;
  SumTwo(y, n, 0.0f, &support, &entropy, [&](VF p, VF& a, VF& b) HWY_ATTR {
    const auto positive = hn::Gt(p, hn::Zero(d));
    const VF safe =
        hn::IfThenElse(positive, hn::Max(p, hn::Set(d, 1.17549435e-38f)), hn::Set(d, 1.0f));
    a = hn::Add(a, hn::IfThenElseZero(positive, hn::Set(d, 1.0f)));
    b = hn::NegMulAdd(p, hn::Log(d, safe), b);
  });
  result->support_size = static_cast<std::int64_t>(support);
  result->entropy = entropy;
}

// y = map(x). x, y: [n], apart.
inline RowResult ForwardRow(const RowSpec& spec, const float* x, std::size_t n, float* y,
                            bool wants_description, RowScratch& scratch, const RowHint& hint = {}) {
  const double inverse_temperature = 1.0 / spec.temperature;
  const double eps = spec.alpha - 1.0;
  const bool is_entmax = spec.map == RowMap::kEntmax && eps != 0.0;
  const double scale = is_entmax ? eps * inverse_temperature : inverse_temperature;
  // Scales that float cannot hold.
  if (!(std::abs(scale) > 1e-30 && std::abs(scale) < 1e30 && inverse_temperature < 1e30)) {
    return WideForwardRow(spec, x, n, y, scratch);
  }
  if (spec.map == RowMap::kNormmax) {
    return ListedForwardRow(spec, spec.temperature, x, n, y, scratch);
  }
  if (is_entmax && eps > 1.0) return ListedForwardRow(spec, 1.0 / scale, x, n, y, scratch);

  if (spec.map == RowMap::kBudget) return WideForwardRow(spec, x, n, y, scratch);

  RowResult result;
  float maximum;
  bool listed = false;
  CandidateScratch& list = scratch.candidates;
  const bool full_support = is_entmax && eps < 0.0;
  const bool near_softmax = is_entmax && !full_support && eps < kNearSoftmax;
  if (is_entmax && !near_softmax && !full_support) {
    result.tau = WithPower(eps, [&](const auto& power) HWY_ATTR {
      return EntmaxRow(power, x, n, scale, y, list, &maximum, &listed, hint);
    });
    if (std::isnan(result.tau)) return WideForwardRow(spec, x, n, y, scratch);
  } else {
    maximum = RowMaximum(x, n);
  }
  if (!(maximum > -kInfinityF)) {
    const bool absent = maximum == -kInfinityF;
    std::fill(y, y + n, absent ? 0.0f : std::numeric_limits<float>::quiet_NaN());
    if (absent) return {-INFINITY, 0, 0.0};
    return {NAN, -1, NAN};
  }
  if (full_support) {
    // p_max^eps = scale maximum - tau.
    const double guess = std::log(scale * static_cast<double>(maximum) - hint.tau) / eps;
    const double w = FullSupportRow(-eps, x, n, maximum, inverse_temperature, guess, y);
    result.tau = -std::exp(eps * w);
  } else if (near_softmax) {
    result.tau = -std::exp(eps * NearSoftmaxRow(eps, x, n, maximum, inverse_temperature, y));
  } else if (spec.map == RowMap::kAdaptiveTemperature) {
    const double entropy = SoftmaxEntropy(x, n, maximum, scale, &result.tau);
    SoftmaxRow(x, n, maximum, scale * BetaOfEntropy(spec.adaptive, entropy, nullptr), y);
  } else if (IsBaseline(spec.map)) {
    result.tau = BaselineRow(spec, x, n, maximum, scale, y);
  } else if (!is_entmax) {
    result.tau = SoftmaxRow(x, n, maximum, scale, y);
  }
  // The baselines' is that of scores as they are.
  if (!IsBaseline(spec.map)) result.tau += scale * static_cast<double>(maximum);
  if (wants_description) {
    Describe(listed ? list.p.get() : y, listed ? list.count : n, &result);
  }
  return result;
}

// The row's gradient by its double-precision definition.
inline void WideBackwardRow(const RowSpec& spec, const float* x, const float* p, const float* dp,
                            std::size_t n, float* ds, double* d_alpha, RowScratch& scratch) {
  scratch.wide_scores.assign(x, x + n);
  scratch.wide_p.assign(p, p + n);
  scratch.wide_dp.assign(dp, dp + n);
  ReferenceBackward(spec, scratch.wide_scores.data(), scratch.wide_p.data(), scratch.wide_dp.data(),
                    static_cast<std::int64_t>(n), scratch.wide_dp.data(), d_alpha,
                    scratch.reference);
  // A gradient beyond float stops at its largest number: an infinity would turn into NaN at the
  // next product with zero. NaN passes.
  constexpr double kLargest = std::numeric_limits<float>::max();
  for (std::size_t j = 0; j < n; ++j) {
    const double value = scratch.wide_dp[j];
    ds[j] = static_cast<float>(std::isnan(value) ? value : std::clamp(value, -kLargest, kLargest));
  }
}

// p, dp, ds: [n]; ds may be dp. x: [n], read only by maps whose gradient needs scores.
inline void BackwardRow(const RowSpec& spec, const float* x, const float* p, const float* dp,
                        std::size_t n, float* ds, double* d_alpha, RowScratch& scratch) {
  const float factor = static_cast<float>(1.0 / spec.temperature);
  const bool is_entmax = spec.map == RowMap::kEntmax;
  const double eps = spec.alpha - 1.0;
  if (factor > 1e-30f && factor < 1e30f) {
    const auto run = [&](const auto& weight) HWY_ATTR {
      BackwardRow(weight, p, dp, n, factor, ds, eps, is_entmax ? d_alpha : nullptr);
    };
    if (spec.map == RowMap::kBudget) return run(InsideWeight());
    if (spec.map == RowMap::kAdaptiveTemperature) {
      return AdaptiveBackwardRow(spec.adaptive, x, p, dp, n, 1.0 / spec.temperature, ds);
    }
    if (IsBaseline(spec.map)) return BaselineBackwardRow(spec.map, x, p, dp, n, factor, ds);
    if (spec.map == RowMap::kSoftmax) return run(SelfWeight());
    if (is_entmax && eps <= 1.0) return WithWeight(eps, run);
  }
  WideBackwardRow(spec, x, p, dp, n, ds, d_alpha, scratch);
}

}  // namespace HWY_NAMESPACE
}  // namespace tsallis
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
