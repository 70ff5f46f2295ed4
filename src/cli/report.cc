// tsallis report: pages from finished results.
#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/terminal.h"
#include "lab/base/errors.h"
#include "lab/base/files.h"
#include "lab/report/render.h"

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
    app.add_option("DIR", folders_,
                   "Folders that hold a results.json or a study.json; their pages are overwritten")
        ->required();
    app.add_flag("--json", json_, "Print the results as one JSON document (an array for several)");
    app.add_flag("--quiet", quiet_, "Print the table only, not where the page is");
  }

  int Run(const Invocation&) override {
    for (const std::filesystem::path& folder : Folders()) {
      if (!std::filesystem::is_regular_file(DocumentIn(folder))) {
        throw lab::UsageError("no results.json in \"" + folder.string() +
                              "\" (tsallis reproduce writes one into its --out folder), and no "
                              "study.json (tsallis study)");
      }
    }
    std::string documents;
    for (const std::filesystem::path& folder : Folders()) {
      lab::RenderReports({folder},
                         {.show = !json_, .color = UseColor(stdout), .width = Width(stdout)});
      if (json_) documents += (documents.empty() ? "" : ",\n") + Document(folder);
      if (!quiet_) {
        fmt::print(json_ ? stderr : stdout, "Page: {}\n", (folder / "report.html").string());
      }
    }
    if (json_ && folders_.size() > 1) documents = "[\n" + documents + "\n]";
    if (json_) fmt::print("{}\n", documents);
    return 0;
  }

 private:
  // The file of the folder's results: study.json of a study without training, else results.json.
  static std::filesystem::path DocumentIn(const std::filesystem::path& folder) {
    const std::filesystem::path study = folder / "study.json";
    return std::filesystem::is_regular_file(study) ? study : folder / "results.json";
  }

  // The document as it lies there; Python has read it without complaint.
  static std::string Document(const std::filesystem::path& folder) {
    std::string text = lab::ReadFile(DocumentIn(folder)).value();
    while (text.ends_with('\n')) text.pop_back();
    return text;
  }

  std::vector<std::filesystem::path> Folders() const { return {folders_.begin(), folders_.end()}; }

  std::vector<std::string> folders_;
  bool json_ = false;
  bool quiet_ = false;
};

}  // namespace

std::unique_ptr<Command> MakeReport() { return std::make_unique<ReportCommand>(); }

}  // namespace tsallis::cli
