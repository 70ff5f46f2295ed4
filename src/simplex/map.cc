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

bool BackwardReadsScores(const RowMapParams& params, DType dtype) {
  if (FindMap(params.map).backward_needs_scores) return true;
  if (SizeOf(dtype) != 2) return false;
  // 1 - p of a sigmoid near 1 is gone as well.
  if (params.map == RowMap::kNormmax || params.map == RowMap::kSigmoid) return true;
  return params.map == RowMap::kEntmax && (params.alpha_per_row != nullptr || params.alpha > 2.0);
}

}  // namespace tsallis
