// T9, delayed copy (Vasylenko et al. 2025, appendix C.3): a prefix of random tokens, a
// separator, then the prefix again, `length` tokens in all with bos and separator: of the task the
// paper says no more. With delay > 0, that many blanks (token `symbols`) stand between prefix and
// separator and the prefix is as much shorter. For the study of gradients, so every sequence of a
// length has the same shape: the prefix has floor((length - delay) / 2) - 1 tokens.
#include "lab/tasks/sequence_tasks.h"

namespace tsallis::lab {
namespace {

class DelayedCopy : public GeneratedTask {
 public:
  DelayedCopy(std::int64_t symbols, std::int64_t delay)
      : GeneratedTask(Framing::kSeparated, symbols + 1, {.min = delay + 4}),
        symbols_(symbols),
        delay_(delay) {}

 protected:
  Text Fill(RandomStream& random, std::int64_t length) const override {
    Text text{UniformTokens(random, (length - delay_) / 2 - 1, symbols_), {}};
    text.target = text.source;
    text.source.insert(text.source.end(), static_cast<std::size_t>(delay_), symbols_);
    return text;
  }

  std::string DataWord(std::int64_t token) const override {
    return token == symbols_ ? "_" : std::to_string(token);
  }

 private:
  std::int64_t symbols_, delay_;
};

}  // namespace

TaskPointer MakeDelayedCopy(TableReader& table) {
  std::int64_t symbols = 32;
  std::int64_t delay = 0;
  table.Optional("symbols", symbols, SymbolCount());
  table.Optional("delay", delay,
                 Within<std::int64_t>(0, GeneratedTask::kLongest - 4, "a number of blanks >= 0"));
  return std::make_unique<DelayedCopy>(symbols, delay);
}

}  // namespace tsallis::lab
