// The work of rows that begin from guesses, which no result shows.
#pragma once

#include <string>

#include "attention/cuda/testing/draw.h"
#include "attention/testing/problem.h"
#include "core/cuda/device.h"

namespace tsallis::cuda {

// Empty, or what is wrong with the work of rows that begin from guesses: of keys with a mean, and
// of rows with a sink above all scores. run(problem): on the emulation.
template <class Run>
std::string CheckGuessedWork(DType dtype, const Run& run) {
  ProblemSpec spec = {.dtype = dtype,
                      .kv_heads = 2,
                      .q_len = 2048,
                      .k_len = 2048,
                      .head_dim = 32,
                      .value_dim = 8,
                      .causal = true};
  const auto rows = static_cast<double>(2 * spec.q_len);
  for (const bool sink : {false, true}) {
    spec.sink = sink;
    Problem problem(spec);
    Replace(&problem, &AttentionParams::k,
            [](std::int64_t, std::int64_t, std::int64_t x, double value) {
              return value + static_cast<double>(x % 3);
            });
    for (double& value : problem.Wide("sink")) value = 60.0;
    simt::machine.counters = {};
    run(problem);
    const simt::Counters& c = simt::machine.counters;
    // Without guesses some 110.
    const double listed = static_cast<double>(c.work[static_cast<int>(Work::kListed)]) / rows;
    const double products = static_cast<double>(c.products) / rows;
    if (listed > 55.0) return "entries listed a row: " + std::to_string(listed);
    if (products > 20.0) return "products a row: " + std::to_string(products);
  }
  return {};
}

}  // namespace tsallis::cuda
