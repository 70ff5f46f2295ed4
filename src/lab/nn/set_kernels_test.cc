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
    const std::vector<float> bias = Normal(z.size(), 2);
    SetKernels().bias_gelu(z.data(), bias.data(), a.data(), slope.data(), 1,
                           static_cast<std::int64_t>(z.size()));
    for (std::size_t i = 0; i < z.size(); ++i) {
      const double x = z[i] + bias[i];
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
        SetKernels().scores(h.data(), u.data(), s.data(), sets, n, width);
        SetKernels().pool(p.data(), h.data(), z.data(), sets, n, width);
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

// <dy, y> of a row's layer norm y, in double precision; `y` receives it.
double LayerNormAlong(const std::vector<double>& x, const std::vector<double>& w,
                      const std::vector<double>& bias, const float* dy, std::vector<double>& y) {
  const auto width = static_cast<double>(x.size());
  double mean = 0.0;
  for (const double value : x) mean += value / width;
  double variance = 0.0;
  for (const double value : x) variance += (value - mean) * (value - mean) / width;
  double sum = 0.0;
  y.resize(x.size());
  for (std::size_t k = 0; k < x.size(); ++k) {
    y[k] = (x[k] - mean) / std::sqrt(variance + 1e-6) * (1.0 + w[k]) + bias[k];
    sum += dy[k] * y[k];
  }
  return sum;
}

TEST(SetKernels, LayerNormAndItsGradientMatchTheFormulaAndFiniteDifferences) {
  ForEachTarget([](const std::string& target) {
    for (const std::size_t width : {1, 2, 7, 16, 33, 128}) {
      const auto columns = static_cast<std::int64_t>(width);
      // A row about 0; one far from it beside its spread; a flat one, whose variance is 0.
      std::vector<float> x = Normal(3 * width, 5);
      for (std::size_t k = 0; k < width; ++k) x[width + k] += 100.0F, x[2 * width + k] = 0.5F;
      // By how much the kernel may see a row's numbers moved: the mean is rounded.
      const double moved[] = {1e-6, 3e-5, 0.0};
      const std::vector<float> w = Normal(width, 6, 0.5F), bias = Normal(width, 7);
      const std::vector<float> dy = Normal(3 * width, 8);
      std::vector<float> normal(3 * width), y(3 * width), scale(3);
      SetKernels().layer_norm(x.data(), w.data(), bias.data(), 3, columns, normal.data(),
                              scale.data(), y.data());
      std::vector<float> dx(3 * width), d_w(width, 7.0F), d_bias(width, 7.0F);  // to be replaced
      SetKernels().layer_norm_backward(normal.data(), scale.data(), w.data(), dy.data(), 3, columns,
                                       dx.data(), d_w.data(), d_bias.data());

      const std::vector<double> shift(bias.begin(), bias.end());
      std::vector<double> gain(w.begin(), w.end()), want_w(width), want_bias(width), out;
      double tolerance_w = 1e-5;
      for (std::size_t r = 0; r < 3; ++r) {
        std::vector<double> row(x.begin() + static_cast<std::ptrdiff_t>(r * width),
                                x.begin() + static_cast<std::ptrdiff_t>((r + 1) * width));
        const float* along = dy.data() + r * width;
        const double tolerance = 8e-6 + 8.0 * moved[r] * scale[r];
        tolerance_w += 4.0 * tolerance;
        LayerNormAlong(row, gain, shift, along, out);
        for (std::size_t k = 0; k < width; ++k) {
          EXPECT_NEAR(y[r * width + k], out[k], tolerance)
              << target << " " << width << " row " << r;
        }
        const auto slope = [&](double& number) {
          const double start = number, h = 1e-6;
          std::vector<double> unused;
          number = start + h;
          const double above = LayerNormAlong(row, gain, shift, along, unused);
          number = start - h;
          const double below = LayerNormAlong(row, gain, shift, along, unused);
          number = start;
          return (above - below) / (2.0 * h);
        };
        for (std::size_t k = 0; k < width; ++k) {
          EXPECT_NEAR(dx[r * width + k], slope(row[k]), 4.0 * tolerance * scale[r])
              << target << " " << width << " row " << r;
          want_w[k] += slope(gain[k]);
          want_bias[k] += along[k];
        }
      }
      for (std::size_t k = 0; k < width; ++k) {
        EXPECT_NEAR(d_w[k], want_w[k], tolerance_w) << target << " " << width;
        EXPECT_NEAR(d_bias[k], want_bias[k], 1e-5) << target << " " << width;
      }
      std::vector<float> in_place = dy;
      SetKernels().layer_norm_backward(normal.data(), scale.data(), w.data(), in_place.data(), 3,
                                       columns, in_place.data(), d_w.data(), d_bias.data());
      EXPECT_EQ(in_place, dx) << target << " " << width;
    }
  });
}

}  // namespace
}  // namespace tsallis::lab
