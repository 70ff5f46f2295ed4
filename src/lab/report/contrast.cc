#include "lab/report/contrast.h"

#include <cmath>
#include <map>
#include <vector>

namespace tsallis::lab {
namespace {

// Nothing for fewer than three seeds in common, or where there is no spread.
std::optional<double> PairedTest(const ResultRow& row, const ResultRow& base) {
  const std::map<std::uint64_t, double> others(base.by_seed.begin(), base.by_seed.end());
  std::vector<double> differences;
  for (const auto& [seed, value] : row.by_seed) {
    const auto other = others.find(seed);
    if (other != others.end()) differences.push_back(value - other->second);
  }
  if (differences.size() < 3) return std::nullopt;
  const auto count = static_cast<double>(differences.size());
  double mean = 0.0;
  for (const double difference : differences) mean += difference / count;
  double squares = 0.0;
  for (const double difference : differences) squares += (difference - mean) * (difference - mean);
  if (!(squares > 0.0)) return std::nullopt;
  return TwoSidedStudent(mean / std::sqrt(squares / (count - 1.0) / count),
                         static_cast<int>(differences.size()) - 1);
}

}  // namespace

double TwoSidedStudent(double t, int freedom) {
  const double angle = std::atan(std::abs(t) / std::sqrt(static_cast<double>(freedom)));
  const double cosine = std::cos(angle);
  const bool odd = freedom % 2 == 1;
  // The terms of the series, each from the one before.
  double term = odd ? cosine : 1.0;
  double sum = 0.0;
  for (int k = odd ? 1 : 0; k <= freedom - 2; k += 2) {
    sum += term;
    term *= cosine * cosine * (k + 1.0) / (k + 2.0);
  }
  const double within = odd ? (angle + std::sin(angle) * sum) * 2.0 / M_PI : std::sin(angle) * sum;
  return 1.0 - within;
}

std::optional<Contrast> AgainstBaseline(const StudyResults& results, const std::string& method,
                                        std::int64_t n) {
  const ResultRow* row = FindRow(results, method, n);
  const ResultRow* base = FindRow(results, results.baseline, n);
  if (row == nullptr || base == nullptr) return std::nullopt;
  Contrast contrast{row->mean - base->mean, std::nullopt, PairedTest(*row, *base)};
  if (row->seeds > 1 && base->seeds > 1) {
    const auto variance = [](const ResultRow& of) {
      return of.deviation * of.deviation / of.seeds;
    };
    contrast.error = std::sqrt(variance(*row) + variance(*base));
  }
  return contrast;
}

}  // namespace tsallis::lab
