// An experiment: a model on a task, from its first weights to its scores. There is a class for each
// kind (lab/config/experiment_kind.h).
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lab/config/experiment_kind.h"
#include "lab/train/trainer.h"

namespace tsallis::lab {

// It draws its batches, and has their loss and its gradient, as Trainable says.
class Experiment : public Trainable {
 public:
  // Everything that decides the weights: config.json.
  virtual nlohmann::ordered_json Settings() const = 0;
  // One line that tells people how the model computes; empty: nothing.
  virtual std::string Note() const { return ""; }

  // Takes the weights of a run, its folder or a file, instead of its seed's. UsageError if there
  // are none, or if they do not fit.
  virtual void StartFrom(const std::filesystem::path& path) = 0;

  // UsageError unless there are all samples that training and validation read, or of a test at the
  // task's lengths: a corpus may be missing, or have too few long documents, and that must not cost
  // the hours of a training.
  virtual void RequireSamples() const = 0;
  virtual void RequireTestSamples(const TaskConfig& task) const = 0;

  // From here on Test() reads the weights as `method` does.
  virtual void Attend(const MethodConfig& method) = 0;
  // The score of the first `samples` test samples of length n; with `draws`, with what pages draw.
  // Throws Interrupted when `stop` becomes true.
  virtual Score Test(std::int64_t n, std::int64_t samples, bool draws,
                     const std::atomic<bool>& stop) = 0;

  // Looks at the heads on test samples of all lengths of the task, and draws maps at
  // `map_lengths`, as far as the file does not have them yet. Throws likewise.
  virtual void ObserveHeads(const TaskConfig& task, const std::vector<std::int64_t>& map_lengths,
                            const std::filesystem::path& path, const std::atomic<bool>& stop) = 0;
};

// A line for each kind in experiment.cc. With the weights of the job's seed. UsageError if the job
// has more processes than samples to share. The job's recipe and method are kept by reference.
std::unique_ptr<Experiment> MakeExperiment(const TrainingJob& job);

// Trains the experiment of the job, or goes on from its last checkpoint, and leaves it with the
// weights that count: the best where train.validate_every asks for it, else the last. Throws as
// Train; collective as that is.
void Train(Experiment& experiment, const TrainingJob& job,
           const std::function<void(const JobStatus&)>& report, const std::atomic<bool>& stop);

}  // namespace tsallis::lab
