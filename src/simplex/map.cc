#include "simplex/map.h"

#include <string>

#include "tsallis/error.h"

namespace tsallis {

const char* Name(RowMap map) { return FindMap(map).name; }

const ReferenceMap& FindMap(RowMap map) {
  static constexpr const ReferenceMap* kMaps[] = {
      &kSoftmaxReference,
      &kEntmaxReference,
      &kNormmaxReference,
      &kBudgetReference,
      &kAdaptiveTemperatureReference,
  };
  for (const ReferenceMap* candidate : kMaps) {
    if (candidate->map == map) return *candidate;
  }
  throw InvalidArgument("map", "one of the listed row maps",
                        "value " + std::to_string(static_cast<int>(map)));
}

}  // namespace tsallis
