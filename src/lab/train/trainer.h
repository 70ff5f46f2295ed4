// The training loop: a model on its data, an optimiser, checkpoints, metrics.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "lab/config/recipe.h"
#include "lab/progress/progress.h"
#include "lab/train/processes.h"
#include "lab/train/run_folder.h"

namespace tsallis::lab {

// Training drives models through this interface.
class Trainable {
 public:
  // The score of one step's batch.
  struct StepScore {
    double loss = 0.0;       // mean, what the gradient is of
    std::int64_t hits = 0;   // right answers
    std::int64_t count = 0;  // all answers
  };
  // The task's metric at a length, and the right tokens in % where it counts whole samples.
  struct Value {
    std::int64_t length = 0;
    double metric = 0.0;
    std::optional<double> tokens;
    bool operator==(const Value&) const = default;
  };
  using Values = std::vector<Value>;
  // Takes ranges of FlatGradients() that are final, from the back to the front without a gap.
  using GradientReady = std::function<void(std::int64_t begin, std::int64_t end)>;

  virtual ~Trainable() = default;

  // Named views into FlatParameters().
  virtual const std::vector<std::pair<std::string, at::Tensor>>& Parameters() const = 0;
  // What each is to an optimiser; empty: scalars.
  virtual std::vector<ParameterGroup> Groups() const { return {}; }
  // [size] float32, one piece of memory each.
  virtual const at::Tensor& FlatParameters() const = 0;
  virtual const at::Tensor& FlatGradients() const = 0;

  // Loss of training step `step`, from 0, and its gradient, which replaces FlatGradients(). Depends
  // on the step and the parameters alone: there is no state beside them to be saved. Of several
  // processes each works on its share of the batch: score and gradient are its terms of the
  // batch's.
  virtual StepScore LossAndGradient(std::int64_t step, const GradientReady& ready) = 0;

  // The metric on validation data at ValidationLengths(), the same in all processes;
  // CheckpointRank() of the first and the last decides which checkpoint is best. Nothing: the last
  // weights are what training is for. Called every train.validate_every steps and after the last.
  // Throws Interrupted when `stop` becomes true in one of the processes.
  virtual Values Validate(const std::atomic<bool>& stop) = 0;

  // Numbers that show how the model grows, by name; none: there is nothing to see. Asked for after
  // the steps of IsObserved() and the last, in the first process alone, and written to
  // metrics.jsonl as "observed". Must leave no trace in what is trained.
  using Observation = std::vector<std::pair<std::string, double>>;
  virtual Observation Observe() { return {}; }
};

// Whether the model is looked at after `step` steps: four times in every power of ten, evenly on a
// logarithmic axis (1, 2, 3, 6, 10, 18, 32, 56, 100, ...).
bool IsObserved(std::int64_t step);

// A method of a recipe with a seed.
struct TrainingJob {
  const Recipe* recipe = nullptr;
  const MethodConfig* method = nullptr;  // trains its own weights
  std::uint64_t seed = 1;
  std::int64_t steps = 0;
  std::filesystem::path folder;
  Processes processes{};     // no setting: another number of them may go on with a run
  bool tensorboard = false;  // metrics go to an event file too
  // Sequence models: the run or the file of weights that it begins with; empty: its seed's.
  std::filesystem::path start{};

  std::string Name() const;  // "softmax seed 1"; where rates are chosen "softmax lr 0.001 seed 1"
};

// The folder, below `runs`, of the run whose weights a run of this method and seed begins with.
// Empty if train.start is empty.
std::filesystem::path StartOf(const TrainConfig& train, const std::filesystem::path& runs,
                              const std::string& method, std::uint64_t seed);

// UsageError if there are more processes than samples in a part of a batch: none may go without.
void CheckShares(const TrainConfig& train, const Processes& processes);

// The lengths at which the metric is read on validation data: the longest length of training, then
// train.best_length.
std::vector<std::int64_t> ValidationLengths(const Recipe& recipe);

// The checkpoint of the highest rank is the best: the metric of `value`, read at train.best_length,
// negative where less is better. Where no sample is right there, a millionth of its right tokens
// counts, so that the choice is not blind. An accuracy counts less than 0 where that of
// `in_distribution`, read at the longest length of training, is below train.best_floor.
double CheckpointRank(const TrainConfig& train, const Metric& metric,
                      const Trainable::Value& in_distribution, const Trainable::Value& value);

// The part of the settings that says how is trained. Keys that came later are left out at their
// defaults, so that older folders keep theirs.
nlohmann::ordered_json ToJson(const TrainConfig& train);

// Trains, or goes on from the last checkpoint; a finished run is only loaded. `settings`: all
// that decides the weights, to config.json. Leaves the last weights in the model, the best, where
// there is validation, in the folder. The result depends on the job alone: killed and resumed runs
// end with the same bits. `report` is called some times a second. Throws UsageError if the folder
// belongs to other settings, Interrupted after a checkpoint when `stop` becomes true, LostProcess,
// std::runtime_error (also when loss or gradient are not finite; then the last checkpoint is kept).
//
// Collective: all of the job's processes call it. The first alone uses the folder and reports; the
// others end with the same weights. Another number of processes gives the same up to rounding.
void Train(Trainable& model, const TrainingJob& job, const nlohmann::ordered_json& settings,
           const std::function<void(const JobStatus&)>& report, const std::atomic<bool>& stop);

}  // namespace tsallis::lab
