// Making a corpus (corpus.h) of text files, of parallel text, or of shards that others wrote.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lab/base/random.h"
#include "lab/text/corpus.h"

namespace tsallis::lab {

// Files below this folder of an input belong to this part.
struct HeldOut {
  std::string top;
  Split part;
};

struct PrepareOptions {
  std::string name;                           // recorded
  std::vector<std::filesystem::path> inputs;  // files, and folders whose files are taken
  std::string extension;                      // of files in folders; empty: all
  // Folders that are held out, the others being trained on; empty: the part of a file follows from
  // its path, of twenty equal shares of a hash one is test and one is validation.
  std::vector<HeldOut> held_out;
  // The tokenizer: a file that Tokenizer takes, or "bpe:SIZE" for byte-level BPE of SIZE tokens,
  // trained on the training part; empty: tokens are bytes. For shards: the one that made them.
  std::string tokenizer;
  // Files are parallel text, NAME.source and NAME.target with a sentence on each line; none: text
  // that runs on.
  std::optional<Sides> pairs;
  bool skip_bad = false;                // leaves out files that are not UTF-8 text
  std::filesystem::path folder;         // what is made
  std::int64_t shard_tokens = 1 << 30;  // that a shard holds at most, unless one document is longer
};

struct Prepared {
  bool made = false;                   // false: the folder already held just this
  std::int64_t files = 0;              // taken; the two of parallel text are one
  std::int64_t skipped = 0;            // not UTF-8 text, or empty; lines that are, of parallel text
  std::int64_t pairs[3] = {0, 0, 0};   // of sentences, of each Split
  std::int64_t tokens[3] = {0, 0, 0};  // of each Split
};

// Is told of bytes that are done, and of all; false stops.
using PrepareProgress = std::function<bool(std::int64_t done, std::int64_t all)>;

// Reads the files in the order of their paths. `progress` counts them twice where a tokenizer is
// trained.
// Inputs that end in ".bin" are shards, which stay where they are. The name of a shard tells its
// part: "train", "val" or "dev", or "test". If validation or test has no shard, it takes those of
// the other. The vocabulary is the tokenizer's, or else ends with the largest token.
// Where no folder is held out, names of parallel text tell their part in the same way; without such
// a word the hash decides.
// The folder is complete or not there: parts are written aside and the manifest last. Throws
// UsageError for what cannot be read, is not text (naming file and byte), lacks its translation
// (naming file and line), or leaves a part without tokens; Interrupted when `progress` returns
// false.
Prepared PrepareCorpus(
    const PrepareOptions& options,
    const PrepareProgress& progress = [](std::int64_t, std::int64_t) { return true; });

// The first byte at which `text` is not UTF-8, or -1. A zero byte is no text.
std::int64_t FirstBadByte(const std::string& text);

}  // namespace tsallis::lab
