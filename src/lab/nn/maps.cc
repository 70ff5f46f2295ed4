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

MapSetting SettingOf(const MapConfig& config) {
  MapSetting setting;
  setting.map = MapNamed(config.map);
  setting.alpha = config.alpha;
  if (config.coefficients) setting.adaptive.coefficients = *config.coefficients;
  setting.top_k = {.k = config.top_k, .fraction = config.top_k_fraction};
  setting.sigmoid_bias = config.sigmoid_bias;
  return setting;
}

const std::vector<MapNumber>& MapNumbers() {
  static const std::vector<MapNumber> numbers = {
      {"top_k", "top-k-softmax", [](const MapConfig& config) { return config.top_k != 0; }},
      {"top_k_fraction", "top-k-softmax",
       [](const MapConfig& config) { return config.top_k_fraction != 0.0; }},
      {"sigmoid_bias", "sigmoid",
       [](const MapConfig& config) { return config.sigmoid_bias.has_value(); }},
      {"coefficients", "adaptive-temperature",
       [](const MapConfig& config) { return config.coefficients.has_value(); }}};
  return numbers;
}

}  // namespace tsallis::lab
