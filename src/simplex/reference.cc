#include "simplex/reference.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace tsallis {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// The maximum; NaN if the row holds a NaN or +inf; -inf if it has no finite entry.
double Maximum(const double* scores, std::int64_t n) {
  double maximum = -kInfinity;
  for (std::int64_t j = 0; j < n; ++j) {
    if (std::isnan(scores[j]) || scores[j] == kInfinity) return kNaN;
    maximum = std::max(maximum, scores[j]);
  }
  return maximum;
}

// Lists the entries that count, with their depth below the maximum in tempered scores.
void Gather(const double* scores, std::int64_t n, double maximum, double temperature,
            ReferenceScratch& scratch) {
  scratch.index.clear();
  scratch.depth.clear();
  for (std::int64_t j = 0; j < n; ++j) {
    // (max - s) overflows to infinity for entries as good as absent.
    const double depth = (maximum - scores[j]) / temperature;
    if (!(depth < kInfinity)) continue;
    scratch.index.push_back(j);
    scratch.depth.push_back(depth);
  }
}

}  // namespace

RowResult ReferenceForward(const RowSpec& spec, const double* scores, std::int64_t n, double* p,
                           ReferenceScratch& scratch) {
  const double maximum = Maximum(scores, n);
  if (std::isnan(maximum)) {
    std::fill(p, p + n, kNaN);
    return {kNaN, -1, kNaN};
  }
  if (maximum == -kInfinity) {
    std::fill(p, p + n, 0.0);
    return {-kInfinity, 0, 0.0};
  }
  Gather(scores, n, maximum, spec.temperature, scratch);
  const std::int64_t kept = static_cast<std::int64_t>(scratch.index.size());
  scratch.p.resize(kept);
  RowResult result;
  result.tau = FindMap(spec.map).forward(spec, scratch.depth.data(), maximum / spec.temperature,
                                         kept, scratch.p.data());
  std::fill(p, p + n, 0.0);
  for (std::int64_t i = 0; i < kept; ++i) {
    const double value = scratch.p[i];
    p[scratch.index[i]] = value;
    if (!(value > 0.0)) continue;
    ++result.support_size;
    result.entropy -= value * std::log(value);
  }
  return result;
}

void ReferenceBackward(const RowSpec& spec, const double* scores, const double* p, const double* dp,
                       std::int64_t n, double* ds, double* d_alpha, ReferenceScratch& scratch) {
  const ReferenceMap& map = FindMap(spec.map);
  const double maximum = Maximum(scores, n);
  const bool broken =
      std::isnan(maximum) || std::any_of(p, p + n, [](double value) { return std::isnan(value); });
  if (broken || maximum == -kInfinity) {
    const double fill = broken ? kNaN : 0.0;
    std::fill(ds, ds + n, fill);
    if (d_alpha != nullptr) *d_alpha = fill;
    return;
  }
  Gather(scores, n, maximum, spec.temperature, scratch);
  const std::int64_t kept = static_cast<std::int64_t>(scratch.index.size());
  scratch.p.resize(kept);
  scratch.dp.resize(kept);
  for (std::int64_t i = 0; i < kept; ++i) {
    scratch.p[i] = p[scratch.index[i]];
    // Off the support an upstream gradient of NaN means nothing: it multiplies 0.
    scratch.dp[i] = scratch.p[i] > 0.0 ? dp[scratch.index[i]] : 0.0;
  }
  if (d_alpha != nullptr) {
    *d_alpha =
        map.d_alpha != nullptr ? map.d_alpha(spec, scratch.p.data(), scratch.dp.data(), kept) : 0.0;
  }
  map.backward(spec, scratch.depth.data(), maximum / spec.temperature, scratch.p.data(),
               scratch.dp.data(), kept, scratch.dp.data());
  std::fill(ds, ds + n, 0.0);
  for (std::int64_t i = 0; i < kept; ++i) ds[scratch.index[i]] = scratch.dp[i] / spec.temperature;
}

double ReferenceLoss(const RowSpec& spec, const double* scores, const double* p, std::int64_t n,
                     std::int64_t target) {
  const double maximum = Maximum(scores, n);
  if (std::isnan(maximum)) return kNaN;
  if (scores[target] == -kInfinity) return kInfinity;
  double sum = FindMap(spec.map).generator(spec, p, n);
  // Relative to the target's score, so that a large offset costs no digits.
  for (std::int64_t j = 0; j < n; ++j) {
    if (p[j] > 0.0) sum += p[j] * ((scores[j] - scores[target]) / spec.temperature);
  }
  return std::max(sum, 0.0);
}

}  // namespace tsallis
