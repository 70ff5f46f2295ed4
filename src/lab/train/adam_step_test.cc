#include "lab/train/adam_step.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "core/every_target.h"

namespace tsallis::lab {
namespace {

std::vector<float> Normal(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0F, 1.0F);
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

TEST(AdamStep, AdamFollowsTheDefinition) {
  ForEachTarget([](const std::string&) {
    const std::int64_t count = 37;
    std::vector<float> w = Normal(37, 5);
    std::vector<float> m(37);
    std::vector<float> v(37);
    std::vector<double> w64(w.begin(), w.end());
    std::vector<double> m64(37);
    std::vector<double> v64(37);
    for (int step = 1; step <= 5; ++step) {
      const std::vector<float> g = Normal(37, static_cast<unsigned>(10 + step));
      const double c1 = 1.0 - std::pow(0.9, step);
      const double c2 = 1.0 - std::pow(0.999, step);
      AdamStep({1e-2F, 0.9F, 0.999F, 1e-8F, 1e-3F, static_cast<float>(c1), static_cast<float>(c2)},
               count, g.data(), w.data(), m.data(), v.data());
      for (std::size_t i = 0; i < 37; ++i) {
        const double gradient = g[i] + 1e-3 * w64[i];
        m64[i] = 0.9 * m64[i] + 0.1 * gradient;
        v64[i] = 0.999 * v64[i] + 0.001 * gradient * gradient;
        w64[i] -= 1e-2 * (m64[i] / c1) / (std::sqrt(v64[i] / c2) + 1e-8);
        EXPECT_NEAR(w[i], w64[i], 2e-6 * step);
      }
    }
  });
}

TEST(AdamStep, AGradientWhoseSquareIsBeyondFloatStopsItsWeightAndNoOther) {
  ForEachTarget([](const std::string&) {
    std::vector<float> w(20, 1.0F);
    std::vector<float> m(20);
    std::vector<float> v(20);
    std::vector<float> g(20, 1.0F);
    g[3] = 1e30F;
    for (int step = 1; step <= 3; ++step) {
      AdamStep({1e-3F, 0.9F, 0.999F, 1e-8F, 0.0F, 0.1F, 0.001F}, 20, g.data(), w.data(), m.data(),
               v.data());
    }
    EXPECT_EQ(w[3], 1.0F);
    EXPECT_LT(w[2], 1.0F);
    EXPECT_EQ(w[2], w[19]);
  });
}

}  // namespace
}  // namespace tsallis::lab
