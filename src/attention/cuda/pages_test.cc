// The kernels on pages, on the emulation: drawn problems against the reference in double.
//
//   TSALLIS_CASES, TSALLIS_SEED, TSALLIS_SHOW   as in testing/drawn_test.h
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "attention/cuda/testing/drawn_test.h"
#include "attention/cuda/testing/emulation.h"
#include "attention/testing/compare.h"
#include "attention/testing/problem.h"
#include "tsallis/error.h"

namespace tsallis::cuda {
namespace {

Results RunPaged(const Problem& problem, std::int64_t page_size, std::uint64_t seed,
                 const simt::Policy& policy) {
  simt::machine.policy = policy;
  return problem.RunBy(
      [&](const Context& context, const AttentionParams& params, const AttentionOutputs& outputs) {
        const InPages memory(params, page_size, seed);
        EmulatedOnPages(context, params, memory.pages(), outputs);
      },
      AttentionBackward, false, kWantAll);
}

std::string RefusalOf(const Problem& problem) {
  return Refusal(kServesOnPages, problem.params(), FeaturesOf(problem.params()), Pass::kForward);
}

std::string CheckPaged(const ProblemSpec& spec, std::int64_t page_size = 16,
                       std::uint64_t seed = 3) {
  const Problem problem(spec);
  return CheckRun(problem, RefusalOf(problem),
                  [&] { return RunPaged(problem, page_size, seed, simt::Policy::Draw(seed)); });
}

TEST(CudaOnPages, DrawnProblemsMatchTheReference) {
  const auto spec_of = [](std::uint64_t seed) { return DrawPaged(seed, seed % 4 == 0 ? 420 : 70); };
  const auto run = [](const Problem& problem, std::uint64_t seed, const simt::Policy& policy) {
    return RunPaged(problem, DrawPageSize(seed), seed, policy);
  };
  // The bits are those of the keys, wherever they lie.
  const auto elsewhere = [](const Problem& problem, std::uint64_t seed,
                            const simt::Policy& policy) {
    return RunPaged(problem, 7, seed + 1, policy);
  };
  ExpectDrawnProblemsMatch(spec_of, RefusalOf, run, 1, elsewhere);
}

TEST(CudaOnPages, RowsThatKeepManyAreAddedRunByRun) {
  for (const ProblemSpec& spec : RowsThatKeepMany(DType::kBFloat16)) {
    EXPECT_EQ(CheckPaged(spec, spec.map == RowMap::kSoftmax ? 64 : 16), "") << spec.Describe();
  }
}

// Lengths differ, down to none; queries before the first key see nothing.
TEST(CudaOnPages, EverySequenceHasItsLength) {
  Problem problem({.dtype = DType::kFloat32,
                   .batch = 5,
                   .kv_heads = 2,
                   .group = 2,
                   .q_len = 3,
                   .k_len = 130,
                   .causal = true});
  const std::vector<std::int64_t> begins(5, 0), ends = {130, 0, 2, 64, 65};
  for (AttentionParams* params : {&problem.params(), &problem.wide()}) {
    params->ranges.k_begin = begins.data();
    params->ranges.k_end = ends.data();
  }
  EXPECT_EQ(Expectation(problem).Check(RunPaged(problem, 16, 2, simt::Policy::Draw(5))), "");
}

TEST(CudaOnPages, HeadsHaveTheirOwnAlphas) {
  Problem problem({.dtype = DType::kBFloat16,
                   .kv_heads = 2,
                   .group = 2,
                   .q_len = 2,
                   .k_len = 200,
                   .alpha_per_head = true,
                   .causal = true});
  const double alphas[] = {1.0, 1.5, 2.0, 1.2};
  problem.Wide("alpha").assign(alphas, alphas + 4);
  problem.params().alpha_per_head = problem.wide().alpha_per_head = problem.Wide("alpha").data();
  EXPECT_EQ(Expectation(problem).Check(RunPaged(problem, 16, 3, simt::Policy::Draw(1))), "");
}

TEST(CudaOnPages, ScaleInvariantScoresOfAnyShape) {
  for (const double alpha : {1.0, 1.5}) {
    for (const ProblemSpec& spec : OfEachShape({.dtype = DType::kFloat32,
                                   .q_len = 3,
                                   .k_len = 200,
                                   .alpha = alpha,
                                   .causal = true})) {
      EXPECT_EQ(CheckPaged(spec, 16), "") << spec.Describe();
    }
  }
}

TEST(CudaOnPages, EmptyAxes) {
  for (const RowMap map : {RowMap::kSoftmax, RowMap::kEntmax}) {
    ProblemSpec spec = {.dtype = DType::kBFloat16, .q_len = 0, .k_len = 9, .map = map};
    EXPECT_EQ(CheckPaged(spec), "");
    spec.q_len = 2;
    spec.k_len = 0;
    EXPECT_EQ(CheckPaged(spec), "");
    spec.batch = 0;
    EXPECT_EQ(CheckPaged(spec), "");
  }
}

// Repeats the test of emulated_test.cc on pages.
TEST(CudaOnPages, SinksThatAreNotFinite) {
  for (const double alpha : {1.0, 1.5}) {
    for (const float sink : {NAN, INFINITY, -INFINITY}) {
      Problem problem({.seed = 3,
                       .dtype = DType::kFloat32,
                       .kv_heads = 2,
                       .q_len = 5,
                       .k_len = 3,
                       .alpha = alpha,
                       .sink = true,
                       .causal = true});
      problem.Wide("sink")[1] = sink;
      EXPECT_EQ(CheckRun(problem, RefusalOf(problem),
                         [&] { return RunPaged(problem, 16, 2, simt::Policy::Draw(1)); }),
                "")
          << alpha << " " << sink;
    }
  }
}

// Nobody has looked at the table: a page that does not exist makes NaN of those that see it, and
// memory beyond the pages is not touched.
TEST(CudaOnPages, PagesThatDoNotExistGiveNaN) {
  const Problem problem({.dtype = DType::kBFloat16, .batch = 2, .k_len = 40});
  for (const std::int64_t page : {std::int64_t{-1}, std::int64_t{8}, std::int64_t{1} << 30}) {
    const Results results = problem.RunBy(
        [&](const Context& context, const AttentionParams& params,
            const AttentionOutputs& outputs) {
          InPages memory(params, 16, 2);
          ASSERT_EQ(memory.pages().pages, 8);
          memory.SetEntry(1, 1, page);
          EmulatedOnPages(context, params, memory.pages(), outputs);
        },
        AttentionBackward, false, kWantAll);
    EXPECT_EQ(results.support_size[8], -1);
    EXPECT_TRUE(std::isnan(results.out[8 * 16]) && std::isnan(results.tau[8]));
    EXPECT_GT(results.support_size[0], 0);
    EXPECT_FALSE(std::isnan(results.out[0]));
  }
}

// Entmax writes the scores of few units and reads the values of few keys.
TEST(CudaOnPages, ScoresCostWhatTheModelSays) {
  const Problem problem({.dtype = DType::kBFloat16,
                         .group = 4,
                         .q_len = 1,
                         .k_len = 1024,
                         .head_dim = 64,
                         .value_dim = 64,
                         .spread = 8.0,
                         .causal = true});
  simt::machine.counters = {};
  const Results results = RunPaged(problem, 64, 3, {});
  EXPECT_GT(results.support_size[0], 0);
  // 16 rows a product, each key once; the queries come into registers.
  EXPECT_EQ(simt::machine.counters.products, 1024u * 64 * 16 / 2048);
  EXPECT_EQ(simt::machine.counters.copied_bytes, 1024u * 64 * 2);
  EXPECT_EQ(simt::machine.counters.bank_conflicts, 0u);
}

TEST(CudaOnPages, SharedMemoryFits) {
  EXPECT_EQ((PageUnitsShape<BFloat16, 64>::kSharedBytes), 32768u);
  EXPECT_EQ((PageUnitsShape<BFloat16, 128>::kSharedBytes), 49152u);
  EXPECT_EQ((PageUnitsShape<BFloat16, 256>::kSharedBytes), 65536u);
  EXPECT_EQ((PageUnitsShape<Float32, 256>::kSharedBytes), 65536u);
  EXPECT_LE((PageSolveShape<256>::kSharedBytes), 48u * 1024);
}

// The place of keys changes no bit.
TEST(OnPages, CpusReadThem) {
  for (std::uint64_t seed = 1; seed < 200; ++seed) {
    const Problem problem(DrawPaged(seed, 70));
    const auto run = [&](bool in_pages) {
      return problem.RunBy(
          [&](const Context& context, const AttentionParams& params,
              const AttentionOutputs& outputs) {
            const InPages memory(params, DrawPageSize(seed), seed);
            if (in_pages) {
              AttentionOnPages(context, params, memory.pages(), outputs);
            } else {
              AttentionForward(context, params, outputs);
            }
          },
          AttentionBackward, false, kWantAll);
    };
    SCOPED_TRACE(problem.spec().Describe());
    const Results on_pages = run(true);
    EXPECT_EQ(Expectation(problem).Check(on_pages), "");
    // Vast scores of an array are another kernel's.
    const bool vast = problem.spec().values == ProblemSpec::Values::kVast;
    if (!vast) {
      EXPECT_EQ(FirstDifference(on_pages, run(false)), "");
    }
  }
}

TEST(OnPages, WhatIsWrongIsNamed) {
  const Problem problem({.batch = 2, .q_len = 1, .k_len = 40});
  const AttentionParams& params = problem.params();
  std::vector<float> out(2 * 16);
  const AttentionOutputs outputs = {.out = {out.data(), DType::kFloat32, {16, 16, 16, 1}}};
  InPages memory(params, 16, 2);
  const auto error = [&](const AttentionPages& pages, const Context& context = {},
                         const AttentionParams* other = nullptr) -> std::string {
    try {
      AttentionOnPages(context, other != nullptr ? *other : params, pages, outputs);
    } catch (const InvalidArgument& invalid) {
      return invalid.what();
    }
    return "";
  };
  EXPECT_EQ(error(memory.pages()), "");
  AttentionPages pages = memory.pages();
  pages.page_size = 0;
  EXPECT_EQ(error(pages), "pages.page_size: expected a size from 1 to 1048576, got 0");
  pages = memory.pages();
  pages.table.data = nullptr;
  EXPECT_EQ(error(pages), "pages.table: expected data of 6 integers, got null");
  pages = memory.pages();
  pages.k.dtype = DType::kFloat16;
  EXPECT_EQ(error(pages), "pages.k: expected the dtype of q, float32, got float16");
  const std::int64_t lengths[] = {40, 49};
  pages = memory.pages();
  pages.lengths = {lengths, true};
  EXPECT_EQ(error(pages),
            "pages.lengths[1]: expected 0 to 48, as many keys as a sequence's pages have room for, "
            "got 49");
  AttentionParams biased = params;
  biased.terms.bias = params.q;
  EXPECT_EQ(error(memory.pages(), {}, &biased), "terms.bias: expected none on pages, got a bias");
  const Context cuda = {.device = DeviceKind::kCuda};
  pages = memory.pages();
  pages.k.strides[3] = 2;
  EXPECT_EQ(error(pages, cuda).rfind("pages.k: expected rows that begin at multiples", 0), 0u);
  AttentionParams other = params;
  other.map = RowMap::kSoftpick;
  EXPECT_EQ(error(memory.pages(), cuda, &other),
            "context.device: expected kCpu, as the CUDA kernels do not serve this: softpick, got "
            "kCuda");
  memory.SetEntry(1, 2, 99);
  EXPECT_EQ(error(memory.pages()), "pages.table[1, 2]: expected one of 8 pages, got 99");
}

}  // namespace
}  // namespace tsallis::cuda
