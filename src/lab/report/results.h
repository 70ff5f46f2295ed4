// A finished study hands these to its report: plain data, no tensors.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lab/eval/head_data.h"
#include "lab/tasks/metric.h"

namespace tsallis::lab {

// One method at one length, over the seeds that ran, by the study's metric.
struct ResultRow {
  std::string method;
  std::int64_t n = 0;
  double mean = 0.0;
  double deviation = 0.0;  // sample standard deviation over seeds, 0 for one seed
  double best = 0.0;
  int seeds = 0;
  std::optional<double> paper;
  std::vector<std::pair<std::uint64_t, double>> by_seed = {};  // seed and value
  // Test samples of a seed that asked one question each, the same samples for every seed; 0 where
  // the value is no share of right answers.
  std::int64_t samples = 0;
};

// How far the scores of a head lie apart after some steps of training, and what they cannot exceed
// (LogitSpread), over seeds.
struct SpreadRow {
  std::string method;
  std::int64_t step = 0;
  double mean = 0.0, least = 0.0, most = 0.0;
  double bound_mean = 0.0, bound_least = 0.0, bound_most = 0.0;
};

// Entropy of the attention weights of one method at one length, averaged over seeds and over sets,
// or over all heads and scored tokens.
struct EntropyRow {
  std::string method;
  std::int64_t n = 0;
  double entropy_mean = 0.0;     // nats
  double entropy_std = 0.0;      // over seeds
  double normalised_mean = 0.0;  // entropy / ln of what the query sees; 0 where that is one key
  double support_mean = 0.0;     // entries with weight > 0
};

// The loss of one method at the positions [begin, end) of samples of length n.
struct PositionRow {
  std::string method;
  std::int64_t n = 0;
  std::int64_t begin = 0, end = 0;
  double mean = 0.0;       // nats
  double deviation = 0.0;  // over seeds
};

// How much of the loss's gradient arrives at a layer after some steps of training, and how many
// keys its heads give weight, means over seeds.
struct FlowRow {
  std::string method;
  std::int64_t step = 0;
  std::int64_t layer = 0;
  double gradient = 0.0;  // norm of a token's gradient, mean over tokens
  double keys = 0.0;      // mean over heads and scored tokens
};

// One method at one length, of the samples of one kind (SequenceTask::Groups()), over seeds.
struct GroupRow {
  std::string method;
  std::int64_t n = 0;
  std::string group;
  double mean = 0.0;       // %
  double deviation = 0.0;  // over seeds
};

// A further measure of one method at one length, beside the study's metric, over seeds.
struct MeasureRow {
  std::string method;
  std::int64_t n = 0;
  std::string measure;  // for people, with its unit: "chrF", "loss (nats a token)"
  double mean = 0.0;
  double deviation = 0.0;  // over seeds
};

// Attention weights on the `items` largest items of each of `samples` sets, ascending: the last
// column belongs to the largest item, where a sharp head puts all its weight.
struct HeatMap {
  std::string method;
  std::int64_t n = 0;
  std::int64_t samples = 0;
  std::int64_t items = 0;
  std::vector<float> weights;  // [samples, items]
};

// Observations of the heads of one method's sequence model, of its first seed: heads of different
// seeds have nothing in common.
struct MethodHeads {
  std::string method;
  HeadObservations heads;
};

// A sample whose attention is drawn token by token.
struct DrawnSample {
  std::int64_t n = 0;
  std::vector<std::string> words;  // [tokens]
  std::vector<bool> scored;        // [tokens]: whether the model answers there
};

struct MethodInfo {
  std::string name;   // as in the recipe: "asentmax-3"
  std::string label;  // for people: "ASEntmax, γ = 3"
  // Figures group and colour methods by these, from the recipe.
  std::string map = {};             // "entmax"
  std::string length_scaling = {};  // "none", "scalar"
  // The recipe's first method that attends as this one does, but for positions and training.
  std::string like = {};
  std::string variant = {};  // tells those apart: "rope", "weight decay"; empty: nothing does
  bool headline = false;     // whether the first figure shows it where all are too many
};

struct StudyResults {
  std::string study;  // "max-retrieval"
  std::string title;
  std::string source;  // where the paper's figures stand
  std::string scale;   // "quick", "paper"
  std::string commit;
  std::string processor;
  std::string command;              // what regenerates it
  std::string baseline;             // the method that others are held against; empty: none
  std::string figure = "accuracy";  // what the report begins with; see Recipe
  std::string finding;              // one sentence; see Finding(), FlowFinding()
  std::string protocol;             // model, training, seeds, evaluation; parted by "; "
  double train_seconds = 0.0;       // summed over jobs
  Metric metric;                    // of every row
  std::vector<MethodInfo> methods;  // in the recipe's order
  std::vector<ResultRow> rows;
  std::vector<EntropyRow> entropies;
  std::vector<PositionRow> positions;
  std::vector<GroupRow> groups;
  std::vector<MeasureRow> measures;
  std::vector<SpreadRow> spreads;
  std::vector<FlowRow> flows;
  std::vector<HeatMap> heat_maps;
  std::vector<MethodHeads> heads;
  std::vector<DrawnSample> samples;
  // Jobs that failed, with the reason; their seeds are missing above. Not part of the report.
  std::vector<std::string> failures;
  std::size_t unfinished = 0;  // jobs that are missing above, failed ones included; as failures
};

// The methods in the order of `results.methods`, followed by those that only rows name.
std::vector<MethodInfo> MethodsInOrder(const StudyResults& results);

// The row of a method at a length, or null.
const ResultRow* FindRow(const StudyResults& results, const std::string& method, std::int64_t n);

// How many seeds the means are of: "one seed", "3 seeds", "2 to 3 seeds"; "no seeds" without rows.
std::string SeedText(const StudyResults& results);

}  // namespace tsallis::lab
