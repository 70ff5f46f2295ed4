// The maps from scores to weights that the lab's models take, by name.
#pragma once

#include <string>
#include <vector>

#include "lab/base/catalogue.h"
#include "tsallis/rows.h"

namespace tsallis::lab {

// A word for each of AttentionMaps(): the library's name of it, with hyphens.
const std::vector<CatalogueEntry>& Maps();

// UsageError if there is no such map.
RowMap MapNamed(const std::string& name);

}  // namespace tsallis::lab
