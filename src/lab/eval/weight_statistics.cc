#include "lab/eval/weight_statistics.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "lab/base/errors.h"
#include "lab/eval/observe_heads.h"
#include "lab/nn/layer_view.h"
#include "lab/tasks/sequence_batch.h"

namespace tsallis::lab {
namespace {

// Numbers of a block of queries that are held at a time: eight bytes each.
constexpr std::int64_t kNumbers = 1 << 22;
// Queries of a block: a multiple of all of kWeightBlocks.
constexpr std::int64_t kQueries = 128;

double EntropyTerm(double p) { return p > 0.0 ? -p * std::log(p) : 0.0; }

// Counts of one head, over all samples.
struct Counts {
  std::int64_t positive = 0, keys = 0;
  std::array<std::int64_t, 3> blocks = {}, all_blocks = {};
};

// The counts of one layer, over all samples.
struct LayerCounts {
  std::vector<Counts> heads;
  double divergence = 0.0;
  std::int64_t queries = 0;  // that the divergence is the mean of
};

// Queries [begin, end) of a sample of `tokens`.
void CountQueries(const LayerView& view, std::int64_t sample, std::int64_t begin, std::int64_t end,
                  std::int64_t tokens, LayerCounts& counts) {
  const auto queries = static_cast<std::size_t>(end - begin);
  const auto heads = static_cast<double>(counts.heads.size());
  std::vector<double> mean(queries * static_cast<std::size_t>(tokens), 0.0);  // [queries, tokens]
  std::vector<double> entropy(queries, 0.0);                                  // mean over heads
  std::vector<bool> left_out(queries, false);
  for (std::size_t h = 0; h < counts.heads.size(); ++h) {
    Counts& head = counts.heads[h];
    const SparseRows rows = view.Weights(sample, static_cast<std::int64_t>(h), begin, end);
    head.positive += rows.offsets.back();
    for (std::int64_t i = begin; i < end; ++i) head.keys += i + 1;
    for (std::size_t s = 0; s < kWeightBlocks.size(); ++s) {
      const std::int64_t block = kWeightBlocks[s], columns = (tokens + block - 1) / block;
      if (tokens < 2 * block) continue;
      std::vector<bool> some(static_cast<std::size_t>(((end - begin) / block + 1) * columns));
      for (std::int64_t i = begin; i < end; ++i) {
        if (i % block == 0) head.all_blocks[s] += i / block + 1;
        const auto at = static_cast<std::size_t>(i - begin);
        for (auto e = rows.offsets[at]; e < rows.offsets[at + 1]; ++e) {
          const std::int64_t place =
              (i - begin) / block * columns + rows.keys[static_cast<std::size_t>(e)] / block;
          some[static_cast<std::size_t>(place)] = true;
        }
      }
      head.blocks[s] += std::count(some.begin(), some.end(), true);
    }
    for (std::size_t i = 0; i < queries; ++i) {
      double sum = 0.0;
      const auto first = static_cast<std::size_t>(rows.offsets[i]);
      const auto last = static_cast<std::size_t>(rows.offsets[i + 1]);
      for (std::size_t e = first; e < last; ++e) sum += rows.weights[e];
      if (!(sum > 0.0)) {
        left_out[i] = true;
        continue;
      }
      double* row = mean.data() + i * static_cast<std::size_t>(tokens);
      for (std::size_t e = first; e < last; ++e) {
        const double p = rows.weights[e] / sum;
        row[rows.keys[e]] += p / heads;
        entropy[i] += EntropyTerm(p) / heads;
      }
    }
  }
  for (std::size_t i = 0; i < queries; ++i) {
    if (left_out[i]) continue;
    const double* row = mean.data() + i * static_cast<std::size_t>(tokens);
    double together = 0.0;
    for (std::int64_t j = 0; j < tokens; ++j) together += EntropyTerm(row[j]);
    counts.divergence += together - entropy[i];
    ++counts.queries;
  }
}

}  // namespace

WeightStatistics MeasureWeights(Decoder& model, const SequenceTask& task, std::int64_t n,
                                const std::atomic<bool>& stop) {
  WeightStatistics found{
      .n = n, .samples = SamplesToObserve(task, n), .tokens = 0, .heads = {}, .layers = {}};
  const TokenBatch batch = DrawBatch(task, kEvaluationSeed, Split::kTest, 0, found.samples, n);
  model.VisitLayers(batch, [&](const LayerView& view) {
    LayerCounts counts;
    counts.heads.resize(static_cast<std::size_t>(model.Config().heads));
    for (std::int64_t sample = 0; sample < view.rows.Sequences(); ++sample) {
      const auto index = static_cast<std::size_t>(sample);
      const std::int64_t tokens = view.rows.end[index] - view.rows.begin[index];
      found.tokens = std::max(found.tokens, tokens);
      const std::int64_t step = std::max<std::int64_t>(1, kNumbers / tokens / kQueries) * kQueries;
      for (std::int64_t begin = 0; begin < tokens; begin += step) {
        if (stop) throw Interrupted("evaluation stopped");
        CountQueries(view, sample, begin, std::min(tokens, begin + step), tokens, counts);
      }
    }
    for (std::int64_t h = 0; h < model.Config().heads; ++h) {
      const Counts& head = counts.heads[static_cast<std::size_t>(h)];
      HeadWeights weights{
          .layer = view.layer,
          .head = h,
          .alpha = view.Alpha(h),
          .density = static_cast<double>(head.positive) / static_cast<double>(head.keys),
          .blocks = {}};
      for (std::size_t s = 0; s < kWeightBlocks.size(); ++s) {
        if (head.all_blocks[s] == 0) continue;
        weights.blocks[s] =
            static_cast<double>(head.blocks[s]) / static_cast<double>(head.all_blocks[s]);
      }
      found.heads.push_back(weights);
    }
    found.layers.push_back(
        {view.layer,
         counts.queries > 0 ? counts.divergence / static_cast<double>(counts.queries) : 0.0});
  });
  return found;
}

}  // namespace tsallis::lab
