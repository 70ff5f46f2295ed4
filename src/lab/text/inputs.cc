#include "lab/text/inputs.h"

#include <fmt/format.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "lab/base/errors.h"
#include "lab/base/files.h"
#include "lab/text/corpus.h"

namespace tsallis::lab {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kShares = 20;

// FNV-1a.
std::uint64_t HashOf(const std::string& text) {
  std::uint64_t hash = 14695981039346656037U;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211U;
  return hash;
}

bool EndsAsOneSide(const std::string& name, const Sides& sides) {
  return name.ends_with("." + sides.source) || name.ends_with("." + sides.target);
}

bool IsWanted(const fs::path& path, const PrepareOptions& options) {
  if (options.pairs) return EndsAsOneSide(path.filename().string(), *options.pairs);
  return options.extension.empty() || path.extension() == options.extension;
}

}  // namespace

std::int64_t Document::Bytes() const {
  std::int64_t bytes = 0;
  for (const Input& file : files) bytes += file.bytes;
  return bytes;
}

std::vector<Input> FilesOf(const PrepareOptions& options) {
  std::vector<Input> files;
  for (const fs::path& input : options.inputs) {
    std::error_code error;
    if (fs::is_regular_file(input, error)) {
      if (options.pairs && !IsWanted(input, options)) {
        RefuseFile(input, fmt::format("expected a name that ends in .{} or .{}, as --pairs says",
                                      options.pairs->source, options.pairs->target));
      }
      files.push_back({input, input.filename().string()});
      continue;
    }
    if (!fs::is_directory(input, error)) RefuseFile(input, "no such file or folder");
    for (fs::recursive_directory_iterator at(input, error), end; !error && at != end;
         at.increment(error)) {
      if (!at->is_regular_file() || at->is_symlink() || !IsWanted(at->path(), options)) continue;
      files.push_back({at->path(), fs::relative(at->path(), input).generic_string()});
    }
    if (error) RefuseFile(input, "cannot be read: " + error.message());
  }
  std::sort(files.begin(), files.end(),
            [](const Input& a, const Input& b) { return a.name < b.name; });
  for (std::size_t i = 1; i < files.size(); ++i) {
    if (files[i].name == files[i - 1].name) {
      RefuseFile(files[i].path, "has the name of another file: " + files[i - 1].path.string());
    }
  }
  for (Input& file : files) file.bytes = static_cast<std::int64_t>(fs::file_size(file.path));
  return files;
}

std::optional<Split> NamedPart(const std::string& name) {
  const auto has = [&](const char* word) { return name.find(word) != std::string::npos; };
  if (has("train")) return Split::kTrain;
  if (has("val") || has("dev")) return Split::kValidation;
  if (has("test")) return Split::kTest;
  return {};
}

Split PartOf(const std::string& name, const PrepareOptions& options) {
  if (options.held_out.empty()) {
    if (options.pairs) {
      const std::optional<Split> named = NamedPart(fs::path(name).filename().string());
      if (named) return *named;
    }
    const std::uint64_t share = HashOf(name) % kShares;
    return share == 0 ? Split::kTest : share == 1 ? Split::kValidation : Split::kTrain;
  }
  const std::string top = name.substr(0, name.find('/'));
  for (const HeldOut& held : options.held_out) {
    if (held.top == top) return held.part;
  }
  return Split::kTrain;
}

std::string RuleOf(const PrepareOptions& options) {
  if (options.held_out.empty()) {
    return (options.pairs ? std::string(kNamedParts) + ", else " : "") +
           "FNV-1a of the path modulo 20: 0 is test, 1 is validation, else train";
  }
  std::string rule = "top folder: ";
  for (const HeldOut& held : options.held_out) {
    rule += fmt::format("{} is {}, ", held.top, PartName(held.part));
  }
  return rule + "else train";
}

std::string ReadAll(const fs::path& path) {
  std::optional<std::string> text = ReadFile(path);
  if (!text) RefuseErrno(path, "cannot be read");
  return std::move(*text);
}

Reading::Reading(const std::vector<Input>& files, std::int64_t times,
                 const PrepareProgress& progress)
    : progress_(progress) {
  for (const Input& file : files) all_ += times * file.bytes;
}

void Reading::Before() const {
  if (!progress_(done_, all_)) throw Interrupted("stopped; nothing was made");
}

}  // namespace tsallis::lab
