#include "lab/text/corpus.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>

#include "core/crc32c.h"
#include "lab/base/errors.h"
#include "lab/base/files.h"
#include "lab/base/paths.h"

namespace tsallis::lab {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

}  // namespace

void RefuseFile(const fs::path& path, const std::string& why) {
  throw UsageError(path.string() + ": " + why);
}

void RefuseErrno(const fs::path& path, const std::string& what) {
  RefuseFile(path, what + ": " + std::strerror(errno));
}

std::vector<std::string> ShardsOf(const Json& manifest, const char* part) {
  if (!manifest.contains("shards")) return {std::string(part) + ".bin"};
  const Json& shards = manifest["shards"];
  std::vector<std::string> names;
  if (!shards.is_object() || !shards.contains(part) || !shards[part].is_array()) return names;
  for (const Json& name : shards[part]) {
    if (name.is_string()) names.push_back(name.get<std::string>());
  }
  return names;
}

ShardHeader ShardHeader::Of(bool wide, std::int64_t tokens) {
  const auto count = static_cast<std::int32_t>(tokens);
  return wide ? ShardHeader{20240801, 7, count} : ShardHeader{20240520, 1, count};
}

void Shard::Unmap::operator()(void* memory) const { munmap(memory, bytes); }

Shard::Shard(const fs::path& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) RefuseErrno(path, "cannot be read");
  struct stat about = {};
  fstat(file, &about);
  const auto bytes = static_cast<std::size_t>(about.st_size);
  void* memory = MAP_FAILED;
  if (bytes >= ShardHeader::kBytes) {
    memory = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, file, 0);
  }
  close(file);
  if (memory == MAP_FAILED) {
    RefuseFile(path,
               fmt::format("expected tokens behind a header of 1024 bytes, got {} bytes", bytes));
  }
  memory_ = {memory, Unmap{bytes}};
  ShardHeader header = {};
  std::memcpy(&header, memory, sizeof header);
  const auto fits = [&](const ShardHeader& kind) {
    return header.magic == kind.magic && header.version == kind.version;
  };
  const ShardHeader narrow = ShardHeader::Of(false, 0), wide = ShardHeader::Of(true, 0);
  wide_ = fits(wide);
  count_ = static_cast<std::int64_t>(bytes - ShardHeader::kBytes) / TokenBytes();
  tokens_ = static_cast<const char*>(memory) + ShardHeader::kBytes;
  if (!fits(narrow) && !fits(wide)) {
    RefuseFile(path, fmt::format("expected a header that begins {}, {} or {}, {}; got {}, {}",
                                 narrow.magic, narrow.version, wide.magic, wide.version,
                                 header.magic, header.version));
  }
  if (header.tokens != count_) {
    RefuseFile(path,
               fmt::format("expected {} tokens as its header says, got {}", header.tokens, count_));
  }
}

std::vector<std::int64_t> Corpus::Part::Read(std::int64_t begin, std::int64_t count) const {
  std::vector<std::int64_t> tokens;
  tokens.reserve(count);
  auto shard = static_cast<std::size_t>(std::upper_bound(begins_.begin(), begins_.end(), begin) -
                                        begins_.begin() - 1);
  for (std::int64_t at = begin; at < begin + count; ++at) {
    while (at >= begins_[shard + 1]) ++shard;
    tokens.push_back((*shards_[shard])[at - begins_[shard]]);
  }
  return tokens;
}

Corpus::Corpus(const fs::path& folder) {
  const fs::path path = folder / "manifest.json";
  if (!fs::exists(path)) {
    RefuseFile(folder, fmt::format("no corpus there; `tsallis data prepare {}` makes it",
                                   folder.filename().string()));
  }
  const Json manifest = ReadJson(path);
  if (!manifest.is_object() || !manifest.contains("files") || !manifest["files"].is_array()) {
    RefuseFile(path, "expected an object with the list \"files\"");
  }
  if (manifest.contains("tokens") && manifest["tokens"].is_object()) {
    const Json& tokens = manifest["tokens"];
    is_bytes_ = false;
    if (tokens.contains("tokenizer")) tokenizer_ = folder / tokens.value("tokenizer", "");
    vocabulary_ = tokens.value("vocabulary", std::int64_t{0});
    if (vocabulary_ < 1 || (!tokenizer_.empty() && !fs::is_regular_file(tokenizer_))) {
      RefuseFile(path,
                 "expected \"tokens\" with a \"vocabulary\" and, if any, a \"tokenizer\" in the "
                 "folder, got " +
                     tokens.dump());
    }
  }
  if (manifest.contains("pairs")) {
    const Json& pairs = manifest["pairs"];
    const auto is_text = [&](const char* side) {
      return pairs.is_object() && pairs.contains(side) && pairs[side].is_string();
    };
    if (!is_text("source") || !is_text("target")) {
      RefuseFile(path, "expected \"pairs\" with \"source\" and \"target\", got " + pairs.dump());
    }
    pairs_ = Sides{pairs["source"].get<std::string>(), pairs["target"].get<std::string>()};
  }
  std::uint32_t checksum = 0;
  for (const Json& file : manifest["files"]) {
    const std::string name = file.is_object() ? file.value("part", "") : "";
    const auto found = std::find(kPartNames.begin(), kPartNames.end(), name);
    if (found == kPartNames.end() || !file.contains("tokens") ||
        !file["tokens"].is_number_integer()) {
      RefuseFile(path, "expected files with \"part\" and \"tokens\", got " + file.dump());
    }
    const auto part = static_cast<std::size_t>(found - kPartNames.begin());
    const auto tokens = file["tokens"].get<std::int64_t>();
    parts_[part].documents_.push_back(tokens);
    bytes_[part] += file.value("bytes", is_bytes_ ? tokens : 0);
    const std::string line = fmt::format("{} {} {}\n", name, tokens, file.value("crc32c", ""));
    checksum = Crc32c(line.data(), line.size(), checksum);
  }
  checksum_ = fmt::format("{:08x}", checksum);
  for (std::size_t i = 0; i < kPartNames.size(); ++i) {
    Part& part = parts_[i];
    const std::vector<std::string> names = ShardsOf(manifest, kPartNames[i]);
    if (names.empty()) {
      RefuseFile(path, fmt::format("expected \"shards\" with a list of files for \"{}\", got {}",
                                   kPartNames[i], manifest["shards"].dump()));
    }
    for (const std::string& name : names) {
      part.shards_.push_back(std::make_unique<Shard>(folder / name));
      part.begins_.push_back(part.size() + part.shards_.back()->size());
    }
    const auto sum =
        std::accumulate(part.documents_.begin(), part.documents_.end(), std::int64_t{0});
    if (sum != part.size()) {
      RefuseFile(folder / names.front(),
                 fmt::format("expected {} tokens as manifest.json says, got {}", sum, part.size()));
    }
  }
}

double Corpus::BytesPerToken(Split split) const {
  const auto part = static_cast<std::size_t>(split);
  return static_cast<double>(bytes_[part]) / static_cast<double>(parts_[part].size());
}

fs::path CorpusFolder(const std::string& name) {
  return name.find('/') != std::string::npos ? fs::path(name) : SourceDir() / "data" / name;
}

std::unique_ptr<Corpus> OpenCorpus(const std::string& name, std::int64_t vocabulary, bool pairs) {
  auto corpus = std::make_unique<Corpus>(CorpusFolder(name));
  const std::optional<Sides>& sides = corpus->Pairs();
  if (sides.has_value() != pairs) {
    throw UsageError(
        pairs ? fmt::format("corpus {}: expected pairs of sentences, which `tsallis data prepare "
                            "{} --pairs SOURCE,TARGET` makes, got text that runs on",
                            name, name)
              : fmt::format("corpus {}: expected text that runs on, got pairs of sentences, {} and "
                            "{}, which the task \"translation\" reads",
                            name, sides->source, sides->target));
  }
  if (corpus->Vocabulary() > vocabulary || (vocabulary == kBytes) != corpus->IsBytes()) {
    const std::string maker = corpus->TokenizerFile().filename().string();
    throw UsageError(
        fmt::format("corpus {}: its tokens are {}; expected task.vocabulary {}, got {}", name,
                    corpus->IsBytes() ? "bytes"
                    : maker.empty()   ? "of shards"
                                      : maker + "'s",
                    corpus->Vocabulary(), vocabulary));
  }
  return corpus;
}

}  // namespace tsallis::lab
