// tsallis report: pages from finished results.
#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/terminal.h"
#include "lab/base/paths.h"
#include "lab/config/recipe.h"
#include "lab/report/render.h"
#include "lab/report/results_io.h"
#include "lab/report/table.h"

namespace tsallis::cli {

namespace {

class ReportCommand : public Command {
 public:
  std::string Name() const override { return "report"; }
  std::string Summary() const override {
    return "Show finished results again and write their pages anew";
  }
  std::string Example() const override {
    return "  tsallis report results/max-retrieval\n"
           "  tsallis report runs/max-retrieval/quick/report --json";
  }

  void Declare(CLI::App& app) override {
    app.add_option("DIR", folders_, "Folders that hold a results.json; their pages are overwritten")
        ->required();
    app.add_flag("--json", json_, "Print the results as one JSON document (an array for several)");
    app.add_flag("--quiet", quiet_, "Print the table only, not where the page is");
  }

  int Run(const Invocation&) override {
    for (const std::filesystem::path& folder : Folders()) {
      if (!std::filesystem::is_regular_file(folder / "results.json")) {
        throw lab::UsageError("no results.json in \"" + folder.string() +
                              "\" (tsallis reproduce writes one into its --out folder)");
      }
    }
    nlohmann::ordered_json documents = nlohmann::ordered_json::array();
    for (const std::filesystem::path& folder : Folders()) {
      const lab::StudyResults results = lab::ReadResults(folder);
      lab::WriteResults(results, folder);
      lab::RenderFigures(folder, lab::PythonExecutable(), lab::SourceDir());
      if (json_) {
        documents.push_back(lab::ToJson(results));
      } else {
        const lab::TableOptions table{.color = UseColor(stdout), .width = Width(stdout)};
        fmt::print("{}", lab::TerminalTable(results, table));
      }
      if (!quiet_) {
        fmt::print(json_ ? stderr : stdout, "Page: {}\n", (folder / "report.html").string());
      }
    }
    if (json_) fmt::print("{}\n", (documents.size() == 1 ? documents[0] : documents).dump(2));
    return 0;
  }

 private:
  std::vector<std::filesystem::path> Folders() const { return {folders_.begin(), folders_.end()}; }

  std::vector<std::string> folders_;
  bool json_ = false;
  bool quiet_ = false;
};

}  // namespace

std::unique_ptr<Command> MakeReport() { return std::make_unique<ReportCommand>(); }

}  // namespace tsallis::cli
