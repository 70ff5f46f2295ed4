// A kernel refuses the features that a problem asks for and that it does not serve, in words.
#include "attention/features.h"

#include <gtest/gtest.h>

#include <string>

#include "attention/kernels.h"
#include "attention/testing/paged_rows.h"
#include "attention/testing/problem.h"

namespace tsallis {
namespace {

std::string Refused(const Serves& serves, const AttentionParams& params,
                    Pass pass = Pass::kForward) {
  return Refusal(serves, params, FeaturesOf(params), pass);
}

TEST(Features, TheLastKernelServesEverything) {
  const AttentionKernel& last = *AllAttentionKernels().back();
  EXPECT_TRUE(Features::All().Without(last.serves.features).empty());
  EXPECT_TRUE(last.serves.forward_only.empty());
  EXPECT_EQ(last.declines, nullptr);
  EXPECT_EQ(last.leaves, nullptr);
  EXPECT_FALSE(last.instruction_set().empty());
}

// Each feature is asked for by some drawn problem, alone in what a kernel lacks, and then named.
TEST(Features, WhatAKernelLacksIsNamed) {
  Features met;
  for (std::uint64_t seed = 1; seed <= 600; ++seed) {
    ProblemSpec spec = DrawSpec(seed, 8, /*broken=*/true);
    if (seed == 600) spec.scale = 1e31;  // which no draw has
    const Problem problem(spec);
    const PagedRows paged(problem.params(), 2, seed);
    AttentionParams params = seed % 2 == 0 ? paged.Call(problem.params()) : problem.params();
    params.gradients = seed % 3 == 0;
    const Features asked = FeaturesOf(params);
    met = met | asked;
    EXPECT_EQ(Refused({.features = Features::All()}, params), "");
    for (int i = 0; i < static_cast<int>(Feature::kFeatures); ++i) {
      const auto feature = static_cast<Feature>(i);
      const Serves serves = {.features = Features::All().Without({feature})};
      EXPECT_EQ(Refused(serves, params), asked.Has(feature) ? Name(feature) : "");
    }
  }
  const Features drawn =
      met | Features{Feature::kFloat64, Feature::kAlphaGradient, Feature::kStridedGradient};
  EXPECT_EQ(Refusal({.features = drawn}, Problem(ProblemSpec()).params(), Features::All(),
                    Pass::kForward),
            "");
}

// Few queries without a backward pass go through lists of keys; with one, to a kernel that has
// both.
TEST(Features, GradientsChooseAKernelWithBothPasses) {
  ProblemSpec spec;
  spec.q_len = 1;
  spec.k_len = 300;
  AttentionParams params = Problem(spec).params();
  EXPECT_EQ(ChooseAttentionKernel(params).forward, "decode");
  params.gradients = true;
  const AttentionChoice choice = ChooseAttentionKernel(params);
  EXPECT_EQ(choice.forward, choice.backward);
  EXPECT_TRUE(
      choice.reason.starts_with("not decode: scores that round as those of a backward pass; "))
      << choice.reason;
}

// Every kernel for CPUs reads d_out column by column where it has to.
TEST(Features, ColumnsOfDOutMayLieAnywhere) {
  const Problem problem{ProblemSpec()};
  AttentionGradients gradients;
  for (const std::int64_t stride : {1, 0, 2}) {
    gradients.d_out.strides[3] = stride;
    const Features asked = FeaturesOf(problem.params(), gradients);
    EXPECT_EQ(asked.Has(Feature::kStridedGradient), stride != 1);
    for (const AttentionKernel* kernel : AllAttentionKernels()) {
      EXPECT_TRUE(kernel->serves.features.Has(Feature::kStridedGradient)) << kernel->name;
    }
  }
}

TEST(Features, ABackwardPassMayServeLess) {
  ProblemSpec spec;
  spec.map = RowMap::kAdaptiveTemperature;
  const Problem problem(spec);
  const Serves serves = {.features = Features::All(),
                         .forward_only = {Feature::kAdaptiveTemperature}};
  EXPECT_EQ(Refused(serves, problem.params()), "");
  EXPECT_EQ(Refused(serves, problem.params(), Pass::kBackward), "adaptive temperature, backward");
  AttentionGradients gradients;
  double d_alpha = 0.0;
  EXPECT_FALSE(FeaturesOf(problem.params(), gradients).Has(Feature::kAlphaGradient));
  gradients.d_alpha = &d_alpha;
  EXPECT_TRUE(FeaturesOf(problem.params(), gradients).Has(Feature::kAlphaGradient));
}

TEST(Features, AlphasAreOfAllHeadsOrOfSome) {
  ProblemSpec spec;
  spec.kv_heads = 2;
  Problem problem(spec);
  const double alphas[2] = {1.5, 3.0};
  problem.params().alpha_per_head = alphas;
  Serves serves = {
      .features = Features::All(), .least_alpha = 1.1, .most_alpha = 2.0, .alpha_one = false};
  EXPECT_EQ(Refused(serves, problem.params()), "alpha outside [1.1, 2]");
  serves.some_heads = true;
  EXPECT_EQ(Refused(serves, problem.params()), "");
  const double ones[2] = {1.0, 1.0};
  problem.params().alpha_per_head = ones;
  EXPECT_EQ(Refused(serves, problem.params()), "alpha outside [1.1, 2]");
  serves.alpha_one = true;
  EXPECT_EQ(Refused(serves, problem.params()), "");
}

TEST(Features, SizesAreLimits) {
  ProblemSpec spec;
  spec.head_dim = 40;
  spec.k_len = 30;
  const Problem problem(spec);
  EXPECT_EQ(Refused({.features = Features::All(), .most_columns = 39}, problem.params()),
            "head size above 39");
  EXPECT_EQ(Refused({.features = Features::All(), .most_columns = 40}, problem.params()), "");
  EXPECT_EQ(Refused({.features = Features::All(), .column_step = 16}, problem.params()),
            "a head size that is not a multiple of 16");
  EXPECT_EQ(Refused({.features = Features::All(), .column_step = 8}, problem.params()), "");
  EXPECT_EQ(Refused({.features = Features::All(), .most_keys = 29}, problem.params()),
            "more than 29 keys");
}

// The rows that the sweep leaves are taken by the kernels that ChooseAttentionKernel names.
TEST(Features, LeftoversAreNamed) {
  ProblemSpec spec;
  spec.q_len = spec.k_len = 700;
  const Problem problem(spec);
  const AttentionChoice choice = ChooseAttentionKernel(problem.params());
  ASSERT_EQ(choice.forward.substr(0, 5), "sweep");
  ASSERT_FALSE(choice.leftovers.empty());
  EXPECT_EQ(choice.leftovers.back(), "dense");
  EXPECT_NE(choice.reason.find("rows that keep many keys: dense"), std::string::npos);
}

}  // namespace
}  // namespace tsallis
