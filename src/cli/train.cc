// tsallis train: one method of a recipe with one seed.
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "cli/trained_model.h"
#include "lab/progress/progress.h"
#include "lab/train/experiment.h"
#include "lab/train/memory.h"

namespace tsallis::cli {

namespace {

class TrainCommand : public Command {
 public:
  std::string Name() const override { return "train"; }
  std::string Summary() const override { return "Train one method of a recipe"; }
  std::string Example() const override {
    return "  tsallis train copy --method asentmax-nape train.lr=1e-3 --folder runs/copy-1e-3\n"
           "  tsallis eval runs/copy-1e-3 --lengths 64,128,256\n"
           "Other heads (docs/explain/decoder.md lists the keys):\n"
           "  tsallis train copy --method softmax-nape model.attention.pattern.kind=strided "
           "model.attention.pattern.stride=8\n"
           "On a GPU, with a torch that has CUDA:\n"
           "  tsallis train copy train.device=cuda\n"
           "Several processes, each with its share of every batch, or with train.split=sequence of "
           "every sequence (docs/guide/training.md):\n"
           "  torchrun --nproc-per-node 2 -m tsallis train copy";
  }

  bool RunsTogether() const override { return true; }

  void Declare(CLI::App& app) override {
    app.add_option("RECIPE", name_, "A recipe by name (tsallis list), or the path to one")
        ->required();
    app.add_option("SETTING", settings_,
                   "Other values for keys of the recipe: train.lr=1e-4 model.layers=3");
    app.add_option("--scale", scale_, "A [scale.<name>] of the recipe: steps and settings")
        ->capture_default_str();
    app.add_option("--method", method_, "A method of the recipe; default: its first");
    app.add_option("--seed", seed_, "Seed")->capture_default_str();
    app.add_option("--folder", folder_,
                   "Folder of the run; default: runs/<study>/<scale>/<method>/seed-<n>");
    app.add_option(
        "--from", from_,
        "Begin with the weights of this run (its folder, or a file of weights); default: "
        "as the recipe's train.start says, in runs/, else drawn from the seed");
    app.add_option("--threads", threads_,
                   "Threads of a process; default: OMP_NUM_THREADS, or one per core. The result "
                   "is the same")
        ->check(IntegerFrom(1, 4096));
    app.add_flag("--resume", resume_, "Go on with the run that is in the folder");
    app.add_flag(
        "--tensorboard", tensorboard_,
        "Write TensorBoard's event files into the folder as well: tensorboard --logdir runs");
    app.add_flag("--json", json_, "Print what was trained as one JSON document");
    app.add_flag("--quiet", progress_.quiet, "Show no progress");
  }

  int Run(const Invocation& invocation) override {
    const lab::Recipe found = lab::FindRecipe(name_);
    if (method_.empty()) method_ = found.methods.front().name;
    const lab::Recipe all = lab::AtScale(found, scale_, settings_, method_);
    lab::TrainingJob job;
    job.method = &all.Method(method_);
    const lab::Recipe recipe = all.TrainedBy(*job.method);
    job.recipe = &recipe;
    job.seed = seed_;
    job.steps = recipe.Steps(*job.method, scale_);
    job.folder = folder_;
    job.tensorboard = tensorboard_;
    if (folder_.empty()) {
      job.folder = std::filesystem::path("runs") / recipe.name / scale_ / job.method->name /
                   fmt::format("seed-{}", seed_);
    }
    job.start = from_.empty() ? lab::StartOf(recipe.train, "runs", job.method->name, seed_) : from_;
    if (!from_.empty() && !recipe.Kind().TakesWeights()) {
      throw lab::UsageError("--from: expected a recipe of sequences, got \"" + recipe.name + "\"");
    }
    if (job.method->weights_of) {
      throw lab::UsageError(
          fmt::format("method \"{}\" trains nothing: its weights are those of \"{}\"",
                      job.method->name, *job.method->weights_of));
    }
    if (threads_) at::set_num_threads(*threads_);
    job.processes = lab::Processes::Connect(invocation.launch, *invocation.stop);
    lab::CheckMemory(job);
    job.processes.Together([&] {
      if (job.processes.First()) CheckFolder(job.folder);
      Train(job, *invocation.stop);
      if (job.processes.First()) PrintResult(job);
    });
    return 0;
  }

 private:
  void CheckFolder(const std::filesystem::path& folder) const {
    const bool there = std::filesystem::exists(folder / "config.json");
    if (resume_ && !there && !progress_.quiet) {
      fmt::print(stderr, "{}: nothing to go on with; starting anew\n", folder.string());
    }
    if (resume_ || !there) return;
    throw lab::UsageError(folder.string() +
                          " already holds a run: add --resume to go on with it, or choose another "
                          "--folder");
  }

  void Train(const lab::TrainingJob& job, const std::atomic<bool>& stop) {
    progress_.quiet = progress_.quiet || !job.processes.First();
    progress_.terminal = IsTerminal(stderr);
    progress_.color = UseColor(stderr);
    lab::JobStatus status;
    status.name = job.Name();
    status.steps = job.steps;
    lab::Progress progress({status}, progress_);
    const auto report = [&](const lab::JobStatus& now) {
      lab::JobStatus named = now;
      named.name = status.name;
      if (named.step == named.steps) named.state = lab::JobStatus::State::kDone;
      progress.Update(0, named);
    };
    std::optional<lab::FolderLock> lock;
    if (job.processes.First()) lock.emplace(job.folder);
    const std::unique_ptr<lab::Experiment> experiment = lab::MakeExperiment(job);
    if (!progress_.quiet) PrintNote(experiment->Note());
    lab::Train(*experiment, job, report, stop);
  }

  // Tokens a second of a process on language, over all sessions of the run; 0 for other tasks.
  static double TokensPerSecond(const lab::TrainingJob& job) {
    const lab::TaskConfig& task = job.recipe->task;
    const double seconds = lab::RunFolder(job.folder).Seconds();
    if (task.generator->GetScoring() != lab::Scoring::kLoss || !(seconds > 0.0)) return 0.0;
    const double length = 0.5 * static_cast<double>(task.train_length_min + task.train_length_max);
    const double tokens = static_cast<double>(job.steps * job.recipe->train.batch) * length;
    return tokens / seconds / static_cast<double>(job.processes.Size());
  }

  void PrintResult(const lab::TrainingJob& job) const {
    const lab::RunFolder folder(job.folder);
    const bool best = std::filesystem::exists(folder.BestPath());
    const std::filesystem::path path = best ? folder.BestPath() : folder.FinalPath();
    const auto metadata = lab::ReadTensors(path).metadata;
    const lab::Metric metric = job.recipe->task.generator->GetMetric();
    const double rate = TokensPerSecond(job);
    if (const auto damaged = job.folder / "metrics.damaged"; std::filesystem::exists(damaged)) {
      fmt::print(stderr, "{}: holds damaged lines that stood in metrics.jsonl\n", damaged.string());
    }
    if (json_) {
      nlohmann::ordered_json document = {{"folder", job.folder.string()},
                                         {"weights", path.string()},
                                         {"method", job.method->name},
                                         {"seed", job.seed},
                                         {"step", std::stoll(metadata.at("step"))}};
      if (rate > 0.0) document["tokens_per_second_and_process"] = rate;
      if (best) {
        document["validation_length"] = std::stoll(metadata.at("length"));
        document["validation_" + metric.name] = std::stod(metadata.at(metric.name));
      }
      PrintJson(document);
      return;
    }
    fmt::print("Weights of step {}: {}\n", metadata.at("step"), path.string());
    if (rate > 0.0) {
      fmt::print("{:.0f} tokens a second in each of {} process{}\n", rate, job.processes.Size(),
                 job.processes.Size() == 1 ? "" : "es");
    }
    if (best) {
      fmt::print("The best on validation samples of length {}: {} {}\n", metadata.at("length"),
                 metadata.at(metric.name), metric.unit);
    }
  }

  std::string name_, scale_ = "quick", method_;
  std::vector<std::string> settings_;
  std::uint64_t seed_ = 1;
  std::filesystem::path folder_, from_;
  std::optional<int> threads_;
  bool resume_ = false;
  bool tensorboard_ = false;
  bool json_ = false;
  lab::ProgressOptions progress_;
};

}  // namespace

std::unique_ptr<Command> MakeTrain() { return std::make_unique<TrainCommand>(); }

}  // namespace tsallis::cli
