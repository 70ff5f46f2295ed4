// T3, local count (Vasylenko et al. 2025, appendix G.1): the source consists of runs of equal
// tokens; for each token, how many of its run stood before it. Runs have 1 to max_run tokens,
// uniform, as the paper says (the code published with it begins at 2), and the last one is cut off
// by the length. Neighbouring runs differ in their token, else two of them would be one run with
// counts beyond max_run. Counts share the numbering of the data tokens, of which there are
// max(symbols, max_run). `length` tokens in the source.
#include <algorithm>

#include "lab/tasks/sequence_tasks.h"

namespace tsallis::lab {

TaskPointer MakeLocalCount(TableReader& table) {
  std::int64_t symbols = 16;
  std::int64_t max_run = 48;
  table.Optional("symbols", symbols, SymbolCount());
  table.Optional("max_run", max_run,
                 Within<std::int64_t>(1, 1 << 16, "a length of runs from 1 to 65536"));
  const auto fill = [=](RandomStream& random, std::int64_t length) {
    Text text;
    std::int64_t token = random.Below(symbols);
    for (std::int64_t remaining = length; remaining > 0;) {
      const std::int64_t run = std::min(remaining, 1 + random.Below(max_run));
      for (std::int64_t i = 0; i < run; ++i) {
        text.source.push_back(token);
        text.target.push_back(i);
      }
      remaining -= run;
      token = (token + 1 + random.Below(symbols - 1)) % symbols;  // any other
    }
    return text;
  };
  return std::make_unique<GeneratedTask>(Generator{
      .framing = Framing::kLabelled, .data_tokens = std::max(symbols, max_run), .fill = fill});
}

}  // namespace tsallis::lab
