// Whether lists that the forward pass saves change no bit of the gradients.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "attention/testing/compare.h"
#include "attention/testing/problem.h"
#include "tsallis/attention.h"

namespace tsallis::cuda {

// Empty, or what is wrong with lists that are saved of all rows, of a third of them, and in memory
// that no forward pass has written. all: bytes for all rows. forward, backward: as AttentionForward
// and AttentionBackward, on arrays of the host.
template <class Forward, class Backward>
std::string CheckSaved(const Problem& problem, std::size_t all, const Forward& forward,
                       const Backward& backward) {
  if (all == 0) return {};
  const Results plain = problem.RunBy(forward, backward, true, kWantAll);
  const auto check = [&](std::size_t bytes, bool saves) {
    // What other calls have left looks like counts of entries.
    const auto fill = [&](const Context& context, const AttentionParams& params,
                          AttentionOutputs outputs) {
      auto* words = static_cast<std::uint32_t*>(outputs.saved);
      for (std::size_t i = 0; i < bytes / 4; ++i) words[i] = 3;
      if (!saves) outputs.saved_bytes = 0;
      forward(context, params, outputs);
    };
    return FirstDifference(plain, problem.RunBy(fill, backward, true, kWantAll, bytes));
  };
  if (const std::string wrong = check(all, true); !wrong.empty()) return "all saved: " + wrong;
  if (const std::string wrong = check(all / 3, true); !wrong.empty()) {
    return "a third saved: " + wrong;
  }
  if (const std::string wrong = check(all, false); !wrong.empty()) return "none saved: " + wrong;
  return {};
}

}  // namespace tsallis::cuda
