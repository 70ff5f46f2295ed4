// The vector gradient in alpha against the double-precision one, on every instruction set.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "simplex/test_util.h"

namespace tsallis {
namespace {

void CheckRow(double alpha, std::size_t n, double spread) {
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
      for (const double spread : {0.0, 0.1, 1.0, 5.0}) CheckRow(alpha, n, spread);
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
