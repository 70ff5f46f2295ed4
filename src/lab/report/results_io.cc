#include "lab/report/results_io.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <set>
#include <stdexcept>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "lab/report/contrast.h"
#include "lab/report/table.h"

namespace tsallis::lab {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// ---- files ----------------------------------------------------------------------------------

[[noreturn]] void ThrowErrno(const fs::path& path, std::string_view action, int error) {
  throw std::runtime_error(fmt::format("{}: {}: {}", path.string(), action, std::strerror(error)));
}

// Writes beside `path`, then renames, so that a reader sees the old file or the new one.
void WriteAtomically(const fs::path& path, std::string_view text) {
  const fs::path aside =
      path.parent_path() / fmt::format(".{}.{}.tmp", path.filename().string(), getpid());
  const int file = open(aside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (file < 0) ThrowErrno(path, "cannot be written", errno);
  const auto fail = [&](int error) {
    close(file);
    unlink(aside.c_str());
    ThrowErrno(path, "cannot be written", error);
  };
  while (!text.empty()) {
    const ssize_t count = write(file, text.data(), text.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail(errno);
    text.remove_prefix(static_cast<std::size_t>(count));
  }
  if (fsync(file) != 0) fail(errno);
  if (close(file) != 0 || std::rename(aside.c_str(), path.c_str()) != 0) {
    const int error = errno;
    unlink(aside.c_str());
    ThrowErrno(path, "cannot be written", error);
  }
}

std::string ReadFile(const fs::path& path) {
  if (!fs::exists(path)) {
    throw std::runtime_error(path.string() + ": no such file; is this a folder of results?");
  }
  std::ifstream file(path, std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (!file || fs::is_directory(path)) throw std::runtime_error(path.string() + ": cannot be read");
  return text;
}

void MakeFolder(const fs::path& dir) {
  std::error_code error;
  fs::create_directories(dir, error);
  if (error) {
    throw std::runtime_error(
        fmt::format("{}: cannot make the folder: {}", dir.string(), error.message()));
  }
}

// ---- CSV ------------------------------------------------------------------------------------

std::string Quoted(const std::string& field) {
  if (field.find_first_of(",\"\n\r") == std::string::npos) return field;
  std::string quoted = "\"";
  for (const char c : field) {
    if (c == '"') quoted += '"';
    quoted += c;
  }
  return quoted + '"';
}

// A table read from CSV, with errors that name file, line and column.
class CsvTable {
 public:
  explicit CsvTable(const fs::path& path) : path_(path) {
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

  std::size_t size() const { return records_.size(); }

  const std::string& Text(std::size_t record, const std::string& column) const {
    const auto found = columns_.find(column);
    if (found == columns_.end()) {
      throw std::runtime_error(fmt::format("{}: no column '{}'", path_.string(), column));
    }
    const auto& [line, fields] = records_[record];
    if (found->second >= fields.size()) {
      throw std::runtime_error(
          fmt::format("{}:{}: no value for '{}'", path_.string(), line, column));
    }
    return fields[found->second];
  }

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
  fs::path path_;
  std::map<std::string, std::size_t> columns_;
  std::vector<std::pair<int, std::vector<std::string>>> records_;  // line, fields
};

std::string ResultsCsv(const StudyResults& results) {
  std::string csv =
      "method,label,n,accuracy_mean,accuracy_std,accuracy_best,seeds,paper,difference\n";
  const std::vector<MethodInfo> methods = MethodsInOrder(results);
  for (const ResultRow& row : results.rows) {
    const auto method = std::find_if(methods.begin(), methods.end(), [&](const MethodInfo& info) {
      return info.name == row.method;
    });
    csv += fmt::format("{},{},{},{},{},{},{},", Quoted(row.method), Quoted(method->label), row.n,
                       row.accuracy_mean, row.accuracy_std, row.accuracy_best, row.seeds);
    if (const auto difference = Difference(row)) {
      csv += fmt::format("{},{:.6g}", *row.paper, *difference);
    } else {
      csv += ',';
    }
    csv += '\n';
  }
  return csv;
}

std::string EntropyCsv(const StudyResults& results) {
  std::string csv = "method,n,entropy_mean,entropy_std,normalised_entropy,support_mean\n";
  for (const EntropyRow& row : results.entropies) {
    // A single item has no entropy to normalise.
    const double normalised =
        row.n > 1 ? row.entropy_mean / std::log(static_cast<double>(row.n)) : 0.0;
    csv += fmt::format("{},{},{},{},{:.6g},{}\n", Quoted(row.method), row.n, row.entropy_mean,
                       row.entropy_std, normalised, row.support_mean);
  }
  return csv;
}

// One line per weight; rank 1 is the largest item, the last column of HeatMap.
std::string HeatMapCsv(const StudyResults& results) {
  std::string csv = "method,n,set,rank,weight\n";
  for (const HeatMap& map : results.heat_maps) {
    if (static_cast<std::int64_t>(map.weights.size()) != map.samples * map.items) {
      throw std::runtime_error(fmt::format("heat map of {} at n = {}: {} weights for {} sets of {}",
                                           map.method, map.n, map.weights.size(), map.samples,
                                           map.items));
    }
    const std::string method = Quoted(map.method);
    for (std::int64_t set = 0; set < map.samples; ++set) {
      for (std::int64_t column = 0; column < map.items; ++column) {
        csv += fmt::format("{},{},{},{},{}\n", method, map.n, set, map.items - column,
                           map.weights[set * map.items + column]);
      }
    }
  }
  return csv;
}

std::vector<EntropyRow> ReadEntropies(const fs::path& path) {
  std::vector<EntropyRow> rows;
  if (!fs::exists(path)) return rows;
  const CsvTable table(path);
  for (std::size_t i = 0; i < table.size(); ++i) {
    rows.push_back({table.Text(i, "method"), table.Number<std::int64_t>(i, "n"),
                    table.Number<double>(i, "entropy_mean"), table.Number<double>(i, "entropy_std"),
                    table.Number<double>(i, "support_mean")});
  }
  return rows;
}

std::vector<HeatMap> ReadHeatMaps(const fs::path& path) {
  std::vector<HeatMap> maps;
  if (!fs::exists(path)) return maps;
  const CsvTable table(path);
  struct Entry {
    std::int64_t set, rank;
    float weight;
  };
  std::vector<std::vector<Entry>> entries;  // one list per map
  std::map<std::pair<std::string, std::int64_t>, std::size_t> places;
  for (std::size_t i = 0; i < table.size(); ++i) {
    const std::string& method = table.Text(i, "method");
    const auto n = table.Number<std::int64_t>(i, "n");
    const Entry entry{table.Number<std::int64_t>(i, "set"), table.Number<std::int64_t>(i, "rank"),
                      table.Number<float>(i, "weight")};
    if (entry.set < 0 || entry.rank < 1) {
      throw std::runtime_error(
          fmt::format("{}: set {}, rank {} of {}: sets count from 0, ranks from 1", path.string(),
                      entry.set, entry.rank, method));
    }
    const auto [place, is_new] = places.try_emplace({method, n}, maps.size());
    if (is_new) {
      maps.push_back({method, n, 0, 0, {}});
      entries.emplace_back();
    }
    HeatMap& map = maps[place->second];
    map.samples = std::max(map.samples, entry.set + 1);
    map.items = std::max(map.items, entry.rank);
    entries[place->second].push_back(entry);
  }
  for (std::size_t m = 0; m < maps.size(); ++m) {
    HeatMap& map = maps[m];
    // Before any memory is asked for: a stray index must not cost gigabytes.
    if (static_cast<double>(map.samples) * static_cast<double>(map.items) !=
        static_cast<double>(entries[m].size())) {
      throw std::runtime_error(fmt::format("{}: {} at n = {} has {} weights for {} sets of {}",
                                           path.string(), map.method, map.n, entries[m].size(),
                                           map.samples, map.items));
    }
    map.weights.resize(entries[m].size());
    for (const Entry& entry : entries[m]) {
      map.weights[entry.set * map.items + map.items - entry.rank] = entry.weight;
    }
  }
  return maps;
}

// ---- JSON -----------------------------------------------------------------------------------

// An object of results.json; errors say where in the file it stands.
class Object {
 public:
  Object(const Json& json, std::string place) : json_(json), place_(std::move(place)) {
    if (!json.is_object()) throw std::runtime_error(place_ + ": expected an object");
  }

  std::string Text(const char* key, bool required = true) const {
    const Json* value = Find(key, required);
    if (value == nullptr) return "";
    if (!value->is_string()) Fail(key, "a string");
    return value->get<std::string>();
  }

  // null stands for a number that is none, as JSON has no NaN.
  double Number(const char* key, bool required = true) const {
    const Json* value = Find(key, required);
    if (value == nullptr) return 0.0;
    if (value->is_null()) return std::numeric_limits<double>::quiet_NaN();
    if (!value->is_number()) Fail(key, "a number");
    return value->get<double>();
  }

  std::int64_t Integer(const char* key, bool required = true) const {
    const Json* value = Find(key, required);
    if (value == nullptr) return 0;
    if (!value->is_number_integer()) Fail(key, "an integer");
    return value->get<std::int64_t>();
  }

  std::vector<Object> Objects(const char* key, bool required = true) const {
    const Json* value = Find(key, required);
    std::vector<Object> objects;
    if (value == nullptr) return objects;
    if (!value->is_array()) Fail(key, "an array");
    for (std::size_t i = 0; i < value->size(); ++i) {
      objects.emplace_back((*value)[i], fmt::format("{}: {}[{}]", place_, key, i));
    }
    return objects;
  }

  bool Has(const char* key) const { return json_.contains(key) && !json_[key].is_null(); }

 private:
  const Json* Find(const char* key, bool required) const {
    const auto found = json_.find(key);
    if (found != json_.end()) return &*found;
    if (required) throw std::runtime_error(fmt::format("{}: '{}' is missing", place_, key));
    return nullptr;
  }

  [[noreturn]] void Fail(const char* key, std::string_view expected) const {
    throw std::runtime_error(fmt::format("{}: '{}': expected {}", place_, key, expected));
  }

  const Json& json_;
  std::string place_;
};

// ---- Markdown -------------------------------------------------------------------------------

// Text inside a cell or a line: a bar would end the cell, a line break the row.
std::string Escaped(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '|') escaped += '\\';
    escaped += c == '\n' ? ' ' : c;
  }
  return escaped;
}

std::string Duration(double seconds) {
  if (!(seconds >= 60.0)) return fmt::format("{:.1f} s", seconds);
  if (seconds < 3600.0) return fmt::format("{:.0f} min", seconds / 60.0);
  return fmt::format("{:.1f} h", seconds / 3600.0);
}

// A table whose raw text is aligned too: the first two columns to the left, the rest to the right.
std::string MarkdownTable(const std::vector<std::vector<std::string>>& rows) {
  std::vector<int> widths(rows[0].size(), 3);
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], DisplayWidth(row[i]));
    }
  }
  std::string table;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    table += '|';
    for (std::size_t i = 0; i < widths.size(); ++i) {
      table += fmt::format(
          " {} |", i < 2 ? PadRight(rows[r][i], widths[i]) : PadLeft(rows[r][i], widths[i]));
    }
    table += '\n';
    if (r > 0) continue;
    table += '|';
    for (std::size_t i = 0; i < widths.size(); ++i) {
      table += fmt::format(" {}{} |", std::string(widths[i] - 1, '-'), i < 2 ? '-' : ':');
    }
    table += '\n';
  }
  return table;
}

// Every other method against the baseline; empty without one.
std::string BaselineSection(const StudyResults& results) {
  const std::vector<std::int64_t> lengths = Lengths(results);
  std::vector<std::vector<std::string>> table = {{"method", ""}};
  for (const std::int64_t n : lengths) table[0].push_back(fmt::format("n = {}", n));
  std::string label;
  for (const MethodInfo& method : MethodsInOrder(results)) {
    if (method.name == results.baseline) {
      label = method.label;
      continue;
    }
    std::vector<std::string>& row = table.emplace_back();
    row = {Escaped(method.label), ""};
    for (const std::int64_t n : lengths) {
      const std::optional<Contrast> contrast = AgainstBaseline(results, method.name, n);
      row.push_back(contrast ? ContrastText(*contrast) : "–");
    }
  }
  if (label.empty() || table.size() == 1) return "";
  return fmt::format(
      "Accuracy minus that of {}, in points, ± the standard error of the difference:\n\n{}\n",
      Escaped(label), MarkdownTable(table));
}

}  // namespace

Json ToJson(const StudyResults& results) {
  Json json;
  json["study"] = results.study;
  json["title"] = results.title;
  json["source"] = results.source;
  json["scale"] = results.scale;
  json["commit"] = results.commit;
  json["processor"] = results.processor;
  json["command"] = results.command;
  if (!results.baseline.empty()) json["baseline"] = results.baseline;
  json["protocol"] = results.protocol;
  json["train_seconds"] = results.train_seconds;
  json["methods"] = Json::array();
  for (const MethodInfo& method : MethodsInOrder(results)) {
    json["methods"].push_back({{"name", method.name}, {"label", method.label}});
  }
  json["rows"] = Json::array();
  for (const ResultRow& row : results.rows) {
    json["rows"].push_back({{"method", row.method},
                            {"n", row.n},
                            {"accuracy_mean", row.accuracy_mean},
                            {"accuracy_std", row.accuracy_std},
                            {"accuracy_best", row.accuracy_best},
                            {"seeds", row.seeds},
                            {"paper", row.paper ? Json(*row.paper) : Json(nullptr)}});
  }
  return json;
}

std::string MarkdownReport(const StudyResults& results) {
  const std::vector<std::int64_t> lengths = Lengths(results);
  bool any_compared = false;
  std::vector<std::vector<std::string>> table;
  table.push_back({"method", ""});
  for (const std::int64_t n : lengths) table[0].push_back(fmt::format("n = {}", n));

  std::set<int> seeds;
  for (const MethodInfo& method : MethodsInOrder(results)) {
    std::vector<std::string> ours = {Escaped(method.label), "ours"};
    std::vector<std::string> best = {"", "best seed"};
    std::vector<std::string> paper = {"", "paper"};
    std::vector<std::string> differences = {"", "difference"};
    bool compared = false;
    bool several = false;
    for (const std::int64_t n : lengths) {
      const ResultRow* row = FindRow(results, method.name, n);
      const std::optional<double> difference = row != nullptr ? Difference(*row) : std::nullopt;
      ours.emplace_back("–");
      if (row != nullptr) {
        seeds.insert(row->seeds);
        ours.back() = fmt::format("{:.1f}", row->accuracy_mean);
        if (row->seeds > 1) ours.back() += fmt::format(" ± {:.1f}", row->accuracy_std);
        several = several || row->seeds > 1;
      }
      best.push_back(row != nullptr ? fmt::format("{:.1f}", row->accuracy_best) : "–");
      compared = compared || difference.has_value();
      paper.push_back(difference ? fmt::format("{:.1f}", *row->paper) : "–");
      differences.push_back(difference ? SignedPoints(*difference) : "–");
    }
    table.push_back(std::move(ours));
    if (several) table.push_back(std::move(best));
    if (!compared) continue;
    any_compared = true;
    table.push_back(std::move(paper));
    table.push_back(std::move(differences));
  }

  std::string seed_text = "no seeds";
  if (!seeds.empty()) {
    seed_text = *seeds.rbegin() == 1 ? "one seed"
                : *seeds.begin() == *seeds.rbegin()
                    ? fmt::format("{} seeds", *seeds.begin())
                    : fmt::format("{} to {} seeds", *seeds.begin(), *seeds.rbegin());
  }
  std::string page = fmt::format("# {}\n\n", results.title.empty() ? results.study : results.title);
  if (!results.protocol.empty()) page += results.protocol + "\n\n";
  page += fmt::format(
      "Accuracy in %, {}: mean{}{}.\n\n", seed_text,
      !seeds.empty() && *seeds.rbegin() > 1 ? " ± standard deviation over seeds" : "",
      any_compared ? "; below it the paper's figure and ours minus the paper's, in points" : "");
  page += MarkdownTable(table) + '\n';
  page += BaselineSection(results);

  page += "![Accuracy against length](figures/accuracy.png)\n\n";
  if (!results.heat_maps.empty()) {
    page += "![Attention on the largest items](figures/heatmap.png)\n\n";
  }
  page += results.entropies.empty() && results.heat_maps.empty()
              ? "The same as one page: [report.html](report.html); its data: `results.csv`.\n\n"
              : "More figures are in [report.html](report.html), their data in `results.csv` and "
                "`data/`.\n\n";

  std::vector<std::pair<std::string, std::string>> facts = {
      {"study", results.study},
      {"scale", results.scale},
      {"paper's figures", any_compared ? results.source : ""},
      {"command", results.command.empty() ? "" : "`" + results.command + "`"},
      {"commit", results.commit.empty() ? "" : "`" + results.commit + "`"},
      {"processor", results.processor},
      {"training time",
       results.train_seconds > 0.0 ? Duration(results.train_seconds) + ", summed over jobs" : ""}};
  std::vector<std::vector<std::string>> fact_table = {{"", ""}};
  for (const auto& [name, value] : facts) {
    if (!value.empty()) fact_table.push_back({name, Escaped(value)});
  }
  return page + MarkdownTable(fact_table);
}

void WriteResults(const StudyResults& results, const fs::path& dir) {
  const std::vector<std::pair<fs::path, std::string>> files = {
      {"data/entropy.csv", EntropyCsv(results)},
      {"data/heatmap.csv", HeatMapCsv(results)},
      {"results.csv", ResultsCsv(results)},
      {"report.md", MarkdownReport(results)},
      // A name in a foreign encoding must not lose a week's training: replaced, not thrown.
      {"results.json", ToJson(results).dump(2, ' ', false, Json::error_handler_t::replace) + '\n'}};
  MakeFolder(dir / "data");
  for (const auto& [name, text] : files) WriteAtomically(dir / name, text);
}

StudyResults ReadResults(const fs::path& dir) {
  const fs::path path = dir / "results.json";
  Json json;
  try {
    json = Json::parse(ReadFile(path));
  } catch (const Json::parse_error& error) {
    throw std::runtime_error(fmt::format("{}: not JSON: {}", path.string(), error.what()));
  }
  const Object root(json, path.string());
  StudyResults results;
  results.study = root.Text("study");
  results.title = root.Text("title", false);
  results.source = root.Text("source", false);
  results.scale = root.Text("scale", false);
  results.commit = root.Text("commit", false);
  results.processor = root.Text("processor", false);
  results.command = root.Text("command", false);
  results.baseline = root.Text("baseline", false);
  results.protocol = root.Text("protocol", false);
  results.train_seconds = root.Number("train_seconds", false);
  for (const Object& method : root.Objects("methods", false)) {
    results.methods.push_back({method.Text("name"), method.Text("label", false)});
  }
  for (const Object& entry : root.Objects("rows")) {
    ResultRow row;
    row.method = entry.Text("method");
    row.n = entry.Integer("n");
    row.accuracy_mean = entry.Number("accuracy_mean");
    row.accuracy_std = entry.Number("accuracy_std", false);
    row.accuracy_best = entry.Number("accuracy_best", false);
    row.seeds = static_cast<int>(entry.Integer("seeds", false));
    if (entry.Has("paper")) row.paper = entry.Number("paper");
    results.rows.push_back(std::move(row));
  }
  results.methods = MethodsInOrder(results);
  results.entropies = ReadEntropies(dir / "data" / "entropy.csv");
  results.heat_maps = ReadHeatMaps(dir / "data" / "heatmap.csv");
  return results;
}

}  // namespace tsallis::lab
