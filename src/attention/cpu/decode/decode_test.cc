// Decoding: long rows, splits of the keys, solutions that depend on the support alone.
#include "attention/cpu/decode/decode.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "attention/testing/compare.h"
#include "attention/testing/problem.h"
#include "core/every_target.h"

namespace tsallis {
namespace {

ProblemSpec OneQuery(std::int64_t keys) {
  ProblemSpec spec;
  spec.kv_heads = 2;
  spec.group = 3;
  spec.q_len = 1;
  spec.k_len = keys;
  spec.head_dim = 24;
  spec.value_dim = 40;
  spec.causal = true;
  return spec;
}

void Check(const ProblemSpec& spec) {
  SCOPED_TRACE(spec.Describe());
  const Problem problem(spec);
  ASSERT_EQ(RefusalOf(kDecodeAttention, problem), "");
  const Expectation expectation(problem);
  ForEachTarget([&](const std::string& target) {
    SCOPED_TRACE(target);
    const Results one = problem.Run(&kDecodeAttention, 1);
    EXPECT_EQ(expectation.Check(one), "");
    // Enough threads for heads apart, and for runs of keys.
    for (const int threads : {2, 3, 8}) {
      EXPECT_EQ(FirstDifference(one, problem.Run(&kDecodeAttention, threads)), "");
    }
  });
}

TEST(Decode, IsWhatFewQueriesRunOn) {
  ProblemSpec spec = OneQuery(100);
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    spec.dtype = dtype;
    EXPECT_EQ(ChooseAttentionKernel(Problem(spec).params()).forward, "decode");
  }
  spec.q_len = 2;
  EXPECT_NE(ChooseAttentionKernel(Problem(spec).params()).forward, "decode");
  spec.k_len = 1024;
  spec.q_len = 8;
  EXPECT_EQ(ChooseAttentionKernel(Problem(spec).params()).forward, "decode");
  spec.q_len = 9;
  EXPECT_NE(ChooseAttentionKernel(Problem(spec).params()).forward, "decode");
  spec = OneQuery(100);
  spec.map = RowMap::kSigmoid;
  EXPECT_NE(ChooseAttentionKernel(Problem(spec).params()).forward, "decode");
}

TEST(Decode, LengthsAroundRuns) {
  for (const std::int64_t keys : {1, 2, 15, 16, 17, 1023, 1024, 1025, 2500}) {
    ProblemSpec spec = OneQuery(keys);
    Check(spec);
    spec.dtype = DType::kBFloat16;
    spec.alpha = 2.0;
    Check(spec);
  }
}

// Heads that share keys pass over them together, four, two or one at a time.
TEST(Decode, GroupsOfAnySize) {
  for (const std::int64_t group : {1, 2, 4, 5, 8, 9}) {
    for (const double alpha : {1.0, 1.5}) {
      for (const std::int64_t value_dim : {16, 72}) {
        ProblemSpec spec = OneQuery(1100);
        spec.group = group;
        spec.alpha = alpha;
        spec.value_dim = value_dim;
        spec.sink = group == 4;
        Check(spec);
        spec.dtype = DType::kBFloat16;
        Check(spec);
      }
    }
  }
}

TEST(Decode, TermsOverManyKeys) {
  for (const double alpha : {1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 4.0}) {
    ProblemSpec spec = OneQuery(1500);
    spec.alpha = alpha;
    spec.slopes = true;
    Check(spec);
    spec.slopes = false;
    spec.scale_invariant = 10.0;
    spec.length_scale = spec.any_length_scale = true;
    Check(spec);
    for (const double beta : {2.0 * std::log(2.0), 9.0}) {
      spec.scale_invariant_alpha = 2.0;
      spec.scale_invariant_beta = beta;
      Check(spec);
    }
    spec.scale_invariant = spec.scale_invariant_alpha = spec.scale_invariant_beta = 0.0;
    spec.softcap = 3.0;
    spec.sink = true;
    spec.left = 700;
    Check(spec);
  }
}

TEST(Decode, RowsThatKeepAllKeysOrOne) {
  using Values = ProblemSpec::Values;
  for (const Values values : {Values::kFlat, Values::kTies, Values::kDominant, Values::kZero,
                              Values::kVast, Values::kNaN, Values::kInfinity}) {
    for (const double alpha : {1.0, 1.5, 1.7, 2.0, 3.0}) {
      ProblemSpec spec = OneQuery(1300);
      spec.values = values;
      spec.alpha = alpha;
      Check(spec);
    }
  }
}

// Keys that are listed beside the support do not change threshold and weights.
TEST(Decode, TheSolutionDependsOnTheSupportAlone) {
  std::mt19937_64 random(7);
  std::normal_distribution<double> normal;
  for (int draw = 0; draw < 300; ++draw) {
    const double alphas[] = {1.1, 1.25, 1.5, 1.63, 2.0, 2.7, 4.0};
    decode::Map map{.alpha = alphas[draw % 7]};
    if (draw % 5 == 0) map.sink = normal(random);
    std::vector<double> all(3 + draw);
    for (double& s : all) s = 2.0 * normal(random) - (draw % 3 == 0 ? 1e4 : 0.0);
    decode::SolveMemory memory;
    const auto solve = [&](const std::vector<double>& scores, std::vector<float>* weights) {
      const double tau = decode::Solve(map, scores, &memory);
      weights->assign(memory.p.get(), memory.p.get() + scores.size());
      return tau;
    };
    std::vector<float> p, own;
    const double tau = solve(all, &p);
    double sum = 0.0;
    for (const float weight : p) sum += static_cast<double>(weight);
    EXPECT_NEAR(sum, 1.0, draw % 5 == 0 ? 1.0 : 1e-6);
    std::vector<double> few;
    std::vector<float> expected;
    const double least = tau / (map.alpha - 1.0) - 0.3 * std::abs(normal(random)) - 1e-9;
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (all[i] < least) continue;
      few.push_back(all[i]);
      expected.push_back(p[i]);
    }
    if (few.empty()) continue;
    EXPECT_EQ(solve(few, &own), tau) << draw;
    EXPECT_EQ(own, expected) << draw;
    // A part of a row has the lower threshold.
    few.resize((few.size() + 1) / 2);
    EXPECT_LE(decode::LeastThreshold(map, few, &memory), tau / (map.alpha - 1.0));
  }
}

}  // namespace
}  // namespace tsallis
