#include "lab/report/results_io.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "lab/report/contrast.h"
#include "lab/report/csv.h"
#include "lab/report/data_files.h"
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

void MakeFolder(const fs::path& dir) {
  std::error_code error;
  fs::create_directories(dir, error);
  if (error) {
    throw std::runtime_error(
        fmt::format("{}: cannot make the folder: {}", dir.string(), error.message()));
  }
}

// ---- CSV ------------------------------------------------------------------------------------

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

// Of each quantity at a length one object: mean and spread as [layers][heads], null where a head
// has no such quantity.
void AddHeads(const std::string& method, const LengthHeads& at, Json& json) {
  std::vector<std::string> quantities;
  std::int64_t layers = 0;
  std::int64_t heads = 0;
  for (const HeadNumber& number : at.numbers) {
    if (std::find(quantities.begin(), quantities.end(), number.quantity) == quantities.end()) {
      quantities.push_back(number.quantity);
    }
    layers = std::max(layers, number.layer + 1);
    heads = std::max(heads, number.head + 1);
  }
  const Json nothing(std::vector<Json>(static_cast<std::size_t>(layers),
                                       std::vector<Json>(static_cast<std::size_t>(heads))));
  for (const std::string& quantity : quantities) {
    Json mean = nothing;
    Json spread = nothing;
    for (const HeadNumber& number : at.numbers) {
      if (number.quantity != quantity) continue;
      mean[number.layer][number.head] = number.mean;
      spread[number.layer][number.head] = number.deviation;
    }
    json.push_back({{"method", method},
                    {"n", at.n},
                    {"samples", at.samples},
                    {"quantity", quantity},
                    {"mean", mean},
                    {"std", spread}});
  }
}

// The parts of a protocol.
std::vector<std::string> Parts(const std::string& protocol) {
  std::vector<std::string> parts;
  std::size_t begin = 0;
  for (std::size_t end = protocol.find("; "); end != std::string::npos;
       end = protocol.find("; ", begin)) {
    parts.push_back(protocol.substr(begin, end - begin));
    begin = end + 2;
  }
  parts.push_back(protocol.substr(begin));
  return parts;
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
  if (!results.finding.empty()) json["finding"] = results.finding;
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
    if (row.method == results.baseline) continue;
    if (const std::optional<Contrast> contrast = AgainstBaseline(results, row.method, row.n)) {
      json["rows"].back()["against_baseline"] = {
          {"difference", contrast->difference},
          {"error", contrast->error ? Json(*contrast->error) : Json(nullptr)}};
    }
  }
  json["entropies"] = Json::array();
  for (const EntropyRow& row : results.entropies) {
    json["entropies"].push_back({{"method", row.method},
                                 {"n", row.n},
                                 {"entropy_mean", row.entropy_mean},
                                 {"entropy_std", row.entropy_std},
                                 {"normalised_entropy", row.normalised_mean},
                                 {"support_mean", row.support_mean}});
  }
  json["heads"] = Json::array();
  for (const auto& [method, heads] : results.heads) {
    for (const LengthHeads& at : heads.lengths) AddHeads(method, at, json["heads"]);
  }
  return json;
}

std::string MarkdownReport(const StudyResults& results) {
  const std::vector<std::int64_t> lengths = Lengths(results);
  bool any_compared = false;
  std::vector<std::vector<std::string>> table;
  table.push_back({"method", ""});
  for (const std::int64_t n : lengths) table[0].push_back(fmt::format("n = {}", n));

  bool any_several = false;
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
    any_several = any_several || several;
    if (!compared) continue;
    any_compared = true;
    table.push_back(std::move(paper));
    table.push_back(std::move(differences));
  }

  std::string page = fmt::format("# {}\n\n", results.title.empty() ? results.study : results.title);
  if (!results.finding.empty()) page += Escaped(results.finding) + "\n\n";
  page += "![Accuracy against length](figures/accuracy.png)\n\n";
  page += fmt::format(
      "Accuracy in %, {}: mean{}{}.\n\n", SeedText(results),
      any_several ? " ± standard deviation over seeds" : "",
      any_compared ? "; below it the paper's figure and ours minus the paper's, in points" : "");
  page += MarkdownTable(table) + '\n';
  page += BaselineSection(results);

  if (!results.protocol.empty()) {
    page += "How it was done:\n\n- " +
            fmt::format("{}", fmt::join(Parts(results.protocol), "\n- ")) + "\n\n";
  }
  // No link: the repository keeps this page without report.html.
  page +=
      "All figures are in `report.html` in the same folder, their data in `results.csv` and "
      "`data/`. Of "
      "a report that came without them, `make pages` draws them again.\n\n";

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

namespace {

// Indented, but for what stands in lists: an entry a line, so that files stay small and changes can
// be read.
std::string Dump(const Json& json) {
  const auto text = [](const Json& value) {
    // A name in a foreign encoding must not lose a week's training: replaced, not thrown.
    return value.dump(-1, ' ', false, Json::error_handler_t::replace);
  };
  std::string lines;
  for (const auto& [key, value] : json.items()) {
    lines += fmt::format("{}  {}: ", lines.empty() ? "{\n" : ",\n", text(key));
    if (!value.is_array() || value.empty()) {
      lines += text(value);
      continue;
    }
    std::string entries;
    for (const Json& entry : value) {
      entries += fmt::format("{}    {}", entries.empty() ? "[\n" : ",\n", text(entry));
    }
    lines += entries + "\n  ]";
  }
  return lines + "\n}\n";
}

}  // namespace

void WriteResults(const StudyResults& results, const fs::path& dir) {
  std::vector<std::pair<fs::path, std::string>> files = DataFiles(results);
  files.emplace_back("results.csv", ResultsCsv(results));
  files.emplace_back("report.md", MarkdownReport(results));
  files.emplace_back("results.json", Dump(ToJson(results)));
  MakeFolder(dir / "data");
  for (const auto& [name, text] : files) {
    if (text.empty()) {
      fs::remove(dir / name);  // of an earlier state
    } else {
      WriteAtomically(dir / name, text);
    }
  }
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
  results.finding = root.Text("finding", false);
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
  ReadDataFiles(dir, results);
  return results;
}

}  // namespace tsallis::lab
