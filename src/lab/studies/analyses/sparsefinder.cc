// A11: predicts the keys to which a head will give weight, from short projections of its queries
// and keys (Treviso et al. 2022, "Predicting attention sparsity in transformers", Sparsefinder; the
// slides name it beside AdaSplash), held against patterns that look at no key.
//
// Every head has a projection W to four numbers, trained so that q W is near k W exactly where
// entmax gives weight: hinge of one plus the squared distances of pairs with weight minus those of
// as many pairs without. Then an edge joins a query and a key that are near each other (distance),
// that are in one cluster (k-means), or that share a bucket in one of the four numbers
// (quantisation); the nearest keys before a query are always joined, and in a second family the
// first keys. Beside them stand patterns and the groups of Reformer and of Routing Transformers.
// Blocks: centres of clusters pick chunks of queries and of keys by their means. An answer of
// entmax is exact where all keys with weight are joined; the model is also run with nothing but the
// joined pairs, and attention on their blocks is timed beside exact attention.
//
// Trained here: 300 steps of Adam on the heads of one small model, on its own samples; the paper
// trains three epochs on machine translation and masked language models.
#include "lab/studies/analyses/sparsefinder.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>

#include "lab/base/paths.h"
#include "lab/base/sequential_products.h"
#include "lab/eval/evaluate_sequences.h"
#include "lab/train/load_model.h"

namespace tsallis::lab {
namespace sparsefinder {
namespace {

using Done = std::function<void(double share)>;  // of a part of the work

// Of one head on one sample, or sums of it.
enum Share { kSparsity, kRecall, kMass, kExact, kShares };
using Shares = std::array<double, kShares>;

Shares Judge(Sight sight, const Predictor& predictor, const HeadSample& sample) {
  const std::int64_t n = sample.q.size(0);
  const at::Tensor edges = predictor.edges(sample.q, sample.k);
  const at::Tensor found = edges.logical_and(sample.support);
  const at::Tensor row = found.sum(1), wanted = sample.support.sum(1);
  const double seen = Visible(sight, n, sample.k.size(0)).sum().item<double>();
  return {1.0 - edges.sum().item<double>() / seen,
          row.sum().item<double>() / wanted.sum().item<double>(),
          (sample.weights * found).sum().item<double>() / n,
          (row == wanted).to(at::kDouble).mean().item<double>()};
}

// Sizes of the study.
struct Plan {
  Samples samples;
  std::int64_t steps;      // of every head
  std::int64_t tokens;     // of the first sample
  std::int64_t long_text;  // the length of a second sample whose attention is timed
};

Plan PlanOf(const AnalysisContext& context, const LoadedSequenceModel& loaded,
            const SequenceTask& task) {
  const std::int64_t n = std::min<std::int64_t>(loaded.train_length, context.quick ? 128 : 512);
  Plan plan{{task, n, 0, 0}, context.quick ? 40 : 300, 0, n * (context.quick ? 2 : 8)};
  plan.tokens = plan.samples.Draw(0, 1).tokens.size(1);
  const auto samples_of = [&](std::int64_t tokens, std::int64_t least, std::int64_t most) {
    return std::clamp(tokens / plan.tokens, least, most);
  };
  // Whole answers are counted one a sample, so there are more of them.
  const bool loss = MetricOf(task).sum == "loss";
  plan.samples.training = samples_of(context.quick ? 256 : 8192, 2, 64);
  plan.samples.test = loss ? samples_of(context.quick ? 128 : 4096, 1, 64)
                           : samples_of(context.quick ? 512 : 16384, 8, 200);
  const std::int64_t there = task.Available(Split::kTest, n);
  if (there < 3) {
    throw UsageError(
        fmt::format("--decoder {}: expected text of at least 3 samples of {} tokens, got {}",
                    loaded.weights.string(), n, there));
  }
  plan.samples.training = std::min(plan.samples.training, there * 2 / 3);
  plan.samples.test = std::min(plan.samples.test, there - plan.samples.training);
  return plan;
}

const std::vector<Predictor>& WaysOf(const Predictors& predictors) { return predictors[0][0]; }

// Projections of every head, and all ways to foretell its pairs.
Predictors Train(const AnalysisContext& context, const Plan& plan,
                 const std::vector<LayerPlace>& layers,
                 const std::vector<std::vector<HeadData>>& heads, const Done& done) {
  Predictors predictors(heads.size());
  for (std::size_t l = 0; l < heads.size(); ++l) {
    const Sight sight = layers[l].sight;
    const std::vector<Predictor> patterns = PatternsOf(sight, plan.tokens, context.seed);
    for (std::size_t h = 0; h < heads[l].size(); ++h) {
      const std::uint64_t stream = l * 1000 + h;
      const at::Tensor projection =
          TrainProjection(sight, heads[l][h].training, plan.steps,
                          RandomStream(context.seed, Purpose::kInit, 2 * stream));
      predictors[l].push_back(
          LearnedOf(sight, heads[l][h].training, projection, context.quick,
                    RandomStream(context.seed, Purpose::kInit, 2 * stream + 1)));
      std::vector<Predictor>& ways = predictors[l].back();
      ways.insert(ways.begin(), patterns.begin(), patterns.end());
      done(1.0 / (heads.size() * heads[l].size()));
    }
  }
  return predictors;
}

void JudgeAll(const std::vector<LayerPlace>& layers,
              const std::vector<std::vector<HeadData>>& heads, const Predictors& predictors,
              const Done& done, DataTable& table) {
  const std::vector<Predictor>& ways = WaysOf(predictors);
  // Sums of all layers, then of each.
  std::vector<std::vector<Shares>> sums(heads.size() + 1, std::vector<Shares>(ways.size()));
  std::vector<double> samples(sums.size());
  for (std::size_t l = 0; l < heads.size(); ++l) {
    for (std::size_t h = 0; h < heads[l].size(); ++h) {
      for (const HeadSample& sample : heads[l][h].test) {
        for (std::size_t w = 0; w < ways.size(); ++w) {
          const Shares one = Judge(layers[l].sight, predictors[l][h][w], sample);
          for (int share = 0; share < kShares; ++share) {
            sums[0][w][share] += one[share];
            sums[l + 1][w][share] += one[share];
          }
        }
        samples[0] += 1.0;
        samples[l + 1] += 1.0;
      }
      done(1.0 / (heads.size() * heads[l].size()));
    }
  }
  for (std::size_t l = 0; l < sums.size(); ++l) {
    for (std::size_t w = 0; w < ways.size(); ++w) {
      const auto percent = [&](Share share) { return 100.0 * sums[l][w][share] / samples[l]; };
      table.Add({l == 0 ? "all" : NameOf(layers[l - 1]), ways[w].family, ways[w].method,
                 ways[w].setting, percent(kSparsity), percent(kRecall), percent(kMass),
                 percent(kExact)});
    }
  }
}

double ValueOf(const SequenceTask& task, const SequenceScore& sums) {
  return MetricOf(task).Value(NumbersOf(sums, task.GetScoring()));
}

// The model under the pairs of every way.
void RunAll(SequenceModel& model, const Plan& plan, const Predictors& predictors, const Done& done,
            DataTable& table) {
  const std::vector<Predictor>& ways = WaysOf(predictors);
  for (std::size_t w = 0; w < ways.size(); ++w) {
    const RestrictedRun run = RunRestricted(model, plan.samples, predictors, w);
    table.Add({ways[w].family, ways[w].method, ways[w].setting, 100.0 * run.sparsity,
               ValueOf(plan.samples.task, run.sums),
               Metric().Value(run.sums.hits, run.sums.scored)});
    done(1.0 / ways.size());
  }
}

constexpr std::int64_t kBlock = 64;  // keys that the dense kernel takes at a time

// Ways that are timed: those that have blocks, and the window as what a mask that costs nothing
// buys. Single pairs of learned methods lie in nearly every block.
bool IsTimed(const Predictor& way) {
  return way.chunk >= 16 || (way.method == "window" && way.setting >= kBlock);
}

bool Has(const SequenceTask& task, std::int64_t length) {
  try {
    task.CheckLength(length);
    return true;
  } catch (const UsageError&) {
    return false;
  }
}

// Of a model that sees nothing but the tokens before.
void TimeAll(SequenceModel& model, const Plan& plan, const Predictors& predictors, bool quick,
             DataTable& table) {
  const std::vector<LayerPlace> layers = model.Places();
  if (std::any_of(layers.begin(), layers.end(),
                  [](const LayerPlace& layer) { return layer.sight != Sight::kBefore; })) {
    return;
  }
  const std::vector<Predictor>& ways = WaysOf(predictors);
  std::vector<std::size_t> timed;
  std::vector<std::int64_t> blocks;
  for (std::size_t w = 0; w < ways.size(); ++w) {
    if (!IsTimed(ways[w])) continue;
    timed.push_back(w);
    blocks.push_back(ways[w].chunk > 0 ? ways[w].chunk : kBlock);
  }
  const SequenceTask& task = plan.samples.task;
  for (const std::int64_t length : {plan.samples.length, plan.long_text}) {
    if (!Has(task, length)) continue;
    // Behind the samples of training, if there is something.
    const std::int64_t index =
        std::min(task.Available(Split::kTest, length) - 1, plan.samples.training);
    const TokenBatch sample = Samples{task, length}.Draw(index, 1);
    const std::vector<Timing> timings =
        TimeBlocks(model, sample, predictors, timed, blocks, quick ? 1 : 5);
    for (std::size_t i = 0; i < timed.size(); ++i) {
      const Timing& timing = timings[i];
      const double both = timing.foretelling + timing.masked;
      table.Add({sample.tokens.size(1), ways[timed[i]].method, ways[timed[i]].setting, blocks[i],
                 100.0 * timing.sparsity, timing.exact, timing.foretelling, timing.masked, both,
                 timing.exact / both, 100.0 * timing.error, timing.kernel, timing.masked_kernel});
    }
  }
}

// One sentence of pairs, one of answers: the best learned method on single pairs and the window.
std::string Finding(double at, double density, double whole, const Metric& metric,
                    const std::vector<MethodValue>& recall,
                    const std::vector<MethodValue>& answers) {
  const MethodValue* best = nullptr;
  for (const MethodValue& value : recall) {
    const bool candidate = value.family == "tokens" && value.method != "window" && value.value;
    if (candidate && (best == nullptr || *value.value > *best->value)) best = &value;
  }
  const auto of = [](const std::vector<MethodValue>& values, const std::string& method) {
    const auto found = std::find_if(values.begin(), values.end(), [&](const MethodValue& value) {
      return value.method == method;
    });
    return found == values.end() ? std::nullopt : found->value;
  };
  const auto text = [](const std::optional<double>& value, int digits) {
    return value ? fmt::format("{:.{}f}", *value, digits) : "none";
  };
  if (best == nullptr) {
    return fmt::format("No method leaves out {:.0f} % of the pairs; {:.1f} % have weight.", at,
                       density);
  }
  return fmt::format(
      "Where {:.0f} % of the pairs are left out, {} finds {} % of the pairs that have weight, a "
      "window {} %; {:.1f} % of all pairs have weight. With these pairs alone the model's {} is {} "
      "and {} {}, with all pairs {}.",
      at, best->method, text(best->value, 0), text(of(recall, "window"), 0), density, metric.name,
      text(of(answers, best->method), metric.digits), text(of(answers, "window"), metric.digits),
      metric.unit, text(whole, metric.digits));
}

}  // namespace

AnalysisResult Study(const AnalysisContext& context) {
  const SequentialProducts one_thread;
  const std::filesystem::path run =
      context.decoder.empty() ? SourceDir() / "models/asentmax-nape" : context.decoder;
  LoadedSequenceModel loaded = LoadSequenceModel(run);
  const std::vector<LayerPlace> layers = loaded.model->Places();
  const std::filesystem::path file = SourceDir() / "python/tsallis_report/figures.py";
  const TaskPointer text = loaded.task_name == "text" ? MakeFileText(file, *loaded.task) : nullptr;
  const SequenceTask& task = text ? *text : *loaded.task;
  const Metric metric = MetricOf(task);
  const Plan plan = PlanOf(context, loaded, task);

  double share = 0.0;
  const auto part = [&](double of_all) {
    return [&context, &share, of_all](double more) { context.Done(share += of_all * more); };
  };
  AnalysisResult result;
  DataTable& edges = result.AddTable(
      "edges", {"layer", "family", "method", "setting", "sparsity", "recall", "mass", "exact"});
  DataTable& full = result.AddTable("full", {"sparsity", "value"});
  DataTable& answers =
      result.AddTable("answers", {"family", "method", "setting", "sparsity", "value", "tokens"});
  DataTable& time = result.AddTable(
      "time", {"tokens", "method", "setting", "block", "sparsity", "exact", "foretelling", "masked",
               "both", "ratio", "error", "exact_kernel", "masked_kernel"});
  const std::vector<std::vector<HeadData>> heads = Collect(*loaded.model, plan.samples);
  context.Done(share += 0.05);
  const Predictors predictors = Train(context, plan, layers, heads, part(0.1));
  JudgeAll(layers, heads, predictors, part(0.25), edges);
  const double whole = ValueOf(task, Run(*loaded.model, plan.samples, nullptr));
  for (const double x : {0.0, 100.0}) full.Add({x, whole});
  RunAll(*loaded.model, plan, predictors, part(0.5), answers);
  TimeAll(*loaded.model, plan, predictors, context.quick, time);

  double kept = 0.0, pairs = 0.0;
  for (std::size_t l = 0; l < heads.size(); ++l) {
    for (const HeadData& head : heads[l]) {
      for (const HeadSample& sample : head.test) {
        kept += sample.support.sum().item<double>();
        pairs += Visible(layers[l].sight, sample.q.size(0), sample.k.size(0)).sum().item<double>();
      }
    }
  }
  const double density = 100.0 * kept / pairs;

  const double at = CommonSparsity(edges);
  const std::vector<MethodValue> recall = ValuesAt(edges, "recall", at);
  const std::vector<MethodValue> valued = ValuesAt(answers, "value", at);
  const auto add = [&](const std::string& what, const std::vector<MethodValue>& values) {
    for (const MethodValue& value : values) {
      if (!value.value) continue;
      result.facts.push_back(
          {fmt::format("{} where {:.0f} % of the pairs are left out, {}", what, at, value.method),
           *value.value});
    }
  };
  const std::string measured = fmt::format("{} ({})", metric.name, metric.unit);
  result.facts.push_back({"pairs (%) that have weight", density});
  result.facts.push_back({measured + " with all pairs", whole});
  add(measured, valued);
  // Whole answers are lost with one of their tokens.
  if (task.GetScoring() == Scoring::kExact) {
    add("right tokens (%)", ValuesAt(answers, "tokens", at));
  }
  add("recall (%)", recall);
  add("exact rows (%)", ValuesAt(edges, "exact", at));
  for (const Fact& fact : TimeFacts(time)) result.facts.push_back(fact);

  result.finding = Finding(at, density, whole, metric, recall, valued);
  result.setup = {
      fmt::format("model: {}", loaded.weights.lexically_proximate(SourceDir()).string()),
      fmt::format("{} samples of length {} to train the projections, {} others to judge; {} steps "
                  "of Adam at 0.01 for each head, 128 queries a step",
                  plan.samples.training, plan.samples.length, plan.samples.test, plan.steps),
      fmt::format("the {} nearest keys are always joined by all methods that look at keys, but in "
                  "heads that look at another sequence",
                  kNear),
      "Reformer: queries and keys that one of two drawn hashes puts together; Routing: every "
      "centre "
      "of k-means on whole queries and keys takes equally many; neither was there when the model "
      "was trained",
      "patterns: a window; the same and a quarter as many first keys for all (Longformer); and "
      "three random blocks of 16 keys for every 16 queries (BigBird)",
      "chunks: each of 8 centres of k-means picks the share of the chunks of queries and of keys "
      "whose means are nearest, among all chunks or among those of its own cluster",
      "time: of the processor, medians of the same heads in the same run, one thread; the window "
      "on blocks of 64, "
      "without the time to make its mask; exact attention computes every score and skips what has "
      "no weight; the error is that of attention's output; nothing is timed where samples have "
      "fewer than 64 tokens, nor in an encoder-decoder",
      "where a method does not reach the share that is left out, its line is missing"};
  AddFigures(layers, metric, result);
  return result;
}

}  // namespace sparsefinder

AnalysisResult Sparsefinder(const AnalysisContext& context) { return sparsefinder::Study(context); }

}  // namespace tsallis::lab
