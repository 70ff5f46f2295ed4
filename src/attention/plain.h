// Attention as anybody would write it, one row at a time, over an arithmetic of bounded.h. In float it
// is the yardstick: a kernel may be wrong by twice as much. In Bounded its errors are the bound of
// what rounding can do to any implementation that works along the same lines.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "attention/bounded.h"
#include "attention/geometry.h"
#include "attention/reference.h"
#include "attention/test_problem.h"
#include "simplex/elements.h"
#include "simplex/solve.h"

namespace tsallis {

template <typename T>
struct PlainResults {
  // As in Results. Rows that are not written hold Problem::kMark.
  std::vector<T> out, tau, entropy, maximum;
  std::vector<std::int64_t> support_low, support_high;  // what rounding leaves open
  std::vector<T> dq, dk, dv, d_length_scale, d_alpha, d_slopes, d_bias;
};

// One query's scores of the keys that it sees, and what the map makes of them.
template <typename T>
struct PlainRow {
  using A = Arithmetic<T>;

  std::vector<std::int64_t> keys;  // rows of k's axis: [n]
  std::vector<T> product, scores;  // <q, k> scale; s
  std::vector<T> depth, p, u;      // u: p^{2 - alpha}, up to a common factor
  T maximum, tau, entropy, level;  // level: that factor
  T beta, beta_slope, mean_log;    // adaptive temperature
  std::int64_t support_low = 0, support_high = 0;
  bool broken = false, empty = false;

  void Map(const RowSpec& spec);
  // dp -> ds in place. dp: [n].
  T Backward(const RowSpec& spec, std::vector<T>& dp) const;

 private:
  void Entmax(double eps);
  T Softmax(T factor, std::vector<T>& q) const;
  void Adaptive(const AdaptiveTemperature& adaptive);
};

template <typename T>
void PlainRow<T>::Map(const RowSpec& spec) {
  const std::size_t n = scores.size();
  broken = false;
  maximum = A::Of(-INFINITY);
  for (const T& s : scores) {
    if (std::isnan(A::Value(s)) || A::Value(s) == INFINITY) broken = true;
    if (A::Value(s) > A::Value(maximum)) maximum = s;
  }
  empty = !broken && A::Value(maximum) == -INFINITY;
  support_low = support_high = empty ? 0 : -1;
  const double fill = broken ? NAN : 0.0;
  p.assign(n, A::Of(fill));
  u.assign(n, A::Of(fill));
  tau = A::Of(broken ? NAN : -INFINITY);
  entropy = A::Of(fill);
  if (broken) maximum = A::Of(NAN);
  if (broken || empty) return;
  depth.resize(n);
  for (std::size_t j = 0; j < n; ++j) depth[j] = maximum - scores[j];
  if (spec.map == RowMap::kEntmax && spec.alpha > 1.0) {
    Entmax(spec.alpha - 1.0);
  } else if (spec.map == RowMap::kAdaptiveTemperature) {
    Adaptive(*spec.adaptive);
  } else {
    tau = maximum + Softmax(A::Of(1.0), p);
    u = p;
    level = A::Of(1.0);
  }
  support_low = support_high = 0;
  entropy = A::Of(0.0);
  for (const T& weight : p) {
    const double value = A::Value(weight), error = A::Error(weight);
    // Whether a weight that float32 hardly holds counts is the implementation's business.
    support_low += value - error > 0x1p-110 ? 1 : 0;
    support_high += value > 0.0 || error > 0x1p-110 ? 1 : 0;
    if (value + error > 0.0) entropy = entropy - weight * A::Log(weight);
  }
}

// q = softmax(-factor depth); returns the logarithm of the sum.
template <typename T>
T PlainRow<T>::Softmax(T factor, std::vector<T>& q) const {
  T sum = A::Of(0.0);
  q.resize(depth.size());
  for (std::size_t j = 0; j < depth.size(); ++j) {
    const bool absent = A::Value(depth[j]) == INFINITY;
    q[j] = absent ? A::Of(0.0) : A::Exp(A::Of(0.0) - factor * depth[j]);
    sum = sum + q[j];
  }
  for (T& weight : q) weight = weight / sum;
  return A::Log(sum);
}

// p_j = e^w [1 - r_j]^{1/eps}, r_j = eps depth_j e^{-eps w}, with w = ln p_max from the solver in double
// on the depths as they are.
template <typename T>
void PlainRow<T>::Entmax(double eps) {
  std::vector<double> depths, terms;
  for (const T& d : depth) {
    if (A::Value(d) < INFINITY) depths.push_back(A::Value(d));
  }
  terms.resize(depths.size());
  const auto kept = static_cast<std::int64_t>(depths.size());
  const double w0 = SolveLogTerms(eps, eps, depths.data(), kept, terms.data());
  // In z the threshold moves by at most as much as the largest of the scores that can matter.
  const double top = std::exp(eps * w0);
  double moved = 0.0;
  for (int pass = 0; pass < 2; ++pass) {
    const double reach = moved;
    for (const T& d : depth) {
      const double error = eps * A::Error(d);
      if (eps * A::Value(d) - error - reach < top) moved = std::max(moved, error);
    }
  }
  const double most = std::log(static_cast<double>(std::max<std::int64_t>(kept, 1)));
  const double open = moved < top ? std::min(most, -std::log1p(-moved / top) / eps) : most;
  const T w = A::WithError(w0, open);
  const T factor = A::Of(eps) * A::Exp(A::Of(-eps) * w);
  for (std::size_t j = 0; j < depth.size(); ++j) {
    p[j] = u[j] = A::Of(0.0);
    if (A::Value(depth[j]) == INFINITY) continue;
    const T r = factor * depth[j];
    p[j] = A::Exp(w) * A::PowerOneMinus(r, 1.0 / eps);
    if (A::Error(p[j]) > 1.0) p[j] = A::WithError(A::Value(p[j]), 1.0);
    u[j] = A::PowerOneMinus(r, (1.0 - eps) / eps);
  }
  level = A::Exp(A::Of(1.0 - eps) * w);
  tau = A::Of(eps) * maximum - A::Exp(A::Of(eps) * w);
}

template <typename T>
void PlainRow<T>::Adaptive(const AdaptiveTemperature& adaptive) {
  const T log_sum = Softmax(A::Of(1.0), u);
  T mean = A::Of(0.0);
  for (std::size_t j = 0; j < depth.size(); ++j) {
    if (A::Value(depth[j]) < INFINITY) mean = mean + u[j] * depth[j];
  }
  const T flat = log_sum + mean;  // the entropy of softmax(s)
  mean_log = flat - log_sum;
  T value = A::Of(0.0), slope = A::Of(0.0);
  for (auto c = adaptive.coefficients.rbegin(); c != adaptive.coefficients.rend(); ++c) {
    slope = slope * flat + value;
    value = value * flat + A::Of(*c);
  }
  // Where rounding decides between the polynomial and 1, either may be the result.
  const double over = A::Value(flat) - adaptive.threshold, room = A::Value(value) - 1.0;
  const bool on = over > 0.0 && room > 0.0;
  const bool open = std::abs(over) <= A::Error(flat) || std::abs(room) <= A::Error(value);
  const double change = open ? std::abs(room) + A::Error(value) : 0.0;
  const double bend = open ? std::abs(A::Value(slope)) + A::Error(slope) : 0.0;
  beta = on ? value : A::Of(1.0);
  beta_slope = on ? slope : A::Of(0.0);
  if (open) {
    beta = A::WithError(A::Value(beta), A::Error(beta) + change);
    beta_slope = A::WithError(A::Value(beta_slope), A::Error(beta_slope) + bend);
  }
  Softmax(beta, p);
  tau = maximum + log_sum;
}

// Returns the gradient in alpha.
template <typename T>
T PlainRow<T>::Backward(const RowSpec& spec, std::vector<T>& dp) const {
  const std::size_t n = scores.size();
  T d_alpha = A::Of(0.0);
  if (broken || empty) {
    for (T& value : dp) value = A::Of(broken ? NAN : 0.0);
    return A::Of(broken ? NAN : 0.0);
  }
  if (spec.map == RowMap::kAdaptiveTemperature) {
    T mean = A::Of(0.0), mean_depth = A::Of(0.0), d_beta = A::Of(0.0);
    const auto present = [&](std::size_t j) { return A::Value(depth[j]) < INFINITY; };
    for (std::size_t j = 0; j < n; ++j) {
      if (!present(j)) continue;
      mean = mean + p[j] * dp[j];
      mean_depth = mean_depth + p[j] * depth[j];
    }
    for (std::size_t j = 0; j < n; ++j) {
      const T g = p[j] * (dp[j] - mean);
      if (present(j)) d_beta = d_beta - g * (depth[j] - mean_depth);
      dp[j] = present(j) ? beta * g : A::Of(0.0);
    }
    const T d_entropy = d_beta * beta_slope;
    for (std::size_t j = 0; j < n; ++j) {
      if (present(j)) dp[j] = dp[j] - d_entropy * (u[j] * (mean_log - depth[j]));
    }
    return d_alpha;
  }
  T total = A::Of(0.0), mean = A::Of(0.0), mean_l = A::Of(0.0), mean_r = A::Of(0.0);
  const auto counts = [&](std::size_t j) { return A::Value(p[j]) + A::Error(p[j]) > 0.0; };
  for (std::size_t j = 0; j < n; ++j) {
    total = total + u[j];
    mean = mean + u[j] * dp[j];
  }
  mean = mean / total;
  // See d_alpha of simplex/entmax.cc: near 1 the form without 1 / eps, else the textbook's.
  const double eps = spec.alpha - 1.0;
  const bool near = eps <= 0.5;
  if (spec.map == RowMap::kEntmax) {
    const auto r_of = [&](T l) { return l * l * A::Phi(A::Of(-eps) * l); };
    for (std::size_t j = 0; j < n; ++j) {
      if (!counts(j)) continue;
      const T l = A::Log(p[j]);
      mean_l = mean_l + p[j] * l;
      if (near) mean_r = mean_r + p[j] * r_of(l);
    }
    for (std::size_t j = 0; j < n; ++j) {
      if (!counts(j)) continue;
      const T l = A::Log(p[j]);
      if (near) {
        const T r = r_of(l);
        const T bend = (mean_r - r) - A::Of(eps) * (l * mean_r - mean_l * r);
        d_alpha = d_alpha + dp[j] * p[j] * bend;
      } else {
        const T share = u[j] / total;
        const T bend = (p[j] - share) / A::Of(eps) - (p[j] * l - share * mean_l);
        d_alpha = d_alpha + dp[j] * bend / A::Of(eps);
      }
    }
    if (near) d_alpha = d_alpha / (level * total);
  }
  for (std::size_t j = 0; j < n; ++j) dp[j] = level * u[j] * (dp[j] - mean);
  return d_alpha;
}

// Forward and backward of the whole problem, with every gradient that it has.
template <typename T>
PlainResults<T> RunPlain(const Problem& problem);

}  // namespace tsallis

#include "attention/plain-inl.h"
