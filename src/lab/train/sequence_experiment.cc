#include "lab/train/sequence_experiment.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <stdexcept>

#include "lab/base/device.h"
#include "lab/base/errors.h"
#include "lab/eval/evaluate_sequences.h"
#include "lab/eval/observe_heads.h"
#include "lab/nn/models.h"
#include "lab/tasks/sequence_batch.h"
#include "lab/train/load_model.h"
#include "lab/train/run_folder.h"

namespace tsallis::lab {

namespace {

// The checksum of the corpus for the settings of a run, so that a corpus made anew under its name
// is noticed. A run that begins needs the corpus. Runs from before that have nothing to compare
// with, and neither has a run that is there on a machine without the corpus.
std::string CorpusChecksum(const TrainingJob& job) {
  const SequenceTask& task = *job.recipe->task.Sequences();
  const nlohmann::ordered_json found = RunFolder(job.folder).Settings();
  if (!found.is_object()) return task.CorpusChecksum();
  const std::string kept = found.value("corpus_checksum", "");
  if (kept.empty()) return "";
  try {
    return task.CorpusChecksum();
  } catch (const UsageError&) {
    return kept;
  }
}

// The configuration of the job's model. A run goes on in the precision that it began in, whatever
// the machine: "auto" is that of the folder's config.json where there is one.
DecoderConfig ModelOf(const TrainingJob& job) {
  static const nlohmann::ordered_json::json_pointer compute("/model/compute");
  DecoderConfig config = job.recipe->Decoder(*job.method);
  const nlohmann::ordered_json settings = RunFolder(job.folder).Settings();
  if (config.compute == "auto" && settings.contains(compute) && settings[compute].is_string()) {
    config.compute = settings[compute];
  }
  return config;
}

// With the weights of the job's seed.
std::unique_ptr<SequenceModel> MakeModel(const TrainingJob& job) {
  std::string device = job.recipe->train.device;
  if (device == "cuda") device = fmt::format("cuda:{}", job.processes.LocalRank());
  return MakeSequenceModel(job.recipe->model.name, ModelOf(job), job.seed, DeviceNamed(device));
}

// UsageError unless a split has so many samples at every length. `samples`: as the task says for a
// length of training, at other lengths as many tokens. Of written texts all that there are will do.
void RequireSamplesOf(const TaskConfig& task, Split split, const std::vector<std::int64_t>& lengths,
                      std::int64_t samples) {
  const bool takes_all = task.generator->GetScoring() == Scoring::kWritten;
  for (const std::int64_t n : lengths) {
    const std::int64_t last = takes_all ? 0 : task.Samples(samples, n) - 1;
    task.Sequences()->Draw(kEvaluationSeed, split, last, n);
  }
}

bool SplitsSequences(const Recipe& recipe, const Processes& processes) {
  return recipe.train.split == "sequence" && processes.Size() > 1;
}

// UsageError unless each of the processes has one of `count` things.
void CheckParts(const char* key, const char* things, std::int64_t count,
                const Processes& processes) {
  if (count >= processes.Size()) return;
  throw UsageError(
      fmt::format("{}: expected at least {} {}, one for each process, with train.split = "
                  "\"sequence\", got {}",
                  key, processes.Size(), things, count));
}

// The batch of training step `step`: samples [step * batch, (step + 1) * batch) of the seed's
// training split, in train.accumulate parts; of every part what is this process's share of samples,
// or all of them where processes split sequences.
std::vector<TokenBatch> TrainingParts(const Recipe& recipe, std::uint64_t seed, std::int64_t step,
                                      const Processes& processes) {
  const TrainConfig& train = recipe.train;
  const TaskConfig& task = recipe.task;
  const std::int64_t length =
      TrainingLength(seed, step, task.train_length_min, task.train_length_max);
  const std::int64_t count = train.batch / train.accumulate;
  const auto [first, own] = SplitsSequences(recipe, processes) ? std::pair(std::int64_t{0}, count)
                                                               : processes.Share(count);
  std::vector<TokenBatch> parts;
  for (std::int64_t part = 0; part < train.accumulate; ++part) {
    parts.push_back(DrawBatch(*task.Sequences(), seed, Split::kTrain,
                              step * train.batch + part * count + first, own, length));
  }
  return parts;
}

}  // namespace

SequenceExperiment::SequenceExperiment(const TrainingJob& job)
    : job_(job),
      recipe_(*job.recipe),
      task_(*recipe_.task.Sequences()),
      splits_(SplitsSequences(recipe_, job.processes)),
      model_(MakeModel(job)) {
  if (!splits_) {
    CheckShares(recipe_.train, job_.processes);
    return;
  }
  CheckParts("model.heads", "heads", model_->Config().heads, job_.processes);
  // Other samples may be shorter still: TakePart looks again.
  TokenBatch shortest =
      DrawBatch(task_, job_.seed, Split::kTrain, 0, 1, recipe_.task.train_length_min);
  TakePart(shortest);
}

nlohmann::ordered_json SequenceExperiment::Settings() const {
  const TaskConfig& task = recipe_.task;
  nlohmann::ordered_json settings;
  settings["study"] = recipe_.name;
  settings["method"] = job_.method->name;
  settings["seed"] = job_.seed;
  settings["steps"] = job_.steps;
  settings["task"] = {{"name", task.name},
                      {"train_length", {task.train_length_min, task.train_length_max}}};
  for (const auto& [key, text] : task.settings) {
    settings["task"][key] = nlohmann::ordered_json::parse(text);
  }
  settings["model"] = ToJson(model_->Config());
  // A decoder's settings have no name: folders that are older than the other models stay valid.
  if (recipe_.model.name != "decoder") settings["model"]["name"] = model_->Architecture();
  settings["train"] = ToJson(recipe_.train);
  if (!job_.start.empty() && recipe_.train.start.empty()) settings["start"] = job_.start.string();
  if (const std::string checksum = CorpusChecksum(job_); !checksum.empty()) {
    settings["corpus_checksum"] = checksum;
  }
  return settings;
}

SequencePart SequenceExperiment::TakePart(TokenBatch& batch) const {
  SequencePart part{batch.tokens.size(1), job_.processes.Rank(), job_.processes.Size(),
                    std::bind_front(&Processes::Exchange, job_.processes)};
  CheckParts("task.train_length", "tokens in a sequence", part.length, job_.processes);
  const auto [begin, count] = part.Own(part.length);
  // Padding is a token like others here: no scored token sees it.
  const at::Tensor padding = at::arange(part.length) >= batch.lengths.unsqueeze(1);
  batch = {batch.tokens.masked_fill(padding, 0).narrow(1, begin, count),
           batch.labels.narrow(1, begin, count),
           {}};
  return part;
}

std::pair<std::int64_t, std::int64_t> SequenceExperiment::AnswersOf(
    const SequenceScore& score) const {
  if (task_.GetScoring() != Scoring::kExact) return {score.hits, score.scored};
  if (!splits_) return {score.exact, score.sequences};
  // A sequence is exact if all its parts are. The first process counts it.
  const std::vector<std::int64_t> exact(score.is_exact.begin(), score.is_exact.end());
  const at::Tensor wrong = 1 - at::tensor(exact, at::kLong);
  job_.processes.Sum(wrong);
  if (!job_.processes.First()) return {0, 0};
  return {wrong.eq(0).sum().item<std::int64_t>(), score.sequences};
}

Trainable::StepScore SequenceExperiment::LossAndGradient(std::int64_t step,
                                                         const GradientReady& ready) {
  std::vector<TokenBatch> parts = TrainingParts(recipe_, job_.seed, step, job_.processes);
  std::vector<SequencePart> own;
  if (splits_) {
    for (TokenBatch& part : parts) own.push_back(TakePart(part));
  }
  // The mean over all that is scored in the step, in however many parts and by however many
  // processes it is worked on.
  at::Tensor scored = at::zeros({}, at::kLong);
  for (const TokenBatch& part : parts) scored += part.labels.ne(kNotScored).sum();
  job_.processes.Sum(scored);
  GradientOptions options;
  options.denominator = scored.item<std::int64_t>();
  StepScore result;
  for (std::size_t part = 0; part < parts.size(); ++part) {
    if (part + 1 == parts.size()) options.ready = ready;
    if (splits_) options.part = &own[part];
    const SequenceScore score = model_->LossAndGradient(parts[part], options);
    options.accumulate = true;
    result.loss += score.loss / static_cast<double>(options.denominator);
    const auto [hits, asked] = AnswersOf(score);
    result.hits += hits;
    result.count += asked;
  }
  return result;
}

Trainable::Observation SequenceExperiment::Observe() {
  if (splits_) return {};
  const std::int64_t n = recipe_.task.train_length_max;
  constexpr std::int64_t kMost = 32;
  // No more than a part of a step, for which there is memory.
  const std::int64_t samples = std::min({kMost, recipe_.train.batch / recipe_.train.accumulate,
                                         task_.Available(Split::kValidation, n)});
  if (samples < 1) return {};
  return model_->Observe(DrawBatch(task_, kEvaluationSeed, Split::kValidation, 0, samples, n));
}

Trainable::Values SequenceExperiment::Validate(const std::atomic<bool>& stop) {
  const Metric metric = task_.GetMetric();
  const bool whole = task_.GetScoring() == Scoring::kExact;
  Values values;
  for (const std::int64_t n : ValidationLengths(recipe_)) {
    const std::int64_t samples = recipe_.task.Samples(recipe_.train.validate_samples, n);
    // Each process reads all samples where their parts do not add up.
    const auto [first, own] =
        metric.AddsUp() ? job_.processes.Share(samples) : std::pair(std::int64_t{0}, samples);
    // The metric's sum in steps of 2^-20 (integers have the same sum in any order), what is
    // counted, the number of processes that were stopped, and of those whose sum is no number;
    // right tokens of whole samples, and all of them.
    const at::Tensor sums = at::zeros({6}, at::kLong);
    auto* sum = sums.mutable_data_ptr<std::int64_t>();
    Score score;
    try {
      score = EvaluateSamples(*model_, task_, Split::kValidation, n, first, own, stop);
      if (metric.AddsUp()) {
        const double steps = NumberIn(score, metric.sum) * 0x1p20;
        const bool fits = std::abs(steps) < 0x1p62;
        sum[0] = fits ? static_cast<std::int64_t>(std::llround(steps)) : 0;
        sum[1] = score.at(metric.count);
        sum[3] = fits ? 0 : 1;
      }
      if (whole) {
        sum[4] = score.at("token_hits");
        sum[5] = score.at("tokens");
      }
    } catch (const Interrupted&) {
      sum[2] = 1;
    }
    job_.processes.Sum(sums);
    if (sum[2] > 0) throw Interrupted("validation stopped");
    double value = std::numeric_limits<double>::quiet_NaN();
    if (!metric.AddsUp()) value = metric.Value(score);
    if (metric.AddsUp() && sum[3] == 0) {
      value = metric.Value(static_cast<double>(sum[0]) * 0x1p-20, static_cast<double>(sum[1]));
    }
    values.push_back({n, value, {}});
    if (whole) {
      const auto tokens = static_cast<double>(std::max<std::int64_t>(sum[5], 1));
      values.back().tokens = 100.0 * static_cast<double>(sum[4]) / tokens;
    }
  }
  return values;
}

void SequenceExperiment::StartFrom(const std::filesystem::path& path) {
  lab::StartFrom(path, *model_);
}

void SequenceExperiment::RequireSamples() const {
  const TaskConfig& task = recipe_.task;
  task_.Draw(1, Split::kTrain, 0, task.train_length_max);
  if (recipe_.train.validate_every == 0) return;
  RequireSamplesOf(task, Split::kValidation, ValidationLengths(recipe_),
                   recipe_.train.validate_samples);
}

void SequenceExperiment::RequireTestSamples(const TaskConfig& task) const {
  RequireSamplesOf(task, Split::kTest, task.eval_lengths, task.eval_samples);
}

void SequenceExperiment::Attend(const MethodConfig& method) {
  borrower_.reset();
  if (method.name == job_.method->name) return;
  DecoderConfig config = recipe_.Decoder(method);
  config.compute = model_->Config().compute;
  borrower_ = MakeSequenceModel(model_->Architecture(), config, job_.seed,
                                model_->FlatParameters().device());
  for (std::size_t i = 0; i < model_->Parameters().size(); ++i) {
    const auto& [name, value] = model_->Parameters()[i];
    const auto& [other_name, other] = borrower_->Parameters().at(i);
    if (name != other_name) throw std::logic_error(name + " is not " + other_name);
    at::Tensor(other).copy_(value);
  }
}

Score SequenceExperiment::Test(std::int64_t n, std::int64_t samples, bool /*draws*/,
                               const std::atomic<bool>& stop) {
  return EvaluateLength(borrower_ ? *borrower_ : *model_, task_, Split::kTest, n, samples, stop);
}

void SequenceExperiment::ObserveHeads(const TaskConfig& task,
                                      const std::vector<std::int64_t>& map_lengths,
                                      const std::filesystem::path& path,
                                      const std::atomic<bool>& stop) {
  ObserveMissing(*model_, task_, task.eval_lengths, map_lengths, path, stop);
}

}  // namespace tsallis::lab
