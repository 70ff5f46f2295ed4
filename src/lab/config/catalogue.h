// What a recipe may name: the tasks, maps and length scalings that the lab has. Recipes are checked
// against it and `tsallis list` shows it.
#pragma once

#include <string>
#include <vector>

namespace tsallis::lab {

struct CatalogueEntry {
  std::string name;
  std::string description;
};

const std::vector<CatalogueEntry>& Tasks();
const std::vector<CatalogueEntry>& Models();
const std::vector<CatalogueEntry>& Maps();
const std::vector<CatalogueEntry>& LengthScalings();
const std::vector<CatalogueEntry>& Optimizers();

// The names alone, for checks and suggestions.
std::vector<std::string> Names(const std::vector<CatalogueEntry>& entries);

}  // namespace tsallis::lab
