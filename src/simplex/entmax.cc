// Alpha-entmax for any alpha > 0, softmax (alpha = 1) included.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "simplex/map.h"
#include "simplex/solve.h"
#include "tsallis/error.h"

namespace tsallis {
namespace {

void Check(const RowSpec& spec) {
  if (!IsEntmaxAlpha(spec.alpha)) {
    throw InvalidArgument("alpha", kEntmaxAlphaRange, std::to_string(spec.alpha));
  }
}

double Forward(const RowSpec& spec, const double* depth, double offset, std::int64_t n, double* p) {
  const double eps = spec.alpha - 1.0;
  const double w = SolveLogTerms(eps, eps == 0.0 ? 1.0 : eps, depth, n, p);
  for (std::int64_t j = 0; j < n; ++j) p[j] = std::exp(p[j]);
  return eps == 0.0 ? offset - w : eps * offset - std::exp(eps * w);
}

// value * e^log_factor without a factor that overflows on the way; NaN stays NaN.
double Scaled(double value, double log_factor) {
  constexpr double kLogLargest = 709.0;
  if (std::abs(log_factor) < kLogLargest) return value * std::exp(log_factor);
  if (value == 0.0 || std::isnan(value)) return value;
  const double log_size = std::min(std::log(std::abs(value)) + log_factor, kLogLargest);
  return std::copysign(std::exp(log_size), value);
}

// ds = u (dp - <u, dp>/sum u), u = p^{2-alpha} on the support.
//
// For alpha > 2, u explodes as p -> 0 (0.01^{-62} at alpha = 64) and dp_k - <u, dp>/sum u cancels
// to nothing for the entry k with the largest u. Measuring dp from dp_k, and ds_k = -(the others'
// sum), removes both: u_k itself is never needed. The result may still be beyond double (scores
// that differ by less than 1e-300): the product is formed in logarithms and stops at the largest
// finite number, so that 0 times a huge u is 0 and never NaN.
void Backward(const RowSpec& spec, const double*, double, const double* p, const double* dp,
              std::int64_t n, double* ds) {
  const double power = 2.0 - spec.alpha;
  std::int64_t k = -1;
  for (std::int64_t j = 0; j < n; ++j) {
    if (!(p[j] > 0.0)) continue;
    if (k < 0 || (power < 0.0 ? p[j] < p[k] : p[j] > p[k])) k = j;
  }
  if (k < 0) {
    std::fill(ds, ds + n, 0.0);
    return;
  }
  const double log_top = power * std::log(p[k]), dp_top = dp[k];
  double total = 1.0, mean = 0.0;  // relative to u_k
  for (std::int64_t j = 0; j < n; ++j) {
    if (j == k || !(p[j] > 0.0)) continue;
    const double weight = std::exp(power * std::log(p[j]) - log_top);
    total += weight;
    mean += weight * (dp[j] - dp_top);
  }
  mean /= total;
  double others = 0.0;
  for (std::int64_t j = 0; j < n; ++j) {
    if (j == k) continue;
    const double d = p[j] > 0.0 ? Scaled((dp[j] - dp_top) - mean, power * std::log(p[j])) : 0.0;
    others += d;
    ds[j] = d;
  }
  // dp_top - dp_top is NaN exactly if dp_top is NaN or infinite: then the whole support is.
  ds[k] = -others + (dp_top - dp_top);
}

// (e^x - 1 - x) / x^2, without cancellation.
double Phi(double x) {
  if (std::abs(x) > 0.5) return (std::expm1(x) - x) / (x * x);
  double term = 0.5, sum = 0.5;
  for (int i = 3; i < 16; ++i) {
    term *= x / i;
    sum += term;
  }
  return sum;
}

// With eps = alpha - 1, L = ln p, R = (e^{-eps L} - 1 + eps L)/eps^2, D = sum p e^{-eps L}:
//   dp/dalpha = p/D ((<p,R> - R) - eps (L <p,R> - <p,L> R)),
// which has no 1/eps, becomes p (<p, L^2> - L^2)/2 at eps = 0 and holds for eps < 0 too. Where
// e^{-eps L} = p^{-eps} may overflow, the textbook form (Correia et al. 2019, prop. 1) with weights
// relative to the largest.
double DAlpha(const RowSpec& spec, const double* p, const double* dp, std::int64_t n) {
  const double eps = spec.alpha - 1.0;
  double smallest = 1.0;
  for (std::int64_t j = 0; j < n; ++j) {
    if (std::isnan(p[j])) return p[j];
    if (p[j] > 0.0) smallest = std::min(smallest, p[j]);
  }
  const double power = 2.0 - spec.alpha;
  double out = 0.0;
  if (eps <= 0.5) {
    double mean_r = 0.0, mean_l = 0.0, total = 0.0;
    for (std::int64_t j = 0; j < n; ++j) {
      if (!(p[j] > 0.0)) continue;
      const double l = std::log(p[j]), r = l * l * Phi(-eps * l);
      mean_r += p[j] * r;
      mean_l += p[j] * l;
      total += p[j] * std::exp(-eps * l);
    }
    if (total == 0.0) return 0.0;
    for (std::int64_t j = 0; j < n; ++j) {
      if (!(p[j] > 0.0)) continue;
      const double l = std::log(p[j]), r = l * l * Phi(-eps * l);
      out += dp[j] * p[j] * ((mean_r - r) - eps * (l * mean_r - mean_l * r));
    }
    return out / total;
  }
  double largest = -INFINITY, mean_l = 0.0, total = 0.0;
  for (std::int64_t j = 0; j < n; ++j) {
    if (!(p[j] > 0.0)) continue;
    const double l = std::log(p[j]);
    largest = std::max(largest, power * l);
    mean_l += p[j] * l;
  }
  for (std::int64_t j = 0; j < n; ++j) {
    if (p[j] > 0.0) total += std::exp(power * std::log(p[j]) - largest);
  }
  for (std::int64_t j = 0; j < n; ++j) {
    if (!(p[j] > 0.0)) continue;
    const double l = std::log(p[j]), u = std::exp(power * l - largest) / total;
    out += dp[j] * ((p[j] - u) / eps - (p[j] * l - u * mean_l)) / eps;
  }
  return out;
}

// H_alpha(p) = (1 - sum p^alpha)/(alpha (alpha - 1)), Shannon's entropy at alpha = 1. Summed as
// -sum (p^alpha - p)/(alpha eps), which cancels only where eps ln p is small.
double Generator(const RowSpec& spec, const double* p, std::int64_t n) {
  const double eps = spec.alpha - 1.0;
  double sum = 0.0;
  for (std::int64_t j = 0; j < n; ++j) {
    if (std::isnan(p[j])) return p[j];
    if (!(p[j] > 0.0)) continue;
    const double l = std::log(p[j]);
    // Far from there p^eps may overflow for eps < 0, and p^alpha may not.
    const bool far = eps * l > 1.0;
    sum -= far ? (std::exp(spec.alpha * l) - p[j]) / eps
               : p[j] * (eps == 0.0 ? l : std::expm1(eps * l) / eps);
  }
  return sum / spec.alpha;
}

}  // namespace

const ReferenceMap kEntmaxReference = {
    .map = RowMap::kEntmax,
    .name = "entmax",
    .check = Check,
    .forward = Forward,
    .backward = Backward,
    .d_alpha = DAlpha,
    .generator = Generator,
    .backward_needs_scores = false,
    .in_attention = true,
    .takes_sink = true,
};

}  // namespace tsallis
