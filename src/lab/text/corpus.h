// Real text as tokens on disk. A corpus is a folder:
//
//     manifest.json                        source, held-out rule, every file with its part and
//                                          checksum
//     train.bin  validation.bin  test.bin  tokens, documents one after the other
//
// A .bin file is a header of 256 int32, {20240520, 1, tokens}, then tokens as uint16: the shards of
// llm.c and modded-nanogpt, which can be put in its place. Numbers are little-endian. Tokens are
// bytes, or those of a tokenizer whose file lies in the folder.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lab/base/random.h"

namespace tsallis::lab {

// How many tokens there are where tokens are bytes.
inline constexpr std::int64_t kBytes = 256;

// The tokens of one part, mapped into memory.
class Shard {
 public:
  // Throws UsageError for a file that is missing, is no shard or is cut short.
  explicit Shard(const std::filesystem::path& path);
  ~Shard();
  Shard(const Shard&) = delete;
  Shard& operator=(const Shard&) = delete;

  std::int64_t size() const { return count_; }
  std::int64_t operator[](std::int64_t i) const { return tokens_[i]; }

 private:
  void* memory_ = nullptr;
  std::size_t bytes_ = 0;
  const std::uint16_t* tokens_ = nullptr;
  std::int64_t count_ = 0;
};

class Corpus {
 public:
  struct Part {
    std::unique_ptr<Shard> tokens;
    std::vector<std::int64_t> documents;  // tokens of each, in their order
  };

  // Throws UsageError: for a folder without a corpus it says how one is made.
  explicit Corpus(const std::filesystem::path& folder);

  std::int64_t Vocabulary() const { return vocabulary_; }
  // What made the tokens; empty: they are bytes.
  const std::filesystem::path& TokenizerFile() const { return tokenizer_; }
  // Bytes of a part's text for each of its tokens.
  double BytesPerToken(Split split) const;

  const Part& Of(Split split) const { return parts_[static_cast<std::size_t>(split)]; }

 private:
  Part parts_[3];
  std::int64_t vocabulary_ = kBytes;
  std::filesystem::path tokenizer_;
  std::int64_t bytes_[3] = {0, 0, 0};
};

// Where a corpus of this name is: <source>/data/NAME, or NAME itself if it has a slash.
std::filesystem::path CorpusFolder(const std::string& name);

// What a corpus can be made of without a download.
struct CorpusSource {
  std::string name;
  std::string description;
  std::string extension;  // of the files that are taken; empty: all
};
const std::vector<CorpusSource>& CorpusSources();
// The folder that holds the files of a source. UsageError if it is not on this machine.
std::filesystem::path SourceFolder(const CorpusSource& source);

struct PrepareOptions {
  std::string name;                           // recorded
  std::vector<std::filesystem::path> inputs;  // files, and folders whose files are taken
  std::string extension;                      // of files in folders; empty: all
  // What makes the tokens: a file that Tokenizer takes, or "bpe:SIZE" for byte-level BPE of SIZE
  // tokens, trained on the training part; empty: they are bytes.
  std::string tokenizer;
  bool skip_bad = false;         // leaves out files that are not UTF-8 text
  std::filesystem::path folder;  // what is made
};

struct Prepared {
  bool made = false;                   // false: the folder already held just this
  std::int64_t files = 0;              // taken
  std::int64_t skipped = 0;            // not UTF-8 text, or empty
  std::int64_t tokens[3] = {0, 0, 0};  // of each Split
};

// Reads the files in the order of their paths. The part of a file follows from its path: of twenty
// equal shares of a hash, one is test and one is validation. `progress(done, all)` counts bytes,
// twice where a tokenizer is trained.
// The folder is complete or not there: parts are written aside and the manifest last. Throws
// UsageError for what cannot be read, is not text (naming file and byte), or leaves a part without
// tokens; Interrupted when `progress` returns false.
Prepared PrepareCorpus(const PrepareOptions& options,
                       const std::function<bool(std::int64_t, std::int64_t)>& progress);

// The first byte at which `text` is not UTF-8, or -1. A zero byte is no text.
std::int64_t FirstBadByte(const std::string& text);

}  // namespace tsallis::lab
