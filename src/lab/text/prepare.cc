#include "lab/text/prepare.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>
#include <utility>

#include "core/crc32c.h"
#include "lab/base/errors.h"
#include "lab/base/special_tokens.h"
#include "lab/text/corpus.h"
#include "lab/text/corpus_writer.h"
#include "lab/text/inputs.h"
#include "lab/text/prepare_pairs.h"
#include "lab/text/tokenizer.h"

namespace tsallis::lab {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// ---- text

// The text of a file, or nothing where it is empty or, with skip_bad, no text.
DocumentText TextOf(const Document& document, const PrepareOptions& options) {
  const Input& file = document.files.front();
  std::string text = ReadAll(file.path);
  const std::int64_t bad = FirstBadByte(text);
  if (bad >= 0 && !options.skip_bad) {
    RefuseFile(file.path,
               fmt::format("expected UTF-8 text, got something else at byte {}; --skip-bad "
                           "leaves such files out",
                           bad));
  }
  if (bad >= 0 || text.empty()) return {.skipped = 1};
  const std::uint32_t checksum = Crc32c(text.data(), text.size());
  return {.texts = {std::move(text)}, .checksum = checksum};
}

Prepared PrepareDocuments(const PrepareOptions& options, const std::vector<Input>& files,
                          const PrepareProgress& progress) {
  std::vector<Document> documents;
  if (options.pairs) {
    documents = ParallelOf(options, files);
  } else {
    for (const Input& file : files) documents.push_back({file.name, {file}});
  }
  Reading reading(files, options.tokenizer.starts_with(kTrained) ? 2 : 1, progress);
  const auto read = [&](const Document& document) {
    reading.Before();
    DocumentText text = options.pairs ? PairsOf(document) : TextOf(document, options);
    reading.After(document.Bytes());
    return text;
  };
  auto next = documents.begin();
  const auto train_text = [&](std::string& text) {
    for (; next != documents.end() && PartOf(next->name, options) != Split::kTrain; ++next) {
      reading.After(next->Bytes());
    }
    if (next == documents.end()) return false;
    text.clear();
    const DocumentText document = read(*next++);
    for (const std::string& one : document.texts) text += options.pairs ? one + '\n' : one;
    return true;
  };
  TokenMaker maker(options, train_text, [&] { reading.Before(); });
  const SpecialTokens special{maker.Vocabulary()};
  CorpusWriter writer(options, options.pairs ? special.All() : special.data);
  Prepared prepared;
  Json list = Json::array();
  for (const Document& document : documents) {
    const DocumentText text = read(document);
    prepared.skipped += text.skipped;
    if (text.texts.empty()) continue;
    std::vector<std::uint32_t> tokens;
    std::size_t bytes = 0;
    for (std::size_t i = 0; i < text.texts.size(); ++i) {
      const std::vector<std::uint32_t> more = maker.Encode(text.texts[i]);
      tokens.insert(tokens.end(), more.begin(), more.end());
      if (options.pairs) tokens.push_back(i % 2 == 0 ? special.Sep() : special.Eos());
      bytes += text.texts[i].size();
    }
    const Split part = PartOf(document.name, options);
    writer.Add(part, tokens);
    ++prepared.files;
    Json entry = {{"path", document.name}, {"part", PartName(part)}};
    if (options.pairs) {
      entry["pairs"] = text.texts.size() / 2;
      prepared.pairs[static_cast<int>(part)] += text.texts.size() / 2;
    }
    entry["tokens"] = tokens.size();
    entry["crc32c"] = fmt::format("{:08x}", text.checksum);
    if (options.pairs || maker.Source()) entry["bytes"] = bytes;
    list.push_back(std::move(entry));
  }
  Json manifest = {{"name", options.name}};
  if (options.pairs) {
    manifest["pairs"] = {{"source", options.pairs->source}, {"target", options.pairs->target}};
  }
  manifest["tokens"] = maker.Described(options.folder);
  manifest["rule"] = RuleOf(options);
  manifest["files"] = std::move(list);
  writer.Finish(std::move(manifest), maker.Source(), prepared);
  return prepared;
}

// ---- shards

constexpr const char* kShardExtension = ".bin";

Prepared PrepareShards(const PrepareOptions& options, const std::vector<Input>& files,
                       const PrepareProgress& progress) {
  if (options.tokenizer.starts_with(kTrained)) {
    throw UsageError(
        "--tokenizer: shards are tokens already; expected the tokenizer that made them, "
        "or nothing, got " +
        options.tokenizer);
  }
  Reading reading(files, 1, progress);
  std::optional<Tokenizer> tokenizer;
  if (!options.tokenizer.empty()) tokenizer.emplace(options.tokenizer);
  Prepared prepared;
  std::array<Json, 3> documents, shards;
  std::int64_t largest = 0;
  for (const Input& file : files) {
    const std::optional<Split> split = NamedPart(file.path.filename().string());
    if (!split) RefuseFile(file.path, std::string("expected a shard with ") + kNamedParts);
    const Shard shard(file.path);
    std::uint32_t checksum = 0;
    constexpr std::int64_t kPiece = 1 << 22;
    for (std::int64_t begin = 0; begin < shard.size(); begin += kPiece) {
      reading.Before();
      const std::int64_t end = std::min(shard.size(), begin + kPiece);
      for (std::int64_t i = begin; i < end; ++i) largest = std::max(largest, shard[i]);
      const std::int64_t bytes = (end - begin) * shard.TokenBytes();
      checksum = Crc32c(static_cast<const char*>(shard.data()) + begin * shard.TokenBytes(), bytes,
                        checksum);
      reading.After(bytes);
    }
    const auto part = static_cast<std::size_t>(*split);
    prepared.tokens[part] += shard.size();
    documents[part].push_back({{"path", file.name},
                               {"part", kPartNames[part]},
                               {"tokens", shard.size()},
                               {"crc32c", fmt::format("{:08x}", checksum)}});
    shards[part].push_back(fs::absolute(file.path).string());
    ++prepared.files;
  }
  constexpr auto kValidation = static_cast<std::size_t>(Split::kValidation);
  constexpr auto kTest = static_cast<std::size_t>(Split::kTest);
  for (const auto& [empty, other] : {std::pair{kTest, kValidation}, {kValidation, kTest}}) {
    if (prepared.tokens[empty] > 0) continue;
    prepared.tokens[empty] = prepared.tokens[other];
    shards[empty] = shards[other];
    documents[empty] = documents[other];
    for (Json& document : documents[empty]) document["part"] = kPartNames[empty];
  }
  RequireTokens(options, prepared, true);
  const std::int64_t vocabulary = tokenizer ? tokenizer->Vocabulary() : largest + 1;
  if (largest >= vocabulary) {
    throw UsageError(
        fmt::format("--tokenizer {}: expected more than {} tokens, as the shards have, got {}",
                    options.tokenizer, largest, vocabulary));
  }
  Json manifest = {{"name", options.name}, {"tokens", {{"vocabulary", vocabulary}}}};
  std::optional<TokenizerSource> source;
  if (tokenizer) {
    source = TokenizerSource{.file = options.tokenizer};
    manifest["tokens"]["tokenizer"] = source->Place(options.folder).filename().string();
  }
  manifest["rule"] = std::string(kNamedParts) + " of a shard";
  manifest["files"] = Json::array();
  for (std::size_t i = 0; i < kPartNames.size(); ++i) {
    manifest["shards"][kPartNames[i]] = shards[i];
    for (const Json& document : documents[i]) manifest["files"].push_back(document);
  }
  std::vector<fs::path> inputs;
  for (const Input& file : files) inputs.push_back(file.path);
  prepared.made = ReplaceCorpus(options.folder, manifest, source, /*same=*/true, inputs, [] {});
  return prepared;
}

}  // namespace

std::int64_t FirstBadByte(const std::string& text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  for (std::size_t i = 0; i < text.size();) {
    const unsigned char first = byte(i);
    const std::size_t more = first == 0     ? 9
                             : first < 0x80 ? 0
                             : first < 0xC2 ? 9
                             : first < 0xE0 ? 1
                             : first < 0xF0 ? 2
                             : first < 0xF5 ? 3
                                            : 9;
    if (more == 9 || i + more >= text.size() + (more == 0 ? 1 : 0)) {
      return static_cast<std::int64_t>(i);
    }
    for (std::size_t k = 1; k <= more; ++k) {
      if ((byte(i + k) & 0xC0) != 0x80) return static_cast<std::int64_t>(i);
    }
    // Overlong forms, surrogates, and what lies beyond U+10FFFF.
    if ((first == 0xE0 && byte(i + 1) < 0xA0) || (first == 0xED && byte(i + 1) >= 0xA0) ||
        (first == 0xF0 && byte(i + 1) < 0x90) || (first == 0xF4 && byte(i + 1) >= 0x90)) {
      return static_cast<std::int64_t>(i);
    }
    i += more + 1;
  }
  return -1;
}

Prepared PrepareCorpus(const PrepareOptions& options, const PrepareProgress& progress) {
  const std::vector<Input> files = FilesOf(options);
  std::error_code error;
  fs::create_directories(options.folder, error);
  if (error) RefuseFile(options.folder, "cannot be made: " + error.message());
  const auto is_shard = [](const Input& file) { return file.path.extension() == kShardExtension; };
  if (options.pairs || !std::any_of(files.begin(), files.end(), is_shard)) {
    RefuseFilesInTheWay(options.folder);
    return PrepareDocuments(options, files, progress);
  }
  const auto text = std::find_if_not(files.begin(), files.end(), is_shard);
  if (text != files.end()) {
    RefuseFile(text->path,
               "expected a shard (.bin) as the other inputs; or name them by --extension");
  }
  return PrepareShards(options, files, progress);
}

}  // namespace tsallis::lab
