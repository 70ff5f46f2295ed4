// T9, delayed copy (Vasylenko et al. 2025, appendix C.3): a prefix of random tokens, a
// separator, then the prefix again, `length` tokens in all with bos and separator: of the task the
// paper says no more. With delay > 0, that many blanks (token `symbols`) stand between prefix and
// separator and the prefix is as much shorter. For the study of gradients, so every sequence of a
// length has the same shape: the prefix has floor((length - delay) / 2) - 1 tokens.
#include "lab/tasks/sequence_tasks.h"

namespace tsallis::lab {

TaskPointer MakeDelayedCopy(TableReader& table) {
  std::int64_t symbols = 32;
  std::int64_t delay = 0;
  table.Optional("symbols", symbols, SymbolCount());
  table.Optional("delay", delay,
                 Within<std::int64_t>(0, Generator::kLongest - 4, "a number of blanks >= 0"));
  const auto fill = [=](RandomStream& random, std::int64_t length) {
    Text text{UniformTokens(random, (length - delay) / 2 - 1, symbols), {}};
    text.target = text.source;
    text.source.insert(text.source.end(), delay, symbols);
    return text;
  };
  const auto word = [=](std::int64_t token) {
    return token == symbols ? "_" : std::to_string(token);
  };
  return std::make_unique<GeneratedTask>(
      Generator{.data_tokens = symbols + 1, .shortest = delay + 4, .fill = fill, .word = word});
}

}  // namespace tsallis::lab
