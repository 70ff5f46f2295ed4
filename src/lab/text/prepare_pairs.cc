#include "lab/text/prepare_pairs.h"

#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "core/crc32c.h"
#include "lab/base/errors.h"
#include "lab/base/special_tokens.h"
#include "lab/text/corpus_writer.h"

namespace tsallis::lab {
namespace {

using Json = nlohmann::ordered_json;

// The two files of a text, which share a name.
struct Parallel {
  std::string name;
  Input source, target;
};

std::vector<Parallel> ParallelOf(const PrepareOptions& options, const std::vector<Input>& files) {
  const Sides& sides = *options.pairs;
  std::map<std::string, std::pair<const Input*, const Input*>> found;
  for (const Input& file : files) {
    const bool is_source = file.name.ends_with("." + sides.source);
    const std::size_t ending = (is_source ? sides.source : sides.target).size() + 1;
    auto& both = found[file.name.substr(0, file.name.size() - ending)];
    (is_source ? both.first : both.second) = &file;
  }
  std::vector<Parallel> texts;
  for (const auto& [name, both] : found) {
    if (both.first == nullptr || both.second == nullptr) {
      const bool lacks_target = both.second == nullptr;
      RefuseFile((lacks_target ? both.first : both.second)->path,
                 fmt::format("expected its translation among the files, {}.{}", name,
                             lacks_target ? sides.target : sides.source));
    }
    texts.push_back({name, *both.first, *both.second});
  }
  if (texts.empty()) {
    throw UsageError(fmt::format("{}: expected files NAME.{} and NAME.{}, found none", options.name,
                                 sides.source, sides.target));
  }
  return texts;
}

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

struct Sentences {
  std::vector<std::pair<std::string, std::string>> pairs;
  std::int64_t skipped = 0;  // lines that are empty on both sides
  std::uint32_t checksum = 0;
};

Sentences SentencesOf(const Parallel& text) {
  const std::string source = ReadAll(text.source.path), target = ReadAll(text.target.path);
  std::vector<std::string> sources = LinesOf(text.source, source);
  std::vector<std::string> targets = LinesOf(text.target, target);
  if (sources.size() != targets.size()) {
    RefuseFile(text.target.path, fmt::format("expected {} lines, as {} has, got {}", sources.size(),
                                             text.source.path.string(), targets.size()));
  }
  Sentences sentences;
  sentences.checksum = Crc32c(target.data(), target.size(), Crc32c(source.data(), source.size()));
  for (std::size_t i = 0; i < sources.size(); ++i) {
    if (sources[i].empty() && targets[i].empty()) {
      ++sentences.skipped;
      continue;
    }
    if (sources[i].empty() || targets[i].empty()) {
      const bool lacks_target = targets[i].empty();
      RefuseFile((lacks_target ? text.target : text.source).path,
                 fmt::format("line {}: expected a sentence, as {} has one there, got nothing",
                             i + 1, (lacks_target ? text.source : text.target).path.string()));
    }
    sentences.pairs.emplace_back(std::move(sources[i]), std::move(targets[i]));
  }
  return sentences;
}

}  // namespace

Prepared PreparePairs(const PrepareOptions& options, const std::vector<Input>& files,
                      const std::function<bool(std::int64_t, std::int64_t)>& progress) {
  const std::vector<Parallel> texts = ParallelOf(options, files);
  std::int64_t all = 0;
  for (const Input& file : files) all += file.bytes;
  Reading reading(options.tokenizer.starts_with(kTrained) ? 2 * all : all, progress);
  const auto after = [&](const Parallel& text) {
    reading.After(text.source);
    reading.After(text.target);
  };
  auto next = texts.begin();
  const auto train_text = [&](std::string& joint) {
    for (; next != texts.end() && PartOf(next->name, options) != Split::kTrain; ++next) {
      after(*next);
    }
    if (next == texts.end()) return false;
    reading.Before();
    joint.clear();
    const Sentences sentences = SentencesOf(*next);
    for (const auto& [source, target] : sentences.pairs) joint += source + '\n' + target + '\n';
    after(*next++);
    return true;
  };
  TokenMaker maker(options, train_text, [&] { reading.Before(); });
  const SpecialTokens special{maker.Vocabulary()};
  CorpusWriter writer(options, special.All());
  Prepared prepared;
  Json list = Json::array();
  for (const Parallel& text : texts) {
    reading.Before();
    const Sentences sentences = SentencesOf(text);
    prepared.skipped += sentences.skipped;
    after(text);
    if (sentences.pairs.empty()) continue;
    std::vector<std::uint32_t> tokens;
    std::size_t bytes = 0;
    const auto add = [&](const std::string& sentence, std::int64_t end) {
      const std::vector<std::uint32_t> more = maker.Encode(sentence);
      tokens.insert(tokens.end(), more.begin(), more.end());
      tokens.push_back(static_cast<std::uint32_t>(end));
      bytes += sentence.size();
    };
    for (const auto& [source, target] : sentences.pairs) {
      add(source, special.Sep());
      add(target, special.Eos());
    }
    const Split split = PartOf(text.name, options);
    const auto part = static_cast<std::size_t>(split);
    writer.Add(split, tokens);
    ++prepared.files;
    prepared.pairs[part] += static_cast<std::int64_t>(sentences.pairs.size());
    list.push_back({{"path", text.name},
                    {"part", kPartNames[part]},
                    {"pairs", sentences.pairs.size()},
                    {"tokens", tokens.size()},
                    {"crc32c", fmt::format("{:08x}", sentences.checksum)},
                    {"bytes", bytes}});
  }
  Json manifest = {{"name", options.name}};
  manifest["pairs"] = {{"source", options.pairs->source}, {"target", options.pairs->target}};
  manifest["tokens"] = maker.Described(options.folder);
  manifest["rule"] = RuleOf(options);
  manifest["files"] = std::move(list);
  writer.Finish(std::move(manifest), maker.Source(), prepared);
  return prepared;
}

}  // namespace tsallis::lab
