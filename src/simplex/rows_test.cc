// The public entry points: edges, strides, arguments, losses, determinism.
#include "tsallis/rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "simplex/test_util.h"
#include "tsallis/error.h"

namespace tsallis {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

std::vector<RowMapParams> AllMaps() {
  std::vector<RowMapParams> all;
  for (RowMap map : AllRowMaps()) {
    if (map == RowMap::kEntmax) continue;
    RowMapParams params;
    params.map = map;
    params.top_k.k = 5;
    all.push_back(params);
  }
  for (double alpha : {0.05, 0.5, 0.98, 1.0, 1.01, 1.25, 1.5, 2.0, 4.0}) {
    all.push_back(Entmax(alpha));
  }
  return all;
}

std::string Label(const RowMapParams& params) {
  return std::string(Name(params.map)) + " " + std::to_string(params.alpha);
}

// Both precisions take separate paths; every edge is checked on both.
template <typename T>
struct Matrix {
  static constexpr DType kType = sizeof(T) == 4 ? DType::kFloat32 : DType::kFloat64;
};

template <typename T>
class Edges : public testing::Test {};
using Precisions = testing::Types<float, double>;
TYPED_TEST_SUITE(Edges, Precisions);

TYPED_TEST(Edges, AbsentEntriesNaNAndInfinities) {
  using T = TypeParam;
  constexpr DType kType = Matrix<T>::kType;
  // Short rows and long ones take different ways.
  for (std::int64_t n : {8, 300, 5000}) {
    for (const RowMapParams& params : AllMaps()) {
      std::vector<T> row = Normal<T>(n, 1.0, 21), scores;
      for (int i = 0; i < 6; ++i) scores.insert(scores.end(), row.begin(), row.end());
      const auto at = [&](int i, std::int64_t j) -> T& { return scores[i * n + j]; };
      at(1, 3) = -kInf;
      for (std::int64_t j = 0; j < n; ++j) at(2, j) = -kInf;
      at(3, n - 1) = kNaN;
      at(4, 2) = kInf;
      for (std::int64_t j = 0; j < n - 1; ++j) at(5, j) = -kInf;  // one finite entry, the last
      std::vector<T> p(6 * n), ds(6 * n), dp = Normal<T>(6 * n, 1.0, 22);
      std::vector<double> tau(6), entropy(6);
      std::vector<std::int64_t> support(6);
      RowsForward({}, params, Rows(scores, 6, kType), Rows(p, 6, kType),
                  {tau.data(), support.data(), entropy.data()});
      RowsBackward({}, params, Rows(scores, 6, kType), Rows(p, 6, kType), Rows(dp, 6, kType),
                   Rows(ds, 6, kType));
      EXPECT_EQ(p[n + 3], T(0)) << Label(params);
      EXPECT_EQ(ds[n + 3], T(0)) << Label(params);
      // As if the entry were absent.
      std::vector<T> shorter = row, q(n - 1);
      shorter.erase(shorter.begin() + 3);
      RowsForward({}, params, Rows(shorter, 1, kType), Rows(q, 1, kType));
      for (std::int64_t j = 0; j + 1 < n; ++j) {
        EXPECT_NEAR(p[n + j + (j >= 3)], q[j], sizeof(T) == 4 ? 1e-6 : 1e-13) << Label(params);
      }
      for (std::int64_t j = 0; j < n; ++j) {
        EXPECT_EQ(p[2 * n + j], T(0));
        EXPECT_EQ(ds[2 * n + j], T(0));
        for (int i : {3, 4}) {
          EXPECT_TRUE(std::isnan(p[i * n + j])) << Label(params);
          EXPECT_TRUE(std::isnan(ds[i * n + j])) << Label(params);
        }
        const bool whole = SumsToOne(params.map) || params.map == RowMap::kBudget;
        if (whole || j < n - 1) {
          EXPECT_NEAR(p[5 * n + j], T(j == n - 1), j == n - 1 ? 2.5e-7 : 0.0) << Label(params);
        }
        EXPECT_FALSE(std::isnan(p[j]) || std::isnan(ds[j]));
      }
      EXPECT_EQ(tau[2], -kInf);
      EXPECT_EQ(support[2], 0);
      EXPECT_EQ(entropy[2], 0.0);
      EXPECT_EQ(support[3], -1);
      EXPECT_EQ(support[4], -1);
      EXPECT_EQ(support[5], p[6 * n - 1] > T(0) ? 1 : 0);
    }
  }
}

TYPED_TEST(Edges, EmptyMatrices) {
  using T = TypeParam;
  constexpr DType kType = Matrix<T>::kType;
  for (const RowMapParams& params : AllMaps()) {
    double tau[2] = {7, 7}, entropy[2] = {7, 7};
    std::int64_t support[2] = {7, 7};
    RowsForward({}, params, {nullptr, kType, 2, 0, 0, 1}, {nullptr, kType, 2, 0, 0, 1},
                {tau, support, entropy});
    EXPECT_EQ(tau[1], -kInf);
    EXPECT_EQ(support[1], 0);
    EXPECT_EQ(entropy[1], 0.0);
    RowsForward({}, params, {nullptr, kType, 0, 5, 5, 1}, {nullptr, kType, 0, 5, 5, 1});
    RowsBackward({}, params, {nullptr, kType, 2, 0, 0, 1}, {nullptr, kType, 2, 0, 0, 1},
                 {nullptr, kType, 2, 0, 0, 1}, {nullptr, kType, 2, 0, 0, 1});
  }
}

TYPED_TEST(Edges, UpstreamNaNOffTheSupportIsNotLookedAt) {
  using T = TypeParam;
  constexpr DType kType = Matrix<T>::kType;
  for (double alpha : {1.25, 1.5, 2.0, 4.0}) {
    const std::vector<T> scores = {T(0), T(0.05), T(-50), T(-60)};
    std::vector<T> p(4), ds(4), dp = {T(1), T(2), T(kNaN), T(kInf)};
    RowsForward({}, Entmax(alpha), Rows(scores, 1, kType), Rows(p, 1, kType));
    const auto backward = [&] {
      RowsBackward({}, Entmax(alpha), Rows(scores, 1, kType), Rows(p, 1, kType), Rows(dp, 1, kType),
                   Rows(ds, 1, kType));
    };
    backward();
    EXPECT_TRUE(std::isfinite(ds[0]) && ds[0] != T(0));
    EXPECT_EQ(ds[2], T(0));
    EXPECT_EQ(ds[3], T(0));
    dp[1] = kNaN;  // on the support
    backward();
    EXPECT_TRUE(std::isnan(ds[0]) && std::isnan(ds[1])) << alpha;
    EXPECT_EQ(ds[2], T(0));
  }
}

TYPED_TEST(Edges, StridesInPlaceAndThreads) {
  using T = TypeParam;
  constexpr DType kType = Matrix<T>::kType;
  const std::int64_t rows = 37, n = 211;
  for (const RowMapParams& params : AllMaps()) {
    const std::vector<T> scores = Normal<T>(rows * n, 1.5, 31);
    std::vector<T> p(rows * n), q(rows * n), turned(rows * n);
    RowsForward({.threads = 1}, params, Rows(scores, rows, kType), Rows(p, rows, kType));
    RowsForward({.threads = 3}, params, Rows(scores, rows, kType), Rows(q, rows, kType));
    EXPECT_EQ(p, q) << "threads, " << Label(params);
    q = scores;
    RowsForward({}, params, Rows(q, rows, kType), Rows(q, rows, kType));
    EXPECT_EQ(p, q) << "in place, " << Label(params);
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t j = 0; j < n; ++j) turned[j * rows + i] = scores[i * n + j];
    }
    RowsForward({}, params, {turned.data(), kType, rows, n, 1, rows},
                {turned.data(), kType, rows, n, 1, rows});
    // Rows and columns backwards: [rows, n] from the last element on.
    RowsForward({}, params, {scores.data() + rows * n - 1, kType, rows, n, -n, -1},
                {q.data() + rows * n - 1, kType, rows, n, -n, -1});
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t j = 0; j < n; ++j) {
        ASSERT_EQ(turned[j * rows + i], p[i * n + j]) << "transposed, " << Label(params);
        if (params.map == RowMap::kStickBreaking) continue;  // goes by the order
        ASSERT_NEAR(q[i * n + j], p[i * n + j], 1e-6) << "backwards, " << Label(params);
      }
    }
    const T same = T(0.25);
    RowsForward({}, params, {&same, kType, 2, 10, 0, 0}, {q.data(), kType, 2, 10, 10, 1});
    const bool is_budget = params.map == RowMap::kBudget;
    if (!SumsToOne(params.map) && !is_budget) continue;
    EXPECT_NEAR(q[13], is_budget ? 0.2 : 0.1, 1e-7) << Label(params);
  }
}

TYPED_TEST(Edges, AlphaPerRowAndItsGradient) {
  using T = TypeParam;
  constexpr DType kType = Matrix<T>::kType;
  const std::vector<double> alphas = {1.0, 1.3, 1.5, 2.0, 3.0, 0.1, 0.6, 0.99};
  const std::vector<T> scores = Normal<T>(8 * 20, 0.5, 41), dp = Normal<T>(8 * 20, 1.0, 42);
  RowMapParams params;
  params.alpha_per_row = alphas.data();
  std::vector<T> p(160), ds(160), one(20);
  std::vector<double> d_alpha(8);
  RowsForward({}, params, Rows(scores, 8, kType), Rows(p, 8, kType));
  RowsBackward({}, params, Rows(scores, 8, kType), Rows(p, 8, kType), Rows(dp, 8, kType),
               Rows(ds, 8, kType), d_alpha.data());
  for (int i = 0; i < 8; ++i) {
    RowsForward({}, Entmax(alphas[i]), {scores.data() + 20 * i, kType, 1, 20, 20, 1},
                Rows(one, 1, kType));
    for (int j = 0; j < 20; ++j) EXPECT_EQ(p[20 * i + j], one[j]);
    // Finite differences of the double-precision forward.
    const std::vector<double> wide(scores.begin() + 20 * i, scores.begin() + 20 * (i + 1));
    const auto value = [&](double alpha) {
      std::vector<double> q(20);
      RowsForward({}, Entmax(alpha), Rows(wide, 1, DType::kFloat64), Rows(q, 1, DType::kFloat64));
      double sum = 0.0;
      for (int j = 0; j < 20; ++j) sum += q[j] * static_cast<double>(dp[20 * i + j]);
      return sum;
    };
    const double h = 1e-5, a = alphas[i];
    const double expected = (value(a + h) - value(a - h)) / (2 * h);
    EXPECT_NEAR(d_alpha[i], expected, sizeof(T) == 4 ? 1e-5 : 1e-6) << a;
  }
}

TEST(Rows, BadArgumentsAreNamed) {
  std::vector<float> x(6), y(6), z(4);
  const ConstRows scores = Rows(x, 2, DType::kFloat32);
  const MutableRows out = Rows(y, 2, DType::kFloat32);
  const auto expect = [](const char* argument, const auto& call) {
    try {
      call();
      ADD_FAILURE() << "accepted: " << argument;
    } catch (const InvalidArgument& error) {
      EXPECT_EQ(error.argument(), argument) << error.what();
    }
  };
  for (double alpha : {0.0, -1.0, static_cast<double>(kInf), static_cast<double>(kNaN)}) {
    expect("alpha", [&] { RowsForward({}, Entmax(alpha), scores, out); });
    const double alphas[] = {1.5, alpha};
    RowMapParams per_row;
    per_row.alpha_per_row = alphas;
    expect("alpha_per_row[1]", [&] { RowsForward({}, per_row, scores, out); });
  }
  for (double bad : {0.0, -1.0, static_cast<double>(kInf), static_cast<double>(kNaN)}) {
    expect("temperature", [&] { RowsForward({}, Entmax(1.5, bad), scores, out); });
    RowMapParams budget;
    budget.map = RowMap::kBudget;
    budget.budget = bad;
    expect("budget", [&] { RowsForward({}, budget, scores, out); });
  }
  RowMapParams params = Entmax(1.0);
  params.map = RowMap::kNormmax;
  expect("alpha", [&] { RowsForward({}, params, scores, out); });
  params.map = RowMap::kAdaptiveTemperature;
  params.adaptive.coefficients.clear();
  expect("adaptive.coefficients", [&] { RowsForward({}, params, scores, out); });
  params.map = RowMap::kTopKSoftmax;
  expect("top_k.k", [&] { RowsForward({}, params, scores, out); });
  params.top_k = {.k = 1, .fraction = 1.5};
  expect("top_k.fraction", [&] { RowsForward({}, params, scores, out); });
  params.map = RowMap::kSigmoid;
  params.sigmoid_bias = kNaN;
  expect("sigmoid_bias", [&] { RowsForward({}, params, scores, out); });
  params.map = static_cast<RowMap>(99);
  expect("map", [&] { RowsForward({}, params, scores, out); });
  expect("probabilities", [&] { RowsForward({}, {}, scores, Rows(z, 2, DType::kFloat32)); });
  expect("probabilities", [&] { RowsForward({}, {}, scores, {y.data(), DType::kFloat64, 2, 3}); });
  expect("probabilities", [&] { RowsForward({}, {}, scores, {nullptr, DType::kFloat32, 2, 3}); });
  expect("scores", [&] { RowsForward({}, {}, {nullptr, DType::kFloat32, 2, 3}, out); });
  expect("scores", [&] { RowsForward({}, {}, {x.data(), DType::kFloat32, -2, 3}, out); });
  expect("d_probabilities",
         [&] { RowsBackward({}, {}, scores, out, Rows(z, 2, DType::kFloat32), out); });
  double d_alpha[2];
  RowMapParams softmax;
  softmax.map = RowMap::kSoftmax;
  expect("d_alpha", [&] { RowsBackward({}, softmax, scores, out, out, out, d_alpha); });
  double losses[2];
  const std::int64_t targets[] = {0, 3};
  expect("targets[1]", [&] { FenchelYoungLoss({}, {}, scores, targets, -100, losses); });
  const std::int64_t fine[] = {0, 1};
  expect("losses", [&] { FenchelYoungLoss({}, {}, scores, fine, -100, nullptr); });
  expect("d_scores", [&] {
    FenchelYoungLoss({}, {}, scores, fine, -100, losses, {y.data(), DType::kFloat64, 2, 3, 3, 1});
  });
  RowMapParams budget;
  budget.map = RowMap::kBudget;
  expect("map", [&] { FenchelYoungLoss({}, budget, scores, fine, -100, losses); });
}

// Memory of the host is no mistake that can be seen here: where a device is, this is not run.
TEST(RowsOnCuda, WithoutADeviceThereIsATypedError) {
#if defined(TSALLIS_HAS_CUDA_DEVICE)
  GTEST_SKIP();
#endif
  std::vector<float> row(8, 1.0f);
  const MutableRows rows = {.data = row.data(), .rows = 1, .length = 8};
  try {
    RowsForward({.device = DeviceKind::kCuda}, {}, rows, rows);
    ADD_FAILURE();
  } catch (const InvalidArgument& error) {
    EXPECT_EQ(error.argument(), "context.device");
    EXPECT_NE(error.expected().find("without CUDA kernels"), std::string::npos);
  } catch (const DeviceError& error) {
    EXPECT_EQ(std::string(error.what()).rfind("cuda", 0), 0u) << error.what();
  }
}

TEST(RowsOnCuda, MoreCoefficientsThanALaunchHasRoomForAreRefused) {
  std::vector<float> row(8, 1.0f);
  const MutableRows rows = {.data = row.data(), .rows = 1, .length = 8};
  RowMapParams params;
  params.map = RowMap::kAdaptiveTemperature;
  params.adaptive.coefficients.assign(33, 0.0);
  try {
    RowsForward({.device = DeviceKind::kCuda}, params, rows, rows);
    ADD_FAILURE();
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(error.what(),
                 "adaptive.coefficients: expected at most 32 on a CUDA device, got 33");
  }
}

}  // namespace
}  // namespace tsallis
