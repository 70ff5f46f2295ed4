#include "lab/eval/evaluate_sequences.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "lab/base/errors.h"
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

template <class Sum>
using Parts = std::vector<std::pair<std::int64_t, Sum>>;  // how many were asked, and their sum

// Whole answers, sample by sample.
void AddGroups(const SequenceTask& task, const TokenBatch& batch, const SequenceScore& score,
               Parts<std::int64_t>& groups) {
  const std::int64_t n = batch.tokens.size(1);
  const std::int64_t* tokens = batch.tokens.const_data_ptr<std::int64_t>();
  for (std::size_t i = 0; i < score.is_exact.size(); ++i, tokens += n) {
    auto& [asked, hits] = groups.at(task.GroupOf(tokens, n));
    ++asked;
    hits += score.is_exact[i] ? 1 : 0;
  }
}

void AddPositions(std::int64_t n, const SequenceScore& score, Parts<double>& positions) {
  for (std::size_t i = 0; i < score.losses.size(); ++i) {
    const std::size_t bin = BinOf(static_cast<std::int64_t>(i) % n);
    if (positions.size() <= bin) positions.resize(bin + 1);
    ++positions[bin].first;
    positions[bin].second += score.losses[i];
  }
}

}  // namespace

std::int64_t PositionBin(std::size_t bin) {
  if (bin < 2) return static_cast<std::int64_t>(bin);
  const std::int64_t octave = std::int64_t{1} << (bin / 2);
  return bin % 2 == 0 ? octave : octave + octave / 2;
}

Score NumbersOf(const SequenceScore& sums, Scoring scoring) {
  const bool whole = scoring == Scoring::kExact || scoring == Scoring::kWritten;
  Score numbers = {{"hits", whole ? sums.exact : sums.hits},
                   {"asked", whole ? sums.sequences : sums.scored}};
  if (whole) numbers.update({{"token_hits", sums.hits}, {"tokens", sums.scored}});
  if (scoring == Scoring::kLoss || scoring == Scoring::kWritten) numbers["loss"] = sums.loss;
  return numbers;
}

Score EvaluateSamples(SequenceModel& model, const SequenceTask& task, Split split, std::int64_t n,
                      std::int64_t first, std::int64_t samples, const std::atomic<bool>& stop,
                      std::int64_t beams) {
  Score score = {{"n", n}, {"samples", samples}};
  const Scoring scoring = task.GetScoring();
  const bool writes = scoring == Scoring::kWritten;
  if (writes) samples = std::min(samples, task.Available(split, n) - first);
  const auto tokens =
      static_cast<std::int64_t>(task.Draw(kEvaluationSeed, split, 0, n).tokens.size());
  const std::int64_t chunk = std::max<std::int64_t>(1, kTokens / tokens);
  SequenceScore sums;
  Parts<std::int64_t> groups(task.Groups().size());
  Parts<double> positions;
  for (std::int64_t done = 0; done < samples; done += chunk) {
    if (stop) throw Interrupted("evaluation stopped");
    const std::int64_t count = std::min(chunk, samples - done);
    const TokenBatch batch = DrawBatch(task, kEvaluationSeed, split, first + done, count, n);
    const SequenceScore part = model.Evaluate(batch);
    sums.AddSums(part);
    if (!groups.empty()) AddGroups(task, batch, part, groups);
    if (scoring == Scoring::kLoss) AddPositions(n, part, positions);
  }
  score.update(NumbersOf(sums, scoring));
  if (writes) {
    score.update(ScoreSamples(model, task, split, n, first, samples, beams, stop).of_corpus);
  }
  if (!groups.empty()) score["by_group"] = groups;
  if (!positions.empty()) score["by_position"] = positions;
  return score;
}

Score EvaluateLength(SequenceModel& model, const SequenceTask& task, Split split, std::int64_t n,
                     std::int64_t samples, const std::atomic<bool>& stop) {
  return EvaluateSamples(model, task, split, n, 0, samples, stop, kTestBeams);
}

}  // namespace tsallis::lab
