// tsallis study: what the papers show without a queue of trainings, as data, figures and a page.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "lab/report/analysis_io.h"
#include "lab/report/render.h"
#include "lab/studies/analyses/catalogue.h"

namespace tsallis::cli {

namespace {

class StudyCommand : public Command {
 public:
  std::string Name() const override { return "study"; }
  std::string Summary() const override {
    return "Draw what the papers show without training: seconds to minutes each";
  }
  std::string Example() const override {
    std::string text =
        "  tsallis study                      lists them\n"
        "  tsallis study entmax-temperature\n"
        "  tsallis study all                  one page with every figure\n\n"
        "Studies:\n";
    for (const lab::CatalogueEntry& entry : lab::AnalysisEntries()) {
      text += fmt::format("  {:<22}{}\n", entry.name, entry.description);
    }
    text.pop_back();
    return text;
  }

  void Declare(CLI::App& app) override {
    app.add_option("NAME", names_, "Studies by name, or all; none: lists them");
    app.add_option("--scale", scale_, "quick: smaller sizes, for a first look")
        ->check(OneOf({"quick", "full"}))
        ->capture_default_str();
    app.add_option("--seed", options_.context.seed, "Seed of what is drawn")->capture_default_str();
    app.add_option("--checkpoint", options_.context.checkpoint,
                   "Studies of a trained model of max retrieval: the folder of its run, or a file "
                   "of weights in one; default: they train one");
    app.add_option("--decoder", options_.context.decoder,
                   "Studies of a trained sequence model: the folder of its run, or a file of "
                   "weights in one; default: models/asentmax-nape");
    app.add_option("--out", out_,
                   "Folder of the page; default: runs/studies/<name>. With several studies: its "
                   "parent, which gets the page of all of them");
    app.add_option("--threads", options_.context.kernels.threads,
                   "Threads; default: one per core. The result is the same")
        ->check(IntegerFrom(1, 4096));
    app.add_flag("--resume", options_.resume,
                 "Leave out studies that this commit has finished with the same options");
    app.add_flag("--json", json_, "Print the results as one JSON document");
    app.add_flag("--quiet", options_.progress.quiet, "Show no progress");
  }

  int Run(const Invocation& invocation) override {
    if (names_.empty()) return List();
    const std::vector<const lab::Analysis*> analyses = Selected();
    CheckModel("--checkpoint", &lab::AnalysisContext::checkpoint, analyses);
    CheckModel("--decoder", &lab::AnalysisContext::decoder, analyses);
    if (!out_.empty()) CheckWritable("--out", out_);
    const bool several = analyses.size() > 1;
    const std::filesystem::path root =
        out_.empty() || several ? (out_.empty() ? "runs/studies" : out_) : std::filesystem::path();
    std::vector<std::filesystem::path> folders;
    for (const lab::Analysis* analysis : analyses) {
      folders.push_back(root.empty() ? out_ : root / analysis->name);
    }
    options_.context.quick = scale_ == "quick";
    options_.command = invocation.line;
    options_.progress.terminal = IsTerminal(stderr);
    options_.progress.color = UseColor(stderr);
    lab::RunAnalyses(analyses, folders, (root.empty() ? out_ : root) / "models", options_,
                     *invocation.stop);
    lab::RenderReports(folders, {.show = !json_, .color = UseColor(stdout), .width = Width(stdout)},
                       several ? root : "");
    if (json_) PrintFolders(folders);
    fmt::print(json_ ? stderr : stdout, "Page: {}\n",
               ((several ? root : folders.front()) / "report.html").string());
    return 0;
  }

 private:
  // A model that is given is there, and one of the studies reads it.
  void CheckModel(const char* option, std::filesystem::path lab::AnalysisContext::*which,
                  const std::vector<const lab::Analysis*>& analyses) const {
    const std::filesystem::path& model = options_.context.*which;
    if (model.empty()) return;
    if (!std::filesystem::exists(model)) {
      throw lab::UsageError(model.string() + ": no such file or folder");
    }
    std::vector<std::string> readers;
    for (const lab::Analysis& analysis : lab::Analyses()) {
      if (analysis.reads == which) readers.push_back(analysis.name);
    }
    for (const lab::Analysis* analysis : analyses) {
      if (analysis->reads == which) return;
    }
    throw lab::UsageError(fmt::format("{}: only has an effect on {}, got {}", option,
                                      fmt::join(readers, ", "), analyses.front()->name));
  }

  int List() const {
    if (json_) {
      nlohmann::ordered_json list = nlohmann::ordered_json::array();
      for (const lab::Analysis& analysis : lab::Analyses()) {
        list.push_back(
            {{"name", analysis.name}, {"title", analysis.title}, {"source", analysis.source}});
      }
      PrintJson(list);
      return 0;
    }
    for (const lab::CatalogueEntry& entry : lab::AnalysisEntries()) {
      fmt::print("{:<22}{}\n", entry.name, entry.description);
    }
    return 0;
  }

  // In the order of the list; each once.
  std::vector<const lab::Analysis*> Selected() const {
    std::set<std::string> wanted;
    for (const std::string& name : names_) {
      if (name == "all") {
        for (const lab::Analysis& analysis : lab::Analyses()) wanted.insert(analysis.name);
      } else {
        wanted.insert(lab::FindAnalysis(name).name);
      }
    }
    std::vector<const lab::Analysis*> selected;
    for (const lab::Analysis& analysis : lab::Analyses()) {
      if (wanted.contains(analysis.name)) selected.push_back(&analysis);
    }
    return selected;
  }

  static void PrintFolders(const std::vector<std::filesystem::path>& folders) {
    nlohmann::ordered_json documents = nlohmann::ordered_json::array();
    for (const std::filesystem::path& folder : folders) {
      documents.push_back(lab::ReadAnalysis(folder));
    }
    PrintJson(documents.size() == 1 ? documents[0] : documents);
  }

  std::vector<std::string> names_;
  lab::AnalysisOptions options_;
  std::filesystem::path out_;
  std::string scale_ = "full";
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Command> MakeStudy() { return std::make_unique<StudyCommand>(); }

}  // namespace tsallis::cli
