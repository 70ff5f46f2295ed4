// A list of what there is by name: of maps, tasks, positions. Recipes are checked against such
// lists and `tsallis list` shows them; a list stands where its things do.
#pragma once

#include <string>
#include <vector>

namespace tsallis::lab {

struct CatalogueEntry {
  std::string name;
  std::string description;
};

// The names alone, for checks and suggestions.
inline std::vector<std::string> Names(const std::vector<CatalogueEntry>& entries) {
  std::vector<std::string> names;
  names.reserve(entries.size());
  for (const CatalogueEntry& entry : entries) names.push_back(entry.name);
  return names;
}

}  // namespace tsallis::lab
