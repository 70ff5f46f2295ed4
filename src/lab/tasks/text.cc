// Language (docs/definitions.md, T10): every token of real text from those before it. Which
// windows of the corpus are read: lab/text/windows.h.
#include <memory>
#include <utility>

#include "lab/tasks/sequence_tasks.h"
#include "lab/text/windows.h"

namespace tsallis::lab {
namespace {

constexpr std::int64_t kBytes = 256;

class TextTask : public SequenceTask {
 public:
  TextTask(std::string corpus, std::int64_t chunk) : windows_(std::move(corpus), chunk) {}

  std::int64_t Vocabulary() const override { return kBytes; }
  std::int64_t Pad() const override { return 0; }
  Scoring GetScoring() const override { return Scoring::kLoss; }
  void CheckLength(std::int64_t length) const override { windows_.CheckLength(length); }

  Sample Draw(std::uint64_t seed, Split split, std::int64_t index,
              std::int64_t length) const override {
    RandomStream random(seed, PurposeOf(split), static_cast<std::uint64_t>(index));
    const std::vector<std::int64_t> tokens = windows_.Draw(random, split, index, length);
    return {{tokens.begin(), tokens.end() - 1}, {tokens.begin() + 1, tokens.end()}};
  }

  std::string Word(std::int64_t token) const override { return ByteWord(token); }

 private:
  std::string Answer() const override { return "byte"; }

  TextWindows windows_;
};

}  // namespace

TaskPointer MakeText(TableReader& table) {
  std::string corpus = "python";
  std::int64_t chunk = 32768;
  table.Optional("corpus", corpus);
  table.Optional("chunk", chunk, Within<std::int64_t>(1, 1 << 24, "1 to 2^24 tokens"));
  return std::make_unique<TextTask>(corpus, chunk);
}

}  // namespace tsallis::lab
