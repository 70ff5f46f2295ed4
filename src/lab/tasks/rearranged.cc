// Tasks that give the source in another order (Vasylenko et al. 2025, appendix G.1): T5, copy; T6,
// reverse; T7, sort in ascending order. `length` uniform tokens in the source and in the target; 32
// symbols, so that long sequences repeat them.
#include <algorithm>

#include "lab/tasks/sequence_tasks.h"

namespace tsallis::lab {
namespace {

using Tokens = std::vector<std::int64_t>;
using Arrange = void (*)(Tokens& tokens);

class Rearranged : public GeneratedTask {
 public:
  Rearranged(std::int64_t symbols, Arrange arrange)
      : GeneratedTask(Framing::kSeparated, symbols, {}), symbols_(symbols), arrange_(arrange) {}

 protected:
  Text Fill(RandomStream& random, std::int64_t length) const override {
    const Tokens source = UniformTokens(random, length, symbols_);
    Text text{source, source};
    arrange_(text.target);
    return text;
  }

 private:
  std::int64_t symbols_;
  Arrange arrange_;
};

TaskPointer Make(TableReader& table, Arrange arrange) {
  std::int64_t symbols = 32;
  table.Optional("symbols", symbols, SymbolCount());
  return std::make_unique<Rearranged>(symbols, arrange);
}

}  // namespace

TaskPointer MakeCopy(TableReader& table) {
  return Make(table, [](Tokens&) {});
}

TaskPointer MakeReverse(TableReader& table) {
  return Make(table, [](Tokens& tokens) { std::reverse(tokens.begin(), tokens.end()); });
}

TaskPointer MakeSort(TableReader& table) {
  return Make(table, [](Tokens& tokens) { std::sort(tokens.begin(), tokens.end()); });
}

}  // namespace tsallis::lab
