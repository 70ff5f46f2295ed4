#include "lab/train/experiment.h"

#include <fmt/format.h>

#include <map>

#include "lab/base/errors.h"
#include "lab/train/sequence_experiment.h"
#include "lab/train/set_experiment.h"

namespace tsallis::lab {
namespace {

template <class Kind>
std::unique_ptr<Experiment> Make(const TrainingJob& job) {
  return std::make_unique<Kind>(job);
}

void Start(Experiment& experiment, const TrainingJob& job) {
  if (!std::filesystem::exists(job.start)) {
    const std::filesystem::path study = job.recipe->train.start;
    throw UsageError(job.start.string() + ": no weights to start from" +
                     (study.empty()
                          ? ""
                          : fmt::format("; `tsallis reproduce {} --scale {}` makes them",
                                        study.parent_path().string(), study.filename().string())));
  }
  experiment.StartFrom(job.start);
}

}  // namespace

std::unique_ptr<Experiment> MakeExperiment(const TrainingJob& job) {
  static const std::map<const ExperimentKind*, std::unique_ptr<Experiment> (*)(const TrainingJob&)>
      kinds = {{&SetKind(), Make<SetExperiment>}, {&SequenceKind(), Make<SequenceExperiment>}};
  return kinds.at(&job.recipe->Kind())(job);
}

void Train(Experiment& experiment, const TrainingJob& job,
           const std::function<void(const JobStatus&)>& report, const std::atomic<bool>& stop) {
  const RunFolder folder(job.folder);
  if (!folder.Finished()) {
    // A run that has begun has what it needs in its folder.
    if (!job.start.empty() && job.processes.First() && !folder.Begun()) Start(experiment, job);
    experiment.RequireSamples();
  }
  Train(experiment, job, experiment.Settings(), report, stop);
  if (job.recipe->train.validate_every == 0) return;
  if (job.processes.First()) LoadParameters(folder.BestPath(), experiment.Parameters());
  job.processes.Broadcast(experiment.FlatParameters());
}

}  // namespace tsallis::lab
