#include "lab/text/corpus.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include "lab/base/crc32c.h"
#include "lab/base/errors.h"
#include "lab/base/paths.h"
#include "lab/base/safetensors.h"
#include "lab/text/tokenizer.h"

namespace tsallis::lab {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr std::array<const char*, 3> kParts = {"train", "validation", "test"};  // as Split
constexpr std::size_t kHeader = 256;
constexpr std::int32_t kMagic = 20240520;
constexpr std::int32_t kVersion = 1;
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

Split PartOf(const std::string& path) {
  const std::uint64_t share = HashOf(path) % kShares;
  return share == 0 ? Split::kTest : share == 1 ? Split::kValidation : Split::kTrain;
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

// Writes beside `path` until it is closed and renamed.
class ShardWriter {
 public:
  explicit ShardWriter(fs::path path)
      : path_(std::move(path)), aside_(path_.string() + ".tmp"), out_(aside_, std::ios::binary) {
    const std::array<std::int32_t, kHeader> header = {};
    out_.write(reinterpret_cast<const char*>(header.data()), sizeof header);
    Check();
  }
  void Add(const std::vector<std::uint16_t>& tokens) {
    out_.write(reinterpret_cast<const char*>(tokens.data()),
               static_cast<std::streamsize>(2 * tokens.size()));
    count_ += static_cast<std::int64_t>(tokens.size());
    Check();
  }
  std::int64_t count() const { return count_; }
  // Whether the file is there already, byte for byte.
  bool Close() {
    if (count_ > INT32_MAX) Refuse(path_, "more than 2^31 - 1 tokens");
    const std::array<std::int32_t, 3> header = {kMagic, kVersion,
                                                static_cast<std::int32_t>(count_)};
    out_.seekp(0);
    out_.write(reinterpret_cast<const char*>(header.data()), sizeof header);
    out_.close();
    Check();
    return SameBytes(aside_, path_);
  }
  void Rename() { fs::rename(aside_, path_); }
  void Discard() { fs::remove(aside_); }

 private:
  void Check() {
    if (!out_) RefuseErrno(aside_, "cannot be written");
  }

  fs::path path_, aside_;
  std::ofstream out_;
  std::int64_t count_ = 0;
};

std::vector<std::uint16_t> BytesOf(const std::string& text) {
  std::vector<std::uint16_t> tokens(text.size());
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
  if (size < 257 || size > 1 << 16) {
    throw UsageError("--tokenizer: expected bpe:SIZE with a size of 257 to 65536, got " + wanted);
  }
  TokenizerSource source{.file = options.folder / "tokenizer.json.tmp", .trained = true};
  auto file = files.begin();
  Tokenizer::Train(size, source.file, [&](std::string& text) {
    while (file != files.end() && PartOf(file->name) != Split::kTrain) reading.After(*file++);
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

Shard::Shard(const fs::path& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) RefuseErrno(path, "cannot be read");
  struct stat about = {};
  fstat(file, &about);
  bytes_ = static_cast<std::size_t>(about.st_size);
  if (bytes_ >= 4 * kHeader) memory_ = mmap(nullptr, bytes_, PROT_READ, MAP_SHARED, file, 0);
  close(file);
  if (memory_ == nullptr || memory_ == MAP_FAILED) {
    memory_ = nullptr;
    Refuse(path,
           fmt::format("expected tokens behind a header of 1024 bytes, got {} bytes", bytes_));
  }
  const auto* header = static_cast<const std::int32_t*>(memory_);
  const std::int64_t found = static_cast<std::int64_t>(bytes_ - 4 * kHeader) / 2;
  if (header[0] != kMagic || header[1] != kVersion || header[2] != found) {
    const std::string why =
        header[0] != kMagic || header[1] != kVersion
            ? fmt::format("expected a header that begins {}, {}; got {}, {}", kMagic, kVersion,
                          header[0], header[1])
            : fmt::format("expected {} tokens as its header says, got {}", header[2], found);
    munmap(memory_, bytes_);
    memory_ = nullptr;
    Refuse(path, why);
  }
  tokens_ = reinterpret_cast<const std::uint16_t*>(static_cast<const char*>(memory_) + 4 * kHeader);
  count_ = found;
}

Shard::~Shard() {
  if (memory_ != nullptr) munmap(memory_, bytes_);
}

Corpus::Corpus(const fs::path& folder) {
  const Json manifest = ReadManifest(folder);
  if (manifest.is_null()) {
    Refuse(folder, fmt::format("no corpus there; `tsallis data prepare {}` makes it",
                               folder.filename().string()));
  }
  const fs::path path = folder / "manifest.json";
  if (!manifest.is_object() || !manifest.contains("files") || !manifest["files"].is_array()) {
    Refuse(path, "expected an object with the list \"files\"");
  }
  if (manifest.contains("tokens") && manifest["tokens"].is_object()) {
    const Json& tokens = manifest["tokens"];
    tokenizer_ = folder / tokens.value("tokenizer", "");
    vocabulary_ = tokens.value("vocabulary", std::int64_t{0});
    if (vocabulary_ < 1 || !fs::is_regular_file(tokenizer_)) {
      Refuse(path,
             "expected \"tokens\" with a \"tokenizer\" in the folder and its \"vocabulary\", "
             "got " +
                 tokens.dump());
    }
  }
  for (const Json& file : manifest["files"]) {
    const std::string part = file.is_object() ? file.value("part", "") : "";
    const auto found = std::find(kParts.begin(), kParts.end(), part);
    if (found == kParts.end() || !file.contains("tokens") || !file["tokens"].is_number_integer()) {
      Refuse(path, "expected files with \"part\" and \"tokens\", got " + file.dump());
    }
    const auto tokens = file["tokens"].get<std::int64_t>();
    parts_[found - kParts.begin()].documents.push_back(tokens);
    bytes_[found - kParts.begin()] += file.value("bytes", tokens);
  }
  for (std::size_t i = 0; i < kParts.size(); ++i) {
    const fs::path shard = folder / (std::string(kParts[i]) + ".bin");
    parts_[i].tokens = std::make_unique<Shard>(shard);
    std::int64_t sum = 0;
    for (const std::int64_t tokens : parts_[i].documents) sum += tokens;
    if (sum != parts_[i].tokens->size()) {
      Refuse(shard, fmt::format("expected {} tokens as manifest.json says, got {}", sum,
                                parts_[i].tokens->size()));
    }
  }
}

double Corpus::BytesPerToken(Split split) const {
  const auto part = static_cast<std::size_t>(split);
  return static_cast<double>(bytes_[part]) / static_cast<double>(parts_[part].tokens->size());
}

fs::path CorpusFolder(const std::string& name) {
  return name.find('/') != std::string::npos ? fs::path(name) : SourceDir() / "data" / name;
}

const std::vector<CorpusSource>& CorpusSources() {
  static const std::vector<CorpusSource> sources = {
      {"python", "the Python sources of the torch package that the lab is built with", ".py"}};
  return sources;
}

fs::path SourceFolder(const CorpusSource& source) {
  // torch/lib/libtorch_cpu.so, of the libraries that are loaded.
  fs::path library;
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* found) {
        const fs::path path = info->dlpi_name;
        if (path.filename() != "libtorch_cpu.so") return 0;
        *static_cast<fs::path*>(found) = path;
        return 1;
      },
      &library);
  fs::path folder = library.parent_path().parent_path();
  if (fs::exists(folder / "__init__.py")) return folder;
  throw UsageError("corpus \"" + source.name + "\": the torch package has no Python sources here");
}

Prepared PrepareCorpus(const PrepareOptions& options,
                       const std::function<bool(std::int64_t, std::int64_t)>& progress) {
  const std::vector<Input> files = FilesOf(options);
  std::int64_t all = 0;
  for (const Input& file : files) all += file.bytes;
  Prepared prepared;
  std::error_code error;
  fs::create_directories(options.folder, error);
  if (error) Refuse(options.folder, "cannot be made: " + error.message());
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
  manifest["rule"] = "FNV-1a of the path modulo 20: 0 is test, 1 is validation, else train";
  Json& list = manifest["files"] = Json::array();
  std::array<std::unique_ptr<ShardWriter>, 3> writers;
  for (std::size_t i = 0; i < kParts.size(); ++i) {
    writers[i] = std::make_unique<ShardWriter>(options.folder / (std::string(kParts[i]) + ".bin"));
  }
  for (const Input& file : files) {
    reading.Before();
    const std::string text = TextOf(file, options);
    reading.After(file);
    if (text.empty()) {
      ++prepared.skipped;
      continue;
    }
    const std::vector<std::uint16_t> tokens = tokenizer ? tokenizer->Encode(text) : BytesOf(text);
    const Split part = PartOf(file.name);
    writers[static_cast<std::size_t>(part)]->Add(tokens);
    list.push_back({{"path", file.name},
                    {"part", kParts[static_cast<std::size_t>(part)]},
                    {"tokens", tokens.size()},
                    {"crc32c", fmt::format("{:08x}", Crc32c(text.data(), text.size()))}});
    if (tokenizer) list.back()["bytes"] = text.size();
    ++prepared.files;
  }
  for (std::size_t i = 0; i < kParts.size(); ++i) {
    prepared.tokens[i] = writers[i]->count();
    if (prepared.tokens[i] == 0) {
      throw UsageError(fmt::format(
          "{}: of {} files none fell to the part \"{}\"; more or smaller files are needed",
          options.name, prepared.files, kParts[i]));
    }
  }
  bool same = ReadManifest(options.folder) == manifest;
  for (const auto& writer : writers) same = writer->Close() && same;
  if (source) same = same && SameBytes(source->file, source->Place(options.folder));
  if (same) {
    if (source) source->Discard();
    for (const auto& writer : writers) writer->Discard();
    return prepared;
  }
  fs::remove(options.folder / "manifest.json");
  for (const auto& writer : writers) writer->Rename();
  if (source) source->Keep(options.folder);
  WriteFileAtomically(options.folder / "manifest.json", manifest.dump(1) + "\n");
  prepared.made = true;
  return prepared;
}

}  // namespace tsallis::lab
