// The threshold of a list of scores, in double.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "attention/cpu/decode/decode.h"

namespace tsallis::decode {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// u^b of u > 0 and, from that, u^(b - 1), b = 1 / (alpha - 1).
struct Square {
  double Value(double u) const { return u * u; }
  double Slope(double u, double) const { return u; }
  double Root(double sum) const { return std::sqrt(sum); }
};
struct Identity {
  double Value(double u) const { return u; }
  double Slope(double, double) const { return 1.0; }
  double Root(double) const { return 1.0; }
};
struct General {
  double b;
  double Value(double u) const { return std::pow(u, b); }
  double Slope(double u, double value) const { return value / u; }
  double Root(double sum) const { return std::pow(sum, 1.0 - 1.0 / b); }
};

template <class Run>
auto WithPower(double alpha, const Run& run) {
  if (alpha == 1.5) return run(Square());
  if (alpha == 2.0) return run(Identity());
  return run(General{1.0 / (alpha - 1.0)});
}

// The tau with sum [z - tau]^b = 1. z <= 0 with one of 0, so that tau lies in [-1, 0). Newton's
// steps on the norm of [z - tau] do not overshoot from below where b >= 1 (entmax-inl.h); where
// they leave the bracket it is halved.
template <class Power>
double Threshold(const Power& power, const std::vector<double>& z, double least) {
  double low = -1.0, high = 0.0, tau = -1.0;
  for (int step = 0; step < 200; ++step) {
    double sum = 0.0, slope = 0.0;
    for (const double value : z) {
      const double u = value - tau;
      if (value < least || u <= 0.0) continue;
      const double raised = power.Value(u);
      sum += raised;
      slope += power.Slope(u, raised);
    }
    (sum >= 1.0 ? low : high) = tau;
    double next = tau + (sum - power.Root(sum)) / slope;
    if (!(next > low && next < high)) {
      // It stands at the root, or on the wrong side of it by a rounding.
      if (std::abs(next - tau) <= 4e-16) return tau;
      next = 0.5 * (low + high);
    }
    if (std::abs(next - tau) <= 1e-16 || next == low || next == high) return next;
    tau = next;
  }
  return tau;
}

// z of the keys and, behind them, of the sink if there is one, relative to the largest score, which
// it returns.
double Relative(const Map& map, const std::vector<double>& keys, std::vector<double>* z) {
  *z = keys;
  if (map.sink > -kInfinity) z->push_back(map.sink);
  const double top = *std::max_element(z->begin(), z->end());
  for (double& value : *z) value = (map.alpha - 1.0) * (value - top);
  return top;
}

}  // namespace

double Solve(const Map& map, const std::vector<double>& keys, std::vector<float>* p) {
  std::vector<double> z;
  const double top = Relative(map, keys, &z);
  return WithPower(map.alpha, [&](const auto& power) {
    // First on all, then on the support alone, from the start: what else is in the list leaves no
    // trace.
    const double near = Threshold(power, z, -kInfinity);
    const double least = near - 1e-12;
    const double tau = Threshold(power, z, least);
    double sum = 0.0;
    const auto weight = [&](double value) {
      const double u = value - tau;
      return value < least || u <= 0.0 ? 0.0 : power.Value(u);
    };
    for (const double value : z) sum += weight(value);
    p->resize(keys.size());
    for (std::size_t i = 0; i < keys.size(); ++i) {
      (*p)[i] = static_cast<float>(weight(z[i]) / sum);
    }
    return tau + (map.alpha - 1.0) * top;
  });
}

double LeastThreshold(const Map& map, const std::vector<double>& keys) {
  std::vector<double> z;
  const double top = Relative(map, keys, &z);
  const double tau =
      WithPower(map.alpha, [&](const auto& power) { return Threshold(power, z, -kInfinity); });
  return top + (tau - 1e-12) / (map.alpha - 1.0);
}

}  // namespace tsallis::decode
