// Real text as tokens on disk. A corpus is a folder:
//
//     manifest.json                        source, held-out rule, every document with its part and
//                                          checksum
//     train.bin  validation.bin  test.bin  tokens, documents one after the other
//
// A .bin file, a shard, is a header of 256 int32, then tokens: {20240520, 1, tokens} with uint16 or
// {20240801, 7, tokens} with uint32, as llm.c and modded-nanogpt write them. A part of more than
// 2^30 tokens has several shards, train_000001.bin and so on; the manifest lists them under
// "shards", by their names or, where they lie elsewhere, by absolute paths. Numbers are
// little-endian. Tokens are bytes, or those of a tokenizer whose file lies in the folder.
//
// A corpus of parallel text says so under "pairs", with the names of its two sides. Its documents
// are pairs of sentences one after the other, `source... sep target... eos`; "vocabulary" does not
// count these two special tokens (lab/base/special_tokens.h).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lab/base/random.h"

namespace tsallis::lab {

// How many tokens there are where tokens are bytes.
inline constexpr std::int64_t kBytes = 256;

// The most that a shard of uint16 can tell apart.
inline constexpr std::int64_t kNarrowVocabulary = 1 << 16;

// The parts' names in manifests and files, as Split.
inline constexpr std::array<const char*, 3> kPartNames = {"train", "validation", "test"};
inline const char* PartName(Split part) { return kPartNames[static_cast<int>(part)]; }

struct ShardHeader {
  static constexpr std::size_t kBytes = 1024;
  std::int32_t magic, version, tokens;

  static ShardHeader Of(bool wide, std::int64_t tokens);
};

// The two sides of parallel text, as its files end: "en" and "de".
struct Sides {
  std::string source, target;
};

// A file of tokens, mapped into memory.
class Shard {
 public:
  // Throws UsageError for a file that is missing, is no shard or is cut short.
  explicit Shard(const std::filesystem::path& path);

  std::int64_t size() const { return count_; }
  std::int64_t operator[](std::int64_t i) const {
    return wide_ ? static_cast<const std::uint32_t*>(tokens_)[i]
                 : static_cast<const std::uint16_t*>(tokens_)[i];
  }
  // The tokens as they lie in the file.
  const void* data() const { return tokens_; }
  std::int64_t TokenBytes() const { return wide_ ? 4 : 2; }

 private:
  struct Unmap {
    std::size_t bytes;
    void operator()(void* memory) const;
  };
  std::unique_ptr<void, Unmap> memory_;
  const void* tokens_ = nullptr;
  bool wide_ = false;
  std::int64_t count_ = 0;
};

// UsageError about a file.
[[noreturn]] void RefuseFile(const std::filesystem::path& path, const std::string& why);
// With what errno says.
[[noreturn]] void RefuseErrno(const std::filesystem::path& path, const std::string& what);

// The names of a part's shards in a manifest, PART.bin where it lists none; empty: what it lists is
// damaged.
std::vector<std::string> ShardsOf(const nlohmann::ordered_json& manifest, const char* part);

class Corpus {
 public:
  class Part {
   public:
    std::int64_t size() const { return begins_.back(); }
    // Tokens [begin, begin + count), which are there.
    std::vector<std::int64_t> Read(std::int64_t begin, std::int64_t count) const;
    // Tokens of each document, in their order.
    const std::vector<std::int64_t>& Documents() const { return documents_; }

   private:
    friend class Corpus;
    std::vector<std::unique_ptr<Shard>> shards_;
    std::vector<std::int64_t> begins_ = {0};  // of each shard, and where the last one ends
    std::vector<std::int64_t> documents_;
  };

  // Throws UsageError: for a folder without a corpus it says how one is made.
  explicit Corpus(const std::filesystem::path& folder);

  // The languages of parallel text; none: it is text that runs on.
  const std::optional<Sides>& Pairs() const { return pairs_; }
  std::int64_t Vocabulary() const { return vocabulary_; }
  bool IsBytes() const { return is_bytes_; }
  // The tokenizer that made the tokens; empty: they are bytes, or shards that came without their
  // tokenizer.
  const std::filesystem::path& TokenizerFile() const { return tokenizer_; }
  // Bytes of a part's text for each of its tokens; 0: not known.
  double BytesPerToken(Split split) const;
  // CRC-32C, in eight hexadecimal digits, of what the manifest says of every document's part,
  // tokens and checksum: two corpora of the same tokens share it, wherever they were made.
  const std::string& Checksum() const { return checksum_; }

  const Part& Of(Split split) const { return parts_[static_cast<int>(split)]; }

 private:
  Part parts_[3];
  std::int64_t vocabulary_ = kBytes;
  bool is_bytes_ = true;
  std::filesystem::path tokenizer_;
  std::int64_t bytes_[3] = {0, 0, 0};
  std::string checksum_;
  std::optional<Sides> pairs_;
};

// The folder of a corpus of this name: <source>/data/NAME, or NAME itself if it has a slash.
std::filesystem::path CorpusFolder(const std::string& name);

// The corpus of this name, for a task whose tokens are below `vocabulary` (kBytes: bytes), of pairs
// or not. UsageError if there is none, or one of more tokens or of the other kind.
std::unique_ptr<Corpus> OpenCorpus(const std::string& name, std::int64_t vocabulary, bool pairs);

}  // namespace tsallis::lab
