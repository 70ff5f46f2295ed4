// Tasks that give the source in another order (Vasylenko et al. 2025, appendix G.1): T5, copy; T6,
// reverse; T7, sort in ascending order. `length` uniform tokens in the source and in the target; 32
// symbols, so that long sequences repeat them.
#include <algorithm>

#include "lab/tasks/sequence_tasks.h"

namespace tsallis::lab {
namespace {

using Tokens = std::vector<std::int64_t>;

TaskPointer Make(TableReader& table, void (*arrange)(Tokens& tokens)) {
  std::int64_t symbols = 32;
  table.Optional("symbols", symbols, SymbolCount());
  const auto fill = [=](RandomStream& random, std::int64_t length) {
    const Tokens source = UniformTokens(random, length, symbols);
    Text text{source, source};
    arrange(text.target);
    return text;
  };
  return std::make_unique<GeneratedTask>(Generator{.data_tokens = symbols, .fill = fill});
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
