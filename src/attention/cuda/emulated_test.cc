// The kernels for GPUs on the emulation: drawn problems against the reference in double, the same
// bits under every order of threads.
//
//   TSALLIS_MOST    greatest q_len and k_len (default 24, every 8th case 150)
//   TSALLIS_CASES, TSALLIS_SEED, TSALLIS_SHOW   as in testing/drawn_test.h
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "attention/cuda/testing/check_saved.h"
#include "attention/cuda/testing/check_weights.h"
#include "attention/cuda/testing/draw.h"
#include "attention/cuda/testing/drawn_test.h"
#include "attention/cuda/testing/emulation.h"
#include "attention/testing/compare.h"
#include "attention/testing/problem.h"

namespace tsallis::cuda {
namespace {

Results RunEmulated(const Problem& problem, const simt::Policy& policy, bool backward = true,
                    unsigned wanted = kWantAll) {
  simt::machine.policy = policy;
  return problem.RunBy(EmulatedForward, EmulatedBackward, backward, wanted);
}

std::string RefusalOf(const Problem& problem) {
  return Refusal(kServes, problem.params(), FeaturesOf(problem.params()), Pass::kForward);
}

TEST(CudaEmulated, DrawnProblemsMatchTheReference) {
  const auto spec_of = [](std::uint64_t seed) {
    return DrawServed(
        seed, static_cast<std::int64_t>(FromEnvironment("TSALLIS_MOST", seed % 8 == 0 ? 150 : 24)));
  };
  const auto run = [](const Problem& problem, std::uint64_t, const simt::Policy& policy) {
    return RunEmulated(problem, policy);
  };
  ExpectDrawnProblemsMatch(spec_of, RefusalOf, run, 0, run);
}

std::string CheckEmulated(const ProblemSpec& spec, std::uint64_t policy = 3) {
  const Problem problem(spec);
  return CheckRun(problem, RefusalOf(problem),
                  [&] { return RunEmulated(problem, simt::Policy::Draw(policy)); });
}

std::string CheckEmulatedWeights(const Problem& problem, std::uint64_t policy) {
  simt::machine.policy = simt::Policy::Draw(policy);
  try {
    return CheckWeights(problem, EmulatedWeightCounts, EmulatedWeights);
  } catch (const simt::Fault& fault) {
    return fault.what();
  }
}

TEST(CudaEmulated, WeightsAsAMatrix) {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    const Problem problem(DrawServed(seed, seed % 8 == 0 ? 100 : 24));
    if (!RefusalOf(problem).empty()) continue;
    EXPECT_EQ(CheckEmulatedWeights(problem, seed), "") << problem.spec().Describe();
  }
  // Rows of both kinds.
  EXPECT_EQ(CheckEmulatedWeights(Problem({.seed = 5,
                                          .dtype = DType::kBFloat16,
                                          .q_len = 150,
                                          .k_len = 420,
                                          .head_dim = 32,
                                          .value_dim = 32,
                                          .causal = true}),
                                 3),
            "");
}

// Weights that have no room are left out.
TEST(CudaEmulated, WeightsStayInTheirRows) {
  for (const RowMap map : {RowMap::kSoftmax, RowMap::kEntmax}) {
    const Problem problem({.dtype = DType::kBFloat16, .q_len = 9, .k_len = 30, .map = map});
    std::vector<std::int64_t> offsets(10), columns(9, -1);
    for (int i = 0; i < 10; ++i) offsets[i] = i;
    std::vector<float> values(9);
    EmulatedWeights(problem.params(), offsets.data(), 9, columns.data(), values.data());
    for (const std::int64_t column : columns) EXPECT_GE(column, 0);
    for (const float value : values) EXPECT_GT(value, 0.0f);
  }
}

// Lists fill, are solved and go on; some rows stay full and are dense.
TEST(CudaEmulated, LongRowsRaiseTheirBounds) {
  for (const double spread : {0.3, 1.0, 3.0}) {
    const ProblemSpec spec = {.seed = 5,
                              .dtype = DType::kBFloat16,
                              .q_len = 150,
                              .k_len = 420,
                              .head_dim = 32,
                              .value_dim = 32,
                              .spread = spread,
                              .causal = true};
    EXPECT_EQ(CheckEmulated(spec), "") << "spread " << spread;
  }
}

// Rows that keep hundreds of keys: lists in device memory, and dense rows beside them.
TEST(CudaEmulated, RowsOfLongLists) {
  for (std::uint64_t seed = 1; seed <= 24; ++seed) {
    const Problem problem(DrawLong(seed));
    const simt::Policy policy = simt::Policy::Draw(seed);
    // The gradients and weights of a few, which are those of dense rows.
    const bool all = seed == 4 || seed == 20;
    Results results;
    const auto run = [&] { return results = RunEmulated(problem, policy, all); };
    EXPECT_EQ(CheckRun(problem, RefusalOf(problem), run), "") << problem.spec().Describe();
    if (all) {
      EXPECT_EQ(CheckEmulatedWeights(problem, seed), "");
    }
    if (seed % 4 != 0) continue;
    const Results again = RunEmulated(problem, policy.InOrderOf(seed / 4), all);
    EXPECT_EQ(FirstDifference(results, again), "") << problem.spec().Describe();
  }
}

TEST(CudaEmulated, NaNInLongLists) {
  EXPECT_EQ(CheckEmulated(NaNInLongLists(DType::kBFloat16)), "");
}

// They cost a second pass over the keys, of 64 rows side by side, and no third. A block whose rows
// have all become dense ends it.
TEST(CudaEmulated, LongListsCostOnePass) {
  const auto products = [](double spread, std::int64_t most) {
    const Problem problem({.seed = 3,
                           .dtype = DType::kBFloat16,
                           .q_len = 64,
                           .k_len = 4096,
                           .head_dim = 64,
                           .value_dim = 64,
                           .spread = spread});
    simt::machine.counters = {};
    const Results results = RunEmulated(problem, simt::Policy::Draw(0), false);
    EXPECT_EQ(Expectation(problem).Check(results), "");
    const auto [least, largest] =
        std::minmax_element(results.support_size.begin(), results.support_size.end());
    EXPECT_GT(*least, 96);
    EXPECT_LE(*largest, most);
    return simt::machine.counters.products;
  };
  // Of 64 rows and all keys. The sweep has 128 rows, of which half are none.
  constexpr std::uint64_t kPass = 64 * 4096 * 64 / 2048, kTile = kPass / 64;
  EXPECT_EQ(products(0.3, 224), 3 * kPass);
  // The dense kernel's passes are whole ones.
  EXPECT_EQ(products(0.01, 4096) % kPass, 5 * kTile);
}

// Lists that the forward pass saves spare the backward pass its sweep, and change no bit.
std::string CheckSavedLists(const Problem& problem, const simt::Policy& policy) {
  simt::machine.policy = policy;
  try {
    return CheckSaved(problem, EmulatedSavedBytes(problem.params(), SIZE_MAX), EmulatedForward,
                      EmulatedBackward);
  } catch (const simt::Fault& fault) {
    return fault.what();
  }
}

TEST(CudaEmulated, SavedListsChangeNoBit) {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    const Problem problem(DrawServed(seed, seed % 8 == 0 ? 150 : 24));
    if (!RefusalOf(problem).empty()) continue;
    EXPECT_EQ(CheckSavedLists(problem, simt::Policy::Draw(seed)), "")
        << seed << " " << problem.spec().Describe();
  }
  EXPECT_EQ(CheckSavedLists(Problem(DrawLong(4)), simt::Policy::Draw(4)), "");
  EXPECT_EQ(CheckSavedLists(Problem(DrawGuessed(2)), simt::Policy::Draw(2)), "");
  const Problem softmax({.dtype = DType::kBFloat16, .map = RowMap::kSoftmax});
  EXPECT_EQ(EmulatedSavedBytes(softmax.params(), SIZE_MAX), 0u);
}

// A row is saved only where the backward pass would not find its list full, also on another device.
TEST(CudaEmulated, ListsThatMayBeFullAreNotSaved) {
  Problem problem(FullListsSpec(DType::kBFloat16));
  FillLists(&problem);
  EXPECT_EQ(CheckSavedLists(problem, {}), "");
  const auto backward = [](const auto&... call) {
    simt::machine.policy.much_shared = false;
    EmulatedBackward(call...);
    simt::machine.policy.much_shared = true;
  };
  simt::machine.policy = {.much_shared = true};
  EXPECT_EQ(CheckSaved(problem, EmulatedSavedBytes(problem.params(), SIZE_MAX), EmulatedForward,
                       backward),
            "");
}

// Of rows with few keys, and of rows with more than a list of the backward pass holds.
TEST(CudaEmulated, SavedListsSpareTheSweep) {
  for (const std::int64_t k_len : {256, 4096}) {
    const Problem problem({.seed = 3,
                           .dtype = DType::kBFloat16,
                           .q_len = k_len == 256 ? 160 : 64,
                           .k_len = k_len,
                           .head_dim = 64,
                           .value_dim = 64,
                           .spread = k_len == 256 ? 3.0 : 0.3});
    const auto products = [&](std::size_t bytes) {
      std::uint64_t before = 0;
      const auto backward = [&](const auto&... call) {
        before = simt::machine.counters.products;
        EmulatedBackward(call...);
      };
      simt::machine.policy = {};
      problem.RunBy(EmulatedForward, backward, true, kWantAll, bytes);
      return simt::machine.counters.products - before;
    };
    const std::size_t all = EmulatedSavedBytes(problem.params(), SIZE_MAX);
    const std::uint64_t block = static_cast<std::uint64_t>(k_len) * 128 * 64 / 2048;
    const std::uint64_t blocks = k_len == 256 ? 2 : 1, plain = products(0);
    EXPECT_EQ(plain - products(all), blocks * block) << k_len;
    // The last row has no room.
    EXPECT_EQ(plain - products(all - 4), (blocks - 1) * block) << k_len;
  }
}

TEST(CudaEmulated, PlacesOfManyTasksAndBuckets) {
  EXPECT_EQ(CheckEmulated(ManyPlaces(DType::kBFloat16)), "");
}

// Keys that most rows keep are added up by all warps of a block, at several places of a block.
TEST(CudaEmulated, KeysOfManyRows) {
  for (const std::int64_t k_len : {2, 21}) {
    EXPECT_EQ(CheckEmulated(KeysOfManyRows(DType::kBFloat16, k_len)), "") << k_len;
  }
}

// Every tile brings scores above all bounds, on devices of either memory.
TEST(CudaEmulated, RisingScores) {
  for (std::uint64_t policy = 0; policy < 4; ++policy) {
    EXPECT_EQ(CheckEmulated(RisingScores(DType::kBFloat16), policy), "") << policy;
  }
}

// Masks in front of lists that fill, of dense rows and of softmax; blocks that are no multiple of a
// tile.
TEST(CudaEmulated, MasksTakePairsAway) {
  for (const double spread : {0.3, 3.0}) {
    for (const std::int64_t block : {0, 24, 130}) {
      ProblemSpec spec = {.seed = 6,
                          .dtype = DType::kBFloat16,
                          .group = 2,
                          .q_len = 150,
                          .k_len = 300,
                          .spread = spread,
                          .causal = true,
                          .visible = block == 24 ? 1.0 : 0.6,
                          .block = block,
                          .block_k = block / 2};
      EXPECT_EQ(CheckEmulated(spec), "") << "spread " << spread << " block " << block;
      spec.map = RowMap::kSoftmax;
      EXPECT_EQ(CheckEmulated(spec), "") << "spread " << spread << " block " << block;
    }
  }
}

// Nothing is read of tiles without a visible block.
TEST(CudaEmulated, EmptyBlocksCostNothing) {
  for (const RowMap map : {RowMap::kSoftmax, RowMap::kEntmax}) {
    Problem problem({.dtype = DType::kBFloat16,
                     .q_len = 256,
                     .k_len = 512,
                     .head_dim = 64,
                     .value_dim = 64,
                     .spread = 8.0,
                     .map = map});
    std::vector<std::uint8_t> blocks;
    LeaveFewBlocks(&problem, &blocks);
    simt::machine.counters = {};
    const Results results = RunEmulated(problem, simt::Policy::Draw(0), false, 0);
    // Three tiles of 128 queries and 64 keys; of 64 queries in softmax, which multiplies with
    // values twice, too.
    const std::uint64_t products = 3 * 128 * 64 * 64 / 2048;
    EXPECT_EQ(simt::machine.counters.products,
              map == RowMap::kSoftmax ? 3 * products / 2 : products);
    EXPECT_EQ(Expectation(problem).Check(results), "");
  }
}

// Every way in which a bias may repeat, and its gradient in either dtype.
TEST(CudaEmulated, ABiasRepeatsAlongAnyAxis) {
  for (int axes = 0; axes < 8; ++axes) {
    const ProblemSpec spec = {.seed = 7,
                              .dtype = DType::kFloat32,
                              .batch = 2,
                              .kv_heads = 2,
                              .group = 2,
                              .q_len = 70,
                              .k_len = 40,
                              .head_dim = 8,
                              .value_dim = 8,
                              .map = axes % 3 == 0 ? RowMap::kSoftmax : RowMap::kEntmax,
                              .causal = true,
                              .bias = true,
                              .bias_broadcast = axes,
                              .bias_minus_infinity = 0.2};
    EXPECT_EQ(CheckEmulated(spec), "") << "axes " << axes;
  }
}

// Keys may share a bias too, but only where they have a sink beside them: else a row's gradients
// have a sum of 0.
TEST(CudaEmulated, ABiasMayRepeatAlongKeys) {
  for (const bool along_rows : {false, true}) {
    Problem problem({.seed = 8,
                     .dtype = DType::kFloat32,
                     .group = 2,
                     .q_len = 70,
                     .k_len = 70,
                     .sink = true,
                     .causal = true,
                     .bias = true,
                     .bias_broadcast = along_rows ? 4 : 0});
    for (AttentionParams* params : {&problem.params(), &problem.wide()}) {
      params->terms.bias.strides[3] = 0;
    }
    const std::size_t rows = along_rows ? 1 : 70, keys = 70;
    std::vector<double> sums(2 * rows, Problem::kMark), expected(2 * rows, 0.0);
    const auto backward = [&](const Context& context, const AttentionParams& params,
                              AttentionGradients gradients) {
      const auto stride = static_cast<std::int64_t>(rows);
      gradients.d_bias = {
          sums.data(), DType::kFloat64, {2 * stride, stride, along_rows ? 0 : 1, 0}};
      EmulatedBackward(context, params, gradients);
    };
    simt::machine.policy = simt::Policy::Draw(5);
    problem.RunBy(EmulatedForward, backward, true, kWantTerms);
    const std::vector<double> exact = problem.Run(nullptr).d_bias;
    for (std::size_t i = 0; i < exact.size(); ++i) expected[i / keys] += exact[i];
    for (std::size_t i = 0; i < sums.size(); ++i) EXPECT_NEAR(sums[i], expected[i], 1e-5) << i;
  }
}

// Every key in the support: a list cannot hold them.
TEST(CudaEmulated, FlatRowsAreDense) {
  for (const double alpha : {1.1, 1.5, 2.0}) {
    ProblemSpec spec = {.dtype = DType::kFloat16,
                        .q_len = 70,
                        .k_len = 200,
                        .head_dim = 16,
                        .value_dim = 16,
                        .alpha = alpha};
    spec.values = ProblemSpec::Values::kFlat;
    spec.ones = true;
    EXPECT_EQ(CheckEmulated(spec), "") << "alpha " << alpha;
  }
}

// Alphas on either side of 1 and above 2: thresholds in double, with a sink above and below.
TEST(CudaEmulated, AnyAlphaUpToFour) {
  for (const double alpha : {0.05, 0.9, 0.9999, 1.00000001, 1.0001, 1.05, 2.2, 3.0, 4.0}) {
    for (const bool sink : {false, true}) {
      const ProblemSpec spec = {.seed = 9,
                                .dtype = sink ? DType::kFloat32 : DType::kBFloat16,
                                .q_len = 70,
                                .k_len = 90,
                                .alpha = alpha,
                                .sink = sink,
                                .causal = true};
      EXPECT_EQ(CheckEmulated(spec), "") << "alpha " << alpha << " sink " << sink;
    }
  }
}

// Heads with an alpha each, of which one is softmax.
TEST(CudaEmulated, HeadsHaveTheirOwnAlphas) {
  ProblemSpec spec = {.dtype = DType::kBFloat16,
                      .kv_heads = 2,
                      .group = 2,
                      .q_len = 33,
                      .k_len = 33,
                      .alpha_per_head = true,
                      .causal = true};
  Problem problem(spec);
  for (const std::array<double, 4> alphas :
       {std::array{1.0, 1.5, 2.0, 1.2}, {1.0, 0.7, 1.5, 3.0}}) {
    problem.Wide("alpha").assign(alphas.begin(), alphas.end());
    problem.params().alpha_per_head = problem.wide().alpha_per_head = problem.Wide("alpha").data();
    EXPECT_EQ(Expectation(problem).Check(RunEmulated(problem, simt::Policy::Draw(1))), "");
  }
  problem.Wide("alpha")[1] = 4.5;
  EXPECT_EQ(RefusalOf(problem), "alpha outside [0, 4]");
}

TEST(CudaEmulated, ScaleInvariantScoresOfAnyShape) {
  for (const double alpha : {1.0, 1.5, 3.0}) {
    for (const bool causal : {false, true}) {
      for (const ProblemSpec& spec : OfEachShape({.seed = 4,
                                     .dtype = DType::kFloat32,
                                     .q_len = 70,
                                     .k_len = 150,
                                     .alpha = alpha,
                                     .causal = causal})) {
        EXPECT_EQ(CheckEmulated(spec), "") << spec.Describe();
      }
    }
  }
}

// No queries, no keys, no sequences: what there is gets zeros.
TEST(CudaEmulated, EmptyAxes) {
  for (const RowMap map : {RowMap::kSoftmax, RowMap::kEntmax}) {
    ProblemSpec spec = {.dtype = DType::kBFloat16, .q_len = 0, .k_len = 9, .map = map};
    EXPECT_EQ(CheckEmulated(spec), "");
    spec.q_len = 9;
    spec.k_len = 0;
    EXPECT_EQ(CheckEmulated(spec), "");
    spec.batch = 0;
    EXPECT_EQ(CheckEmulated(spec), "");
  }
}

// A packed batch may have no sequences: its rows, and memory that it has none of, are left alone.
TEST(CudaEmulated, PackedBatchesMayHaveNoSequences) {
  for (const RowMap map : {RowMap::kSoftmax, RowMap::kEntmax}) {
    Problem problem({.dtype = DType::kBFloat16,
                     .batch = 0,
                     .map = map,
                     .sink = true,
                     .causal = true,
                     .ragged = ProblemSpec::Ragged::kPacked,
                     .bias = map == RowMap::kSoftmax,
                     .scale_invariant = 3.0});
    for (AttentionParams* params : {&problem.params(), &problem.wide()}) {
      params->q_len = params->k_len = 200;
    }
    EXPECT_EQ(CheckRun(problem, RefusalOf(problem), [&] { return RunEmulated(problem, {}); }), "");
    EXPECT_EQ(CheckEmulatedWeights(problem, 3), "");
    problem.params().ranges = {.packed = true};
    EXPECT_EQ(CheckRun(problem, RefusalOf(problem), [&] { return RunEmulated(problem, {}); }), "");
  }
}

// Nobody looks at the contents of ranges. Parts beyond an axis are as if they were not there:
// positions count from the cut, and no distance has a factor beyond the table.
TEST(CudaEmulated, RangesBeyondTheirAxisAreCutOff) {
  constexpr std::int64_t kFar = std::int64_t{1} << 40;
  struct Beyond {
    std::int64_t q_begin, q_end, k_begin, k_end;
  };
  const Beyond beyonds[] = {{0, 16, 0, 20},       {0, 16, 0, 60},      {0, 16, 0, kFar},
                            {0, kFar, 0, 16},     {-5, 16, -9, 16},    {-kFar, 16, 0, 16},
                            {0, 16, -kFar, kFar}, {0, 16, kFar, kFar}, {kFar, kFar, 3, 90}};
  const auto cut = [](std::int64_t at) { return std::clamp<std::int64_t>(at, 0, 16); };
  for (const Alignment alignment : {Alignment::kEnd, Alignment::kStart}) {
    for (const double scale_invariant : {0.0, 3.0}) {
      for (const RowMap map : {RowMap::kSoftmax, RowMap::kEntmax}) {
        Problem problem({.dtype = DType::kFloat32,
                         .q_len = 16,
                         .k_len = 16,
                         .map = map,
                         .causal = true,
                         .alignment = alignment,
                         .scale_invariant = scale_invariant});
        const auto run = [&](const Beyond& at) {
          problem.params().ranges = {&at.q_begin, &at.q_end, &at.k_begin, &at.k_end};
          return RunEmulated(problem, simt::Policy::Draw(2));
        };
        for (const Beyond& at : beyonds) {
          const Beyond inside = {cut(at.q_begin), cut(at.q_end), cut(at.k_begin), cut(at.k_end)};
          EXPECT_EQ(FirstDifference(run(inside), run(at)), "")
              << at.q_begin << ":" << at.q_end << " " << at.k_begin << ":" << at.k_end;
        }
      }
    }
  }
}

// A sink of NaN or infinity makes NaN of every row of its head that has a key, as a score would,
// and of none without.
TEST(CudaEmulated, SinksThatAreNotFinite) {
  for (const double alpha : {1.0, 1.5, 0.7, 3.0}) {
    for (const float sink : {NAN, INFINITY, -INFINITY}) {
      Problem problem({.seed = 3,
                       .dtype = DType::kFloat32,
                       .kv_heads = 2,
                       .q_len = 24,
                       .k_len = 20,
                       .alpha = alpha,
                       .sink = true,
                       .causal = true});
      problem.Wide("sink")[1] = sink;
      const auto run = [&] { return RunEmulated(problem, simt::Policy::Draw(1)); };
      EXPECT_EQ(CheckRun(problem, RefusalOf(problem), run), "") << alpha << " " << sink;
      EXPECT_EQ(CheckEmulatedWeights(problem, 1), "") << alpha << " " << sink;
    }
  }
}

// A row that sees a score of NaN is NaN, its neighbours in the tile are not.
TEST(CudaEmulated, NaNStaysInItsRow) {
  for (const RowMap map : {RowMap::kSoftmax, RowMap::kEntmax}) {
    ProblemSpec spec = {
        .dtype = DType::kBFloat16, .q_len = 200, .k_len = 200, .map = map, .causal = true};
    spec.values = ProblemSpec::Values::kNaN;
    EXPECT_EQ(CheckEmulated(spec), "");
  }
}

// The costs of a pass, in products of 16 x 8 x 16 and bytes: the model of
// src/attention/cuda/README.md.
TEST(CudaEmulated, TheSweepCostsWhatTheModelSays) {
  ProblemSpec spec = {.dtype = DType::kBFloat16,
                      .q_len = 256,
                      .k_len = 256,
                      .head_dim = 64,
                      .value_dim = 64,
                      .spread = 8.0};
  const Problem problem(spec);
  simt::machine.counters = {};
  const Results results = RunEmulated(problem, simt::Policy::Draw(0), false);
  std::int64_t most = 0;
  for (const std::int64_t kept : results.support_size) most = std::max(most, kept);
  ASSERT_LE(most, 32) << "a row may have become dense";
  EXPECT_EQ(simt::machine.counters.products, 256u * 256 * 64 / 2048);
  // One load of keys serves 32 queries and 16 keys at 16 columns.
  EXPECT_EQ(simt::machine.counters.matrix_loads, 256u / 32 * 256 / 16 * 64 / 16);
  EXPECT_EQ(simt::machine.counters.copied_bytes, 256u / 128 * 256 * 64 * 2);
  EXPECT_EQ(simt::machine.counters.bank_conflicts, 0u);
}

// 99 KB are what a block may have on every GPU from sm_80 on.
TEST(CudaEmulated, SharedMemoryFits) {
  const auto sizes = []<class Type, int D>() {
    return std::vector<std::size_t>{
        SweepShape<Type, D>::SharedBytes(SweepShape<Type, D>::kLeastRoom),
        DenseShape<Type, D>::kSharedBytes, DenseRowsShape<Type, D>::kSharedBytes,
        DenseKeysShape<Type, D>::kSharedBytes};
  };
  const std::vector<std::size_t> expected[] = {{73728, 20512, 16384, 17408},
                                               {81920, 40992, 32768, 33792},
                                               {98304, 81952, 65536, 66560},
                                               {98304, 98336, 98304, 98816}};
  const std::vector<std::size_t> of_float32[] = {{73728, 16416, 16384, 17408},
                                                 {81920, 32800, 32768, 33792},
                                                 {98304, 65568, 65536, 66560},
                                                 {98304, 65568, 65536, 66048}};
  EXPECT_EQ((sizes.operator()<BFloat16, 32>()), expected[0]);
  EXPECT_EQ((sizes.operator()<BFloat16, 64>()), expected[1]);
  EXPECT_EQ((sizes.operator()<BFloat16, 128>()), expected[2]);
  EXPECT_EQ((sizes.operator()<BFloat16, 256>()), expected[3]);
  EXPECT_EQ((sizes.operator()<Float32, 32>()), of_float32[0]);
  EXPECT_EQ((sizes.operator()<Float32, 64>()), of_float32[1]);
  EXPECT_EQ((sizes.operator()<Float32, 128>()), of_float32[2]);
  EXPECT_EQ((sizes.operator()<Float32, 256>()), of_float32[3]);
  for (int i = 0; i < 4; ++i) {
    for (const std::size_t bytes : expected[i]) EXPECT_LE(bytes, 99u * 1024);
    for (const std::size_t bytes : of_float32[i]) EXPECT_LE(bytes, 99u * 1024);
  }
}

// Lists get what a device has beside the tiles: two blocks on a multiprocessor of sm_90, one on
// those that had no room for two anyway.
TEST(CudaEmulated, ListsGetTheRoomThatIsThere) {
  const auto rooms = [](std::size_t multiprocessor, std::size_t block) {
    const SharedMemory shared = {multiprocessor * 1024, block * 1024};
    return std::vector<int>{
        SweepShape<BFloat16, 32>::Room(shared), SweepShape<BFloat16, 64>::Room(shared),
        SweepShape<BFloat16, 128>::Room(shared), SweepShape<BFloat16, 256>::Room(shared)};
  };
  EXPECT_EQ(rooms(228, 227), (std::vector<int>{24, 24, 20, 24}));  // sm_90, sm_100
  EXPECT_EQ(rooms(164, 163), (std::vector<int>{18, 16, 20, 24}));  // sm_80
  EXPECT_EQ(rooms(100, 99), (std::vector<int>{22, 20, 16, 17}));   // sm_86, sm_89, sm_120
}

TEST(CudaEmulated, NoTileHasBankConflicts) {
  for (const std::int64_t size : {32, 64, 128, 256}) {
    ProblemSpec spec = {.dtype = DType::kBFloat16,
                        .q_len = 40,
                        .k_len = 40,
                        .head_dim = size,
                        .value_dim = size,
                        .map = RowMap::kSoftmax};
    simt::machine.counters = {};
    EXPECT_EQ(CheckEmulated(spec), "");
    EXPECT_GT(simt::machine.counters.matrix_loads, 0u);
    EXPECT_EQ(simt::machine.counters.bank_conflicts, 0u) << size;
  }
}

// A device without room says which call failed, and nothing is lost.
TEST(CudaEmulated, OutOfMemoryIsATypedError) {
  const Problem problem({.dtype = DType::kBFloat16, .q_len = 30, .k_len = 30});
  OnDevice<Emulation> device;
  const AttentionParams params = device.Params(problem.params());
  const std::size_t used = simt::device_memory.used,
                    needed = RunWorkspaceBytes<BFloat16>(params, false);
  simt::device_memory.limit = used + needed - 1;
  try {
    RunForward<BFloat16>({}, params, {});
    ADD_FAILURE() << "no error";
  } catch (const DeviceError& error) {
    EXPECT_EQ(error.call(), "cudaMallocAsync");
  }
  simt::device_memory.limit = SIZE_MAX;
  EXPECT_EQ(simt::device_memory.used, used);
}

// A caller's memory serves as well, unless it is too small.
TEST(CudaEmulated, AWorkspaceMayBeGiven) {
  const Problem problem({.dtype = DType::kBFloat16, .q_len = 30, .k_len = 30, .causal = true});
  const Results expected = RunEmulated(problem, {});
  const auto given = [](bool backward, std::size_t missing, const auto& run) {
    return [=](const Context&, const AttentionParams& params, const auto& results) {
      OnDevice<Emulation> device;
      const AttentionParams there = device.Params(params);
      const std::size_t bytes = RunWorkspaceBytes<BFloat16>(there, backward);
      const std::unique_ptr<void, void (*)(void*)> memory(Emulation::Allocate(bytes),
                                                          Emulation::Free);
      run(device, Context{.workspace = memory.get(), .workspace_bytes = bytes - missing}, there,
          results);
      device.CopyBack();
    };
  };
  const auto forward = [](OnDevice<Emulation>& device, const Context& context,
                          const AttentionParams& params, const AttentionOutputs& outputs) {
    RunForward<BFloat16>(context, params, device.Outputs(params, outputs));
  };
  const auto backward = [](OnDevice<Emulation>& device, const Context& context,
                           const AttentionParams& params, const AttentionGradients& gradients) {
    RunBackward<BFloat16>(context, params, device.Gradients(params, gradients));
  };
  EXPECT_EQ(FirstDifference(expected, problem.RunBy(given(false, 0, forward),
                                                    given(true, 0, backward), true, kWantAll)),
            "");
  EXPECT_THROW(problem.RunBy(given(false, 1, forward), given(true, 0, backward), true, kWantAll),
               InvalidArgument);
}

// Weights and their counts take no more than a backward pass.
TEST(CudaEmulated, WeightsTakeAGivenWorkspace) {
  for (const std::int64_t q_len : {1, 3, 70}) {
    for (const int kind : {0, 1, 2}) {
      const Problem problem({.dtype = DType::kBFloat16,
                             .kv_heads = 2,
                             .q_len = q_len,
                             .k_len = 33,
                             .head_dim = 8,
                             .value_dim = 8,
                             .map = kind == 0 ? RowMap::kSoftmax : RowMap::kEntmax,
                             .alpha_per_head = kind == 2,
                             .causal = true,
                             .scale_invariant = kind == 1 ? 3.0 : 0.0});
      const auto with_workspace = [](const AttentionParams& params, const auto& run) {
        const std::size_t bytes = RunWorkspaceBytes<BFloat16>(params, true);
        const std::unique_ptr<void, void (*)(void*)> memory(Emulation::Allocate(bytes),
                                                            Emulation::Free);
        run(Context{.workspace = memory.get(), .workspace_bytes = bytes});
      };
      const auto count = [&](const AttentionParams& params, std::int64_t* counts) {
        CountWeights<Emulation>(params, counts,
                                [&](const AttentionParams& there, std::int64_t* to) {
                                  with_workspace(there, [&](const Context& context) {
                                    RunWeightCounts<BFloat16>(context, there, to);
                                  });
                                });
      };
      const auto put = [&](const AttentionParams& params, const std::int64_t* offsets,
                           std::int64_t entries, std::int64_t* columns, float* values) {
        PutWeights<Emulation>(params, offsets, entries, columns, values,
                              [&](const AttentionParams& there, const auto&... to) {
                                with_workspace(there, [&](const Context& context) {
                                  RunWeights<BFloat16>(context, there, to...);
                                });
                              });
      };
      EXPECT_EQ(CheckWeights(problem, count, put), "") << q_len << " " << kind;
    }
  }
}

// Host threads share a kernel's limit of shared memory, so it is the same for any number of keys.
TEST(CudaEmulated, LimitsOfSharedMemoryDoNotDependOnTheCall) {
  for (const std::int64_t k_len : {30, 300}) {
    EXPECT_EQ(CheckEmulated({.dtype = DType::kBFloat16, .q_len = 30, .k_len = k_len}), "");
  }
  const auto kernel = reinterpret_cast<std::uintptr_t>(SortKernel<false>);
  EXPECT_EQ(simt::machine.shared_limits.at({kernel, simt::machine.policy.much_shared}),
            kMostKeys / kBucket * sizeof(int));
  EXPECT_THROW(simt::LimitShared(kernel, 20, 20), simt::Fault);
}

// Other dtypes, sizes, maps and masks are refused, each by its name.
TEST(CudaEmulated, WhatIsNotServedIsRefusedByName) {
  const auto refusal = [](const ProblemSpec& spec) { return RefusalOf(Problem(spec)); };
  const ProblemSpec served = {.dtype = DType::kBFloat16};
  EXPECT_EQ(refusal(served), "");
  ProblemSpec spec = served;
  spec.dtype = DType::kFloat64;
  EXPECT_EQ(refusal(spec), "float64");
  spec = served;
  spec.head_dim = spec.value_dim = 264;
  EXPECT_EQ(refusal(spec), "head size above 256");
  spec.head_dim = spec.value_dim = 60;
  spec.strided = true;
  spec.padding = 4;
  EXPECT_EQ(refusal(spec), "a head size that is not a multiple of 8");
  spec = served;
  spec.alpha = 4.5;
  EXPECT_EQ(refusal(spec), "alpha outside [0, 4]");
  spec = served;
  spec.strided = true;
  EXPECT_EQ(refusal(spec), "rows that do not begin at multiples of 16 bytes");
  // Rows of such a size begin anywhere: the size is what a caller has to change.
  spec = served;
  spec.head_dim = spec.value_dim = 20;
  EXPECT_EQ(refusal(spec), "a head size that is not a multiple of 8");
}

// Its rows are read as they lie, and expanded gradients have columns of stride 0.
TEST(CudaEmulated, AGradientWithStridedColumnsIsRefused) {
  const Problem problem({.dtype = DType::kBFloat16});
  const AttentionParams& params = problem.params();
  AttentionGradients gradients;
  gradients.d_out = params.q;
  for (const std::int64_t stride : {1, 0, 2}) {
    gradients.d_out.strides[3] = stride;
    EXPECT_EQ(Refusal(kServes, params, FeaturesOf(params, gradients), Pass::kBackward),
              stride == 1 ? "" : "columns of d_out that are not contiguous");
  }
}

// The work of both passes, so that a change that makes more of it is seen without a GPU. A table
// that no longer holds is written anew from what the test prints.
TEST(CudaEmulated, WorkOfTenProblems) {
  struct Row {
    const char* name;
    ProblemSpec spec;
    // Matrix instructions, loads of matrices, barriers of threads, KB copied to shared memory, read
    // and written in device memory, entries listed, bounds raised.
    std::array<std::uint64_t, 8> work;
  };
  const ProblemSpec usual = {.dtype = DType::kBFloat16,
                             .q_len = 512,
                             .k_len = 512,
                             .head_dim = 64,
                             .value_dim = 64,
                             .causal = true};
  const auto changed = [&](const auto& change) {
    ProblemSpec spec = usual;
    change(spec);
    return spec;
  };
  const Row rows[] = {
      {"entmax 1.5", usual, {10240, 2560, 93, 448, 8669, 763, 48668, 32}},
      {"head size 128",
       changed([](auto& s) { s.head_dim = s.value_dim = 128; }),
       {20480, 5120, 93, 896, 13527, 1267, 48301, 32}},
      {"alpha 2",
       changed([](auto& s) { s.alpha = 2.0; }),
       {10240, 2560, 93, 448, 5946, 600, 37442, 16}},
      {"alpha 1.25",
       changed([](auto& s) { s.alpha = 1.25; }),
       {113024, 47344, 719, 4777, 11399, 751, 98051, 985}},
      {"softmax",
       changed([](auto& s) { s.map = RowMap::kSoftmax; }),
       {73728, 30336, 352, 2948, 3220, 538, 0, 0}},
      {"four heads a key head",
       changed([](auto& s) { s.group = 4; }),
       {40960, 10240, 270, 1408, 28654, 1898, 195616, 121}},
      {"window",
       changed([](auto& s) { s.left = 64; }),
       {5632, 1408, 75, 304, 7021, 703, 27505, 28}},
      {"rows of a hundred keys",
       changed([](auto& s) {
         s.q_len = 128;
         s.k_len = 4096;
         s.spread = 0.35;
       }),
       {244224, 97728, 1369, 9319, 22169, 3905, 77033, 936}},
      {"one key above all",
       changed([](auto& s) { s.values = ProblemSpec::Values::kDominant; }),
       {10240, 2560, 93, 448, 6969, 655, 39764, 28}},
      {"a mask",
       changed([](auto& s) { s.visible = 0.6; }),
       {10240, 2560, 93, 448, 8117, 732, 37719, 20}},
  };
  for (const Row& row : rows) {
    simt::machine.counters = {};
    RunEmulated(Problem(row.spec), {.much_shared = true});
    const simt::Counters& c = simt::machine.counters;
    const std::array<std::uint64_t, 8> got = {c.products,
                                              c.matrix_loads,
                                              c.barriers,
                                              c.copied_bytes / 1024,
                                              c.read_bytes / 1024,
                                              c.written_bytes / 1024,
                                              c.work[static_cast<int>(Work::kListed)],
                                              c.work[static_cast<int>(Work::kRaised)]};
    std::string line = "{";
    bool holds = true;
    for (std::size_t i = 0; i < got.size(); ++i) {
      line += std::to_string(got[i]) + (i + 1 < got.size() ? ", " : "}");
      // Another libm may round a threshold otherwise.
      const double share = static_cast<double>(got[i]) / static_cast<double>(row.work[i]);
      holds = holds && (got[i] == row.work[i] || (share > 0.97 && share < 1.03));
    }
    EXPECT_TRUE(holds) << row.name << ": " << line;
  }
}

}  // namespace
}  // namespace tsallis::cuda
