// Tests a faulty kernel for scripts/mutate_cuda.py: runs drawn problems of one dtype, or of row
// maps (TSALLIS_MUTANT_ROWS), on the emulation. Prints the first thing that is wrong and ends with
// 1; 0 if nothing is.
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "attention/cuda/pages_run.h"
#include "attention/cuda/run.h"
#include "attention/cuda/testing/check_saved.h"
#include "attention/cuda/testing/check_weights.h"
#include "attention/cuda/testing/draw.h"
#include "attention/cuda/testing/guessed_work.h"
#include "attention/cuda/testing/on_device.h"
#include "attention/cuda/testing/paged.h"
#include "attention/testing/compare.h"
#include "attention/testing/problem.h"
#include "simplex/cuda/testing/drawn_rows.h"

namespace tsallis::cuda {
namespace {

#if defined(TSALLIS_MUTANT_ROWS)

// As emulated_test.cc does.
std::string CheckRows(const RowsProblem& problem, std::uint64_t seed) {
  try {
    simt::machine.policy = simt::Policy::Draw(seed);
    const RowsResults results = problem.Run<Emulation>(kEmulatedRows);
    std::string wrong = problem.Check(results);
    if (wrong.empty() && seed % 4 == 0) {
      simt::machine.policy = simt::machine.policy.InOrderOf(seed / 4);
      if (!results.SameBits(problem.Run<Emulation>(kEmulatedRows))) return "other bits";
    }
    return wrong;
  } catch (const std::exception& error) {
    return error.what();
  }
}

std::string CheckAll() {
  for (const std::int64_t length : {512, 513, 4096, 4097}) {
    if (const std::string wrong = CheckRows(RowsProblem(4, length), 4); !wrong.empty())
      return wrong;
  }
  for (const double alpha : {1.5, 2.0}) {
    const std::string wrong = CheckRows(RowsProblem::Flat(alpha, 20000), 1);
    if (!wrong.empty()) return wrong;
  }
  for (std::uint64_t seed = 1; seed <= 600; ++seed) {
    if (const std::string wrong = CheckRows(RowsProblem(seed, 0), seed); !wrong.empty())
      return wrong;
  }
  return {};
}

#else

using Type = TSALLIS_MUTANT_TYPE;
constexpr DType kDType = kIsFloat32<Type>     ? DType::kFloat32
                         : Type::kNarrowRange ? DType::kFloat16
                                              : DType::kBFloat16;

void Forward(const Context& context, const AttentionParams& params,
             const AttentionOutputs& outputs) {
  OnDevice<Emulation> device;
  const AttentionParams there = device.Params(params);
  RunForward<Type>(context, there, device.Outputs(params, outputs));
  device.CopyBack();
}
void Backward(const Context& context, const AttentionParams& params,
              const AttentionGradients& gradients) {
  OnDevice<Emulation> device;
  const AttentionParams there = device.Params(params);
  RunBackward<Type>(context, there, device.Gradients(params, gradients));
  device.CopyBack();
}

Results RunEmulated(const Problem& problem, const simt::Policy& policy, bool backward) {
  simt::machine.policy = policy;
  return problem.RunBy(Forward, Backward, backward, kWantAll);
}

// As emulated_test.cc does.
std::string CheckSavedLists(const Problem& problem) {
  const AttentionParams& params = problem.params();
  if (!Refusal(kServes, params, FeaturesOf(params), Pass::kForward).empty()) return {};
  try {
    return CheckSaved(problem, RunSavedBytes<Type>(params), Forward, Backward);
  } catch (const std::exception& error) {
    return error.what();
  }
}

// Weights, and rows that have less room than they need.
std::string CheckMatrix(const Problem& problem) {
  const auto count = [](const AttentionParams& params, std::int64_t* counts) {
    CountWeights<Emulation>(params, counts,
                            [](const auto&... there) { RunWeightCounts<Type>({}, there...); });
  };
  const auto put = [](const AttentionParams& params, const std::int64_t* row_offsets,
                      std::int64_t entries, std::int64_t* columns, float* values) {
    PutWeights<Emulation>(params, row_offsets, entries, columns, values,
                          [](const auto&... there) { RunWeights<Type>({}, there...); });
  };
  const AttentionParams& params = problem.params();
  const std::int64_t rows = ArrayBatch(params) * params.heads * params.q_len;
  const std::vector<std::int64_t> no_room(static_cast<std::size_t>(rows) + 1, 0);
  put(params, no_room.data(), 0, nullptr, nullptr);
  return CheckWeights(problem, count, put, Expectation::kRareMeanFloor);
}

std::string Check(const Problem& problem, std::uint64_t seed, bool backward = true) {
  const AttentionParams& params = problem.params();
  if (!Refusal(kServes, params, FeaturesOf(params), Pass::kForward).empty()) return {};
  try {
    const simt::Policy policy = simt::Policy::Draw(seed);
    simt::machine.counters = {};
    const Results results = RunEmulated(problem, policy, backward);
    if (simt::machine.counters.bank_conflicts > 0) return "bank conflicts";
    std::string wrong = Expectation(problem, Expectation::kRareMeanFloor).Check(results);
    if (wrong.empty() && seed % 4 == 0 && backward) wrong = CheckMatrix(problem);
    if (wrong.empty() && seed % 4 == 0) {
      const simt::Policy other = policy.InOrderOf(seed / 4);
      wrong = FirstDifference(results, RunEmulated(problem, other, backward));
      if (!wrong.empty()) wrong = "other bits under another order: " + wrong;
    }
    return wrong;
  } catch (const std::exception& error) {
    return error.what();
  }
}

Results RunPaged(const Problem& problem, std::int64_t page_size, std::uint64_t seed,
                 const simt::Policy& policy) {
  simt::machine.policy = policy;
  return problem.RunBy(
      [&](const Context& context, const AttentionParams& params, const AttentionOutputs& outputs) {
        const InPages memory(params, page_size, seed);
        OnDevice<Emulation> device;
        const AttentionPages pages = PagesOn(device, params, memory.pages());
        const AttentionParams there = CheckedOnPages(QueriesOn(device, params), pages);
        // Memory that another call has used.
        Context used = context;
        used.workspace_bytes = RunOnPagesWorkspaceBytes<Type>(there, pages);
        used.workspace = Emulation::Allocate(used.workspace_bytes);
        std::memset(used.workspace, 0x7E, used.workspace_bytes);
        RunOnPages<Type>(used, there, pages, device.Outputs(params, outputs));
        Emulation::Free(used.workspace);
        device.CopyBack();
      },
      AttentionBackward, false, kWantAll);
}

// Checks a problem on pages as pages_test.cc does.
std::string CheckPaged(const ProblemSpec& spec, std::uint64_t seed) {
  const Problem problem(spec);
  const AttentionParams& params = problem.params();
  if (!Refusal(kServesOnPages, params, FeaturesOf(params), Pass::kForward).empty()) return {};
  try {
    const simt::Policy policy = simt::Policy::Draw(seed);
    simt::machine.counters = {};
    const Results results = RunPaged(problem, DrawPageSize(seed), seed, policy);
    if (simt::machine.counters.bank_conflicts > 0) return "bank conflicts";
    std::string wrong = Expectation(problem, Expectation::kRareMeanFloor).Check(results);
    if (wrong.empty() && seed % 4 == 1) {
      const simt::Policy other = policy.InOrderOf(seed / 4);
      wrong = FirstDifference(results, RunPaged(problem, 7, seed + 1, other));
      if (!wrong.empty()) wrong = "other bits in other pages: " + wrong;
    }
    return wrong;
  } catch (const std::exception& error) {
    return error.what();
  }
}

std::string CheckAllPaged() {
  for (const ProblemSpec& spec : RowsThatKeepMany(kDType)) {
    if (const std::string wrong = CheckPaged(spec, 3); !wrong.empty()) return wrong;
  }
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    ProblemSpec spec = DrawPaged(seed, seed % 4 == 0 ? 420 : 70);
    spec.dtype = kDType;
    const std::string wrong = CheckPaged(spec, seed);
    if (!wrong.empty()) return wrong;
  }
  return {};
}

std::string Check(const ProblemSpec& spec, std::uint64_t seed, bool backward = true) {
  return Check(Problem(spec), seed, backward);
}

// Guesses that are too high, and the work of others.
std::string CheckGuesses() {
  const std::string wrong = CheckGuessedWork(
      kDType, [](const Problem& problem) { RunEmulated(problem, simt::Policy::Draw(5), false); });
  if (!wrong.empty()) return wrong;
  for (const double spread : {1.0, 0.05}) {
    Problem problem(MisledSpec(kDType, spread, false));
    MisleadPilots(&problem, 0.6);
    if (std::string said = Check(problem, 4, false); !said.empty()) return said;
  }
  return {};
}

std::string CheckAll() {
  if (const std::string wrong = CheckAllPaged(); !wrong.empty()) return wrong;
  // Runs the problems of emulated_test.cc: lists that fill and are solved, and rows that are dense.
  for (const double spread : {0.3, 1.0, 3.0}) {
    for (std::uint64_t seed = 4; seed < 6; ++seed) {
      const std::string wrong = Check({.seed = seed,
                                       .dtype = kDType,
                                       .q_len = 150,
                                       .k_len = 420,
                                       .head_dim = 32,
                                       .value_dim = 32,
                                       .spread = spread,
                                       .causal = true},
                                      seed);
      if (!wrong.empty()) return wrong;
    }
  }
  if (const std::string wrong = Check(ManyPlaces(kDType), 1); !wrong.empty()) return wrong;
  if (std::string wrong = Check(KeysOfManyRows(kDType, 21), 1); !wrong.empty()) return wrong;
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    if (std::string wrong = Check(RisingScores(kDType), seed); !wrong.empty()) return wrong;
  }
  if (std::string wrong = Check(NaNInLongLists(kDType), 1, false); !wrong.empty()) return wrong;
  for (std::uint64_t seed = 1; seed <= 38; ++seed) {
    ProblemSpec spec = DrawLong(seed);
    spec.dtype = kDType;
    if (std::string wrong = Check(spec, seed, false); !wrong.empty()) return wrong;
  }
  // Rows that a value of NaN in a later tile leaves alone.
  ProblemSpec nan = {
      .dtype = kDType, .q_len = 200, .k_len = 200, .map = RowMap::kSoftmax, .causal = true};
  nan.values = ProblemSpec::Values::kNaN;
  if (const std::string wrong = Check(nan, 1); !wrong.empty()) return wrong;
  // A tile of keys that some rows of a warp see the whole of, and others not.
  const std::string uneven = Check(
      {.dtype = kDType, .q_len = 64, .k_len = 91, .map = RowMap::kSoftmax, .causal = true}, 1);
  if (!uneven.empty()) return uneven;
  Problem few({.dtype = kDType, .q_len = 256, .k_len = 512});
  std::vector<std::uint8_t> blocks;
  LeaveFewBlocks(&few, &blocks);
  if (const std::string wrong = Check(few, 1); !wrong.empty()) return wrong;
  for (std::uint64_t seed = 1; seed <= 160; ++seed) {
    ProblemSpec spec = DrawServed(seed, seed % 8 == 0 ? 150 : 24);
    spec.dtype = kDType;
    const std::string wrong = Check(spec, seed);
    if (!wrong.empty()) return wrong;
    if (seed % 4 != 1) continue;
    if (std::string said = CheckSavedLists(Problem(spec)); !said.empty()) return said;
  }
  // Lists of more than 32 entries, and of as many as the smallest ones hold.
  const ProblemSpec longer = {
      .dtype = kDType, .q_len = 40, .k_len = 420, .head_dim = 32, .value_dim = 32, .spread = 0.7};
  if (std::string wrong = CheckSavedLists(Problem(longer)); !wrong.empty()) return wrong;
  Problem full(FullListsSpec(kDType));
  FillLists(&full);
  simt::machine.policy = {};
  if (std::string wrong = CheckSavedLists(full); !wrong.empty()) return wrong;
  try {
    return CheckGuesses();
  } catch (const std::exception& error) {
    return error.what();
  }
}

#endif

}  // namespace
}  // namespace tsallis::cuda

int main() {
  const std::string wrong = tsallis::cuda::CheckAll();
  if (wrong.empty()) return 0;
  std::printf("%s\n", wrong.c_str());
  return 1;
}
