// A11: which keys a head will give weight, foretold from short projections of its queries and keys
// (Treviso et al. 2022, "Predicting attention sparsity in transformers", Sparsefinder; the slides
// name it beside AdaSplash), held against patterns that look at no key.
//
// Of every head: a projection W to four numbers, trained so that q W is near k W exactly where
// entmax gives weight: hinge of one plus the squared distances of pairs with weight minus those of
// as many pairs without. Then an edge joins a query and a key that are near each other (distance),
// that are in one cluster (k-means), or that share a bucket in one of the four numbers
// (quantisation); the nearest keys before a query are always joined. An answer of entmax is exact
// where all keys with weight are joined.
//
// Trained here: 300 steps of Adam on the heads of one small language model, on its own bits of
// text; the paper trains three epochs on machine translation and masked language models.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

#include "lab/base/paths.h"
#include "lab/base/random.h"
#include "lab/base/sequential_products.h"
#include "lab/nn/layer_view.h"
#include "lab/studies/analyses/maps.h"
#include "lab/tasks/sequence_batch.h"
#include "lab/train/load_model.h"
#include "lab/train/optimizer.h"
#include "tsallis/patterns.h"

namespace tsallis::lab {
namespace {

using at::Tensor;

constexpr std::int64_t kNumbers = 4;    // of a projected query or key
constexpr std::int64_t kNear = 3;       // keys before a query that are always joined
constexpr std::int64_t kQueries = 128;  // of a step of training

// One head on one window of text.
struct HeadSample {
  Tensor q, k;     // [n, head_dim]
  Tensor weights;  // [n, n], of the softmax or entmax that the model has
};

// [sample], for training and for the figures.
struct HeadData {
  std::vector<HeadSample> training, test;
};

Tensor DenseWeights(const SparseRows& rows, std::int64_t n) {
  Tensor dense = at::zeros({n, n});
  auto* to = dense.mutable_data_ptr<float>();
  for (std::int64_t i = 0; i < n; ++i) {
    for (auto e = rows.offsets[static_cast<std::size_t>(i)];
         e < rows.offsets[static_cast<std::size_t>(i + 1)]; ++e) {
      to[i * n + rows.keys[static_cast<std::size_t>(e)]] =
          rows.weights[static_cast<std::size_t>(e)];
    }
  }
  return dense;
}

// Every head of the model on windows [0, training + test) of the text, [layers][heads].
std::vector<std::vector<HeadData>> Collect(LoadedModel& loaded, const SequenceTask& text,
                                           std::int64_t n, std::int64_t training,
                                           std::int64_t test) {
  std::vector<std::vector<HeadData>> heads(static_cast<std::size_t>(loaded.model.Config().layers));
  for (std::int64_t s = 0; s < training + test; ++s) {
    const TokenBatch batch = DrawBatch(text, kEvaluationSeed, Split::kTest, s, 1, n);
    loaded.model.Look(batch, [&](const LayerView& view) {
      const HeadArrays arrays = view.Arrays(0);
      auto& layer = heads[static_cast<std::size_t>(view.layer)];
      layer.resize(static_cast<std::size_t>(arrays.q.size(0)));
      for (std::size_t h = 0; h < layer.size(); ++h) {
        const auto head = static_cast<std::int64_t>(h);
        const std::int64_t tokens = arrays.q.size(1);
        HeadSample sample{arrays.q[head].to(at::kFloat).contiguous(),
                          arrays.k[head].to(at::kFloat).contiguous(),
                          DenseWeights(view.Weights(0, head, 0, tokens), tokens)};
        (s < training ? layer[h].training : layer[h].test).push_back(std::move(sample));
      }
    });
  }
  return heads;
}

// Squared distances of projected queries and keys, [queries, keys].
Tensor Distances(const Tensor& q, const Tensor& k, const Tensor& projection) {
  const Tensor a = q.matmul(projection.t());
  const Tensor b = k.matmul(projection.t());
  return (a.square().sum(1, true) + b.square().sum(1).unsqueeze(0) - 2.0 * a.matmul(b.t()))
      .clamp_min(0.0);
}

// As many pairs without weight as there are with, of every query, drawn among those that it sees.
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
    const auto all = static_cast<std::int64_t>(others.size());
    for (std::int64_t c = 0; c < std::min(wanted, all); ++c) {
      std::swap(others[static_cast<std::size_t>(c)],
                others[static_cast<std::size_t>(c + random.Below(all - c))]);
      to[i * n + others[static_cast<std::size_t>(c)]] = true;
    }
  }
  return negative;
}

Tensor Visible(std::int64_t n) { return at::ones({n, n}, at::kBool).tril(); }

// W, [numbers, head_dim]. The loss is a sum of |W (q - k)|^2 with factors, so its gradient is
// 2 W C with C = sum of factor (q - k)(q - k)^T over pairs.
Tensor TrainProjection(const HeadData& data, std::int64_t steps, RandomStream random) {
  const std::int64_t dim = data.training[0].q.size(1);
  const std::int64_t n = data.training[0].q.size(0);
  Tensor projection = at::empty({kNumbers, dim});
  auto* values = projection.mutable_data_ptr<float>();
  for (std::int64_t i = 0; i < projection.numel(); ++i) {
    values[i] = static_cast<float>(Normal(random, 1.0 / std::sqrt(static_cast<double>(dim))));
  }
  const Tensor flat = projection.view(-1);
  const Tensor gradient = at::zeros_like(flat);
  TrainConfig train;
  train.optimizer = "adam";
  train.lr = 1e-2;
  train.l2 = 0.0;
  train.schedule = "cosine";
  Optimizer optimizer(train, steps, flat, gradient);
  const Tensor visible = Visible(n);
  for (std::int64_t step = 0; step < steps; ++step) {
    const HeadSample& sample = data.training[static_cast<std::size_t>(
        random.Below(static_cast<std::int64_t>(data.training.size())))];
    const std::int64_t first = random.Below(std::max<std::int64_t>(1, n - kQueries + 1));
    const std::int64_t count = std::min(kQueries, n - first);
    const Tensor q = sample.q.narrow(0, first, count);
    const Tensor positive = (sample.weights.narrow(0, first, count) > 0).contiguous();
    const Tensor negative =
        Negatives(positive, visible.narrow(0, first, count).contiguous(), random);
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

// Centres of k-means, [clusters, numbers], from points: Lloyd's steps from drawn points.
Tensor KMeans(const Tensor& points, std::int64_t clusters, RandomStream random) {
  Tensor picked = at::empty({clusters}, at::kLong);
  for (std::int64_t c = 0; c < clusters; ++c) {
    picked.mutable_data_ptr<std::int64_t>()[c] = random.Below(points.size(0));
  }
  Tensor centres = points.index_select(0, picked);
  for (int step = 0; step < 12; ++step) {
    const Tensor nearest = at::cdist(points, centres).argmin(1);
    const Tensor sums = at::zeros_like(centres).index_add(0, nearest, points);
    const Tensor counts =
        at::zeros({clusters}).index_add(0, nearest, at::ones({points.size(0)})).unsqueeze(1);
    centres = at::where(counts > 0, sums / counts.clamp_min(1.0), centres);
  }
  return centres;
}

// What joins queries and keys, at a setting: [n, n], pairs that a query sees.
struct Predictor {
  std::string method;
  double setting = 0.0;
  std::function<Tensor(const HeadSample&)> edges;
};

Tensor NearKeys(std::int64_t n, std::int64_t width) {
  return Visible(n).logical_and(at::ones({n, n}, at::kBool).triu(1 - width));
}

std::vector<Predictor> PatternsOf(std::int64_t n, std::uint64_t seed) {
  constexpr std::int64_t kBlock = 16;
  std::vector<Predictor> predictors;
  const auto add = [&](const char* method, std::int64_t width, const AttentionPattern& pattern) {
    const PatternMask mask = MaskOf(pattern, n, n, 1, 1);  // blocks of one pair
    const Tensor edges = at::zeros({n, n}, at::kBool);
    std::copy(mask.blocks.begin(), mask.blocks.end(), edges.mutable_data_ptr<bool>());
    predictors.push_back(
        {method, static_cast<double>(width), [edges](const HeadSample&) { return edges; }});
  };
  for (std::int64_t width = 4; width < n; width *= 2) {
    add("window", width, {.causal = true, .window = width});
    add("Longformer", width, Longformer(width, width / 4, true));
    add("BigBird", width, BigBird(width, width / 4, true, 3, kBlock, seed));
  }
  return predictors;
}

std::vector<Predictor> LearnedOf(const HeadData& data, const Tensor& projection, bool quick,
                                 std::int64_t n, RandomStream random) {
  std::vector<Predictor> predictors;
  const Tensor visible = Visible(n);
  const Tensor near = NearKeys(n, kNear);
  const auto joined = [visible, near](const Tensor& edges) {
    return edges.logical_and(visible).logical_or(near);
  };
  // Thresholds at shares of the pairs of training.
  const HeadSample& first = data.training[0];
  const Tensor seen = Distances(first.q, first.k, projection).masked_select(visible);
  const Tensor sorted = std::get<0>(seen.sort());
  for (const double share : {0.01, 0.02, 0.05, 0.1, 0.2, 0.4}) {
    const double limit =
        sorted[static_cast<std::int64_t>(share * static_cast<double>(sorted.numel() - 1))]
            .item<double>();
    predictors.push_back({"distance", share, [=](const HeadSample& sample) {
                            return joined(Distances(sample.q, sample.k, projection) <= limit);
                          }});
  }
  std::vector<Tensor> parts;
  for (const HeadSample& sample : data.training) {
    parts.push_back(sample.q.matmul(projection.t()));
    parts.push_back(sample.k.matmul(projection.t()));
  }
  const Tensor points = at::cat(parts);
  for (std::int64_t clusters = 2; clusters <= (quick ? 8 : 64); clusters *= 2) {
    const Tensor centres = KMeans(points, clusters, random);
    predictors.push_back({"k-means", static_cast<double>(clusters), [=](const HeadSample& sample) {
                            const auto own = [&](const Tensor& rows) {
                              return at::cdist(rows.matmul(projection.t()), centres).argmin(1);
                            };
                            return joined(own(sample.q).unsqueeze(1) == own(sample.k).unsqueeze(0));
                          }});
  }
  for (std::int64_t buckets = 4; buckets <= (quick ? 16 : 256); buckets *= 2) {
    // Ends of buckets that hold equally many points of training.
    const Tensor ranks = (at::arange(1, buckets) * points.size(0)).floor_divide(buckets);
    const Tensor ends = std::get<0>(points.sort(0)).index_select(0, ranks).t().contiguous();
    predictors.push_back(
        {"quantisation", static_cast<double>(buckets), [=](const HeadSample& sample) {
           const auto bucket = [&](const Tensor& rows) {
             return at::searchsorted(ends, rows.matmul(projection.t()).t().contiguous());
           };
           const Tensor a = bucket(sample.q);
           const Tensor b = bucket(sample.k);
           return joined((a.unsqueeze(2) == b.unsqueeze(1)).any(0));
         }});
  }
  return predictors;
}

// Sums over heads and samples.
struct Score {
  double sparsity = 0.0, recall = 0.0, mass = 0.0, exact = 0.0;
  double count = 0.0;
};

void Judge(const Predictor& predictor, const HeadSample& sample, Score& score) {
  const std::int64_t n = sample.q.size(0);
  const Tensor edges = predictor.edges(sample);
  const Tensor support = sample.weights > 0;
  const Tensor found = edges.logical_and(support);
  score.sparsity += 1.0 - edges.sum().item<double>() / (0.5 * static_cast<double>(n * (n + 1)));
  score.recall += found.sum().item<double>() / support.sum().item<double>();
  score.mass += (sample.weights * found).sum().item<double>() / static_cast<double>(n);
  score.exact += (found.sum(1) == support.sum(1)).to(at::kDouble).mean().item<double>();
  score.count += 1.0;
}

// The recall of a method at a sparsity, between its settings; none where it does not go there.
std::optional<double> RecallAt(const std::map<double, Score>& settings, double sparsity) {
  std::vector<std::pair<double, double>> points;
  for (const auto& [setting, score] : settings) {
    points.emplace_back(score.sparsity / score.count, score.recall / score.count);
  }
  std::sort(points.begin(), points.end());
  for (std::size_t i = 1; i < points.size(); ++i) {
    if (points[i - 1].first <= sparsity && sparsity <= points[i].first) {
      const double share =
          (sparsity - points[i - 1].first) / std::max(1e-12, points[i].first - points[i - 1].first);
      return points[i - 1].second + share * (points[i].second - points[i - 1].second);
    }
  }
  return std::nullopt;
}

}  // namespace

AnalysisResult Sparsefinder(const AnalysisContext& context) {
  const SequentialProducts one_thread;
  const std::filesystem::path run =
      context.decoder.empty() ? SourceDir() / "bench/models/asentmax-nape" : context.decoder;
  LoadedModel loaded = LoadModel(run);
  const std::filesystem::path file = SourceDir() / "python/tsallis_report/figures.py";
  const TaskPointer text = loaded.task_name == "text" ? MakeFileText(file, *loaded.task) : nullptr;
  const SequenceTask& task = text ? *text : *loaded.task;
  const std::int64_t n = context.quick ? 128 : 512;
  const std::int64_t training = context.quick ? 2 : 16;
  const std::int64_t test = context.quick ? 1 : 6;
  std::vector<std::vector<HeadData>> heads = Collect(loaded, task, n, training, test);
  context.Done(0.1);

  // By method and setting: of all heads, and of each layer.
  std::map<std::string, std::map<double, Score>> all;
  std::vector<std::map<std::string, std::map<double, Score>>> layers(heads.size());
  const std::int64_t steps = context.quick ? 40 : 300;
  double done = 0.0;
  double kept = 0.0;
  double pairs = 0.0;
  for (std::size_t l = 0; l < heads.size(); ++l) {
    for (std::size_t h = 0; h < heads[l].size(); ++h) {
      const HeadData& data = heads[l][h];
      const std::int64_t tokens = data.test[0].q.size(0);
      const auto stream = static_cast<std::uint64_t>(l * 1000 + h);
      const Tensor projection =
          TrainProjection(data, steps, RandomStream(context.seed, Purpose::kInit, 2 * stream));
      RandomStream random(context.seed, Purpose::kInit, 2 * stream + 1);
      std::vector<Predictor> predictors =
          LearnedOf(data, projection, context.quick, tokens, random);
      for (Predictor& pattern : PatternsOf(tokens, context.seed)) {
        predictors.push_back(std::move(pattern));
      }
      for (const Predictor& predictor : predictors) {
        for (const HeadSample& sample : data.test) {
          Judge(predictor, sample, all[predictor.method][predictor.setting]);
          Judge(predictor, sample, layers[l][predictor.method][predictor.setting]);
        }
      }
      for (const HeadSample& sample : data.test) {
        kept += (sample.weights > 0).sum().item<double>();
        pairs += 0.5 * static_cast<double>(tokens * (tokens + 1));
      }
      done += 1.0 / static_cast<double>(heads.size() * heads[l].size());
      context.Done(0.1 + 0.9 * done);
    }
  }

  const auto add = [](DataTable& table, const std::string& layer,
                      const std::map<std::string, std::map<double, Score>>& methods) {
    for (const auto& [method, settings] : methods) {
      for (const auto& [setting, score] : settings) {
        table.Add({layer, method, setting, 100.0 * score.sparsity / score.count,
                   100.0 * score.recall / score.count, 100.0 * score.mass / score.count,
                   100.0 * score.exact / score.count});
      }
    }
  };
  DataTable table("edges", {"layer", "method", "setting", "sparsity", "recall", "mass", "exact"});
  add(table, "all", all);
  for (std::size_t l = 0; l < layers.size(); ++l) add(table, std::to_string(l + 1), layers[l]);

  AnalysisResult result;
  constexpr double kAt = 0.9;
  std::map<std::string, double> recall;
  for (const auto& [method, settings] : all) {
    if (const auto found = RecallAt(settings, kAt)) recall[method] = 100.0 * *found;
  }
  for (const auto& [method, value] : recall) {
    result.facts.push_back({"recall (%) of " + method + " where 90 % of the pairs are left out",
                            value, std::nullopt, ""});
  }
  const double density = 100.0 * kept / pairs;
  result.facts.push_back({"pairs (%) that have weight", density, std::nullopt, ""});
  const auto best =
      std::max_element(recall.begin(), recall.end(),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  result.finding =
      best == recall.end()
          ? fmt::format("No method leaves out 90 % of the pairs; {:.1f} % have weight.", density)
          : fmt::format(
                "Where 90 % of the pairs are left out, {} finds {:.0f} % of the pairs that have "
                "weight, a window {:.0f} %; {:.1f} % of all pairs have weight.",
                best->first, best->second, recall.contains("window") ? recall["window"] : 0.0,
                density);
  result.setup = {
      fmt::format("model: {}", loaded.weights.lexically_relative(SourceDir()).string()),
      fmt::format("{} windows of {} tokens to train the projections, {} others to judge; {} steps "
                  "of Adam at 0.01 for each head, {} queries a step",
                  training, n, test, steps, kQueries),
      fmt::format("the {} nearest keys are always joined by the learned methods", kNear),
      "patterns: a window; the same and a quarter as many first keys for all (Longformer); and "
      "three random blocks of 16 keys for every 16 queries (BigBird)",
      "not measured: time. Distances of four numbers take an eighth of the multiplications of the "
      "scores that they stand for, and exact sparse attention computes all scores"};
  const auto panel = [](const std::string& layer, const std::string& title, const char* y,
                        const char* label) {
    return Panel{.title = title,
                 .x_label = "pairs left out (%)",
                 .y_label = label,
                 .curves = {{.table = "edges",
                             .x = "sparsity",
                             .y = y,
                             .by = "method",
                             .where = {{"layer", layer}}}}};
  };
  AnalysisFigure by_layer{.name = "recall",
                          .title = "Found pairs against sparsity, layer by layer",
                          .caption =
                              "Of the pairs of query and key that have weight, the share "
                              "that each way to foretell them joins. Further up and to the "
                              "right is better.",
                          .columns = 2};
  for (std::size_t l = 0; l < layers.size(); ++l) {
    by_layer.panels.push_back(panel(std::to_string(l + 1), fmt::format("layer {}", l + 1), "recall",
                                    "pairs with weight that are joined (%)"));
  }
  result.figures = {
      {.name = "all",
       .title = "Found pairs, found weight and exact rows against sparsity",
       .caption = "All heads. Left: pairs that have weight. Middle: the weight on them. Right: "
                  "queries all of whose pairs are joined, whose answer is therefore exact.",
       .columns = 3,
       .panels = {panel("all", "pairs", "recall", "pairs with weight that are joined (%)"),
                  panel("all", "weight", "mass", "weight that is joined (%)"),
                  panel("all", "rows", "exact", "queries that are exact (%)")}},
      by_layer};
  result.tables = {std::move(table)};
  return result;
}

}  // namespace tsallis::lab
