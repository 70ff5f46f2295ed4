// Shared by tests of the emulated kernels: one problem, or many drawn ones, against the reference
// in double.
//
//   TSALLIS_CASES   how many problems (default 100)
//   TSALLIS_SEED    the first one's (default 1)
//   TSALLIS_SHOW    print every case before it is run
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <string>

#include "attention/testing/compare.h"
#include "attention/testing/problem.h"
#include "core/cuda/testing/simt.h"
#include "core/testing/environment.h"

namespace tsallis::cuda {

// Empty, or what is wrong: what `refusal` says, the results of run(), or what it meets.
template <class Run>
std::string CheckRun(const Problem& problem, const std::string& refusal, const Run& run) {
  if (!refusal.empty()) return "refused: " + refusal;
  try {
    return Expectation(problem).Check(run());
  } catch (const simt::Fault& fault) {
    return fault.what();
  }
}

// spec_of(seed), refusal_of(problem), run(problem, seed, policy). Problems that are refused are
// left out, at most half. Of every fourth problem, from seed `again` on, the results of rerun(...),
// under another order of threads and times of copies, have the same bits.
template <class SpecOf, class RefusalOf, class Run, class Rerun>
void ExpectDrawnProblemsMatch(const SpecOf& spec_of, const RefusalOf& refusal_of, const Run& run,
                              std::uint64_t again, const Rerun& rerun) {
  const std::uint64_t first = FromEnvironment("TSALLIS_SEED", 1);
  constexpr std::uint64_t kCases = 100;
  const std::uint64_t cases = FromEnvironment("TSALLIS_CASES", kCases);
  const double floor = cases > kCases ? Expectation::kRareMeanFloor : Expectation::kMeanFloor;
  int failures = 0;
  std::uint64_t served = 0;
  for (std::uint64_t seed = first; seed < first + cases && failures < 10; ++seed) {
    const Problem problem(spec_of(seed));
    const std::string description =
        "TSALLIS_SEED=" + std::to_string(seed) + " TSALLIS_CASES=1  # " + problem.spec().Describe();
    if (std::getenv("TSALLIS_SHOW") != nullptr) std::cout << description << std::endl;
    if (!refusal_of(problem).empty()) continue;
    ++served;
    std::string wrong;
    try {
      const simt::Policy policy = simt::Policy::Draw(seed);
      const Results results = run(problem, seed, policy);
      wrong = Expectation(problem, floor).Check(results);
      if (wrong.empty() && seed % 4 == again) {
        wrong = FirstDifference(results, rerun(problem, seed, policy.InOrderOf(seed / 4)));
      }
    } catch (const simt::Fault& fault) {
      wrong = fault.what();
    }
    if (wrong.empty()) continue;
    ++failures;
    ADD_FAILURE() << wrong << "\n  " << description;
  }
  EXPECT_GT(served, cases / 2);
}

}  // namespace tsallis::cuda
