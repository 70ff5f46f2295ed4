// Every kernel on problems drawn from the whole space of attention.h: outputs, statistics and
// gradients against the reference in double, the same bits for every number of threads, amount of
// saved memory and place of keys, nothing written outside of the results.
//
//   TSALLIS_CASES   how many, each on every instruction set (default: 2 000 on one instruction set
//                   each, by turns)
//   TSALLIS_SEED    the first one's (default 1)
//   TSALLIS_MOST    greatest q_len and k_len (default 24, every 32nd case 130)
//   TSALLIS_SHOW    print every case before it is run, to find one that does not end
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <iostream>
#include <map>
#include <set>
#include <string>

#include "attention/testing/compare.h"
#include "attention/testing/paged_rows.h"
#include "attention/testing/problem.h"
#include "core/every_target.h"
#include "core/testing/environment.h"

namespace tsallis {
namespace {

constexpr std::uint64_t kCases = 2000;

struct RandomCase {
  explicit RandomCase(std::uint64_t case_seed)
      : seed(case_seed), most(FromEnvironment("TSALLIS_MOST", case_seed % 32 == 0 ? 130 : 24)) {
    spec = DrawSpec(seed, static_cast<std::int64_t>(most), /*broken=*/true);
    // The reference takes a microsecond for a score of 100 dimensions.
    if (spec.q_len * spec.k_len > 2000) {
      spec.batch = std::min<std::int64_t>(spec.batch, 1);
      spec.kv_heads = std::min<std::int64_t>(spec.kv_heads, 2);
      spec.group = std::min<std::int64_t>(spec.group, 2);
      spec.head_dim = std::min<std::int64_t>(spec.head_dim, 40);
      spec.value_dim = std::min<std::int64_t>(spec.value_dim, 40);
    }
  }
  // The command that repeats it, and what it is.
  std::string Describe() const {
    return "TSALLIS_SEED=" + std::to_string(seed) +
           " TSALLIS_CASES=1 TSALLIS_MOST=" + std::to_string(most) +
           " tsallis_tests --gtest_filter='RandomAttention.*'  # " + spec.Describe();
  }
  std::uint64_t seed, most;
  ProblemSpec spec;
};

// The forward pass on keys in pages must give the same bits.
std::string InPages(const AttentionKernel& kernel, const Problem& problem) {
  const std::uint64_t seed = problem.spec().seed;
  const PagedRows paged(problem.params(), static_cast<int>((seed / 4 + seed / 32) % 8), seed);
  const Results on_pages = problem.RunBy(
      [&](const Context& context, const AttentionParams& params, const AttentionOutputs& outputs) {
        RunForward(TestedFrom(kernel), context, paged.Call(params), outputs);
      },
      AttentionBackward, /*wants_backward=*/false, kWantAll);
  return FirstDifference(problem.Run(&kernel, 1, 0, /*backward=*/false), on_pages);
}

// Describes what is wrong with `kernel` on a problem; empty: nothing.
std::string Try(const AttentionKernel& kernel, const Problem& problem,
                const Expectation& expectation, ErrorShares& shares) {
  const AttentionParams& params = problem.params();
  const Results plain = problem.Run(&kernel);
  std::string wrong = expectation.Check(plain, &shares);
  if (!wrong.empty()) return wrong;
  // The reference is slow, and has but one way to go.
  const std::uint64_t seed = problem.spec().seed;
  if (&kernel == &kReferenceAttention && seed % 8 > 1) return {};
  // A kernel without use for lists must leave the memory alone.
  const std::size_t plenty = kernel.saved_bytes != nullptr ? kernel.saved_bytes(params) : 4096;
  wrong = FirstDifference(plain, problem.Run(&kernel, 3, plenty));
  if (!wrong.empty()) return "3 threads with saved lists: " + wrong;
  if (seed % 4 == 2 || seed % 32 == 0) {  // long ones too
    wrong = InPages(kernel, problem);
    if (!wrong.empty()) return "keys in pages: " + wrong;
  }
  if (seed % 4 == 0) {
    wrong = FirstDifference(plain, problem.Run(&kernel, 1, plenty / 3));
    if (!wrong.empty()) return "a third of the lists saved: " + wrong;
  }
  if (seed % 4 == 1) {
    const auto wanted = static_cast<unsigned>(seed / 4 % kWantAll);
    // A kernel may take another way then, with other bits.
    wrong = expectation.Check(problem.Run(&kernel, 2, plenty, true, wanted));
    if (!wrong.empty()) return "only results " + std::to_string(wanted) + " wanted: " + wrong;
  }
  return {};
}

TEST(RandomAttention, KernelsMatchTheReference) {
  const std::uint64_t first = FromEnvironment("TSALLIS_SEED", 1);
  const std::uint64_t cases = FromEnvironment("TSALLIS_CASES", kCases);
  const bool everywhere = std::getenv("TSALLIS_CASES") != nullptr;
  std::map<std::string, std::uint64_t> served;
  std::map<std::string, ErrorShares> shares;
  double vacuous = 0.0;
  int failures = 0;
  for (std::uint64_t seed = first; seed < first + cases && failures < 20; ++seed) {
    const RandomCase random(seed);
    if (std::getenv("TSALLIS_SHOW") != nullptr) std::cout << random.Describe() << std::endl;
    const Problem problem(random.spec);
    const Expectation expectation(
        problem, cases > kCases ? Expectation::kRareMeanFloor : Expectation::kMeanFloor);
    if (random.spec.values != ProblemSpec::Values::kVast) vacuous += expectation.Vacuous();
    std::set<std::string> done;  // a kernel need not have a version of its own on every target
    std::uint64_t target = 0;
    ForEachTarget([&](const std::string&) {
      if (!everywhere && target++ != seed % hwy::SupportedAndGeneratedTargets().size()) return;
      for (const AttentionKernel* kernel : AllAttentionKernels()) {
        const std::string set = kernel->instruction_set();
        const std::string name = std::string(kernel->name) + " on " + set;
        if (set.empty() || !done.insert(name).second) continue;
        served[name] += 0;
        if (!RefusalOf(*kernel, problem).empty()) continue;
        ++served[name];
        const std::string wrong = Try(*kernel, problem, expectation, shares[name]);
        if (wrong.empty()) continue;
        ++failures;
        ADD_FAILURE() << name << ": " << wrong << "\n  " << random.Describe();
      }
    });
  }
  if (cases < kCases) return;
  for (const auto& [name, count] : served) {
    EXPECT_GT(count, 0u) << name << " served none of the " << cases << " cases";
  }
  for (const auto& [name, share] : shares) {
    for (const auto& [array, sums] : share.arrays) {
      if (sums.count < 1000) continue;
      EXPECT_LE(sums.kernel, 2.0 * sums.plain)
          << name << ": mean error of " << array << " over its bound, against plain float32";
    }
  }
  // Entries within rounding of the threshold are rare, so are results that they leave open.
  EXPECT_LT(vacuous / static_cast<double>(cases), 0.01);
}

}  // namespace
}  // namespace tsallis
