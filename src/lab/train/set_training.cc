#include "lab/train/set_training.h"

namespace tsallis::lab {
namespace {

nlohmann::ordered_json Settings(const TrainingJob& job) {
  const Recipe& recipe = *job.recipe;
  const MethodConfig& method = *job.method;
  const TaskConfig& task = recipe.task;
  nlohmann::ordered_json settings;
  settings["study"] = recipe.name;
  settings["method"] = method.name;
  settings["map"] = method.map;
  if (method.map == "entmax") settings["alpha"] = method.alpha;
  if (method.theta) settings["theta"] = *method.theta;
  settings["length_scaling"] = {{"kind", static_cast<int>(method.length_scaling.kind)},
                                {"gamma", method.length_scaling.gamma},
                                {"delta", method.length_scaling.delta}};
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
      : task_(task),
        model_(model),
        seed_(job.seed),
        batch_(job.recipe->train.batch),
        processes_(job.processes) {
    CheckShares(job.recipe->train, processes_);
  }

  const std::vector<std::pair<std::string, at::Tensor>>& Parameters() const override {
    return model_.Parameters();
  }
  const at::Tensor& FlatParameters() const override { return model_.FlatParameters(); }
  const at::Tensor& FlatGradients() const override { return model_.FlatGradients(); }

  StepScore LossAndGradient(std::int64_t step, const GradientReady&) override {
    // A batch comes out of one stream: all of it is drawn, which takes little beside the model.
    const auto [first, own] = processes_.Share(batch_);
    SetBatch batch = task_.TrainBatch(seed_, step, batch_);
    for (at::Tensor* part : {&batch.items, &batch.query, &batch.target}) {
      *part = part->narrow(0, first, own);
    }
    const BatchScore score = model_.LossAndGradient(batch, batch_);
    return {score.loss, score.hits, own};
  }
  Accuracies Validate(const std::atomic<bool>&) override { return {}; }

 private:
  const MaxRetrieval& task_;
  SetAttention& model_;
  std::uint64_t seed_;
  std::int64_t batch_;
  Processes processes_;
};

}  // namespace

void ClaimSetFolder(const TrainingJob& job) { RunFolder(job.folder).Claim(Settings(job)); }

SetAttention TrainSet(const TrainingJob& job, const std::function<void(const JobStatus&)>& report,
                      const std::atomic<bool>& stop) {
  const MaxRetrieval task(job.recipe->task);
  SetAttention model(job.recipe->model, task.Features(), task.Classes(), *job.method, job.seed);
  SetTraining training(job, task, model);
  Train(training, PlanOf(job, Settings(job)), report, stop);
  return model;
}

}  // namespace tsallis::lab
