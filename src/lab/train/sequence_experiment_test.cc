// Training on sequences: optimiser, schedule, resuming, choosing checkpoints, what may go wrong.
#include "lab/train/sequence_experiment.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cmath>
#include <csignal>
#include <set>

#include "core/every_target.h"
#include "lab/base/errors.h"
#include "lab/base/files.h"
#include "lab/eval/evaluate_sequences.h"
#include "lab/eval/head_data.h"
#include "lab/eval/scores.h"
#include "lab/nn/models.h"
#include "lab/studies/reproduce.h"
#include "lab/tasks/sequence_tasks.h"
#include "lab/testing/decoder_variants.h"
#include "lab/testing/lab_test_support.h"
#include "lab/train/load_model.h"
#include "lab/train/memory.h"
#include "lab/train/optimizer.h"
#include "lab/train/set_experiment.h"

namespace tsallis::lab {
namespace {

namespace fs = std::filesystem;

TrainingJob JobOf(const Recipe& recipe, const fs::path& folder, std::int64_t steps = 20) {
  return {&recipe, &recipe.methods[0], 5, steps, folder};
}

Copied<> Trained(const TrainingJob& job, const std::atomic<bool>& stop = never) {
  SequenceExperiment experiment(job);
  Train(experiment, job, Silent, stop);
  return {dynamic_cast<Decoder&>(experiment.Model()), "cpu"};
}

TEST(LearningRate, WarmsUpAndFollowsHalfACosine) {
  TrainConfig config;
  config.lr = 2.0;
  config.warmup = 4;
  EXPECT_DOUBLE_EQ(LearningRate(config, 0, 100), 0.5);
  EXPECT_DOUBLE_EQ(LearningRate(config, 3, 100), 2.0);
  EXPECT_DOUBLE_EQ(LearningRate(config, 99, 100), 2.0);
  config.schedule = "cosine";
  EXPECT_DOUBLE_EQ(LearningRate(config, 4, 100), 2.0);
  EXPECT_DOUBLE_EQ(LearningRate(config, 52, 100), 1.0);  // half way from 4 to 100
  EXPECT_NEAR(LearningRate(config, 100, 100), 0.0, 1e-15);
  EXPECT_GT(LearningRate(config, 99, 100), 0.0);
  config.schedule = "linear";
  config.cooldown = 0.25;
  EXPECT_DOUBLE_EQ(LearningRate(config, 3, 100), 2.0);
  EXPECT_DOUBLE_EQ(LearningRate(config, 75, 100), 2.0);
  EXPECT_DOUBLE_EQ(LearningRate(config, 90, 100), 0.8);
  EXPECT_DOUBLE_EQ(LearningRate(config, 99, 100), 0.08);
}

TEST(Optimizer, OrthogonalisedIsNearTheOrthogonalFactor) {
  at::manual_seed(5);
  for (const auto& [rows, columns] : {std::pair{24, 40}, {40, 24}, {16, 16}, {1, 8}}) {
    // Singular values between 1 and 3.
    const at::Tensor drawn = at::randn({rows, columns}, at::kDouble);
    const auto [u, s, v] = at::linalg_svd(drawn, false);
    const at::Tensor values = at::rand(s.sizes(), at::kDouble) * 2.0 + 1.0;
    const at::Tensor matrix = u.matmul(values.unsqueeze(1) * v);
    const at::Tensor found = Orthogonalised(matrix.to(at::kFloat)).to(at::kDouble);
    const at::Tensor of_found = std::get<1>(at::linalg_svd(found, false));
    EXPECT_GT(of_found.min().item<double>(), 0.6);
    EXPECT_LT(of_found.max().item<double>(), 1.3);
    // The singular vectors are the same: U^T found V is diagonal.
    const at::Tensor turned = u.t().matmul(found).matmul(v.t());
    const at::Tensor off = turned - at::diag(turned.diagonal());
    EXPECT_LT(off.abs().max().item<double>(), 1e-4) << rows << " x " << columns;
  }
}

TEST(Optimizer, MuonTrainsTheMatricesOfEveryArchitecture) {
  TrainConfig config;
  config.optimizer = "muon";
  config.adam_lr = 0.0;  // nothing else moves
  for (const std::string architecture : {"decoder", "encoder-decoder"}) {
    DecoderConfig sizes = Tiny();
    const std::unique_ptr<SequenceModel> model =
        MakeSequenceModel(architecture, sizes, 1, at::Device(at::kCPU));
    const at::Tensor before = model->FlatParameters().clone();
    const at::Tensor gradient = at::randn_like(before);
    Optimizer optimizer(config, 10, model->FlatParameters(), gradient, model->Parameters(),
                        model->Groups());
    optimizer.Step(0);
    const at::Tensor moved = model->FlatParameters().ne(before);
    EXPECT_GT(moved.sum().item<std::int64_t>(), before.numel() / 2) << architecture;
  }
}

TEST(Optimizer, IsMuonForMatricesOfLayersAndAdamForTheRest) {
  TrainConfig config;
  config.optimizer = "muon";
  config.lr = 0.02;
  config.adam_lr = 0.003;
  config.embedding_lr = 0.3;
  config.weight_decay = 0.1;
  at::manual_seed(4);
  const at::Tensor w = at::randn({1000});
  const at::Tensor g = at::empty({1000});
  const Optimizer::Named named = {
      {"embedding.weight", w.narrow(0, 0, 80).view({10, 8})},
      {"layers.0.attention.query.weight", w.narrow(0, 80, 256).view({4, 8, 8})},
      {"layers.0.attention.scale.b", w.narrow(0, 336, 4)},
      {"decoder.0.feed_forward.down.weight", w.narrow(0, 352, 128).view({8, 16})},
      {"head.weight", w.narrow(0, 480, 80).view({10, 8})}};
  constexpr auto kScalar = ParameterGroup::kScalar, kHidden = ParameterGroup::kHidden;
  const std::vector<ParameterGroup> groups = {ParameterGroup::kEmbedding, kHidden, kScalar, kHidden,
                                              kScalar};
  const at::Tensor before = w.clone();
  std::vector<at::Tensor> drawn;
  for (int threads : {1, 2}) {
    at::set_num_threads(threads);
    w.copy_(before);
    Optimizer optimizer(config, 10, w, g, named, groups);
    at::manual_seed(9);
    for (int step = 0; step < 3; ++step) {
      g.copy_(at::randn({1000}));
      optimizer.Step(step);
    }
    drawn.push_back(w.clone());
  }
  EXPECT_TRUE(at::equal(drawn[0], drawn[1])) << "results depend on the number of threads";

  // Plainly, in double.
  at::manual_seed(9);
  at::Tensor expected = before.to(at::kDouble);
  at::Tensor average = at::zeros({1000}, at::kDouble), square = at::zeros({1000}, at::kDouble);
  for (int step = 0; step < 3; ++step) {
    const at::Tensor d = at::randn({1000}).to(at::kDouble);
    const double t = step + 1;
    for (const auto& [name, value] : named) {
      const std::int64_t begin = value.storage_offset(), size = value.numel();
      const auto part = [&](const at::Tensor& flat) { return flat.narrow(0, begin, size); };
      if (value.dim() >= 2 && (name.starts_with("layers.") || name.starts_with("decoder."))) {
        part(average).mul_(0.95).add_(part(d), 0.05);
        const at::Tensor u =
            (part(d) * 0.05 + part(average) * 0.95).view({-1, value.size(-1)}).to(at::kFloat);
        const double aspect = static_cast<double>(u.size(0)) / static_cast<double>(u.size(1));
        part(expected).mul_(1.0 - 0.02 * 0.1);
        part(expected).sub_(Orthogonalised(u).to(at::kDouble).reshape({-1}) * 0.02 *
                            std::sqrt(std::max(1.0, aspect)));
      } else {
        const double lr = name == "embedding.weight" ? 0.3 : 0.003;
        part(average).mul_(0.9).add_(part(d), 0.1);
        part(square).mul_(0.999).add_(part(d).square(), 0.001);
        part(expected).sub_(lr * (part(average) / (1.0 - std::pow(0.9, t))) /
                            ((part(square) / (1.0 - std::pow(0.999, t))).sqrt() + 1e-8));
      }
    }
  }
  EXPECT_LT((drawn[0].to(at::kDouble) - expected).abs().max().item<double>(), 1e-4);
}

void ExpectAdam(const std::string& optimizer) {
  TrainConfig config;
  config.optimizer = optimizer;
  config.lr = 1e-2;
  config.weight_decay = optimizer == "adamw" ? 0.1 : 0.0;
  config.l2 = optimizer == "adam" ? 1e-3 : 0.0;
  config.clip = 2.0;
  config.beta2 = 0.99;
  const std::int64_t size = 100003;  // over several chunks, the last cut
  at::manual_seed(3);
  at::Tensor w = at::randn({size});
  at::Tensor g = at::empty({size});
  at::Tensor reference = w.to(at::kDouble);
  at::Tensor m = at::zeros_like(reference);
  at::Tensor v = at::zeros_like(reference);
  Optimizer rule(config, 10, w, g);
  for (int step = 0; step < 5; ++step) {
    // Above the bound in even steps, below it in odd ones.
    const at::Tensor drawn = at::randn({size}) * (step % 2 == 0 ? 1.0 : 1e-3);
    g.copy_(drawn);
    const double norm = rule.Step(step);
    at::Tensor d = drawn.to(at::kDouble);
    const double expected = std::sqrt(d.square().sum().item<double>());
    EXPECT_NEAR(norm, expected, 1e-9 * expected);
    d = d * std::min(1.0, config.clip / expected) + config.l2 * reference;
    m = 0.9 * m + 0.1 * d;
    v = 0.99 * v + 0.01 * d * d;
    const double t = step + 1;
    reference = reference * (1.0 - config.lr * config.weight_decay) -
                config.lr * (m / (1.0 - std::pow(0.9, t))) /
                    ((v / (1.0 - std::pow(0.99, t))).sqrt() + config.epsilon);
  }
  EXPECT_LT((w.to(at::kDouble) - reference).abs().max().item<double>(), 2e-6) << optimizer;
}

TEST(Optimizer, IsAdamWithClippingInDouble) {
  ForEachTarget([](const std::string&) {
    for (const char* optimizer : {"adam", "adamw"}) ExpectAdam(optimizer);
  });
}

TEST(Optimizer, AGradientThatIsNotFiniteChangesNothing) {
  TrainConfig config;
  config.clip = 1.0;
  at::Tensor w = at::ones({8});
  const at::Tensor g = at::full({8}, std::nan(""));
  Optimizer optimizer(config, 10, w, g);
  EXPECT_TRUE(std::isnan(optimizer.Step(0)));
  EXPECT_TRUE(at::equal(w, at::ones({8})));
}

// Asks to stop in every step, so that a session comes no further than one.
template <class Kind>
class OneStep : public Kind {
 public:
  OneStep(const TrainingJob& job, std::atomic<bool>& stop) : Kind(job), stop_(stop) {}

  Trainable::StepScore LossAndGradient(std::int64_t step,
                                       const Trainable::GradientReady& ready) override {
    stop_ = true;
    return Kind::LossAndGradient(step, ready);
  }

 private:
  std::atomic<bool>& stop_;
};

// stops: after every step, and before a last validation. lines: of training, of validation, and of
// what was observed.
template <class Kind>
void ExpectResumesToTheBit(const Recipe& recipe, const char* method, std::int64_t steps, int stops,
                           std::size_t lines) {
  const TemporaryFolder folder;
  const TrainingJob whole{&recipe, &recipe.Method(method), 5, steps, folder.Path() / "whole"};
  TrainingJob parts = whole;
  parts.folder = folder.Path() / "parts";
  Kind straight(whole);
  Train(straight, whole, Silent, never);
  int stopped = 0;
  for (bool done = false; !done;) {
    std::atomic<bool> stop{false};
    OneStep<Kind> one(parts, stop);
    try {
      Train(one, parts, Silent, stop);
      EXPECT_TRUE(at::equal(straight.FlatParameters(), one.FlatParameters()));
      done = true;
    } catch (const Interrupted&) {
      ASSERT_LE(++stopped, stops);
      // A kill may leave half-written files behind.
      std::ofstream(parts.folder / "metrics.jsonl", std::ios::app) << "{\"step\": 9";
      std::ofstream(parts.folder / "model.safetensors.tmp") << "half";
    }
  }
  EXPECT_EQ(stopped, stops);
  EXPECT_EQ(MetricsOf(whole.folder), MetricsOf(parts.folder));
  EXPECT_EQ(MetricsOf(whole.folder).size(), lines);
  for (const auto path : {&RunFolder::FinalPath, &RunFolder::BestPath}) {
    if (recipe.train.validate_every == 0 && path == &RunFolder::BestPath) continue;
    const TensorFile wanted = ReadTensors((RunFolder(whole.folder).*path)());
    const TensorFile found = ReadTensors((RunFolder(parts.folder).*path)());
    EXPECT_EQ(wanted.metadata, found.metadata);
    for (const auto& [name, tensor] : wanted.tensors) {
      EXPECT_TRUE(at::equal(tensor, found.At(name))) << name;
    }
  }
}

TEST(Trainer, KilledAndResumedRunsEndWithTheSameBits) {
  ExpectResumesToTheBit<SetExperiment>(SmallRecipe(), "softmax", 25, 24, 3 + 7);
  ExpectResumesToTheBit<SetExperiment>(SmallRecipe(), "asentmax-3", 25, 24, 3 + 7);
  ExpectResumesToTheBit<SequenceExperiment>(SmallSequences(), "softmax", 20, 20, 5 + 4 + 7);
}

TEST(SequenceExperiment, DamagedLinesOfMetricsAreKeptAsideWhenARunGoesOn) {
  const TemporaryFolder folder;
  const fs::path path = folder.Path() / "metrics.jsonl", aside = folder.Path() / "metrics.damaged";
  const std::string bad = "{\"step\": 2, \"loss\" \xff 1}\n", late = "{\"step\": 90}\n";
  const std::string wrong = "{\"step\": \"four\"}\n";
  std::ofstream(path) << "{\"step\": 1}\n"
                      << bad << late << "{\"step\": 3}\n"
                      << wrong << "{\"step\": 5}\n{\"step\": 6}\n{\"step\": 7";
  EXPECT_EQ(Metrics(path, 5).Damaged(), 3);
  const auto text = [](const fs::path& file) { return ReadFile(file).value(); };
  EXPECT_EQ(text(path), "{\"step\": 1}\n{\"step\": 3}\n{\"step\": 5}\n");
  EXPECT_EQ(text(aside), bad + late + wrong);
  EXPECT_EQ(Metrics(path, 3).Damaged(), 0);  // step 5 runs again
  EXPECT_EQ(text(path), "{\"step\": 1}\n{\"step\": 3}\n");
  EXPECT_EQ(text(aside), bad + late + wrong);
}

TEST(SequenceExperiment, DoesNotDependOnThreadsAndAccumulatesToTheSameGradient) {
  Recipe recipe = SmallSequences();
  recipe.train.batch = 64;
  recipe.task.train_length_min = recipe.task.train_length_max = 40;
  const TemporaryFolder folder;
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const Copied<> one = Trained(JobOf(recipe, folder.Path() / "one", 5));
  at::set_num_threads(3);
  const Copied<> three = Trained(JobOf(recipe, folder.Path() / "three", 5));
  at::set_num_threads(threads);
  EXPECT_TRUE(at::equal(one.FlatParameters(), three.FlatParameters()));

  const TrainingJob job = JobOf(recipe, folder.Path() / "parts");
  SequenceExperiment training(job);
  const auto score = training.LossAndGradient(3, {});
  const at::Tensor gradient = training.FlatGradients().clone();
  recipe.train.accumulate = 4;
  const auto parts = training.LossAndGradient(3, {});
  EXPECT_NEAR(score.loss, parts.loss, 1e-6);
  EXPECT_EQ(score.hits, parts.hits);
  EXPECT_EQ(score.count, parts.count);
  EXPECT_LT((gradient - training.FlatGradients()).abs().max().item<float>(),
            1e-5F * gradient.abs().max().item<float>());
}

struct Reading {
  std::int64_t step = 0;
  double accuracy = 0.0;
};

// Which validation is the best under a floor, by what metrics.jsonl says of every one.
Reading BestReading(const fs::path& folder, const TrainConfig& train, std::int64_t trained) {
  Reading best;
  std::pair<double, double> highest = {-1.0, -1.0};
  RunFolder(folder).ForEachMetrics([&](const nlohmann::json& entry) {
    if (!entry.contains("validation")) return;
    const double known = entry["validation"][std::to_string(trained)];
    const double further = entry["validation"][std::to_string(train.best_length)];
    // Those that reach the floor are ahead of the others and told apart by the other length.
    // Where nothing is right at that length, right tokens tell them apart.
    const std::string length = std::to_string(train.best_length);
    const double tokens = entry.contains("validation_tokens")
                              ? entry["validation_tokens"][length].get<double>()
                              : 0.0;
    const double ahead = further > 0.0 ? further : 1e-6 * tokens;
    const std::pair<double, double> rank =
        known < train.best_floor ? std::pair(0.0, known) : std::pair(1.0, ahead);
    if (rank < highest) return;
    highest = rank;
    best = {entry["step"], further};
  });
  return best;
}

TEST(SequenceExperiment, WhatIsNotLearnedIsNotBest) {
  Recipe recipe = SmallSequences();
  recipe.train.best_length = 1;
  const std::int64_t trained = recipe.task.train_length_max;
  const TemporaryFolder folder;
  std::set<std::int64_t> steps;
  for (const double floor : {0.0, 20.0, 100.0}) {
    recipe.train.best_floor = floor;
    const TrainingJob job = JobOf(recipe, folder.Path() / std::to_string(floor), 60);
    Trained(job);
    const std::int64_t step = BestReading(job.folder, recipe.train, trained).step;
    EXPECT_EQ(ReadTensors(RunFolder(job.folder).BestPath()).metadata.at("step"),
              std::to_string(step));
    steps.insert(step);
  }
  EXPECT_GE(steps.size(), 2U) << "the floors decide nothing here";

  TrainConfig train;
  train.best_floor = 98.0;
  const Metric accuracy;
  const auto rank = [&](double known, double further, std::optional<double> tokens = {}) {
    return CheckpointRank(train, accuracy, {4, known, 100.0}, {8, further, tokens});
  };
  EXPECT_EQ(rank(98.0, 0.0), 0.0);
  EXPECT_LT(rank(97.9, 100.0), 0.0);
  EXPECT_LT(rank(50.0, 100.0), rank(60.0, 0.0));
  // Right tokens tell those apart that have no sample right, and nobody else.
  EXPECT_LT(rank(98.0, 0.0, 60.0), rank(98.0, 0.0, 61.0));
  EXPECT_LT(rank(98.0, 0.0, 100.0), rank(98.0, 0.01, 1.0));
  EXPECT_EQ(rank(98.0, 5.0, 60.0), rank(98.0, 5.0, 61.0));
  const Metric loss = LossMetric("byte");
  EXPECT_GT(CheckpointRank(train, loss, {4, 9.0, {}}, {8, 1.2, {}}),
            CheckpointRank(train, loss, {4, 0.5, {}}, {8, 1.3, {}}));
}

TEST(SequenceExperiment, ValidationCountsTheTokensOfWholeSamples) {
  Recipe recipe = SmallSequences();
  const TemporaryFolder folder;
  const TrainingJob job = JobOf(recipe, folder.Path() / "a", 12);
  Trained(job);
  int validations = 0;
  RunFolder(job.folder).ForEachMetrics([&](const nlohmann::json& entry) {
    if (!entry.contains("validation")) return;
    ++validations;
    for (const auto& [length, right] : entry["validation"].items()) {
      const double tokens = entry["validation_tokens"].at(length);
      EXPECT_GE(tokens, 0.0);
      EXPECT_LE(tokens, 100.0);
      EXPECT_GE(tokens, right.get<double>()) << "a right sample has right tokens alone";
    }
  });
  EXPECT_GT(validations, 0);
}

TEST(SequenceExperiment, WritesWhatArrivesAtEachLayerAndLeavesNoTrace) {
  const Recipe recipe = SmallSequences();
  const TemporaryFolder folder;
  const TrainingJob job = JobOf(recipe, folder.Path() / "a", 12);
  Copied<> model = Trained(job);
  std::vector<std::int64_t> steps;
  RunFolder(job.folder).ForEachMetrics([&](const nlohmann::json& entry) {
    if (!entry.contains("observed")) return;
    steps.push_back(entry["step"]);
    const auto& observed = entry["observed"];
    for (std::int64_t l = 0; l < model.Config().layers; ++l) {
      EXPECT_GT(observed.at("gradient " + std::to_string(l)).get<double>(), 0.0) << entry;
      EXPECT_GE(observed.at("keys " + std::to_string(l)).get<double>(), 1.0) << entry;
    }
    for (const char* distance : {"reach 1", "reach 2", "reach 4"}) {
      EXPECT_GT(observed.at(distance).get<double>(), 0.0) << entry;
    }
    EXPECT_EQ(observed.size(), 2 * static_cast<std::size_t>(model.Config().layers) + 3);
  });
  EXPECT_EQ(steps, (std::vector<std::int64_t>{1, 2, 3, 6, 10, 12}));
  // Takes the same steps by hand, unobserved.
  SequenceExperiment other(job);
  Optimizer optimizer(recipe.train, job.steps, other.FlatParameters(), other.FlatGradients(),
                      other.Parameters());
  for (std::int64_t step = 0; step < job.steps; ++step) {
    other.LossAndGradient(step, {});
    optimizer.Step(step);
  }
  EXPECT_TRUE(at::equal(ReadTensors(RunFolder(job.folder).FinalPath()).tensors[0].second,
                        other.Parameters()[0].second));
}

TEST(SequenceExperiment, KeepsTheBestOfValidation) {
  const Recipe recipe = SmallSequences();
  const TemporaryFolder folder;
  const TrainingJob job = JobOf(recipe, folder.Path() / "a", 60);
  Copied<> model = Trained(job);
  const TensorFile best = ReadTensors(RunFolder(job.folder).BestPath());
  // It says which line of metrics it comes from: the one with the highest accuracy, which is
  // reached again.
  const Reading highest = BestReading(job.folder, recipe.train, recipe.task.train_length_max);
  EXPECT_EQ(best.metadata.at("step"), std::to_string(highest.step));
  EXPECT_EQ(std::stod(best.metadata.at("accuracy")), highest.accuracy);
  const Score again =
      EvaluateLength(model, *recipe.task.Sequences(), Split::kValidation, 4, 10, never);
  EXPECT_NEAR(Metric().Value(again), highest.accuracy, 1e-3);
  // The folder gives the same model, with its task.
  const LoadedSequenceModel loaded = LoadSequenceModel(job.folder);
  EXPECT_EQ(loaded.task_name, "copy");
  EXPECT_EQ(loaded.task->Vocabulary(), 7);
  EXPECT_TRUE(at::equal(loaded.model->FlatParameters(), model.FlatParameters()));
  EXPECT_THROW(LoadSequenceModel(folder.Path()), UsageError);
}

// One that says no model or no task, or says it with another type.
TEST(SequenceExperiment, ADamagedConfigurationIsNamed) {
  const Recipe recipe = SmallSequences();
  const TemporaryFolder folder;
  const TrainingJob job = JobOf(recipe, folder.Path() / "a", 2);
  Trained(job);
  const std::string settings = RunFolder(job.folder).Settings().dump();
  const auto error_with = [&](const std::string& from, const std::string& to) {
    std::ofstream(job.folder / "config.json") << Replaced(settings, from, to);
    return ErrorTextOf([&] { LoadSequenceModel(job.folder); });
  };
  ExpectContains(error_with("{", ""), "config.json: damaged, or not of a run");
  ExpectContains(error_with("\"task\":", "\"task\":3,\"was\":"), "config.json: damaged");
  ExpectContains(error_with("\"name\":\"copy\"", "\"name\":3"),
                 "expected a run on a sequence task");
  ExpectContains(error_with("\"model\":", "\"model\":3,\"was\":"),
                 "config.json: expected an object, got 3");
  ExpectContains(ErrorTextOf([&] { Trained(job); }), "holds a run with other settings");
}

TEST(SequenceExperiment, WhatGoesWrongIsNamedAndTheLastCheckpointIsKept) {
  Recipe recipe = SmallSequences();
  const TemporaryFolder folder;
  const TrainingJob job = JobOf(recipe, folder.Path() / "a");
  const auto train = [&] { Trained(job); };
  // Stopped at step 1, so that there is a checkpoint.
  std::atomic<bool> stop{true};
  EXPECT_THROW(Trained(job, stop), Interrupted);
  const fs::path last = job.folder / "last";
  const at::Tensor kept = ReadTensors(last / "state.safetensors").At("adam.first").clone();

  // A disk that is full: no file may grow beyond a kilobyte.
  rlimit limit{};
  getrlimit(RLIMIT_FSIZE, &limit);
  const rlimit small{1024, limit.rlim_max};
  const auto former = std::signal(SIGXFSZ, SIG_IGN);
  setrlimit(RLIMIT_FSIZE, &small);
  const std::string full = ErrorTextOf(train);
  setrlimit(RLIMIT_FSIZE, &limit);
  std::signal(SIGXFSZ, former);
  ExpectContains(full, "writing failed: File too large");
  EXPECT_TRUE(at::equal(kept, ReadTensors(last / "state.safetensors").At("adam.first")));

  // A run of other settings.
  recipe.train.lr = 1e-3;
  ExpectContains(ErrorTextOf(train), "train.lr was");
  recipe.train.lr = 3e-3;

  // A checkpoint of another model, and a damaged one.
  const fs::path weights = last / "model.safetensors";
  const TensorFile good = ReadTensors(weights);
  WriteTensors(weights, {{{"embedding", at::zeros({2})}}, good.metadata});
  ExpectContains(ErrorTextOf(train), weights.string());
  WriteTensors(weights, {good.tensors, {{"step", "2"}}});
  ExpectContains(ErrorTextOf(train), "of different steps");
  WriteTensors(weights, good);
  fs::resize_file(weights, fs::file_size(weights) / 2);
  ExpectContains(ErrorTextOf(train), weights.string());
  WriteTensors(weights, good);

  // A folder that cannot be made.
  TrainingJob nowhere = job;
  nowhere.folder = weights / "below-a-file";
  ExpectContains(ErrorTextOf([&] { Trained(nowhere); }), "cannot make the folder");

  // Repaired, it goes on as if nothing had been.
  EXPECT_TRUE(at::equal(Trained(job).FlatParameters(),
                        Trained(JobOf(recipe, folder.Path() / "whole")).FlatParameters()));
}

TEST(SequenceExperiment, GoesOnInThePrecisionThatItBeganIn) {
  // One of the two is what this machine would not choose by itself.
  for (const char* compute : {"float32", "bfloat16"}) {
    Recipe recipe = SmallSequences();
    recipe.model.decoder.compute = compute;
    const TemporaryFolder folder;
    const Copied<> whole = Trained(JobOf(recipe, folder.Path() / "whole"));
    const TrainingJob job = JobOf(recipe, folder.Path() / "parts");
    std::atomic<bool> stop{true};
    EXPECT_THROW(Trained(job, stop), Interrupted);
    recipe.model.decoder.compute = "auto";
    const Copied<> parts = Trained(job);
    EXPECT_EQ(parts.Config().compute, compute);
    EXPECT_TRUE(at::equal(parts.FlatParameters(), whole.FlatParameters())) << compute;
  }
}

TEST(SequenceExperiment, ALossOrWeightsThatAreNotFiniteEndTheRun) {
  Recipe recipe = SmallSequences();
  recipe.train.warmup = 0;
  const auto expect_diverged = [&](std::int64_t steps) {
    const TemporaryFolder folder;
    const TrainingJob job = JobOf(recipe, folder.Path() / "a", steps);
    const std::string error = ErrorTextOf([&] { Trained(job); });
    ExpectContains(error, "softmax seed 5: training diverged: the ");
    ExpectContains(error, "not finite; there was no checkpoint yet");
    EXPECT_FALSE(RunFolder(job.folder).Finished());
  };
  recipe.train.lr = 1e30;
  expect_diverged(20);
  recipe.train.lr = 1e38;
  recipe.train.clip = 0.0;
  recipe.train.validate_every = 0;
  expect_diverged(1);  // no step sees the weights
}

// workers 0: as many as there are cores.
ReproduceOptions QuietIn(const TemporaryFolder& folder, int workers = 0) {
  ReproduceOptions options;
  options.progress.quiet = true;
  options.runs = folder.Path();
  options.workers = workers;
  return options;
}

// How many lengths the heads of a described run were looked at.
std::size_t LengthsOfHeads(const Reproduced& done) {
  const fs::path folder = done.study.at("runs").at(0).at("folder").get<std::string>();
  return LoadHeads(folder / "heads-softmax.json").lengths.size();
}

TEST(SequenceStudy, ChoosesLearningRatesOnValidationAndReportsTheChosen) {
  Recipe recipe = SmallSequences();
  recipe.train.lr_grid = {1e-9, 3e-3};
  recipe.scales["quick"].steps = 120;
  recipe.train.validate_every = 60;
  recipe.train.log_every = recipe.train.checkpoint_every = 60;
  recipe.train.best_length = 1;  // the rate that learns is ahead there
  recipe.methods.pop_back();
  recipe.methods[0].paper = {99.0};
  const TemporaryFolder folder;
  ReproduceOptions options = QuietIn(folder, 2);
  const Reproduced results = Reproduction(recipe, options).Run(never);
  EXPECT_TRUE(results.failures.empty());
  ASSERT_EQ(results.study["runs"].size(), 2U);  // two seeds
  EXPECT_EQ(results.study["methods"][0]["paper"].dump(), R"({"3":99.0})");
  EXPECT_EQ(results.study["bins"], (std::vector<int>{0, 1, 2, 3, 4, 6}));
  // The heads are observed; both lengths are short enough to be drawn.
  EXPECT_EQ(LengthsOfHeads(results), 2U);
  EXPECT_EQ(results.study["runs"][0]["map_lengths"], (std::vector<int>{3, 5}));
  EXPECT_TRUE(results.study["runs"][1]["map_lengths"].empty());
  const auto& samples = results.study["samples"];
  ASSERT_EQ(samples.size(), 2U);
  EXPECT_EQ(samples[1]["words"].size(), 12U);
  EXPECT_EQ(samples[1]["words"][0], "<bos>");
  EXPECT_EQ(samples[1]["scored"], (std::vector<bool>{0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1}));
  EXPECT_EQ(results.study["chosen"].dump(), R"({"softmax":0.003})");
  // Nothing was chosen for a method that has not been trained.
  Recipe more = recipe;
  more.methods.push_back(SmallSequences().methods.back());
  ReproduceOptions finished = options;
  finished.finished_only = true;
  EXPECT_EQ(Reproduction(more, finished).Run(never).study["chosen"], results.study["chosen"]);
  const fs::path method = folder.Path() / "small" / "quick" / "softmax";
  EXPECT_TRUE(fs::exists(method / "lr-0.003" / "seed-2" / "eval-softmax.json"));
  EXPECT_TRUE(fs::exists(method / "lr-1e-09" / "seed-2" / "model.safetensors"));
  EXPECT_FALSE(fs::exists(method / "lr-1e-09" / "seed-2" / "eval-softmax.json"));
  // A length that was evaluated is kept, whatever others are asked for later.
  const fs::path scores = method / "lr-0.003" / "seed-2" / "eval-softmax.json";
  std::vector<Score> rows = LoadScores(scores);
  rows.back()["hits"] = rows.back()["asked"];
  SaveScores(scores, {rows.back()});
  options.resume = true;
  recipe.task.eval_lengths = {3, 4, 5};
  options.map_lengths = {4};
  const Reproduced again = Reproduction(recipe, options).Run(never);
  EXPECT_EQ(LengthsOfHeads(again), 3U);
  ASSERT_EQ(again.study["samples"].size(), 1U);
  EXPECT_EQ(again.study["samples"][0]["n"], 4);
  EXPECT_EQ(again.study["runs"][0]["samples"]["softmax"], (std::vector<int>{20, 20, 20}));
  rows = LoadScores(scores);
  ASSERT_EQ(rows.size(), 3U);
  EXPECT_EQ(FindScore(rows, 5, 20)->at("hits"), 20);
  // Heads of a finished job whose weights are gone are not looked at, and nothing is trained again.
  fs::remove(method / "lr-0.003" / "seed-1" / "heads-softmax.json");
  fs::remove(method / "lr-0.003" / "seed-1" / "model.safetensors");
  options.finished_only = true;
  EXPECT_TRUE(Reproduction(recipe, options).Run(never).study["samples"].empty());
  EXPECT_FALSE(fs::exists(method / "lr-0.003" / "seed-1" / "heads-softmax.json"));
}

TEST(SequenceStudy, ReadsFewSamplesWhereAllIsLost) {
  Recipe recipe = SmallSequences();
  recipe.methods.pop_back();
  recipe.train.lr = 1e-9;  // nothing is learned
  recipe.scales["quick"].seeds = 1;
  recipe.task.eval_lengths = {20, 30, 40, 50};
  recipe.task.eval_samples_lost = 2;
  const TemporaryFolder folder;
  ReproduceOptions options = QuietIn(folder, 1);
  const Reproduced results = Reproduction(recipe, options).Run(never);
  EXPECT_EQ(results.study["task"]["lost"], 2);
  EXPECT_EQ(results.study["runs"][0]["samples"]["softmax"], (std::vector<int>{20, 20, 2, 2}));
  const fs::path path =
      folder.Path() / "small" / "quick" / "softmax" / "seed-1" / "eval-softmax.json";
  std::vector<Score> scores = LoadScores(path);
  ASSERT_EQ(scores.size(), 4U);
  ASSERT_EQ(scores[0]["hits"], 0);
  ASSERT_EQ(scores[1]["hits"], 0);
  EXPECT_EQ(scores[1]["samples"], recipe.task.eval_samples);
  EXPECT_EQ(scores[2]["samples"], 2);
  EXPECT_EQ(scores[3]["samples"], 2);
  // One right answer, and the next length is read in full.
  scores[1]["hits"] = 1;
  SaveScores(path, {scores[0], scores[1]});
  options.resume = true;
  Reproduction(recipe, options).Run(never);
  scores = LoadScores(path);
  ASSERT_EQ(scores.size(), 4U);
  EXPECT_EQ(scores[2]["samples"], recipe.task.eval_samples);
  EXPECT_EQ(scores[3]["samples"], recipe.task.eval_samples);
}

// Two machines, in turn and at once, do what one does.
TEST(SequenceStudy, ShardsDivideTheJobs) {
  const Recipe recipe = SmallSequences();  // two methods, two seeds
  const TemporaryFolder whole_folder, folder;
  ReproduceOptions options = QuietIn(whole_folder, 1);
  const Reproduced whole = Reproduction(recipe, options).Run(never);
  EXPECT_EQ(whole.unfinished, 0U);
  options.runs = folder.Path();
  std::size_t unfinished[2];
  std::vector<std::thread> machines;
  for (int i = 0; i < 2; ++i) {
    machines.emplace_back([&, i] {
      ReproduceOptions own = options;
      own.shard = {i, 2};
      unfinished[i] = Reproduction(recipe, own).Run(never).unfinished;
    });
  }
  for (std::thread& machine : machines) machine.join();
  EXPECT_EQ(std::min(unfinished[0], unfinished[1]), 0U) << "the last one has all";
  options.finished_only = true;
  const Reproduced shared = Reproduction(recipe, options).Run(never);
  ASSERT_EQ(shared.study["runs"].size(), 4U);
  for (std::size_t i = 0; i < 4; ++i) {
    const auto& own = shared.study["runs"][i];
    const std::string file = "eval-" + own["method"].get<std::string>() + ".json";
    const auto scores = [&](const Reproduced& of) {
      return LoadScores(fs::path(of.study["runs"][i]["folder"].get<std::string>()) / file);
    };
    EXPECT_FALSE(scores(whole).empty());
    EXPECT_EQ(scores(shared), scores(whole));
  }
  options.finished_only = false;
  options.resume = true;
  options.shard = {4, 5};
  ExpectContains(UsageErrorOf([&] { Reproduction(recipe, options).Run(never); }), "got 5");
}

TEST(SequenceStudy, ARunThatAnotherProcessWorksOnIsLeftAlone) {
  Recipe recipe = SmallSequences();
  recipe.methods.pop_back();
  recipe.scales["quick"].seeds = 2;
  const TemporaryFolder folder;
  ReproduceOptions options = QuietIn(folder);
  const fs::path run = folder.Path() / "small" / "quick" / "softmax" / "seed-2";
  {
    const FolderLock lock(run);
    EXPECT_THROW(FolderLock second(run), std::runtime_error);
    options.resume = true;
    const Reproduced results = Reproduction(recipe, options).Run(never);
    ASSERT_EQ(results.failures.size(), 1U);
    ExpectContains(results.failures[0], "seed-2: another process is at work on this run");
    EXPECT_EQ(results.unfinished, 1U);
  }
  EXPECT_TRUE(Reproduction(recipe, options).Run(never).failures.empty());
}

TEST(SequenceStudy, AStudyMayStartFromTheWeightsOfAnother) {
  Recipe recipe = SmallSequences();
  recipe.train.validate_every = 0;
  recipe.methods.pop_back();
  recipe.scales["quick"].seeds = 1;
  const TemporaryFolder folder;
  ReproduceOptions options = QuietIn(folder);
  Reproduction(recipe, options).Run(never);
  Recipe tuned = recipe;
  tuned.name = "tuned";
  tuned.train.start = "small/quick";
  tuned.train.lr = 1e-9;
  Reproduction(tuned, options).Run(never);
  const auto weights = [&](const char* study) {
    const fs::path path = folder.Path() / study / "quick" / "softmax" / "seed-1";
    return ReadTensors(path / "model.safetensors").tensors;
  };
  const auto before = weights("small");
  const auto after = weights("tuned");
  ASSERT_EQ(before.size(), after.size());
  for (std::size_t i = 0; i < before.size(); ++i) {
    EXPECT_TRUE(at::allclose(before[i].second, after[i].second, 1e-4, 1e-6)) << before[i].first;
  }
  // A finished run needs them no longer; another one does.
  fs::remove_all(folder.Path() / "small");
  options.resume = true;
  EXPECT_TRUE(Reproduction(tuned, options).Run(never).failures.empty());
  options.first_seed = 2;
  ExpectContains(UsageErrorOf([&] { Reproduction(tuned, options).Run(never); }),
                 "small/quick/softmax/seed-2: no weights to start from; `tsallis reproduce small "
                 "--scale quick` makes them");
}

// Other positions on the weights of a training: as if its own weights were read with them.
TEST(SequenceStudy, AMethodMayReadTheWeightsOfAnother) {
  Recipe recipe = SmallSequences();
  recipe.task.generator = MakeSequenceTask("n-back", {"symbols=3"});
  recipe.task.settings = {{"symbols", "3"}};
  recipe.task.eval_lengths = {3, 80};
  recipe.train.validate_every = 0;
  recipe.train.lr = 1e-2;
  recipe.scales["quick"].steps = 80;
  recipe.scales["quick"].seeds = 1;
  MethodConfig rope;
  rope.name = rope.label = "rope";
  rope.attention.emplace().given = {"positions"};
  rope.attention->attention.positions.kind = "rope";
  MethodConfig ntk = rope;
  ntk.name = ntk.label = "ntk";
  ntk.attention->attention.positions.scaling.kind = "ntk";
  ntk.weights_of = "rope";
  recipe.methods = {ntk, rope};
  const TemporaryFolder folder;
  ReproduceOptions options = QuietIn(folder);
  const Reproduced results = Reproduction(recipe, options).Run(never);
  ASSERT_TRUE(results.failures.empty());
  ASSERT_EQ(results.study["runs"].size(), 1U);
  EXPECT_EQ(results.study["runs"][0]["method"], "rope");
  EXPECT_EQ(results.study["runs"][0]["samples"].size(), 2U);
  EXPECT_FALSE(fs::exists(folder.Path() / "small" / "quick" / "ntk"));
  const fs::path run = folder.Path() / "small" / "quick" / "rope" / "seed-1";
  const Score own = LoadScores(run / "eval-rope.json").back();
  const Score borrowed = LoadScores(run / "eval-ntk.json").back();
  Decoder model(recipe.Decoder(ntk), 9);
  LoadParameters(run / "model.safetensors", model.Parameters());
  const Score expected = EvaluateLength(model, *recipe.task.Sequences(), Split::kTest, own["n"],
                                        own["samples"], never);
  EXPECT_EQ(borrowed["hits"], expected["hits"]);
  EXPECT_NE(borrowed["hits"], own["hits"]);  // longer than in training
  // Weights that are read otherwise have other scores; what was kept does not stand for them.
  Recipe changed = recipe;
  changed.methods[0].attention->attention.positions.scaling.kind = "linear";
  changed.methods[0].attention->attention.positions.scaling.factor = 8.0;
  options.resume = true;
  ASSERT_TRUE(Reproduction(changed, options).Run(never).failures.empty());
  Decoder other(changed.Decoder(changed.methods[0]), 9);
  LoadParameters(run / "model.safetensors", other.Parameters());
  EXPECT_EQ(
      LoadScores(run / "eval-ntk.json").back()["hits"],
      EvaluateLength(other, *recipe.task.Sequences(), Split::kTest, own["n"], own["samples"], never)
          .at("hits"));
  // A rate cannot be chosen for weights whose training has its own.
  Recipe chosen = recipe;
  chosen.methods[1].train = recipe.train;
  chosen.train.lr_grid = {1e-3, 3e-3};
  options.methods = {"ntk"};
  ExpectContains(UsageErrorOf([&] { Reproduction(chosen, options).Run(never); }),
                 "method \"rope\" is trained in its own way");
  // Heads are looked at once, under the positions of the training.
  EXPECT_TRUE(fs::exists(run / "heads-rope.json"));
  EXPECT_FALSE(fs::exists(run / "heads-ntk.json"));
}

TEST(Memory, WhatNoMachineHasIsRefusedWithTheKeysThatDecide) {
  Recipe recipe = SmallSequences();
  recipe.train.batch = 1 << 20;
  recipe.train.accumulate = 1;
  recipe.model.decoder.layers = 3;
  const TrainingJob job = JobOf(recipe, "unused");
  // Three layers of width 32 with as many hidden ones, and 2^20 samples of the shortest length.
  const double weights = 16.0 * 3.0 * 32.0 * (2.0 * 32.0 + 2.0 * 32.0);
  const double kept =
      2.0 * 3.0 * 32.0 * 1048576.0 * static_cast<double>(recipe.task.train_length_min);
  EXPECT_DOUBLE_EQ(LeastMemory(job), weights + kept);
  CheckMemory(job, weights + kept);
  ExpectContains(UsageErrorOf([&] { CheckMemory(job, 1e6); }),
                 "only 1 MB are available: lower model.layers, model.width, train.batch");
  recipe.train.accumulate = 4;
  EXPECT_DOUBLE_EQ(LeastMemory(job), weights + kept / 4.0);
  EXPECT_GT(MemoryLimit(), 1e8);
}

}  // namespace
}  // namespace tsallis::lab
