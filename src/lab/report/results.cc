#include "lab/report/results.h"

#include <fmt/format.h>

#include <algorithm>

namespace tsallis::lab {

std::vector<MethodInfo> MethodsInOrder(const StudyResults& results) {
  std::vector<MethodInfo> methods = results.methods;
  for (MethodInfo& method : methods) {
    if (method.label.empty()) method.label = method.name;
  }
  for (const ResultRow& row : results.rows) {
    const bool known = std::any_of(methods.begin(), methods.end(), [&](const MethodInfo& method) {
      return method.name == row.method;
    });
    if (!known) methods.push_back({row.method, row.method});
  }
  return methods;
}

const ResultRow* FindRow(const StudyResults& results, const std::string& method, std::int64_t n) {
  const auto found =
      std::find_if(results.rows.begin(), results.rows.end(),
                   [&](const ResultRow& row) { return row.n == n && row.method == method; });
  return found == results.rows.end() ? nullptr : &*found;
}

std::string SeedText(const StudyResults& results) {
  if (results.rows.empty()) return "no seeds";
  const auto [least, most] =
      std::minmax_element(results.rows.begin(), results.rows.end(),
                          [](const ResultRow& a, const ResultRow& b) { return a.seeds < b.seeds; });
  if (most->seeds == 1) return "one seed";
  if (least->seeds == most->seeds) return fmt::format("{} seeds", most->seeds);
  return fmt::format("{} to {} seeds", least->seeds, most->seeds);
}

}  // namespace tsallis::lab
