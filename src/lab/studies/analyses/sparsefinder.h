// The parts of the study sparsefinder: heads and their projections (sparsefinder_heads.cc), which
// pairs are foretold (sparsefinder_edges.cc), what the model makes of them and how long it takes
// (sparsefinder_runs.cc), what of it the page shows (sparsefinder_page.cc). The study:
// sparsefinder.cc.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lab/base/random.h"
#include "lab/nn/decoder.h"
#include "lab/report/analysis.h"
#include "lab/studies/analyses/analysis.h"
#include "lab/tasks/metric.h"
#include "lab/tasks/sequence.h"

namespace tsallis::lab::sparsefinder {

// ---- heads

// One head on one sample of n tokens.
struct HeadSample {
  at::Tensor q, k;     // [n, head_dim] float32
  at::Tensor support;  // [n, n] bool: pairs that have weight
  at::Tensor weights;  // [n, n] float32; undefined in samples for training
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

// [layers][heads]. UsageError for heads whose map gives weight to every pair, and for those that
// LayerInput::Arrays does not serve.
std::vector<std::vector<HeadData>> Collect(Decoder& model, const Samples& samples);

// Squared distances of projected queries and keys, [queries, keys].
at::Tensor Distances(const at::Tensor& q, const at::Tensor& k, const at::Tensor& projection);

// W, [4, head_dim]: near each other are W q and W k where the pair has weight.
at::Tensor TrainProjection(const std::vector<HeadSample>& training, std::int64_t steps,
                           RandomStream random);

// ---- edges

// The keys before a query, itself among them, that every learned method joins with it.
constexpr std::int64_t kNear = 3;

at::Tensor Visible(std::int64_t n);  // [n, n] bool: j <= i

// One way to foretell which keys get weight in a head, at one setting.
struct Predictor {
  std::string family;  // "tokens"; "global": with first keys for all; "blocks": of `chunk` tokens
  std::string method;
  double setting = 0.0;
  // q, k: [n, head_dim] float32 -> [n, n] bool, true: joined; no key behind its query.
  std::function<at::Tensor(const at::Tensor& q, const at::Tensor& k)> edges;
  bool fixed = false;  // a pattern: known before queries and keys are
  std::int64_t chunk = 0;
  // blocks: [ceil(n / chunk), the same] bool, the blocks that hold all edges; else null.
  std::function<at::Tensor(const at::Tensor& q, const at::Tensor& k)> blocks = nullptr;
};

// Patterns that look at no key; the same of every head. n: tokens, about.
std::vector<Predictor> PatternsOf(std::int64_t n, std::uint64_t seed);

// Those that a projection gives, from the queries and keys of training; the same methods and
// settings, in the same order, for every head.
std::vector<Predictor> LearnedOf(const std::vector<HeadSample>& training,
                                 const at::Tensor& projection, bool quick,
                                 const RandomStream& random);

// ---- runs

// Of every head and way: [layers][heads][ways], the same ways everywhere.
using Predictors = std::vector<std::vector<std::vector<Predictor>>>;

struct RestrictedRun {
  Answers answers, tokens;  // as the task scores them; the same token by token
  double sparsity = 0.0;    // share of the pairs that were left out
};

// The model on the test samples where every head sees what way `way` joins, from the queries and
// keys of this very run.
RestrictedRun RunRestricted(Decoder& model, const Samples& samples, const Predictors& predictors,
                            std::size_t way);
// The same with all pairs.
RestrictedRun RunFree(Decoder& model, const Samples& samples);

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
std::vector<Timing> TimeBlocks(Decoder& model, const TokenBatch& sample,
                               const Predictors& predictors, const std::vector<std::size_t>& ways,
                               const std::vector<std::int64_t>& block, int times);

// ---- page

// What a table says of a method at a sparsity, between its settings; none where it does not go
// there.
struct MethodValue {
  std::string family, method;
  std::optional<double> value;
};

// Of every method, in the order of a table with the columns "family", "method" and "sparsity"; of
// one with "layer" the rows "all". sparsity: %.
std::vector<MethodValue> ValuesAt(const DataTable& table, const std::string& column,
                                  double sparsity);
// Of 90, 80, ... % the one where most methods on single pairs have a value, the largest of equals.
double CommonSparsity(const DataTable& edges);
// Exact attention's time at the longest length, and the fastest of every method there; nothing of
// samples that are too short to be timed by blocks.
std::vector<Fact> TimeFacts(const DataTable& time);
std::vector<AnalysisFigure> FiguresOf(std::size_t layers, const Metric& metric,
                                      const DataTable& time);

}  // namespace tsallis::lab::sparsefinder
