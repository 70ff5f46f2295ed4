#include "simplex/solve.h"

#include <cmath>
#include <limits>

namespace tsallis {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Equation {
  double gamma, scale;
  const double* depth;
  std::int64_t n;

  // ln of term j at w; `ratio` is 1 - depth_j scale e^{-gamma w}.
  double LogTerm(std::int64_t j, double w, double shrink, double* ratio) const {
    *ratio = 1.0;
    if (depth[j] == 0.0) return w;
    if (gamma == 0.0) return w - scale * depth[j];
    const double r = depth[j] * scale * shrink;
    if (!(r < 1.0)) return -kInfinity;
    *ratio = 1.0 - r;
    return w + std::log1p(-r) / gamma;
  }

  double Shrink(double w) const { return gamma == 0.0 ? 1.0 : std::exp(-gamma * w); }

  // ln sum of terms and its derivative in w, which is at least 1 (in (0, 1] for gamma < 0).
  void Evaluate(double w, double* log_sum, double* slope) const {
    const double shrink = Shrink(w);
    double sum = 0.0, lost = 0.0, weighted = 0.0;  // Kahan: rows have up to 1e7 entries
    for (std::int64_t j = 0; j < n; ++j) {
      double ratio;
      const double log_term = LogTerm(j, w, shrink, &ratio);
      if (log_term == -kInfinity) continue;
      const double term = std::exp(log_term);
      const double y = term - lost;
      const double t = sum + y;
      lost = (t - sum) - y;
      sum = t;
      weighted += term / ratio;
    }
    *log_sum = std::log(sum);
    *slope = weighted / sum;
  }
};

}  // namespace

double SolveLogTerms(double gamma, double scale, const double* depth, std::int64_t n,
                     double* log_terms) {
  const Equation equation{gamma, scale, depth, n};
  double low = -std::log(static_cast<double>(n)) * (1.0 + 1e-15) - 1e-15, high = 0.0;
  // The best of the bracket's ends so far, by residual.
  double w = low, log_sum, slope;
  bool solved = false;
  double previous_width = kInfinity;
  for (;;) {
    equation.Evaluate(w, &log_sum, &slope);
    // One unit in the last place of w moves ln sum by as much times the slope.
    solved = std::abs(log_sum) <= 4e-16 * std::fmax(1.0, std::abs(w));
    if (solved) break;
    if (log_sum < 0.0) {
      low = std::fmax(low, w);
    } else {
      high = std::fmin(high, w);
    }
    const double width = high - low;
    const double middle = low + 0.5 * width;
    if (!(middle > low && middle < high)) break;
    double next = w - log_sum / slope;
    // Newton where it stays inside and the bracket keeps shrinking, else bisection.
    if (!(next > low && next < high) || width > 0.5 * previous_width) next = middle;
    previous_width = width;
    w = next;
  }
  double ratio;
  if (solved) {
    const double shrink = equation.Shrink(w);
    for (std::int64_t j = 0; j < n; ++j) log_terms[j] = equation.LogTerm(j, w, shrink, &ratio);
    return w;
  }
  double low_sum, high_sum;
  equation.Evaluate(low, &low_sum, &slope);
  equation.Evaluate(high, &high_sum, &slope);
  low_sum = std::exp(low_sum);
  high_sum = std::exp(high_sum);
  double share = high_sum > low_sum ? (1.0 - low_sum) / (high_sum - low_sum) : 0.0;
  share = std::fmin(std::fmax(share, 0.0), 1.0);
  const double low_shrink = equation.Shrink(low), high_shrink = equation.Shrink(high);
  for (std::int64_t j = 0; j < n; ++j) {
    const double a = equation.LogTerm(j, low, low_shrink, &ratio);
    const double b = equation.LogTerm(j, high, high_shrink, &ratio);
    log_terms[j] = a == b ? a : std::log((1.0 - share) * std::exp(a) + share * std::exp(b));
  }
  return share < 0.5 ? low : high;
}

}  // namespace tsallis
