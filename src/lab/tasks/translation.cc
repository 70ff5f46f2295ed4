// Translation (docs/definitions.md, T13; Correia, Niculae and Martins 2019): a sentence of parallel
// text is read, its translation is written. A sample of length n has at most n tokens of the source
// and at most 2 n + 16 of the target. Training reads every pair of that size once an epoch, in an
// order that seed and epoch alone decide; validation and test read theirs in the corpus's order.
#include <fmt/format.h>

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "lab/base/errors.h"
#include "lab/tasks/sequence_tasks.h"
#include "lab/text/codec.h"
#include "lab/text/pairs.h"
#include "lab/text/windows.h"

namespace tsallis::lab {
namespace {

class Translation : public FramedTask {
 public:
  Translation(std::string corpus, std::int64_t vocabulary)
      : FramedTask(Framing::kSeparated, vocabulary),
        is_bytes_(vocabulary == kBytes),
        pairs_(std::move(corpus), vocabulary) {}

  Scoring GetScoring() const override { return Scoring::kWritten; }

  // The first two are of the texts that a model writes (python/tsallis_text computes them), the
  // others of the references' tokens, each with those before it.
  std::vector<Metric> Metrics() const override {
    Metric chrf{.name = "chrF", .unit = "points", .notable = 1.0, .sum = "chrf", .count = ""};
    Metric bleu = chrf;
    bleu.name = "BLEU";
    bleu.sum = "bleu";
    return {bleu,
            chrf,
            LossMetric(is_bytes_ ? "byte" : "token", "tokens"),
            {.name = "tokens right", .sum = "token_hits", .count = "tokens"}};
  }

  void CheckLength(std::int64_t length) const override {
    if (length >= 1 && length <= Generator::kLongest) return;
    throw UsageError(fmt::format("length: expected 1 to {} tokens of a source, got {}",
                                 Generator::kLongest, length));
  }

  Text DrawText(std::uint64_t seed, Split split, std::int64_t index,
                std::int64_t length) const override {
    SentencePair pair = pairs_.Draw(seed, split, index, Limits(length));
    return {std::move(pair.source), std::move(pair.target)};
  }

  std::int64_t Available(Split split, std::int64_t length) const override {
    return pairs_.Count(split, Limits(length));
  }

  std::optional<TextCodec> Codec(const std::string&) const override {
    return TextCodec(pairs_.Opened().TokenizerFile());
  }

  double BytesPerToken(Split split) const override { return pairs_.Opened().BytesPerToken(split); }
  std::string CorpusChecksum() const override { return pairs_.Opened().Checksum(); }

 protected:
  std::string DataWord(std::int64_t token) const override {
    if (is_bytes_) return ByteWord(token);
    // The setting may be larger than what the tokenizer has.
    if (token >= pairs_.Opened().Vocabulary()) return fmt::format("<{}>", token);
    const std::lock_guard<std::mutex> lock(words_mutex_);
    auto found = words_.find(token);
    if (found == words_.end()) {
      if (!codec_) codec_ = Codec("");
      found = words_.emplace(token, codec_->Decode({static_cast<std::uint32_t>(token)})).first;
    }
    return found->second;
  }

 private:
  PairLimits Limits(std::int64_t length) const {
    CheckLength(length);
    return {length, 2 * length + 16};
  }

  bool is_bytes_;
  TextPairs pairs_;
  mutable std::mutex words_mutex_;
  mutable std::optional<TextCodec> codec_;
  mutable std::map<std::int64_t, std::string> words_;
};

}  // namespace

TaskPointer MakeTranslation(TableReader& table) {
  std::string corpus = "german";
  std::int64_t vocabulary = 4096;
  table.Optional("corpus", corpus);
  table.Optional("vocabulary", vocabulary,
                 Within<std::int64_t>(kBytes, 1 << 20, "256 for bytes, up to 2^20 tokens"));
  return std::make_unique<Translation>(corpus, vocabulary);
}

}  // namespace tsallis::lab
