// Tasks on which sequence models are trained and tested. A task with a source and a target draws
// both; framing them with special tokens, shifting and marking what is scored is the same for all.
// One that is generated (docs/definitions.md, T2-T9) draws them from a stream of random numbers,
// translation (translation.cc) from a corpus of pairs. A language task (text.cc) has windows of a
// corpus alone.
//
// Format of generated sequences: Vasylenko et al. 2025, appendix G.1, and the code published with
// it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lab/base/random.h"
#include "lab/base/special_tokens.h"
#include "lab/tasks/task.h"
#include "lab/tasks/token_batch.h"
#include "lab/text/codec.h"

namespace tsallis::lab {

// The tokens that a model reads and the labels that it must say: labels[i] belongs to the output at
// tokens[i].
struct Sample {
  std::vector<std::int64_t> tokens;  // [n], in [0, Vocabulary())
  std::vector<std::int64_t> labels;  // [n], a token or kNotScored
};

// The task's own part of a sample, of data tokens only.
struct Text {
  std::vector<std::int64_t> source, target;
};

enum class Framing : std::uint8_t {
  // The model generates the target. It reads `bos source [sep] target`; the label of a token is the
  // one that follows it. Scored: the target and the eos behind it.
  kSeparated,
  kUnseparated,
  // The model classifies tokens. It reads `bos source eos`; the label of source[i] is target[i].
  kLabelled,
};

class SequenceTask : public Task {
 public:
  SequenceTask() = default;
  SequenceTask(const SequenceTask&) = delete;
  SequenceTask& operator=(const SequenceTask&) = delete;

  virtual std::int64_t Vocabulary() const = 0;
  // Fills the end of a sequence that is shorter than others of its batch.
  virtual std::int64_t Pad() const = 0;

  // Sample `index` of a split at this length: a pure function of the arguments, so samples may be
  // drawn in any order and by any number of threads. `length` is the length parameter of the
  // papers' tables; how many tokens that makes is the task's to say. 0 <= index < 2^36. UsageError
  // for a length or an index that the task does not have.
  virtual Sample Draw(std::uint64_t seed, Split split, std::int64_t index,
                      std::int64_t length) const = 0;

  // How many samples validation or test have at this length.
  virtual std::int64_t Available(Split, std::int64_t) const { return std::int64_t{1} << 36; }

  // The place in Groups() of a sample, by its tokens as Draw() gives them.
  virtual std::size_t GroupOf(const std::int64_t* /*tokens*/, std::int64_t /*count*/) const {
    return 0;
  }

  // A token as people read it.
  virtual std::string Word(std::int64_t token) const = 0;

  // Bytes of text for each token of a split; 0 where tokens are no text.
  virtual double BytesPerToken(Split) const { return 0.0; }

  // The checksum of the corpus that samples come from (lab/text/corpus.h); empty: they come from
  // none. UsageError where it is not there.
  virtual std::string CorpusChecksum() const { return {}; }

  // How text becomes the task's tokens; none where tokens are no text. UsageError, which begins
  // with `name`, where it is not known.
  virtual std::optional<TextCodec> Codec(const std::string& /*name*/) const { return {}; }
};

// A task whose samples are a source and a target between special tokens.
class FramedTask : public SequenceTask {
 public:
  FramedTask(Framing framing, std::int64_t data_tokens)
      : framing_(framing), special_{data_tokens} {}

  std::int64_t Vocabulary() const override { return special_.All(); }
  std::int64_t Pad() const override { return special_.Pad(); }
  std::int64_t Bos() const { return special_.Bos(); }
  std::int64_t Eos() const { return special_.Eos(); }
  std::int64_t Sep() const { return special_.Sep(); }
  Sample Draw(std::uint64_t seed, Split split, std::int64_t index,
              std::int64_t length) const override;
  std::string Word(std::int64_t token) const override;

  // A source and a target of data tokens as Draw() gives them.
  Sample Frame(const Text& text) const;

  // The text that Draw() frames; under the same promises.
  virtual Text DrawText(std::uint64_t seed, Split split, std::int64_t index,
                        std::int64_t length) const = 0;

 protected:
  virtual std::string DataWord(std::int64_t token) const = 0;

 private:
  Framing framing_;
  SpecialTokens special_;
};

// All that a generated task says of itself.
struct Generator {
  static constexpr std::int64_t kLongest = (1 << 20) - 1;

  Framing framing = Framing::kSeparated;
  std::int64_t data_tokens = 0;
  std::int64_t shortest = 1, longest = kLongest;  // lengths that there are
  // Draws a sample of such a length; called by several threads.
  std::function<Text(RandomStream& random, std::int64_t length)> fill = {};
  // A data token as people read it.
  std::function<std::string(std::int64_t token)> word = [](std::int64_t token) {
    return std::to_string(token);
  };
  // As Task::Groups() and SequenceTask::GroupOf() have them.
  std::vector<std::string> groups = {};
  std::function<std::size_t(const std::int64_t* tokens, std::int64_t count)> group_of = {};
};

class GeneratedTask : public FramedTask {
 public:
  explicit GeneratedTask(Generator generator)
      : FramedTask(generator.framing, generator.data_tokens), generator_(std::move(generator)) {}

  // Where the labels are the tokens that follow, a sample is right if all its answers are, which is
  // when greedy decoding gives the target and its eos.
  Scoring GetScoring() const override {
    return generator_.framing == Framing::kLabelled ? Scoring::kTokens : Scoring::kExact;
  }
  void CheckLength(std::int64_t length) const override;
  Text DrawText(std::uint64_t seed, Split split, std::int64_t index,
                std::int64_t length) const override;
  std::vector<std::string> Groups() const override { return generator_.groups; }
  std::size_t GroupOf(const std::int64_t* tokens, std::int64_t count) const override {
    return generator_.group_of ? generator_.group_of(tokens, count) : 0;
  }

 protected:
  std::string DataWord(std::int64_t token) const override { return generator_.word(token); }

 private:
  Generator generator_;
};

// `count` tokens, each uniform in [0, symbols).
std::vector<std::int64_t> UniformTokens(RandomStream& random, std::int64_t count,
                                        std::int64_t symbols);

}  // namespace tsallis::lab
