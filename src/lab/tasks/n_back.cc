// T2, 2Back (Vasylenko et al. 2025, appendix G.1): name the token `back` places before each
// token. Token 0 stands for "nothing was there": the source begins with one, and it is the answer
// at the first `back` places. Source: 0, then `length` tokens uniform in 1 ... symbols - 1.
#include "lab/tasks/sequence_tasks.h"

namespace tsallis::lab {
namespace {

class NBack : public GeneratedTask {
 public:
  NBack(std::int64_t symbols, std::int64_t back)
      : GeneratedTask(Framing::kLabelled, symbols, {}), symbols_(symbols), back_(back) {}

 protected:
  Text Fill(RandomStream& random, std::int64_t length) const override {
    Text text;
    text.source.push_back(0);
    for (std::int64_t i = 0; i < length; ++i) text.source.push_back(1 + random.Below(symbols_ - 1));
    for (std::int64_t i = 0; i <= length; ++i) {
      text.target.push_back(i < back_ ? 0 : text.source[static_cast<std::size_t>(i - back_)]);
    }
    return text;
  }

 private:
  std::int64_t symbols_, back_;
};

}  // namespace

TaskPointer MakeNBack(TableReader& table) {
  std::int64_t symbols = 16;
  std::int64_t back = 2;
  table.Optional("symbols", symbols, SymbolCount());
  table.Optional("back", back, Positive<std::int64_t>());
  return std::make_unique<NBack>(symbols, back);
}

}  // namespace tsallis::lab
