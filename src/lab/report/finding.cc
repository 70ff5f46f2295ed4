#include "lab/report/finding.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
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

// Null for a method that the results do not describe.
const MethodInfo* InfoOf(const StudyResults& results, const std::string& method) {
  const auto found = std::find_if(results.methods.begin(), results.methods.end(),
                                  [&](const MethodInfo& info) { return info.name == method; });
  return found == results.methods.end() ? nullptr : &*found;
}

std::string Label(const StudyResults& results, const std::string& method) {
  const MethodInfo* info = InfoOf(results, method);
  return info == nullptr || info->label.empty() ? method : info->label;
}

std::string Variant(const StudyResults& results, const std::string& method) {
  const MethodInfo* info = InfoOf(results, method);
  return info == nullptr ? "" : info->variant;
}

// "Softmax 1.8 ± 3.0".
std::string Score(const StudyResults& results, const ResultRow& row) {
  const int digits = results.metric.digits;
  std::string text = fmt::format("{} {:.{}f}", Label(results, row.method), row.mean, digits);
  if (row.seeds > 1) text += fmt::format(" ± {:.{}f}", row.deviation, digits);
  return text;
}

// Whether `method` attends as the baseline does and differs from it as `other` does, or the other
// way round: of two methods that differ in both it tells which of the two makes the difference.
bool Between(const StudyResults& results, const std::string& method, const std::string& other) {
  const MethodInfo* here = InfoOf(results, method);
  const MethodInfo* base = InfoOf(results, results.baseline);
  const MethodInfo* far = InfoOf(results, other);
  if (here == nullptr || base == nullptr || far == nullptr) return false;
  if (base->like == far->like || base->variant == far->variant) return false;
  return (here->like == base->like && here->variant == far->variant) ||
         (here->like == far->like && here->variant == base->variant);
}

// The unit of differences.
std::string Points(const Metric& metric) { return metric.unit == "%" ? "points" : metric.unit; }

}  // namespace

Found Finding(const StudyResults& results, std::int64_t train_length, std::int64_t at) {
  const auto compared = [&](const ResultRow& row) {
    return row.n == at && row.method != results.baseline && std::isfinite(row.mean) &&
           AgainstBaseline(results, row.method, row.n);
  };
  const bool only = std::any_of(results.rows.begin(), results.rows.end(), compared);
  // Where some were repeated, one run of another proves nothing.
  const auto repeated = [&](const ResultRow& row) {
    const std::optional<Contrast> contrast = AgainstBaseline(results, row.method, row.n);
    return row.method != results.baseline && contrast && contrast->error;
  };
  const bool errors = std::any_of(results.rows.begin(), results.rows.end(), repeated);
  std::optional<Place> ahead;
  std::optional<Place> behind;
  std::int64_t longest = 0;
  for (const ResultRow& row : results.rows) {
    if (row.method == results.baseline || !std::isfinite(row.mean)) continue;
    if (only && row.n != at) continue;
    const std::optional<Contrast> contrast = AgainstBaseline(results, row.method, row.n);
    if (!contrast || (errors && !contrast->error)) continue;
    longest = std::max(longest, row.n);
    const double sure = std::abs(contrast->difference) - 2.0 * contrast->error.value_or(0.0);
    const bool better = (contrast->difference > 0.0) == results.metric.higher_is_better;
    std::optional<Place>& best = better ? ahead : behind;
    if (!best || sure > best->sure) best = Place{row.method, row.n, sure};
  }
  if (longest == 0) return {};
  const double sure = results.metric.notable;
  const std::optional<Place>& place = ahead && ahead->sure >= sure     ? ahead
                                      : behind && behind->sure >= sure ? behind
                                                                       : ahead;
  if (!place || place->sure < sure) {
    return {
        fmt::format("No method is {:g} {} or more from {}{}, {} n = {}.", sure,
                    sure == 1.0 && results.metric.unit == "%" ? "point" : Points(results.metric),
                    Label(results, results.baseline),
                    errors ? " once two standard errors are allowed for" : "",
                    only ? "at" : "up to", longest),
        {results.baseline}};
  }
  std::vector<const ResultRow*> shown;
  for (const ResultRow& row : results.rows) {
    const bool named = row.method == place->method || row.method == results.baseline ||
                       Between(results, row.method, place->method);
    if (row.n == place->n && (named || results.methods.size() <= 4)) shown.push_back(&row);
  }
  std::stable_sort(shown.begin(), shown.end(), [&](const ResultRow* a, const ResultRow* b) {
    return results.metric.higher_is_better ? a->mean > b->mean : a->mean < b->mean;
  });
  Found found;
  std::string scores;
  bool repeats = false;
  for (const ResultRow* row : shown) {
    scores += (scores.empty() ? "" : "; ") + Score(results, *row);
    found.methods.push_back(row->method);
    repeats = repeats || row->seeds > 1;
  }
  const double times = static_cast<double>(place->n) / static_cast<double>(train_length);
  found.sentence = fmt::format(
      "At n = {}{}, {}{}: {}.", place->n,
      place->n > train_length
          ? fmt::format(", {} times the longest length of training",
                        times < 10.0 ? fmt::format("{:.2g}", times) : fmt::format("{:.0f}", times))
          : "",
      results.metric.unit == "%" ? "right in %"
                                 : results.metric.name + " in " + results.metric.unit,
      repeats ? " (± standard deviation over seeds)" : "", scores);
  return found;
}

Found FlowFinding(const StudyResults& results) {
  const auto find = [&](const std::string& method, std::int64_t step, std::int64_t layer) {
    return std::find_if(results.flows.begin(), results.flows.end(), [&](const FlowRow& row) {
      return row.method == method && row.step == step && row.layer == layer;
    });
  };
  const auto end = results.flows.end();
  // Models that have learned differently well have other gradients for that reason alone. After the
  // first step all of them are equally wrong.
  std::int64_t step = std::numeric_limits<std::int64_t>::max();
  std::int64_t layers = 0;
  for (const FlowRow& row : results.flows) {
    step = std::min(step, row.step);
    layers = std::max(layers, row.layer + 1);
  }
  auto most = end, beside = end;
  double factor = 1.0;  // 1 or more: of the larger of two gradients
  for (auto row = results.flows.begin(); row != end; ++row) {
    const auto baseline = find(results.baseline, step, row->layer);
    if (row->step != step || row->method == results.baseline || baseline == end) continue;
    // Other positions change the gradients, too: only the map may differ.
    if (Variant(results, row->method) != Variant(results, results.baseline)) continue;
    const double ratio = row->gradient / baseline->gradient;
    const double larger = std::max(ratio, 1.0 / ratio);
    if (!std::isfinite(larger) || (most != end && larger <= factor)) continue;
    most = row;
    beside = baseline;
    factor = larger;
  }
  if (most == end) return {};
  return {
      fmt::format(
          "After {} step{}, when every method is still equally wrong, a token's gradient at layer "
          "{} "
          "of {} is {:.2g} times as large with {} as with {}; a query gives weight to {:.3g} keys "
          "there, with {} to {:.3g}.",
          step, step == 1 ? "" : "s", most->layer + 1, layers, most->gradient / beside->gradient,
          Label(results, most->method), Label(results, results.baseline), most->keys,
          Label(results, results.baseline), beside->keys),
      {results.baseline, most->method}};
}

}  // namespace tsallis::lab
