#include "simplex/map.h"

#include <string>
#include <vector>

#include "tsallis/error.h"

namespace tsallis {
namespace {

constexpr const ReferenceMap* kMaps[] = {
    &kSoftmaxReference,
    &kEntmaxReference,
    &kNormmaxReference,
    &kBudgetReference,
    &kAdaptiveTemperatureReference,
    &kTopKSoftmaxReference,
    &kSigmoidReference,
    &kSoftpickReference,
    &kStickBreakingReference,
};

template <typename Admits>
std::vector<RowMap> MapsThat(const Admits& admits) {
  std::vector<RowMap> maps;
  for (const ReferenceMap* map : kMaps) {
    if (admits(*map)) maps.push_back(map->map);
  }
  return maps;
}

}  // namespace

const char* Name(RowMap map) { return FindMap(map).name; }

const std::vector<RowMap>& AllRowMaps() {
  static const std::vector<RowMap> maps = MapsThat([](const ReferenceMap&) { return true; });
  return maps;
}

const std::vector<RowMap>& AttentionMaps() {
  static const std::vector<RowMap> maps =
      MapsThat([](const ReferenceMap& map) { return map.in_attention; });
  return maps;
}

bool SumsToOne(RowMap map) { return FindMap(map).sums_to_one; }

bool TakesSink(RowMap map) { return FindMap(map).takes_sink; }

const ReferenceMap& FindMap(RowMap map) {
  for (const ReferenceMap* candidate : kMaps) {
    if (candidate->map == map) return *candidate;
  }
  throw InvalidArgument("map", "one of the listed row maps",
                        "value " + std::to_string(static_cast<int>(map)));
}

}  // namespace tsallis
