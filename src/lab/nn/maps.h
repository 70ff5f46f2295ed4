// The maps from scores to weights that the lab's models take, by name.
#pragma once

#include <vector>

#include "lab/base/catalogue.h"

namespace tsallis::lab {

const std::vector<CatalogueEntry>& Maps();

}  // namespace tsallis::lab
