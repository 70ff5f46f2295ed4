#include "lab/text/tokenizer.h"

#include <cstring>

#include "lab/text/text_process.h"

namespace tsallis::lab {

Tokenizer::Tokenizer(const std::filesystem::path& file)
    : file_(std::filesystem::absolute(file)),
      process_(std::make_unique<TextProcess>(std::vector<std::string>{"encode", file_.string()})) {
  vocabulary_ = std::stoll(process_->Receive());
}

Tokenizer::~Tokenizer() = default;

std::vector<std::uint32_t> Tokenizer::Encode(const std::string& text) {
  process_->Send(text);
  const std::string answer = process_->Receive();
  std::vector<std::uint32_t> tokens(answer.size() / 4);
  std::memcpy(tokens.data(), answer.data(), 4 * tokens.size());
  return tokens;
}

std::string Tokenizer::Decode(const std::vector<std::uint32_t>& tokens) {
  if (decoder_ == nullptr) {
    decoder_ = std::make_unique<TextProcess>(std::vector<std::string>{"decode", file_.string()});
    decoder_->Receive();  // the library is there
  }
  decoder_->Send({reinterpret_cast<const char*>(tokens.data()), 4 * tokens.size()});
  return decoder_->Receive();
}

void Tokenizer::Train(std::int64_t vocabulary, const std::filesystem::path& file,
                      const std::function<bool(std::string&)>& next,
                      const std::function<void()>& waiting) {
  TextProcess process(
      {"train", std::to_string(vocabulary), std::filesystem::absolute(file).string()});
  process.Receive(waiting);  // the library is there
  std::string text;
  while (next(text)) {
    if (!text.empty()) process.Send(text);
  }
  process.Send("");
  process.Receive(waiting);
}

}  // namespace tsallis::lab
