#include "lab/train/trainer.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <optional>

#include "lab/base/denormals.h"
#include "lab/base/errors.h"
#include "lab/train/gradient_sum.h"
#include "lab/train/optimizer.h"

namespace tsallis::lab {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

// Sums since the last line of metrics.jsonl.
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
  double rank = -std::numeric_limits<double>::infinity();
};

// One run of the loop: what is saved and restored, and how. Only the first of several processes has
// a folder; the others hear from it what stands there.
class Run {
 public:
  Run(Trainable& model, const TrainingJob& job)
      : model_(model),
        job_(job),
        folder_(job.folder),
        optimizer_(job.recipe->train, job.steps, model.FlatParameters(), model.FlatGradients(),
                   model.Parameters(), model.Groups()) {}

  std::int64_t step = 0;  // done
  Window window;
  Best best;
  bool validates = false;  // the validation of this step is still to be done
  bool finished = false;   // the weights are final
  std::int64_t saved = 0;  // the step of the last checkpoint, in the first process
  double seconds = 0.0;    // trained so far, earlier sessions included

  // Says what remains of a run that cannot go on.
  std::string Kept() const {
    return saved > 0 ? fmt::format("the checkpoint of step {} is kept", saved)
                     : "there was no checkpoint yet";
  }

  // How the run begins, for people; empty: from its start, with nothing to tell.
  std::string Begun() const {
    std::string note = step > 0 ? fmt::format("resumed at {}", step) : "";
    if (const std::int64_t damaged = metrics_ ? metrics_->Damaged() : 0; damaged > 0) {
      note += fmt::format("{}{} damaged line{} of metrics.jsonl kept in metrics.damaged",
                          note.empty() ? "" : "; ", damaged, damaged == 1 ? "" : "s");
    }
    return note;
  }

  std::string Stopped() const { return fmt::format("{} stopped at step {}", job_.Name(), step); }

  Optimizer& Optimise() { return optimizer_; }

  // Takes possession of the folder and reads what is in it. Collective.
  void Open(const nlohmann::ordered_json& settings) {
    if (job_.processes.First()) {
      folder_.Claim(settings);
      finished = folder_.Finished();
      if (finished) {
        LoadParameters(folder_.FinalPath(), model_.Parameters());
      } else {
        Restore();
        metrics_.emplace(job_.folder / "metrics.jsonl", step, job_.tensorboard);
      }
    }
    Spread();
    saved = step;
  }

  // Adds a line to metrics.jsonl.
  void Log(const std::string& line) {
    if (metrics_) metrics_->Add(line);
  }

  void Save() {
    CheckAgreement();
    if (!job_.processes.First()) return;
    Checkpoint checkpoint{step, {model_.Parameters(), Metadata()}, {{}, Metadata()}};
    checkpoint.state.tensors = optimizer_.State();
    auto& notes = checkpoint.state.metadata;
    // Hexadecimal floating point: exact.
    notes["window.loss"] = fmt::format("{:a}", window.loss);
    notes["window.hits"] = std::to_string(window.hits);
    notes["window.count"] = std::to_string(window.count);
    notes["window.steps"] = std::to_string(window.steps);
    notes["seconds"] = fmt::format("{:a}", seconds);
    notes["validates"] = std::to_string(static_cast<int>(validates));
    notes["best.step"] = std::to_string(best.step);
    notes["best.rank"] = fmt::format("{:a}", best.rank);
    folder_.Save(checkpoint);
    saved = step;
  }

  // Keeps the weights if by these values they are the best so far; of equals the later, for
  // values at new lengths go on rising after the loss has vanished.
  void KeepIfBest(const Trainable::Values& values) {
    const Metric metric = job_.recipe->task.generator->GetMetric();
    const Trainable::Value& last = values.back();
    const double rank = CheckpointRank(job_.recipe->train, metric, values.front(), last);
    if (rank < best.rank) return;
    best = {step, rank};
    if (!job_.processes.First()) return;
    TensorFile file{model_.Parameters(), Metadata()};
    file.metadata[metric.name] = fmt::format("{:.6g}", last.metric);
    file.metadata["length"] = std::to_string(last.length);
    folder_.SaveBest(file);
  }

  [[noreturn]] void Diverged(const std::string& what) const {
    throw std::runtime_error(
        fmt::format("{}: training diverged: the {} is not finite; {}. A smaller train.lr may help",
                    job_.Name(), what, Kept()));
  }

  void Finish() {
    CheckAgreement();
    // The last step's norm was of the gradient, or none was computed.
    if (!at::isfinite(model_.FlatParameters().sum()).item<bool>()) {
      Diverged(fmt::format("sum of the weights after step {}", step));
    }
    if (job_.processes.First()) folder_.Finish({model_.Parameters(), Metadata()});
  }

 private:
  std::map<std::string, std::string> Metadata() const {
    return {{"step", std::to_string(step)}, {"method", job_.method->name}};
  }

  // Every process adds the same sums to the same weights, and the next step needs equal weights. A
  // machine of another kind may round differently.
  void CheckAgreement() const {
    if (job_.processes.Agree(model_.FlatParameters())) return;
    throw std::runtime_error(
        fmt::format("{}: the processes' weights differ after step {}; the last checkpoint is kept",
                    job_.Name(), step));
  }

  void Restore() {
    const std::optional<Checkpoint> checkpoint = folder_.Load();
    if (!checkpoint) return;
    const fs::path last = folder_.Path() / "last";
    CopyParameters(checkpoint->model, last / "model.safetensors", model_.Parameters());
    CopyParameters(checkpoint->state, last / "state.safetensors", optimizer_.State());
    step = checkpoint->step;
    const auto note = [&](const char* key) {
      const auto found = checkpoint->state.metadata.find(key);
      return found == checkpoint->state.metadata.end() ? "0" : found->second.c_str();
    };
    seconds = std::strtod(note("seconds"), nullptr);
    window = {std::strtod(note("window.loss"), nullptr), std::atoll(note("window.hits")),
              std::atoll(note("window.count")), std::atoll(note("window.steps"))};
    validates = std::atoll(note("validates")) != 0;
    best = {std::atoll(note("best.step")), std::strtod(note("best.rank"), nullptr)};
  }

  // Gives all processes the values that the first one has read.
  void Spread() {
    const Processes& processes = job_.processes;
    const auto spread = [&](auto& value) {
      const at::Tensor number = at::scalar_tensor(static_cast<double>(value), at::kDouble);
      processes.Broadcast(number);
      value = static_cast<std::remove_reference_t<decltype(value)>>(number.item<double>());
    };
    const auto spread_all = [&](auto&... values) { (spread(values), ...); };
    spread_all(step, validates, finished, best.step, best.rank);
    spread_all(window.loss, window.hits, window.count, window.steps);
    processes.Broadcast(model_.FlatParameters());
    for (const auto& [name, tensor] : optimizer_.State()) processes.Broadcast(tensor);
  }

  Trainable& model_;
  const TrainingJob& job_;
  RunFolder folder_;
  Optimizer optimizer_;
  std::optional<Metrics> metrics_;
};

// Reads the values, keeps the weights if they are the best so far, and adds a line to the
// metrics. Interrupted in the middle, it leaves a checkpoint that begins with it.
void Validate(Trainable& model, Run& run, double seconds, const std::atomic<bool>& stop) {
  run.validates = true;
  Trainable::Values values;
  try {
    values = model.Validate(stop);
  } catch (const Interrupted&) {
    run.seconds = seconds;
    run.Save();
    throw Interrupted(run.Stopped());
  }
  run.validates = false;
  if (values.empty()) return;
  std::string text, tokens;
  for (const Trainable::Value& value : values) {
    if (!std::isfinite(value.metric)) {
      run.Diverged(fmt::format("validation loss at length {}", value.length));
    }
    const auto add = [&](std::string& to, double number) {
      to += fmt::format("{}\"{}\": {:.6g}", to.empty() ? "" : ", ", value.length, number);
    };
    add(text, value.metric);
    if (value.tokens) add(tokens, *value.tokens);
  }
  if (!tokens.empty()) tokens = fmt::format(R"("validation_tokens": {{{}}}, )", tokens);
  run.KeepIfBest(values);
  run.Log(fmt::format(R"({{"step": {}, "validation": {{{}}}, {}"seconds": {:.3f}}})", run.step,
                      text, tokens, seconds));
}

// Adds what there is to see of the model to the metrics.
void Observe(Trainable& model, Run& run, double seconds) {
  const Trainable::Observation observed = model.Observe();
  if (observed.empty()) return;
  std::string text;
  for (const auto& [name, value] : observed) {
    const std::string number = std::isfinite(value) ? fmt::format("{:.6g}", value) : "null";
    text += fmt::format("{}\"{}\": {}", text.empty() ? "" : ", ", name, number);
  }
  run.Log(fmt::format(R"({{"step": {}, "observed": {{{}}}, "seconds": {:.3f}}})", run.step, text,
                      seconds));
}

// One step's loss and gradient, of the whole batch in every process. Returns whether one of them is
// asked to stop.
bool LossAndGradient(Trainable& model, const Processes& processes, std::int64_t step,
                     const std::atomic<bool>& stop, GradientSum& gradient,
                     Trainable::StepScore& score) {
  const Trainable::StepScore own = model.LossAndGradient(
      step, [&](std::int64_t begin, std::int64_t end) { gradient.Ready(begin, end); });
  const at::Tensor sums = at::tensor(
      {own.loss, static_cast<double>(own.hits), static_cast<double>(own.count), stop ? 1.0 : 0.0},
      at::kDouble);
  const auto pending = processes.StartSum(sums);
  gradient.Finish();
  pending->Wait();
  const double* sum = sums.const_data_ptr<double>();
  score = {sum[0], static_cast<std::int64_t>(sum[1]), static_cast<std::int64_t>(sum[2])};
  return sum[3] > 0.0;
}

// The loop itself.
void TrainOn(Trainable& model, const TrainingJob& job, const nlohmann::ordered_json& settings,
             Run& run, const std::function<void(const JobStatus&)>& report,
             const std::atomic<bool>& stop) {
  const TrainConfig& train = job.recipe->train;
  run.Open(settings);
  JobStatus status;
  status.steps = job.steps;
  if (run.finished) {
    status.step = status.first_step = job.steps;
    report(status);
    return;
  }
  status.state = JobStatus::State::kTraining;
  status.step = status.first_step = run.step;
  status.note = run.Begun();
  report(status);

  const auto start = Clock::now();
  const double earlier = run.seconds;
  const auto seconds = [&] {
    return earlier + std::chrono::duration<double>(Clock::now() - start).count();
  };
  auto reported = start;
  const auto fail = [&](const char* what) {
    run.Diverged(fmt::format("{} of step {}", what, run.step + 1));
  };
  GradientSum gradient(job.processes, model.FlatGradients());
  Trainable::StepScore score;
  if (run.validates) Validate(model, run, seconds(), stop);
  while (run.step < job.steps) {
    const bool stopping = LossAndGradient(model, job.processes, run.step, stop, gradient, score);
    if (!std::isfinite(score.loss)) fail("loss");
    const double norm = run.Optimise().Step(run.step);
    if (!std::isfinite(norm)) fail("norm of the gradient");
    ++run.step;
    run.window.Add(score);

    const bool end = run.step == job.steps;
    const auto now = Clock::now();
    if (now - reported > std::chrono::milliseconds(200) || end) {
      reported = now;
      status.step = run.step;
      status.loss = run.window.Loss();
      status.accuracy = run.window.Accuracy();
      report(status);
    }
    if (run.step % train.log_every == 0 || end) {
      run.Log(
          fmt::format(R"({{"step": {}, "loss": {:.6g}, "accuracy": {:.6g}, "seconds": {:.3f}}})",
                      run.step, run.window.Loss(), run.window.Accuracy(), seconds()));
      run.window = {};
    }
    if (job.processes.First() && (IsObserved(run.step) || end)) Observe(model, run, seconds());
    if (train.validate_every > 0 && (run.step % train.validate_every == 0 || end)) {
      Validate(model, run, seconds(), stop);
    }
    if (end) break;
    if (run.step % train.checkpoint_every == 0 || stopping) {
      run.seconds = seconds();
      run.Save();
    }
    if (stopping) throw Interrupted(run.Stopped());
  }
  run.Finish();
}

}  // namespace

bool IsObserved(std::int64_t step) {
  const double quarter = std::round(4.0 * std::log10(static_cast<double>(step)));
  return step == std::llround(std::pow(10.0, quarter / 4.0));
}

std::string TrainingJob::Name() const {
  const bool chosen = !recipe->train.lr_grid.empty();
  return fmt::format("{}{} seed {}", method->name,
                     chosen ? fmt::format(" lr {:g}", recipe->train.lr) : "", seed);
}

fs::path StartOf(const TrainConfig& train, const fs::path& runs, const std::string& method,
                 std::uint64_t seed) {
  if (train.start.empty()) return {};
  return runs / train.start / method / fmt::format("seed-{}", seed);
}

void CheckShares(const TrainConfig& train, const Processes& processes) {
  const std::int64_t part = train.batch / train.accumulate;
  if (part >= processes.Size()) return;
  throw UsageError(
      fmt::format("train.batch: expected at least one sample for each of {} processes{}, got {}",
                  processes.Size(),
                  train.accumulate > 1 ? " in each of train.accumulate parts" : "", train.batch));
}

std::vector<std::int64_t> ValidationLengths(const Recipe& recipe) {
  if (recipe.task.train_length_max == recipe.train.best_length) return {recipe.train.best_length};
  return {recipe.task.train_length_max, recipe.train.best_length};
}

double CheckpointRank(const TrainConfig& train, const Metric& metric,
                      const Trainable::Value& in_distribution, const Trainable::Value& value) {
  if (!metric.higher_is_better) return -value.metric;
  if (in_distribution.metric < train.best_floor) return in_distribution.metric - 100.0;
  return value.metric > 0.0 ? value.metric : 1e-6 * value.tokens.value_or(0.0);
}

nlohmann::ordered_json ToJson(const TrainConfig& train) {
  nlohmann::ordered_json json;
  AddOptimizer(json, train, false);
  json["batch"] = train.batch;
  json["log_every"] = train.log_every;
  AddOptimizer(json, train, true);
  const TrainConfig defaults;
  const auto add = [&](const char* key, const auto& value, const auto& fallback) {
    if (value != fallback) json[key] = value;
  };
  add("cooldown", train.cooldown, defaults.cooldown);
  add("clip", train.clip, defaults.clip);
  add("schedule", train.schedule, defaults.schedule);
  add("warmup", train.warmup, defaults.warmup);
  add("start", train.start, defaults.start);
  add("accumulate", train.accumulate, defaults.accumulate);
  add("validate_every", train.validate_every, defaults.validate_every);
  add("validate_samples", train.validate_samples, defaults.validate_samples);
  add("best_length", train.best_length, defaults.best_length);
  add("best_floor", train.best_floor, defaults.best_floor);
  return json;
}

void Train(Trainable& model, const TrainingJob& job, const nlohmann::ordered_json& settings,
           const std::function<void(const JobStatus&)>& report, const std::atomic<bool>& stop) {
  FlushDenormals();  // weights that L2 has shrunk to nothing make denormal moments
  Run run(model, job);
  try {
    TrainOn(model, job, settings, run, report, stop);
  } catch (const FailedProcess&) {
    throw;
  } catch (const LostProcess& error) {
    const std::string kept =
        job.processes.First() ? run.Kept() : std::string("the last checkpoint is kept");
    throw LostProcess(
        fmt::format("{}: {} after step {}; {}. To go on, with any number of processes: --resume",
                    job.Name(), error.what(), run.step, kept));
  }
}

}  // namespace tsallis::lab
