#include "lab/train/sequence_training.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "lab/base/device.h"
#include "lab/base/errors.h"
#include "lab/eval/evaluate_sequences.h"
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
  const SequenceTask& task = *job.recipe->task.sequence;
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

nlohmann::ordered_json Settings(const TrainingJob& job, const SequenceModel& model) {
  const Recipe& recipe = *job.recipe;
  const TaskConfig& task = recipe.task;
  nlohmann::ordered_json settings;
  settings["study"] = recipe.name;
  settings["method"] = job.method->name;
  settings["seed"] = job.seed;
  settings["steps"] = job.steps;
  settings["task"] = {{"name", task.name},
                      {"train_length", {task.train_length_min, task.train_length_max}}};
  for (const auto& [key, text] : task.settings) {
    settings["task"][key] = nlohmann::ordered_json::parse(text);
  }
  settings["model"] = ToJson(model.Config());
  // A decoder's settings have no name: folders that are older than the other models stay valid.
  if (recipe.model.name != "decoder") settings["model"]["name"] = model.Architecture();
  settings["train"] = ToJson(recipe.train);
  if (!job.start.empty() && recipe.train.start.empty()) settings["start"] = job.start.string();
  if (const std::string checksum = CorpusChecksum(job); !checksum.empty()) {
    settings["corpus_checksum"] = checksum;
  }
  return settings;
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

}  // namespace

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
    parts.push_back(DrawBatch(*task.sequence, seed, Split::kTrain,
                              step * train.batch + part * count + first, own, length));
  }
  return parts;
}

SequenceTraining::SequenceTraining(const TrainingJob& job, SequenceModel& model)
    : recipe_(*job.recipe),
      seed_(job.seed),
      processes_(job.processes),
      splits_(SplitsSequences(recipe_, processes_)),
      model_(model) {
  if (!splits_) {
    CheckShares(recipe_.train, processes_);
    return;
  }
  CheckParts("model.heads", "heads", model.Config().heads, processes_);
  // Other samples may be shorter still: TakePart looks again.
  TokenBatch shortest =
      DrawBatch(*recipe_.task.sequence, seed_, Split::kTrain, 0, 1, recipe_.task.train_length_min);
  TakePart(shortest);
}

SequencePart SequenceTraining::TakePart(TokenBatch& batch) const {
  SequencePart part{batch.tokens.size(1), processes_.Rank(), processes_.Size(),
                    std::bind_front(&Processes::Exchange, processes_)};
  CheckParts("task.train_length", "tokens in a sequence", part.length, processes_);
  const auto [begin, count] = part.Own(part.length);
  // Padding is a token like others here: no scored token sees it.
  const at::Tensor padding = at::arange(part.length) >= batch.lengths.unsqueeze(1);
  batch = {batch.tokens.masked_fill(padding, 0).narrow(1, begin, count),
           batch.labels.narrow(1, begin, count),
           {}};
  return part;
}

Answers SequenceTraining::AnswersOf(const SequenceScore& score) const {
  const Scoring scoring = recipe_.task.sequence->GetScoring();
  if (!splits_ || scoring != Scoring::kExact) return score.Of(scoring);
  // A sequence is exact if all its parts are. The first process counts it.
  const std::vector<std::int64_t> exact(score.is_exact.begin(), score.is_exact.end());
  const at::Tensor wrong = 1 - at::tensor(exact, at::kLong);
  processes_.Sum(wrong);
  if (!processes_.First()) return {0, 0, score.loss};
  return {score.sequences, wrong.eq(0).sum().item<std::int64_t>(), score.loss};
}

Trainable::StepScore SequenceTraining::LossAndGradient(std::int64_t step,
                                                       const GradientReady& ready) {
  std::vector<TokenBatch> parts = TrainingParts(recipe_, seed_, step, processes_);
  std::vector<SequencePart> own;
  if (splits_) {
    for (TokenBatch& part : parts) own.push_back(TakePart(part));
  }
  // The mean over all that is scored in the step, in however many parts and by however many
  // processes it is worked on.
  at::Tensor scored = at::zeros({}, at::kLong);
  for (const TokenBatch& part : parts) scored += part.labels.ne(kNotScored).sum();
  processes_.Sum(scored);
  GradientOptions options;
  options.denominator = scored.item<std::int64_t>();
  StepScore result;
  for (std::size_t part = 0; part < parts.size(); ++part) {
    if (part + 1 == parts.size()) options.ready = ready;
    if (splits_) options.part = &own[part];
    const SequenceScore score = model_.LossAndGradient(parts[part], options);
    options.accumulate = true;
    result.loss += score.loss / static_cast<double>(options.denominator);
    const Answers answers = AnswersOf(score);
    result.hits += answers.hits;
    result.count += answers.asked;
  }
  return result;
}

Trainable::Observation SequenceTraining::Observe() {
  if (splits_) return {};
  const SequenceTask& task = *recipe_.task.sequence;
  const std::int64_t n = recipe_.task.train_length_max;
  constexpr std::int64_t kMost = 32;
  // No more than a part of a step, for which there is memory.
  const std::int64_t samples = std::min({kMost, recipe_.train.batch / recipe_.train.accumulate,
                                         task.Available(Split::kValidation, n)});
  if (samples < 1) return {};
  return model_.Observe(DrawBatch(task, kEvaluationSeed, Split::kValidation, 0, samples, n));
}

Trainable::Values SequenceTraining::Validate(const std::atomic<bool>& stop) {
  const Scoring scoring = recipe_.task.sequence->GetScoring();
  Values values;
  const bool is_sum = scoring != Scoring::kBleu;  // else each process reads all samples
  for (const std::int64_t n : ValidationLengths(recipe_)) {
    const std::int64_t samples = recipe_.task.Samples(recipe_.train.validate_samples, n);
    const auto [first, own] =
        is_sum ? processes_.Share(samples) : std::pair(std::int64_t{0}, samples);
    // Right answers, all answers, the loss in steps of 2^-20 nats (integers have the same sum in
    // any order), the number of processes that were stopped, and of those whose loss is no number.
    const at::Tensor sums = at::zeros({5}, at::kLong);
    auto* sum = sums.mutable_data_ptr<std::int64_t>();
    Answers answers;
    try {
      const SequenceLengthScore score =
          EvaluateSamples(model_, *recipe_.task.sequence, Split::kValidation, n, first, own, stop);
      answers = score.answers;
      sum[0] = score.answers.hits;
      sum[1] = score.answers.asked;
      const double steps = score.answers.loss * 0x1p20;
      const bool fits = std::abs(steps) < 0x1p62;
      sum[2] = fits ? static_cast<std::int64_t>(std::llround(steps)) : 0;
      sum[4] = fits ? 0 : 1;
    } catch (const Interrupted&) {
      sum[3] = 1;
    }
    processes_.Sum(sums);
    if (sum[3] > 0) throw Interrupted("validation stopped");
    if (is_sum) answers = {sum[1], sum[0], static_cast<double>(sum[2]) * 0x1p-20};
    if (sum[4] > 0) answers.loss = std::numeric_limits<double>::quiet_NaN();
    values.emplace_back(n, answers.Value(scoring));
  }
  return values;
}

std::string ComputeOf(const std::filesystem::path& folder) {
  const nlohmann::ordered_json settings = RunFolder(folder).Settings();
  const auto model = settings.find("model");
  if (model == settings.end() || !model->is_object()) return "";
  const auto compute = model->find("compute");
  return compute != model->end() && compute->is_string() ? compute->get<std::string>() : "";
}

DecoderConfig ModelOf(const TrainingJob& job) {
  DecoderConfig config = job.recipe->Decoder(*job.method);
  const std::string begun = ComputeOf(job.folder);
  if (config.compute == "auto" && !begun.empty()) config.compute = begun;
  return config;
}

std::unique_ptr<SequenceModel> MakeModel(const TrainingJob& job) {
  std::string device = job.recipe->train.device;
  if (device == "cuda") device = fmt::format("cuda:{}", job.processes.LocalRank());
  return MakeSequenceModel(job.recipe->model.name, ModelOf(job), job.seed, DeviceNamed(device));
}

void ClaimSequenceFolder(const TrainingJob& job, const SequenceModel& model) {
  RunFolder(job.folder).Claim(Settings(job, model));
}

void RequireSamples(const TaskConfig& task, Split split, const std::vector<std::int64_t>& lengths,
                    std::int64_t samples) {
  const bool takes_all = task.GetScoring() == Scoring::kBleu;
  for (const std::int64_t n : lengths) {
    const std::int64_t last = takes_all ? 0 : task.Samples(samples, n) - 1;
    task.sequence->Draw(kEvaluationSeed, split, last, n);
  }
}

namespace {

// Before the folder is taken.
void CheckSamples(const Recipe& recipe) {
  const TaskConfig& task = recipe.task;
  task.sequence->Draw(1, Split::kTrain, 0, task.train_length_max);
  if (recipe.train.validate_every == 0) return;
  RequireSamples(task, Split::kValidation, ValidationLengths(recipe),
                 recipe.train.validate_samples);
}

}  // namespace

void TrainSequences(const TrainingJob& job, SequenceModel& model,
                    const std::function<void(const JobStatus&)>& report,
                    const std::atomic<bool>& stop) {
  const RunFolder folder(job.folder);
  // A run that has begun has what it needs in its folder.
  if (!job.start.empty() && job.processes.First() && !folder.Finished() && !folder.Begun()) {
    if (!std::filesystem::exists(job.start)) {
      const std::filesystem::path study = job.recipe->train.start;
      throw UsageError(
          job.start.string() + ": no weights to start from" +
          (study.empty() ? ""
                         : fmt::format("; `tsallis reproduce {} --scale {}` makes them",
                                       study.parent_path().string(), study.filename().string())));
    }
    StartFrom(job.start, model);
  }
  if (!folder.Finished()) CheckSamples(*job.recipe);
  SequenceTraining training(job, model);
  Train(training, PlanOf(job, Settings(job, model)), report, stop);
  if (job.recipe->train.validate_every == 0) return;
  if (job.processes.First()) LoadParameters(folder.BestPath(), model.Parameters());
  job.processes.Broadcast(model.FlatParameters());
}

}  // namespace tsallis::lab
