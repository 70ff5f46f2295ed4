#include "lab/tasks/sequence.h"

#include <fmt/format.h>

#include "lab/base/errors.h"

namespace tsallis::lab {

void GeneratedTask::CheckLength(std::int64_t length) const {
  if (length >= generator_.shortest && length <= generator_.longest) return;
  throw UsageError(fmt::format("length: expected {} to {} for this task, got {}",
                               generator_.shortest, generator_.longest, length));
}

Text GeneratedTask::DrawText(std::uint64_t seed, Split split, std::int64_t index,
                             std::int64_t length) const {
  CheckLength(length);
  // Lengths below 2^20 and indices below 2^36 fill the 56 bits of a stream's index.
  RandomStream random(
      seed, PurposeOf(split),
      (static_cast<std::uint64_t>(length) << 36) | static_cast<std::uint64_t>(index));
  return generator_.fill(random, length);
}

Sample FramedTask::Draw(std::uint64_t seed, Split split, std::int64_t index,
                        std::int64_t length) const {
  return Frame(DrawText(seed, split, index, length));
}

Sample FramedTask::Frame(const Text& text) const {
  Sample sample;
  const auto add = [&](std::int64_t token, std::int64_t label) {
    sample.tokens.push_back(token);
    sample.labels.push_back(label);
  };
  const std::size_t size = text.source.size() + text.target.size() + 3;
  sample.tokens.reserve(size);
  sample.labels.reserve(size);
  add(Bos(), kNotScored);
  if (framing_ == Framing::kLabelled) {
    for (std::size_t i = 0; i < text.source.size(); ++i) add(text.source[i], text.target[i]);
    add(Eos(), kNotScored);
    return sample;
  }
  for (const std::int64_t token : text.source) add(token, kNotScored);
  if (framing_ == Framing::kSeparated) add(Sep(), kNotScored);
  for (const std::int64_t token : text.target) {
    sample.labels.back() = token;
    add(token, kNotScored);
  }
  sample.labels.back() = Eos();
  return sample;
}

std::string FramedTask::Word(std::int64_t token) const {
  return token < special_.data ? DataWord(token) : special_.Name(token);
}

std::vector<std::int64_t> UniformTokens(RandomStream& random, std::int64_t count,
                                        std::int64_t symbols) {
  std::vector<std::int64_t> tokens(count);
  for (std::int64_t& token : tokens) token = random.Below(symbols);
  return tokens;
}

}  // namespace tsallis::lab
