// Text as tokens by a tokenizer of Hugging Face's `tokenizers` (tokenizer.json) or of SentencePiece
// (*.model). The libraries run in a Python process beside this one (python/tsallis_text).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace tsallis::lab {

class TextProcess;

class Tokenizer {
 public:
  // UsageError for a file that is no tokenizer, and where the library is not installed.
  explicit Tokenizer(const std::filesystem::path& file);
  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  std::int64_t Vocabulary() const { return vocabulary_; }
  // Without tokens for the beginning and the end. UsageError if the library refuses the text.
  std::vector<std::uint32_t> Encode(const std::string& text);

  // The text of tokens, special ones too; where they end inside of a character, U+FFFD. UsageError
  // for a token that the vocabulary does not have.
  std::string Decode(const std::vector<std::uint32_t>& tokens);

  // Trains byte-level BPE of `vocabulary` tokens on what `next` gives until it gives false, and
  // writes it to `file` (tokenizer.json). `waiting` is called a few times a second while the
  // library trains; what it throws ends the training. UsageError where the library is not installed
  // or refuses.
  static void Train(std::int64_t vocabulary, const std::filesystem::path& file,
                    const std::function<bool(std::string&)>& next,
                    const std::function<void()>& waiting);

 private:
  std::filesystem::path file_;
  std::unique_ptr<TextProcess> process_, decoder_;  // the second only once it is needed
  std::int64_t vocabulary_ = 0;
};

}  // namespace tsallis::lab
