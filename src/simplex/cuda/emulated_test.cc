// The kernels of the row maps on the emulation: drawn calls against the definitions in double, the
// same bits under every order of threads.
//
//   TSALLIS_CASES, TSALLIS_SEED   how many calls (default 300), and the first one
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "core/testing/environment.h"
#include "simplex/cuda/testing/drawn_rows.h"

namespace tsallis::cuda {
namespace {

RowsResults RunEmulated(const RowsProblem& problem, const simt::Policy& policy) {
  simt::machine.policy = policy;
  return problem.Run<Emulation>(kEmulatedRows);
}

TEST(RowsEmulated, DrawnCallsMatchTheDefinitions) {
  const std::uint64_t first = FromEnvironment("TSALLIS_SEED", 1);
  const std::uint64_t cases = FromEnvironment("TSALLIS_CASES", 300);
  int failures = 0;
  for (std::uint64_t seed = first; seed < first + cases && failures < 10; ++seed) {
    const RowsProblem problem(seed, 0);
    std::string wrong;
    try {
      const simt::Policy policy = simt::Policy::Draw(seed);
      const RowsResults results = RunEmulated(problem, policy);
      wrong = problem.Check(results);
      if (wrong.empty() && seed % 4 == 0 &&
          !results.SameBits(RunEmulated(problem, policy.InOrderOf(seed / 4)))) {
        wrong = "other bits under another order of threads";
      }
    } catch (const simt::Fault& fault) {
      wrong = fault.what();
    }
    if (wrong.empty()) continue;
    ++failures;
    ADD_FAILURE() << wrong << "\n  " << problem.Describe();
  }
}

// A row alone has the bits that it has beside others, in each way of going through rows.
TEST(RowsEmulated, EveryLengthHasItsWay) {
  for (const std::int64_t length : {512, 513, 4096, 4097}) {
    for (const std::uint64_t seed : {2, 4}) {
      const RowsProblem problem(seed, length);
      EXPECT_EQ(problem.Check(RunEmulated(problem, simt::Policy::Draw(seed))), "")
          << problem.Describe();
    }
  }
}

// The threshold has more digits than float32.
TEST(RowsEmulated, ManySmallWeightsSumTo1) {
  for (const double alpha : {1.0, 1.25, 1.5, 2.0}) {
    const RowsProblem problem = RowsProblem::Flat(alpha, 20000);
    EXPECT_EQ(problem.Check(RunEmulated(problem, simt::Policy::Draw(1))), "") << problem.Describe();
  }
}

TEST(RowsEmulated, RowsOfNoEntries) {
  std::vector<double> tau(3, 7.0), entropy(3, 7.0);
  std::vector<std::int64_t> support(3, 7);
  for (const RowMap map : AllRowMaps()) {
    RowMapParams params;
    params.map = map;
    params.top_k.k = 1;
    Copies<Emulation> device;
    const RowStats stats = {device.Numbers(tau.data(), 3, true),
                            device.Numbers(support.data(), 3, true),
                            device.Numbers(entropy.data(), 3, true)};
    const MutableRows none = {nullptr, DType::kFloat32, 3, 0, 0, 1};
    kEmulatedRows.forward(params, none, none, stats);
    kEmulatedRows.backward(params, none, none, none, none, nullptr);
    device.CopyBack();
    EXPECT_EQ(tau[2], -HUGE_VAL) << Name(map);
    EXPECT_EQ(support[2], 0);
    EXPECT_EQ(entropy[2], 0.0);
  }
}

// What the host cannot check without waiting.
TEST(RowsEmulated, NumbersOfTheDeviceOutOfRangeMakeNaN) {
  std::vector<float> scores = {1.0f, 2.0f, 1.0f, 2.0f, 1.0f, 2.0f}, p(6), gradient(6);
  std::vector<double> alphas = {1.5, 0.0, std::nan("")}, losses(3);
  std::vector<std::int64_t> targets = {0, 2, -1};
  Copies<Emulation> device;
  RowMapParams params;
  const ConstRows s = {device.Numbers(scores.data(), 6, false), DType::kFloat32, 3, 2, 2, 1};
  const MutableRows d = {device.Numbers(gradient.data(), 6, true), DType::kFloat32, 3, 2, 2, 1};
  kEmulatedRows.loss(params, s, device.Numbers(targets.data(), 3, false), -100,
                     device.Numbers(losses.data(), 3, true), d);
  params.alpha_per_row = device.Numbers(alphas.data(), 3, false);
  const MutableRows out = {device.Numbers(p.data(), 6, true), DType::kFloat32, 3, 2, 2, 1};
  kEmulatedRows.forward(params, s, out, {});
  device.CopyBack();
  for (int j = 0; j < 6; ++j) {
    EXPECT_EQ(std::isnan(p[j]), j >= 2);
    EXPECT_EQ(std::isnan(gradient[j]), j >= 2);
  }
  EXPECT_GT(losses[0], 0.0);
  EXPECT_TRUE(std::isnan(losses[1]) && std::isnan(losses[2]));
}

}  // namespace
}  // namespace tsallis::cuda
