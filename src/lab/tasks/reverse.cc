// T6, reverse: uniform tokens, backwards. Vasylenko et al. 2025, appendix G.1. `length` tokens in
// the source and in the target.
#include <algorithm>

#include "lab/tasks/sequence_tasks.h"

namespace tsallis::lab {
namespace {

class Reverse : public GeneratedTask {
 public:
  explicit Reverse(std::int64_t symbols)
      : GeneratedTask(Framing::kSeparated, symbols, {}), symbols_(symbols) {}

 protected:
  Text Fill(RandomStream& random, std::int64_t length) const override {
    Text text{UniformTokens(random, length, symbols_), {}};
    text.target.assign(text.source.rbegin(), text.source.rend());
    return text;
  }

 private:
  std::int64_t symbols_;
};

}  // namespace

TaskPointer MakeReverse(TableReader& table) {
  std::int64_t symbols = 32;
  table.Optional("symbols", symbols, SymbolCount());
  return std::make_unique<Reverse>(symbols);
}

}  // namespace tsallis::lab
