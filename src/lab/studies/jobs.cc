#include "lab/studies/jobs.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "lab/base/denormals.h"
#include "lab/base/errors.h"
#include "lab/base/files.h"
#include "lab/eval/scores.h"
#include "lab/studies/cores.h"
#include "lab/train/experiment.h"
#include "lab/train/memory.h"

namespace tsallis::lab {
namespace {

namespace fs = std::filesystem;

fs::path ScoresPath(const Job& job, const MethodConfig& method) {
  return job.folder / ("eval-" + method.name + ".json");
}

fs::path HeadsPath(const Job& job) { return job.folder / ("heads-" + job.method->name + ".json"); }

// Whether there is nothing more to learn of a job that has been evaluated: its heads have been
// looked at, or there are none, or its weights are gone.
bool HeadsSeen(const TaskConfig& task, const Job& job) {
  if (!job.recipe->Kind().HasHeads() || !RunFolder(job.folder).Finished()) return true;
  return std::all_of(task.eval_lengths.begin(), task.eval_lengths.end(),
                     [&](std::int64_t n) { return job.heads.At(n) != nullptr; }) &&
         std::all_of(job.map_lengths.begin(), job.map_lengths.end(),
                     [&](std::int64_t n) { return job.heads.HasMaps(n); });
}

// How many samples a model is read on at each length, one after the other.
class SampleCounts {
 public:
  SampleCounts(const ExperimentKind& kind, const TaskConfig& task) : kind_(kind), task_(task) {}

  std::int64_t At(std::int64_t n) const {
    const std::int64_t samples = kind_.TestSamples(task_, n);
    return lost_ >= 2 ? std::min(samples, task_.eval_samples_lost.value_or(samples)) : samples;
  }
  void Add(const Score& score) { lost_ = score["hits"] == 0 ? lost_ + 1 : 0; }

 private:
  const ExperimentKind& kind_;
  const TaskConfig& task_;
  int lost_ = 0;  // lengths in a row, the last, at which nothing was right
};

// The settings with which a method reads the weights of another one, which stand in no config.json;
// empty for the method that was trained.
std::string BorrowersSettings(const Job& job, const MethodConfig& method) {
  if (method.name == job.method->name) return "";
  return job.recipe->Kind().Attention(*job.recipe, method).dump() + "\n";
}

fs::path SettingsPath(const Job& job, const MethodConfig& method) {
  return job.folder / ("settings-" + method.name + ".json");
}

// Whether the scores there were read with other settings. Scores from before these were kept are
// taken as they are.
bool IsOutdated(const Job& job, const MethodConfig& method) {
  const std::string settings = BorrowersSettings(job, method);
  return !settings.empty() && ReadFile(SettingsPath(job, method)).value_or(settings) != settings;
}

// Before a borrower is evaluated.
void KeepSettings(const Job& job, const MethodConfig& method) {
  if (IsOutdated(job, method)) fs::remove(ScoresPath(job, method));
  WriteFileAtomically(SettingsPath(job, method), BorrowersSettings(job, method));
}

// The samples of a finished evaluation, length by length; nothing if it is not there.
std::optional<std::vector<std::int64_t>> LoadOf(const TaskConfig& task, const Job& job,
                                                const MethodConfig& method) {
  if (IsOutdated(job, method)) return std::nullopt;
  const std::vector<Score> scores = LoadScores(ScoresPath(job, method));
  std::vector<std::int64_t> counts;
  SampleCounts samples(job.recipe->Kind(), task);
  for (const std::int64_t n : task.eval_lengths) {
    counts.push_back(samples.At(n));
    const Score* score = FindScore(scores, n, counts.back());
    if (score == nullptr) return std::nullopt;
    samples.Add(*score);
  }
  return counts;
}

bool IsFinished(const TaskConfig& task, Job& job, JobGoal goal) {
  return LoadFinished(task, job) || (goal == JobGoal::kTrain && ValidationRank(job));
}

// Long lengths take long: each is kept as soon as it is there.
void EvaluateMissing(const TaskConfig& task, Experiment& experiment, const Job& job,
                     const fs::path& path, const std::atomic<bool>& stop) {
  std::vector<Score> scores = LoadScores(path);
  SampleCounts samples(job.recipe->Kind(), task);
  for (const std::int64_t n : task.eval_lengths) {
    const Score* score = FindScore(scores, n, samples.At(n));
    if (score == nullptr) {
      score = &scores.emplace_back(experiment.Test(n, samples.At(n), job.draws, stop));
      SaveScores(path, scores);
    }
    samples.Add(*score);
  }
}

// Every method that reads the job's weights, where its scores are not there yet, and the heads.
void Evaluate(const TaskConfig& task, Experiment& experiment, const Job& job,
              const std::atomic<bool>& stop) {
  for (const MethodConfig* method : job.evaluates) {
    if (method->name != job.method->name) {
      if (LoadOf(task, job, *method)) continue;
      KeepSettings(job, *method);
    }
    experiment.Attend(*method);
    EvaluateMissing(task, experiment, job, ScoresPath(job, *method), stop);
  }
  experiment.ObserveHeads(task, job.map_lengths, HeadsPath(job), stop);
}

using Report = std::function<void(const JobStatus&)>;

// Trains, then evaluates what is not there yet.
void RunJob(const TaskConfig& task, Job& job, JobGoal goal, JobStatus status, const Report& report,
            const std::atomic<bool>& stop) {
  const std::string name = status.name;
  CheckMemory(job);
  const std::unique_ptr<Experiment> experiment = MakeExperiment(job);
  // Even if it is finished, a folder of other settings is refused.
  RunFolder(job.folder).Claim(experiment->Settings());
  if (!IsFinished(task, job, goal) || (goal == JobGoal::kEvaluate && !HeadsSeen(task, job))) {
    const FolderLock lock(job.folder);
    experiment->RequireTestSamples(task);
    const std::string note = experiment->Note();
    const auto trained = [&](const JobStatus& now) {
      status = now;
      status.name = name;
      if (!note.empty()) status.note += (now.note.empty() ? "" : "; ") + note;
      report(status);
    };
    Train(*experiment, job, trained, stop);
    if (goal == JobGoal::kEvaluate) {
      status.state = JobStatus::State::kEvaluating;
      report(status);
      Evaluate(task, *experiment, job, stop);
    }
  }
  LoadFinished(task, job);
  status.step = job.steps;
  if (status.state == JobStatus::State::kQueued) status.first_step = job.steps;
  status.state = JobStatus::State::kDone;
  report(status);
}

}  // namespace

bool LoadFinished(const TaskConfig& task, Job& job) {
  std::vector<std::vector<std::int64_t>> samples;
  for (const MethodConfig* method : job.evaluates) {
    std::optional<std::vector<std::int64_t>> loaded = LoadOf(task, job, *method);
    if (!loaded) return false;
    samples.push_back(std::move(*loaded));
  }
  job.samples = std::move(samples);
  job.heads = LoadHeads(HeadsPath(job));
  return true;
}

bool LoadWhatIsFinished(const TaskConfig& task, Job& job) {
  std::erase_if(job.evaluates,
                [&](const MethodConfig* method) { return !LoadOf(task, job, *method); });
  return !job.evaluates.empty() && LoadFinished(task, job);
}

std::optional<double> ValidationRank(const Job& job) {
  const TrainConfig& train = job.recipe->train;
  const std::vector<std::int64_t> lengths = ValidationLengths(*job.recipe);
  double best = -std::numeric_limits<double>::infinity();
  bool trained = false;
  RunFolder(job.folder).ForEachMetrics([&](const nlohmann::json& entry) {
    if (!entry.contains("validation")) return;
    const auto at = [&](std::int64_t n) {
      const std::string length = std::to_string(n);
      // Runs from before the right tokens were counted have none.
      const auto tokens = entry.value("validation_tokens", nlohmann::json::object());
      return Trainable::Value{n, entry["validation"].value(length, 0.0), tokens.value(length, 0.0)};
    };
    best = std::max(best, CheckpointRank(train, job.recipe->task.generator->GetMetric(),
                                         at(lengths.front()), at(lengths.back())));
    trained = trained || entry.value("step", std::int64_t{0}) == job.steps;
  });
  return trained ? std::optional(best) : std::nullopt;
}

std::vector<std::string> RunQueue(const TaskConfig& task, std::vector<Job>& jobs, JobGoal goal,
                                  const ProgressOptions& shown, int cores,
                                  const std::atomic<bool>& stop) {
  std::vector<JobStatus> statuses;
  for (const Job& job : jobs) {
    JobStatus status;
    status.name = job.Name();
    status.steps = job.steps;
    statuses.push_back(status);
  }
  ProgressOptions options = shown;
  const int workers = std::min(cores, static_cast<int>(jobs.size()));
  options.workers = workers;
  Progress progress(statuses, options);
  std::atomic<std::size_t> next{0};
  std::mutex mutex;
  std::vector<std::string> failures;
  std::exception_ptr interrupted;
  std::exception_ptr mistake;  // of the user: nothing that follows can be right
  std::atomic<bool> halt{false};
  Cores share(cores, workers);
  const auto work = [&](int worker) {
    at::set_num_threads(1);
    for (std::size_t i = next++; i < jobs.size() && !stop && !halt; i = next++) {
      JobStatus status = statuses[i];
      share.SetBusy(worker, true);
      const auto report = [&](const JobStatus& now) {
        status = now;
        progress.Update(i, now);
        if (!jobs[i].recipe->Kind().UsesThreads()) return;
        // Results do not depend on it, so it may change in the middle.
        const int own = share.Share(worker);
        if (own == at::get_num_threads()) return;
        at::set_num_threads(own);
        FlushDenormals();  // in the new threads as well
      };
      const auto ended = [&](JobStatus::State state, const std::string& why) {
        status.state = state;
        status.note = why;
        progress.Update(i, status);
      };
      try {
        RunJob(task, jobs[i], goal, status, report, stop);
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
      share.SetBusy(worker, false);
    }
  };
  std::vector<std::thread> threads;
  threads.reserve(static_cast<std::size_t>(workers));
  for (int w = 0; w < workers; ++w) threads.emplace_back(work, w);
  for (std::thread& thread : threads) thread.join();
  if (mistake) std::rethrow_exception(mistake);
  if (interrupted) std::rethrow_exception(interrupted);
  if (stop) throw Interrupted("stopped between two jobs");
  return failures;
}

}  // namespace tsallis::lab
