#include "lab/eval/evaluate_sequences.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "lab/base/errors.h"
#include "lab/base/files.h"
#include "lab/eval/evaluate_translation.h"
#include "lab/tasks/sequence_batch.h"

namespace tsallis::lab {
namespace {

// Tokens that are evaluated at a time: memory does not grow with the number of samples.
constexpr std::int64_t kTokens = 1 << 14;

// The bin of position i.
std::size_t BinOf(std::int64_t i) {
  std::size_t bin = 0;
  while (PositionBin(bin + 1) <= i) ++bin;
  return bin;
}

// Whole answers, sample by sample.
void AddGroups(const SequenceTask& task, const TokenBatch& batch, const SequenceScore& score,
               std::vector<Answers>& groups) {
  const std::int64_t n = batch.tokens.size(1);
  const std::int64_t* tokens = batch.tokens.const_data_ptr<std::int64_t>();
  for (std::size_t i = 0; i < score.is_exact.size(); ++i, tokens += n) {
    groups.at(task.GroupOf(tokens, n)).Add({1, score.is_exact[i] ? 1 : 0, 0.0});
  }
}

}  // namespace

std::int64_t PositionBin(std::size_t bin) {
  if (bin < 2) return static_cast<std::int64_t>(bin);
  const std::int64_t octave = std::int64_t{1} << (bin / 2);
  return bin % 2 == 0 ? octave : octave + octave / 2;
}

SequenceLengthScore EvaluateSamples(SequenceModel& model, const SequenceTask& task, Split split,
                                    std::int64_t n, std::int64_t first, std::int64_t samples,
                                    const std::atomic<bool>& stop, std::int64_t beams) {
  SequenceLengthScore score{.n = n, .samples = samples};
  const bool is_bleu = task.GetScoring() == Scoring::kBleu;
  if (is_bleu) samples = std::min(samples, task.Available(split, n) - first);
  const auto tokens =
      static_cast<std::int64_t>(task.Draw(kEvaluationSeed, split, 0, n).tokens.size());
  const std::int64_t chunk = std::max<std::int64_t>(1, kTokens / tokens);
  const std::size_t groups = task.Groups().size();
  score.by_group.resize(groups);
  for (std::int64_t done = 0; done < samples; done += chunk) {
    if (stop) throw Interrupted("evaluation stopped");
    const std::int64_t count = std::min(chunk, samples - done);
    const TokenBatch batch = DrawBatch(task, kEvaluationSeed, split, first + done, count, n);
    const SequenceScore part = model.Evaluate(batch);
    score.answers.Add(part.Of(is_bleu ? Scoring::kExact : task.GetScoring()));
    if (is_bleu || task.GetScoring() == Scoring::kExact) {
      score.tokens.Add(part.Of(Scoring::kTokens));
    }
    if (groups > 0) AddGroups(task, batch, part, score.by_group);
    if (task.GetScoring() != Scoring::kLoss) continue;
    for (std::size_t i = 0; i < part.losses.size(); ++i) {
      const std::size_t bin = BinOf(static_cast<std::int64_t>(i) % n);
      if (score.by_position.size() <= bin) score.by_position.resize(bin + 1);
      score.by_position[bin].Add({1, 0, part.losses[i]});
    }
  }
  if (is_bleu) {
    const TranslationScores written =
        ScoreOf(TranslateSamples(model, task, split, n, first, samples, beams, stop));
    score.answers.score = written.bleu;
    score.chrf = written.chrf;
  }
  return score;
}

SequenceLengthScore EvaluateLength(SequenceModel& model, const SequenceTask& task, Split split,
                                   std::int64_t n, std::int64_t samples,
                                   const std::atomic<bool>& stop) {
  return EvaluateSamples(model, task, split, n, 0, samples, stop, kTestBeams);
}

void SaveSequenceScores(const std::filesystem::path& path,
                        const std::vector<SequenceLengthScore>& scores) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const SequenceLengthScore& score : scores) {
    rows.push_back({{"n", score.n},
                    {"samples", score.samples},
                    {"hits", score.answers.hits},
                    {"asked", score.answers.asked}});
    if (score.tokens.asked > 0) {
      rows.back()["token_hits"] = score.tokens.hits;
      rows.back()["tokens"] = score.tokens.asked;
    }
    if (score.chrf) {
      rows.back()["loss"] = score.answers.loss;
      rows.back()["bleu"] = score.answers.score;
      rows.back()["chrf"] = *score.chrf;
    }
    for (const Answers& answers : score.by_group) {
      rows.back()["by_group"].push_back({answers.asked, answers.hits});
    }
    if (score.by_position.empty()) continue;
    rows.back()["loss"] = score.answers.loss;
    for (const Answers& answers : score.by_position) {
      rows.back()["by_position"].push_back({answers.asked, answers.loss});
    }
  }
  WriteFileAtomically(path, rows.dump() + "\n");
}

namespace {

// JSON has null for what is no number.
double NumberOf(const nlohmann::json& value) {
  return value.is_number() ? value.get<double>() : std::numeric_limits<double>::quiet_NaN();
}

}  // namespace

std::vector<SequenceLengthScore> LoadSequenceScores(const std::filesystem::path& path) {
  std::ifstream in(path);
  if (!in) return {};
  const nlohmann::json rows = nlohmann::json::parse(in, nullptr, false);
  std::vector<SequenceLengthScore> scores;
  if (!rows.is_array()) return scores;
  for (const nlohmann::json& row : rows) {
    if (!row.is_object()) return {};
    SequenceLengthScore& score = scores.emplace_back();
    score.n = row.value("n", std::int64_t{0});
    score.samples = row.value("samples", std::int64_t{0});
    score.answers = {.asked = row.value("asked", std::int64_t{0}),
                     .hits = row.value("hits", std::int64_t{0}),
                     .loss = row.contains("loss") ? NumberOf(row["loss"]) : 0.0,
                     .score = row.value("bleu", 0.0)};
    if (row.contains("chrf")) score.chrf = row.value("chrf", 0.0);
    score.tokens = {.asked = row.value("tokens", std::int64_t{0}),
                    .hits = row.value("token_hits", std::int64_t{0})};
    for (const nlohmann::json& group : row.value("by_group", nlohmann::json::array())) {
      if (!group.is_array() || group.size() != 2) return {};
      score.by_group.push_back({group[0].get<std::int64_t>(), group[1].get<std::int64_t>(), 0.0});
    }
    for (const nlohmann::json& bin : row.value("by_position", nlohmann::json::array())) {
      if (!bin.is_array() || bin.size() != 2) return {};
      score.by_position.push_back({bin[0].get<std::int64_t>(), 0, NumberOf(bin[1])});
    }
  }
  return scores;
}

std::optional<SequenceLengthScore> FindScore(const std::vector<SequenceLengthScore>& scores,
                                             std::int64_t n, std::int64_t samples) {
  for (const SequenceLengthScore& score : scores) {
    if (score.n == n && score.samples == samples) return score;
  }
  return std::nullopt;
}

}  // namespace tsallis::lab
