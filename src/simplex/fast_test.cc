// The vector kernels against the double-precision reference, on every instruction set.
#include <gtest/gtest.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "core/elements.h"
#include "simplex/test_util.h"

namespace tsallis {
namespace {

using Floats = std::vector<float>;
using Doubles = std::vector<double>;

struct Case {
  RowMapParams params;
  std::string name;
};

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (RowMap map : AllRowMaps()) {
    if (map == RowMap::kEntmax || map == RowMap::kNormmax) continue;
    RowMapParams params;
    params.map = map;
    params.temperature = 1.3;
    params.top_k.k = 7;
    cases.push_back({params, Name(map)});
  }
  RowMapParams own;
  own.map = RowMap::kTopKSoftmax;
  own.top_k = {.k = 3, .fraction = 0.5};
  cases.push_back({own, "top_k_softmax, half"});
  own.map = RowMap::kSigmoid;
  own.sigmoid_bias = 0.5;
  cases.push_back({own, "sigmoid, bias 0.5"});
  for (double alpha : {0.01, 0.3, 0.5, 0.9, 0.99, 1.0 - 1e-6, 1.0, 1.0 + 1e-6, 1.02, 1.1, 1.25, 1.5,
                       1.75, 2.0, 3.0, 16.0}) {
    cases.push_back({Entmax(alpha, 0.9), "entmax " + std::to_string(alpha)});
  }
  for (double alpha : {1.5, 2.0, 4.0}) {
    RowMapParams params = Entmax(alpha);
    params.map = RowMap::kNormmax;
    cases.push_back({params, "normmax " + std::to_string(alpha)});
  }
  return cases;
}

Doubles Forward64(const RowMapParams& params, const Floats& scores) {
  Doubles wide(scores.begin(), scores.end()), p(scores.size());
  RowsForward({}, params, Rows(wide, 1, DType::kFloat64), Rows(p, 1, DType::kFloat64));
  return p;
}

Floats Forward32(const RowMapParams& params, const Floats& scores, const RowStats& stats = {}) {
  Floats p(scores.size());
  RowsForward({}, params, Rows(scores, 1, DType::kFloat32), Rows(p, 1, DType::kFloat32), stats);
  return p;
}

// The sum of the weights of a row of n; 0: the map does not fix it.
double SumGoal(const RowMapParams& params, std::size_t n) {
  if (SumsToOne(params.map)) return 1.0;
  return params.map == RowMap::kBudget ? std::min(params.budget, static_cast<double>(n)) : 0.0;
}

TEST(Fast, EveryTargetThatTheBuildHoldsRuns) {
  std::set<std::string> used;
  ForEachTarget([&](const std::string&) { used.insert(FastTarget()); });
  EXPECT_EQ(used.size(), hwy::SupportedAndGeneratedTargets().size());
#ifdef HWY_COMPILE_ALL_ATTAINABLE
  EXPECT_GT(used.size(), 1u);
#endif
}

TEST(Fast, ForwardMatchesTheReference) {
  for (std::size_t n : {1, 2, 3, 15, 16, 17, 63, 64, 65, 191, 383, 385, 1000, 1023, 5000}) {
    for (double spread : {1e-6, 0.1, 1.0, 30.0, 1e6}) {
      for (const Case& c : Cases()) {
        const Floats scores = Normal<float>(n, spread, static_cast<unsigned>(n));
        const Doubles expected = Forward64(c.params, scores);
        const double goal = SumGoal(c.params, n);
        ForEachTarget([&](const std::string& target) {
          const Floats p = Forward32(c.params, scores);
          double worst = 0.0;
          for (std::size_t j = 0; j < n; ++j) worst = std::max(worst, std::abs(p[j] - expected[j]));
          EXPECT_LE(worst, 1.5e-6) << c.name << " n " << n << " spread " << spread << " " << target;
          if (goal == 0.0) return;
          EXPECT_NEAR(Sum(p), goal, 1e-6 * goal) << c.name << " n " << n << " spread " << spread;
        });
      }
    }
  }
}

TEST(Fast, BackwardMatchesTheReference) {
  for (std::size_t n : {1, 5, 16, 64, 65, 1023}) {
    for (double spread : {0.1, 1.0, 5.0}) {
      for (const Case& c : Cases()) {
        const Floats scores = Normal<float>(n, spread, 3), dp = Normal<float>(n, 1.0, 4);
        const Doubles wide(scores.begin(), scores.end()), wide_dp(dp.begin(), dp.end());
        const Doubles p64 = Forward64(c.params, scores);
        Doubles expected(n);
        // The gradient at the float probabilities: what the stored result determines.
        const Floats p = Forward32(c.params, scores);
        const Doubles p_wide(p.begin(), p.end());
        RowsBackward({}, c.params, Rows(wide, 1, DType::kFloat64), Rows(p_wide, 1, DType::kFloat64),
                     Rows(wide_dp, 1, DType::kFloat64), Rows(expected, 1, DType::kFloat64));
        double largest = 1.0;
        for (double value : expected) largest = std::max(largest, std::abs(value));
        ForEachTarget([&](const std::string& target) {
          Floats ds(n);
          RowsBackward({}, c.params, Rows(scores, 1, DType::kFloat32), Rows(p, 1, DType::kFloat32),
                       Rows(dp, 1, DType::kFloat32), Rows(ds, 1, DType::kFloat32));
          double worst = 0.0;
          for (std::size_t j = 0; j < n; ++j)
            worst = std::max(worst, std::abs(ds[j] - expected[j]));
          EXPECT_LE(worst, 2e-6 * largest) << c.name << " n " << n << " " << target;
        });
      }
    }
  }
}

TEST(Fast, FlatRowsOfAnyLengthSumToOne) {
  for (std::size_t n : {1, 7, 64, 1000, 4097, 100000, 1000000}) {
    for (double offset : {0.0, 1e4, -1e4}) {
      for (double alpha : {0.05, 0.5, 0.99, 1.0, 1.01, 1.25, 1.5, 2.0}) {
        const Floats p = Forward32(Entmax(alpha), Floats(n, static_cast<float>(offset)));
        EXPECT_NEAR(Sum(p), 1.0, 1e-6) << "n " << n << " alpha " << alpha;
        EXPECT_EQ(*std::min_element(p.begin(), p.end()), *std::max_element(p.begin(), p.end()));
      }
    }
  }
}

// One entry and a crowd just above the threshold (for alpha < 1 there is none): tau rounded to
// float would cost the sum 1e-4.
TEST(Fast, CrowdsJustAboveTheThresholdSumToOne) {
  for (double alpha : {0.1, 0.5, 0.9, 1.1, 1.25, 1.5, 1.75, 2.0}) {
    for (double below : {0.3, 0.7, 0.9, 0.99}) {
      Floats scores(1000000, static_cast<float>(-below / std::abs(alpha - 1.0)));
      scores[12345] = 0.0f;
      EXPECT_NEAR(Sum(Forward32(Entmax(alpha), scores)), 1.0, 1e-6) << alpha << " " << below;
      std::vector<float> noise = Normal<float>(scores.size(), 1e-4, 5);
      for (std::size_t j = 0; j < scores.size(); ++j) scores[j] += noise[j];
      EXPECT_NEAR(Sum(Forward32(Entmax(alpha), scores)), 1.0, 1e-6) << alpha << " " << below;
    }
  }
}

TEST(Fast, LongRowsFindTheirSupport) {
  for (double alpha : {1.25, 1.5, 2.0, 3.0}) {
    for (int order = 0; order < 3; ++order) {
      Floats scores = Normal<float>(300000, 1.0, 11);
      if (order == 1) std::sort(scores.begin(), scores.end());
      if (order == 2) std::sort(scores.rbegin(), scores.rend());
      const Doubles expected = Forward64(Entmax(alpha), scores);
      const Floats p = Forward32(Entmax(alpha), scores);
      double worst = 0.0;
      for (std::size_t j = 0; j < p.size(); ++j)
        worst = std::max(worst, std::abs(p[j] - expected[j]));
      EXPECT_LE(worst, 1e-6) << alpha;
      EXPECT_NEAR(Sum(p), 1.0, 1e-6);
    }
  }
}

TEST(Fast, StatisticsMatchTheReference) {
  for (const Case& c : Cases()) {
    const Floats scores = Normal<float>(700, 1.0, 2);
    const Doubles wide(scores.begin(), scores.end());
    double tau[2], entropy[2];
    std::int64_t support[2];
    Doubles p(scores.size());
    RowsForward({}, c.params, Rows(wide, 1, DType::kFloat64), Rows(p, 1, DType::kFloat64),
                {tau, support, entropy});
    ForEachTarget([&](const std::string& target) {
      Forward32(c.params, scores, {tau + 1, support + 1, entropy + 1});
      EXPECT_NEAR(tau[1], tau[0], 2e-6 * (1.0 + std::abs(tau[0]))) << c.name << " " << target;
      EXPECT_NEAR(entropy[1], entropy[0], 1e-5) << c.name << " " << target;
      // The end of a stick is too thin for float.
      if (c.params.map == RowMap::kStickBreaking) return;
      EXPECT_LE(std::abs(support[1] - support[0]), 1) << c.name << " " << target;
    });
  }
}

TEST(Fast, SixteenBitTypes) {
  for (DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    const bool brain = dtype == DType::kBFloat16;
    for (const Case& c : Cases()) {
      Floats scores = Normal<float>(200, 2.0, 9);
      const Floats dp = Normal<float>(200, 1.0, 10);
      std::vector<std::uint16_t> stored(200), p(200), g(200), ds(200);
      for (int j = 0; j < 200; ++j) {
        StoreElement(stored.data(), dtype, j, scores[j]);
        StoreElement(g.data(), dtype, j, dp[j]);
        scores[j] = LoadElement<float>(stored.data(), dtype, j);
      }
      const Doubles expected = Forward64(c.params, scores);
      RowsForward({}, c.params, Rows(stored, 1, dtype), Rows(p, 1, dtype));
      for (int j = 0; j < 200; ++j) {
        EXPECT_NEAR(LoadElement<double>(p.data(), dtype, j), expected[j],
                    expected[j] * (brain ? 0x1p-8 : 0x1p-11) + 1e-6)
            << c.name;
      }
      RowsBackward({}, c.params, Rows(stored, 1, dtype), Rows(p, 1, dtype), Rows(g, 1, dtype),
                   Rows(ds, 1, dtype));
      Doubles wide(scores.begin(), scores.end()), wide_dp(200), wide_ds(200), wide_p = expected;
      for (int j = 0; j < 200; ++j) wide_dp[j] = LoadElement<double>(g.data(), dtype, j);
      if (!BackwardReadsScores(c.params, dtype)) {  // the gradient is that of the rounded p
        for (int j = 0; j < 200; ++j) wide_p[j] = LoadElement<double>(p.data(), dtype, j);
      }
      RowsBackward({}, c.params, Rows(wide, 1, DType::kFloat64), Rows(wide_p, 1, DType::kFloat64),
                   Rows(wide_dp, 1, DType::kFloat64), Rows(wide_ds, 1, DType::kFloat64));
      double largest = 1.0;
      for (double value : wide_ds) largest = std::max(largest, std::abs(value));
      // For large alpha the gradient at a rounded threshold is another matter.
      const double slack = c.params.alpha > 2.0 ? 1e-3 * largest : 4e-6 * largest;
      for (int j = 0; j < 200; ++j) {
        EXPECT_NEAR(LoadElement<double>(ds.data(), dtype, j), wide_ds[j],
                    std::abs(wide_ds[j]) * (brain ? 0x1p-8 : 0x1p-11) + slack)
            << c.name;
      }
    }
  }
}

TEST(Fast, HalfPrecisionConversionsAreExact) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const float value = FloatFromFloat16(half);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(FloatFromFloat16(Float16FromFloat(value))));
      continue;
    }
    EXPECT_EQ(Float16FromFloat(value), half);
    const float brain = FloatFromBFloat16(half);
    if (std::isnan(brain)) continue;
    EXPECT_EQ(BFloat16FromFloat(brain), half);
  }
  EXPECT_EQ(Float16FromFloat(65520.0f), 0x7C00);
  EXPECT_EQ(Float16FromFloat(65519.0f), 0x7BFF);
  EXPECT_EQ(Float16FromFloat(0x1p-25f), 0x0000);
}

void CheckAlphaGradient(double alpha, std::size_t n, double spread) {
  const RowMapParams params = Entmax(alpha);
  const auto scores = Normal<float>(n, spread, 6), dp = Normal<float>(n, 1.0, 7);
  std::vector<float> p(n), ds(n);
  RowsForward({}, params, Rows(scores, 1, DType::kFloat32), Rows(p, 1, DType::kFloat32));
  const std::vector<double> wide(scores.begin(), scores.end()), wide_dp(dp.begin(), dp.end());
  const std::vector<double> wide_p(p.begin(), p.end());
  std::vector<double> unused(n);
  double expected;
  RowsBackward({}, params, Rows(wide, 1, DType::kFloat64), Rows(wide_p, 1, DType::kFloat64),
               Rows(wide_dp, 1, DType::kFloat64), Rows(unused, 1, DType::kFloat64), &expected);
  ForEachTarget([&](const std::string& target) {
    double d_alpha;
    RowsBackward({}, params, Rows(scores, 1, DType::kFloat32), Rows(p, 1, DType::kFloat32),
                 Rows(dp, 1, DType::kFloat32), Rows(ds, 1, DType::kFloat32), &d_alpha);
    EXPECT_NEAR(d_alpha, expected, 4e-6 * (1.0 + std::abs(expected)))
        << "alpha " << alpha << " n " << n << " spread " << spread << " " << target;
  });
}

TEST(Fast, GradientInAlphaMatchesTheReference) {
  const std::vector<double> alphas = {0.01,       0.3, 0.5,        0.6,   0.9,  0.999,
                                      1.0 - 1e-9, 1.0, 1.0 + 1e-9, 1.001, 1.04, 1.1,
                                      1.25,       1.5, 1.7,        1.999, 2.0,  3.0};
  for (const double alpha : alphas) {
    for (const std::size_t n : {1, 5, 17, 64, 700}) {
      for (const double spread : {0.0, 0.1, 1.0, 5.0}) CheckAlphaGradient(alpha, n, spread);
    }
  }
}

// Weights come with a rounding; a row of one entry is constant nevertheless.
TEST(Fast, OneEntryHasNoGradient) {
  for (const double alpha : {0.5, 1.0, 1.3, 1.5, 2.0}) {
    const RowMapParams params = Entmax(alpha);
    for (const float dp : Normal<float>(50, 3.0, 8)) {
      for (const float p : {1.0f, 0x1.fffffep-1f, 0x1.000002p+0f}) {
        const std::vector<float> scores = {2.0f}, ps = {p}, dps = {dp};
        std::vector<float> ds(1);
        ForEachTarget([&](const std::string& target) {
          double d_alpha;
          RowsBackward({}, params, Rows(scores, 1, DType::kFloat32), Rows(ps, 1, DType::kFloat32),
                       Rows(dps, 1, DType::kFloat32), Rows(ds, 1, DType::kFloat32), &d_alpha);
          EXPECT_EQ(d_alpha, 0.0) << "alpha " << alpha << " dp " << dp << " " << target;
          EXPECT_EQ(ds[0], 0.0f) << "alpha " << alpha << " dp " << dp << " " << target;
        });
      }
    }
  }
}

}  // namespace
}  // namespace tsallis
