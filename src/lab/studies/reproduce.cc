#include "lab/studies/reproduce.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "core/version.h"
#include "lab/eval/evaluate_sets.h"
#include "lab/train/safetensors.h"
#include "lab/train/set_training.h"
#include "tsallis/cpu.h"

namespace tsallis::lab {
namespace {

namespace fs = std::filesystem;

// One training and every method that is evaluated on its weights.
struct Job {
  const MethodConfig* trains = nullptr;
  std::vector<const MethodConfig*> evaluates;
  std::uint64_t seed = 0;
  fs::path folder;
  std::vector<std::vector<LengthScore>> scores;  // as evaluates
  double seconds = 0.0;
};

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

std::vector<Job> MakeJobs(const Recipe& recipe, const std::vector<const MethodConfig*>& methods,
                          std::uint64_t first_seed, int seeds, const fs::path& root) {
  std::vector<Job> jobs;
  for (int s = 0; s < seeds; ++s) {
    // Seed by seed, so that an unfinished study already compares every method.
    const std::size_t first = jobs.size();
    for (const MethodConfig* method : methods) {
      const MethodConfig* trains =
          method->weights_of ? &recipe.Method(*method->weights_of) : method;
      auto job = std::find_if(jobs.begin() + static_cast<std::ptrdiff_t>(first), jobs.end(),
                              [&](const Job& other) { return other.trains == trains; });
      if (job == jobs.end()) {
        const std::uint64_t seed = first_seed + static_cast<std::uint64_t>(s);
        jobs.push_back(
            {trains, {}, seed, root / trains->name / fmt::format("seed-{}", seed), {}, 0.0});
        job = jobs.end() - 1;
      }
      job->evaluates.push_back(method);
    }
  }
  return jobs;
}

// Seconds that a job's training took over all its sessions: the last line of each session of
// metrics.jsonl counts from that session's start, so what remains after a restart is a lower bound.
double TrainingSeconds(const fs::path& folder) {
  std::ifstream in(folder / "metrics.jsonl");
  double total = 0.0;
  double last = 0.0;
  for (std::string line; std::getline(in, line);) {
    const auto entry = nlohmann::json::parse(line, nullptr, false);
    const double seconds = entry.is_object() ? entry.value("seconds", 0.0) : 0.0;
    if (seconds < last) total += last;
    last = seconds;
  }
  return total + last;
}

fs::path ScoresPath(const Job& job, const MethodConfig& method) {
  return job.folder / ("eval-" + method.name + ".json");
}

// A job whose evaluations are all there is finished; its weights need not be kept.
bool LoadFinished(const TaskConfig& task, Job& job) {
  std::vector<std::vector<LengthScore>> scores;
  for (const MethodConfig* method : job.evaluates) {
    std::optional<std::vector<LengthScore>> loaded = LoadScores(ScoresPath(job, *method), task);
    if (!loaded) return false;
    scores.push_back(std::move(*loaded));
  }
  job.scores = std::move(scores);
  job.seconds = TrainingSeconds(job.folder);
  return true;
}

void RunJob(const Recipe& recipe, const TaskConfig& task, std::int64_t steps, Job& job,
            JobStatus status, const std::function<void(const JobStatus&)>& report,
            const std::atomic<bool>& stop) {
  const std::string name = status.name;
  const TrainingJob training{&recipe, job.trains, job.seed, steps, job.folder};
  ClaimSetFolder(training);
  if (LoadFinished(task, job)) {
    status.step = status.first_step = steps;
    status.state = JobStatus::State::kDone;
    report(status);
    return;
  }
  SetAttention model = TrainSet(
      training,
      [&](const JobStatus& now) {
        status = now;
        status.name = name;
        report(status);
      },
      stop);
  status.state = JobStatus::State::kEvaluating;
  report(status);
  for (const MethodConfig* method : job.evaluates) {
    if (LoadScores(ScoresPath(job, *method), task)) continue;
    model.SetMethod(*method);
    SaveScores(ScoresPath(job, *method), EvaluateSets(model, task, stop));
  }
  LoadFinished(task, job);
  status.state = JobStatus::State::kDone;
  report(status);
}

// Runs the jobs on `workers` threads. A job that fails leaves the others running; the failures are
// returned. Throws Interrupted once everything has stopped at a checkpoint.
std::vector<std::string> RunQueue(const Recipe& recipe, const TaskConfig& task, std::int64_t steps,
                                  std::vector<Job>& jobs, const ReproduceOptions& options,
                                  int workers, const std::atomic<bool>& stop) {
  std::vector<JobStatus> statuses;
  for (const Job& job : jobs) {
    JobStatus status;
    status.name = fmt::format("{} seed {}", job.trains->name, job.seed);
    status.steps = steps;
    statuses.push_back(status);
  }
  ProgressOptions shown = options.progress;
  shown.workers = workers;
  Progress progress(statuses, shown);
  std::atomic<std::size_t> next{0};
  std::mutex mutex;
  std::vector<std::string> failures;
  std::exception_ptr interrupted;
  std::exception_ptr mistake;  // of the user: nothing that follows can be right
  std::atomic<bool> halt{false};
  const auto work = [&] {
    for (std::size_t i = next++; i < jobs.size() && !stop && !halt; i = next++) {
      JobStatus status = statuses[i];
      const auto report = [&](const JobStatus& now) {
        status = now;
        progress.Update(i, now);
      };
      const auto ended = [&](JobStatus::State state, const std::string& why) {
        status.state = state;
        status.note = why;
        progress.Update(i, status);
      };
      try {
        RunJob(recipe, task, steps, jobs[i], status, report, stop);
      } catch (const Interrupted& error) {
        const std::lock_guard lock(mutex);
        ended(JobStatus::State::kInterrupted, error.what());
        interrupted = std::current_exception();
      } catch (const UsageError& error) {
        const std::lock_guard lock(mutex);
        ended(JobStatus::State::kFailed, error.what());
        mistake = std::current_exception();
        halt = true;
      } catch (const std::exception& error) {
        const std::lock_guard lock(mutex);
        ended(JobStatus::State::kFailed, error.what());
        failures.emplace_back(error.what());
      }
    }
  };
  std::vector<std::thread> threads;
  threads.reserve(static_cast<std::size_t>(workers));
  for (int w = 0; w < workers; ++w) threads.emplace_back(work);
  for (std::thread& thread : threads) thread.join();
  if (mistake) std::rethrow_exception(mistake);
  if (interrupted) std::rethrow_exception(interrupted);
  if (stop) throw Interrupted("stopped between two jobs");
  return failures;
}

void Summarise(const Recipe& recipe, const TaskConfig& task,
               const std::vector<const MethodConfig*>& methods, const std::vector<Job>& jobs,
               StudyResults& results) {
  for (const MethodConfig* method : methods) {
    const auto evaluated = [&](const Job& job) {
      return std::find(job.evaluates.begin(), job.evaluates.end(), method) != job.evaluates.end();
    };
    if (std::none_of(jobs.begin(), jobs.end(), evaluated)) continue;  // of what is finished so far
    results.methods.push_back({method->name, method->label});
    for (std::size_t l = 0; l < task.eval_lengths.size(); ++l) {
      const std::int64_t n = task.eval_lengths[l];
      std::vector<double> accuracy;
      std::vector<double> entropy;
      double support = 0.0;
      for (const Job& job : jobs) {
        const auto at = std::find(job.evaluates.begin(), job.evaluates.end(), method);
        if (at == job.evaluates.end()) continue;
        const LengthScore& score =
            job.scores[static_cast<std::size_t>(at - job.evaluates.begin())][l];
        accuracy.push_back(100.0 * static_cast<double>(score.hits) /
                           static_cast<double>(score.sets));
        entropy.push_back(score.entropy);
        support += score.support;
        if (accuracy.size() == 1 && !score.heat.empty()) {
          results.heat_maps.push_back({method->name, n, kHeatSets, kHeatItems, score.heat});
        }
      }
      const auto mean = [](const std::vector<double>& values) {
        double sum = 0.0;
        for (const double value : values) sum += value;
        return sum / static_cast<double>(values.size());
      };
      const auto deviation = [&](const std::vector<double>& values) {
        if (values.size() < 2) return 0.0;
        double sum = 0.0;
        for (const double value : values) sum += (value - mean(values)) * (value - mean(values));
        return std::sqrt(sum / static_cast<double>(values.size() - 1));
      };
      ResultRow row{method->name,
                    n,
                    mean(accuracy),
                    deviation(accuracy),
                    *std::max_element(accuracy.begin(), accuracy.end()),
                    static_cast<int>(accuracy.size()),
                    std::nullopt};
      // The papers' figures stand at the recipe's own lengths; a scale may evaluate fewer of them.
      const auto& lengths = recipe.task.eval_lengths;
      const auto column = std::find(lengths.begin(), lengths.end(), n) - lengths.begin();
      if (column < static_cast<std::ptrdiff_t>(method->paper.size())) {
        row.paper = method->paper[static_cast<std::size_t>(column)];
      }
      results.rows.push_back(row);
      results.entropies.push_back({method->name, n, mean(entropy), deviation(entropy),
                                   support / static_cast<double>(accuracy.size())});
    }
  }
}

}  // namespace

StudyResults Reproduce(const Recipe& recipe, const ReproduceOptions& options,
                       const std::atomic<bool>& stop) {
  if (recipe.task.name != "max-retrieval" || recipe.model.name != "set-attention") {
    throw UsageError(fmt::format(
        "{}: task \"{}\" with model \"{}\" is not known; there is \"max-retrieval\" with "
        "\"set-attention\"",
        recipe.path.string(), recipe.task.name, recipe.model.name));
  }
  const ScaleConfig& scale = recipe.Scale(options.scale);
  const int seeds = options.seeds > 0 ? options.seeds : scale.seeds;
  TaskConfig task = recipe.task;
  if (scale.eval_lengths) task.eval_lengths = *scale.eval_lengths;
  if (scale.eval_items) task.eval_items = *scale.eval_items;
  const std::vector<const MethodConfig*> methods =
      SelectMethods(recipe, options.methods.empty() ? scale.methods : options.methods);
  const fs::path root = options.runs / recipe.name / options.scale;
  std::vector<Job> jobs = MakeJobs(recipe, methods, options.first_seed, seeds, root);
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
  if (options.finished_only) {
    std::erase_if(jobs, [&](Job& job) { return !LoadFinished(task, job); });
    if (jobs.empty())
      throw UsageError(root.string() + " holds no finished job of these methods and seeds yet");
  } else {
    const int cores = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
    const int workers =
        std::min<int>(options.workers > 0 ? options.workers : cores, static_cast<int>(jobs.size()));
    // Jobs are independent and small: a core each, no threads inside.
    at::set_num_threads(1);
    failures = RunQueue(recipe, task, scale.steps, jobs, options, workers, stop);
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
  results.protocol = fmt::format(
      "{} training steps of {} sets, {}, learning rate {:g}, L2 {:g}, {} seed{}; the last weights "
      "are evaluated, on {} to "
      "{} sets a length",
      scale.steps, recipe.train.batch, recipe.train.optimizer, recipe.train.lr, recipe.train.l2,
      seeds, seeds == 1 ? "" : "s",
      EvalSets(task, *std::max_element(task.eval_lengths.begin(), task.eval_lengths.end())),
      EvalSets(task, *std::min_element(task.eval_lengths.begin(), task.eval_lengths.end())));
  for (const Job& job : jobs) results.train_seconds += job.seconds;
  Summarise(recipe, task, methods, jobs, results);
  return results;
}

}  // namespace tsallis::lab
