// The tasks and models that a recipe may name. Optimisers stand in optimizers.h; maps, length
// scalings and positions with the models (lab/nn).
#pragma once

#include <vector>

#include "lab/base/catalogue.h"

namespace tsallis::lab {

const std::vector<CatalogueEntry>& Tasks();
const std::vector<CatalogueEntry>& Models();

}  // namespace tsallis::lab
