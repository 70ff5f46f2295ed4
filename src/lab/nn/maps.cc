#include "lab/nn/maps.h"

namespace tsallis::lab {

const std::vector<CatalogueEntry>& Maps() {
  static const std::vector<CatalogueEntry> entries = {
      {"softmax", "dense; temperature theta"},
      {"entmax", "alpha-entmax, alpha >= 1: sparse above 1 (2 is sparsemax)"},
      {"adaptive-temperature", "softmax, sharpened where its entropy is large"}};
  return entries;
}

}  // namespace tsallis::lab
