#include "lab/text/corpus_writer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <numeric>
#include <regex>
#include <set>
#include <string>
#include <system_error>
#include <utility>

#include "lab/base/errors.h"
#include "lab/base/files.h"
#include "lab/text/corpus.h"
#include "lab/text/inputs.h"

namespace tsallis::lab {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

bool SameBytes(const fs::path& a, const fs::path& b) {
  std::error_code error;
  if (fs::file_size(a) != fs::file_size(b, error) || error) return false;
  std::ifstream of_a(a, std::ios::binary), of_b(b, std::ios::binary);
  std::vector<char> part_a(1 << 20), part_b(1 << 20);
  while (of_a && of_b) {
    of_a.read(part_a.data(), part_a.size());
    of_b.read(part_b.data(), part_b.size());
    if (of_a.gcount() != of_b.gcount() ||
        !std::equal(part_a.begin(), part_a.begin() + of_a.gcount(), part_b.begin())) {
      return false;
    }
  }
  return true;
}

// The source of options.tokenizer; none: bytes.
std::optional<TokenizerSource> SourceOfTokens(const PrepareOptions& options,
                                              const std::function<bool(std::string&)>& next,
                                              const std::function<void()>& waiting) {
  const std::string& wanted = options.tokenizer;
  if (wanted.empty()) return {};
  if (!wanted.starts_with(kTrained)) return TokenizerSource{.file = wanted};
  std::int64_t size = 0;
  const char *number = wanted.data() + kTrained.size(), *end = wanted.data() + wanted.size();
  const auto [behind, error] = std::from_chars(number, end, size);
  if (error != std::errc() || behind != end || size <= kBytes || size > kNarrowVocabulary) {
    throw UsageError("--tokenizer: expected bpe:SIZE with a size of 257 to 65536, got " + wanted);
  }
  TokenizerSource source{.file = options.folder / "tokenizer.json.tmp", .trained = true};
  try {
    Tokenizer::Train(size, source.file, next, waiting);
  } catch (...) {
    source.Discard();
    throw;
  }
  return source;
}

}  // namespace

fs::path TokenizerSource::Place(const fs::path& folder) const {
  return folder / (file.extension() == ".model" ? "tokenizer.model" : "tokenizer.json");
}

bool TokenizerSource::IsIn(const fs::path& folder) const { return SameBytes(file, Place(folder)); }

void TokenizerSource::Keep(const fs::path& folder) const {
  const fs::path to = Place(folder);
  std::error_code error;
  if (trained) {
    fs::rename(file, to, error);
  } else if (!fs::equivalent(file, to, error)) {
    fs::copy_file(file, to, fs::copy_options::overwrite_existing, error);
  }
  if (error) RefuseFile(to, "cannot be written: " + error.message());
}

void TokenizerSource::Discard() const {
  std::error_code ignored;  // also while another error is on its way
  if (trained) fs::remove(file, ignored);
}

TokenMaker::TokenMaker(const PrepareOptions& options, const std::function<bool(std::string&)>& next,
                       const std::function<void()>& waiting)
    : source_(SourceOfTokens(options, next, waiting)),
      codec_(source_ ? source_->file : fs::path()) {}

Json TokenMaker::Described(const fs::path& folder) const {
  if (!source_) return "bytes";
  return {{"tokenizer", source_->Place(folder).filename().string()}, {"vocabulary", Vocabulary()}};
}

namespace {

// The manifest of a corpus whose files are being put into their places.
fs::path ManifestAside(const fs::path& folder) { return folder / "manifest.json.new"; }

// The shards that the folder's manifests say were made there: also that of a corpus whose making
// was cut off.
std::set<std::string> ShardsMadeHere(const fs::path& folder) {
  std::set<std::string> names;
  for (const fs::path& file : {folder / "manifest.json", ManifestAside(folder)}) {
    const Json manifest = ReadJson(file);
    if (!manifest.is_object()) continue;
    for (const char* part : kPartNames) {
      for (const std::string& name : ShardsOf(manifest, part)) {
        if (!name.empty() && name.find('/') == std::string::npos) names.insert(name);
      }
    }
  }
  return names;
}

}  // namespace

void RefuseFilesInTheWay(const fs::path& folder) {
  const std::set<std::string> made = ShardsMadeHere(folder);
  const std::regex shard(fmt::format("({})(_[0-9]{{6}})?\\.bin", fmt::join(kPartNames, "|")));
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (!std::regex_match(name, shard) || made.contains(name)) continue;
    RefuseFile(entry.path(),
               "would be written over, and no manifest.json says that it was made here; expected "
               "another --folder, or move the file");
  }
}

bool ReplaceCorpus(const fs::path& folder, const Json& manifest,
                   const std::optional<TokenizerSource>& source, bool same,
                   const std::vector<fs::path>& keep, const std::function<void()>& put) {
  if (same && ReadJson(folder / "manifest.json") == manifest && (!source || source->IsIn(folder))) {
    return false;
  }
  const std::set<std::string> made = ShardsMadeHere(folder);
  WriteFileAtomically(ManifestAside(folder), manifest.dump(1) + "\n");
  fs::remove(folder / "manifest.json");
  for (const std::string& name : made) {
    const fs::path file = folder / name;
    const bool is_input = std::any_of(keep.begin(), keep.end(), [&](const fs::path& input) {
      std::error_code error;
      return fs::equivalent(file, input, error) && !error;
    });
    if (!is_input) fs::remove(file);
  }
  put();
  if (source) source->Keep(folder);
  fs::rename(ManifestAside(folder), folder / "manifest.json");
  return true;
}

void RequireTokens(const PrepareOptions& options, const Prepared& prepared, bool named) {
  for (std::size_t i = 0; i < kPartNames.size(); ++i) {
    if (prepared.tokens[i] > 0) continue;
    throw UsageError(fmt::format("{}: of {} files none fell to the part \"{}\"; {}", options.name,
                                 prepared.files, kPartNames[i],
                                 named ? std::string("a file says its part by ") + kNamedParts
                                       : "more or smaller files are needed"));
  }
}

// Writes the shards of a part beside their places until they are closed and renamed.
class CorpusWriter::Part {
 public:
  Part(fs::path folder, const char* part, bool wide, std::int64_t most)
      : folder_(std::move(folder)), part_(part), wide_(wide), most_(most) {
    Begin();
  }
  // A document.
  void Add(const std::vector<std::uint32_t>& tokens) {
    const auto count = static_cast<std::int64_t>(tokens.size());
    if (count > INT32_MAX) RefuseFile(folder_, "a document has more than 2^31 - 1 tokens");
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
    return std::accumulate(shards_.begin(), shards_.end(), std::int64_t{0});
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
    std::error_code ignored;  // also while another error is on its way
    for (std::size_t i = 0; i < shards_.size(); ++i) fs::remove(Aside(i), ignored);
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

CorpusWriter::CorpusWriter(const PrepareOptions& options, std::int64_t vocabulary)
    : options_(options) {
  for (std::size_t i = 0; i < kPartNames.size(); ++i) {
    parts_[i] = std::make_unique<Part>(options.folder, kPartNames[i],
                                       vocabulary > kNarrowVocabulary, options.shard_tokens);
  }
}

CorpusWriter::~CorpusWriter() {
  for (const auto& part : parts_) {
    if (part) part->Discard();
  }
}

void CorpusWriter::Add(Split part, const std::vector<std::uint32_t>& tokens) {
  parts_[static_cast<int>(part)]->Add(tokens);
}

void CorpusWriter::Finish(Json manifest, const std::optional<TokenizerSource>& source,
                          Prepared& prepared) {
  for (std::size_t i = 0; i < kPartNames.size(); ++i) prepared.tokens[i] = parts_[i]->count();
  RequireTokens(options_, prepared, options_.pairs.has_value());
  bool same = true, several = false;
  for (const auto& part : parts_) {
    same = part->Close() && same;
    several = several || part->Names().size() > 1;
  }
  if (several) {
    for (std::size_t i = 0; i < kPartNames.size(); ++i) {
      manifest["shards"][kPartNames[i]] = parts_[i]->Names();
    }
  }
  prepared.made = ReplaceCorpus(options_.folder, manifest, source, same, {}, [&] {
    for (const auto& part : parts_) part->Rename();
  });
}

}  // namespace tsallis::lab
