#include "lab/report/contrast.h"

#include <cmath>

namespace tsallis::lab {

std::optional<Contrast> AgainstBaseline(const StudyResults& results, const std::string& method,
                                        std::int64_t n) {
  const ResultRow* row = FindRow(results, method, n);
  const ResultRow* base = FindRow(results, results.baseline, n);
  if (row == nullptr || base == nullptr) return std::nullopt;
  Contrast contrast{row->mean - base->mean, std::nullopt};
  if (row->seeds > 1 && base->seeds > 1) {
    const auto variance = [](const ResultRow& of) {
      return of.deviation * of.deviation / of.seeds;
    };
    contrast.error = std::sqrt(variance(*row) + variance(*base));
  }
  return contrast;
}

}  // namespace tsallis::lab
