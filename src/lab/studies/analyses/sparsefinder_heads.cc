#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "lab/nn/parameters.h"
#include "lab/studies/analyses/sparsefinder.h"
#include "lab/tasks/sequence_batch.h"
#include "lab/train/optimizer.h"

namespace tsallis::lab::sparsefinder {
namespace {

using at::Tensor;

constexpr std::int64_t kNumbers = 4;    // of a projected query or key
constexpr std::int64_t kQueries = 128;  // of a step of training

// Draws as many pairs without weight as every query has with weight, among those that it sees.
Tensor Negatives(const Tensor& positive, const Tensor& visible, RandomStream& random) {
  Tensor negative = at::zeros_like(positive);
  const auto* has = positive.const_data_ptr<bool>();
  const auto* sees = visible.const_data_ptr<bool>();
  auto* to = negative.mutable_data_ptr<bool>();
  const std::int64_t n = positive.size(1);
  std::vector<std::int64_t> others;
  for (std::int64_t i = 0; i < positive.size(0); ++i) {
    others.clear();
    std::int64_t wanted = 0;
    for (std::int64_t j = 0; j < n; ++j) {
      wanted += has[i * n + j] ? 1 : 0;
      if (sees[i * n + j] && !has[i * n + j]) others.push_back(j);
    }
    const std::int64_t all = std::ssize(others);
    for (std::int64_t c = 0; c < std::min(wanted, all); ++c) {
      std::swap(others[c], others[c + random.Below(all - c)]);
      to[i * n + others[c]] = true;
    }
  }
  return negative;
}

}  // namespace

TokenBatch Samples::Draw(std::int64_t first, std::int64_t count) const {
  return DrawBatch(task, kEvaluationSeed, Split::kTest, first, count, length);
}

std::vector<std::vector<HeadData>> Collect(SequenceModel& model, const Samples& samples) {
  std::vector<std::vector<HeadData>> heads(model.Places().size());
  for (std::int64_t s = 0; s < samples.training + samples.test; ++s) {
    const bool training = s < samples.training;
    model.VisitLayers(samples.Draw(s, 1), [&](const LayerView& view) {
      const LayerQueriesKeys own = QueriesKeysOf(model, view, 0);
      std::vector<HeadData>& layer = heads[own.layer];
      layer.resize(own.q.size(0));
      for (std::int64_t h = 0; h < own.q.size(0); ++h) {
        const Tensor weights = view.Weights(0, h).contiguous();
        (training ? layer[h].training : layer[h].test)
            .push_back({own.q[h].contiguous(), own.k[h].contiguous(), weights > 0,
                        training ? Tensor() : weights});
      }
    });
  }
  return heads;
}

Tensor Distances(const Tensor& q, const Tensor& k, const Tensor& projection) {
  const Tensor a = q.matmul(projection.t());
  const Tensor b = k.matmul(projection.t());
  return (a.square().sum(1, true) + b.square().sum(1).unsqueeze(0) - 2.0 * a.matmul(b.t()))
      .clamp_min(0.0);
}

// The loss is a sum of |W (q - k)|^2 with factors, so its gradient is 2 W C with C = sum of factor
// (q - k)(q - k)^T over pairs.
Tensor TrainProjection(Sight sight, const std::vector<HeadSample>& training, std::int64_t steps,
                       RandomStream random) {
  const std::int64_t dim = training[0].q.size(1);
  Tensor projection = at::empty({kNumbers, dim});
  auto* values = projection.mutable_data_ptr<float>();
  for (std::int64_t i = 0; i < projection.numel(); ++i) {
    values[i] = static_cast<float>(Normal(random, 1.0 / std::sqrt(dim)));
  }
  const Tensor flat = projection.view(-1);
  const Tensor gradient = at::zeros_like(flat);
  TrainConfig train;
  train.optimizer = "adam";
  train.lr = 1e-2;
  train.l2 = 0.0;
  train.schedule = "cosine";
  Optimizer optimizer(train, steps, flat, gradient);
  for (std::int64_t step = 0; step < steps; ++step) {
    const HeadSample& sample = training[random.Below(std::ssize(training))];
    const std::int64_t n = sample.q.size(0);
    const std::int64_t first = random.Below(std::max<std::int64_t>(1, n - kQueries + 1));
    const std::int64_t count = std::min(kQueries, n - first);
    const Tensor q = sample.q.narrow(0, first, count);
    const Tensor positive = sample.support.narrow(0, first, count).contiguous();
    const Tensor negative = Negatives(
        positive, Visible(sight, n, sample.k.size(0)).narrow(0, first, count).contiguous(), random);
    const Tensor factor = positive.to(at::kFloat) - negative.to(at::kFloat);
    const Tensor loss = (Distances(q, sample.k, projection) * factor).sum(1) + 1.0;
    const Tensor active = (loss > 0).to(at::kFloat).unsqueeze(1) * factor / (loss.numel() * 8.0);
    const Tensor cross = q.t().matmul(active).matmul(sample.k);
    const Tensor second = (q * active.sum(1, true)).t().matmul(q) +
                          (sample.k * active.sum(0).unsqueeze(1)).t().matmul(sample.k) - cross -
                          cross.t();
    gradient.copy_((2.0 * projection.matmul(second)).view(-1));
    optimizer.Step(step);
  }
  return projection;
}

}  // namespace tsallis::lab::sparsefinder
