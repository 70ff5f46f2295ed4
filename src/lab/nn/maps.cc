#include "lab/nn/maps.h"

#include <algorithm>

#include "lab/base/errors.h"
#include "lab/base/suggest.h"

namespace tsallis::lab {

const std::vector<CatalogueEntry>& Maps() {
  static const std::vector<CatalogueEntry> entries = {
      {"softmax", "dense; temperature theta"},
      {"entmax", "alpha-entmax, alpha > 0: sparse above 1 (2 is sparsemax), dense from 1 down"},
      {"adaptive-temperature", "softmax, sharpened where its entropy is large"},
      {"top-k-softmax", "softmax of the largest scores, all that tie with the least included"},
      {"sigmoid", "each score by itself: 1 / (1 + e^-(s + b)); rows do not sum to 1"},
      {"softpick", "softmax without its positive floor: scores <= 0 have weight 0"},
      {"stick-breaking", "keys from the query backwards each take their share of what is left"}};
  return entries;
}

RowMap MapNamed(const std::string& name) {
  std::string plain = name;
  std::replace(plain.begin(), plain.end(), '-', '_');
  for (const RowMap map : AttentionMaps()) {
    if (plain == Name(map)) return map;
  }
  throw UsageError("unknown map \"" + name + "\"" + Suggestion(name, Names(Maps())));
}

}  // namespace tsallis::lab
