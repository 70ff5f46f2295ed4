// T3, local count (Vasylenko et al. 2025, appendix G.1): the source consists of runs of equal
// tokens; for each token, how many of its run stood before it. Runs have 1 to max_run tokens,
// uniform, as the paper says (the code published with it begins at 2), and the last one is cut off
// by the length. Neighbouring runs differ in their token, else two of them would be one run with
// counts beyond max_run. Counts share the numbering of the data tokens, of which there are
// max(symbols, max_run). `length` tokens in the source.
#include <algorithm>

#include "lab/tasks/sequence_tasks.h"

namespace tsallis::lab {
namespace {

class LocalCount : public GeneratedTask {
 public:
  LocalCount(std::int64_t symbols, std::int64_t max_run)
      : GeneratedTask(Framing::kLabelled, std::max(symbols, max_run), {}),
        symbols_(symbols),
        max_run_(max_run) {}

 protected:
  Text Fill(RandomStream& random, std::int64_t length) const override {
    Text text;
    std::int64_t token = random.Below(symbols_);
    for (std::int64_t remaining = length; remaining > 0;) {
      const std::int64_t run = std::min(remaining, 1 + random.Below(max_run_));
      for (std::int64_t i = 0; i < run; ++i) {
        text.source.push_back(token);
        text.target.push_back(i);
      }
      remaining -= run;
      token = (token + 1 + random.Below(symbols_ - 1)) % symbols_;  // any other
    }
    return text;
  }

 private:
  std::int64_t symbols_, max_run_;
};

}  // namespace

TaskPointer MakeLocalCount(TableReader& table) {
  std::int64_t symbols = 16;
  std::int64_t max_run = 48;
  table.Optional("symbols", symbols, SymbolCount());
  table.Optional("max_run", max_run,
                 Within<std::int64_t>(1, 1 << 16, "a length of runs from 1 to 65536"));
  return std::make_unique<LocalCount>(symbols, max_run);
}

}  // namespace tsallis::lab
