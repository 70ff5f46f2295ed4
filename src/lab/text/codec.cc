#include "lab/text/codec.h"

#include <fmt/format.h>

#include "lab/base/errors.h"
#include "lab/text/prepare.h"

namespace tsallis::lab {

TextCodec::TextCodec(const std::filesystem::path& tokenizer) {
  if (!tokenizer.empty()) tokenizer_ = std::make_unique<Tokenizer>(tokenizer);
}

std::vector<std::uint32_t> TextCodec::Encode(const std::string& text, const std::string& name) {
  if (tokenizer_ == nullptr) {
    const auto* bytes = reinterpret_cast<const unsigned char*>(text.data());
    return {bytes, bytes + text.size()};
  }
  const std::int64_t bad = FirstBadByte(text);
  if (bad >= 0) {
    throw UsageError(
        fmt::format("{}: expected UTF-8 text, got something else at byte {}", name, bad));
  }
  return tokenizer_->Encode(text);
}

std::string TextCodec::Decode(const std::vector<std::uint32_t>& tokens) {
  if (tokenizer_ != nullptr) return tokenizer_->Decode(tokens);
  return {tokens.begin(), tokens.end()};
}

std::int64_t TextCodec::Vocabulary() const {
  return tokenizer_ != nullptr ? tokenizer_->Vocabulary() : kBytes;
}

std::string TextStream::Push(std::uint32_t token) {
  tokens_.push_back(token);
  return Show(false);
}

std::string TextStream::End() { return Show(true); }

std::string TextStream::Show(bool all) {
  const std::string text = codec_.Decode(tokens_);
  const std::size_t end = all ? text.size() : SettledBytes(text);
  if (end <= shown_) return "";
  std::string added = text.substr(shown_, end - shown_);
  shown_ = end;
  if (end == text.size()) {
    // All is shown: the tokens of this turn stay as what the next ones are decoded behind.
    tokens_.erase(tokens_.begin(), tokens_.begin() + static_cast<std::ptrdiff_t>(settled_));
    settled_ = tokens_.size();
    shown_ = codec_.Decode(tokens_).size();
  }
  return added;
}

std::size_t SettledBytes(const std::string& text) {
  // Tokenizers give U+FFFD for the beginning of a character.
  std::size_t size = text.size();
  while (size >= 3 && text.compare(size - 3, 3, "\xEF\xBF\xBD") == 0) size -= 3;
  // Bytes: the last one to three may begin a character.
  for (std::size_t back = 1; back <= 3 && back <= size; ++back) {
    const auto byte = static_cast<unsigned char>(text[size - back]);
    if ((byte & 0xC0U) == 0x80U) continue;  // inside of one
    const std::size_t length = byte >= 0xF0U ? 4 : byte >= 0xE0U ? 3 : byte >= 0xC0U ? 2 : 1;
    if (length > back) size -= back;
    break;
  }
  return size;
}

}  // namespace tsallis::lab
