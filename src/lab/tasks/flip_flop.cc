// T4, flip-flop (Liu et al. 2023; Vasylenko et al. 2025, appendix G.1): pairs of an instruction
// and a bit. The first writes, the last reads, and one between writes with probability
// write_probability (0.1: sparse; 0.8: dense) or else is to be ignored. The source ends with the
// read; the target is the bit of the last write. floor(length / 2) pairs, so the source has
// 2 floor(length / 2) - 1 tokens.
#include "lab/tasks/sequence_tasks.h"

namespace tsallis::lab {

TaskPointer MakeFlipFlop(TableReader& table) {
  double write_probability = 0.1;
  table.Optional("write_probability", write_probability, Within(0.0, 1.0, "a probability"));
  enum Token : std::int64_t { kWrite = 2, kIgnore = 3, kRead = 4 };  // 0 and 1 are the bits
  const auto fill = [=](RandomStream& random, std::int64_t length) {
    Text text;
    std::int64_t stored = 0;
    const std::int64_t pairs = length / 2;
    for (std::int64_t i = 0; i + 1 < pairs; ++i) {
      const bool writes = i == 0 || random.Uniform() < write_probability;
      const std::int64_t bit = random.Below(2);
      if (writes) stored = bit;
      text.source.push_back(writes ? kWrite : kIgnore);
      text.source.push_back(bit);
    }
    text.source.push_back(kRead);
    text.target.push_back(stored);
    return text;
  };
  return std::make_unique<GeneratedTask>(
      Generator{.framing = Framing::kUnseparated,
                .data_tokens = 5,
                .shortest = 4,
                .fill = fill,
                .word = [](std::int64_t token) { return std::string(1, "01wir"[token]); }});
}

}  // namespace tsallis::lab
