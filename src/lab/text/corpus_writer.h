// Writing a corpus (corpus.h) so that its folder is complete or not there.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lab/base/random.h"
#include "lab/text/codec.h"
#include "lab/text/prepare.h"

namespace tsallis::lab {

// PrepareOptions::tokenizer begins so where it is to be trained.
inline constexpr std::string_view kTrained = "bpe:";

// The file of a tokenizer: the user's, or one that was trained into the folder, aside.
struct TokenizerSource {
  std::filesystem::path file;
  bool trained = false;

  std::filesystem::path Place(const std::filesystem::path& folder) const;
  // Whether the folder has just this one.
  bool IsIn(const std::filesystem::path& folder) const;
  void Keep(const std::filesystem::path& folder) const;
  void Discard() const;
};

// Makes the tokens of a corpus out of text.
class TokenMaker {
 public:
  // `next` gives the texts that a tokenizer is trained on, until it gives false; `waiting` may
  // throw to end the training (Tokenizer::Train). UsageError for a tokenizer that cannot be had.
  TokenMaker(const PrepareOptions& options, const std::function<bool(std::string&)>& next,
             const std::function<void()>& waiting);
  TokenMaker(const TokenMaker&) = delete;
  TokenMaker& operator=(const TokenMaker&) = delete;
  ~TokenMaker() {
    if (source_) source_->Discard();  // one that was trained, and kept by nobody
  }

  std::vector<std::uint32_t> Encode(const std::string& text) { return codec_.Encode(text, "text"); }
  // Without special tokens.
  std::int64_t Vocabulary() const { return codec_.Vocabulary(); }
  // "tokens" of the manifest in this folder.
  nlohmann::ordered_json Described(const std::filesystem::path& folder) const;
  // None: bytes.
  const std::optional<TokenizerSource>& Source() const { return source_; }

 private:
  std::optional<TokenizerSource> source_;
  TextCodec codec_;
};

// Throws where a CorpusWriter would write over a file of the user's: before a tokenizer is trained.
void RefuseFilesInTheWay(const std::filesystem::path& folder);

// Replaces a corpus, unless it has this manifest and tokenizer already and `same` says the like of
// its shards; returns whether it did. Only files that its manifest says were made in the folder are
// removed: others are the user's. `keep` are inputs, which stay whoever made them. `put` moves the
// new shards to their places. A process that is killed in between leaves a folder that can be made
// again.
bool ReplaceCorpus(const std::filesystem::path& folder, const nlohmann::ordered_json& manifest,
                   const std::optional<TokenizerSource>& source, bool same,
                   const std::vector<std::filesystem::path>& keep,
                   const std::function<void()>& put);

// UsageError unless every part has tokens. `named`: files say their part by their names.
void RequireTokens(const PrepareOptions& options, const Prepared& prepared, bool named);

class CorpusWriter {
 public:
  // Tokens are below `vocabulary`.
  CorpusWriter(const PrepareOptions& options, std::int64_t vocabulary);
  CorpusWriter(const CorpusWriter&) = delete;
  CorpusWriter& operator=(const CorpusWriter&) = delete;
  ~CorpusWriter();  // removes what Finish() did not put into its place

  // A document.
  void Add(Split part, const std::vector<std::uint32_t>& tokens);

  // Puts parts, tokenizer and manifest, to which it adds the names of shards, into the folder,
  // unless they are there byte for byte. `prepared` gets the tokens of the parts and whether it was
  // made. UsageError for a part without tokens.
  void Finish(nlohmann::ordered_json manifest, const std::optional<TokenizerSource>& source,
              Prepared& prepared);

 private:
  class Part;
  const PrepareOptions& options_;
  std::array<std::unique_ptr<Part>, 3> parts_;
};

}  // namespace tsallis::lab
