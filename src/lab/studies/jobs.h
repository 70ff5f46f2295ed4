// The jobs of a study: a queue of trainings over methods, seeds and learning rates, and the
// evaluation of what they trained.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lab/eval/head_data.h"
#include "lab/progress/progress.h"
#include "lab/train/trainer.h"

namespace tsallis::lab {

// One training and every method that is evaluated on its weights.
struct Job : TrainingJob {
  std::vector<const MethodConfig*> evaluates;
  // Whether weights are kept to be drawn: of the first seed alone, which is what pages show.
  bool draws = false;
  std::vector<std::int64_t> map_lengths;  // where maps of attention are drawn
  // How many samples each of `evaluates` was read on, at every length; empty until the job is
  // finished.
  std::vector<std::vector<std::int64_t>> samples;
  HeadObservations heads;  // what there is when the job is finished
};

// Whether the job is evaluated in the same turn, or only trained up to its validation accuracy.
enum class JobGoal : std::uint8_t { kTrain, kEvaluate };

// Reads the job's evaluations if they are all there: it is finished, and its weights need not be
// kept. Observations of its heads are read as far as they are there.
bool LoadFinished(const TaskConfig& task, Job& job);

// Loads those evaluations that are there; the job keeps no other. False: none is.
bool LoadWhatIsFinished(const TaskConfig& task, Job& job);

// CheckpointRank() of the job's best checkpoint on validation data, once it is trained; from its
// metrics, which are kept longer than its weights.
std::optional<double> ValidationRank(const Job& job);

// Runs the jobs, as many at a time as there are cores. When fewer are left, those that use threads
// share the cores. A job that fails leaves the others running; the failures are returned. Throws
// UsageError, and Interrupted once everything has stopped at a checkpoint.
std::vector<std::string> RunQueue(const TaskConfig& task, std::vector<Job>& jobs, JobGoal goal,
                                  const ProgressOptions& shown, int cores,
                                  const std::atomic<bool>& stop);

}  // namespace tsallis::lab
