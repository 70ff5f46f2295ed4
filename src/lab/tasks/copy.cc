// T5, copy: uniform tokens, once more. Vasylenko et al. 2025, appendix G.1: 32 symbols, so that
// long sequences repeat them. `length` tokens in the source and in the target.
#include "lab/tasks/sequence_tasks.h"

namespace tsallis::lab {
namespace {

class Copy : public GeneratedTask {
 public:
  explicit Copy(std::int64_t symbols)
      : GeneratedTask(Framing::kSeparated, symbols, {}), symbols_(symbols) {}

 protected:
  Text Fill(RandomStream& random, std::int64_t length) const override {
    std::vector<std::int64_t> source = UniformTokens(random, length, symbols_);
    return {source, source};
  }

 private:
  std::int64_t symbols_;
};

}  // namespace

TaskPointer MakeCopy(TableReader& table) {
  std::int64_t symbols = 32;
  table.Optional("symbols", symbols, SymbolCount());
  return std::make_unique<Copy>(symbols);
}

}  // namespace tsallis::lab
