// Softpick: softmax's exponentials less 1, rectified above and absolute below the line.
#include <algorithm>
#include <cmath>

#include "simplex/map.h"

namespace tsallis {
namespace {

// (e^s - 1) e^{-top} for s <= top, top >= 0.
double Scaled(double s, double top) {
  return s < 1.0 ? std::expm1(s) * std::exp(-top) : std::exp(s - top) - std::exp(-top);
}

// Everything is taken relative to e^top, top = max(0, maximum), so that nothing overflows and a row
// of negative scores, however low, keeps its denominator.
double Denominator(const double* depth, double offset, std::int64_t n, double top) {
  double sum = kSoftpickEpsilon * std::exp(-top);
  for (std::int64_t j = 0; j < n; ++j) sum += std::abs(Scaled(offset - depth[j], top));
  return sum;
}

double Forward(const RowSpec&, const double* depth, double offset, std::int64_t n, double* p) {
  const double top = std::max(offset, 0.0), sum = Denominator(depth, offset, n, top);
  for (std::int64_t j = 0; j < n; ++j) {
    p[j] = std::max(Scaled(offset - depth[j], top), 0.0) / sum;
  }
  return top + std::log(sum);
}

// With r = e^s - 1 and denominator D: dp_j/ds_m = e^{s_m} ([s_m > 0] [j = m] - sign(s_m) p_j) / D.
// At the kink, s = 0, both derivatives are taken as 0.
void Backward(const RowSpec&, const double* depth, double offset, const double* p, const double* dp,
              std::int64_t n, double* ds) {
  const double top = std::max(offset, 0.0), sum = Denominator(depth, offset, n, top);
  double mean = 0.0;
  for (std::int64_t j = 0; j < n; ++j) mean += p[j] * dp[j];
  for (std::int64_t j = 0; j < n; ++j) {
    const double s = offset - depth[j], slope = std::exp(s - top) / sum;
    ds[j] = s > 0.0 ? slope * (dp[j] - mean) : s < 0.0 ? slope * mean : 0.0;
  }
}

}  // namespace

const ReferenceMap kSoftpickReference = {
    .map = RowMap::kSoftpick,
    .name = "softpick",
    .check = nullptr,
    .forward = Forward,
    .backward = Backward,
    .d_alpha = nullptr,
    .generator = nullptr,
    .backward_needs_scores = true,
    .gradient_off_support = true,
    .sums_to_one = false,
    .in_attention = true,
};

}  // namespace tsallis
