// The lab's path from a recipe to results: gradients, data, checkpoints, resuming, the queue.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <fstream>
#include <map>
#include <set>

#include "lab/base/files.h"
#include "lab/base/safetensors.h"
#include "lab/eval/evaluate_sets.h"
#include "lab/nn/set_attention.h"
#include "lab/studies/reproduce.h"
#include "lab/testing/lab_test_support.h"
#include "lab/train/load_model.h"
#include "lab/train/run_folder.h"
#include "lab/train/set_experiment.h"
#include "torch/operators.h"

namespace tsallis::lab {
namespace {

namespace fs = std::filesystem;

ReproduceOptions QuietIn(const fs::path& folder) {
  ReproduceOptions options;
  options.progress.quiet = true;
  options.runs = folder;
  return options;
}

// The evaluations of the described runs, by their path below the folder of all runs.
std::map<std::string, std::string> Evaluations(const Reproduced& done, const fs::path& root) {
  std::map<std::string, std::string> texts;
  for (const auto& run : done.study.at("runs")) {
    const fs::path folder = run.at("folder").get<std::string>();
    for (const auto& [method, unused] : run.at("samples").items()) {
      const fs::path path = folder / ("eval-" + method + ".json");
      texts[fs::relative(path, root).string()] = ReadFile(path).value_or("");
    }
  }
  return texts;
}

SetAttention TrainSet(const TrainingJob& job) {
  SetExperiment experiment(job);
  Train(experiment, job, Silent, never);
  return std::move(experiment.Model());
}

bool SameBits(const SetAttention& a, const SetAttention& b) {
  return torch::equal(a.FlatParameters(), b.FlatParameters());
}

// Softmax, entmax, and entmax with ASEntmax's scaling, each with a norm on the attention's output.
std::vector<MethodConfig> Normed(const Recipe& recipe) {
  std::vector<MethodConfig> methods = {recipe.methods[0], recipe.methods[2], recipe.methods[2]};
  methods[1].length_scaling = {};
  const char* names[] = {"softmax-norm", "entmax-norm", "asentmax-norm"};
  for (std::size_t i = 0; i < methods.size(); ++i) {
    methods[i].name = methods[i].label = names[i];
    methods[i].output_norm = "layer-norm";
    methods[i].paper.clear();
  }
  return methods;
}

// The norm's gain and bias as after some training: at first they change nothing.
void DrawNorm(const SetAttention& model) {
  torch::manual_seed(4);
  for (const auto& [name, parameter] : model.Parameters()) {
    if (name.starts_with("attention.out_norm.")) parameter.normal_(0.0, 0.5);
  }
}

// The model as the paper's listing has it, projections unfolded, with torch's own operations and
// autograd.
torch::Tensor PlainForward(const std::map<std::string, torch::Tensor>& p, const SetBatch& batch,
                           const MethodConfig& method) {
  const auto linear = [&](const std::string& name, const torch::Tensor& x) {
    const auto bias = p.find(name + ".bias");
    return torch::linear(x, p.at(name + ".weight"),
                         bias == p.end() ? torch::Tensor() : bias->second);
  };
  const auto gelu = [](const torch::Tensor& x) { return torch::gelu(x, "tanh"); };
  const auto h = gelu(linear("item.1", gelu(linear("item.0", batch.items.to(torch::kDouble)))));
  const auto q = linear("attention.query",
                        linear("query.1", gelu(linear("query.0", batch.query.to(torch::kDouble)))));
  auto scores = torch::bmm(linear("attention.key", h), q.unsqueeze(2)).squeeze(2) / std::sqrt(32.0);
  const double log_n = std::log(static_cast<double>(batch.items.size(1)));
  if (method.length_scaling.kind == LengthScaling::Kind::kScalar) {
    scores = scores *
             (1.0 + p.at("attention.length_scale") * std::pow(log_n, method.length_scaling.gamma));
  } else if (method.length_scaling.kind == LengthScaling::Kind::kSSMax) {
    scores = scores * (p.at("attention.length_scale") * log_n);
  }
  const auto weights = method.map == "softmax" ? scores.softmax(1) : Entmax(scores, 1.5, 1);
  const auto pooled = torch::bmm(weights.unsqueeze(1), linear("attention.value", h)).squeeze(1);
  auto attended = linear("attention.out", pooled);
  if (method.output_norm == "layer-norm") {
    attended =
        torch::layer_norm(attended, {attended.size(1)}, 1.0 + p.at("attention.out_norm.weight"),
                          p.at("attention.out_norm.bias"), 1e-6);
  }
  return linear("head.1", gelu(linear("head.0", attended)));
}

TEST(SetAttention, LossAndGradientEqualThePlainModelInDouble) {
  Recipe recipe = SmallRecipe();
  MethodConfig ssmax = recipe.methods[0];
  ssmax.length_scaling.kind = LengthScaling::Kind::kSSMax;
  MethodConfig entmax = recipe.methods[2];
  const MaxRetrieval task(recipe.task);
  std::vector<MethodConfig> methods = {recipe.methods[0], ssmax, entmax};
  const std::vector<MethodConfig> normed = Normed(recipe);
  methods.insert(methods.end(), normed.begin(), normed.end());
  for (const MethodConfig& method : methods) {
    SetAttention model(recipe.model.width, task.Features(), task.Classes(), method, 3);
    DrawNorm(model);
    const SetBatch batch = task.TrainBatch(1, 2, 24);
    std::map<std::string, torch::Tensor> plain;
    for (const auto& [name, parameter] : model.Parameters()) {
      plain[name] = parameter.to(torch::kDouble).requires_grad_();
    }
    const auto scores = PlainForward(plain, batch, method);
    const auto loss = torch::nn::functional::cross_entropy(scores, batch.target);
    loss.backward();
    for (int repeat = 0; repeat < 2;
         ++repeat) {  // the second call must not add to the first one's gradient
      const BatchScore score = model.LossAndGradient(batch);
      EXPECT_NEAR(score.loss, loss.item<double>(), 1e-5) << method.name;
      EXPECT_EQ(score.hits, scores.argmax(1).eq(batch.target).sum().item<std::int64_t>());
    }
    EXPECT_TRUE(torch::allclose(model.Forward(batch).to(torch::kDouble), scores, 1e-4, 1e-5));
    for (std::size_t i = 0; i < model.Gradients().size(); ++i) {
      const std::string& name = model.Parameters()[i].first;
      const auto expected = plain.at(name).grad();
      const auto error =
          (model.Gradients()[i].to(torch::kDouble) - expected).abs().max().item<double>();
      EXPECT_LT(error, 1e-6 + 1e-4 * expected.abs().max().item<double>())
          << method.name << " " << name;
    }
  }
}

TEST(SetAttention, ANormLeavesTheOtherParametersAndAMapCanBeChangedBehindIt) {
  const Recipe recipe = SmallRecipe();
  const MaxRetrieval task(recipe.task);
  const auto made = [&](const MethodConfig& method) {
    return SetAttention(recipe.model.width, task.Features(), task.Classes(), method, 3);
  };
  for (const MethodConfig& method : Normed(recipe)) {
    MethodConfig without = method;
    without.output_norm = "none";
    const SetAttention plain = made(without);
    SetAttention normed = made(method);
    ASSERT_EQ(normed.Parameters().size(), plain.Parameters().size() + 2);
    for (std::size_t i = 0; i < plain.Parameters().size(); ++i) {
      EXPECT_EQ(plain.Parameters()[i].first, normed.Parameters()[i].first);
      EXPECT_TRUE(torch::equal(plain.Parameters()[i].second, normed.Parameters()[i].second));
    }
    // Whatever the set's size, the head's MLP reads rows of mean 0 and variance 1: a gain of 0
    // leaves the bias, and all sets one answer.
    const SetBatch batch = task.EvalBatch(Split::kTest, 64, 0, 8);
    const torch::Tensor before = normed.Forward(batch).clone();
    normed.Parameters()[plain.Parameters().size()].second.fill_(-1.0);
    const torch::Tensor same = normed.Forward(batch);
    EXPECT_TRUE(torch::equal(same, same[0].expand_as(same)));
    normed.Parameters()[plain.Parameters().size()].second.zero_();
    // Another map reads the same weights, the norm among them.
    SetAttentionConfig other = method;
    other.theta = 1e3;
    normed.Attend(other);
    EXPECT_FALSE(torch::equal(normed.Forward(batch), before));
    normed.Attend(method);
    EXPECT_TRUE(torch::equal(normed.Forward(batch), before));
    EXPECT_EQ(UsageErrorOf([&] { normed.Attend(without); }),
              "output_norm: expected \"layer-norm\", which the weights were trained with, got "
              "\"none\"");
  }
}

TEST(SetAttention, SameBitsForAnyNumberOfThreadsAndAfterLoading) {
  Recipe recipe = SmallRecipe();
  recipe.methods = Normed(recipe);
  const MaxRetrieval task(recipe.task);
  const SetBatch batch = task.EvalBatch(Split::kTest, 64, 0, 8);
  const int threads = at::get_num_threads();
  for (const MethodConfig& method : recipe.methods) {
    const TemporaryFolder folder;
    at::set_num_threads(1);
    SetAttention model = TrainSet({&recipe, &method, 5, 3, folder.Path() / "a"});
    model.LossAndGradient(batch);
    const torch::Tensor gradient = model.FlatGradients().clone();
    at::set_num_threads(3);
    model.LossAndGradient(batch);
    EXPECT_TRUE(torch::equal(model.FlatGradients(), gradient)) << method.name;
    at::set_num_threads(threads);
    LoadedSetModel loaded = LoadSetModel(folder.Path() / "a");
    EXPECT_TRUE(loaded.config == static_cast<const SetAttentionConfig&>(method)) << method.name;
    EXPECT_TRUE(SameBits(model, loaded.model)) << method.name;
    EXPECT_TRUE(torch::equal(model.Forward(batch), loaded.model.Forward(batch))) << method.name;
  }
  // A word that no version of the lab writes.
  const TemporaryFolder folder;
  TrainSet({&recipe, &recipe.methods[0], 5, 1, folder.Path() / "a"});
  const fs::path config = folder.Path() / "a" / "config.json";
  const std::string text = Replaced(ReadFile(config).value(), "\"layer-norm\"", "\"batch-norm\"");
  std::ofstream(config, std::ios::binary) << text;
  ExpectContains(UsageErrorOf([&] { LoadSetModel(folder.Path() / "a"); }),
                 "output_norm: expected \"none\" or \"layer-norm\", got \"batch-norm\"");
}

TEST(SetAttention, SpreadIsThatOfTheScoresAndWithinItsBound) {
  const Recipe recipe = SmallRecipe();
  MethodConfig method = recipe.methods[0];
  method.length_scaling.kind = LengthScaling::Kind::kSSMax;
  const MaxRetrieval task(recipe.task);
  SetAttention model(recipe.model.width, task.Features(), task.Classes(), method, 3);
  for (const auto& [name, parameter] : model.Parameters()) {
    if (name == "attention.query.bias") parameter.normal_();  // 0 at first
  }
  const SetBatch batch = task.EvalBatch(Split::kValidation, 16, 0, 32);
  const SetBatch trained = task.TrainBatch(1, 2, 24);
  model.LossAndGradient(trained);
  const torch::Tensor gradient = model.FlatGradients().clone();
  const LogitSpread spread = model.Spread(batch);
  // Softmax's weights give the scores up to a constant a set.
  AttentionView view;
  model.Forward(batch, &view);
  const torch::Tensor scores = view.weights.to(torch::kDouble).log();
  EXPECT_NEAR(spread.spread, (scores.amax(1) - scores.amin(1)).mean().item<double>(),
              1e-4 * spread.spread);
  EXPECT_GT(spread.bound, spread.spread);
  EXPECT_TRUE(torch::equal(model.FlatGradients(), gradient));
}

TEST(MaxRetrieval, DataIsAFunctionOfSeedAndIndex) {
  const MaxRetrieval task(SmallRecipe().task);
  const SetBatch a = task.TrainBatch(3, 7, 8);
  const SetBatch b = task.TrainBatch(3, 7, 8);
  EXPECT_TRUE(torch::equal(a.items, b.items) && torch::equal(a.target, b.target) &&
              torch::equal(a.query, b.query));
  EXPECT_FALSE(torch::equal(a.query, task.TrainBatch(4, 7, 8).query));
  EXPECT_FALSE(torch::equal(a.query, task.TrainBatch(3, 8, 8).query));
  std::set<std::int64_t> lengths;
  for (std::int64_t step = 0; step < 400; ++step)
    lengths.insert(task.TrainBatch(1, step, 1).items.size(1));
  EXPECT_EQ(*lengths.begin(), 5);
  EXPECT_EQ(*lengths.rbegin(), 16);
  EXPECT_EQ(lengths.size(), 12U);
  // The target is the class of the item with the highest priority, and slices of the evaluation
  // list agree.
  const SetBatch all = task.EvalBatch(Split::kTest, 64, 0, 6);
  const auto best = all.items.select(2, 0).argmax(1);
  const auto classes = all.items.narrow(2, 1, 10).argmax(2).gather(1, best.unsqueeze(1)).squeeze(1);
  EXPECT_TRUE(torch::equal(classes, all.target));
  EXPECT_TRUE(
      torch::equal(all.items.narrow(0, 4, 2), task.EvalBatch(Split::kTest, 64, 4, 2).items));
  EXPECT_FALSE(torch::equal(all.items, task.EvalBatch(Split::kValidation, 64, 0, 6).items));
}

TEST(Safetensors, RoundTripAndDamage) {
  const TemporaryFolder folder;
  const fs::path path = folder.Path() / "x.safetensors";
  const TensorFile file{{{"a", torch::randn({2, 3})},
                         {"b", torch::arange(4, torch::kLong)},
                         {"c", torch::randn({3}).to(torch::kBFloat16)},
                         {"empty", torch::empty({0, 4})}},
                        {{"step", "7"}}};
  WriteTensors(path, file);
  const TensorFile back = ReadTensors(path);
  ASSERT_EQ(back.tensors.size(), file.tensors.size());
  for (const auto& [name, tensor] : file.tensors)
    EXPECT_TRUE(torch::equal(tensor, back.At(name))) << name;
  EXPECT_EQ(back.metadata.at("step"), "7");
  EXPECT_THROW(back.At("nothing"), std::runtime_error);
  const auto size = fs::file_size(path);
  for (const auto cut :
       {size - 1, size / 2, std::uintmax_t{9}, std::uintmax_t{3}, std::uintmax_t{0}}) {
    fs::resize_file(path, cut);
    EXPECT_THROW(ReadTensors(path), std::runtime_error) << cut;
  }
  std::ofstream(path, std::ios::trunc) << std::string(100, '\xff');
  EXPECT_THROW(ReadTensors(path), std::runtime_error);
  EXPECT_THROW(ReadTensors(folder.Path() / "none"), std::runtime_error);
  EXPECT_THROW(WriteTensors(folder.Path() / "none" / "x", file), std::runtime_error);
}

TEST(Safetensors, AFlippedBitIsNoticedAnywhere) {
  const TemporaryFolder folder;
  const fs::path path = folder.Path() / "x.safetensors";
  const TensorFile file{{{"a", torch::randn({300})}, {"b", torch::arange(4, torch::kLong)}},
                        {{"step", "7"}}};
  WriteTensors(path, file);
  EXPECT_FALSE(ReadTensors(path).metadata.contains("crc32c"));
  const std::string good = ReadFile(path).value();
  const std::size_t data = good.size() - 300 * sizeof(float) - 4 * sizeof(std::int64_t);
  const std::size_t step = good.find("\"7\"") + 1;  // a header that says another step
  for (const std::size_t at : {step, data, data + 1003, good.size() - 1}) {
    for (const int bit : {0, 5}) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ (1 << bit));
      std::ofstream(path, std::ios::binary) << bad;
      ExpectContains(ErrorTextOf([&] { ReadTensors(path); }),
                     path.string() + ": damaged: its checksum");
    }
  }

  // A file of before there were checksums.
  const std::string header =
      R"({"__metadata__":{"step":"7"},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
  const std::uint64_t length = header.size();
  std::ofstream(path, std::ios::binary) << std::string(reinterpret_cast<const char*>(&length), 8)
                                        << header << std::string("\0\0\x80\x3f", 4);
  const TensorFile old = ReadTensors(path);
  EXPECT_EQ(old.At("a").item<float>(), 1.0F);
  EXPECT_EQ(old.metadata.at("step"), "7");
}

TEST(Reproduce, RunsAreTheSameForAnyNumberOfWorkersAndAfterResuming) {
  const Recipe recipe = SmallRecipe();
  ReproduceOptions options;
  options.progress.quiet = true;
  const auto run = [&](const fs::path& folder, int workers) {
    options.runs = folder;
    options.workers = workers;
    return Reproduction(recipe, options).Run(never);
  };
  const TemporaryFolder one;
  const TemporaryFolder two;
  const Reproduced a = run(one.Path(), 1);
  const auto evaluations = Evaluations(a, one.Path());
  ASSERT_EQ(evaluations.size(), 6U);  // three methods, two seeds
  EXPECT_EQ(Evaluations(run(two.Path(), 3), two.Path()), evaluations);
  for (const auto& described : a.study["runs"]) {
    const fs::path folder = described["folder"].get<std::string>();
    EXPECT_EQ(MetricsOf(folder), MetricsOf(two.Path() / fs::relative(folder, one.Path())));
    EXPECT_EQ(described["samples"].front(), (std::vector<int>{64, 64}));
    std::vector<int> steps;
    RunFolder(folder).ForEachMetrics([&](const nlohmann::json& entry) {
      if (!entry.contains("observed")) return;
      steps.push_back(entry["step"]);
      EXPECT_LT(entry["observed"]["spread"], entry["observed"]["bound"]);
    });
    ASSERT_GE(steps.size(), 4U);
    EXPECT_EQ(std::vector<int>(steps.begin(), steps.begin() + 4), (std::vector<int>{1, 2, 3, 6}));
  }
  EXPECT_EQ(a.study["methods"][0]["paper"].dump(), R"({"16":90.0})");
  EXPECT_EQ(a.study["methods"][2]["settings"]["length_scaling"]["kind"], "scalar");
  EXPECT_EQ(a.study["runs"][0]["samples"].size(), 2U);  // of another method, too
  EXPECT_THROW(run(one.Path(), 1), UsageError);         // a run is there and --resume was not given
  options.resume = true;
  EXPECT_EQ(Evaluations(run(one.Path(), 2), one.Path()), evaluations);
}

TEST(Reproduce, DescribesWhatIsFinishedEvaluationByEvaluation) {
  const Recipe recipe = SmallRecipe();
  const TemporaryFolder folder;
  ReproduceOptions options = QuietIn(folder.Path());
  const Reproduced all = Reproduction(recipe, options).Run(never);
  options.finished_only = true;
  EXPECT_EQ(Reproduction(recipe, options).Run(never).study["runs"], all.study["runs"]);
  // Two methods share weights, and one of them has not been evaluated yet.
  const fs::path study = folder.Path() / "small" / "quick";
  fs::remove(study / "softmax" / "seed-2" / "eval-adaptive-temperature.json");
  fs::remove(study / "asentmax-3" / "seed-1" / "eval-asentmax-3.json");
  fs::remove(study / "asentmax-3" / "seed-2" / "eval-asentmax-3.json");
  const Reproduced some = Reproduction(recipe, options).Run(never);
  ASSERT_EQ(some.study["runs"].size(), 2U);
  EXPECT_EQ(some.study["runs"][0], all.study["runs"][0]);
  EXPECT_EQ(some.study["runs"][1]["samples"].size(), 1U);
  EXPECT_TRUE(some.study["runs"][1]["samples"].contains("softmax"));
}

// A recipe that chooses rates by runs of one seed.
Recipe ChoosingRecipe(const std::vector<double>& rates, std::int64_t samples, std::int64_t steps) {
  Recipe recipe = SmallRecipe();
  recipe.train.lr_grid = rates;
  recipe.train.l2 = 0.0;
  recipe.train.validate_every = 1000;  // at the end only
  recipe.train.best_length = 16;
  recipe.train.validate_samples = samples;
  recipe.scales["quick"].grid_steps = steps;
  recipe.scales["quick"].grid_seeds = 1;
  return recipe;
}

TEST(Reproduce, LearningRatesAreChosenByShorterRunsWhoseWeightsNeedNotBeKept) {
  Recipe recipe = ChoosingRecipe({1e-9, 3e-3}, 64, 400);
  const TemporaryFolder folder;
  ReproduceOptions options = QuietIn(folder.Path());
  const Reproduced done = Reproduction(recipe, options).Run(never);
  EXPECT_EQ(done.study["train"]["lr_grid"], (std::vector<double>{1e-9, 3e-3}));
  EXPECT_EQ(done.study["grid"].dump(), R"({"steps":400,"seeds":1,"spare":false,"widen":0})");
  EXPECT_EQ(done.study["chosen"]["softmax"], 0.003);
  EXPECT_EQ(done.study["chosen"].size(), 2U);
  EXPECT_EQ(done.study["runs"].size(), 4U);  // two seeds at the chosen rates
  const fs::path method = folder.Path() / "small" / "quick" / "softmax";
  const fs::path grid = method / "lr-0.003" / "steps-400" / "seed-1";
  EXPECT_TRUE(fs::exists(grid / "model.safetensors"));
  EXPECT_FALSE(fs::exists(method / "lr-0.003" / "steps-400" / "seed-2"));
  EXPECT_TRUE(fs::exists(method / "lr-0.003" / "seed-2" / "eval-softmax.json"));
  EXPECT_FALSE(fs::exists(method / "lr-1e-09" / "seed-1"));
  // Metrics tell which rate is chosen: committed runs have no weights.
  fs::remove(grid / "model.safetensors");
  fs::remove_all(grid / "best");
  options.resume = true;
  EXPECT_EQ(Reproduction(recipe, options).Run(never).study, done.study);
  EXPECT_FALSE(fs::exists(grid / "model.safetensors"));
  // One rate needs no choice.
  recipe.train.lr_grid = {3e-3};
  EXPECT_TRUE(Reproduction(recipe, options).Run(never).study["chosen"].empty());
}

TEST(Reproduce, AnEndThatWinsWidensTheGridAndASpareSeedChooses) {
  Recipe recipe = ChoosingRecipe({1e-7, 1e-5}, 512, 200);
  recipe.scales["quick"].grid_seed = 11;
  recipe.scales["quick"].grid_widen = 2;
  const TemporaryFolder folder;
  ReproduceOptions options = QuietIn(folder.Path());
  const Reproduced done = Reproduction(recipe, options).Run(never);
  EXPECT_EQ(done.study["grid"].dump(), R"({"steps":200,"seeds":1,"spare":true,"widen":2})");
  const fs::path method = folder.Path() / "small" / "quick" / "softmax";
  EXPECT_TRUE(fs::exists(method / "lr-1e-05" / "steps-200" / "seed-11"));
  EXPECT_TRUE(fs::exists(method / "lr-0.001" / "steps-200" / "seed-11"));
  EXPECT_FALSE(fs::exists(method / "lr-1e-09"));  // nothing is gained at that end
  EXPECT_GE(done.study["chosen"]["softmax"], 1e-3);
  EXPECT_EQ(done.study["runs"].size(), 4U);
  EXPECT_EQ(done.study["runs"][0]["seed"], 1);  // not the spare one
  options.finished_only = true;
  EXPECT_EQ(Reproduction(recipe, options).Run(never).study, done.study);
}

TEST(Reproduce, AJobThatFailsIsNamedAndTheOthersFinish) {
  Recipe recipe = SmallRecipe();
  const TemporaryFolder folder;
  ReproduceOptions options = QuietIn(folder.Path());
  options.seeds = 1;
  recipe.methods[2].theta = 1e-300;  // scores beyond float: NaN
  const Reproduced done = Reproduction(recipe, options).Run(never);
  ASSERT_EQ(done.failures.size(), 1U);
  ExpectContains(done.failures[0], "asentmax-3 seed 1: training diverged: the loss of step 1");
  ASSERT_EQ(done.study["runs"].size(), 1U);
  EXPECT_EQ(done.study["runs"][0]["samples"].size(), 2U);
}

}  // namespace
}  // namespace tsallis::lab
