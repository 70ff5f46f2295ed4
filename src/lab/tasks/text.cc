// Language (docs/definitions.md, T10): every token of real text from those before it. Which
// windows of the corpus are read: lab/text/windows.h.
#include <fmt/format.h>

#include <memory>
#include <optional>
#include <utility>

#include "lab/base/errors.h"
#include "lab/base/files.h"
#include "lab/tasks/sequence_tasks.h"
#include "lab/text/codec.h"
#include "lab/text/windows.h"

namespace tsallis::lab {
namespace {

class LanguageTask : public SequenceTask {
 public:
  explicit LanguageTask(std::int64_t vocabulary) : vocabulary_(vocabulary) {}

  std::int64_t Vocabulary() const override { return vocabulary_; }
  std::int64_t Pad() const override { return 0; }
  Scoring GetScoring() const override { return Scoring::kLoss; }
  std::vector<Metric> Metrics() const override {
    return {LossMetric(vocabulary_ == kBytes ? "byte" : "token")};
  }
  std::string Word(std::int64_t token) const override {
    return vocabulary_ == kBytes ? ByteWord(token) : std::to_string(token);
  }

 private:
  std::int64_t vocabulary_;
};

class TextTask : public LanguageTask {
 public:
  TextTask(std::string corpus, std::int64_t chunk, std::int64_t vocabulary)
      : LanguageTask(vocabulary), windows_(std::move(corpus), chunk, vocabulary) {}

  std::optional<TextCodec> Codec(const std::string& name) const override {
    if (Vocabulary() == kBytes) return TextCodec({});
    const std::filesystem::path tokenizer = windows_.Opened().TokenizerFile();
    if (!tokenizer.empty()) return TextCodec(tokenizer);
    throw UsageError(name +
                     ": the model's corpus was made of shards without their tokenizer; "
                     "`tsallis data prepare` takes it with --tokenizer");
  }

  void CheckLength(std::int64_t length) const override { windows_.CheckLength(length); }

  Sample Draw(std::uint64_t seed, Split split, std::int64_t index,
              std::int64_t length) const override {
    RandomStream random(seed, PurposeOf(split), static_cast<std::uint64_t>(index));
    const std::vector<std::int64_t> tokens = windows_.Draw(random, split, index, length);
    return {{tokens.begin(), tokens.end() - 1}, {tokens.begin() + 1, tokens.end()}};
  }

  std::int64_t Available(Split split, std::int64_t length) const override {
    return windows_.Count(split, length);
  }
  double BytesPerToken(Split split) const override {
    return windows_.Opened().BytesPerToken(split);
  }
  std::string CorpusChecksum() const override { return windows_.Opened().Checksum(); }

 private:
  TextWindows windows_;
};

class FileText : public LanguageTask {
 public:
  FileText(const std::filesystem::path& file, const TextTask* like)
      : LanguageTask(like == nullptr ? kBytes : like->Vocabulary()), path_(file.string()) {
    const bool regular = std::filesystem::is_regular_file(file);
    const std::optional<std::string> text = regular ? ReadFile(file) : std::nullopt;
    if (!text) throw UsageError(path_ + ": cannot be read");
    tokens_ = (like == nullptr ? TextCodec({}) : like->Codec(path_).value()).Encode(*text, path_);
    if (tokens_.size() < 2) {
      throw UsageError(
          fmt::format("{}: expected at least 2 tokens, got {}", path_, tokens_.size()));
    }
    bytes_per_token_ = static_cast<double>(text->size()) / static_cast<double>(tokens_.size());
  }

  std::int64_t Available(Split, std::int64_t length) const override {
    return (static_cast<std::int64_t>(tokens_.size()) - 1) / length;
  }

  void CheckLength(std::int64_t length) const override {
    if (length >= 1 && length <= Available(Split::kTest, 1)) return;
    throw UsageError(fmt::format("length: expected 1 to {}, as {} has {} tokens, got {}",
                                 Available(Split::kTest, 1), path_, tokens_.size(), length));
  }

  Sample Draw(std::uint64_t, Split, std::int64_t index, std::int64_t length) const override {
    CheckLength(length);
    if (index >= Available(Split::kTest, length)) {
      throw UsageError(fmt::format("{} has {} windows of {} tokens", path_,
                                   Available(Split::kTest, length), length));
    }
    const auto begin = tokens_.begin() + index * length;
    return {{begin, begin + length}, {begin + 1, begin + length + 1}};
  }

  double BytesPerToken(Split) const override { return bytes_per_token_; }

 private:
  std::string path_;
  std::vector<std::uint32_t> tokens_;
  double bytes_per_token_ = 1.0;
};

}  // namespace

TaskPointer MakeFileText(const std::filesystem::path& file, const SequenceTask& trained) {
  return std::make_unique<FileText>(file, dynamic_cast<const TextTask*>(&trained));
}

TaskPointer MakeText(TableReader& table) {
  std::string corpus = "python";
  std::int64_t chunk = 32768;
  table.Optional("corpus", corpus);
  table.Optional("chunk", chunk, Within<std::int64_t>(1, 1 << 24, "1 to 2^24 tokens"));
  std::int64_t vocabulary = kBytes;
  table.Optional("vocabulary", vocabulary,
                 Within<std::int64_t>(kBytes, 1 << 20, "256 for bytes, up to 2^20 tokens"));
  return std::make_unique<TextTask>(corpus, chunk, vocabulary);
}

}  // namespace tsallis::lab
