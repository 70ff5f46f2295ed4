#include "lab/studies/reproduce.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <thread>
#include <utility>

#include "core/version.h"
#include "lab/eval/evaluate_sets.h"
#include "lab/eval/observe_heads.h"
#include "lab/studies/jobs.h"
#include "lab/studies/summarise.h"
#include "lab/train/run_folder.h"
#include "tsallis/cpu.h"

namespace tsallis::lab {
namespace {

namespace fs = std::filesystem;

std::vector<const MethodConfig*> SelectMethods(const Recipe& recipe,
                                               const std::vector<std::string>& names) {
  std::vector<const MethodConfig*> methods;
  for (const std::string& name : names)
    recipe.Method(name);  // an unknown one is reported before anything runs
  for (const MethodConfig& method : recipe.methods) {
    if (names.empty() || std::find(names.begin(), names.end(), method.name) != names.end()) {
      methods.push_back(&method);
    }
  }
  return methods;
}

// The recipes of a study: one for each learning rate that is tried.
std::vector<Recipe> AtRates(const Recipe& recipe) {
  std::vector<Recipe> recipes;
  for (const double rate : recipe.train.lr_grid) {
    recipes.push_back(recipe);
    recipes.back().train.lr = rate;
  }
  if (recipes.empty()) recipes.push_back(recipe);
  return recipes;
}

// `recipes` are kept by reference.
std::vector<Job> MakeJobs(const std::vector<Recipe>& recipes,
                          const std::vector<const MethodConfig*>& methods, std::int64_t steps,
                          std::uint64_t first_seed, int seeds, const fs::path& root) {
  std::vector<Job> jobs;
  for (int s = 0; s < seeds; ++s) {
    // Seed by seed, so that an unfinished study already compares every method.
    const std::uint64_t seed = first_seed + static_cast<std::uint64_t>(s);
    for (const Recipe& recipe : recipes) {
      const std::size_t first = jobs.size();
      for (const MethodConfig* method : methods) {
        const MethodConfig* trains =
            method->weights_of ? &recipe.Method(*method->weights_of) : method;
        auto job =
            std::find_if(jobs.begin() + static_cast<std::ptrdiff_t>(first), jobs.end(),
                         [&](const Job& other) { return other.trains->name == trains->name; });
        if (job == jobs.end()) {
          fs::path folder = root / trains->name;
          if (!recipe.train.lr_grid.empty()) folder /= fmt::format("lr-{:g}", recipe.train.lr);
          Job made;
          made.recipe = &recipe;
          made.trains = trains;
          made.seed = seed;
          made.steps = steps;
          made.folder = folder / fmt::format("seed-{}", seed);
          jobs.push_back(std::move(made));
          job = jobs.end() - 1;
        }
        job->evaluates.push_back(method);
      }
    }
  }
  return jobs;
}

// Of every method, the jobs at the learning rate whose best checkpoints are the most accurate on
// validation data, averaged over the seeds; of equals the first of the grid. `jobs` have been
// trained; those that failed count as 0. Says what it chose in `choices`.
std::vector<Job> ChooseRates(std::vector<Job> jobs, std::string& choices) {
  std::map<std::string, std::map<const Recipe*, double>> sums;
  for (const Job& job : jobs) {
    const bool trained = fs::exists(RunFolder(job.folder).FinalPath());
    sums[job.trains->name][job.recipe] += trained ? ValidationAccuracy(job) : 0.0;
  }
  std::map<std::string, const Recipe*> chosen;
  for (const auto& [method, rates] : sums) {
    // The recipes stand in one vector: their addresses are in the order of the grid.
    const auto best =
        std::max_element(rates.begin(), rates.end(),
                         [](const auto& a, const auto& b) { return a.second < b.second; });
    chosen[method] = best->first;
    choices += fmt::format("{}{} {:g}", choices.empty() ? "" : ", ", method, best->first->train.lr);
  }
  std::erase_if(jobs, [&](const Job& job) { return chosen[job.trains->name] != job.recipe; });
  return jobs;
}

std::string Protocol(const Recipe& recipe, const TaskConfig& task, std::int64_t steps, int seeds,
                     const std::string& choices) {
  const TrainConfig& train = recipe.train;
  std::string rate = fmt::format("learning rate {:g}", train.lr);
  if (!train.lr_grid.empty()) {
    rate =
        fmt::format("learning rate of {{{:g}}} chosen on validation samples for each method ({})",
                    fmt::join(train.lr_grid, ", "), choices);
  }
  const std::string runs = fmt::format("{} seed{}", seeds, seeds == 1 ? "" : "s");
  if (!task.sequence) {
    return fmt::format(
        "{} training steps of {} sets, {}, {}, L2 {:g}, {}; the last weights are evaluated, on {} "
        "to {} sets a length",
        steps, train.batch, train.optimizer, rate, train.l2, runs,
        EvalSets(task, *std::max_element(task.eval_lengths.begin(), task.eval_lengths.end())),
        EvalSets(task, *std::min_element(task.eval_lengths.begin(), task.eval_lengths.end())));
  }
  const std::string weights =
      train.validate_every > 0
          ? fmt::format(
                "of weights read every {} steps the best at length {}, on {} validation "
                "samples,",
                train.validate_every, train.best_length, train.validate_samples)
          : "the last weights";
  return fmt::format(
      "{} training steps of {} samples of length {} to {}, {}, {}, {} steps of warm-up, {}; {} are "
      "evaluated, on {} test samples a length ({})",
      steps, train.batch, task.train_length_min, task.train_length_max, train.optimizer, rate,
      train.warmup, runs, weights, task.eval_samples,
      task.sequence->Generates() ? "right if every token is" : "token by token");
}

}  // namespace

StudyResults Reproduce(const Recipe& recipe, const ReproduceOptions& options,
                       const std::atomic<bool>& stop) {
  const ScaleConfig& scale = recipe.Scale(options.scale);
  const int seeds = options.seeds > 0 ? options.seeds : scale.seeds;
  TaskConfig task = recipe.task;
  if (scale.eval_lengths) task.eval_lengths = *scale.eval_lengths;
  if (scale.eval_items) task.eval_items = *scale.eval_items;
  const std::vector<const MethodConfig*> methods =
      SelectMethods(recipe, options.methods.empty() ? scale.methods : options.methods);
  const fs::path root = options.runs / recipe.name / options.scale;
  const std::vector<Recipe> recipes = AtRates(recipe);
  std::vector<Job> jobs = MakeJobs(recipes, methods, scale.steps, options.first_seed, seeds, root);
  if (task.sequence) {
    for (const std::int64_t n : options.map_lengths) task.sequence->CheckLength(n);
    const std::vector<std::int64_t> drawn = options.map_lengths.empty()
                                                ? MapLengths(*task.sequence, task.eval_lengths)
                                                : options.map_lengths;
    for (Job& job : jobs) job.map_lengths = drawn;
  } else if (!options.map_lengths.empty()) {
    throw UsageError("--maps: expected a study of sequences, got \"" + recipe.name + "\"");
  }
  if (!options.resume && !options.finished_only) {
    for (const Job& job : jobs) {
      if (fs::exists(job.folder / "config.json")) {
        throw UsageError(fmt::format(
            "{} already holds a run: add --resume to go on with it, or choose another --runs "
            "folder",
            job.folder.string()));
      }
    }
  }
  std::vector<std::string> failures;
  std::string choices;
  if (options.finished_only) {
    if (recipes.size() > 1) jobs = ChooseRates(std::move(jobs), choices);
    std::erase_if(jobs, [&](Job& job) { return !LoadFinished(task, job); });
    if (jobs.empty())
      throw UsageError(root.string() + " holds no finished job of these methods and seeds yet");
  } else {
    const auto machine = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
    const int cores = options.workers > 0 ? options.workers : machine;
    const auto run = [&](JobGoal goal) {
      for (std::string& failure : RunQueue(task, jobs, goal, options.progress, cores, stop)) {
        failures.push_back(std::move(failure));
      }
    };
    if (recipes.size() > 1) {
      run(JobGoal::kTrain);
      jobs = ChooseRates(std::move(jobs), choices);
      failures.clear();  // of a chosen job it comes again
    }
    run(JobGoal::kEvaluate);
    std::erase_if(jobs, [](const Job& job) { return job.scores.empty(); });
    if (jobs.empty()) throw std::runtime_error("every job failed: " + failures.front());
  }

  StudyResults results;
  results.failures = std::move(failures);
  results.study = recipe.name;
  results.title = recipe.title;
  results.source = recipe.source;
  results.scale = options.scale;
  results.commit = GitCommit();
  results.processor = QueryCpu().processor;
  results.command = options.command;
  results.protocol = Protocol(recipe, task, scale.steps, seeds, choices);
  for (const Job& job : jobs) results.train_seconds += job.seconds;
  Summarise(recipe, task, scale.compare, methods, jobs, results);
  return results;
}

}  // namespace tsallis::lab
