// CSV files (RFC 4180), written field by field and read with errors that say where.
#pragma once

#include <fmt/format.h>

#include <charconv>
#include <cstddef>
#include <filesystem>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace tsallis::lab {

// A whole file. Throws std::runtime_error with the path and the reason.
std::string ReadFile(const std::filesystem::path& path);

// A field, in quotes if it needs them.
std::string Quoted(const std::string& field);

// A table with a line of column names. Throws std::runtime_error that names file, line and column.
class CsvTable {
 public:
  explicit CsvTable(const std::filesystem::path& path);

  std::size_t size() const { return records_.size(); }

  const std::string& Text(std::size_t record, const std::string& column) const;

  template <typename T>
  T Number(std::size_t record, const std::string& column) const {
    const std::string& text = Text(record, column);
    T value{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) {
      throw std::runtime_error(fmt::format("{}:{}: '{}' is '{}', which is not a number",
                                           path_.string(), records_[record].first, column, text));
    }
    return value;
  }

 private:
  std::filesystem::path path_;
  std::map<std::string, std::size_t> columns_;
  std::vector<std::pair<int, std::vector<std::string>>> records_;  // line, fields
};

}  // namespace tsallis::lab
