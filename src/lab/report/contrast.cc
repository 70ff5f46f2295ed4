#include "lab/report/contrast.h"

#include <fmt/format.h>

#include <cmath>

#include "lab/report/table.h"

namespace tsallis::lab {

std::optional<Contrast> AgainstBaseline(const StudyResults& results, const std::string& method,
                                        std::int64_t n) {
  const ResultRow* row = FindRow(results, method, n);
  const ResultRow* base = FindRow(results, results.baseline, n);
  if (row == nullptr || base == nullptr) return std::nullopt;
  Contrast contrast{row->accuracy_mean - base->accuracy_mean, std::nullopt};
  if (row->seeds > 1 && base->seeds > 1) {
    const auto variance = [](const ResultRow& of) {
      return of.accuracy_std * of.accuracy_std / of.seeds;
    };
    contrast.error = std::sqrt(variance(*row) + variance(*base));
  }
  return contrast;
}

std::string ContrastText(const Contrast& contrast) {
  std::string text = SignedPoints(contrast.difference);
  if (contrast.error) text += fmt::format(" ± {:.1f}", *contrast.error);
  return text;
}

}  // namespace tsallis::lab
