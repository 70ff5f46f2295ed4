#include "lab/report/results_io.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "lab/base/files.h"
#include "lab/report/contrast.h"
#include "lab/report/csv.h"
#include "lab/report/data_files.h"

namespace tsallis::lab {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// ---- CSV ------------------------------------------------------------------------------------

std::string ResultsCsv(const StudyResults& results) {
  std::string csv = "method,label,n,mean,std,best,seeds,paper,difference\n";
  const std::vector<MethodInfo> methods = MethodsInOrder(results);
  for (const ResultRow& row : results.rows) {
    const auto method = std::find_if(methods.begin(), methods.end(), [&](const MethodInfo& info) {
      return info.name == row.method;
    });
    csv += fmt::format("{},{},{},{},{},{},{},", Quoted(row.method), Quoted(method->label), row.n,
                       row.mean, row.deviation, row.best, row.seeds);
    if (row.paper) {
      csv += fmt::format("{},{:.6g}", *row.paper, row.mean - *row.paper);
    } else {
      csv += ',';
    }
    csv += '\n';
  }
  return csv;
}

// ---- JSON -----------------------------------------------------------------------------------

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
  if (results.figure != "accuracy") json["figure"] = results.figure;
  if (!results.finding.empty()) json["finding"] = results.finding;
  json["protocol"] = results.protocol;
  json["train_seconds"] = results.train_seconds;
  json["metric"] = {{"name", results.metric.name},
                    {"unit", results.metric.unit},
                    {"higher_is_better", results.metric.higher_is_better},
                    {"digits", results.metric.digits}};
  json["methods"] = Json::array();
  for (const MethodInfo& method : MethodsInOrder(results)) {
    json["methods"].push_back({{"name", method.name},
                               {"label", method.label},
                               {"map", method.map},
                               {"length_scaling", method.length_scaling},
                               {"like", method.like},
                               {"variant", method.variant},
                               {"headline", method.headline}});
  }
  json["rows"] = Json::array();
  for (const ResultRow& row : results.rows) {
    json["rows"].push_back({{"method", row.method},
                            {"n", row.n},
                            {"mean", row.mean},
                            {"std", row.deviation},
                            {"best", row.best},
                            {"seeds", row.seeds},
                            {"paper", row.paper ? Json(*row.paper) : Json(nullptr)}});
    if (row.samples > 0) json["rows"].back()["samples"] = row.samples;
    if (row.method == results.baseline) continue;
    if (const std::optional<Contrast> contrast = AgainstBaseline(results, row.method, row.n)) {
      json["rows"].back()["against_baseline"] = {
          {"difference", contrast->difference},
          {"error", contrast->error ? Json(*contrast->error) : Json(nullptr)}};
      if (contrast->p_value) {
        // A difference that no spread explains has p = 0 in double: four digits are enough.
        json["rows"].back()["against_baseline"]["p"] =
            std::strtod(fmt::format("{:.4g}", *contrast->p_value).c_str(), nullptr);
      }
    }
  }
  for (const MeasureRow& row : results.measures) {
    json["measures"].push_back({{"method", row.method},
                                {"n", row.n},
                                {"measure", row.measure},
                                {"mean", row.mean},
                                {"std", row.deviation}});
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
  return json;
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
  files.emplace_back("results.json", Dump(ToJson(results)));
  MakeFolder(dir / "data");
  for (const auto& [name, text] : files) {
    if (text.empty()) {
      fs::remove(dir / name);  // of an earlier state
    } else {
      WriteFileAtomically(dir / name, text);
    }
  }
}

}  // namespace tsallis::lab
