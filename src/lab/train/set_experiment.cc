#include "lab/train/set_experiment.h"

#include <ATen/ATen.h>

#include "lab/base/errors.h"
#include "lab/eval/evaluate_sets.h"

namespace tsallis::lab {

SetExperiment::SetExperiment(const TrainingJob& job)
    : job_(job),
      recipe_(*job.recipe),
      task_(recipe_.task),
      model_(recipe_.model.width, task_.Features(), task_.Classes(), *job.method, job.seed) {
  CheckShares(recipe_.train, job_.processes);
}

nlohmann::ordered_json SetExperiment::Settings() const {
  const MethodConfig& method = *job_.method;
  const SetAttentionConfig& attention = method;
  const TaskConfig& task = recipe_.task;
  nlohmann::ordered_json settings;
  settings["study"] = recipe_.name;
  settings["method"] = method.name;
  settings.update(ToJson(attention));
  settings["seed"] = job_.seed;
  settings["steps"] = job_.steps;
  settings["task"] = {{"name", task.name},
                      {"train_length", {task.train_length_min, task.train_length_max}},
                      {"classes", task.classes}};
  settings["model"] = {{"name", recipe_.model.name}, {"width", recipe_.model.width}};
  settings["train"] = ToJson(recipe_.train);
  return settings;
}

void SetExperiment::StartFrom(const std::filesystem::path&) {
  throw UsageError("the weights to start from: expected none with model \"" + recipe_.model.name +
                   "\"");
}

Trainable::StepScore SetExperiment::LossAndGradient(std::int64_t step, const GradientReady&) {
  // A batch comes out of one stream: all of it is drawn, which takes little beside the model.
  const std::int64_t sets = recipe_.train.batch;
  const auto [first, own] = job_.processes.Share(sets);
  SetBatch batch = task_.TrainBatch(job_.seed, step, sets);
  for (at::Tensor* part : {&batch.items, &batch.query, &batch.target}) {
    *part = part->narrow(0, first, own);
  }
  const BatchScore score = model_.LossAndGradient(batch, sets);
  return {score.loss, score.hits, own};
}

Trainable::Observation SetExperiment::Observe() {
  constexpr std::int64_t kSets = 128;
  const LogitSpread spread =
      model_.Spread(task_.EvalBatch(Split::kValidation, recipe_.task.train_length_max, 0, kSets));
  return {{"spread", spread.spread}, {"bound", spread.bound}};
}

Trainable::Values SetExperiment::Validate(const std::atomic<bool>& stop) {
  Values values;
  const at::Tensor stopped = at::zeros({1}, at::kLong);
  try {
    for (const std::int64_t n : ValidationLengths(recipe_)) {
      const Score score = EvaluateSets(model_, task_, Split::kValidation, n,
                                       recipe_.train.validate_samples, /*heat=*/false, stop);
      values.push_back({n, task_.GetMetric().Value(score), {}});
    }
  } catch (const Interrupted&) {
    stopped.fill_(1);
  }
  job_.processes.Sum(stopped);
  if (stopped.item<std::int64_t>() > 0) throw Interrupted("validation stopped");
  return values;
}

Score SetExperiment::Test(std::int64_t n, std::int64_t samples, bool draws,
                          const std::atomic<bool>& stop) {
  return EvaluateSets(model_, task_, Split::kTest, n, samples, draws, stop);
}

}  // namespace tsallis::lab
