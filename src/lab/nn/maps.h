// The maps from scores to weights that the lab's models take: by name, with their numbers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lab/base/catalogue.h"
#include "tsallis/rows.h"

namespace tsallis::lab {

// A word for each of AttentionMaps(): the library's name of it, with hyphens.
const std::vector<CatalogueEntry>& Maps();

// UsageError if there is no such map.
RowMap MapNamed(const std::string& name);

// A map and its numbers, as recipes and config.json have them. Structs that have a map derive from
// this one.
struct MapConfig {
  std::string map = "softmax";  // of Maps()
  double alpha = 1.5;           // entmax; where learning starts if it is learned
  // top-k-softmax: of n visible keys the max(top_k, floor(top_k_fraction n)) largest are kept.
  std::int64_t top_k = 0;
  double top_k_fraction = 0.0;
  std::optional<double> sigmoid_bias;  // sigmoid; unset: -ln n of n visible keys
  // adaptive-temperature: its polynomial, lowest degree first; unset: the published one.
  std::optional<std::vector<double>> coefficients;

  bool operator==(const MapConfig&) const = default;
};

// The same for the kernels. UsageError as MapNamed.
MapSetting SettingOf(const MapConfig& config);

// A number that belongs to one map, which is not the number's default where it is given.
struct MapNumber {
  const char* key;
  const char* map;
  bool (*given)(const MapConfig& config);
};
const std::vector<MapNumber>& MapNumbers();

}  // namespace tsallis::lab
