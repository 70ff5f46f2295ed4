// Fenchel-Young losses, streamed entropy and the fit of adaptive temperature.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "simplex/test_util.h"

namespace tsallis {
namespace {

using Row = std::vector<double>;

double Loss(const RowMapParams& params, const Row& s, std::int64_t target,
            Row* gradient = nullptr) {
  double loss;
  Row ds(s.size());
  FenchelYoungLoss({}, params, Rows(s, 1, DType::kFloat64), &target, -100, &loss,
                   Rows(ds, 1, DType::kFloat64));
  if (gradient != nullptr) *gradient = ds;
  return loss;
}

TEST(Losses, GradientMatchesFiniteDifferencesAndTheLossIsNotNegative) {
  const Row s = {0.3, -0.2, 0.9, 0.1, -3.0};
  std::vector<RowMapParams> all = {Entmax(1.0), Entmax(1.0 + 1e-9), Entmax(1.25, 0.7),
                                   Entmax(1.5), Entmax(2.0, 1.4),   Entmax(4.0),
                                   Entmax(0.1), Entmax(0.5, 1.3),   Entmax(1.0 - 1e-9)};
  RowMapParams other = Entmax(2.0);
  other.map = RowMap::kNormmax;
  all.push_back(other);
  other.map = RowMap::kSoftmax;
  all.push_back(other);
  for (const RowMapParams& params : all) {
    for (std::int64_t target = 0; target < 5; ++target) {
      Row ds;
      EXPECT_GE(Loss(params, s, target, &ds), 0.0);
      for (int j = 0; j < 5; ++j) {
        Row up = s, down = s;
        up[j] += 1e-6;
        down[j] -= 1e-6;
        EXPECT_NEAR(ds[j], (Loss(params, up, target) - Loss(params, down, target)) / 2e-6, 1e-6)
            << Name(params.map) << " " << params.alpha;
      }
    }
    // Below 1 the others keep weight p = O(distance^{-1/(1 - alpha)}).
    if (params.map == RowMap::kEntmax && params.alpha < 0.9) continue;
    EXPECT_NEAR(Loss(params, {1e4 + 50.0, 1e4}, 0), 0.0, 1e-12);
  }
  EXPECT_NEAR(
      Loss(all.back(), s, 1),
      std::log(std::exp(0.3) + std::exp(-0.2) + std::exp(0.9) + std::exp(0.1) + std::exp(-3.0)) +
          0.2,
      1e-14);
}

TEST(Losses, IgnoredRowsAndAbsentTargets) {
  const std::vector<float> s = {0.0f, 1.0f, 2.0f, 0.0f, 1.0f, -INFINITY, 5.0f, 5.0f, 5.0f};
  const std::int64_t targets[] = {1, 2, 0};
  double losses[3];
  std::vector<float> ds(9, 7.0f);
  // ignore_index may be a valid class.
  FenchelYoungLoss({}, Entmax(1.5), Rows(s, 3, DType::kFloat32), targets, 1, losses,
                   Rows(ds, 3, DType::kFloat32));
  EXPECT_EQ(losses[0], 0.0);
  for (int j = 0; j < 3; ++j) EXPECT_EQ(ds[j], 0.0f);
  EXPECT_EQ(losses[1], INFINITY);
  EXPECT_EQ(ds[5], 0.0f);
  EXPECT_NEAR(ds[6], 1.0 / 3.0 - 1.0, 1e-6);
}

TEST(Losses, SixteenBitScoresGetFloatGradients) {
  const std::vector<std::uint16_t> s = {0x3F80, 0x4000, 0x0000};  // bfloat16: 1, 2, 0
  const std::int64_t target = 0;
  double loss;
  std::vector<float> ds(3);
  FenchelYoungLoss({}, Entmax(2.0), Rows(s, 1, DType::kBFloat16), &target, -100, &loss,
                   Rows(ds, 1, DType::kFloat32));
  EXPECT_EQ(ds, (std::vector<float>{-1.0f, 1.0f, 0.0f}));
}

TEST(StreamedEntropy, MatchesTheWholeRow) {
  for (double offset : {0.0, 1e4, -1e4}) {
    const Row s = Normal<double>(1000, 3.0, 1);
    StreamedEntropy whole, first, second;
    double sum = 0.0, weighted = 0.0;
    for (std::size_t j = 0; j < s.size(); ++j) {
      whole.Add(s[j] + offset);
      (j < 300 ? first : second).Add(s[j] + offset);
      sum += std::exp(s[j]);
      weighted += std::exp(s[j]) * s[j];
    }
    first.Merge(second);
    const double entropy = std::log(sum) - weighted / sum;
    EXPECT_NEAR(whole.Entropy(), entropy, 1e-10);
    EXPECT_NEAR(first.Entropy(), entropy, 1e-10);
    EXPECT_NEAR(whole.LogSumExp(), std::log(sum) + offset, 1e-10);
    EXPECT_NEAR(first.LogSumExp(), std::log(sum) + offset, 1e-10);
  }
  StreamedEntropy none;
  none.Add(-INFINITY);
  EXPECT_EQ(none.LogSumExp(), -INFINITY);
  EXPECT_EQ(none.Entropy(), 0.0);
  none.Add(INFINITY);
  EXPECT_TRUE(std::isnan(none.Entropy()));
}

TEST(AdaptiveFit, FindsTheBestThetaOfTheGrid) {
  const int rows = 400, n = 12;
  Row s = Normal<double>(rows * n, 1.5, 3);
  const std::vector<std::int64_t> targets(rows, 4);
  const AdaptiveTemperatureFit fit =
      FitAdaptiveTemperature({}, Rows(s, rows, DType::kFloat64), targets.data(), {.degree = 2});
  ASSERT_EQ(fit.coefficients.size(), 3u);
  std::int64_t kept = 0;
  // Normal equations: residuals are orthogonal to every power.
  double moments[3] = {}, square = 0.0;
  for (int i = 0; i < rows; ++i) {
    const double* row = s.data() + i * n;
    StreamedEntropy entropy;
    double largest = row[0];
    for (int j = 0; j < n; ++j) {
      entropy.Add(row[j]);
      largest = std::max(largest, row[j]);
    }
    if (row[4] >= largest) continue;
    ++kept;
    double best = -1.0, theta = 0.0;
    for (int k = 1; k <= 100; ++k) {
      double sum = 0.0;
      for (int j = 0; j < n; ++j) sum += std::exp((row[j] - row[4]) / (0.1 * k));
      if (1.0 / sum > best * (1.0 + 1e-12)) {
        best = 1.0 / sum;
        theta = 0.1 * k;
      }
    }
    const double h = entropy.Entropy();
    const double residual =
        fit.coefficients[0] + fit.coefficients[1] * h + fit.coefficients[2] * h * h - 1.0 / theta;
    square += residual * residual;
    moments[0] += residual;
    moments[1] += residual * h;
    moments[2] += residual * h * h;
  }
  EXPECT_EQ(fit.samples, kept);
  for (double moment : moments) EXPECT_NEAR(moment, 0.0, 1e-8);
  EXPECT_NEAR(fit.rms_error, std::sqrt(square / static_cast<double>(kept)), 1e-10);
}

}  // namespace
}  // namespace tsallis
