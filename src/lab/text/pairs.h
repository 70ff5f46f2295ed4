// Pairs of sentences of a corpus of parallel text, as tasks read them.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "lab/base/random.h"
#include "lab/text/corpus.h"

namespace tsallis::lab {

// The most tokens that the sides of a pair may have.
struct PairLimits {
  std::int64_t source, target;
};

// Tokens of the corpus, without special ones.
struct SentencePair {
  std::vector<std::int64_t> source, target;
};

class TextPairs {
 public:
  // `corpus` as CorpusFolder() takes it, opened at the first use: a recipe can be read on a machine
  // without its corpus. Tokens are below `vocabulary`; kBytes: bytes.
  TextPairs(std::string corpus, std::int64_t vocabulary)
      : name_(std::move(corpus)), vocabulary_(vocabulary) {}

  // UsageError as OpenCorpus() has it.
  const Corpus& Opened() const;

  // How many pairs of a part are within the limits. UsageError if none is.
  std::int64_t Count(Split split, const PairLimits& limits) const;

  // Draws the `index`th of those. Training reads all of them in each epoch, in an order that
  // follows from seed and epoch alone; index goes on through the epochs. UsageError for an index
  // that validation or test does not have.
  SentencePair Draw(std::uint64_t seed, Split split, std::int64_t index,
                    const PairLimits& limits) const;

 private:
  // The place of a pair: source tokens from `begin` on, sep, target tokens, eos.
  struct Place {
    std::int64_t begin, source, target;
  };
  using Order = std::vector<std::uint32_t>;  // places of a part
  struct Epoch {
    std::uint64_t seed;
    std::int64_t epoch, source, target;
    bool operator==(const Epoch&) const = default;
  };

  void Find(Split split) const;
  std::shared_ptr<const Order> Within(Split split, const PairLimits& limits) const;
  std::shared_ptr<const Order> Shuffled(const std::shared_ptr<const Order>& pairs,
                                        const Epoch& epoch) const;

  std::string name_;
  std::int64_t vocabulary_;
  mutable std::once_flag once_;
  mutable std::unique_ptr<Corpus> corpus_;
  mutable std::array<std::vector<Place>, 3> places_;  // of each Split

  mutable std::mutex mutex_;  // of what follows, which is kept to be found faster
  mutable std::map<std::array<std::int64_t, 3>, std::shared_ptr<const Order>> within_;
  // The orders of the last epochs: models of several seeds, at different steps, train beside each
  // other.
  mutable std::deque<std::pair<Epoch, std::shared_ptr<const Order>>> shuffled_;
};

}  // namespace tsallis::lab
