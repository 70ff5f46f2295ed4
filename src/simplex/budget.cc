// k-subset budget: p = clip(s - tau, 0, 1), sum p = min(budget, number of finite entries).
#include <algorithm>
#include <cmath>
#include <string>

#include "simplex/map.h"
#include "tsallis/error.h"

namespace tsallis {
namespace {

void Check(const RowSpec& spec) {
  if (!(std::isfinite(spec.budget) && spec.budget > 0.0)) {
    throw InvalidArgument("budget", "a finite number > 0", std::to_string(spec.budget));
  }
}

// Sum of clip(t - depth, 0, 1) and the number of entries strictly inside, which is its slope in t.
void Evaluate(const double* depth, std::int64_t n, double t, double* sum, std::int64_t* inside) {
  double total = 0.0, lost = 0.0;
  *inside = 0;
  for (std::int64_t j = 0; j < n; ++j) {
    const double u = std::min(std::max(t - depth[j], 0.0), 1.0);
    const double y = u - lost;
    const double next = total + y;
    lost = (next - total) - y;
    total = next;
    *inside += u > 0.0 && u < 1.0;
  }
  *sum = total;
}

// t = max - tau. The sum is piecewise linear and increasing in t: Newton lands exactly once it is
// on the right piece; a bracket keeps it from cycling.
double Forward(const RowSpec& spec, const double* depth, double offset, std::int64_t n, double* p) {
  const double budget = std::min(spec.budget, static_cast<double>(n));
  double deepest = 0.0;
  for (std::int64_t j = 0; j < n; ++j) deepest = std::max(deepest, depth[j]);
  if (budget == static_cast<double>(n)) {
    std::fill(p, p + n, 1.0);
    return offset - (deepest + 1.0);
  }
  double low = 0.0, high = deepest + 1.0, t = std::min(1.0, budget);
  for (;;) {
    double sum;
    std::int64_t inside;
    Evaluate(depth, n, t, &sum, &inside);
    if (std::abs(sum - budget) <= 2e-16 * budget) break;
    if (sum < budget) {
      low = std::max(low, t);
    } else {
      high = std::min(high, t);
    }
    const double middle = low + 0.5 * (high - low);
    if (!(middle > low && middle < high)) break;
    const double next = inside > 0 ? t - (sum - budget) / static_cast<double>(inside) : middle;
    if (next == t) break;
    t = next > low && next < high ? next : middle;
  }
  for (std::int64_t j = 0; j < n; ++j) p[j] = std::min(std::max(t - depth[j], 0.0), 1.0);
  return offset - t;
}

void Backward(const RowSpec&, const double*, double, const double* p, const double* dp,
              std::int64_t n, double* ds) {
  double sum = 0.0;
  std::int64_t inside = 0;
  for (std::int64_t j = 0; j < n; ++j) {
    if (!(p[j] > 0.0 && p[j] < 1.0)) continue;
    sum += dp[j];
    ++inside;
  }
  const double mean = inside > 0 ? sum / static_cast<double>(inside) : 0.0;
  for (std::int64_t j = 0; j < n; ++j) ds[j] = p[j] > 0.0 && p[j] < 1.0 ? dp[j] - mean : 0.0;
}

}  // namespace

const ReferenceMap kBudgetReference = {
    .map = RowMap::kBudget,
    .name = "budget",
    .check = Check,
    .forward = Forward,
    .backward = Backward,
    .d_alpha = nullptr,
    .generator = nullptr,
    .backward_needs_scores = false,
    .sums_to_one = false,
};

}  // namespace tsallis
