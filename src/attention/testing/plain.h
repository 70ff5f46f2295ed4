// Attention as anybody would write it, one row at a time, over an arithmetic of bounded.h. In float
// it is the yardstick: a kernel may be wrong by twice as much. In Bounded its errors are the bound
// of what rounding can do to any implementation that works along the same lines.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "attention/geometry.h"
#include "attention/reference.h"
#include "attention/terms.h"
#include "attention/testing/bounded.h"
#include "attention/testing/problem.h"
#include "core/elements.h"
#include "simplex/solve.h"

namespace tsallis {

template <typename T>
struct PlainResults {
  // The members of Results. Rows that are not written hold Problem::kMark.
  std::vector<T> out, tau, entropy, maximum;
  std::vector<std::int64_t> support_low, support_high;  // what rounding leaves open
  std::vector<T> dq, dk, dv, d_length_scale, d_alpha, d_slopes, d_sink, d_bias;
};

// One query's scores of the keys that it sees, and what the map makes of them.
template <typename T>
struct PlainRow {
  using A = Arithmetic<T>;

  std::vector<std::int64_t> keys;  // rows of k's axis: [n]
  std::vector<T> product, scores;  // <q, k> scale; s, and behind those a sink's
  std::vector<T> depth, p, u;      // u: p^{2 - alpha}, up to a common factor
  T maximum, tau, entropy, level;  // of the keys; level: that factor
  T peak;                          // the largest score of all
  T beta, beta_slope, mean_log;    // adaptive temperature
  std::int64_t support_low = 0, support_high = 0;
  bool broken = false, empty = false;

  // sink: its score, which is put behind the keys', or null.
  void Map(const RowSpec& spec, const double* sink);
  // dp -> ds in place. dp: as scores.
  T Backward(const RowSpec& spec, std::vector<T>& dp) const;

 private:
  void Entmax(double eps);
  double ThresholdMoves(double eps, double top) const;
  double FullSupportMoves(double g, double top) const;
  T Softmax(T factor, std::vector<T>& q) const;
  void Adaptive(const AdaptiveTemperature& adaptive);
  void TopKSoftmax(const TopK& top_k);
  void Softpick();
  void StickBreaking();
  // Numbers of softpick, relative to e^top, top = max(0, peak).
  T Top() const { return A::Value(peak) > 0.0 ? peak : A::Of(0.0); }
  T Exponential(std::size_t j) const;
  T Excess(std::size_t j) const;
  T Denominator() const;
  void BaselineBackward(RowMap map, std::vector<T>& dp) const;
};

template <typename T>
void PlainRow<T>::Map(const RowSpec& spec, const double* sink) {
  const std::size_t keys_here = scores.size();
  broken = false;
  maximum = A::Of(-INFINITY);
  for (const T& s : scores) {
    if (std::isnan(A::Value(s)) || A::Value(s) == INFINITY) broken = true;
    if (A::Value(s) > A::Value(maximum)) maximum = s;
  }
  empty = !broken && A::Value(maximum) == -INFINITY;
  peak = maximum;
  if (sink != nullptr && !empty) {
    scores.push_back(A::Of(*sink));
    if (*sink > A::Value(maximum)) peak = scores.back();
  }
  const std::size_t n = scores.size();
  support_low = support_high = empty ? 0 : -1;
  const double fill = broken ? NAN : 0.0;
  p.assign(n, A::Of(fill));
  u.assign(n, A::Of(fill));
  tau = A::Of(broken ? NAN : -INFINITY);
  entropy = A::Of(fill);
  if (broken) maximum = A::Of(NAN);
  if (broken || empty) return;
  depth.resize(n);
  for (std::size_t j = 0; j < n; ++j) depth[j] = peak - scores[j];
  if (spec.map == RowMap::kEntmax && spec.alpha != 1.0) {
    Entmax(spec.alpha - 1.0);
  } else if (spec.map == RowMap::kAdaptiveTemperature) {
    Adaptive(spec.adaptive);
  } else if (spec.map == RowMap::kTopKSoftmax) {
    TopKSoftmax(spec.top_k);
  } else if (spec.map == RowMap::kSigmoid) {
    const auto present = std::count_if(depth.begin(), depth.end(),
                                       [](const T& d) { return A::Value(d) < INFINITY; });
    const T bias = A::Of(SigmoidBias(spec, present));
    tau = A::Of(0.0) - bias;
    for (std::size_t j = 0; j < n; ++j) {
      if (A::Value(depth[j]) < INFINITY) p[j] = A::Sigmoid(scores[j] + bias);
    }
  } else if (spec.map == RowMap::kSoftpick) {
    Softpick();
  } else if (spec.map == RowMap::kStickBreaking) {
    StickBreaking();
  } else {
    tau = peak + Softmax(A::Of(1.0), p);
    u = p;
    level = A::Of(1.0);
  }
  support_low = support_high = 0;
  entropy = A::Of(0.0);
  for (std::size_t j = 0; j < keys_here; ++j) {
    const T weight = p[j];
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

// How far the errors of the depths move the threshold in z: as much as the largest of the scores
// that can matter. top: p_max^eps.
template <typename T>
double PlainRow<T>::ThresholdMoves(double eps, double top) const {
  double moved = 0.0;
  for (int pass = 0; pass < 2; ++pass) {
    const double reach = moved;
    for (const T& d : depth) {
      const double error = eps * A::Error(d);
      if (eps * A::Value(d) - error - reach < top) moved = std::max(moved, error);
    }
  }
  return moved;
}

// The bound for alpha = 1 - g, where every score matters, by its share u/sum u, u = (top + g
// depth)^{-1/g - 1}: each share at its largest, the sum at its smallest.
template <typename T>
double PlainRow<T>::FullSupportMoves(double g, double top) const {
  double largest = 0.0, moved = 0.0;
  for (const T& d : depth) {
    if (A::Value(d) < INFINITY) largest = std::max(largest, g * A::Error(d));
  }
  for (int pass = 0; pass < 2; ++pass) {
    const double low = std::max(top - moved, 0x1p-60 * top), high = top + moved;
    double shares = 0.0, total = 0.0;
    for (const T& d : depth) {
      if (!(A::Value(d) < INFINITY)) continue;
      const double value = g * A::Value(d), error = g * A::Error(d), power = -1.0 / g - 1.0;
      const auto relative = [&](double x) { return std::exp(power * std::log(x / top)); };
      if (error > 0.0) shares += error * relative(low + std::max(value - error, 0.0));
      total += relative(high + value + error);
    }
    moved = std::min(largest, shares / total);
    if (std::isnan(moved)) moved = largest;
  }
  return moved;
}

// p_j = e^w [1 - r_j]^{1/eps}, r_j = eps depth_j e^{-eps w}, with w = ln p_max from the solver in
// double on the depths as they are.
template <typename T>
void PlainRow<T>::Entmax(double eps) {
  std::vector<double> depths, terms;
  for (const T& d : depth) {
    if (A::Value(d) < INFINITY) depths.push_back(A::Value(d));
  }
  terms.resize(depths.size());
  const auto kept = static_cast<std::int64_t>(depths.size());
  const double w0 = SolveLogTerms(eps, eps, depths.data(), kept, terms.data());
  const double top = std::exp(eps * w0);
  const double moved = eps > 0.0 ? ThresholdMoves(eps, top) : FullSupportMoves(-eps, top);
  const double most = std::log(static_cast<double>(std::max<std::int64_t>(kept, 1)));
  const double open =
      moved < top ? std::min(most, -std::log1p(-moved / top) / std::abs(eps)) : most;
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
  tau = A::Of(eps) * peak - A::Exp(A::Of(eps) * w);
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
  tau = peak + log_sum;
}

// Which of two close scores are kept is for rounding to decide: such a weight may also be 0, and
// the others what they are without it.
template <typename T>
void PlainRow<T>::TopKSoftmax(const TopK& top_k) {
  std::vector<double> values, low, high;
  for (const T& d : depth) {
    if (!(A::Value(d) < INFINITY)) continue;
    values.push_back(A::Value(d));
    low.push_back(A::Value(d) - A::Error(d));
    high.push_back(A::Value(d) + A::Error(d));
  }
  for (auto* depths : {&values, &low, &high}) std::sort(depths->begin(), depths->end());
  const std::int64_t kept = KeptOf(top_k, static_cast<std::int64_t>(values.size()));
  const double reach = values[kept - 1];
  const auto below = [](const std::vector<double>& depths, double bar) {
    return std::lower_bound(depths.begin(), depths.end(), bar) - depths.begin();
  };
  T sum = A::Of(0.0);
  double open_in = 0.0, open_out = 0.0;
  std::vector<char> open(depth.size(), 0);
  for (std::size_t j = 0; j < depth.size(); ++j) {
    const double d = A::Value(depth[j]), error = A::Error(depth[j]);
    if (!(d < INFINITY)) continue;
    const bool in = below(low, d + error) - (error > 0.0 ? 1 : 0) < kept;
    open[j] = !in && below(high, d - error) < kept;
    const T weight = A::Exp(A::Of(0.0) - depth[j]);
    const bool counts = d <= reach;
    if (open[j]) (counts ? open_in : open_out) += A::Value(weight) + A::Error(weight);
    p[j] = counts ? weight : A::Of(0.0);
    u[j] = weight;
    if (counts) sum = sum + weight;
  }
  // The largest is always kept.
  const double all = A::Value(sum), least = std::max(all - open_in, 0.99), most = all + open_out;
  for (std::size_t j = 0; j < depth.size(); ++j) {
    p[j] = p[j] / sum;
    const double value = A::Value(p[j]), whole = A::Value(u[j]);
    if (open_in + open_out == 0.0 || (value == 0.0 && !open[j])) continue;
    const double change = std::max(whole / least - value, value - (open[j] ? 0.0 : whole / most));
    p[j] = A::WithError(value, A::Error(p[j]) + change);
  }
  tau = peak + A::Log(sum);
  const double change = std::max(std::log(all / least), std::log(most / all));
  if (open_in + open_out > 0.0) tau = A::WithError(A::Value(tau), A::Error(tau) + change);
}

template <typename T>
T PlainRow<T>::Exponential(std::size_t j) const {
  return A::Exp(A::Value(peak) > 0.0 ? A::Of(0.0) - depth[j] : scores[j]);
}

template <typename T>
T PlainRow<T>::Excess(std::size_t j) const {
  if (A::Value(depth[j]) == INFINITY) return A::Of(0.0);
  const T low = A::Exp(A::Of(0.0) - Top());
  return A::Value(scores[j]) < 1.0 ? A::Expm1(scores[j]) * low : Exponential(j) - low;
}

template <typename T>
T PlainRow<T>::Denominator() const {
  T sum = A::Of(kSoftpickEpsilon * std::exp(-A::Value(Top())));
  for (std::size_t j = 0; j < scores.size(); ++j) {
    const T excess = Excess(j);
    sum = A::Value(excess) < 0.0 ? sum - excess : sum + excess;
  }
  return sum;
}

template <typename T>
void PlainRow<T>::Softpick() {
  const T sum = Denominator();
  for (std::size_t j = 0; j < scores.size(); ++j) {
    const T excess = Excess(j);
    if (A::Value(excess) + A::Error(excess) <= 0.0) continue;
    p[j] = (A::Value(excess) > 0.0 ? excess : A::WithError(0.0, A::Error(excess))) / sum;
  }
  // Where scores are known to no digit, nothing is said about it.
  const bool known = A::Error(sum) < 0.5 * A::Value(sum);
  tau = Top() + (known ? A::Log(sum) : A::WithError(std::log(A::Value(sum)), INFINITY));
}

template <typename T>
void PlainRow<T>::StickBreaking() {
  tau = A::Of(0.0);
  for (std::size_t j = scores.size(); j-- > 0;) {
    if (A::Value(depth[j]) == INFINITY) continue;
    p[j] = A::Exp(tau - A::Softplus(A::Of(0.0) - scores[j]));
    tau = tau - A::Softplus(scores[j]);
  }
}

template <typename T>
void PlainRow<T>::BaselineBackward(RowMap map, std::vector<T>& dp) const {
  const T zero = A::Of(0.0);
  T mean = zero, before = zero;
  for (std::size_t j = 0; j < dp.size(); ++j) mean = mean + p[j] * dp[j];
  const T sum = map == RowMap::kSoftpick ? Denominator() : zero;
  for (std::size_t j = 0; j < dp.size(); ++j) {
    const T share = p[j] * dp[j];
    if (A::Value(depth[j]) == INFINITY) {
      dp[j] = zero;
    } else if (map == RowMap::kTopKSoftmax) {
      dp[j] = p[j] * (dp[j] - mean);
    } else if (map == RowMap::kSigmoid) {
      dp[j] = share * (A::Of(1.0) - p[j]);
    } else if (map == RowMap::kSoftpick) {
      const T slope = Exponential(j) / sum;
      const double s = A::Value(scores[j]);
      const T above = slope * (dp[j] - mean), below = slope * mean;
      // At a score that rounding may move across 0, either may come, or 0.
      const bool open = std::abs(s) <= A::Error(scores[j]) && A::Error(scores[j]) > 0.0;
      const double change =
          std::abs(A::Value(above)) + A::Error(above) + std::abs(A::Value(below)) + A::Error(below);
      dp[j] = s > 0.0 ? above : s < 0.0 ? below : zero;
      if (open) dp[j] = A::WithError(A::Value(dp[j]), A::Error(dp[j]) + change);
    } else {
      dp[j] = A::Sigmoid(zero - scores[j]) * share - A::Sigmoid(scores[j]) * before;
      before = before + share;
    }
  }
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
  if (spec.map == RowMap::kTopKSoftmax || !SumsToOne(spec.map)) {
    BaselineBackward(spec.map, dp);
    return d_alpha;
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

#include "attention/testing/plain-inl.h"
