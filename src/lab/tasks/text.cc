// Language (docs/definitions.md, T10): every token of real text from those before it. Which
// windows of the corpus are read: lab/text/windows.h.
#include <fmt/format.h>

#include <fstream>
#include <iterator>
#include <memory>
#include <utility>

#include "lab/base/errors.h"
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

class FileText : public SequenceTask {
 public:
  explicit FileText(const std::filesystem::path& file) : path_(file.string()) {
    std::ifstream in(file, std::ios::binary);
    text_.assign(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
    if (!in || std::filesystem::is_directory(file)) throw UsageError(path_ + ": cannot be read");
    if (text_.size() >= 2) return;
    throw UsageError(fmt::format("{}: expected at least 2 bytes, got {}", path_, text_.size()));
  }

  std::int64_t Windows(std::int64_t length) const {
    return (static_cast<std::int64_t>(text_.size()) - 1) / length;
  }

  std::int64_t Vocabulary() const override { return kBytes; }
  std::int64_t Pad() const override { return 0; }
  Scoring GetScoring() const override { return Scoring::kLoss; }

  void CheckLength(std::int64_t length) const override {
    const std::int64_t most = Windows(1);
    if (length >= 1 && length <= most) return;
    throw UsageError(fmt::format("length: expected 1 to {}, as {} has {} bytes, got {}", most,
                                 path_, most + 1, length));
  }

  Sample Draw(std::uint64_t, Split, std::int64_t index, std::int64_t length) const override {
    CheckLength(length);
    if (index >= Windows(length)) {
      throw UsageError(fmt::format("{} has {} windows of {} bytes", path_, Windows(length), length));
    }
    Sample sample;
    for (std::int64_t i = index * length; i < (index + 1) * length; ++i) {
      sample.tokens.push_back(Byte(i));
      sample.labels.push_back(Byte(i + 1));
    }
    return sample;
  }

  std::string Word(std::int64_t token) const override { return ByteWord(token); }

 private:
  std::string Answer() const override { return "byte"; }
  std::int64_t Byte(std::int64_t i) const {
    return static_cast<unsigned char>(text_[static_cast<std::size_t>(i)]);
  }

  std::string path_, text_;
};

}  // namespace

TaskPointer MakeFileText(const std::filesystem::path& file) {
  return std::make_unique<FileText>(file);
}

std::int64_t FileWindows(const SequenceTask& task, std::int64_t length) {
  const auto* file = dynamic_cast<const FileText*>(&task);
  return file == nullptr ? 0 : file->Windows(length);
}

TaskPointer MakeText(TableReader& table) {
  std::string corpus = "python";
  std::int64_t chunk = 32768;
  table.Optional("corpus", corpus);
  table.Optional("chunk", chunk, Within<std::int64_t>(1, 1 << 24, "1 to 2^24 tokens"));
  return std::make_unique<TextTask>(corpus, chunk);
}

}  // namespace tsallis::lab
