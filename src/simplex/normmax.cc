// Normmax: argmax <s, p> - ||p||_alpha over the simplex, alpha > 1 (as in the `entmax` package).
#include <algorithm>
#include <cmath>
#include <string>

#include "simplex/map.h"
#include "simplex/solve.h"
#include "tsallis/error.h"

namespace tsallis {
namespace {

void Check(const RowSpec& spec) {
  if (!(std::isfinite(spec.alpha) && spec.alpha > 1.0)) {
    throw InvalidArgument("alpha", "a finite number > 1 for normmax", std::to_string(spec.alpha));
  }
}

// q = [s - tau]_+^{1/(alpha-1)} with sum q^alpha = 1, p = q / sum q. The terms solved for are
// q^alpha, so ln q = ln(term)/alpha.
double Forward(const RowSpec& spec, const double* depth, double offset, std::int64_t n, double* p) {
  const double gamma = (spec.alpha - 1.0) / spec.alpha;
  const double w = SolveLogTerms(gamma, 1.0, depth, n, p);
  double sum = 0.0;
  for (std::int64_t j = 0; j < n; ++j) {
    p[j] = std::exp((p[j] - w) / spec.alpha);
    sum += p[j];
  }
  for (std::int64_t j = 0; j < n; ++j) p[j] /= sum;
  return offset - std::exp(gamma * w);
}

// With b = p^{2-alpha} on the support:
//   ds = ||p||_alpha^{alpha-1}/(alpha-1) (b dp - p <b,dp> - <p,dp> (b - p sum b))
//      = ||p||_alpha^{alpha-1}/(alpha-1) (b e - p <b,e>),  e = dp - <p,dp>.
void Backward(const RowSpec& spec, const double*, double, const double* p, const double* dp,
              std::int64_t n, double* ds) {
  const double power = 2.0 - spec.alpha;
  double mean = 0.0, largest = 0.0;
  for (std::int64_t j = 0; j < n; ++j) {
    mean += p[j] * dp[j];
    largest = std::max(largest, p[j]);
  }
  if (largest == 0.0) {
    std::fill(ds, ds + n, 0.0);
    return;
  }
  // ||p||^{alpha-1} / (alpha-1), relative to the largest p so that p^alpha does not underflow; b is
  // taken relative to it as well.
  double norm = 0.0, dot = 0.0;
  for (std::int64_t j = 0; j < n; ++j) {
    if (!(p[j] > 0.0)) continue;
    norm += std::pow(p[j] / largest, spec.alpha);
    dot += std::pow(p[j] / largest, power) * (dp[j] - mean);
  }
  const double scale =
      std::pow(norm, (spec.alpha - 1.0) / spec.alpha) * largest / (spec.alpha - 1.0);
  for (std::int64_t j = 0; j < n; ++j) {
    ds[j] =
        p[j] > 0.0 ? scale * (std::pow(p[j] / largest, power) * (dp[j] - mean) - p[j] * dot) : 0.0;
  }
}

double Generator(const RowSpec& spec, const double* p, std::int64_t n) {
  double largest = 0.0, norm = 0.0;
  for (std::int64_t j = 0; j < n; ++j) {
    if (std::isnan(p[j])) return p[j];
    largest = std::max(largest, p[j]);
  }
  if (largest == 0.0) return 0.0;
  for (std::int64_t j = 0; j < n; ++j) norm += std::pow(p[j] / largest, spec.alpha);
  return 1.0 - largest * std::pow(norm, 1.0 / spec.alpha);
}

}  // namespace

const ReferenceMap kNormmaxReference = {
    .map = RowMap::kNormmax,
    .name = "normmax",
    .check = Check,
    .forward = Forward,
    .backward = Backward,
    .d_alpha = nullptr,
    .generator = Generator,
    .backward_needs_scores = false,
};

}  // namespace tsallis
