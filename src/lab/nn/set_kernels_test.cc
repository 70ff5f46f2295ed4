#include "lab/nn/set_kernels.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "core/every_target.h"

namespace tsallis::lab {
namespace {

std::vector<float> Normal(std::size_t count, unsigned seed, float scale = 1.0F) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0F, scale);
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

double GeluReference(double x) {
  return 0.5 * x * (1.0 + std::tanh(std::sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x)));
}

TEST(SetKernels, GeluMatchesItsFormulaAndSlope) {
  ForEachTarget([](const std::string&) {
    std::vector<float> z = Normal(1003, 1, 3.0F);
    z.insert(z.end(), {0.0F, -0.0F, 40.0F, -40.0F, 1e4F, -1e4F});
    std::vector<float> a(z.size());
    std::vector<float> slope(z.size());
    const std::vector<float> bias(z.size(), 0.25F);
    BiasGelu(z.data(), bias.data(), a.data(), slope.data(), 1, static_cast<std::int64_t>(z.size()));
    for (std::size_t i = 0; i < z.size(); ++i) {
      const double x = z[i] + 0.25F;
      EXPECT_NEAR(a[i], GeluReference(x), 4e-7 * (1.0 + std::abs(x))) << x;
      const double h = 1e-5 * (1.0 + std::abs(x));
      EXPECT_NEAR(slope[i], (GeluReference(x + h) - GeluReference(x - h)) / (2 * h), 2e-6) << x;
    }
  });
}

TEST(SetKernels, ScoresAndPoolingMatchPlainLoops) {
  ForEachTarget([](const std::string&) {
    for (const std::int64_t width : {1, 7, 16, 33, 128}) {
      for (const std::int64_t n : {1, 3, 4, 5, 17}) {
        const std::int64_t sets = 3;
        const auto h = Normal(static_cast<std::size_t>(sets * n * width), 2);
        const auto u = Normal(static_cast<std::size_t>(sets * width), 3);
        auto p = Normal(static_cast<std::size_t>(sets * n), 4);
        p[0] = 0.0F;
        std::vector<float> s(p.size());
        std::vector<float> z(u.size());
        SetScores(h.data(), u.data(), s.data(), sets, n, width);
        SetPool(p.data(), h.data(), z.data(), sets, n, width);
        for (std::int64_t b = 0; b < sets; ++b) {
          for (std::int64_t j = 0; j < n; ++j) {
            double sum = 0.0;
            for (std::int64_t k = 0; k < width; ++k)
              sum += double{h[(b * n + j) * width + k]} * u[b * width + k];
            EXPECT_NEAR(s[b * n + j], sum, 2e-5);
          }
          for (std::int64_t k = 0; k < width; ++k) {
            double sum = 0.0;
            for (std::int64_t j = 0; j < n; ++j)
              sum += double{p[b * n + j]} * h[(b * n + j) * width + k];
            EXPECT_NEAR(z[b * width + k], sum, 2e-5);
          }
        }
      }
    }
  });
}

}  // namespace
}  // namespace tsallis::lab
