// The parts of the study sparsefinder: models (sparsefinder_models.cc), their heads and the
// projections of these (sparsefinder_heads.cc), the predicted pairs (sparsefinder_edges.cc), scores
// and times of the model under them (sparsefinder_runs.cc), and the page (sparsefinder_page.cc).
// The study itself is sparsefinder.cc.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lab/base/random.h"
#include "lab/nn/layer_view.h"
#include "lab/nn/sequence_model.h"
#include "lab/report/analysis.h"
#include "lab/studies/analyses/analysis.h"
#include "lab/tasks/metric.h"
#include "lab/tasks/sequence.h"

namespace tsallis::lab::sparsefinder {

// ---- models

at::Tensor Visible(Sight sight, std::int64_t queries, std::int64_t keys);  // bool

std::string NameOf(const LayerPlace& place);  // "layer 1", "encoder 1"

// A layer on one sample: [heads, tokens, head_dim] float32.
struct LayerQueriesKeys {
  std::size_t layer = 0;  // in the order of the model's places
  at::Tensor q, k;
};

// What a layer has of one sequence. UsageError for heads whose map gives weight to every pair, and
// for those that LayerInput::Arrays does not serve.
LayerQueriesKeys QueriesKeysOf(const SequenceModel& model, const LayerInput& input,
                               std::int64_t sequence);

// Takes queries and keys of one sample, returns the visible pairs: [heads, queries, keys] bool.
using Joined = std::function<at::Tensor(const LayerQueriesKeys&)>;

// The score of a model whose heads see the joined pairs alone, from the queries and keys that it
// has then; null: all pairs.
SequenceScore Evaluate(SequenceModel& model, const TokenBatch& batch, const Joined& joined);

// ---- heads

// One head on one sample.
struct HeadSample {
  at::Tensor q, k;     // [queries, head_dim], [keys, head_dim] float32
  at::Tensor support;  // [queries, keys] bool: pairs that have weight
  at::Tensor weights;  // [queries, keys] float32; undefined in samples for training
};

struct HeadData {
  std::vector<HeadSample> training, test;
};

// Samples of a task at one length: [0, training) to train projections, then `test` others.
struct Samples {
  const SequenceTask& task;
  std::int64_t length = 0, training = 0, test = 0;

  TokenBatch Draw(std::int64_t first, std::int64_t count) const;
};

// [layers][heads].
std::vector<std::vector<HeadData>> Collect(SequenceModel& model, const Samples& samples);

// Squared distances of projected queries and keys, [queries, keys].
at::Tensor Distances(const at::Tensor& q, const at::Tensor& k, const at::Tensor& projection);

// W, [4, head_dim]: near each other are W q and W k where the pair has weight.
at::Tensor TrainProjection(Sight sight, const std::vector<HeadSample>& training, std::int64_t steps,
                           RandomStream random);

// ---- edges

// The keys before a query, itself among them, that every method that looks at keys joins with it;
// of heads that see all of their sequence those on the other side too, of heads that see another
// sequence none.
constexpr std::int64_t kNear = 3;

// One way to foretell which keys get weight in a head, at one setting.
struct Predictor {
  std::string family;  // "tokens"; "global": with first keys for all; "blocks": of `chunk` tokens
  std::string method;
  double setting = 0.0;
  // q, k: [queries, head_dim], [keys, head_dim] float32 -> [queries, keys] bool, true: joined; none
  // that the query does not see.
  std::function<at::Tensor(const at::Tensor& q, const at::Tensor& k)> edges;
  bool fixed = false;  // a pattern: known before queries and keys are
  std::int64_t chunk = 0;
  // blocks: [ceil(queries / chunk), ceil(keys / chunk)] bool, those that hold all edges; else null.
  std::function<at::Tensor(const at::Tensor& q, const at::Tensor& k)> blocks = nullptr;
};

// Patterns that look at no key; the same of every head. n: tokens, about.
std::vector<Predictor> PatternsOf(Sight sight, std::int64_t n, std::uint64_t seed);

// Those that a projection gives, from the queries and keys of training, and two known ones that
// group whole queries and keys; the same methods and settings, in the same order, for every head.
std::vector<Predictor> LearnedOf(Sight sight, const std::vector<HeadSample>& training,
                                 const at::Tensor& projection, bool quick,
                                 const RandomStream& random);

// ---- runs

// The predictors of every head and way: [layers][heads][ways], the same ways everywhere.
using Predictors = std::vector<std::vector<std::vector<Predictor>>>;

// The metric of answers under restricted attention: the task's, but for translations the loss of
// their references, since nothing is written.
inline Metric MetricOf(const SequenceTask& task) {
  for (const Metric& metric : task.Metrics()) {
    if (metric.AddsUp()) return metric;
  }
  return {};
}

// Sums over the test samples, under what Evaluate() has as `joined`.
SequenceScore Run(SequenceModel& model, const Samples& samples, const Joined& joined);

struct RestrictedRun {
  SequenceScore sums;
  double sparsity = 0.0;  // share of the pairs that were left out
};

// The model on the test samples where every head sees what way `way` joins, from the queries and
// keys of this very run.
RestrictedRun RunRestricted(SequenceModel& model, const Samples& samples,
                            const Predictors& predictors, std::size_t way);

struct Timing {
  std::string kernel, masked_kernel;  // of the last layer
  double sparsity = 0.0;              // share of the pairs in blocks that were left out
  // Milliseconds of the processor, all layers.
  double exact = 0.0, foretelling = 0.0, masked = 0.0;
  double error = 0.0;  // |out - exact out| / |exact out|, mean over layers
};

// Times of attention of all heads on one sample, and of foretelling blocks of `block` tokens (0 for
// patterns) and attending to these alone: medians of `times` calls on one thread, layer by layer in
// one run.
std::vector<Timing> TimeBlocks(SequenceModel& model, const TokenBatch& sample,
                               const Predictors& predictors, const std::vector<std::size_t>& ways,
                               const std::vector<std::int64_t>& block, int times);

// ---- page

// The value of a method at a sparsity, interpolated between its settings in a table; none where
// these do not reach.
struct MethodValue {
  std::string family, method;
  std::optional<double> value;
};

// The values of every method, in the order of a table with the columns "family", "method" and
// "sparsity"; one that begins with "layer" gives its rows "all". sparsity: %.
std::vector<MethodValue> ValuesAt(const DataTable& table, const std::string& column,
                                  double sparsity);
// The one of 90, 80, ... % where most methods on single pairs have a value, the largest of equals.
double CommonSparsity(const DataTable& edges);
// Exact attention's time at the longest length, and the fastest of every method there; nothing of
// samples that are too short to be timed by blocks.
std::vector<Fact> TimeFacts(const DataTable& time);
void AddFigures(const std::vector<LayerPlace>& layers, const Metric& metric,
                AnalysisResult& result);

// The whole of it.
AnalysisResult Study(const AnalysisContext& context);

}  // namespace tsallis::lab::sparsefinder
