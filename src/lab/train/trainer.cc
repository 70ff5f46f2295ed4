#include "lab/train/trainer.h"

#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <system_error>

#include "lab/errors.h"
#include "lab/nn/set_kernels.h"
#include "lab/train/safetensors.h"

namespace tsallis::lab {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

struct OptimizerState {
  // Exponential averages of the gradient and of its square, shaped as FlatParameters.
  at::Tensor first, second;
};

// Everything that decides the weights. A folder made with other settings is not touched.
nlohmann::ordered_json Settings(const TrainingJob& job) {
  const Recipe& recipe = *job.recipe;
  const MethodConfig& method = *job.method;
  const TaskConfig& task = recipe.task;
  const TrainConfig& train = recipe.train;
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
  settings["train"] = {{"optimizer", train.optimizer},
                       {"lr", train.lr},
                       {"l2", train.l2},
                       {"beta1", train.beta1},
                       {"beta2", train.beta2},
                       {"epsilon", train.epsilon},
                       {"batch", train.batch},
                       {"log_every", train.log_every}};
  return settings;
}

void LoadParameters(const TensorFile& file, const SetAttention& model) {
  for (const auto& [name, parameter] : model.Parameters()) {
    const at::Tensor& stored = file.At(name);
    if (stored.sizes() != parameter.sizes() || stored.scalar_type() != parameter.scalar_type()) {
      throw std::runtime_error("checkpoint: tensor \"" + name +
                               "\" has another shape or type than the model");
    }
    at::Tensor(parameter).copy_(stored);
  }
}

// Checkpoints are folders step-<n>; `last` is a link to the newest, replaced by a rename, so at
// every moment it names a complete one. The random state is the step: data is a pure function of
// seed and step.
void SaveCheckpoint(const TrainingJob& job, std::int64_t step, const SetAttention& model,
                    const OptimizerState& optimizer) {
  const std::string name = fmt::format("step-{:08}", step);
  const fs::path folder = job.folder / name;
  fs::create_directories(folder);
  const std::map<std::string, std::string> metadata = {{"step", std::to_string(step)},
                                                       {"method", job.method->name}};
  WriteTensors(folder / "model.safetensors", {model.Parameters(), metadata});
  WriteTensors(folder / "state.safetensors",
               {{{"adam.first", optimizer.first}, {"adam.second", optimizer.second}}, metadata});
  const fs::path link = job.folder / "last";
  const fs::path aside = job.folder / "last.tmp";
  fs::remove(aside);
  fs::create_directory_symlink(name, aside);
  fs::rename(aside, link);
  for (const fs::directory_entry& entry : fs::directory_iterator(job.folder)) {
    const std::string other = entry.path().filename().string();
    if (other.starts_with("step-") && other != name) fs::remove_all(entry.path());
  }
}

// Returns the step to go on from.
std::int64_t LoadCheckpoint(const TrainingJob& job, const SetAttention& model,
                            const OptimizerState& optimizer) {
  const fs::path last = job.folder / "last";
  if (!fs::exists(last)) return 0;
  LoadParameters(ReadTensors(last / "model.safetensors"), model);
  const TensorFile state = ReadTensors(last / "state.safetensors");
  for (const auto& [name, target] :
       {std::pair{"adam.first", optimizer.first}, {"adam.second", optimizer.second}}) {
    const at::Tensor& stored = state.At(name);
    if (stored.sizes() != target.sizes())
      throw std::runtime_error("checkpoint: optimiser state of another model");
    at::Tensor(target).copy_(stored);
  }
  return std::stoll(state.metadata.at("step"));
}

// metrics.jsonl, cut back to the checkpoint: lines of steps that will run again, or half a line,
// are dropped.
class Metrics {
 public:
  Metrics(const fs::path& path, std::int64_t step) {
    std::string kept;
    if (std::ifstream in(path); in) {
      for (std::string line; std::getline(in, line);) {
        const auto entry = nlohmann::json::parse(line, nullptr, false);
        if (!entry.is_object() || entry.value("step", step + 1) > step) break;
        kept += line + "\n";
      }
    }
    WriteFileAtomically(path, kept);
    out_.open(path, std::ios::app);
  }

  void Add(std::int64_t step, double loss, double accuracy, double seconds) {
    out_ << fmt::format(R"({{"step": {}, "loss": {:.6g}, "accuracy": {:.6g}, "seconds": {:.3f}}})",
                        step, loss, accuracy, seconds)
         << "\n"
         << std::flush;
    if (!out_) throw std::runtime_error("metrics.jsonl: writing failed (is the disk full?)");
  }

 private:
  std::ofstream out_;
};

class Adam {
 public:
  Adam(const TrainConfig& config, const SetAttention& model, const OptimizerState& state)
      : config_(config), model_(model), state_(state) {}

  // step counts from 1.
  void Step(std::int64_t step) {
    const double t = static_cast<double>(step);
    AdamStep({.lr = static_cast<float>(config_.lr),
              .beta1 = static_cast<float>(config_.beta1),
              .beta2 = static_cast<float>(config_.beta2),
              .epsilon = static_cast<float>(config_.epsilon),
              .l2 = static_cast<float>(config_.l2),
              .correction1 = static_cast<float>(1.0 - std::pow(config_.beta1, t)),
              .correction2 = static_cast<float>(1.0 - std::pow(config_.beta2, t))},
             model_.FlatParameters().numel(), model_.FlatGradients().const_data_ptr<float>(),
             model_.FlatParameters().mutable_data_ptr<float>(),
             state_.first.mutable_data_ptr<float>(), state_.second.mutable_data_ptr<float>());
  }

 private:
  const TrainConfig& config_;
  const SetAttention& model_;
  const OptimizerState& state_;
};

}  // namespace

void ClaimFolder(const TrainingJob& job) {
  const fs::path path = job.folder / "config.json";
  const nlohmann::ordered_json settings = Settings(job);
  std::error_code error;
  fs::create_directories(job.folder, error);
  if (error)
    throw std::runtime_error(job.folder.string() + ": cannot be created: " + error.message());
  if (std::ifstream in(path); in) {
    const nlohmann::ordered_json found = nlohmann::ordered_json::parse(in, nullptr, false);
    if (found == settings) return;
    std::string differs = "not a configuration";
    if (found.is_object()) {
      for (const auto& [key, value] : settings.items()) {
        if (!found.contains(key) || found[key] != value) {
          differs = fmt::format("{} was {}, is {}", key,
                                found.contains(key) ? found[key].dump() : "absent", value.dump());
          break;
        }
      }
    }
    throw UsageError(fmt::format(
        "{} holds a run with other settings ({}); remove it or choose another --runs folder",
        job.folder.string(), differs));
  }
  WriteFileAtomically(path, settings.dump(2) + "\n");
}

SetAttention Train(const TrainingJob& job, const std::function<void(const JobStatus&)>& report,
                   const std::atomic<bool>& stop) {
  const Recipe& recipe = *job.recipe;
  const MaxRetrieval task(recipe.task);
  SetAttention model(recipe.model, task.Features(), task.Classes(), *job.method, job.seed);
  ClaimFolder(job);
  const fs::path final_path = job.folder / "model.safetensors";
  JobStatus status;
  status.steps = job.steps;
  if (fs::exists(final_path)) {
    LoadParameters(ReadTensors(final_path), model);
    status.step = status.first_step = job.steps;
    report(status);
    return model;
  }

  const OptimizerState optimizer{at::zeros_like(model.FlatParameters()),
                                 at::zeros_like(model.FlatParameters())};
  std::int64_t step = LoadCheckpoint(job, model, optimizer);
  Metrics metrics(job.folder / "metrics.jsonl", step);
  Adam adam(recipe.train, model, optimizer);
  status.state = JobStatus::State::kTraining;
  status.step = status.first_step = step;
  if (step > 0) status.note = fmt::format("resumed at {}", step);
  report(status);

  // Weights that L2 has shrunk to nothing make denormal moments, and denormals are a hundred times
  // slower.
  at::globalContext().setFlushDenormal(true);
  const auto start = Clock::now();
  auto reported = start;
  double loss_sum = 0.0;
  std::int64_t hits = 0;
  // A window of metrics always starts at a multiple of log_every, and checkpoints do too: resuming
  // splits none.
  while (step < job.steps) {
    const SetBatch batch = task.TrainBatch(job.seed, step, recipe.train.batch);
    const BatchScore score = model.LossAndGradient(batch);
    if (!std::isfinite(score.loss)) {
      throw std::runtime_error(
          fmt::format("{} seed {}: the loss is {} at step {}; the last checkpoint is kept",
                      job.method->name, job.seed, score.loss, step));
    }
    adam.Step(++step);
    loss_sum += score.loss;
    hits += score.hits;

    const std::int64_t window = (step - 1) % recipe.train.log_every + 1;
    const auto now = Clock::now();
    if (now - reported > std::chrono::milliseconds(200) || step == job.steps) {
      reported = now;
      status.step = step;
      status.loss = loss_sum / static_cast<double>(window);
      status.accuracy =
          100.0 * static_cast<double>(hits) / static_cast<double>(window * recipe.train.batch);
      report(status);
    }
    if (window == recipe.train.log_every || step == job.steps) {
      metrics.Add(
          step, loss_sum / static_cast<double>(window),
          100.0 * static_cast<double>(hits) / static_cast<double>(window * recipe.train.batch),
          std::chrono::duration<double>(now - start).count());
      loss_sum = 0.0;
      hits = 0;
      const bool due = step % recipe.train.checkpoint_every == 0;
      if (step < job.steps && (due || stop)) SaveCheckpoint(job, step, model, optimizer);
      if (step < job.steps && stop) {
        throw Interrupted(
            fmt::format("{} seed {} stopped at step {}", job.method->name, job.seed, step));
      }
    }
  }
  WriteTensors(final_path, {model.Parameters(),
                            {{"step", std::to_string(step)}, {"method", job.method->name}}});
  for (const fs::directory_entry& entry : fs::directory_iterator(job.folder)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("step-") || name == "last") fs::remove_all(entry.path());
  }
  return model;
}

}  // namespace tsallis::lab
