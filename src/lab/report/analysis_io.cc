#include "lab/report/analysis_io.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <string>
#include <system_error>
#include <vector>

#include "lab/base/files.h"

namespace tsallis::lab {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// A field of CSV (RFC 4180), in quotes if it needs them.
std::string Quoted(const std::string& field) {
  if (field.find_first_of(",\"\n\r") == std::string::npos) return field;
  std::string quoted = "\"";
  for (const char c : field) {
    if (c == '"') quoted += '"';
    quoted += c;
  }
  return quoted + '"';
}

std::string Csv(const DataTable& table) {
  std::vector<std::string> fields;
  for (const std::string& name : table.Columns()) fields.push_back(Quoted(name));
  std::string csv = fmt::format("{}\n", fmt::join(fields, ","));
  for (const std::vector<Cell>& row : table.Rows()) {
    fields.clear();
    for (const Cell& cell : row) fields.push_back(Quoted(CellText(cell)));
    csv += fmt::format("{}\n", fmt::join(fields, ","));
  }
  return csv;
}

Json Object(const Where& where) {
  Json json = Json::object();
  for (const auto& [column, value] : where) json[column] = CellText(value);
  return json;
}

Json ToJson(const Curve& curve) {
  Json json = {{"table", curve.table}, {"x", curve.x}, {"y", curve.y}, {"look", curve.look}};
  if (!curve.by.empty()) json["by"] = curve.by;
  if (!curve.where.empty()) json["where"] = Object(curve.where);
  if (!curve.label.empty()) json["label"] = curve.label;
  return json;
}

Json ToJson(const Panel& panel) {
  Json json = {{"title", panel.title},
               {"x_label", panel.x_label},
               {"y_label", panel.y_label},
               {"x_scale", panel.x_scale},
               {"y_scale", panel.y_scale}};
  for (const Curve& curve : panel.curves) json["curves"].push_back(ToJson(curve));
  if (panel.heat) {
    json["heat"] = {{"table", panel.heat->table}, {"x", panel.heat->x},
                    {"y", panel.heat->y},         {"value", panel.heat->value},
                    {"label", panel.heat->label}, {"where", Object(panel.heat->where)}};
  }
  for (const Mark& mark : panel.marks) {
    json["marks"].push_back({{"x", mark.x}, {"curve", mark.curve}});
  }
  return json;
}

Json ToJson(const AnalysisFigure& figure) {
  Json json = {{"name", figure.name},
               {"title", figure.title},
               {"caption", figure.caption},
               {"columns", figure.columns}};
  for (const Panel& panel : figure.panels) json["panels"].push_back(ToJson(panel));
  return json;
}

Json ToJson(const Fact& fact) {
  return {{"quantity", fact.quantity},
          {"value", fact.value},
          {"expected", fact.expected ? Json(*fact.expected) : Json(nullptr)},
          {"source", fact.source}};
}

}  // namespace

Json ToJson(const AnalysisReport& report) {
  Json json = {{"study", report.name},
               {"title", report.title},
               {"source", report.source},
               {"scale", report.scale},
               {"seed", report.seed},
               {"checkpoint", report.checkpoint},
               {"decoder", report.decoder},
               {"finding", report.result.finding},
               {"setup", report.result.setup},
               {"commit", report.commit},
               {"processor", report.processor},
               {"command", report.command},
               {"seconds", std::round(report.seconds * 10.0) / 10.0}};
  json["facts"] = Json::array();
  for (const Fact& fact : report.result.facts) json["facts"].push_back(ToJson(fact));
  json["figures"] = Json::array();
  for (const AnalysisFigure& figure : report.result.figures) {
    json["figures"].push_back(ToJson(figure));
  }
  json["tables"] = Json::array();
  for (const DataTable& table : report.result.tables) {
    json["tables"].push_back(
        {{"name", table.Name()}, {"columns", table.Columns()}, {"rows", table.Rows().size()}});
  }
  return json;
}

void WriteAnalysis(const AnalysisReport& report, const fs::path& dir) {
  std::error_code error;
  fs::remove(dir / "study.json", error);  // of an earlier run, whose tables are replaced below
  MakeFolder(dir / "data");
  for (const DataTable& table : report.result.tables) {
    WriteFileAtomically(dir / "data" / (table.Name() + ".csv"), Csv(table));
  }
  WriteFileAtomically(dir / "study.json", ToJson(report).dump(1) + "\n");
}

Json ReadAnalysis(const fs::path& dir) { return ReadJson(dir / "study.json"); }

}  // namespace tsallis::lab
