#include "lab/report/render.h"

#include <string>
#include <vector>

#include "lab/base/python.h"

namespace tsallis::lab {

void RenderReport(const std::filesystem::path& dir, const std::filesystem::path& python,
                  const std::filesystem::path& source_dir, const TableOptions& table) {
  RenderReports({dir}, {}, python, source_dir, table);
}

void RenderReports(const std::vector<std::filesystem::path>& dirs,
                   const std::filesystem::path& together, const std::filesystem::path& python,
                   const std::filesystem::path& source_dir, const TableOptions& table) {
  std::vector<std::string> arguments;
  for (const std::filesystem::path& dir : dirs) {
    arguments.push_back(std::filesystem::absolute(dir).string());
  }
  if (!together.empty()) {
    arguments.insert(arguments.end(), {"--together", std::filesystem::absolute(together).string()});
  }
  if (table.show) {
    arguments.insert(arguments.end(), {"--table", "--width", std::to_string(table.width)});
    if (table.color) arguments.emplace_back("--color");
  }
  RunPython("tsallis_report", arguments, table.show, python, source_dir);
}

void RenderScores(const std::filesystem::path& dir, const std::filesystem::path& python,
                  const std::filesystem::path& source_dir) {
  RunPython("tsallis_report.scores", {std::filesystem::absolute(dir).string()}, false, python,
            source_dir);
}

void RenderAlignments(const std::filesystem::path& dir, const std::filesystem::path& python,
                      const std::filesystem::path& source_dir) {
  RunPython("tsallis_report.alignment", {std::filesystem::absolute(dir).string()}, false, python,
            source_dir);
}

}  // namespace tsallis::lab
