#include "lab/report/analysis.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

namespace tsallis::lab {

std::string CellText(const Cell& cell) {
  if (const auto* text = std::get_if<std::string>(&cell)) return *text;
  if (const auto* whole = std::get_if<std::int64_t>(&cell)) return fmt::format("{}", *whole);
  return fmt::format("{:.6g}", std::get<double>(cell));
}

void DataTable::Add(std::vector<Cell> row) {
  if (row.size() != columns_.size()) {
    throw std::logic_error(
        fmt::format("table {}: {} cells for {} columns", name_, row.size(), columns_.size()));
  }
  rows_.push_back(std::move(row));
}

std::size_t DataTable::Place(const std::string& column) const {
  const auto place = std::find(columns_.begin(), columns_.end(), column);
  if (place == columns_.end()) throw std::logic_error("table " + name_ + " has no " + column);
  return place - columns_.begin();
}

double DataTable::At(const std::vector<Cell>& keys, const std::string& column) const {
  const std::size_t place = Place(column);
  for (const std::vector<Cell>& row : rows_) {
    const bool same =
        std::equal(keys.begin(), keys.end(), row.begin(),
                   [](const Cell& a, const Cell& b) { return CellText(a) == CellText(b); });
    if (!same) continue;
    const Cell& cell = row[place];
    if (const auto* whole = std::get_if<std::int64_t>(&cell)) return static_cast<double>(*whole);
    return std::get<double>(cell);
  }
  throw std::logic_error("table " + name_ + " has no such row");
}

const DataTable& AnalysisResult::Table(const std::string& name) const {
  for (const DataTable& table : tables) {
    if (table.Name() == name) return table;
  }
  throw std::logic_error("no table " + name);
}

}  // namespace tsallis::lab
