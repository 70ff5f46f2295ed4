// T2, 2Back (Vasylenko et al. 2025, appendix G.1): name the token `back` places before each
// token. Token 0 stands for "nothing was there": the source begins with one, and it is the answer
// at the first `back` places. Source: 0, then `length` tokens uniform in 1 ... symbols - 1.
#include "lab/tasks/sequence_tasks.h"

namespace tsallis::lab {

TaskPointer MakeNBack(TableReader& table) {
  std::int64_t symbols = 16;
  std::int64_t back = 2;
  table.Optional("symbols", symbols, SymbolCount());
  table.Optional("back", back, Positive<std::int64_t>());
  const auto fill = [=](RandomStream& random, std::int64_t length) {
    Text text;
    text.source.push_back(0);
    for (std::int64_t i = 0; i < length; ++i) text.source.push_back(1 + random.Below(symbols - 1));
    for (std::int64_t i = 0; i <= length; ++i) {
      text.target.push_back(i < back ? 0 : text.source[i - back]);
    }
    return text;
  };
  return std::make_unique<GeneratedTask>(
      Generator{.framing = Framing::kLabelled, .data_tokens = symbols, .fill = fill});
}

}  // namespace tsallis::lab
