#include "lab/studies/reproduce.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "core/version.h"
#include "lab/eval/evaluate_sets.h"
#include "lab/eval/evaluate_translation.h"
#include "lab/eval/observe_heads.h"
#include "lab/report/finding.h"
#include "lab/report/results.h"
#include "lab/studies/jobs.h"
#include "lab/studies/summarise.h"
#include "lab/train/sequence_training.h"
#include "lab/train/trainer.h"
#include "tsallis/cpu.h"

namespace tsallis::lab {
namespace {

namespace fs = std::filesystem;

// The methods of that name, or all.
std::vector<const MethodConfig*> SelectMethods(const Recipe& recipe,
                                               const std::vector<std::string>& names) {
  std::vector<const MethodConfig*> methods;
  for (const std::string& name : names)
    recipe.Method(name);  // an unknown one is reported before anything runs
  for (const MethodConfig& method : recipe.methods) {
    if (names.empty() || std::find(names.begin(), names.end(), method.name) != names.end()) {
      methods.push_back(&method);
      const MethodConfig& trained = method.weights_of ? recipe.Method(*method.weights_of) : method;
      if (trained.train && !recipe.train.lr_grid.empty()) {
        throw UsageError(fmt::format(
            "method \"{}\" is trained in its own way, and this scale chooses learning rates for "
            "every method (train.lr_grid): leave {} out, or remove train.lr_grid",
            trained.name,
            method.weights_of ? fmt::format("\"{}\", which has its weights,", method.name)
                              : std::string("the method")));
      }
    }
  }
  return methods;
}

// The recipes of a study, each as its jobs are trained.
struct Trainings {
  std::vector<Recipe> rates;          // one for each learning rate that is tried
  std::map<std::string, Recipe> own;  // of methods that are trained in their own way

  explicit Trainings(const Recipe& recipe) {
    for (const double rate : recipe.train.lr_grid) {
      rates.push_back(recipe);
      rates.back().train.lr = rate;
    }
    if (rates.empty()) rates.push_back(recipe);
    for (const MethodConfig& method : recipe.methods) {
      if (method.train) own.emplace(method.name, recipe.TrainedBy(method));
    }
  }
};

// Which runs: those of the study, or shorter ones that learning rates are chosen by.
struct Runs {
  std::int64_t steps = 0;
  std::uint64_t first_seed = 1;
  int seeds = 1;
  std::string folder;  // between the learning rate's folder and the seed's; empty: none
};

// `trainings` are kept by reference. `runs_root`: of all studies; `root`: of this one at its scale.
std::vector<Job> MakeJobs(const Trainings& trainings,
                          const std::vector<const MethodConfig*>& methods, const Runs& runs,
                          const fs::path& runs_root, const fs::path& root) {
  std::vector<Job> jobs;
  for (int s = 0; s < runs.seeds; ++s) {
    // Seed by seed, so that an unfinished study already compares every method.
    const std::uint64_t seed = runs.first_seed + static_cast<std::uint64_t>(s);
    for (const Recipe& recipe : trainings.rates) {
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
          const auto own = trainings.own.find(trains->name);
          made.recipe = own == trainings.own.end() ? &recipe : &own->second;
          made.trains = trains;
          made.seed = seed;
          made.draws = s == 0;
          made.steps = trains->steps.value_or(runs.steps);
          made.folder = folder / runs.folder / fmt::format("seed-{}", seed);
          made.start = StartOf(made.recipe->train, runs_root, trains->name, seed);
          jobs.push_back(std::move(made));
          job = jobs.end() - 1;
        }
        job->evaluates.push_back(method);
      }
    }
  }
  return jobs;
}

// Takes the jobs that are another shard's out of `jobs` and returns them.
std::vector<Job> OfOtherShards(std::vector<Job>& jobs, const ReproduceOptions::Shard& shard,
                               bool whole_methods) {
  std::map<std::string, std::int64_t> numbers;  // of what is not divided, in the order of the jobs
  std::vector<Job> own;
  std::vector<Job> others;
  for (Job& job : jobs) {
    const std::string unit = job.trains->name + (whole_methods ? "" : fmt::format(" {}", job.seed));
    const auto number = numbers.emplace(unit, static_cast<std::int64_t>(numbers.size()));
    (number.first->second % shard.count == shard.index ? own : others).push_back(std::move(job));
  }
  jobs = std::move(own);
  return others;
}

void RefuseExisting(const std::vector<Job>& jobs) {
  for (const Job& job : jobs) {
    if (!fs::exists(job.folder / "config.json")) continue;
    throw UsageError(fmt::format(
        "{} already holds a run: add --resume to go on with it, or choose another --runs folder",
        job.folder.string()));
  }
}

// The runs that learning rates are chosen by.
Runs GridRuns(const ScaleConfig& scale, const Runs& study) {
  Runs grid = study;
  grid.seeds = std::min(scale.grid_seeds.value_or(study.seeds), study.seeds);
  grid.steps = scale.grid_steps.value_or(study.steps);
  if (grid.steps != study.steps) grid.folder = fmt::format("steps-{}", grid.steps);
  return grid;
}

// For every method that trains, the recipe with the learning rate at which `grid`, trained, is the
// most accurate on validation data, averaged over the seeds; of equals the first of the grid. Jobs
// that failed count as nothing right, or as a loss of 1000. Says in `choices` what it chose where
// there was a choice.
std::map<std::string, const Recipe*> ChooseRates(const std::vector<Job>& grid,
                                                 std::string& choices) {
  std::map<std::string, std::map<const Recipe*, double>> sums;
  std::set<std::string> trained;
  for (const Job& job : grid) {
    const std::optional<double> rank = ValidationRank(job);
    if (rank) trained.insert(job.trains->name);
    sums[job.trains->name][job.recipe] += rank.value_or(
        job.recipe->task.GetMetric().higher_is_better
            ? CheckpointRank(job.recipe->train, job.recipe->task.GetMetric(), 0.0, 0.0)
            : -1000.0);
  }
  std::map<std::string, const Recipe*> chosen;
  for (const auto& [method, rates] : sums) {
    // The recipes stand in one vector: their addresses are in the order of the grid.
    const auto best =
        std::max_element(rates.begin(), rates.end(),
                         [](const auto& a, const auto& b) { return a.second < b.second; });
    chosen[method] = best->first;
    if (!trained.contains(method)) continue;
    choices += fmt::format("{}{} {:g}", choices.empty() ? "" : ", ", method, best->first->train.lr);
  }
  return chosen;
}

std::string Seeds(int seeds) { return fmt::format("{} seed{}", seeds, seeds == 1 ? "" : "s"); }

// The precisions of the runs: "bfloat16", or "bfloat16 and float32" where machines differed.
std::string Precisions(const std::vector<Job>& jobs) {
  std::set<std::string> found;
  for (const Job& job : jobs) found.insert(ComputeOf(job.folder));
  return fmt::format("{}", fmt::join(found, " and "));
}

// How the weights change: "adamw, learning rate 0.001, down to 0 along a cosine, weight decay 0.1".
std::string Updates(const TrainConfig& train, std::string rate) {
  if (train.schedule == "cosine") rate += ", down to 0 along a cosine";
  if (train.schedule == "linear") {
    rate += fmt::format(", down to 0 along a line in the last {:g} % of the steps",
                        100.0 * train.cooldown);
  }
  const std::string decay = train.optimizer == "adam" ? fmt::format("L2 {:g}", train.l2)
                            : train.weight_decay > 0.0
                                ? fmt::format("weight decay {:g}", train.weight_decay)
                                : "no weight decay";
  return fmt::format("{}, {}, {}", train.optimizer, rate, decay);
}

// Names the weights of a run that are evaluated: "the last weights".
std::string Weights(const TrainConfig& train, std::int64_t steps, std::int64_t train_length) {
  if (train.validate_every == 0 || train.validate_every >= steps) return "the last weights";
  const std::string floor = train.best_floor > 0.0 ? fmt::format(" with {:g} % or more at {}",
                                                                 train.best_floor, train_length)
                                                   : "";
  return fmt::format(
      "of weights read every {} steps{} the best at length {}, on {} validation samples,",
      train.validate_every, floor, train.best_length, train.validate_samples);
}

// Lists the jobs' methods that are trained in their own way: "; Softmax, weight decay: adamw, ...".
std::string OwnUpdates(const std::vector<Job>& jobs, const Recipe& recipe, const Runs& study) {
  const std::int64_t length = recipe.task.train_length_max;
  const std::string usual = Weights(recipe.train, study.steps, length);
  std::string text;
  std::set<std::string> seen;
  for (const Job& job : jobs) {
    const std::optional<TrainConfig>& own = job.trains->train;
    if (!own || !seen.insert(job.trains->name).second) continue;
    text += fmt::format("; {}: ", job.trains->label);
    if (job.steps != study.steps) text += fmt::format("{} steps, ", job.steps);
    text += Updates(*own, fmt::format("learning rate {:g}", own->lr));
    if (own->warmup != recipe.train.warmup) {
      text += fmt::format(", {} steps of warm-up", own->warmup);
    }
    const std::string weights = Weights(*own, job.steps, length);
    if (weights != usual) text += fmt::format(", {} are evaluated", weights);
  }
  return text;
}

// Says where they are asked less.
std::string Fewer(const TaskConfig& task) {
  std::string text;
  if (task.eval_tokens) text += fmt::format(", at most {} tokens", *task.eval_tokens);
  if (task.eval_samples_lost) {
    text += fmt::format(", at most {} samples behind two lengths with nothing right",
                        *task.eval_samples_lost);
  }
  return text;
}

// Says how sequence models are tested.
std::string Asked(const TaskConfig& task) {
  switch (task.GetScoring()) {
    case Scoring::kExact:
      return fmt::format("{} test samples a length (right if every token is){}", task.eval_samples,
                         Fewer(task));
    case Scoring::kTokens:
      return fmt::format("{} test samples a length (token by token){}", task.eval_samples,
                         Fewer(task));
    case Scoring::kLoss:
      return fmt::format("some {} test tokens at every length, the same where lengths divide",
                         task.eval_samples * task.train_length_max);
    case Scoring::kBleu:
      return fmt::format(
          "the first {} test pairs of up to n source tokens, written by {} beams, scored by "
          "sacrebleu",
          task.eval_samples, kTestBeams);
  }
  return "";
}

std::string Protocol(const Recipe& recipe, const TaskConfig& task, const Runs& study,
                     const Runs& grid, const std::string& choices, const std::vector<Job>& jobs,
                     const std::string& seeds) {
  const TrainConfig& train = recipe.train;
  const std::int64_t steps = study.steps;
  std::string rate =
      fmt::format("learning rate {:g}", train.lr_grid.size() == 1 ? train.lr_grid[0] : train.lr);
  if (train.lr_grid.size() > 1) {
    std::string by;
    if (grid.steps != study.steps || grid.seeds != study.seeds) {
      by = fmt::format(" by runs of {} steps, {}", grid.steps, Seeds(grid.seeds));
    }
    rate = fmt::format(
        "learning rate of {{{:g}}} chosen on {} validation samples of length {} for each method{} "
        "({})",
        fmt::join(train.lr_grid, ", "), train.validate_samples, train.best_length, by, choices);
  }
  const std::string weights = Weights(train, steps, task.train_length_max);
  if (!task.sequence) {
    return fmt::format(
        "{} training steps of {} sets, {}, {}{}; {} are evaluated, on {} to {} sets a length",
        steps, train.batch, Updates(train, rate), seeds, OwnUpdates(jobs, recipe, study), weights,
        EvalSets(task, *std::max_element(task.eval_lengths.begin(), task.eval_lengths.end())),
        EvalSets(task, *std::min_element(task.eval_lengths.begin(), task.eval_lengths.end())));
  }
  const DecoderConfig& decoder = recipe.model.decoder;
  return fmt::format(
      "{}{} layers of width {}, {} heads, products in {}; {} training steps of {} samples of "
      "length "
      "{} to {}, {}, {} steps of warm-up, {}{}; {} are evaluated, on {}",
      recipe.model.name == "encoder-decoder" ? fmt::format("{} + ", decoder.layers) : "",
      decoder.layers, decoder.width, decoder.heads, Precisions(jobs), steps, train.batch,
      task.train_length_min, task.train_length_max, Updates(train, rate), train.warmup, seeds,
      OwnUpdates(jobs, recipe, study), weights, Asked(task));
}

}  // namespace

// Jobs point into the recipe and its trainings: a plan stays where it was made.
struct Reproduction::Plan {
  Plan(const Recipe& recipe, const ReproduceOptions& options);
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  const Recipe recipe;
  const ReproduceOptions options;
  const ScaleConfig& scale;
  const Runs study, grid;
  TaskConfig task;
  const std::vector<const MethodConfig*> methods;
  const fs::path root;
  const Trainings trainings;
  std::vector<Job> grid_jobs, jobs, others;  // `others`: of other shards
  std::size_t expected = 0;                  // jobs that are evaluated, of all shards

 private:
  void DrawMaps();
};

Reproduction::Plan::Plan(const Recipe& the_recipe, const ReproduceOptions& the_options)
    : recipe(the_recipe),
      options(the_options),
      scale(recipe.Scale(options.scale)),
      study{scale.steps, options.first_seed, options.seeds > 0 ? options.seeds : scale.seeds, ""},
      grid(GridRuns(scale, study)),
      task(recipe.task),
      methods(SelectMethods(recipe, options.methods.empty() ? scale.methods : options.methods)),
      root(options.runs / recipe.name / options.scale),
      trainings(recipe) {
  constexpr std::uint64_t kLast = std::numeric_limits<std::uint64_t>::max() - kMostSeeds;
  if (options.first_seed > kLast) {
    throw UsageError(
        fmt::format("--seed: expected at most {}, so that every seed after it exists, got {}",
                    kLast, options.first_seed));
  }
  if (scale.eval_lengths) task.eval_lengths = *scale.eval_lengths;
  if (scale.eval_items) task.eval_items = *scale.eval_items;
  const bool chooses = trainings.rates.size() > 1;
  if (chooses) grid_jobs = MakeJobs(trainings, methods, grid, options.runs, root);
  jobs = MakeJobs(trainings, methods, study, options.runs, root);
  DrawMaps();
  expected = jobs.size() / trainings.rates.size();  // of several rates of a training one
  OfOtherShards(grid_jobs, options.shard, chooses);
  others = OfOtherShards(jobs, options.shard, chooses);
  if (options.finished_only) return;
  if (jobs.empty()) {
    throw UsageError(
        fmt::format("--job-shard: expected at most as many shards as the study has "
                    "jobs to divide, got {}",
                    options.shard.count));
  }
  if (options.resume) return;
  for (const std::vector<Job>* all : {&grid_jobs, &jobs}) RefuseExisting(*all);
}

// Says which jobs draw attention, and at which lengths.
void Reproduction::Plan::DrawMaps() {
  const std::vector<std::int64_t>& asked = options.map_lengths;
  if (!task.sequence) {
    if (asked.empty()) return;
    throw UsageError("--maps: expected a study of sequences, got \"" + recipe.name + "\"");
  }
  for (const std::int64_t n : asked) task.sequence->CheckLength(n);
  // A map of another model would be one of a target against a source: `tsallis translate --show`.
  if (recipe.model.name != "decoder") {
    if (asked.empty()) return;
    throw UsageError("--maps: expected a study of decoders, got one of an " + recipe.model.name);
  }
  for (Job& job : jobs) {
    if (!job.draws) continue;
    job.map_lengths = asked.empty() ? MapLengths(*task.sequence, task.eval_lengths) : asked;
  }
}

Reproduction::Reproduction(const Recipe& recipe, const ReproduceOptions& options)
    : plan_(std::make_unique<Plan>(recipe, options)) {}
Reproduction::Reproduction(Reproduction&&) noexcept = default;
Reproduction::~Reproduction() = default;

const Recipe& Reproduction::GetRecipe() const { return plan_->recipe; }

StudyResults Reproduction::Run(const std::atomic<bool>& stop) {
  const Recipe& recipe = plan_->recipe;
  const ReproduceOptions& options = plan_->options;
  const TaskConfig& task = plan_->task;
  std::vector<Job>& grid_jobs = plan_->grid_jobs;
  std::vector<Job>& jobs = plan_->jobs;
  const auto machine = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  const int cores = options.workers > 0 ? options.workers : machine;
  const auto run = [&](std::vector<Job>& all, JobGoal goal) {
    return RunQueue(task, all, goal, options.progress, cores, stop);
  };
  std::string choices;
  if (!grid_jobs.empty()) {
    // A job that fails is not chosen; where none is left, the chosen one fails again below.
    if (!options.finished_only) run(grid_jobs, JobGoal::kTrain);
    const auto chosen = ChooseRates(grid_jobs, choices);
    std::erase_if(jobs, [&](const Job& job) { return chosen.at(job.trains->name) != job.recipe; });
  }
  std::vector<std::string> failures;
  std::size_t unfinished = 0;
  if (options.finished_only) {
    std::erase_if(jobs, [&](Job& job) { return !LoadWhatIsFinished(task, job); });
    if (jobs.empty()) {
      throw UsageError(plan_->root.string() +
                       " holds no finished job of these methods and seeds yet");
    }
  } else {
    failures = run(jobs, JobGoal::kEvaluate);
    for (Job& job : plan_->others) {
      if (LoadFinished(task, job)) jobs.push_back(std::move(job));
    }
    std::erase_if(jobs, [](const Job& job) { return job.scores.empty(); });
    unfinished = plan_->expected - jobs.size();
    std::stable_sort(jobs.begin(), jobs.end(),
                     [](const Job& a, const Job& b) { return a.seed < b.seed; });
    if (jobs.empty()) throw std::runtime_error("every job failed: " + failures.front());
  }

  StudyResults results;
  results.failures = std::move(failures);
  results.unfinished = unfinished;
  results.study = recipe.name;
  results.title = recipe.title;
  results.source = recipe.source;
  results.scale = options.scale;
  results.commit = GitCommit();
  results.processor = QueryCpu().processor;
  results.command = options.command;
  results.baseline = recipe.baseline;
  results.metric = recipe.task.GetMetric();
  for (const Job& job : jobs) results.train_seconds += job.seconds;
  Summarise(recipe, task, plan_->scale.compare, plan_->methods, jobs, results);
  results.protocol =
      Protocol(recipe, task, plan_->study, plan_->grid, choices, jobs, SeedText(results));
  results.figure = recipe.figure;
  const Found found = recipe.figure == "flow"
                          ? FlowFinding(results)
                          : Finding(results, task.train_length_max, recipe.finding_length);
  results.finding = found.sentence;
  // The first figure shows the methods that the first sentence names.
  for (MethodInfo& method : results.methods) {
    method.headline = method.headline || std::find(found.methods.begin(), found.methods.end(),
                                                   method.name) != found.methods.end();
  }
  return results;
}

}  // namespace tsallis::lab
