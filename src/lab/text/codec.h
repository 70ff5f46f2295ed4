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

 private:
  std::unique_ptr<Tokenizer> tokenizer_;  // null: bytes
};

// How much of the text so far no later token can change: a tokenizer or a model of bytes may stand
// in the middle of a character.
std::size_t SettledBytes(const std::string& text);

}  // namespace tsallis::lab
