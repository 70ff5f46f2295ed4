#include "lab/text/prepare.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include "core/crc32c.h"
#include "lab/base/errors.h"
#include "lab/base/files.h"
#include "lab/text/corpus.h"
#include "lab/text/tokenizer.h"

namespace tsallis::lab {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using Progress = std::function<bool(std::int64_t, std::int64_t)>;

constexpr std::uint64_t kShares = 20;

[[noreturn]] void Refuse(const fs::path& path, const std::string& why) {
  throw UsageError(path.string() + ": " + why);
}

[[noreturn]] void RefuseErrno(const fs::path& path, const std::string& what) {
  Refuse(path, what + ": " + std::strerror(errno));
}

// FNV-1a.
std::uint64_t HashOf(const std::string& text) {
  std::uint64_t hash = 14695981039346656037U;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211U;
  return hash;
}

// `path` below its input.
Split PartOf(const std::string& path, const PrepareOptions& options) {
  if (options.held_out.empty()) {
    const std::uint64_t share = HashOf(path) % kShares;
    return share == 0 ? Split::kTest : share == 1 ? Split::kValidation : Split::kTrain;
  }
  const std::string top = path.substr(0, path.find('/'));
  for (const HeldOut& held : options.held_out) {
    if (held.top == top) return held.part;
  }
  return Split::kTrain;
}

std::string RuleOf(const PrepareOptions& options) {
  if (options.held_out.empty()) {
    return "FNV-1a of the path modulo 20: 0 is test, 1 is validation, else train";
  }
  std::string rule = "top folder: ";
  for (const HeldOut& held : options.held_out) {
    rule += fmt::format("{} is {}, ", held.top, kPartNames[static_cast<std::size_t>(held.part)]);
  }
  return rule + "else train";
}

struct Input {
  fs::path path;
  std::string name;  // below its folder, which decides the part
  std::int64_t bytes = 0;
};

// By name, so that the order does not depend on the file system.
std::vector<Input> FilesOf(const PrepareOptions& options) {
  std::vector<Input> files;
  for (const fs::path& input : options.inputs) {
    std::error_code error;
    if (fs::is_regular_file(input, error)) {
      files.push_back({input, input.filename().string()});
      continue;
    }
    if (!fs::is_directory(input, error)) Refuse(input, "no such file or folder");
    for (fs::recursive_directory_iterator at(input, error), end; !error && at != end;
         at.increment(error)) {
      if (!at->is_regular_file() || at->is_symlink()) continue;
      if (!options.extension.empty() && at->path().extension() != options.extension) continue;
      files.push_back({at->path(), fs::relative(at->path(), input).generic_string()});
    }
    if (error) Refuse(input, "cannot be read: " + error.message());
  }
  std::sort(files.begin(), files.end(),
            [](const Input& a, const Input& b) { return a.name < b.name; });
  for (std::size_t i = 1; i < files.size(); ++i) {
    if (files[i].name == files[i - 1].name) {
      Refuse(files[i].path, "has the name of another file: " + files[i - 1].path.string());
    }
  }
  for (Input& file : files) file.bytes = static_cast<std::int64_t>(fs::file_size(file.path));
  return files;
}

std::string ReadAll(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  if (!in) RefuseErrno(path, "cannot be read");
  return text;
}

bool SameBytes(const fs::path& a, const fs::path& b) {
  std::error_code error;
  if (fs::file_size(a) != fs::file_size(b, error) || error) return false;
  std::ifstream of_a(a, std::ios::binary), of_b(b, std::ios::binary);
  std::vector<char> part_a(1 << 20), part_b(1 << 20);
  while (of_a && of_b) {
    of_a.read(part_a.data(), static_cast<std::streamsize>(part_a.size()));
    of_b.read(part_b.data(), static_cast<std::streamsize>(part_b.size()));
    if (of_a.gcount() != of_b.gcount() ||
        !std::equal(part_a.begin(), part_a.begin() + of_a.gcount(), part_b.begin())) {
      return false;
    }
  }
  return true;
}

// Writes the shards of a part beside their places until they are closed and renamed.
class PartWriter {
 public:
  PartWriter(fs::path folder, const char* part, bool wide, std::int64_t most)
      : folder_(std::move(folder)), part_(part), wide_(wide), most_(most) {
    Begin();
  }
  // A document.
  void Add(const std::vector<std::uint32_t>& tokens) {
    const auto count = static_cast<std::int64_t>(tokens.size());
    if (count > INT32_MAX) Refuse(folder_, "a document has more than 2^31 - 1 tokens");
    if (shards_.back() > 0 && shards_.back() + count > most_) {
      End();
      Begin();
    }
    if (wide_) {
      Write(tokens.data(), 4 * tokens.size());
    } else {
      const std::vector<std::uint16_t> narrow(tokens.begin(), tokens.end());
      Write(narrow.data(), 2 * narrow.size());
    }
    shards_.back() += count;
  }
  std::int64_t count() const {
    std::int64_t sum = 0;
    for (const std::int64_t tokens : shards_) sum += tokens;
    return sum;
  }
  // Whether the files are there already, byte for byte.
  bool Close() {
    End();
    bool same = true;
    for (std::size_t i = 0; i < shards_.size(); ++i) {
      same = same && SameBytes(Aside(i), folder_ / Name(i));
    }
    return same;
  }
  // After Close().
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (std::size_t i = 0; i < shards_.size(); ++i) names.push_back(Name(i));
    return names;
  }
  void Rename() {
    for (std::size_t i = 0; i < shards_.size(); ++i) fs::rename(Aside(i), folder_ / Name(i));
  }
  void Discard() {
    for (std::size_t i = 0; i < shards_.size(); ++i) fs::remove(Aside(i));
  }

 private:
  std::string Name(std::size_t i) const {
    return shards_.size() == 1 ? part_ + ".bin" : fmt::format("{}_{:06}.bin", part_, i + 1);
  }
  fs::path Aside(std::size_t i) const {
    return folder_ / fmt::format("{}_{:06}.bin.tmp", part_, i + 1);
  }
  void Begin() {
    shards_.push_back(0);
    out_.open(Aside(shards_.size() - 1), std::ios::binary);
    const std::array<char, ShardHeader::kBytes> empty = {};
    Write(empty.data(), empty.size());
  }
  void End() {
    const ShardHeader header = ShardHeader::Of(wide_, shards_.back());
    out_.seekp(0);
    Write(&header, sizeof header);
    out_.close();
    Check();
  }
  void Write(const void* data, std::size_t bytes) {
    out_.write(static_cast<const char*>(data), static_cast<std::streamsize>(bytes));
    Check();
  }
  void Check() {
    if (!out_) RefuseErrno(Aside(shards_.size() - 1), "cannot be written");
  }

  fs::path folder_;
  std::string part_;
  bool wide_;
  std::int64_t most_;
  std::ofstream out_;
  std::vector<std::int64_t> shards_;  // tokens of each so far
};

std::vector<std::uint32_t> BytesOf(const std::string& text) {
  std::vector<std::uint32_t> tokens(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) tokens[i] = static_cast<unsigned char>(text[i]);
  return tokens;
}

// The text of a file, or nothing where it is empty or, with skip_bad, no text.
std::string TextOf(const Input& file, const PrepareOptions& options) {
  std::string text = ReadAll(file.path);
  const std::int64_t bad = FirstBadByte(text);
  if (bad < 0) return text;
  if (options.skip_bad) return "";
  Refuse(file.path, fmt::format("expected UTF-8 text, got something else at byte {}; --skip-bad "
                                "leaves such files out",
                                bad));
}

// Counts bytes that have been read, and stops.
class Reading {
 public:
  Reading(std::int64_t all, const std::function<bool(std::int64_t, std::int64_t)>& progress)
      : all_(all), progress_(progress) {}
  void Before() const {
    if (!progress_(done_, all_)) throw Interrupted("stopped; nothing was made");
  }
  void After(const Input& file) { done_ += file.bytes; }

 private:
  std::int64_t done_ = 0, all_;
  const std::function<bool(std::int64_t, std::int64_t)>& progress_;
};

constexpr std::string_view kTrained = "bpe:";

// What makes tokens: a file of the user's, or one that was trained into the folder, aside.
struct TokenizerSource {
  fs::path file;
  bool trained = false;

  fs::path Place(const fs::path& folder) const {
    return folder / (file.extension() == ".model" ? "tokenizer.model" : "tokenizer.json");
  }
  void Keep(const fs::path& folder) const {
    const fs::path to = Place(folder);
    std::error_code error;
    if (trained) {
      fs::rename(file, to, error);
    } else if (!fs::equivalent(file, to, error)) {
      fs::copy_file(file, to, fs::copy_options::overwrite_existing, error);
    }
    if (error) Refuse(to, "cannot be written: " + error.message());
  }
  void Discard() const {
    if (trained) fs::remove(file);
  }
};

// Of options.tokenizer, which is given.
TokenizerSource SourceOfTokens(const PrepareOptions& options, const std::vector<Input>& files,
                               Reading& reading) {
  const std::string& wanted = options.tokenizer;
  if (!wanted.starts_with(kTrained)) return {.file = wanted};
  const std::string number = wanted.substr(kTrained.size());
  const bool digits = !number.empty() && number.size() < 6 &&
                      number.find_first_not_of("0123456789") == std::string::npos;
  const std::int64_t size = digits ? std::stoll(number) : 0;
  if (size < 257 || size > kNarrowVocabulary) {
    throw UsageError("--tokenizer: expected bpe:SIZE with a size of 257 to 65536, got " + wanted);
  }
  TokenizerSource source{.file = options.folder / "tokenizer.json.tmp", .trained = true};
  auto file = files.begin();
  Tokenizer::Train(size, source.file, [&](std::string& text) {
    while (file != files.end() && PartOf(file->name, options) != Split::kTrain)
      reading.After(*file++);
    if (file == files.end()) return false;
    reading.Before();
    text = TextOf(*file, options);
    reading.After(*file++);
    return true;
  });
  return source;
}

Json ReadManifest(const fs::path& folder) {
  std::ifstream in(folder / "manifest.json");
  return in ? Json::parse(in, nullptr, false) : Json();
}

// Of a corpus that is made anew: files of the one before it.
void RemoveShards(const fs::path& folder, const Json& manifest) {
  std::vector<std::string> names;
  for (const char* part : kPartNames) names.push_back(std::string(part) + ".bin");
  if (manifest.is_object() && manifest.contains("shards") && manifest["shards"].is_object()) {
    for (const auto& [part, shards] : manifest["shards"].items()) {
      for (const Json& name : shards) {
        if (name.is_string()) names.push_back(name.get<std::string>());
      }
    }
  }
  for (const std::string& name : names) {
    if (!name.empty() && name.find('/') == std::string::npos) fs::remove(folder / name);
  }
}

void RequireTokens(const PrepareOptions& options, const Prepared& prepared) {
  for (std::size_t i = 0; i < kPartNames.size(); ++i) {
    if (prepared.tokens[i] > 0) continue;
    throw UsageError(fmt::format(
        "{}: of {} files none fell to the part \"{}\"; more or smaller files are needed",
        options.name, prepared.files, kPartNames[i]));
  }
}

// ---- text
// ----------------------------------------------------------------------------------------

Prepared PrepareText(const PrepareOptions& options, const std::vector<Input>& files,
                     const Progress& progress) {
  std::int64_t all = 0;
  for (const Input& file : files) all += file.bytes;
  Reading reading(options.tokenizer.starts_with(kTrained) ? 2 * all : all, progress);
  std::optional<TokenizerSource> source;
  std::optional<Tokenizer> tokenizer;
  if (!options.tokenizer.empty()) {
    source = SourceOfTokens(options, files, reading);
    tokenizer.emplace(source->file);
  }
  Json manifest = {{"name", options.name}};
  if (tokenizer) {
    manifest["tokens"] = {{"tokenizer", source->Place(options.folder).filename().string()},
                          {"vocabulary", tokenizer->Vocabulary()}};
  } else {
    manifest["tokens"] = "bytes";
  }
  manifest["rule"] = RuleOf(options);
  Json& list = manifest["files"] = Json::array();
  const bool wide = tokenizer && tokenizer->Vocabulary() > kNarrowVocabulary;
  std::array<std::unique_ptr<PartWriter>, 3> writers;
  for (std::size_t i = 0; i < kPartNames.size(); ++i) {
    writers[i] =
        std::make_unique<PartWriter>(options.folder, kPartNames[i], wide, options.shard_tokens);
  }
  Prepared prepared;
  for (const Input& file : files) {
    reading.Before();
    const std::string text = TextOf(file, options);
    reading.After(file);
    if (text.empty()) {
      ++prepared.skipped;
      continue;
    }
    const std::vector<std::uint32_t> tokens = tokenizer ? tokenizer->Encode(text) : BytesOf(text);
    const auto part = static_cast<std::size_t>(PartOf(file.name, options));
    writers[part]->Add(tokens);
    list.push_back({{"path", file.name},
                    {"part", kPartNames[part]},
                    {"tokens", tokens.size()},
                    {"crc32c", fmt::format("{:08x}", Crc32c(text.data(), text.size()))}});
    if (tokenizer) list.back()["bytes"] = text.size();
    ++prepared.files;
  }
  for (std::size_t i = 0; i < kPartNames.size(); ++i) prepared.tokens[i] = writers[i]->count();
  RequireTokens(options, prepared);
  bool same = true, several = false;
  for (const auto& writer : writers) {
    same = writer->Close() && same;
    several = several || writer->Names().size() > 1;
  }
  if (several) {
    for (std::size_t i = 0; i < kPartNames.size(); ++i) {
      manifest["shards"][kPartNames[i]] = writers[i]->Names();
    }
  }
  const Json before = ReadManifest(options.folder);
  same = same && before == manifest;
  if (source) same = same && SameBytes(source->file, source->Place(options.folder));
  if (same) {
    if (source) source->Discard();
    for (const auto& writer : writers) writer->Discard();
    return prepared;
  }
  fs::remove(options.folder / "manifest.json");
  RemoveShards(options.folder, before);
  for (const auto& writer : writers) writer->Rename();
  if (source) source->Keep(options.folder);
  WriteFileAtomically(options.folder / "manifest.json", manifest.dump(1) + "\n");
  prepared.made = true;
  return prepared;
}

// ---- shards
// --------------------------------------------------------------------------------------

constexpr const char* kShardExtension = ".bin";

// As their writers name them: fineweb_train_000001.bin, fineweb_val_000000.bin.
Split PartOfShard(const fs::path& path) {
  const std::string name = path.filename().string();
  const auto has = [&](const char* word) { return name.find(word) != std::string::npos; };
  if (has("train")) return Split::kTrain;
  if (has("val")) return Split::kValidation;
  if (has("test")) return Split::kTest;
  Refuse(path, "expected a shard with train, val or test in its name");
}

Prepared PrepareShards(const PrepareOptions& options, const std::vector<Input>& files,
                       const Progress& progress) {
  if (options.tokenizer.starts_with(kTrained)) {
    throw UsageError(
        "--tokenizer: shards are tokens already; expected the file of what made them, "
        "or nothing, got " +
        options.tokenizer);
  }
  std::int64_t all = 0;
  for (const Input& file : files) all += file.bytes;
  std::optional<Tokenizer> tokenizer;
  if (!options.tokenizer.empty()) tokenizer.emplace(options.tokenizer);
  Prepared prepared;
  std::array<Json, 3> documents, shards;
  std::int64_t largest = 0, done = 0;
  for (const Input& file : files) {
    const Split split = PartOfShard(file.path);
    const Shard shard(file.path);
    std::uint32_t checksum = 0;
    constexpr std::int64_t kPiece = 1 << 22;
    for (std::int64_t begin = 0; begin < shard.size(); begin += kPiece) {
      if (!progress(done + begin * shard.TokenBytes(), all)) {
        throw Interrupted("stopped; nothing was made");
      }
      const std::int64_t end = std::min(shard.size(), begin + kPiece);
      for (std::int64_t i = begin; i < end; ++i) largest = std::max(largest, shard[i]);
      checksum = Crc32c(static_cast<const char*>(shard.data()) + begin * shard.TokenBytes(),
                        static_cast<std::size_t>((end - begin) * shard.TokenBytes()), checksum);
    }
    done += file.bytes;
    const auto part = static_cast<std::size_t>(split);
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
  RequireTokens(options, prepared);
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
  manifest["rule"] = "train, val or test in the name of a shard";
  manifest["files"] = Json::array();
  for (std::size_t i = 0; i < kPartNames.size(); ++i) {
    manifest["shards"][kPartNames[i]] = shards[i];
    for (const Json& document : documents[i]) manifest["files"].push_back(document);
  }
  const Json before = ReadManifest(options.folder);
  if (before == manifest && (!source || SameBytes(source->file, source->Place(options.folder)))) {
    return prepared;
  }
  fs::remove(options.folder / "manifest.json");
  RemoveShards(options.folder, before);
  if (source) source->Keep(options.folder);
  WriteFileAtomically(options.folder / "manifest.json", manifest.dump(1) + "\n");
  prepared.made = true;
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

Prepared PrepareCorpus(const PrepareOptions& options, const Progress& progress) {
  const std::vector<Input> files = FilesOf(options);
  std::error_code error;
  fs::create_directories(options.folder, error);
  if (error) Refuse(options.folder, "cannot be made: " + error.message());
  const auto is_shard = [](const Input& file) { return file.path.extension() == kShardExtension; };
  if (!std::any_of(files.begin(), files.end(), is_shard)) {
    return PrepareText(options, files, progress);
  }
  const auto text = std::find_if_not(files.begin(), files.end(), is_shard);
  if (text != files.end()) {
    Refuse(text->path, "expected a shard (.bin) as the other inputs; or name them by --extension");
  }
  return PrepareShards(options, files, progress);
}

}  // namespace tsallis::lab
