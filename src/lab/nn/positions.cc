#include "lab/nn/positions.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace tsallis::lab {
namespace {

// Fast frequencies stay, slow ones are divided by the factor, linearly in the turns within the
// trained length between the bounds.
double ByParts(double frequency, const RopeScaling& scaling, double slow, double fast) {
  const double turns = frequency * static_cast<double>(scaling.train_length.value()) / (2.0 * M_PI);
  const double kept = std::clamp((turns - slow) / (fast - slow), 0.0, 1.0);
  return frequency * (kept + (1.0 - kept) / scaling.factor);
}

}  // namespace

std::vector<double> RopeFrequencies(const Positions& positions, std::int64_t head_dim,
                                    std::int64_t length) {
  const RopeScaling& scaling = positions.scaling;
  const std::int64_t pairs = head_dim / 2;
  double base = positions.base;
  if (scaling.kind == "ntk" && length > scaling.train_length.value()) {
    const double d = static_cast<double>(head_dim);
    base *= std::pow(static_cast<double>(length) / static_cast<double>(*scaling.train_length),
                     d / (d - 2.0));
  }
  const auto kept = std::llround(positions.kept * static_cast<double>(pairs));
  std::vector<double> frequencies(static_cast<std::size_t>(pairs), 0.0);
  for (std::int64_t k = 0; k < kept; ++k) {
    double& frequency = frequencies[static_cast<std::size_t>(k)];
    if (positions.kept_base) {
      const double last = static_cast<double>(std::max<std::int64_t>(1, kept - 1));
      frequency = std::pow(*positions.kept_base, -static_cast<double>(k) / last);
    } else {
      frequency = std::pow(base, -2.0 * static_cast<double>(k) / static_cast<double>(head_dim));
    }
    if (scaling.kind == "linear") frequency /= scaling.factor;
    if (scaling.kind == "yarn") {
      frequency = ByParts(frequency, scaling, scaling.beta_slow, scaling.beta_fast);
    }
    if (scaling.kind == "llama3") {
      frequency = ByParts(frequency, scaling, scaling.low_frequency, scaling.high_frequency);
    }
  }
  return frequencies;
}

double RopeAttentionFactor(const RopeScaling& scaling) {
  if (scaling.attention_factor) return *scaling.attention_factor;
  return scaling.kind == "yarn" ? 0.1 * std::log(scaling.factor) + 1.0 : 1.0;
}

RopeTable MakeRopeTable(const Positions& positions, std::int64_t head_dim, std::int64_t length) {
  const std::vector<double> frequencies = RopeFrequencies(positions, head_dim, length);
  const double factor = RopeAttentionFactor(positions.scaling);
  const std::int64_t pairs = head_dim / 2;
  RopeTable table{at::empty({length, pairs}), at::empty({length, pairs})};
  float* cosine = table.cosine.mutable_data_ptr<float>();
  float* sine = table.sine.mutable_data_ptr<float>();
  for (std::int64_t i = 0; i < length; ++i) {
    for (const double frequency : frequencies) {
      const double angle = frequency * static_cast<double>(i);
      *cosine++ = static_cast<float>(factor * std::cos(angle));
      *sine++ = static_cast<float>(factor * std::sin(angle));
    }
  }
  return table;
}

std::vector<double> AlibiSlopes(const Positions& positions, std::int64_t heads) {
  if (positions.slopes == "given") return positions.given;
  const std::int64_t count = SlopedHeads(positions, heads);
  std::vector<double> slopes;
  for (std::int64_t i = 1; i <= count; ++i) {
    const double h = static_cast<double>(i);
    const double share = h / static_cast<double>(count);
    if (positions.slopes == "geometric") {
      slopes.push_back(std::exp2(-8.0 * share));
    } else if (positions.slopes == "slow") {
      slopes.push_back(std::exp2(-share));
    } else if (positions.slopes == "halving") {
      slopes.push_back(std::exp2(1.0 - h));
    } else {
      slopes.push_back(1.0 / h);
    }
  }
  return slopes;
}

at::Tensor Sinusoids(std::int64_t length, std::int64_t width, double base) {
  at::Tensor table = at::empty({length, width});
  float* to = table.mutable_data_ptr<float>();
  for (std::int64_t i = 0; i < length; ++i) {
    for (std::int64_t k = 0; k < width; ++k) {
      const double exponent = static_cast<double>(k - k % 2) / static_cast<double>(width);
      const double angle = static_cast<double>(i) * std::pow(base, -exponent);
      *to++ = static_cast<float>(k % 2 == 0 ? std::sin(angle) : std::cos(angle));
    }
  }
  return table;
}

}  // namespace tsallis::lab
