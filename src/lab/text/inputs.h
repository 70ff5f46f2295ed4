// The inputs of a corpus (prepare.h): files in an order of their own, their text and their parts.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lab/base/random.h"
#include "lab/text/prepare.h"

namespace tsallis::lab {

struct Input {
  std::filesystem::path path;
  std::string name;  // below its folder, which decides the part
  std::int64_t bytes = 0;
};

// What a corpus is made of: a file, or the two of parallel text, which share a name.
struct Document {
  std::string name;
  std::vector<Input> files;

  std::int64_t Bytes() const;
};

struct DocumentText {
  std::vector<std::string> texts = {};  // the text; of parallel text source and target in turns
  std::int64_t skipped = 0;             // texts, or lines of parallel text, that are left out
  std::uint32_t checksum = 0;
};

// By name, so that the order does not depend on the file system. Of folders those that end as
// options.extension or options.pairs say.
std::vector<Input> FilesOf(const PrepareOptions& options);

// The part of a file, or of the two of parallel text by the name that they share.
Split PartOf(const std::string& name, const PrepareOptions& options);
// That rule, for people.
std::string RuleOf(const PrepareOptions& options);

// The part that a file's name tells: fineweb_train_000001.bin, newstest2014. None: it does not say.
std::optional<Split> NamedPart(const std::string& name);
// How names say it, for errors and rules.
inline constexpr const char* kNamedParts = "train, val (or dev) or test in the name";

// All bytes of a file.
std::string ReadAll(const std::filesystem::path& path);

// Counts bytes that have been read, and stops.
class Reading {
 public:
  // `times`: how often each file is read.
  Reading(const std::vector<Input>& files, std::int64_t times, const PrepareProgress& progress);
  // Throws Interrupted.
  void Before() const;
  void After(std::int64_t bytes) { done_ += bytes; }

 private:
  std::int64_t done_ = 0, all_ = 0;
  const PrepareProgress& progress_;
};

}  // namespace tsallis::lab
