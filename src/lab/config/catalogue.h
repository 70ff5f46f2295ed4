// The tasks, models and optimisers that a recipe may name. Maps, length scalings and positions
// stand with the models (lab/nn).
#pragma once

#include <vector>

#include "lab/base/catalogue.h"

namespace tsallis::lab {

const std::vector<CatalogueEntry>& Tasks();
const std::vector<CatalogueEntry>& Models();
const std::vector<CatalogueEntry>& Optimizers();

}  // namespace tsallis::lab
