// The double-precision definitions against finite differences, package values and each other.
#include "simplex/reference.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "simplex/test_util.h"

namespace tsallis {
namespace {

using Row = std::vector<double>;

RowSpec Spec(RowMap map, double alpha = 1.5, double temperature = 1.0, double budget = 2.0) {
  RowSpec spec;
  spec.map = map;
  spec.alpha = alpha;
  spec.temperature = temperature;
  spec.budget = budget;
  return spec;
}

Row Forward(const RowSpec& spec, const Row& s, RowResult* result = nullptr) {
  ReferenceScratch scratch;
  Row p(s.size());
  const RowResult out = ReferenceForward(spec, s.data(), s.size(), p.data(), scratch);
  if (result != nullptr) *result = out;
  return p;
}

double Dot(const Row& a, const Row& b) {
  double sum = 0.0;
  for (std::size_t j = 0; j < a.size(); ++j) sum += a[j] * b[j];
  return sum;
}

TEST(Reference, MatchesPublishedValues) {
  const Row s = {-2.0, 0.0, 0.5};
  const auto expect = [&](const RowSpec& spec, const Row& expected) {
    const Row p = Forward(spec, s);
    for (int j = 0; j < 3; ++j) EXPECT_NEAR(p[j], expected[j], 5e-5) << FindMap(spec.map).name;
  };
  expect(Spec(RowMap::kEntmax, 2.0), {0.0, 0.25, 0.75});
  expect(Spec(RowMap::kEntmax, 1.5), {0.0, 0.3260, 0.6740});
  expect(Spec(RowMap::kNormmax, 2.0), {0.0, 0.3110, 0.6890});
  expect(Spec(RowMap::kBudget), {0.0, 1.0, 1.0});
}

TEST(Reference, BaselinesByHand) {
  const auto expect = [](RowSpec spec, const Row& s, const Row& expected, double tau) {
    RowResult result;
    const Row p = Forward(spec, s, &result);
    for (std::size_t j = 0; j < s.size(); ++j) {
      EXPECT_NEAR(p[j], expected[j], 1e-12) << FindMap(spec.map).name << " " << j;
    }
    EXPECT_NEAR(result.tau, tau, 1e-12) << FindMap(spec.map).name;
  };
  const double two = std::log(2.0), three = std::log(3.0);
  RowSpec spec = Spec(RowMap::kTopKSoftmax);
  spec.top_k.k = 2;
  expect(spec, {0.0, two, 0.0, three}, {0.0, 0.4, 0.0, 0.6}, std::log(5.0));
  // Both that tie for the second place.
  expect(spec, {two, 0.0, three, two}, {2.0 / 7, 0.0, 3.0 / 7, 2.0 / 7}, std::log(7.0));
  spec.top_k = {.k = 1, .fraction = 0.5};
  expect(spec, {0.0, two, 0.0, three, -1.0}, {0.0, 0.4, 0.0, 0.6, 0.0}, std::log(5.0));
  // sigmoid(s - ln 3): e^s / (e^s + 3)
  expect(Spec(RowMap::kSigmoid), {0.0, two, three}, {0.25, 0.4, 0.5}, three);
  spec = Spec(RowMap::kSigmoid);
  spec.sigmoid_bias = 0.0;
  expect(spec, {0.0, two, -500.0}, {0.5, 2.0 / 3, std::exp(-500.0)}, 0.0);
  // e^s - 1 = 1, 2, -1/2: over 3.5
  const double all = 3.5 + kSoftpickEpsilon;
  expect(Spec(RowMap::kSoftpick), {two, three, -two}, {1.0 / all, 2.0 / all, 0.0}, std::log(all));
  expect(Spec(RowMap::kSoftpick), {-1e4, -2e4}, {0.0, 0.0}, std::log(2.0 + kSoftpickEpsilon));
  expect(Spec(RowMap::kSoftpick), {1e4, 1e4 - two}, {2.0 / 3, 1.0 / 3}, 1e4 + std::log(1.5));
  // From the back: 2/3 of all, 1/2 of a third, 3/4 of a sixth.
  expect(Spec(RowMap::kStickBreaking), {three, 0.0, two}, {0.125, 1.0 / 6, 2.0 / 3},
         std::log(1.0 / 24));
  expect(Spec(RowMap::kStickBreaking), {1e4, 1e4, -1e4}, {0.0, 1.0, 0.0}, -2e4);
}

TEST(Reference, GradientInScoresMatchesFiniteDifferences) {
  std::vector<RowSpec> specs = {Spec(RowMap::kSoftmax, 1.5, 0.7), Spec(RowMap::kBudget),
                                Spec(RowMap::kAdaptiveTemperature, 1.5, 1.3)};
  for (double alpha : {0.05, 0.5, 0.9, 0.9999, 1.0, 1.0001, 1.25, 1.5, 2.0, 3.0}) {
    specs.push_back(Spec(RowMap::kEntmax, alpha, 1.2));
    if (alpha > 1.2) specs.push_back(Spec(RowMap::kNormmax, alpha, 0.8));
  }
  RowSpec top_k = Spec(RowMap::kTopKSoftmax, 1.5, 0.7);
  top_k.top_k.k = 3;
  specs.push_back(top_k);
  for (RowMap map : {RowMap::kSigmoid, RowMap::kSoftpick, RowMap::kStickBreaking}) {
    specs.push_back(Spec(map, 1.5, 0.8));
  }
  specs.push_back(Spec(RowMap::kSigmoid));
  specs.back().sigmoid_bias = 0.3;
  const Row s = {0.3, -0.2, 0.11, 0.45, -0.37, 0.05, -1.4};
  const Row g = {0.7, -1.1, 0.4, 0.2, 1.9, -0.6, 0.8};
  for (const RowSpec& spec : specs) {
    ReferenceScratch scratch;
    const Row p = Forward(spec, s);
    Row ds(s.size());
    ReferenceBackward(spec, s.data(), p.data(), g.data(), s.size(), ds.data(), nullptr, scratch);
    for (std::size_t j = 0; j < s.size(); ++j) {
      const double h = 1e-6;
      Row up = s, down = s;
      up[j] += h;
      down[j] -= h;
      const double expected = (Dot(Forward(spec, up), g) - Dot(Forward(spec, down), g)) / (2 * h);
      EXPECT_NEAR(ds[j], expected, 2e-7 * (1.0 + std::abs(expected)))
          << FindMap(spec.map).name << " alpha " << spec.alpha << " entry " << j;
    }
  }
}

TEST(Reference, GradientInAlphaMatchesFiniteDifferences) {
  const Row s = {0.3, -0.2, 0.11, 0.45, -0.37, 0.05, -1.4};
  const Row g = {0.7, -1.1, 0.4, 0.2, 1.9, -0.6, 0.8};
  // For alpha = 64 only scores this close share the support, and the support stays put.
  const Row close = {0.3, 0.3 - 1e-9, 0.3 - 2e-9, 0.2};
  for (double alpha : {0.01, 0.25, 0.5, 0.9, 0.9999, 1.0 - 1e-6, 1.0, 1.0 + 1e-6, 1.0001, 1.25,
                       1.4999, 1.5, 1.5001, 2.0, 4.0, 16.0, 64.0}) {
    const Row& scores = alpha > 2.5 ? close : s;
    Row weights(g.begin(), g.begin() + scores.size());
    ReferenceScratch scratch;
    const RowSpec spec = Spec(RowMap::kEntmax, alpha);
    const Row p = Forward(spec, scores);
    Row ds(scores.size());
    double d_alpha;
    ReferenceBackward(spec, scores.data(), p.data(), weights.data(), scores.size(), ds.data(),
                      &d_alpha, scratch);
    const double h = 1e-5;
    const auto value = [&](double a) {
      return Dot(Forward(Spec(RowMap::kEntmax, a), scores), weights);
    };
    const double expected = (value(alpha + h) - value(alpha - h)) / (2.0 * h);
    EXPECT_NEAR(d_alpha, expected, 2e-6 * (1.0 + std::abs(expected))) << "alpha " << alpha;
  }
}

TEST(Reference, IsSmoothAsAlphaGoesToOne) {
  const Row s = Normal<double>(50, 2.0, 1);
  const Row softmax = Forward(Spec(RowMap::kSoftmax), s);
  for (double eps : {1e-15, 1e-12, 1e-9, 1e-6, -1e-15, -1e-12, -1e-9, -1e-6}) {
    const Row p = Forward(Spec(RowMap::kEntmax, 1.0 + eps), s);
    for (std::size_t j = 0; j < s.size(); ++j) {
      EXPECT_NEAR(p[j], softmax[j], 20.0 * std::abs(eps) + 1e-15) << eps;
    }
  }
}

TEST(Reference, SumsToOneForAnyAlphaAndSpread) {
  for (double alpha : {1e-300, 0.01, 0.5, 0.99, 1.0, 1.01, 1.5, 2.0, 4.0, 16.0, 64.0, 300.0}) {
    for (double spread : {1e-6, 1e-3, 1.0, 1e3, 1e6, 1e300}) {
      const Row s = Normal<double>(200, spread, 7);
      EXPECT_NEAR(Sum(Forward(Spec(RowMap::kEntmax, alpha), s)), 1.0, 1e-14)
          << alpha << " " << spread;
      if (alpha < 1.0 || spread > 1e6) continue;
      EXPECT_NEAR(Sum(Forward(Spec(RowMap::kNormmax, alpha + 0.01), s)), 1.0, 1e-14);
      EXPECT_NEAR(Sum(Forward(Spec(RowMap::kBudget, 1.5, 1.0, 3.7), s)), 3.7, 1e-9);
    }
  }
}

TEST(Reference, TiesShareEqually) {
  for (double alpha : {0.05, 0.5, 1.0, 1.5, 2.0, 64.0}) {
    RowResult result;
    const Row p = Forward(Spec(RowMap::kEntmax, alpha), Row(1000, 5.0), &result);
    for (double value : p) EXPECT_NEAR(value, 1e-3, 1e-16) << alpha;
    EXPECT_EQ(result.support_size, 1000);
    EXPECT_NEAR(result.entropy, std::log(1000.0), 1e-12);
  }
}

// The second entry needs t - depth = 1e-123: no threshold in double can say so, the sum must.
TEST(Reference, LargeAlphaBetweenNeighbouringThresholds) {
  const RowSpec spec = Spec(RowMap::kEntmax, 64.0, 63.0);
  const Row p = Forward(spec, {0.0, -0.5});
  const double first = std::pow(0.5, 1.0 / 63.0);
  EXPECT_NEAR(p[0], first, 1e-12);
  EXPECT_NEAR(p[1], 1.0 - first, 1e-12);
}

TEST(Reference, TauIsTheThreshold) {
  const Row s = {3.3, 2.9, 3.0, 1.0};
  for (double alpha : {0.05, 0.5, 0.9, 1.25, 1.5, 2.0}) {
    RowResult result;
    const Row p = Forward(Spec(RowMap::kEntmax, alpha, 2.0), s, &result);
    for (std::size_t j = 0; j < s.size(); ++j) {
      const double z = (alpha - 1.0) * s[j] / 2.0;
      EXPECT_NEAR(p[j], std::pow(std::max(z - result.tau, 0.0), 1.0 / (alpha - 1.0)), 1e-14);
    }
  }
  // Below 1 the threshold lies below (alpha - 1) s of the largest score, and nothing is ever 0.
  RowResult result;
  Forward(Spec(RowMap::kEntmax, 0.5), {0.0, -1e6, -1e12}, &result);
  EXPECT_LT(result.tau, 0.0);
  EXPECT_EQ(result.support_size, 3);
  Forward(Spec(RowMap::kSoftmax), s, &result);
  EXPECT_NEAR(result.tau, std::log(std::exp(3.3) + std::exp(2.9) + std::exp(3.0) + std::exp(1.0)),
              1e-14);
}

}  // namespace
}  // namespace tsallis
