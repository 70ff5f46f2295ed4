#include "lab/report/render.h"

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lab/base/python.h"

namespace tsallis::lab {
namespace {

void AddTable(const TableOptions& table, std::vector<std::string>& arguments) {
  if (!table.show) return;
  arguments.insert(arguments.end(), {"--table", "--width", std::to_string(table.width)});
  if (table.color) arguments.emplace_back("--color");
}

}  // namespace

void ReportRuns(const nlohmann::ordered_json& study, const std::filesystem::path& dir,
                const TableOptions& table) {
  std::vector<std::string> arguments = {std::filesystem::absolute(dir).string(), "--runs"};
  AddTable(table, arguments);
  // A name in a foreign encoding must not lose a week's training: replaced, not thrown.
  const std::string text =
      study.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  RunPython("tsallis_report", arguments, table.show, text);
}

void RenderReports(const std::vector<std::filesystem::path>& dirs, const TableOptions& table,
                   const std::filesystem::path& together) {
  std::vector<std::string> arguments;
  for (const std::filesystem::path& dir : dirs) {
    arguments.push_back(std::filesystem::absolute(dir).string());
  }
  if (!together.empty()) {
    arguments.insert(arguments.end(), {"--together", std::filesystem::absolute(together).string()});
  }
  AddTable(table, arguments);
  RunPython("tsallis_report", arguments, table.show);
}

}  // namespace tsallis::lab
