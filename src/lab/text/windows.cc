#include "lab/text/windows.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "lab/base/errors.h"

namespace tsallis::lab {

void TextWindows::CheckLength(std::int64_t length) const {
  if (length >= 1 && length <= chunk_) return;
  throw UsageError(
      fmt::format("length: expected 1 to {}, the task's chunk, got {}", chunk_, length));
}

std::vector<std::int64_t> TextWindows::Draw(RandomStream& random, Split split, std::int64_t index,
                                            std::int64_t length) const {
  CheckLength(length);
  const Corpus::Part& part = Opened().Of(split);
  if (split == Split::kTrain) {
    if (part.size() > length) return part.Read(random.Below(part.size() - length), length + 1);
    throw UsageError(fmt::format("corpus {}: expected more than {} tokens to train on, got {}",
                                 name_, length, part.size()));
  }
  const std::int64_t windows = Count(split, length), in_one = chunk_ / length;
  if (index >= windows) TooFew(split, windows, length);
  const std::int64_t begin = chunks_[static_cast<int>(split)][index / in_one];
  return part.Read(begin + index % in_one * length, length + 1);
}

const Corpus& TextWindows::Opened() const {
  std::call_once(once_, [&] {
    corpus_ = OpenCorpus(name_, vocabulary_, /*pairs=*/false);
    for (const Split split : {Split::kValidation, Split::kTest}) {
      chunks_[static_cast<int>(split)] = ChunksOf(corpus_->Of(split));
    }
  });
  return *corpus_;
}

void TextWindows::TooFew(Split split, std::int64_t windows, std::int64_t length) const {
  throw UsageError(fmt::format(
      "corpus {}: its {} part has {} windows of {} tokens in documents of more than {}; more were "
      "asked for",
      name_, PartName(split), windows, length, chunk_));
}

std::int64_t TextWindows::Count(Split split, std::int64_t length) const {
  CheckLength(length);
  Opened();
  const std::int64_t chunks = std::ssize(chunks_[static_cast<int>(split)]);
  if (chunks == 0) TooFew(split, 0, length);
  return chunks * (chunk_ / length);
}

std::vector<std::int64_t> TextWindows::ChunksOf(const Corpus::Part& part) const {
  std::vector<std::pair<std::int64_t, std::int64_t>> found;  // number within its document, begin
  std::int64_t begin = 0;
  for (const std::int64_t tokens : part.Documents()) {
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

std::string ByteWord(std::int64_t byte) {
  if (byte == '\n') return "\\n";
  if (byte == '\t') return "\\t";
  if (byte < ' ' || byte > '~') return fmt::format("\\x{:02x}", byte);
  return std::string(1, static_cast<char>(byte));
}

}  // namespace tsallis::lab
