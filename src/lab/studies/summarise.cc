#include "lab/studies/summarise.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <set>

#include "lab/eval/evaluate_sequences.h"
#include "lab/tasks/sequence_batch.h"

namespace tsallis::lab {
namespace {

double Mean(const std::vector<double>& values) {
  double sum = 0.0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

double Deviation(const std::vector<double>& values) {
  if (values.size() < 2) return 0.0;
  double sum = 0.0;
  for (const double value : values) sum += (value - Mean(values)) * (value - Mean(values));
  return std::sqrt(sum / static_cast<double>(values.size() - 1));
}

EntropyRow SetEntropy(const std::string& method, std::int64_t n,
                      const std::vector<const LengthScore*>& scores) {
  std::vector<double> entropy;
  std::vector<double> support;
  for (const LengthScore* score : scores) {
    entropy.push_back(score->entropy);
    support.push_back(score->support);
  }
  // A single item has no entropy to normalise.
  const double normalised = n > 1 ? Mean(entropy) / std::log(static_cast<double>(n)) : 0.0;
  return {method, n, Mean(entropy), Deviation(entropy), normalised, Mean(support)};
}

// A job's mean over its heads is one value.
void AddSequenceEntropy(const std::string& method, std::int64_t n,
                        const std::vector<const Job*>& jobs, std::vector<EntropyRow>& rows) {
  std::vector<double> entropy;
  std::vector<double> normalised;
  std::vector<double> support;
  for (const Job* job : jobs) {
    const LengthHeads* heads = job->heads.At(n);
    if (heads == nullptr) continue;
    const auto values = [&](const char* quantity) {
      std::vector<double> found;
      for (const HeadNumber& number : heads->numbers) {
        if (number.quantity == quantity) found.push_back(number.mean);
      }
      return found;
    };
    const auto mean = [&](const char* quantity) {
      const std::vector<double> found = values(quantity);
      return found.empty() ? 0.0 : Mean(found);
    };
    if (values("entropy").empty()) continue;  // heads that are described by other numbers
    entropy.push_back(mean("entropy"));
    normalised.push_back(mean("normalised entropy"));
    support.push_back(mean("support"));
  }
  if (entropy.empty()) return;
  rows.push_back({method, n, Mean(entropy), Deviation(entropy), Mean(normalised), Mean(support)});
}

void AddPositions(const std::string& method, std::int64_t n,
                  const std::vector<const LengthScore*>& scores, std::vector<PositionRow>& rows) {
  for (std::size_t bin = 0; bin < scores[0]->by_position.size(); ++bin) {
    std::vector<double> losses;
    for (const LengthScore* score : scores) {
      if (bin < score->by_position.size()) {
        losses.push_back(score->by_position[bin].Value(Scoring::kLoss));
      }
    }
    rows.push_back({method, n, PositionBin(bin), std::min(n, PositionBin(bin + 1)), Mean(losses),
                    Deviation(losses)});
  }
}

void AddGroups(const std::string& method, std::int64_t n, const std::vector<std::string>& names,
               const std::vector<const LengthScore*>& scores, std::vector<GroupRow>& rows) {
  for (std::size_t group = 0; group < names.size(); ++group) {
    std::vector<double> values;
    for (const LengthScore* score : scores) {
      if (group >= score->by_group.size() || score->by_group[group].asked == 0) continue;
      values.push_back(score->by_group[group].Value(Scoring::kExact));
    }
    if (values.empty()) continue;  // not asked at this length
    rows.push_back({method, n, names[group], Mean(values), Deviation(values)});
  }
}

void AddMeasures(const std::string& method, std::int64_t n,
                 const std::vector<const LengthScore*>& scores, std::vector<MeasureRow>& rows) {
  for (std::size_t i = 0; i < scores[0]->measures.size(); ++i) {
    std::vector<double> values;
    for (const LengthScore* score : scores) values.push_back(score->measures.at(i).second);
    rows.push_back({method, n, scores[0]->measures[i].first, Mean(values), Deviation(values)});
  }
}

// A value that the jobs observed, by step, of those that have it.
std::map<std::int64_t, std::vector<double>> ObservedValues(const std::vector<const Job*>& jobs,
                                                           const std::string& name) {
  std::map<std::int64_t, std::vector<double>> by_step;
  for (const Job* job : jobs) {
    for (const Observed& observed : job->observed) {
      const auto found = observed.values.find(name);
      if (found != observed.values.end()) by_step[observed.step].push_back(found->second);
    }
  }
  return by_step;
}

void AddSpreads(const std::string& method, const std::vector<const Job*>& jobs,
                std::vector<SpreadRow>& rows) {
  const auto bounds = ObservedValues(jobs, "bound");
  for (const auto& [step, spreads] : ObservedValues(jobs, "spread")) {
    const auto found = bounds.find(step);
    if (found == bounds.end()) continue;
    const auto [least, most] = std::minmax_element(spreads.begin(), spreads.end());
    const auto [bound_least, bound_most] =
        std::minmax_element(found->second.begin(), found->second.end());
    rows.push_back({method, step, Mean(spreads), *least, *most, Mean(found->second), *bound_least,
                    *bound_most});
  }
}

void AddFlows(const std::string& method, const std::vector<const Job*>& jobs,
              std::vector<FlowRow>& rows) {
  for (std::int64_t layer = 0;; ++layer) {
    const auto gradients = ObservedValues(jobs, "gradient " + std::to_string(layer));
    const auto keys = ObservedValues(jobs, "keys " + std::to_string(layer));
    if (gradients.empty()) return;
    for (const auto& [step, values] : gradients) {
      const auto found = keys.find(step);
      if (found == keys.end()) continue;
      rows.push_back({method, step, layer, Mean(values), Mean(found->second)});
    }
  }
}

// The observations of the heads at these lengths, in their order.
HeadObservations Known(const HeadObservations& all, const std::vector<std::int64_t>& lengths,
                       const std::vector<std::int64_t>& map_lengths) {
  HeadObservations known;
  for (const std::int64_t n : lengths) {
    if (const LengthHeads* heads = all.At(n)) known.lengths.push_back(*heads);
  }
  for (const std::int64_t n : map_lengths) {
    for (const AttentionMap& map : all.maps) {
      if (map.n == n) known.maps.push_back(map);
    }
  }
  return known;
}

DrawnSample SampleAt(const SequenceTask& task, std::int64_t n) {
  const Sample sample = task.Draw(kEvaluationSeed, Split::kTest, 0, n);
  DrawnSample drawn{.n = n, .words = {}, .scored = {}};
  for (std::size_t i = 0; i < sample.tokens.size(); ++i) {
    drawn.words.push_back(task.Word(sample.tokens[i]));
    drawn.scored.push_back(sample.labels[i] != kNotScored);
  }
  return drawn;
}

// Decoders: how they attend, without positions.
DecoderConfig WithoutPositions(DecoderConfig decoder) {
  decoder.attention.positions = Positions();
  for (AttentionOverride& change : decoder.overrides) {
    change.attention.positions = Positions();
    change.given.erase("positions");
  }
  return decoder;
}

bool AttendAlike(const Recipe& recipe, const MethodConfig& a, const MethodConfig& b) {
  if (!recipe.task.sequence) {
    return static_cast<const SetAttentionConfig&>(a) == static_cast<const SetAttentionConfig&>(b);
  }
  return WithoutPositions(recipe.Decoder(a)) == WithoutPositions(recipe.Decoder(b));
}

MethodInfo InfoOf(const Recipe& recipe, const MethodConfig& method) {
  const std::vector<std::string>& headline = recipe.headline;
  MethodInfo info{
      .name = method.name,
      .label = method.label,
      .variant = method.variant,
      .headline = std::find(headline.begin(), headline.end(), method.name) != headline.end()};
  if (recipe.task.sequence) {
    const AttentionConfig attention = recipe.Decoder(method).attention;
    info.map = attention.map;
    info.length_scaling = attention.length_scaling.kind;
    if (info.variant.empty()) info.variant = attention.positions.kind;
  } else {
    info.map = method.map;
    info.length_scaling =
        SetLengthScalings()[static_cast<std::size_t>(method.length_scaling.kind)].name;
  }
  info.like =
      std::find_if(recipe.methods.begin(), recipe.methods.end(), [&](const MethodConfig& other) {
        return AttendAlike(recipe, method, other);
      })->name;
  return info;
}

}  // namespace

void Summarise(const Recipe& recipe, const TaskConfig& task, bool compare,
               const std::vector<const MethodConfig*>& methods, const std::vector<Job>& jobs,
               StudyResults& results) {
  std::set<std::int64_t> drawn;  // lengths whose maps show single tokens
  for (const MethodConfig* method : methods) {
    std::vector<const Job*> own;
    std::vector<std::size_t> places;  // of the method among the job's
    for (const Job& job : jobs) {
      const auto at = std::find(job.evaluates.begin(), job.evaluates.end(), method);
      if (at == job.evaluates.end()) continue;
      own.push_back(&job);
      places.push_back(static_cast<std::size_t>(at - job.evaluates.begin()));
    }
    if (own.empty()) continue;  // of what is finished so far
    results.methods.push_back(InfoOf(recipe, *method));
    for (std::size_t l = 0; l < task.eval_lengths.size(); ++l) {
      const std::int64_t n = task.eval_lengths[l];
      std::vector<const LengthScore*> scores;
      std::vector<double> values;
      for (std::size_t j = 0; j < own.size(); ++j) {
        scores.push_back(&own[j]->scores[places[j]][l]);
        values.push_back(scores[j]->answers.Value(task.GetScoring()));
      }
      ResultRow row{method->name,
                    n,
                    Mean(values),
                    Deviation(values),
                    task.GetMetric().higher_is_better
                        ? *std::max_element(values.begin(), values.end())
                        : *std::min_element(values.begin(), values.end()),
                    static_cast<int>(values.size()),
                    std::nullopt};
      for (std::size_t j = 0; j < own.size(); ++j)
        row.by_seed.emplace_back(own[j]->seed, values[j]);
      if (task.GetScoring() == Scoring::kExact) {
        row.samples = scores[0]->answers.asked;
        for (const LengthScore* score : scores) {
          row.samples = std::min(row.samples, score->answers.asked);
        }
      }
      // The papers' figures stand at the recipe's own lengths; a scale may evaluate fewer of them.
      const auto& lengths = recipe.task.eval_lengths;
      const auto column = std::find(lengths.begin(), lengths.end(), n) - lengths.begin();
      if (compare && column < static_cast<std::ptrdiff_t>(method->paper.size())) {
        row.paper = method->paper[static_cast<std::size_t>(column)];
      }
      results.rows.push_back(row);
      AddPositions(method->name, n, scores, results.positions);
      AddMeasures(method->name, n, scores, results.measures);
      if (task.sequence)
        AddGroups(method->name, n, task.sequence->Groups(), scores, results.groups);
      if (task.sequence) {
        if (method->name == own[0]->trains->name) {
          AddSequenceEntropy(method->name, n, own, results.entropies);
        }
        continue;
      }
      results.entropies.push_back(SetEntropy(method->name, n, scores));
      if (!scores[0]->heat.empty()) {
        results.heat_maps.push_back({method->name, n, kHeatSets, kHeatItems, scores[0]->heat});
      }
    }
    if (method->name != own[0]->trains->name) continue;  // what follows is of the training
    AddSpreads(method->name, own, results.spreads);
    AddFlows(method->name, own, results.flows);
    const HeadObservations heads = Known(own[0]->heads, task.eval_lengths, own[0]->map_lengths);
    if (heads.lengths.empty()) continue;
    for (const AttentionMap& map : heads.maps) {
      if (map.cell == 1) drawn.insert(map.n);
    }
    results.heads.push_back({method->name, heads});
  }
  for (const std::int64_t n : drawn) results.samples.push_back(SampleAt(*task.sequence, n));
}

}  // namespace tsallis::lab
