// The streaming kernel on tiles, on emulated ones and in float32: several strips of keys, waves of
// queries and ranges of keys, which drawn problems (random_test.cc) are too short for.
#include "attention/cpu/stream/stream.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "attention/testing/compare.h"
#include "attention/testing/problem.h"
#include "core/every_target.h"
#include "core/target.h"

namespace tsallis {
namespace {

void ForEachStream(const std::function<void(const AttentionKernel&)>& body) {
  for (const AttentionKernel* kernel :
       {&kStreamAmx, &kEmulatedStream, &kStreamPairs, &kStreamFloat}) {
    if (kernel->instruction_set().empty()) continue;
    SCOPED_TRACE(kernel->name);
    body(*kernel);
  }
}

ProblemSpec Softmax(std::int64_t q_len, std::int64_t k_len) {
  ProblemSpec spec;
  spec.dtype = DType::kBFloat16;
  spec.map = RowMap::kSoftmax;
  spec.q_len = q_len;
  spec.k_len = k_len;
  spec.head_dim = 40;
  spec.value_dim = 24;
  return spec;
}

// Every map that streams, in either pass or in one. The gradient of alpha is for the dense kernel.
void CheckAll(ProblemSpec spec) {
  const std::pair<RowMap, double> maps[] = {
      {RowMap::kSoftmax, 1.0}, {RowMap::kAdaptiveTemperature, 1.0},
      {RowMap::kEntmax, 1.5},  {RowMap::kEntmax, 2.0},
      {RowMap::kEntmax, 1.25}, {RowMap::kEntmax, 1.7}};
  constexpr unsigned kWanted = kWantAll & ~static_cast<unsigned>(kWantDAlpha);
  for (const auto& [map, alpha] : maps) {
    spec.map = map;
    spec.alpha = alpha;
    const Problem problem(spec);
    const Expectation expectation(problem);
    SCOPED_TRACE(spec.Describe());
    ForEachStream([&](const AttentionKernel& kernel) {
      const Results one = problem.Run(&kernel, 1, 0, true, kWanted);
      EXPECT_EQ(expectation.Check(one), "");
      const std::size_t saved = kernel.saved_bytes(problem.params());
      EXPECT_EQ(saved > 0, map != RowMap::kEntmax);
      EXPECT_EQ(FirstDifference(one, problem.Run(&kernel, 3, saved, true, kWanted)), "");
    });
  }
}

TEST(Stream, LengthsAroundTiles) {
  for (const std::int64_t n : {1, 15, 16, 17, 31, 32, 33, 127, 128, 129, 160, 257}) {
    ProblemSpec spec = Softmax(n, n);
    spec.causal = true;
    CheckAll(spec);
  }
  CheckAll(Softmax(113, 203));
  CheckAll(Softmax(3, 600));
}

TEST(Stream, MasksTermsAndShapes) {
  for (int variant = 0; variant < 10; ++variant) {
    ProblemSpec spec = Softmax(200, 300);
    spec.seed = static_cast<std::uint64_t>(variant) + 5;
    spec.causal = variant % 2 == 0;
    switch (variant) {
      case 0: spec.left = 70; break;
      case 1:
        spec.left = 40;
        spec.right = 90;
        break;
      case 2: spec.slopes = spec.zero_slopes = spec.length_scale = true; break;
      case 3:
        spec.slopes = spec.negative_slopes = true;
        spec.scale_invariant = 10.0;
        break;
      case 7: spec.softcap = 2.0; break;
      case 8:
        spec.softcap = 0.7;
        spec.slopes = spec.length_scale = true;
        spec.scale_invariant = 10.0;
        break;
      case 4:
        spec.batch = 3;
        spec.ragged = ProblemSpec::Ragged::kPacked;
        spec.gaps = spec.garbage = true;
        break;
      case 5:
        spec.batch = 2;
        spec.ragged = ProblemSpec::Ragged::kLeft;
        spec.garbage = spec.strided = true;
        break;
      case 6:
        spec.kv_heads = 2;
        spec.group = 3;
        spec.spread = 4.0;
        break;
      default:
        spec.head_dim = 100;
        spec.value_dim = 130;
        spec.ones = true;
        break;
    }
    CheckAll(spec);
  }
}

TEST(Stream, SeveralWavesAndRanges) {
  ProblemSpec spec = Softmax(stream::kWaveRows + 70, stream::kRangeKeys * 2 + 50);
  spec.causal = true;
  spec.head_dim = spec.value_dim = 16;
  spec.length_scale = true;
  CheckAll(spec);
}

// Rows long enough for samples of their strips: beta is 1 for flat ones and above for sharp ones,
// and a dominant key that no sample has leads to both passes. With memory for outputs and without
// it, gradients are the same.
TEST(Stream, LongRowsOfAdaptiveTemperature) {
  using V = ProblemSpec::Values;
  for (const auto& [values, spread] :
       {std::pair(V::kNormal, 1.0), {V::kNormal, 4.0}, {V::kFlat, 1.0}, {V::kMiddle, 0.03}}) {
    for (const bool causal : {false, true}) {
      ProblemSpec spec = Softmax(70, 4400);
      spec.map = RowMap::kAdaptiveTemperature;
      spec.values = values;
      spec.spread = spread;
      spec.causal = causal;
      spec.head_dim = spec.value_dim = 16;
      const Problem problem(spec);
      const Expectation expectation(problem);
      SCOPED_TRACE(spec.Describe());
      ForEachStream([&](const AttentionKernel& kernel) {
        const Results one = problem.Run(&kernel, 1);
        EXPECT_EQ(expectation.Check(one), "");
        const std::size_t saved = kernel.saved_bytes(problem.params());
        EXPECT_GT(saved, 0u);
        EXPECT_EQ(FirstDifference(one, problem.Run(&kernel, 3, saved)), "");
      });
    }
  }
}

// Causal rows that begin with few keys, whose betas are above 1, and end with many, whose betas are
// 1: blocks of both kinds in a head.
TEST(Stream, AdaptiveTemperatureOfGrowingRows) {
  ProblemSpec spec = Softmax(2100, 2100);
  spec.map = RowMap::kAdaptiveTemperature;
  spec.causal = true;
  spec.head_dim = spec.value_dim = 16;
  spec.group = 2;
  const Problem problem(spec);
  const Expectation expectation(problem);
  ForEachStream([&](const AttentionKernel& kernel) {
    const Results one = problem.Run(&kernel, 1);
    EXPECT_EQ(expectation.Check(one), "");
    const std::size_t saved = kernel.saved_bytes(problem.params());
    EXPECT_EQ(FirstDifference(one, problem.Run(&kernel, 3, saved)), "");
  });
}

// The kernel takes rows that are not sharpened, and leaves sharp ones to the dense kernel forward.
TEST(Stream, LeavesSharpRowsOfAdaptiveTemperature) {
  if (kStreamFloat.instruction_set().empty()) GTEST_SKIP() << "no vectors";
  for (const double spread : {1.0, 4.0}) {
    ProblemSpec spec = Softmax(128, 2560);
    spec.map = RowMap::kAdaptiveTemperature;
    spec.spread = spread;
    spec.head_dim = spec.value_dim = 16;
    const Problem problem(spec);
    const AttentionParams& params = problem.params();
    std::vector<float> out(128 * 16);
    AttentionOutputs outputs;
    outputs.out = {out.data(), DType::kFloat32, {2048, 2048, 16, 1}};
    std::vector<RowBlock> left;
    kStreamFloat.forward({}, params, outputs, AllRows(params), &left);
    if (spread == 1.0) {
      EXPECT_TRUE(left.empty());
    } else {
      ASSERT_EQ(left.size(), 1u);  // neighbouring blocks in one
      EXPECT_EQ(left[0].q.size(), 128);
    }
  }
}

TEST(Stream, ScoresOfEverySize) {
  using V = ProblemSpec::Values;
  for (const V values : {V::kFlat, V::kTies, V::kDominant, V::kHuge, V::kTiny, V::kZero, V::kVast,
                         V::kNaN, V::kInfinity}) {
    ProblemSpec spec = Softmax(150, 150);
    spec.values = values;
    spec.causal = true;
    spec.head_dim = spec.value_dim = 16;
    CheckAll(spec);
    spec.q_len = 15;  // strips that all queries see whole
    spec.k_len = 384;
    spec.ones = true;
    for (spec.seed = 1; spec.seed <= (values == V::kVast ? 6 : 1); ++spec.seed) CheckAll(spec);
  }
}

TEST(Stream, IsWhatLongSoftmaxRunsOn) {
  ForEachTarget([](const std::string& target) {
    const Problem problem(Softmax(600, 600));
    const bool tiles = !kStreamAmx.instruction_set().empty();
    const bool vectors = !kStreamFloat.instruction_set().empty();
    EXPECT_EQ(vectors, target != "EMU128" && target != "SCALAR") << target;
    const bool pairs = !kStreamPairs.instruction_set().empty();
    const std::string expected = tiles     ? "stream-amx"
                                 : pairs   ? "stream-bf16"
                                 : vectors ? "stream"
                                           : "dense";
    EXPECT_EQ(ChooseAttentionKernel(problem.params()).forward, expected) << target;
    EXPECT_EQ(ChooseAttentionKernel(problem.params()).backward, expected) << target;
  });
}

}  // namespace
}  // namespace tsallis
