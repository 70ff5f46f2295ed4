// Language (docs/definitions.md, T10): every token of real text from those before it.
//
// Training windows begin anywhere in the training part, across documents, as language models are
// trained. Validation and test read long documents alone, so that all of a window's context belongs
// to the text that it predicts: a document is cut into chunks of `chunk` tokens, the first chunks
// of all documents come first, then the second ones, and windows of n tokens follow each other in
// them. The first k tokens of windows are thus the same at every length that divides the chunk.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "lab/base/errors.h"
#include "lab/tasks/sequence_tasks.h"
#include "lab/text/corpus.h"

namespace tsallis::lab {
namespace {

constexpr std::int64_t kBytes = 256;

class TextTask : public SequenceTask {
 public:
  TextTask(std::string corpus, std::int64_t chunk) : name_(std::move(corpus)), chunk_(chunk) {}

  std::int64_t Vocabulary() const override { return kBytes; }
  std::int64_t Pad() const override { return 0; }
  Scoring GetScoring() const override { return Scoring::kLoss; }

  void CheckLength(std::int64_t length) const override {
    if (length >= 1 && length <= chunk_) return;
    throw UsageError(
        fmt::format("length: expected 1 to {}, the task's chunk, got {}", chunk_, length));
  }

  Sample Draw(std::uint64_t seed, Split split, std::int64_t index,
              std::int64_t length) const override {
    CheckLength(length);
    const Corpus::Part& part = Opened().Of(split);
    const std::int64_t begin = split == Split::kTrain ? Anywhere(seed, index, length, part)
                                                      : InChunk(split, index, length);
    Sample sample;
    for (std::int64_t i = 0; i < length; ++i) {
      sample.tokens.push_back((*part.tokens)[begin + i]);
      sample.labels.push_back((*part.tokens)[begin + i + 1]);
    }
    return sample;
  }

  std::string Word(std::int64_t token) const override {
    if (token == '\n') return "\\n";
    if (token == '\t') return "\\t";
    if (token < ' ' || token > '~') return fmt::format("\\x{:02x}", token);
    return std::string(1, static_cast<char>(token));
  }

 private:
  std::string Answer() const override { return "byte"; }

  // Opened at the first use: a recipe can be read on a machine without its corpus.
  const Corpus& Opened() const {
    std::call_once(once_, [&] {
      corpus_ = std::make_unique<Corpus>(CorpusFolder(name_));
      for (const Split split : {Split::kValidation, Split::kTest}) {
        chunks_[static_cast<std::size_t>(split)] = ChunksOf(corpus_->Of(split));
      }
    });
    return *corpus_;
  }

  std::int64_t Anywhere(std::uint64_t seed, std::int64_t index, std::int64_t length,
                        const Corpus::Part& part) const {
    const std::int64_t places = part.tokens->size() - length;
    if (places < 1) {
      throw UsageError(fmt::format("corpus {}: expected more than {} tokens to train on, got {}",
                                   name_, length, part.tokens->size()));
    }
    RandomStream random(seed, PurposeOf(Split::kTrain), static_cast<std::uint64_t>(index));
    return random.Below(places);
  }

  std::int64_t InChunk(Split split, std::int64_t index, std::int64_t length) const {
    const std::vector<std::int64_t>& chunks = chunks_[static_cast<std::size_t>(split)];
    const std::int64_t in_one = chunk_ / length;
    const std::int64_t windows = static_cast<std::int64_t>(chunks.size()) * in_one;
    if (index >= windows) {
      throw UsageError(fmt::format(
          "corpus {}: its {} part has {} windows of {} tokens in documents of more than {}; "
          "more were asked for",
          name_, split == Split::kTest ? "test" : "validation", windows, length, chunk_));
    }
    return chunks[static_cast<std::size_t>(index / in_one)] + index % in_one * length;
  }

  // Where chunks begin: the first of every document, then the second of those that have one.
  std::vector<std::int64_t> ChunksOf(const Corpus::Part& part) const {
    std::vector<std::pair<std::int64_t, std::int64_t>> found;  // number within its document, begin
    std::int64_t begin = 0;
    for (const std::int64_t tokens : part.documents) {
      for (std::int64_t k = 0; (k + 1) * chunk_ < tokens; ++k) {
        found.emplace_back(k, begin + k * chunk_);
      }
      begin += tokens;
    }
    std::sort(found.begin(), found.end());
    std::vector<std::int64_t> chunks;
    for (const auto& [number, at] : found) chunks.push_back(at);
    return chunks;
  }

  std::string name_;
  std::int64_t chunk_;
  mutable std::once_flag once_;
  mutable std::unique_ptr<Corpus> corpus_;
  mutable std::vector<std::int64_t> chunks_[3];
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
