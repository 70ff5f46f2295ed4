// Windows of a corpus, as tasks read it.
//
// Training windows begin anywhere in the training part, across documents, as language models are
// trained. Validation and test read long documents alone, so that all of a window's context belongs
// to the text that it predicts: a document is cut into chunks, the first chunks of all documents
// come first, then the second ones, and windows follow each other in them. The first k tokens of
// windows are thus the same at every length that divides the chunk.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "lab/base/random.h"
#include "lab/text/corpus.h"

namespace tsallis::lab {

class TextWindows {
 public:
  // `corpus` as CorpusFolder() takes it, opened at the first use: a recipe can be read on a machine
  // without its corpus. Tokens are below `vocabulary`; kBytes: bytes.
  TextWindows(std::string corpus, std::int64_t chunk, std::int64_t vocabulary)
      : name_(std::move(corpus)), chunk_(chunk), vocabulary_(vocabulary) {}

  // UsageError as OpenCorpus() has it.
  const Corpus& Opened() const;

  // UsageError unless 1 <= length <= chunk.
  void CheckLength(std::int64_t length) const;

  // How many windows of this length validation or test have.
  std::int64_t Count(Split split, std::int64_t length) const;

  // `length` tokens and the one behind them. Of the training part from where `random` says, of the
  // others window `index`. UsageError where the part has no such window.
  std::vector<std::int64_t> Draw(RandomStream& random, Split split, std::int64_t index,
                                 std::int64_t length) const;

 private:
  [[noreturn]] void TooFew(Split split, std::int64_t windows, std::int64_t length) const;
  std::vector<std::int64_t> ChunksOf(const Corpus::Part& part) const;

  std::string name_;
  std::int64_t chunk_, vocabulary_;
  mutable std::once_flag once_;
  mutable std::unique_ptr<Corpus> corpus_;
  mutable std::vector<std::int64_t> chunks_[3];  // where they begin
};

// A byte as people read it.
std::string ByteWord(std::int64_t byte);

}  // namespace tsallis::lab
