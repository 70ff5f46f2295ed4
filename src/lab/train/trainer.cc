#include "lab/train/trainer.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <optional>

#include "lab/denormals.h"
#include "lab/errors.h"
#include "lab/train/optimizer.h"

namespace tsallis::lab {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

// What has been summed since the last line of metrics.jsonl.
struct Window {
  double loss = 0.0;
  std::int64_t hits = 0;
  std::int64_t count = 0;
  std::int64_t steps = 0;

  void Add(const Trainable::StepScore& score) {
    loss += score.loss;
    hits += score.hits;
    count += score.count;
    ++steps;
  }
  double Loss() const { return loss / static_cast<double>(steps); }
  double Accuracy() const { return 100.0 * static_cast<double>(hits) / static_cast<double>(count); }
};

struct Best {
  std::int64_t step = 0;
  double accuracy = -1.0;
};

// One run of the loop: what is saved and restored, and how.
class Run {
 public:
  Run(Trainable& model, const TrainingPlan& plan)
      : model_(model),
        plan_(plan),
        folder_(plan.folder),
        optimizer_(plan.train, plan.steps, model.FlatParameters(), model.FlatGradients()) {}

  std::int64_t step = 0;  // done
  Window window;
  Best best;
  bool validates = false;  // the validation of this step is still to be done

  const RunFolder& Folder() const { return folder_; }
  Optimizer& Optimise() { return optimizer_; }

  std::map<std::string, std::string> Metadata() const {
    return {{"step", std::to_string(step)}, {"method", plan_.method}};
  }

  void Save() const {
    Checkpoint checkpoint{step, {model_.Parameters(), Metadata()}, {{}, Metadata()}};
    checkpoint.state.tensors = {{"adam.first", optimizer_.First()},
                                {"adam.second", optimizer_.Second()}};
    auto& notes = checkpoint.state.metadata;
    // Hexadecimal floating point: exact.
    notes["window.loss"] = fmt::format("{:a}", window.loss);
    notes["window.hits"] = std::to_string(window.hits);
    notes["window.count"] = std::to_string(window.count);
    notes["window.steps"] = std::to_string(window.steps);
    notes["validates"] = std::to_string(static_cast<int>(validates));
    notes["best.step"] = std::to_string(best.step);
    notes["best.accuracy"] = fmt::format("{:a}", best.accuracy);
    folder_.Save(checkpoint);
  }

  void Restore() {
    const std::optional<Checkpoint> checkpoint = folder_.Load();
    if (!checkpoint) return;
    const fs::path last = folder_.Path() / "last";
    CopyParameters(checkpoint->model, last / "model.safetensors", model_.Parameters());
    CopyParameters(checkpoint->state, last / "state.safetensors",
                   {{"adam.first", optimizer_.First()}, {"adam.second", optimizer_.Second()}});
    step = checkpoint->step;
    const auto note = [&](const char* key) {
      const auto found = checkpoint->state.metadata.find(key);
      return found == checkpoint->state.metadata.end() ? "0" : found->second.c_str();
    };
    window = {std::strtod(note("window.loss"), nullptr), std::atoll(note("window.hits")),
              std::atoll(note("window.count")), std::atoll(note("window.steps"))};
    validates = std::atoll(note("validates")) != 0;
    best = {std::atoll(note("best.step")), std::strtod(note("best.accuracy"), nullptr)};
  }

 private:
  Trainable& model_;
  const TrainingPlan& plan_;
  RunFolder folder_;
  Optimizer optimizer_;
};

// Reads the accuracies, keeps the weights if they are the best so far, and adds a line to `metrics`.
// Interrupted in the middle, it leaves a checkpoint that begins with it.
void Validate(Trainable& model, Run& run, Metrics& metrics, double seconds,
              const std::atomic<bool>& stop) {
  run.validates = true;
  Trainable::Accuracies accuracies;
  try {
    accuracies = model.Validate(stop);
  } catch (const Interrupted&) {
    run.Save();
    throw;
  }
  run.validates = false;
  if (accuracies.empty()) return;
  std::string text;
  for (const auto& [length, accuracy] : accuracies) {
    text += fmt::format("{}\"{}\": {:.6g}", text.empty() ? "" : ", ", length, accuracy);
  }
  // Of equals the later: accuracies at new lengths go on rising after the loss has vanished.
  if (const double accuracy = accuracies.back().second; accuracy >= run.best.accuracy) {
    run.best = {run.step, accuracy};
    TensorFile file{model.Parameters(), run.Metadata()};
    file.metadata["accuracy"] = fmt::format("{:.6g}", accuracy);
    file.metadata["length"] = std::to_string(accuracies.back().first);
    run.Folder().SaveBest(file);
  }
  metrics.Add(fmt::format(R"({{"step": {}, "validation": {{{}}}, "seconds": {:.3f}}})", run.step,
                          text, seconds));
}

}  // namespace

TrainingPlan PlanOf(const TrainingJob& job, nlohmann::ordered_json settings) {
  return {fmt::format("{} seed {}", job.method->name, job.seed),
          job.method->name,
          job.recipe->train,
          job.steps,
          job.folder,
          std::move(settings),
          job.tensorboard};
}

nlohmann::ordered_json ToJson(const TrainConfig& train) {
  nlohmann::ordered_json json = {{"optimizer", train.optimizer}, {"lr", train.lr}};
  if (train.optimizer == "adam") json["l2"] = train.l2;
  json["beta1"] = train.beta1;
  json["beta2"] = train.beta2;
  json["epsilon"] = train.epsilon;
  json["batch"] = train.batch;
  json["log_every"] = train.log_every;
  const TrainConfig defaults;
  const auto add = [&](const char* key, const auto& value, const auto& fallback) {
    if (value != fallback) json[key] = value;
  };
  add("weight_decay", train.weight_decay, defaults.weight_decay);
  add("clip", train.clip, defaults.clip);
  add("schedule", train.schedule, defaults.schedule);
  add("warmup", train.warmup, defaults.warmup);
  add("accumulate", train.accumulate, defaults.accumulate);
  add("validate_every", train.validate_every, defaults.validate_every);
  add("validate_samples", train.validate_samples, defaults.validate_samples);
  add("best_length", train.best_length, defaults.best_length);
  return json;
}

void Train(Trainable& model, const TrainingPlan& plan,
           const std::function<void(const JobStatus&)>& report, const std::atomic<bool>& stop) {
  FlushDenormals();  // weights that L2 has shrunk to nothing make denormal moments
  const TrainConfig& train = plan.train;
  Run run(model, plan);
  run.Folder().Claim(plan.settings);
  JobStatus status;
  status.steps = plan.steps;
  if (run.Folder().Finished()) {
    LoadParameters(run.Folder().FinalPath(), model.Parameters());
    status.step = status.first_step = plan.steps;
    report(status);
    return;
  }
  run.Restore();
  Metrics metrics(plan.folder / "metrics.jsonl", run.step, plan.tensorboard);
  status.state = JobStatus::State::kTraining;
  status.step = status.first_step = run.step;
  if (run.step > 0) status.note = fmt::format("resumed at {}", run.step);
  report(status);

  const auto start = Clock::now();
  const auto seconds = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  auto reported = start;
  const auto fail = [&](const char* what, double value) {
    throw std::runtime_error(fmt::format("{}: the {} is {} at step {}; the last checkpoint is kept",
                                         plan.name, what, value, run.step));
  };
  if (run.validates) Validate(model, run, metrics, seconds(), stop);
  while (run.step < plan.steps) {
    const Trainable::StepScore score = model.LossAndGradient(run.step);
    if (!std::isfinite(score.loss)) fail("loss", score.loss);
    const double norm = run.Optimise().Step(run.step);
    if (!std::isfinite(norm)) fail("norm of the gradient", norm);
    ++run.step;
    run.window.Add(score);

    const bool end = run.step == plan.steps;
    const auto now = Clock::now();
    if (now - reported > std::chrono::milliseconds(200) || end) {
      reported = now;
      status.step = run.step;
      status.loss = run.window.Loss();
      status.accuracy = run.window.Accuracy();
      report(status);
    }
    if (run.step % train.log_every == 0 || end) {
      metrics.Add(
          fmt::format(R"({{"step": {}, "loss": {:.6g}, "accuracy": {:.6g}, "seconds": {:.3f}}})",
                      run.step, run.window.Loss(), run.window.Accuracy(), seconds()));
      run.window = {};
    }
    if (train.validate_every > 0 && (run.step % train.validate_every == 0 || end)) {
      Validate(model, run, metrics, seconds(), stop);
    }
    if (end) break;
    if (run.step % train.checkpoint_every == 0 || stop) run.Save();
    if (stop) throw Interrupted(fmt::format("{} stopped at step {}", plan.name, run.step));
  }
  run.Folder().Finish({model.Parameters(), run.Metadata()});
}

}  // namespace tsallis::lab
