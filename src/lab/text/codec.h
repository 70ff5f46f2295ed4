// Text to the tokens of a corpus and back.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "lab/text/tokenizer.h"

namespace tsallis::lab {

class TextCodec {
 public:
  // tokenizer: the file that made the tokens; empty: tokens are bytes.
  explicit TextCodec(const std::filesystem::path& tokenizer);

  // UsageError, which begins with `name`, for text that is not UTF-8 where a tokenizer needs it.
  std::vector<std::uint32_t> Encode(const std::string& text, const std::string& name);
  std::string Decode(const std::vector<std::uint32_t>& tokens);
  std::int64_t Vocabulary() const;

 private:
  std::unique_ptr<Tokenizer> tokenizer_;  // null: bytes
};

// The text of tokens as they come. The text that a token adds may depend on those right before it
// (a space, a character in parts), so these are decoded with it; the cost of a token does not grow
// with the text.
class TextStream {
 public:
  explicit TextStream(TextCodec& codec) : codec_(codec) {}

  // The text that no later token can change any more, behind that which was given before.
  std::string Push(std::uint32_t token);
  // The rest.
  std::string End();

 private:
  std::string Show(bool all);

  TextCodec& codec_;
  std::vector<std::uint32_t> tokens_;  // those that were shown last, and what follows them
  std::size_t settled_ = 0;            // of tokens_, how many are shown whole
  std::size_t shown_ = 0;              // bytes of the text of tokens_
};

// How much of the text so far no later token can change: a tokenizer or a model of bytes may stand
// in the middle of a character.
std::size_t SettledBytes(const std::string& text);

}  // namespace tsallis::lab
