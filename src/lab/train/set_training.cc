#include "lab/train/set_training.h"

#include <ATen/ATen.h>

#include "lab/base/errors.h"
#include "lab/eval/evaluate_sets.h"

namespace tsallis::lab {
namespace {

nlohmann::ordered_json Settings(const TrainingJob& job) {
  const Recipe& recipe = *job.recipe;
  const MethodConfig& method = *job.method;
  const SetAttentionConfig& attention = method;
  const TaskConfig& task = recipe.task;
  nlohmann::ordered_json settings;
  settings["study"] = recipe.name;
  settings["method"] = method.name;
  settings.update(ToJson(attention));
  settings["seed"] = job.seed;
  settings["steps"] = job.steps;
  settings["task"] = {{"name", task.name},
                      {"train_length", {task.train_length_min, task.train_length_max}},
                      {"classes", task.classes}};
  settings["model"] = {{"name", recipe.model.name}, {"width", recipe.model.width}};
  settings["train"] = ToJson(recipe.train);
  return settings;
}

class SetTraining : public Trainable {
 public:
  SetTraining(const TrainingJob& job, const MaxRetrieval& task, SetAttention& model)
      : recipe_(*job.recipe),
        task_(task),
        model_(model),
        seed_(job.seed),
        processes_(job.processes) {
    CheckShares(recipe_.train, processes_);
  }

  const std::vector<std::pair<std::string, at::Tensor>>& Parameters() const override {
    return model_.Parameters();
  }
  const at::Tensor& FlatParameters() const override { return model_.FlatParameters(); }
  const at::Tensor& FlatGradients() const override { return model_.FlatGradients(); }

  StepScore LossAndGradient(std::int64_t step, const GradientReady&) override {
    // A batch comes out of one stream: all of it is drawn, which takes little beside the model.
    const std::int64_t sets = recipe_.train.batch;
    const auto [first, own] = processes_.Share(sets);
    SetBatch batch = task_.TrainBatch(seed_, step, sets);
    for (at::Tensor* part : {&batch.items, &batch.query, &batch.target}) {
      *part = part->narrow(0, first, own);
    }
    const BatchScore score = model_.LossAndGradient(batch, sets);
    return {score.loss, score.hits, own};
  }

  // Proposition 3.1 of Velickovic et al. 2024 through training (their figure 9).
  Observation Observe() override {
    constexpr std::int64_t kSets = 128;
    const LogitSpread spread =
        model_.Spread(task_.EvalBatch(Split::kValidation, recipe_.task.train_length_max, 0, kSets));
    return {{"spread", spread.spread}, {"bound", spread.bound}};
  }

  // Every process reads all of it: it takes little beside the training.
  Values Validate(const std::atomic<bool>& stop) override {
    Values values;
    const at::Tensor stopped = at::zeros({1}, at::kLong);
    try {
      for (const std::int64_t n : ValidationLengths(recipe_)) {
        const std::int64_t sets = recipe_.train.validate_samples;
        const LengthScore score = EvaluateSetsAt(model_, task_, Split::kValidation, n, sets, stop);
        values.emplace_back(n, score.answers.Value(Scoring::kExact));
      }
    } catch (const Interrupted&) {
      stopped.fill_(1);
    }
    processes_.Sum(stopped);
    if (stopped.item<std::int64_t>() > 0) throw Interrupted("validation stopped");
    return values;
  }

 private:
  const Recipe& recipe_;
  const MaxRetrieval& task_;
  SetAttention& model_;
  std::uint64_t seed_;
  Processes processes_;
};

}  // namespace

void ClaimSetFolder(const TrainingJob& job) { RunFolder(job.folder).Claim(Settings(job)); }

SetAttention TrainSet(const TrainingJob& job, const std::function<void(const JobStatus&)>& report,
                      const std::atomic<bool>& stop) {
  const MaxRetrieval task(job.recipe->task);
  SetAttention model(job.recipe->model.width, task.Features(), task.Classes(), *job.method,
                     job.seed);
  SetTraining training(job, task, model);
  Train(training, PlanOf(job, Settings(job)), report, stop);
  if (job.recipe->train.validate_every == 0) return model;
  if (job.processes.First()) {
    LoadParameters(RunFolder(job.folder).BestPath(), model.Parameters());
  }
  job.processes.Broadcast(model.FlatParameters());
  return model;
}

}  // namespace tsallis::lab
