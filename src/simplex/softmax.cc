// Softmax, softmax whose temperature follows from its own entropy, and softmax over the k largest
// scores.
#include <algorithm>
#include <cmath>
#include <string>

#include "simplex/map.h"
#include "tsallis/error.h"

namespace tsallis {
namespace {

// q = softmax(-beta depth); returns ln sum exp(-beta depth).
double Softmax(const double* depth, double beta, std::int64_t n, double* q) {
  double sum = 0.0, lost = 0.0;
  for (std::int64_t j = 0; j < n; ++j) {
    q[j] = std::exp(-beta * depth[j]);
    const double y = q[j] - lost;
    const double t = sum + y;
    lost = (t - sum) - y;
    sum = t;
  }
  for (std::int64_t j = 0; j < n; ++j) q[j] /= sum;
  return std::log(sum);
}

double Forward(const RowSpec&, const double* depth, double offset, std::int64_t n, double* p) {
  return offset + Softmax(depth, 1.0, n, p);
}

void Backward(const RowSpec&, const double*, double, const double* p, const double* dp,
              std::int64_t n, double* ds) {
  double mean = 0.0;
  for (std::int64_t j = 0; j < n; ++j) mean += p[j] * dp[j];
  for (std::int64_t j = 0; j < n; ++j) ds[j] = p[j] > 0.0 ? p[j] * (dp[j] - mean) : 0.0;
}

double Shannon(const RowSpec&, const double* p, std::int64_t n) {
  double sum = 0.0;
  for (std::int64_t j = 0; j < n; ++j) sum -= p[j] > 0.0 ? p[j] * std::log(p[j]) : 0.0;
  return sum;
}

// Entropy of softmax(-depth) and, if wanted, beta and its derivative in that entropy.
struct Beta {
  double entropy, log_sum, beta, derivative;
};

Beta FindBeta(const AdaptiveTemperature& adaptive, const double* depth, std::int64_t n) {
  double sum = 0.0, weighted = 0.0;
  for (std::int64_t j = 0; j < n; ++j) {
    const double e = std::exp(-depth[j]);
    sum += e;
    weighted += e * depth[j];
  }
  Beta out{std::log(sum) + weighted / sum, std::log(sum), 1.0, 0.0};
  out.beta = BetaOfEntropy(adaptive, out.entropy, &out.derivative);
  return out;
}

void CheckAdaptive(const RowSpec& spec) {
  if (spec.adaptive.coefficients.empty()) {
    throw InvalidArgument("adaptive.coefficients", "at least one coefficient", "none");
  }
  for (double c : spec.adaptive.coefficients) {
    if (!std::isfinite(c)) {
      throw InvalidArgument("adaptive.coefficients", "finite values", std::to_string(c));
    }
  }
  if (std::isnan(spec.adaptive.threshold)) {
    throw InvalidArgument("adaptive.threshold", "a number", "nan");
  }
}

double AdaptiveForward(const RowSpec& spec, const double* depth, double offset, std::int64_t n,
                       double* p) {
  const Beta beta = FindBeta(spec.adaptive, depth, n);
  Softmax(depth, beta.beta, n, p);
  return offset + beta.log_sum;
}

// p = softmax(beta s), beta = beta(H(q)), q = softmax(s):
//   dp_j/dbeta = p_j (s_j - <p, s>),  dH/ds_j = -q_j (ln q_j + H).
void AdaptiveBackward(const RowSpec& spec, const double* depth, double, const double* p,
                      const double* dp, std::int64_t n, double* ds) {
  const Beta beta = FindBeta(spec.adaptive, depth, n);
  double mean = 0.0, mean_depth = 0.0;
  for (std::int64_t j = 0; j < n; ++j) {
    mean += p[j] * dp[j];
    mean_depth += p[j] * depth[j];
  }
  double d_beta = 0.0;
  for (std::int64_t j = 0; j < n; ++j) {
    const double g = p[j] > 0.0 ? p[j] * (dp[j] - mean) : 0.0;
    d_beta -= g * (depth[j] - mean_depth);
    ds[j] = beta.beta * g;
  }
  const double d_entropy = d_beta * beta.derivative;
  if (d_entropy == 0.0) return;
  for (std::int64_t j = 0; j < n; ++j) {
    const double log_q = -depth[j] - beta.log_sum;
    ds[j] -= d_entropy * std::exp(log_q) * (log_q + beta.entropy);
  }
}

void CheckTopK(const RowSpec& spec) {
  const TopK& top_k = spec.top_k;
  if (top_k.k < 1) {
    throw InvalidArgument("top_k.k", "an integer >= 1 for top_k_softmax", std::to_string(top_k.k));
  }
  if (!(top_k.fraction >= 0.0 && top_k.fraction <= 1.0)) {
    throw InvalidArgument("top_k.fraction", "a number in [0, 1]", std::to_string(top_k.fraction));
  }
}

double TopKForward(const RowSpec& spec, const double* depth, double offset, std::int64_t n,
                   double* p) {
  std::copy_n(depth, n, p);
  const std::int64_t kept = KeptOf(spec.top_k, n);
  std::nth_element(p, p + (kept - 1), p + n);
  const double reach = p[kept - 1];
  double sum = 0.0;
  for (std::int64_t j = 0; j < n; ++j) {
    p[j] = depth[j] <= reach ? std::exp(-depth[j]) : 0.0;
    sum += p[j];
  }
  for (std::int64_t j = 0; j < n; ++j) p[j] /= sum;
  return offset + std::log(sum);
}

}  // namespace

double BetaOfEntropy(const AdaptiveTemperature& adaptive, double entropy, double* derivative) {
  if (derivative != nullptr) *derivative = 0.0;
  if (!(entropy > adaptive.threshold)) return 1.0;
  double value = 0.0, slope = 0.0;  // Horner, with the derivative
  for (auto c = adaptive.coefficients.rbegin(); c != adaptive.coefficients.rend(); ++c) {
    slope = slope * entropy + value;
    value = value * entropy + *c;
  }
  if (!(value > 1.0)) return 1.0;
  if (derivative != nullptr) *derivative = slope;
  return value;
}

void StreamedEntropy::Add(double score) {
  if (score == __builtin_inf()) score = __builtin_nan("");
  if (score == -__builtin_inf()) return;
  if (!(score <= max_)) {  // NaN comes here too, and stays
    const double shift = max_ - score;
    const double shrink = std::exp(shift);
    weighted_ = sum_ > 0.0 ? shrink * (weighted_ + sum_ * shift) : 0.0;
    sum_ = sum_ * shrink + 1.0;
    max_ = score;
    return;
  }
  const double depth = score - max_;
  const double e = std::exp(depth);
  sum_ += e;
  weighted_ += e * depth;
}

void StreamedEntropy::Merge(const StreamedEntropy& other) {
  if (other.sum_ == 0.0) return;
  if (sum_ == 0.0) {
    *this = other;
    return;
  }
  const double top = max_ > other.max_ ? max_ : other.max_;
  const double a = max_ - top, b = other.max_ - top;
  weighted_ =
      std::exp(a) * (weighted_ + sum_ * a) + std::exp(b) * (other.weighted_ + other.sum_ * b);
  sum_ = sum_ * std::exp(a) + other.sum_ * std::exp(b);
  max_ = top;
}

double StreamedEntropy::LogSumExp() const {
  return sum_ == 0.0 ? -__builtin_inf() : max_ + std::log(sum_);
}

double StreamedEntropy::Entropy() const {
  return sum_ == 0.0 ? 0.0 : std::log(sum_) - weighted_ / sum_;
}

const ReferenceMap kSoftmaxReference = {
    .map = RowMap::kSoftmax,
    .name = "softmax",
    .check = nullptr,
    .forward = Forward,
    .backward = Backward,
    .d_alpha = nullptr,
    .generator = Shannon,
    .backward_needs_scores = false,
    .in_attention = true,
    .takes_sink = true,
};

const ReferenceMap kTopKSoftmaxReference = {
    .map = RowMap::kTopKSoftmax,
    .name = "top_k_softmax",
    .check = CheckTopK,
    .forward = TopKForward,
    .backward = Backward,  // what is not kept has p = 0
    .d_alpha = nullptr,
    .generator = nullptr,
    .backward_needs_scores = false,
    .in_attention = true,
};

const ReferenceMap kAdaptiveTemperatureReference = {
    .map = RowMap::kAdaptiveTemperature,
    .name = "adaptive_temperature",
    .check = CheckAdaptive,
    .forward = AdaptiveForward,
    .backward = AdaptiveBackward,
    .d_alpha = nullptr,
    .generator = nullptr,
    .backward_needs_scores = true,
    .gradient_off_support = true,  // of the entropy, where a sharpened weight has vanished
    .in_attention = true,
};

}  // namespace tsallis
