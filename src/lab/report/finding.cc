#include "lab/report/finding.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "lab/report/contrast.h"

namespace tsallis::lab {
namespace {

struct Place {
  std::string method;
  std::int64_t n = 0;
  double sure = 0.0;  // points
};

std::string Label(const StudyResults& results, const std::string& method) {
  for (const MethodInfo& info : results.methods) {
    if (info.name == method && !info.label.empty()) return info.label;
  }
  return method;
}

// "Softmax 1.8 ± 3.0".
std::string Score(const StudyResults& results, const ResultRow& row) {
  std::string text = fmt::format("{} {:.1f}", Label(results, row.method), row.accuracy_mean);
  if (row.seeds > 1) text += fmt::format(" ± {:.1f}", row.accuracy_std);
  return text;
}

}  // namespace

std::string Finding(const StudyResults& results, std::int64_t train_length, std::int64_t at) {
  const auto compared = [&](const ResultRow& row) {
    return row.n == at && row.method != results.baseline && std::isfinite(row.accuracy_mean) &&
           AgainstBaseline(results, row.method, row.n);
  };
  const bool only = std::any_of(results.rows.begin(), results.rows.end(), compared);
  std::optional<Place> ahead;
  std::optional<Place> behind;
  std::int64_t longest = 0;
  for (const ResultRow& row : results.rows) {
    if (row.method == results.baseline || !std::isfinite(row.accuracy_mean)) continue;
    if (only && row.n != at) continue;
    const std::optional<Contrast> contrast = AgainstBaseline(results, row.method, row.n);
    if (!contrast) continue;
    longest = std::max(longest, row.n);
    const double sure = std::abs(contrast->difference) - 2.0 * contrast->error.value_or(0.0);
    std::optional<Place>& best = contrast->difference > 0.0 ? ahead : behind;
    if (!best || sure > best->sure) best = Place{row.method, row.n, sure};
  }
  if (longest == 0) return "";
  const std::optional<Place>& place = ahead && ahead->sure >= kSure     ? ahead
                                      : behind && behind->sure >= kSure ? behind
                                                                        : ahead;
  if (!place || place->sure < kSure) {
    return fmt::format("No method differs surely from {} by {:g} points or more, {} n = {}.",
                       Label(results, results.baseline), kSure, only ? "at" : "up to", longest);
  }
  std::vector<const ResultRow*> shown;
  for (const ResultRow& row : results.rows) {
    const bool named = row.method == place->method || row.method == results.baseline;
    if (row.n == place->n && (named || results.methods.size() <= 4)) shown.push_back(&row);
  }
  std::stable_sort(shown.begin(), shown.end(), [](const ResultRow* a, const ResultRow* b) {
    return a->accuracy_mean > b->accuracy_mean;
  });
  std::string scores;
  for (const ResultRow* row : shown) {
    scores += (scores.empty() ? "" : "; ") + Score(results, *row);
  }
  const double times = static_cast<double>(place->n) / static_cast<double>(train_length);
  return fmt::format(
      "At n = {}{}, right in %: {}.", place->n,
      place->n > train_length
          ? fmt::format(", {} times the longest length of training",
                        times < 10.0 ? fmt::format("{:.2g}", times) : fmt::format("{:.0f}", times))
          : "",
      scores);
}

}  // namespace tsallis::lab
