// The threshold of a list of scores, in double.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <limits>
#include <vector>

#include "attention/cpu/decode/decode.h"

namespace tsallis::decode {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// u^b of u >= 0 and, from that, u^(b - 1), b = 1 / (alpha - 1); both are 0 at 0, also for b = 1.
struct Square {
  double Value(double u) const { return u * u; }
  double Slope(double u, double) const { return u; }
  double Root(double sum) const { return std::sqrt(sum); }
};
struct Identity {
  double Value(double u) const { return u; }
  double Slope(double u, double) const { return u > 0.0 ? 1.0 : 0.0; }
  double Root(double) const { return 1.0; }
};
struct General {
  double b;
  double Value(double u) const { return u > 0.0 ? std::pow(u, b) : 0.0; }
  double Slope(double u, double value) const { return u > 0.0 ? value / u : 0.0; }
  double Root(double sum) const { return std::pow(sum, 1.0 - 1.0 / b); }
};

template <class Run>
auto WithPower(double alpha, const Run& run) {
  if (alpha == 1.5) return run(Square());
  if (alpha == 2.0) return run(Identity());
  return run(General{1.0 / (alpha - 1.0)});
}

struct Sums {
  double value = 0.0, slope = 0.0;
};

// Of [z - tau]^b and [z - tau]^(b - 1), b as above. Four sums side by side wait for no other, and
// have the same bits on every processor.
template <class Power>
Sums SumsAt(const Power& power, const std::vector<double>& z, double tau) {
  constexpr std::size_t kLanes = 4;
  double value[kLanes] = {}, slope[kLanes] = {};
  const auto add = [&](std::size_t i, std::size_t lane) {
    const double above = z[i] - tau, u = above > 0.0 ? above : 0.0, raised = power.Value(u);
    value[lane] += raised;
    slope[lane] += power.Slope(u, raised);
  };
  const std::size_t whole = z.size() / kLanes * kLanes;
  for (std::size_t i = 0; i < whole; i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) add(i + lane, lane);
  }
  for (std::size_t i = whole; i < z.size(); ++i) add(i, i - whole);
  return {(value[0] + value[1]) + (value[2] + value[3]),
          (slope[0] + slope[1]) + (slope[2] + slope[3])};
}

// The tau with sum [z - tau]^b = 1. z <= 0 with one of 0, so that tau lies in [-1, 0). Newton's
// steps on the norm of [z - tau] do not overshoot from below where b >= 1 (entmax-inl.h); where
// they leave the bracket it is halved.
template <class Power>
double Threshold(const Power& power, const std::vector<double>& z) {
  double low = -1.0, high = 0.0, tau = -1.0;
  for (int step = 0; step < 200; ++step) {
    const auto [sum, slope] = SumsAt(power, z, tau);
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
    std::vector<double> support;
    const double least = Threshold(power, z) - 1e-12;
    std::ranges::copy_if(z, std::back_inserter(support),
                         [&](double value) { return value >= least; });
    const double tau = Threshold(power, support);
    const double sum = SumsAt(power, support, tau).value;
    p->resize(keys.size());
    for (std::size_t i = 0; i < keys.size(); ++i) {
      (*p)[i] = static_cast<float>(power.Value(std::max(z[i] - tau, 0.0)) / sum);
    }
    return tau + (map.alpha - 1.0) * top;
  });
}

double LeastThreshold(const Map& map, const std::vector<double>& keys) {
  std::vector<double> z;
  const double top = Relative(map, keys, &z);
  const double tau = WithPower(map.alpha, [&](const auto& power) { return Threshold(power, z); });
  return top + (tau - 1e-12) / (map.alpha - 1.0);
}

}  // namespace tsallis::decode
