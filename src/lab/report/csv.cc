#include "lab/report/csv.h"

#include <fstream>
#include <iterator>

namespace tsallis::lab {

namespace fs = std::filesystem;

std::string ReadFile(const fs::path& path) {
  if (!fs::exists(path)) {
    throw std::runtime_error(path.string() + ": no such file; is this a folder of results?");
  }
  std::ifstream file(path, std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (!file || fs::is_directory(path)) throw std::runtime_error(path.string() + ": cannot be read");
  return text;
}

std::string Quoted(const std::string& field) {
  if (field.find_first_of(",\"\n\r") == std::string::npos) return field;
  std::string quoted = "\"";
  for (const char c : field) {
    if (c == '"') quoted += '"';
    quoted += c;
  }
  return quoted + '"';
}

CsvTable::CsvTable(const fs::path& path) : path_(path) {
  const std::string text = ReadFile(path);
  std::vector<std::string> fields(1);
  int line = 1;
  int first_line = 1;
  bool quoted = false;
  const auto end_record = [&] {
    if (fields.size() > 1 || !fields[0].empty()) {
      if (columns_.empty()) {
        for (std::size_t i = 0; i < fields.size(); ++i) columns_[fields[i]] = i;
      } else {
        records_.emplace_back(first_line, std::move(fields));
      }
    }
    fields.assign(1, "");
  };
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted) {
      if (c == '"' && i + 1 < text.size() && text[i + 1] == '"') {
        fields.back() += text[++i];
      } else if (c == '"') {
        quoted = false;
      } else {
        fields.back() += c;
      }
    } else if (c == '"') {
      quoted = true;
    } else if (c == ',') {
      fields.emplace_back();
    } else if (c == '\n') {
      end_record();
      first_line = line + 1;
    } else if (c != '\r') {
      fields.back() += c;
    }
    if (c == '\n') ++line;
  }
  if (quoted) throw std::runtime_error(fmt::format("{}: a quote is not closed", path.string()));
  end_record();
}

const std::string& CsvTable::Text(std::size_t record, const std::string& column) const {
  const auto found = columns_.find(column);
  if (found == columns_.end()) {
    throw std::runtime_error(fmt::format("{}: no column '{}'", path_.string(), column));
  }
  const auto& [line, fields] = records_[record];
  if (found->second >= fields.size()) {
    throw std::runtime_error(fmt::format("{}:{}: no value for '{}'", path_.string(), line, column));
  }
  return fields[found->second];
}

}  // namespace tsallis::lab
