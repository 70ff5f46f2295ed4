// The double-precision definition: gradients against finite differences over the whole space of
// masks, shapes and terms, and a few cases that can be worked out by hand.
#include "attention/reference.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "attention/testing/problem.h"
#include "tsallis/error.h"

namespace tsallis {
namespace {

double Loss(const Problem& problem) {
  const Results results = problem.Run(nullptr, 1, 0, /*backward=*/false);
  double sum = 0.0;
  for (std::size_t i = 0; i < results.out.size(); ++i) sum += results.out[i] * problem.d_out()[i];
  return sum;
}

// Sum of gradient times a random direction, against the central difference along that direction.
void CheckGradient(Problem& problem, const std::string& name, const std::vector<double>& gradient) {
  std::vector<double>& input = problem.Wide(name);
  const std::vector<double> before = input;
  std::mt19937_64 engine(5);
  std::normal_distribution<double> normal;
  std::vector<double> direction(gradient.size());
  double slope = 0.0;
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    direction[i] = std::isfinite(before[i]) ? normal(engine) : 0.0;
    slope += gradient[i] * direction[i];
  }
  // A step over a kink (an entry entering or leaving the support) is wrong by O(step); a smaller
  // one rarely meets it.
  double best = 1e300;
  for (const double step : {1e-4, 1e-5, 1e-6}) {
    double loss[2];
    for (int side = 0; side < 2; ++side) {
      for (std::size_t i = 0; i < gradient.size(); ++i) {
        input[i] = before[i] + (side == 0 ? step : -step) * direction[i];
      }
      loss[side] = Loss(problem);
    }
    best = std::min(best, std::abs((loss[0] - loss[1]) / (2.0 * step) - slope));
    input = before;
  }
  EXPECT_LE(best, 2e-6 * (1.0 + std::abs(slope))) << name << ": " << problem.spec().Describe();
}

TEST(ReferenceAttention, GradientsMatchFiniteDifferences) {
  for (std::uint64_t seed = 1; seed <= 150; ++seed) {
    ProblemSpec spec = DrawSpec(seed, 13);
    spec.dtype = DType::kFloat64;
    spec.strided = false;
    spec.odd = ProblemSpec::Odd::kNone;
    spec.garbage = false;
    spec.gaps = false;
    spec.term_dtype = spec.bias_dtype = DType::kFloat64;
    spec.spread = 1.0;
    spec.head_dim = std::min<std::int64_t>(spec.head_dim, 8);
    spec.value_dim = std::min<std::int64_t>(spec.value_dim, 8);
    spec.bias_minus_infinity = 0.0;
    if (spec.values != ProblemSpec::Values::kNormal) spec.values = ProblemSpec::Values::kNormal;
    // Where a map is steep, differences see only its corners.
    if (spec.alpha > 2.0) spec.alpha = 2.0;
    Problem problem(spec);
    const Results results = problem.Run(nullptr);
    const bool packed = spec.ragged == ProblemSpec::Ragged::kPacked;
    if (spec.k_len == 0 || (packed && problem.wide().q_len * problem.wide().k_len == 0)) continue;
    CheckGradient(problem, "q", results.dq);
    CheckGradient(problem, "k", results.dk);
    CheckGradient(problem, "v", results.dv);
    if (spec.length_scale) CheckGradient(problem, "c", results.d_length_scale);
    if (spec.slopes) CheckGradient(problem, "slopes", results.d_slopes);
    if (spec.bias) CheckGradient(problem, "bias", results.d_bias);
    if (spec.sink) CheckGradient(problem, "sink", results.d_sink);
    if (spec.alpha_per_head && spec.map == RowMap::kEntmax) {
      CheckGradient(problem, "alpha", results.d_alpha);
    }
  }
}

TEST(ReferenceAttention, AlphaOneIsDifferentiable) {
  ProblemSpec spec;
  spec.dtype = DType::kFloat64;
  spec.alpha_per_head = true;
  Problem problem(spec);
  problem.Wide("alpha")[0] = 1.0;
  const double slope = problem.Run(nullptr).d_alpha[0];
  const double at = Loss(problem);
  problem.Wide("alpha")[0] = 1.0 + 1e-5;
  EXPECT_NEAR((Loss(problem) - at) / 1e-5, slope, 1e-3 * (1.0 + std::abs(slope)));
}

// One head, d = 1, q = 1, scale = 1: scores are the keys.
struct Line {
  std::vector<double> q, k, v, out, tau;
  AttentionParams params;

  Line(std::int64_t q_len, std::vector<double> keys, std::vector<double> values)
      : q(q_len, 1.0), k(std::move(keys)), v(std::move(values)), out(q_len), tau(q_len) {
    const auto k_len = static_cast<std::int64_t>(k.size());
    params.batch = params.heads = params.kv_heads = params.head_dim = params.value_dim = 1;
    params.q_len = q_len;
    params.k_len = k_len;
    params.q = {q.data(), DType::kFloat64, {q_len, q_len, 1, 1}};
    params.k = {k.data(), DType::kFloat64, {k_len, k_len, 1, 1}};
    params.v = {v.data(), DType::kFloat64, {k_len, k_len, 1, 1}};
    params.terms.scale = 1.0;
    params.alpha = 2.0;
  }
  const std::vector<double>& Run() {
    const auto n = params.q_len;
    AttentionForward({}, params,
                     {.out = {out.data(), DType::kFloat64, {n, n, 1, 1}}, .tau = tau.data()});
    return out;
  }
};

TEST(ReferenceAttention, SparsemaxByHand) {
  Line line(1, {-2.0, 0.0, 0.5}, {100.0, 1.0, 2.0});
  EXPECT_DOUBLE_EQ(line.Run()[0], 0.25 * 1.0 + 0.75 * 2.0);
  EXPECT_DOUBLE_EQ(line.tau[0], -0.25);
}

TEST(ReferenceAttention, CausalAlignment) {
  // Two queries, three keys with equal scores: each averages the keys it sees.
  Line line(2, {0.0, 0.0, 0.0}, {1.0, 2.0, 6.0});
  line.params.mask.causal = true;
  EXPECT_DOUBLE_EQ(line.Run()[0], 1.5);  // from the end: 2 and 3 keys
  EXPECT_DOUBLE_EQ(line.out[1], 3.0);
  line.params.mask.alignment = Alignment::kStart;
  EXPECT_DOUBLE_EQ(line.Run()[0], 1.0);  // 1 and 2 keys
  EXPECT_DOUBLE_EQ(line.out[1], 1.5);
}

TEST(ReferenceAttention, WindowsOfAnySize) {
  // Five queries, two keys: positions -3 ... 1.
  Line line(5, {0.0, 0.0}, {1.0, 3.0});
  line.params.mask.right = 3;
  EXPECT_EQ(line.Run(), (std::vector<double>{1.0, 2.0, 2.0, 2.0, 2.0}));
  line.params.mask.left = 0;
  line.params.mask.right = 0;
  EXPECT_EQ(line.Run(), (std::vector<double>{0.0, 0.0, 0.0, 1.0, 3.0}));
  line.params.mask.left = line.params.mask.right = INT64_MAX;
  EXPECT_EQ(line.Run(), std::vector<double>(5, 2.0));
}

TEST(ReferenceAttention, AlibiCutsByDistance) {
  Line line(1, {0.0, 0.0, 0.0}, {1.0, 2.0, 6.0});
  const double slope = 1.0;
  line.params.terms.alibi_slopes = {&slope, DType::kFloat64, {0, 0, 0, 0}};
  // Scores -2 -1 0: sparsemax keeps the last alone.
  EXPECT_DOUBLE_EQ(line.Run()[0], 6.0);
}

TEST(ReferenceAttention, StickBreakingByHand) {
  // Two queries, three keys of score 0, from the end: 1/2, then 1/4 of the keys before the query.
  Line line(2, {0.0, 0.0, 0.0}, {1.0, 2.0, 6.0});
  line.params.map = RowMap::kStickBreaking;
  line.params.mask.causal = true;
  EXPECT_DOUBLE_EQ(line.Run()[0], 0.5);
  EXPECT_DOUBLE_EQ(line.out[1], 0.5 * 2.0 + 0.25 * 1.0);
  EXPECT_DOUBLE_EQ(line.tau[1], std::log(0.25));
  // A masked key takes nothing.
  const std::uint8_t visible[] = {1, 0, 1};
  line.params.mask.visible = visible;
  line.params.mask.visible_strides[2] = 0;
  EXPECT_DOUBLE_EQ(line.Run()[1], 0.5 * 1.0);
  line.params.mask.alignment = Alignment::kStart;
  EXPECT_EQ(line.Run()[0], 0.0);  // nothing before the first
  EXPECT_DOUBLE_EQ(line.out[1], 0.5);
}

TEST(ReferenceAttention, SinksTakeWeightAndNothingElse) {
  Line line(1, {0.0, std::log(3.0)}, {1.0, 2.0});
  double sink = std::log(4.0), entropy = 0.0, maximum = 0.0;
  std::int64_t support = 0;
  line.params.terms.sink = &sink;
  const auto run = [&] {
    AttentionForward({}, line.params,
                     {.out = {line.out.data(), DType::kFloat64, {1, 1, 1, 1}},
                      .tau = line.tau.data(),
                      .support_size = &support,
                      .entropy = &entropy,
                      .maximum = &maximum});
    return line.out[0];
  };
  line.params.map = RowMap::kSoftmax;
  EXPECT_DOUBLE_EQ(run(), (1.0 + 2.0 * 3.0) / 8.0);
  EXPECT_DOUBLE_EQ(line.tau[0], std::log(8.0));
  EXPECT_EQ(support, 2);
  EXPECT_DOUBLE_EQ(entropy, -0.125 * std::log(0.125) - 0.375 * std::log(0.375));
  EXPECT_DOUBLE_EQ(maximum, std::log(3.0));
  line.params.map = RowMap::kEntmax;  // sparsemax of 0, 1.0986, 1.3863
  EXPECT_DOUBLE_EQ(run(), 2.0 * 0.5 * (1.0 - std::log(4.0 / 3.0)));
  sink = 100.0;
  EXPECT_EQ(run(), 0.0);
  EXPECT_EQ(support, 0);
  EXPECT_DOUBLE_EQ(line.tau[0], 99.0);
  sink = -INFINITY;
  EXPECT_DOUBLE_EQ(run(), 2.0);  // as without
  const std::uint8_t none = 0;
  line.params.mask.visible = &none;
  line.params.mask.visible_strides[3] = 0;
  sink = 1.0;
  EXPECT_EQ(run(), 0.0);
  EXPECT_EQ(line.tau[0], -INFINITY);
}

TEST(ReferenceAttention, ScaleInvariantFormula) {
  // Scores 2 and 1 at distances 1 and 0: a_1^2 = 2 ln(1 / 10 + 1) + 1.
  Line line(1, {2.0, 1.0}, {1.0, 0.0});
  line.params.map = RowMap::kSoftmax;
  line.params.terms.scale_invariant = 10.0;
  const double a2 = 2.0 * std::log(1.1) + 1.0;
  const double s = 1.0 - a2 + std::sqrt(a2) * 2.0;
  EXPECT_DOUBLE_EQ(line.Run()[0], std::exp(s) / (std::exp(s) + std::exp(1.0)));
}

// To the bit what it was before A and B were numbers of their own.
TEST(ReferenceAttention, TheUsualShapeIsExact) {
  for (std::int64_t distance = 0; distance < 3000; ++distance) {
    const double a2 = 2.0 * std::log(static_cast<double>(distance) / 10.0 + 1.0) + 1.0;
    const DistanceFactor factor = DistanceFactor::At({.length = 10.0}, distance);
    ASSERT_EQ(factor.a, std::sqrt(a2));
    ASSERT_EQ(factor.m, 1.0 - a2);
  }
}

// Scores 2, 1 at distances 1, 0, and the same with another A and B.
TEST(ReferenceAttention, ScaleInvariantFormulaOfAnotherShape) {
  Line line(1, {2.0, 1.0}, {1.0, 0.0});
  line.params.map = RowMap::kSoftmax;
  line.params.terms.scale_invariant = 4.0;
  const auto expected = [](double alpha, double beta) {
    const auto score = [&](double x, double distance) {
      const double a2 = 2.0 * (std::log(distance / 4.0 + 1.0) - std::log(alpha) + beta / alpha);
      return std::sqrt(a2) * x - a2 + beta / alpha;
    };
    const double first = std::exp(score(2.0, 1.0));
    return first / (first + std::exp(score(1.0, 0.0)));
  };
  const double usual = line.Run()[0];
  line.params.terms.scale_invariant_alpha = line.params.terms.scale_invariant_beta = std::exp(0.5);
  EXPECT_NEAR(line.Run()[0], usual, 1e-15);
  line.params.terms.scale_invariant_alpha = 0.7;
  EXPECT_NEAR(line.Run()[0], expected(0.7, std::exp(0.5)), 1e-15);
  line.params.terms.scale_invariant_beta = 2.5;
  EXPECT_NEAR(line.Run()[0], expected(0.7, 2.5), 1e-15);
  line.params.terms.scale_invariant_alpha = 2.0;
  line.params.terms.scale_invariant_beta = 2.0 * std::log(2.0);  // a_0 = 0
  EXPECT_NEAR(line.Run()[0], expected(2.0, 2.0 * std::log(2.0)), 1e-7);
}

// E[e^s] = A / (d / l + 1) and E[s e^s] = B / (d / l + 1) for scores that are standard normal
// before the term (Anson et al. 2025, eq. 12 and 13).
TEST(ReferenceAttention, ScaleInvariantScoresHaveTheWeightsThatTheyAreNamedBy) {
  AttentionTerms terms;
  terms.scale_invariant = 10.0;
  for (const auto& [alpha, beta] : {std::pair(1.0, 0.5), std::pair(3.0, 4.0)}) {
    terms.scale_invariant_alpha = alpha;
    terms.scale_invariant_beta = beta;
    for (const std::int64_t distance : {0, 7, 1000}) {
      const DistanceFactor factor = DistanceFactor::At(DistanceLaw::Of(terms), distance);
      double mass = 0.0, moment = 0.0;
      constexpr double kStep = 0.01;
      for (double x = -12.0; x <= 20.0; x += kStep) {
        const double s = factor.a * x + factor.m;
        const double weight = std::exp(s - 0.5 * x * x) * kStep / std::sqrt(2.0 * M_PI);
        mass += weight;
        moment += s * weight;
      }
      const double far = static_cast<double>(distance) / 10.0 + 1.0;
      EXPECT_NEAR(mass, alpha / far, 1e-9) << distance;
      EXPECT_NEAR(moment, beta / far, 1e-9) << distance;
    }
  }
}

TEST(ReferenceAttention, NothingVisibleIsZero) {
  Line line(3, {1.0, 2.0}, {5.0, 7.0});
  line.params.mask.causal = true;  // the first query stands before the first key
  EXPECT_EQ(line.Run()[0], 0.0);
  EXPECT_EQ(line.tau[0], -INFINITY);
  EXPECT_EQ(line.out[1], 5.0);
}

TEST(ReferenceAttention, NaNStaysInItsRow) {
  Line line(3, {1.0, 2.0, NAN}, {5.0, 7.0, NAN});
  line.params.mask.causal = true;
  line.Run();
  EXPECT_EQ(line.out[0], 5.0);
  EXPECT_EQ(line.out[1], 7.0);
  EXPECT_TRUE(std::isnan(line.out[2]));
}

TEST(Attention, RefusesBadArguments) {
  const auto refused = [](const std::string& argument, auto&& spoil) {
    Line line(2, {1.0, 2.0}, {3.0, 4.0});
    spoil(line);
    try {
      line.Run();
      ADD_FAILURE() << argument << " was accepted";
    } catch (const InvalidArgument& error) {
      EXPECT_EQ(error.argument(), argument) << error.what();
    }
  };
  refused("alpha", [](Line& l) { l.params.alpha = 0.0; });
  refused("alpha", [](Line& l) { l.params.alpha = NAN; });
  refused("map", [](Line& l) { l.params.map = RowMap::kBudget; });
  refused("mask.causal", [](Line& l) { l.params.map = RowMap::kStickBreaking; });
  refused("top_k.k", [](Line& l) { l.params.map = RowMap::kTopKSoftmax; });
  refused("sigmoid_bias", [](Line& l) {
    l.params.map = RowMap::kSigmoid;
    l.params.sigmoid_bias = INFINITY;
  });
  refused("terms.sink", [](Line& l) {
    l.params.map = RowMap::kAdaptiveTemperature;
    l.params.terms.sink = l.q.data();
  });
  refused("heads", [](Line& l) {
    l.params.heads = 3;
    l.params.kv_heads = 2;
  });
  refused("head_dim", [](Line& l) { l.params.head_dim = 0; });
  refused("value_dim", [](Line& l) { l.params.value_dim = 513; });
  refused("k", [](Line& l) { l.params.k.dtype = DType::kFloat32; });
  refused("v", [](Line& l) { l.params.v.data = nullptr; });
  refused("terms.scale", [](Line& l) { l.params.terms.scale = -1.0; });
  refused("terms.softcap", [](Line& l) { l.params.terms.softcap = -1.0; });
  refused("terms.softcap", [](Line& l) { l.params.terms.softcap = 1e-7; });
  refused("terms.scale_invariant", [](Line& l) { l.params.terms.scale_invariant = INFINITY; });
  refused("terms.scale_invariant_alpha",
          [](Line& l) { l.params.terms.scale_invariant_alpha = 1.0; });
  const auto shape = [&](const char* argument, double alpha, double beta) {
    refused(argument, [=](Line& l) {
      l.params.terms.scale_invariant = 10.0;
      l.params.terms.scale_invariant_alpha = alpha;
      l.params.terms.scale_invariant_beta = beta;
    });
  };
  shape("terms.scale_invariant_alpha", -1.0, 0.0);
  shape("terms.scale_invariant_alpha", NAN, 0.0);
  shape("terms.scale_invariant_beta", 0.0, INFINITY);
  shape("terms.scale_invariant_beta", 2.0, 1.3);  // below A ln A
  shape("terms.scale_invariant_beta", 3.0, 0.0);  // e^(1/2) is
  shape("terms.scale_invariant_beta", 1.0, 101.0);
  refused("ranges", [](Line& l) { l.params.ranges.packed = true; });
  static const std::int64_t wrong = 3;
  refused("ranges.k[0]", [](Line& l) { l.params.ranges.k_end = &wrong; });
  static const std::uint8_t block = 1;
  refused("mask.block_q", [](Line& l) { l.params.mask.blocks = &block; });
}

// The fuzzer found them refused: strides of sizes[i + 1] * ... are 0 where a length is.
TEST(Attention, EmptyResultsMayHaveStridesOfZero) {
  Line line(2, {}, {});
  line.params.heads = line.params.kv_heads = 2;
  line.q.resize(4, 1.0);
  line.params.q.data = line.q.data();
  std::vector<double> out(4, 7.0), tau(4, 7.0), dq(4, 7.0), d_out(4, 1.0);
  AttentionForward({}, line.params,
                   {.out = {out.data(), DType::kFloat64, {4, 2, 1, 1}}, .tau = tau.data()});
  EXPECT_EQ(out, std::vector<double>(4, 0.0));
  AttentionGradients gradients;
  gradients.d_out = {d_out.data(), DType::kFloat64, {4, 2, 1, 1}};
  gradients.tau = tau.data();
  gradients.dq = {dq.data(), DType::kFloat64, {4, 2, 1, 1}};
  double nothing = 7.0;
  gradients.dk = gradients.dv = {&nothing, DType::kFloat64, {0, 0, 1, 1}};
  AttentionBackward({}, line.params, gradients);
  EXPECT_EQ(dq, std::vector<double>(4, 0.0));
  EXPECT_EQ(nothing, 7.0);
}

}  // namespace
}  // namespace tsallis
