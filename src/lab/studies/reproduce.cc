#include "lab/studies/reproduce.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "core/version.h"
#include "lab/config/experiment_kind.h"
#include "lab/eval/evaluate_sequences.h"
#include "lab/eval/evaluate_sets.h"
#include "lab/eval/evaluate_translation.h"
#include "lab/eval/observe_heads.h"
#include "lab/studies/jobs.h"
#include "lab/tasks/sequence_batch.h"
#include "lab/train/trainer.h"
#include "tsallis/cpu.h"

namespace tsallis::lab {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

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

// A rate in the digits that people would give it.
double Shown(double rate) { return std::stod(fmt::format("{:.2g}", rate)); }

// The recipes of a study, each as its jobs are trained.
struct Trainings {
  std::vector<Recipe> rates;          // one for each learning rate that may be tried
  std::size_t widen = 0;              // how many stand before the grid, and behind it
  std::map<std::string, Recipe> own;  // of methods that are trained in their own way

  Trainings(const Recipe& recipe, const ScaleConfig& scale)
      : widen(static_cast<std::size_t>(scale.grid_widen)) {
    std::vector<double> grid = recipe.train.lr_grid;
    const auto beyond = [](double end, double beside) { return Shown(end * end / beside); };
    for (std::size_t i = 0; i < widen; ++i) {
      grid.insert(grid.begin(), beyond(grid[0], grid[1]));
      grid.push_back(beyond(grid.back(), grid[grid.size() - 2]));
    }
    for (const double rate : grid) {
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
                         [&](const Job& other) { return other.method->name == trains->name; });
        if (job == jobs.end()) {
          fs::path folder = root / trains->name;
          if (!recipe.train.lr_grid.empty()) folder /= fmt::format("lr-{:g}", recipe.train.lr);
          Job made;
          const auto own = trainings.own.find(trains->name);
          made.recipe = own == trainings.own.end() ? &recipe : &own->second;
          made.method = trains;
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
    const std::string unit = job.method->name + (whole_methods ? "" : fmt::format(" {}", job.seed));
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
  grid.seeds = scale.grid_seeds.value_or(study.seeds);
  if (scale.grid_seed) {
    grid.first_seed = static_cast<std::uint64_t>(*scale.grid_seed);
  } else {
    grid.seeds = std::min(grid.seeds, study.seeds);
  }
  grid.steps = scale.grid_steps.value_or(study.steps);
  if (grid.steps != study.steps) grid.folder = fmt::format("steps-{}", grid.steps);
  return grid;
}

// How a method's learning rates did on validation data, by the recipes that have them; these stand
// in one vector, so that their addresses are in the order of the grid.
struct Ranks {
  std::map<const Recipe*, double> by_rate;  // sums over seeds
  bool trained = false;                     // a run of the grid has ended

  // Of equals the first of the grid.
  const Recipe* Best() const {
    const auto best =
        std::max_element(by_rate.begin(), by_rate.end(),
                         [](const auto& a, const auto& b) { return a.second < b.second; });
    return best->first;
  }
  // Whether the best rate is this end of the grid, and better than the one beside it.
  bool WonBy(const Recipe* end, const Recipe* beside) const {
    return Best() == end && by_rate.at(end) > by_rate.at(beside);
  }
};

// Jobs that failed count as nothing right, or as a loss of 1000.
std::map<std::string, Ranks> RanksOf(const std::vector<Job>& grid) {
  std::map<std::string, Ranks> ranks;
  for (const Job& job : grid) {
    Ranks& own = ranks[job.method->name];
    const std::optional<double> rank = ValidationRank(job);
    own.trained = own.trained || rank.has_value();
    const Metric metric = job.recipe->task.generator->GetMetric();
    own.by_rate[job.recipe] += rank.value_or(
        metric.higher_is_better ? CheckpointRank(job.recipe->train, metric, {}, {}) : -1000.0);
  }
  return ranks;
}

// Trains the jobs of the grid by `train`, and those of the rates beside it while an end wins.
std::map<std::string, Ranks> TrainGrid(const Trainings& trainings, std::vector<Job> waiting,
                                       const std::function<void(std::vector<Job>&)>& train) {
  const Recipe* const rates = trainings.rates.data();
  const Recipe* const last_rate = rates + trainings.rates.size() - 1;
  std::map<std::string, std::pair<const Recipe*, const Recipe*>> tried;  // first and last
  for (const Job& job : waiting) {
    tried[job.method->name] = {rates + trainings.widen, last_rate - trainings.widen};
  }
  std::vector<Job> done;
  while (true) {
    const auto begin = std::stable_partition(waiting.begin(), waiting.end(), [&](const Job& job) {
      const auto& [first, last] = tried.at(job.method->name);
      return job.recipe < first || job.recipe > last;
    });
    std::vector<Job> now(std::make_move_iterator(begin), std::make_move_iterator(waiting.end()));
    waiting.erase(begin, waiting.end());
    train(now);
    std::ranges::move(now, std::back_inserter(done));
    const std::map<std::string, Ranks> ranks = RanksOf(done);
    bool more = false;
    for (auto& [method, ends] : tried) {
      auto& [first, last] = ends;
      const Ranks& own = ranks.at(method);
      if (first > rates && own.WonBy(first, first + 1)) {
        --first;
      } else if (last < last_rate && own.WonBy(last, last - 1)) {
        ++last;
      } else {
        continue;
      }
      more = true;
    }
    if (!more) return ranks;
  }
}

Json ToReport(const TrainConfig& train) {
  return {{"optimizer", train.optimizer},
          {"lr", train.lr},
          {"lr_grid", train.lr_grid},
          {"l2", train.l2},
          {"weight_decay", train.weight_decay},
          {"schedule", train.schedule},
          {"cooldown", train.cooldown},
          {"warmup", train.warmup},
          {"batch", train.batch},
          {"validate_every", train.validate_every},
          {"validate_samples", train.validate_samples},
          {"best_length", train.best_length},
          {"best_floor", train.best_floor}};
}

std::string NameOf(Scoring scoring) {
  constexpr const char* kNames[] = {"exact", "tokens", "loss", "written"};
  return kNames[static_cast<std::size_t>(scoring)];
}

// What a report makes of the numbers of a score.
Json ToReport(const Metric& metric) {
  return {{"label", metric.unit == "points" ? metric.name
                                            : fmt::format("{} ({})", metric.name, metric.unit)},
          {"sum", metric.sum},
          {"count", metric.count},
          {"factor", metric.factor}};
}

// `compare`: the papers' figures belong beside ours.
Json ToReport(const Recipe& recipe, const MethodConfig& method, bool compare) {
  Json paper = Json::object();
  for (std::size_t i = 0; compare && i < method.paper.size(); ++i) {
    paper[std::to_string(recipe.task.eval_lengths[i])] = method.paper[i];
  }
  return {{"name", method.name},
          {"label", method.label},
          {"variant", method.variant},
          {"settings", recipe.Kind().ReportedAttention(recipe, method)},
          {"paper", paper},
          {"train", method.train ? ToReport(*method.train) : Json(nullptr)}};
}

Json ToReport(const Job& job) {
  Json samples;
  for (std::size_t i = 0; i < job.samples.size(); ++i) {
    samples[job.evaluates[i]->name] = job.samples[i];
  }
  return {{"folder", job.folder.string()},
          {"method", job.method->name},
          {"seed", job.seed},
          {"steps", job.steps},
          {"samples", samples},
          {"map_lengths", job.map_lengths}};
}

// The first test sample of length n, token by token.
Json Spelt(const SequenceTask& task, std::int64_t n) {
  const Sample sample = task.Draw(kEvaluationSeed, Split::kTest, 0, n);
  Json words = Json::array();
  Json scored = Json::array();
  for (std::size_t i = 0; i < sample.tokens.size(); ++i) {
    words.push_back(task.Word(sample.tokens[i]));
    scored.push_back(sample.labels[i] != kNotScored);
  }
  return {{"n", n}, {"words", words}, {"scored", scored}};
}

// The samples whose attention the jobs show token by token.
Json SpeltSamples(const TaskConfig& task, const std::vector<Job>& jobs) {
  std::set<std::int64_t> lengths;
  for (const Job& job : jobs) {
    for (const Json& map : job.heads.maps) {
      const auto& drawn = job.map_lengths;
      const auto found = std::find(drawn.begin(), drawn.end(), map["n"]);
      if (map["cell"] == 1 && found != drawn.end()) lengths.insert(*found);
    }
  }
  Json samples = Json::array();
  for (const std::int64_t n : lengths) samples.push_back(Spelt(*task.Sequences(), n));
  return samples;
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

  // What the report is told; `chosen`: the learning rate of each method that chose one.
  Json Description(const Json& chosen) const;

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
      trainings(recipe, scale) {
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
  if (const std::string why = recipe.Kind().WhyNoMaps(recipe); !why.empty()) {
    if (asked.empty()) return;
    throw UsageError("--maps: expected " + why);
  }
  const SequenceTask& sequences = *task.Sequences();
  for (const std::int64_t n : asked) sequences.CheckLength(n);
  for (Job& job : jobs) {
    if (!job.draws) continue;
    job.map_lengths = asked.empty() ? MapLengths(sequences, task.eval_lengths) : asked;
  }
}

Reproduction::Reproduction(const Recipe& recipe, const ReproduceOptions& options)
    : plan_(std::make_unique<Plan>(recipe, options)) {}
Reproduction::Reproduction(Reproduction&&) noexcept = default;
Reproduction::~Reproduction() = default;

const Recipe& Reproduction::GetRecipe() const { return plan_->recipe; }

Json Reproduction::Plan::Description(const Json& chosen) const {
  const Metric metric = recipe.task.generator->GetMetric();
  const auto number = [](const std::optional<std::int64_t>& value) {
    return value ? Json(*value) : Json(nullptr);
  };
  Json about = {{"study", recipe.name},
                {"title", recipe.title},
                {"source", recipe.source},
                {"scale", options.scale},
                {"commit", GitCommit()},
                {"processor", QueryCpu().processor},
                {"command", options.command},
                {"baseline", recipe.baseline},
                {"figure", recipe.figure},
                {"headline", recipe.headline},
                {"finding_length", recipe.finding_length},
                {"metric",
                 {{"name", metric.name},
                  {"unit", metric.unit},
                  {"higher_is_better", metric.higher_is_better},
                  {"digits", metric.digits},
                  {"notable", metric.notable}}},
                {"scoring", NameOf(task.generator->GetScoring())},
                {"lengths", task.eval_lengths},
                {"train_length", {task.train_length_min, task.train_length_max}},
                {"train", ToReport(recipe.train)},
                {"steps", study.steps},
                {"seeds", study.seeds},
                {"grid",
                 {{"steps", grid.steps},
                  {"seeds", grid.seeds},
                  {"spare", scale.grid_seed.has_value()},
                  {"widen", scale.grid_widen}}},
                {"chosen", chosen},
                {"heat_items", kHeatItems},
                {"groups", task.generator->Groups()},
                {"bins", Json::array()},
                {"model", recipe.Kind().ReportedModel(recipe)},
                {"task",
                 {{"samples", task.eval_samples},
                  {"tokens", number(task.eval_tokens)},
                  {"lost", number(task.eval_samples_lost)},
                  {"beams", kTestBeams}}},
                {"samples", SpeltSamples(task, jobs)}};
  for (const Metric& one : recipe.task.generator->Metrics()) {
    about["metrics"].push_back(ToReport(one));
  }
  for (std::size_t bin = 0; bin == 0 || PositionBin(bin - 1) <= task.eval_lengths.back(); ++bin) {
    about["bins"].push_back(PositionBin(bin));
  }
  for (const MethodConfig& method : recipe.methods) {
    about["methods"].push_back(ToReport(recipe, method, scale.compare));
  }
  for (const MethodConfig* method : methods) about["shown"].push_back(method->name);
  for (const Job& job : jobs) about["runs"].push_back(ToReport(job));
  return about;
}

Reproduced Reproduction::Run(const std::atomic<bool>& stop) {
  const ReproduceOptions& options = plan_->options;
  const TaskConfig& task = plan_->task;
  std::vector<Job>& grid_jobs = plan_->grid_jobs;
  std::vector<Job>& jobs = plan_->jobs;
  const auto machine = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  const int cores = options.workers > 0 ? options.workers : machine;
  const auto run = [&](std::vector<Job>& all, JobGoal goal) {
    return RunQueue(task, all, goal, options.progress, cores, stop);
  };
  Json chosen = Json::object();
  if (!grid_jobs.empty()) {
    // A job that fails is not chosen; where none is left, the chosen one fails again below.
    const auto ranks =
        TrainGrid(plan_->trainings, std::move(grid_jobs), [&](std::vector<Job>& now) {
          if (!options.finished_only) run(now, JobGoal::kTrain);
        });
    for (const auto& [method, own] : ranks) {
      if (own.trained) chosen[method] = own.Best()->train.lr;
    }
    std::erase_if(jobs,
                  [&](const Job& job) { return ranks.at(job.method->name).Best() != job.recipe; });
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
    std::erase_if(jobs, [](const Job& job) { return job.samples.empty(); });
    unfinished = plan_->expected - jobs.size();
    std::stable_sort(jobs.begin(), jobs.end(),
                     [](const Job& a, const Job& b) { return a.seed < b.seed; });
    if (jobs.empty()) throw std::runtime_error("every job failed: " + failures.front());
  }

  return {plan_->Description(chosen), std::move(failures), unfinished};
}

}  // namespace tsallis::lab
