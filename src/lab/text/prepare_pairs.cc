#include "lab/text/prepare_pairs.h"

#include <fmt/format.h>

#include <map>
#include <utility>

#include "core/crc32c.h"
#include "lab/base/errors.h"

namespace tsallis::lab {
namespace {

// Without the spaces around it.
std::string Trimmed(const std::string& line) {
  constexpr const char* kSpaces = " \t\r\v\f";
  const std::size_t begin = line.find_first_not_of(kSpaces);
  if (begin == std::string::npos) return "";
  return line.substr(begin, line.find_last_not_of(kSpaces) + 1 - begin);
}

// The sentences of a file, which has one on each line.
std::vector<std::string> LinesOf(const Input& file, const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    lines.push_back(Trimmed(text.substr(begin, end - begin)));
    if (FirstBadByte(lines.back()) >= 0) {
      RefuseFile(file.path,
                 fmt::format("line {}: expected UTF-8 text, got something else", lines.size()));
    }
    begin = end + 1;
  }
  return lines;
}

}  // namespace

std::vector<Document> ParallelOf(const PrepareOptions& options, const std::vector<Input>& files) {
  const Sides& sides = *options.pairs;
  std::map<std::string, std::pair<const Input*, const Input*>> found;
  for (const Input& file : files) {
    const bool is_source = file.name.ends_with("." + sides.source);
    const std::size_t ending = (is_source ? sides.source : sides.target).size() + 1;
    auto& both = found[file.name.substr(0, file.name.size() - ending)];
    (is_source ? both.first : both.second) = &file;
  }
  std::vector<Document> documents;
  for (const auto& [name, both] : found) {
    if (both.first == nullptr || both.second == nullptr) {
      const bool lacks_target = both.second == nullptr;
      RefuseFile((lacks_target ? both.first : both.second)->path,
                 fmt::format("expected its translation among the files, {}.{}", name,
                             lacks_target ? sides.target : sides.source));
    }
    documents.push_back({name, {*both.first, *both.second}});
  }
  if (documents.empty()) {
    throw UsageError(fmt::format("{}: expected files NAME.{} and NAME.{}, found none", options.name,
                                 sides.source, sides.target));
  }
  return documents;
}

DocumentText PairsOf(const Document& document) {
  DocumentText read;
  std::vector<std::string> sides[2];
  for (const int side : {0, 1}) {
    const std::string text = ReadAll(document.files[side].path);
    sides[side] = LinesOf(document.files[side], text);
    read.checksum = Crc32c(text.data(), text.size(), read.checksum);
  }
  const auto path_of = [&](int side) { return document.files[side].path; };
  if (sides[0].size() != sides[1].size()) {
    RefuseFile(path_of(1), fmt::format("expected {} lines, as {} has, got {}", sides[0].size(),
                                       path_of(0).string(), sides[1].size()));
  }
  for (std::size_t i = 0; i < sides[0].size(); ++i) {
    if (sides[0][i].empty() && sides[1][i].empty()) {
      ++read.skipped;
      continue;
    }
    for (const int side : {0, 1}) {
      if (sides[side][i].empty()) {
        RefuseFile(path_of(side),
                   fmt::format("line {}: expected a sentence, as {} has one there, got nothing",
                               i + 1, path_of(1 - side).string()));
      }
      read.texts.push_back(std::move(sides[side][i]));
    }
  }
  return read;
}

}  // namespace tsallis::lab
