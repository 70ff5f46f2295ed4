// Guesses of thresholds on the emulation: what they spare, and that no result depends on them.
#include <gtest/gtest.h>

#include <cstdint>

#include "attention/cuda/testing/draw.h"
#include "attention/cuda/testing/drawn_test.h"
#include "attention/cuda/testing/emulation.h"
#include "attention/cuda/testing/guessed_work.h"
#include "attention/testing/compare.h"
#include "attention/testing/problem.h"

namespace tsallis::cuda {
namespace {

Results Forward(const Problem& problem, const simt::Policy& policy) {
  simt::machine.policy = policy;
  return problem.RunBy(EmulatedForward, EmulatedBackward, false, kWantAll);
}

std::string Check(const Problem& problem, std::uint64_t seed) {
  const simt::Policy policy = simt::Policy::Draw(seed);
  Results results;
  std::string wrong = CheckRun(
      problem, Refusal(kServes, problem.params(), FeaturesOf(problem.params()), Pass::kForward),
      [&] { return results = Forward(problem, policy); });
  if (!wrong.empty()) return wrong;
  return FirstDifference(results, Forward(problem, policy.InOrderOf(seed + 1)));
}

TEST(CudaGuess, DrawnProblemsMatchTheReference) {
  for (std::uint64_t seed = 1; seed <= 7; ++seed) {
    const Problem problem(DrawGuessed(seed));
    EXPECT_EQ(Check(problem, seed), "") << problem.spec().Describe();
  }
}

// Blocks have 64 rows.
TEST(CudaGuess, TheLargestHeadSize) {
  const Problem problem({.dtype = DType::kBFloat16,
                         .kv_heads = 8,
                         .q_len = 129,
                         .k_len = 2048,
                         .head_dim = 136,
                         .value_dim = 8});
  EXPECT_EQ(Check(problem, 2), "");
}

// Guesses above thresholds, by a little or above all scores, are found out. Of flat rows, no list
// holds what lies above a guess.
TEST(CudaGuess, GuessesThatAreTooHighAreSweptAgain) {
  struct Row {
    double spread, strength;
    bool sink;
  };
  for (const auto& [spread, strength, sink] :
       {Row{0.05, 0.6, false}, Row{1.0, 0.55, false}, Row{1.0, 2.0, true}}) {
    Problem problem(MisledSpec(DType::kBFloat16, spread, sink));
    MisleadPilots(&problem, strength);
    EXPECT_EQ(Check(problem, 3), "") << spread << " " << strength;
  }
}

TEST(CudaGuess, GuessesSpareWork) {
  const auto run = [](const Problem& problem) { Forward(problem, {.much_shared = true}); };
  EXPECT_EQ(CheckGuessedWork(DType::kBFloat16, run), "");
}

}  // namespace
}  // namespace tsallis::cuda
