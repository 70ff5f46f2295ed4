// Weights of independent sigmoids, and of sigmoids that break pieces off one stick.
#include <algorithm>
#include <cmath>
#include <string>

#include "simplex/map.h"
#include "tsallis/error.h"

namespace tsallis {
namespace {

double Sigmoid(double x) {
  const double e = std::exp(-std::abs(x));
  return (x >= 0.0 ? 1.0 : e) / (1.0 + e);
}

// ln(1 + e^x) = -ln sigmoid(-x)
double Softplus(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))); }

void Check(const RowSpec& spec) {
  if (!spec.sigmoid_bias || std::isfinite(*spec.sigmoid_bias)) return;
  throw InvalidArgument("sigmoid_bias", "a finite number, or none for -ln n",
                        std::to_string(*spec.sigmoid_bias));
}

double Forward(const RowSpec& spec, const double* depth, double offset, std::int64_t n, double* p) {
  const double bias = SigmoidBias(spec, n);
  for (std::int64_t j = 0; j < n; ++j) p[j] = Sigmoid((offset - depth[j]) + bias);
  return -bias;
}

void Backward(const RowSpec&, const double*, double, const double* p, const double* dp,
              std::int64_t n, double* ds) {
  for (std::int64_t j = 0; j < n; ++j) ds[j] = p[j] * (1.0 - p[j]) * dp[j];
}

// ln p_j = -softplus(-s_j) - sum_{m > j} softplus(s_m): sums of logarithms keep the digits of a
// stick that is nearly used up.
double StickForward(const RowSpec&, const double* depth, double offset, std::int64_t n, double* p) {
  double rest = 0.0;  // ln of the rest of the stick
  for (std::int64_t j = n - 1; j >= 0; --j) {
    const double s = offset - depth[j];
    p[j] = std::exp(rest - Softplus(-s));
    rest -= Softplus(s);
  }
  return rest;
}

// A larger s_j takes more of what is left, and leaves less to the entries before it:
//   ds_j = sigmoid(-s_j) p_j dp_j - sigmoid(s_j) sum_{m < j} p_m dp_m
void StickBackward(const RowSpec&, const double* depth, double offset, const double* p,
                   const double* dp, std::int64_t n, double* ds) {
  double before = 0.0;
  for (std::int64_t j = 0; j < n; ++j) {
    const double s = offset - depth[j], share = p[j] * dp[j];
    ds[j] = Sigmoid(-s) * share - Sigmoid(s) * before;
    before += share;
  }
}

}  // namespace

double SigmoidBias(const RowSpec& spec, std::int64_t n) {
  return spec.sigmoid_bias.value_or(-std::log(static_cast<double>(n)));
}

const ReferenceMap kSigmoidReference = {
    .map = RowMap::kSigmoid,
    .name = "sigmoid",
    .check = Check,
    .forward = Forward,
    .backward = Backward,
    .d_alpha = nullptr,
    .generator = nullptr,
    .backward_needs_scores = false,
    .sums_to_one = false,
    .in_attention = true,
};

const ReferenceMap kStickBreakingReference = {
    .map = RowMap::kStickBreaking,
    .name = "stick_breaking",
    .check = nullptr,
    .forward = StickForward,
    .backward = StickBackward,
    .d_alpha = nullptr,
    .generator = nullptr,
    .backward_needs_scores = true,
    .gradient_off_support = true,
    .sums_to_one = false,
    .in_attention = true,
};

}  // namespace tsallis
