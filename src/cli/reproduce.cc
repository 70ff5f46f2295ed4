// tsallis reproduce: runs recipes and reports ours beside the papers' figures.
#include "lab/studies/reproduce.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "cli/commands.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "lab/base/files.h"
#include "lab/base/python.h"
#include "lab/report/render.h"

namespace tsallis::cli {

namespace {

class ReproduceCommand : public Command {
 public:
  std::string Name() const override { return "reproduce"; }
  std::string Summary() const override {
    return "Run recipes and report their figures beside the papers'";
  }
  std::string Example() const override {
    return "  tsallis reproduce max-retrieval\n"
           "  tsallis reproduce max-retrieval --scale paper --seeds 3 --resume\n"
           "  tsallis reproduce max-retrieval --methods softmax,asentmax-3 --json > results.json";
  }

  void Declare(CLI::App& app) override {
    app.add_option("NAME", names_, "Recipes by name (tsallis list), or paths to recipe files")
        ->required();
    app.add_option("--scale", options_.scale, "How much to run: a [scale.<name>] of the recipe")
        ->capture_default_str();
    app.add_option("--seeds", options_.seeds, "Seeds for each method; default: as the scale says")
        ->check(IntegerFrom(1, lab::kMostSeeds));
    app.add_option("--seed", options_.first_seed, "First seed; the others follow it")
        ->capture_default_str();
    AddList(app, "--methods", options_.methods,
            "Methods, separated by commas; default: as the scale says");
    app.add_option("--runs", options_.runs, "Folder of runs: checkpoints and metrics")
        ->capture_default_str();
    app.add_option("--out", out_,
                   "Folder of the report; default: <runs>/<study>/<scale>/report. With several "
                   "recipes: its parent, one folder a study");
    app.add_option("--workers", options_.workers,
                   "Jobs at a time, one core each; default: one per core. When fewer jobs than "
                   "that are left, they share the cores")
        ->check(IntegerFrom(1, 4096));
    app.add_option("--device", device_,
                   "Where models of sequences train and are evaluated: cpu, cuda or cuda:N; "
                   "default: as train.device says");
    app.add_option("--job-shard", shard_,
                   "I/N: run every N-th job only, from the I-th on, so that N machines that share "
                   "the folder of runs divide the study. The one that ends last reports");
    AddList(app, "--maps", options_.map_lengths,
            "Sequences: lengths whose attention is drawn, separated by commas; default: the "
            "shortest, and the longest of up to 4096 tokens");
    app.add_flag("--resume", options_.resume,
                 "Go on with what an earlier run of the same command left");
    app.add_flag("--finished", options_.finished_only,
                 "Run nothing: report on the jobs that are finished so far")
        ->excludes("--resume")
        ->excludes("--job-shard")
        ->excludes("--maps");
    app.add_flag("--json", json_, "Print the results as one JSON document");
    app.add_flag("--quiet", options_.progress.quiet, "Show no progress");
  }

  int Run(const Invocation& invocation) override {
    ReadShard();
    const std::vector<lab::Recipe> recipes = ReadRecipes();
    if (!out_.empty()) CheckWritable("--out", out_);
    options_.command = invocation.line;
    options_.progress.terminal = IsTerminal(stderr);
    options_.progress.color = UseColor(stderr);
    for (const lab::Recipe& recipe : recipes) UnpackRuns(options_.runs / recipe.name);
    std::vector<lab::Reproduction> studies;
    for (const lab::Recipe& recipe : recipes) studies.emplace_back(recipe, options_);
    nlohmann::ordered_json documents = nlohmann::ordered_json::array();
    bool failed = false;
    for (lab::Reproduction& study : studies) {
      const lab::Recipe& recipe = study.GetRecipe();
      if (!options_.progress.quiet) {
        fmt::print(stderr, "{}, scale {}\n", recipe.title, options_.scale);
      }
      const lab::Reproduced done = study.Run(*invocation.stop);
      for (const std::string& failure : done.failures) {
        fmt::print(stderr, "tsallis: failed: {}\n", failure);
        failed = true;
      }
      if (done.unfinished > 0 && options_.shard.count > 1) {
        if (!options_.progress.quiet) {
          fmt::print(stderr,
                     "{}: {} runs of other shards are not finished; the last shard reports\n",
                     recipe.title, done.unfinished);
        }
        continue;
      }
      const std::filesystem::path dir = ReportFolder(recipe);
      lab::ReportRuns(done.study, dir,
                      {.show = !json_, .color = UseColor(stdout), .width = Width(stdout)});
      if (json_) documents.push_back(lab::ReadJson(dir / "results.json"));
      fmt::print(json_ ? stderr : stdout, "Page: {}\n", (dir / "report.html").string());
      std::fflush(stdout);
    }
    // One recipe, one object; several, an array: either way one document.
    if (json_) PrintJson(documents.size() == 1 ? documents[0] : documents);
    return failed ? 1 : 0;
  }

 private:
  // Finished runs that lie in archives (results/runs) are laid out beside them, so that none of
  // them is trained again.
  static void UnpackRuns(const std::filesystem::path& study) {
    std::error_code absent;
    for (const auto& entry : std::filesystem::directory_iterator(study, absent)) {
      if (!entry.path().filename().string().ends_with(".tar.xz")) continue;
      lab::RunPython("tsallis_report.runs", {"unpack", study.string()}, false);
      return;
    }
  }

  // At the scale that is asked for. UsageError for a recipe that is named twice.
  std::vector<lab::Recipe> ReadRecipes() const {
    std::vector<lab::Recipe> recipes;
    for (const std::string& name : names_) {
      lab::Recipe recipe = lab::FindRecipe(name);
      const auto same = [&](const lab::Recipe& other) { return other.name == recipe.name; };
      if (std::any_of(recipes.begin(), recipes.end(), same)) {
        throw lab::UsageError("NAME: expected each study once, got " + recipe.name + " twice");
      }
      recipes.push_back(std::move(recipe));
    }
    std::vector<std::string> settings;
    if (!device_.empty()) settings.push_back("train.device=" + device_);
    for (lab::Recipe& recipe : recipes) {
      recipe = lab::AtScale(recipe, options_.scale, settings);
      for (const std::string& method : options_.methods) recipe.Method(method);
    }
    return recipes;
  }

  void ReadShard() {
    if (shard_.empty()) return;
    const std::size_t slash = shard_.find('/');
    const auto number = [](const std::string& text) {
      const bool digits = !text.empty() && text.size() < 7 &&
                          std::all_of(text.begin(), text.end(),
                                      [](unsigned char c) { return std::isdigit(c) != 0; });
      return digits ? std::stoll(text) : 0;
    };
    const std::int64_t one = number(shard_.substr(0, slash));
    const std::int64_t of = slash == std::string::npos ? 0 : number(shard_.substr(slash + 1));
    if (one < 1 || one > of) {
      throw lab::UsageError("--job-shard: expected I/N with 1 <= I <= N, as 2/4, got " + shard_);
    }
    options_.shard = {one - 1, of};
  }

  std::filesystem::path ReportFolder(const lab::Recipe& recipe) const {
    if (out_.empty()) return options_.runs / recipe.name / options_.scale / "report";
    return names_.size() == 1 ? out_ : out_ / recipe.name;
  }

  std::vector<std::string> names_;
  lab::ReproduceOptions options_;
  std::filesystem::path out_;
  std::string shard_, device_;
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Command> MakeReproduce() { return std::make_unique<ReproduceCommand>(); }

}  // namespace tsallis::cli
