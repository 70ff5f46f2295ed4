// The encoder-decoder against its definition written out, its gradient against differences, and
// what it writes against what it reads.
#include "lab/nn/encoder_decoder.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "lab/base/device.h"
#include "lab/eval/evaluate_sequences.h"
#include "lab/eval/observe_packed.h"
#include "lab/generate/generate.h"
#include "lab/generate/question.h"
#include "lab/nn/layer_view.h"
#include "lab/nn/positions.h"
#include "lab/tasks/sequence_batch.h"
#include "lab/tasks/sequence_tasks.h"
#include "lab/testing/decoder_variants.h"
#include "lab/testing/lab_test_support.h"
#include "lab/train/load_model.h"
#include "lab/train/sequence_experiment.h"
#include "tsallis/error.h"
#include "tsallis/kv_cache.h"

namespace tsallis::lab {
namespace {

using at::Tensor;

DecoderConfig Small() {
  DecoderConfig config = Tiny();
  config.vocabulary = 13;
  config.attention.positions.kind = "sinusoidal";
  config.attention.map = "entmax";
  return config;
}

// Three samples of different lengths: source, target.
TokenBatch Batch() {
  constexpr std::int64_t x = kNotScored, p = 8;
  const std::vector<std::int64_t> tokens = {9, 1, 2,  3, 12, 4, 5,  p,  //
                                            9, 6, 12, 7, 1,  0, p,  p,  //
                                            9, 3, 3,  2, 1,  0, 12, 2};
  const std::vector<std::int64_t> labels = {x, x, x, x, 4, 5,  10, x,  //
                                            x, x, 7, 1, 0, 10, x,  x,  //
                                            x, x, x, x, x, x,  2,  10};
  TokenBatch batch;
  batch.tokens = at::tensor(tokens, at::kLong).view({3, 8});
  batch.labels = at::tensor(labels, at::kLong).view({3, 8});
  batch.lengths = at::tensor({7, 6, 8}, at::kLong);
  return batch;
}

std::map<std::string, Tensor> Weights(const SequenceModel& model) {
  std::map<std::string, Tensor> weights;
  for (const auto& [name, tensor] : model.Parameters()) weights[name] = tensor.to(at::kDouble);
  return weights;
}

// One sample by the formulas of the header, in double and without any of the model's code.
double LossByDefinition(const SequenceModel& model, const std::vector<std::int64_t>& source,
                        const std::vector<std::int64_t>& target,
                        const std::vector<std::int64_t>& labels) {
  const DecoderConfig& config = model.Config();
  const std::map<std::string, Tensor> w = Weights(model);
  const auto norm = [&](const Tensor& x, const std::string& name) {
    return x * (x.square().mean(-1, true) + 1e-6).rsqrt() * (1.0 + w.at(name + ".weight"));
  };
  const auto embed = [&](const std::vector<std::int64_t>& tokens) {
    return w.at("embedding.weight").index_select(0, at::tensor(tokens, at::kLong)) *
               std::sqrt(static_cast<double>(config.width)) +
           Sinusoids(static_cast<std::int64_t>(tokens.size()), config.width, 10000.0)
               .to(at::kDouble);
  };
  // x: [n, width], and not normed: `stream`.
  const auto attend = [&](const Tensor& x, const Tensor& stream, const Tensor& memory,
                          const std::string& name, bool causal) {
    const auto heads = [&](const Tensor& rows) {
      return rows.view({rows.size(0), config.heads, config.HeadDim()}).transpose(0, 1);
    };
    const std::vector<Tensor> kv = at::linear(memory, w.at(name + "key_value.weight")).chunk(2, 1);
    const Tensor q = heads(at::linear(x, w.at(name + "query.weight")));
    Tensor scores = at::matmul(q, heads(kv[0].contiguous()).transpose(1, 2)) /
                    std::sqrt(static_cast<double>(config.HeadDim()));
    Tensor out = at::empty_like(q);
    for (std::int64_t h = 0; h < config.heads; ++h) {
      double alpha = config.attention.map == "softmax" ? 1.0 : config.attention.alpha;
      if (const auto a = w.find(name + "alpha"); a != w.end()) {
        alpha = 1.0 + 1.0 / (1.0 + std::exp(-a->second[h].item<double>()));
      }
      for (std::int64_t i = 0; i < q.size(1); ++i) {
        const std::int64_t seen = causal ? i + 1 : scores.size(2);
        const Tensor p = Entmax(scores[h][i].narrow(0, 0, seen), alpha);
        out[h][i] = at::matmul(p, heads(kv[1].contiguous())[h].narrow(0, 0, seen));
      }
    }
    Tensor given = out.transpose(0, 1).reshape({x.size(0), -1});
    if (config.output_gate) {
      const Tensor normed = stream * (stream.square().mean(-1, true) + 1e-6).rsqrt();
      given = given * at::linear(normed, w.at(name + "output_gate.weight")).sigmoid();
    }
    return at::linear(given, w.at(name + "out.weight"));
  };
  const auto residual = [&](const Tensor& x, const std::string& name,
                            const std::function<Tensor(const Tensor&)>& f) {
    const Tensor branch = f(norm(x, name + "norm"));
    return x + (config.block == "sandwich" ? norm(branch, name + "out_norm") : branch);
  };
  const auto feed_forward = [&](const Tensor& x, const std::string& name) {
    return residual(x, name, [&](const Tensor& in) {
      const std::vector<Tensor> up = at::linear(in, w.at(name + "up.weight")).chunk(2, 1);
      return at::linear(at::gelu(up[0], "tanh") * up[1], w.at(name + "down.weight"));
    });
  };
  Tensor m = embed(source);
  for (std::int64_t l = 0; l < config.layers; ++l) {
    const std::string layer = "encoder." + std::to_string(l) + ".";
    m = residual(m, layer + "attention.",
                 [&](const Tensor& in) { return attend(in, m, in, layer + "attention.", false); });
    m = feed_forward(m, layer + "feed_forward.");
  }
  m = norm(m, "encoder.norm");
  Tensor y = embed(target);
  for (std::int64_t l = 0; l < config.layers; ++l) {
    const std::string layer = "decoder." + std::to_string(l) + ".";
    y = residual(y, layer + "attention.",
                 [&](const Tensor& in) { return attend(in, y, in, layer + "attention.", true); });
    y = residual(y, layer + "context.",
                 [&](const Tensor& in) { return attend(in, y, m, layer + "context.", false); });
    y = feed_forward(y, layer + "feed_forward.");
  }
  const Tensor logits = at::linear(norm(y, "norm"), w.at("embedding.weight"));
  const Tensor losses =
      -at::log_softmax(logits, 1).gather(1, at::tensor(labels, at::kLong).unsqueeze(1));
  return losses.sum().item<double>();
}

TEST(EncoderDecoder, IsItsDefinition) {
  std::vector<DecoderConfig> configs(4, Small());
  configs[3].output_gate = true;
  configs[1].attention.map = "softmax";
  configs[1].block = "pre";
  configs[2].attention.learn_alpha = "sigmoid";
  for (const DecoderConfig& config : configs) {
    Shaken<EncoderDecoder> model(config, 3);
    const double expected = LossByDefinition(model, {9, 1, 2, 3}, {12, 4, 5}, {4, 5, 10}) +
                            LossByDefinition(model, {9, 6}, {12, 7, 1, 0}, {7, 1, 0, 10}) +
                            LossByDefinition(model, {9, 3, 3, 2, 1, 0}, {12, 2}, {2, 10});
    const SequenceScore score = model.Evaluate(Batch());
    EXPECT_EQ(score.scored, 9);
    EXPECT_EQ(score.sequences, 3);
    EXPECT_NEAR(score.loss, expected, 2e-5 * expected);
  }
}

TEST(EncoderDecoder, GradientsAreThoseOfDifferences) {
  DecoderConfig config = Small();
  config.attention.learn_alpha = "sigmoid";
  config.attention.sink = "learned";
  config.qk_norm = config.output_gate = true;
  Shaken<EncoderDecoder> model(config, 3);
  const TokenBatch batch = Batch();
  const SequenceScore score = model.LossAndGradient(batch);
  const Tensor gradient = model.FlatGradients().clone();
  EXPECT_EQ(score.Mean(), model.Evaluate(batch).Mean());
  // Along its own direction, of every parameter alone.
  std::int64_t at = 0;
  for (const auto& [name, tensor] : model.Parameters()) {
    at = tensor.storage_offset();
    const Tensor own = gradient.narrow(0, at, tensor.numel()).view(tensor.sizes());
    const double norm = own.norm().item<double>();
    ASSERT_GT(norm, 0.0) << name;
    const double step = 2e-3;
    const auto loss_at = [&](double distance) {
      const Tensor before = tensor.clone();
      tensor.add_(own, distance / norm);
      const double loss = model.Evaluate(batch).Mean();
      tensor.copy_(before);
      return loss;
    };
    const double slope = (loss_at(step) - loss_at(-step)) / (2.0 * step);
    EXPECT_NEAR(slope, norm, 0.02 * norm + 2e-4) << name;
  }
  // Twice the batch, in two parts.
  GradientOptions options;
  options.denominator = 2 * score.scored;
  model.LossAndGradient(batch, options);
  options.accumulate = true;
  std::int64_t ready = 0;
  options.ready = [&](std::int64_t begin, std::int64_t end) { ready += end - begin; };
  model.LossAndGradient(batch, options);
  EXPECT_EQ(ready, gradient.numel());
  EXPECT_TRUE(at::allclose(model.FlatGradients(), gradient, 1e-5, 1e-7));
}

TEST(EncoderDecoder, ASampleDoesNotSeeTheOthersOrItsPadding) {
  Shaken<EncoderDecoder> model(Small(), 3);
  const TokenBatch batch = Batch();
  const SequenceScore together = model.Evaluate(batch);
  std::vector<float> alone;
  for (std::int64_t b = 0; b < 3; ++b) {
    const SequenceScore one =
        model.Evaluate({batch.tokens.narrow(0, b, 1), batch.labels.narrow(0, b, 1),
                        batch.lengths.narrow(0, b, 1)});
    alone.insert(alone.end(), one.losses.begin(), one.losses.end());
  }
  ASSERT_EQ(alone.size(), together.losses.size());
  for (std::size_t i = 0; i < alone.size(); ++i) {
    EXPECT_NEAR(alone[i], together.losses[i], 1e-5) << i;
  }
}

TEST(EncoderDecoder, WhatItWritesIsWhatItReads) {
  const auto check = [](const std::string& map, const char* device) {
    SCOPED_TRACE(map + " on " + device);
    DecoderConfig config = Small();
    config.attention.map = map;
    Shaken<EncoderDecoder> reader(config, 3);
    Copied<EncoderDecoder> model(reader, device);
    const auto decoding = model.StartDecoding();
    const auto a = decoding->Create(), b = decoding->Create();
    // Source 9 1 2 3, target 12 4 5; source 9 6, target 12 7 1 0, two tokens at once.
    const auto loss = [](const Tensor& logits, std::int64_t row, std::int64_t label) {
      return -at::log_softmax(logits[row].to(at::kDouble), 0)[label].item<double>();
    };
    const std::vector<float> expected = reader.Evaluate(Batch()).losses;
    Tensor logits = decoding->Extend({a, b}, {{9, 1, 2, 3, 12}, {9, 6, 12}});
    EXPECT_NEAR(loss(logits, 0, 4), expected[0], 1e-5);
    EXPECT_NEAR(loss(logits, 1, 7), expected[3], 1e-5);
    const auto fork = decoding->Fork(b);
    logits = decoding->Extend({b, a}, {{7, 1}, {4}});
    EXPECT_NEAR(loss(logits, 0, 0), expected[5], 1e-5);
    EXPECT_NEAR(loss(logits, 1, 5), expected[1], 1e-5);
    // The fork is where it was.
    logits = decoding->Extend({fork}, {{7}});
    EXPECT_NEAR(loss(logits, 0, 1), expected[4], 1e-5);
    decoding->Free(b);
    EXPECT_THROW(decoding->Extend({b}, {{1}}), InvalidArgument);
    EXPECT_THROW(decoding->Extend({a, a}, {{1}, {1}}), InvalidArgument);
    EXPECT_THROW(decoding->Extend({a}, {{}}), InvalidArgument);
    EXPECT_THROW(decoding->Extend({a}, {{13}}), InvalidArgument);
    EXPECT_THROW(decoding->Extend({decoding->Create()}, {{12}}), InvalidArgument);
    // The calls that failed have changed nothing.
    EXPECT_NEAR(loss(decoding->Extend({a}, {{5}}), 0, 10), expected[2], 1e-5);
    // One page, and source and target need one each.
    const auto little = model.StartDecoding(50000);
    EXPECT_THROW(little->Extend({little->Create()}, {{9, 1, 2, 3, 12}}), CacheFull);
  };
  for (const char* device : {"cpu", "pretend"}) {
    for (const char* map : {"softmax", "entmax"}) check(map, device);
  }
}

TEST(EncoderDecoder, RefusesWhatItDoesNotHave) {
  const auto error = [](const std::function<void(DecoderConfig&)>& change) {
    DecoderConfig config = Small();
    change(config);
    return UsageErrorOf([&] { EncoderDecoder(config, 1); });
  };
  ExpectContains(error([](auto& c) { c.attention.positions.kind = "rope"; }),
                 "model.attention.positions.kind: expected \"nope\" or \"sinusoidal\" with model "
                 "\"encoder-decoder\", got \"rope\"");
  ExpectContains(error([](auto& c) { c.attention.length_scaling.kind = "ssmax"; }),
                 "model.attention.length_scaling.kind");
  ExpectContains(error([](auto& c) { c.attention.map = "stick-breaking"; }), "model.attention.map");
  ExpectContains(error([](auto& c) {
                   c.attention.pattern.kind = "window";
                   c.attention.pattern.window = 4;
                 }),
                 "model.attention.pattern.kind");
  ExpectContains(error([](auto& c) { c.attention.scale_invariant = 10.0; }),
                 "model.attention.scale_invariant");
  ExpectContains(error([](auto& c) { c.compute = "bfloat16"; }), "model.compute");
  ExpectContains(error([](auto& c) { c.overrides.emplace_back().given = {"map"}; }),
                 "model.override");
  ExpectContains(error([](auto& c) { c.head_dim = 513; }), "model.head_dim");
  EncoderDecoder model(Small(), 1);
  TokenBatch batch = Batch();
  batch.labels = batch.tokens.clone();
  EXPECT_THROW(model.Evaluate(batch), InvalidArgument);
  batch.labels = at::full_like(batch.tokens, kNotScored);
  EXPECT_THROW(model.Evaluate(batch), InvalidArgument);
  batch = Batch();
  batch.tokens[0][1] = 13;
  EXPECT_THROW(model.LossAndGradient(batch), InvalidArgument);
  batch = Batch();
  batch.labels.masked_fill_(batch.labels == 10, 13);
  ExpectContains(ErrorTextOf<InvalidArgument>([&] { model.Evaluate(batch); }), "labels");
}

// Densities, alphas and divergences of heads against weights computed from scores.
TEST(EncoderDecoder, HeadsAreDescribedByKind) {
  DecoderConfig config = Small();
  const TaskPointer task = MakeSequenceTask("copy", {"symbols=8"});
  config.vocabulary = task->Vocabulary();
  config.attention.learn_alpha = "sigmoid";
  Shaken<EncoderDecoder> model(config, 3);
  const LengthHeads heads = ObservePacked(model, *task, 6, never);
  EXPECT_EQ(heads.samples, 256);
  EXPECT_EQ(heads.numbers.size(), 3U * 2U * 4U * 3U);  // kinds, layers, heads, quantities
  std::map<std::string, double> found;
  for (const HeadNumber& number : heads.numbers) {
    found[number.quantity + " " + std::to_string(number.layer) + "." +
          std::to_string(number.head)] = number.mean;
  }
  const Tensor a = Weights(model).at("decoder.1.context.alpha");
  EXPECT_NEAR(found.at("context alpha 1.0"), 1.0 + at::sigmoid(a)[0].item<double>(), 1e-6);
  double density = 0.0, divergence = 0.0;
  const TokenBatch batch = DrawBatch(*task, kEvaluationSeed, Split::kTest, 0, 256, 6);
  model.VisitLayers(batch, [&](const LayerView& view) {
    if (view.kind != "decoder" || view.layer != 0) return;
    for (std::int64_t s = 0; s < 256; ++s) {
      std::vector<Tensor> of_heads;
      for (std::int64_t h = 0; h < 4; ++h) of_heads.push_back(view.Weights(s, h));
      const Tensor p = at::stack(of_heads).to(at::kDouble);
      ASSERT_EQ(p.sizes(), (std::vector<std::int64_t>{4, 7, 7}));
      EXPECT_NEAR((p.sum(-1) - 1.0).abs().max().item<double>(), 0.0, 1e-5);
      EXPECT_EQ(p.triu(1).abs().max().item<double>(), 0.0);
      const HeadArrays arrays = view.Arrays(s);
      const Tensor last = Entmax(at::matmul(arrays.q[1][6], arrays.k[1].t()) / std::sqrt(8.0),
                                 arrays.alpha[1].item<double>());
      EXPECT_TRUE(at::allclose(last.to(at::kDouble), p[1][6], 1e-4, 1e-5));
      for (std::int64_t i = 0; i < 7; ++i) {
        density += (p[1][i] > 0).sum().item<double>() / static_cast<double>(i + 1);
        const Tensor mean = p.mean(0);
        for (std::int64_t j = 0; j <= i; ++j) {
          const double x = p[1][i][j].item<double>();
          if (x > 0) divergence += x * std::log(x / mean[i][j].item<double>());
        }
      }
    }
  });
  EXPECT_NEAR(found.at("decoder density 0.1"), density / (256 * 7), 1e-9);
  EXPECT_NEAR(found.at("decoder divergence 0.1"), divergence / (256 * 7), 1e-9);
  EXPECT_LT(found.at("encoder density 0.0"), 1.0);
}

Recipe CopyRecipe() {
  Recipe recipe = SmallSequences();
  recipe.task.train_length_max = 1;
  recipe.model.name = "encoder-decoder";
  recipe.model.decoder.attention.positions.kind = "sinusoidal";
  recipe.train.schedule = "constant";
  recipe.train.lr = 5e-3;
  recipe.train.batch = 32;
  recipe.train.validate_every = 0;
  return recipe;
}

TEST(EncoderDecoder, LearnsToCopyAndIsLoadedAgain) {
  const Recipe recipe = CopyRecipe();
  const TemporaryFolder folder;
  const TrainingJob job{&recipe, &recipe.methods[1], 5, 400, folder.Path() / "run"};
  SequenceExperiment experiment(job);
  Train(experiment, job, Silent, never);
  SequenceModel* model = &experiment.Model();
  const Score score = EvaluateLength(*model, *recipe.task.Sequences(), Split::kTest, 1, 100, never);
  EXPECT_GE(score["hits"], 90) << "of " << score["asked"];
  LoadedSequenceModel loaded = LoadSequenceModel(job.folder);
  EXPECT_STREQ(loaded.model->Architecture(), "encoder-decoder");
  EXPECT_TRUE(at::equal(loaded.model->FlatParameters(), model->FlatParameters()));
  // Greedy writing gives the answer that it is scored by; beams find none that is less likely.
  std::int64_t right = 0;
  for (std::int64_t i = 0; i < 100; ++i) {
    const Question question =
        QuestionOf(recipe.task.Sequences()->Draw(kEvaluationSeed, Split::kTest, i, 1));
    GenerateOptions options;
    options.steps = static_cast<std::int64_t>(question.answer.size());
    options.sampler.temperature = 0.0;
    const Written greedy = Generate(*model, {question.prompt}, options)[0];
    if (greedy.tokens == question.answer) ++right;
    if (i >= 5) continue;
    options.beams = 3;
    Prompt free = question.prompt;
    free.given.clear();
    EXPECT_GE(Generate(*model, {free}, options)[0].log_likelihood, greedy.log_likelihood - 1e-4);
  }
  EXPECT_EQ(right, score["hits"]);
}

TEST(EncoderDecoder, IsTheSameForAnyNumberOfThreads) {
  const auto trained = [](int threads) {
    const int before = at::get_num_threads();
    at::set_num_threads(threads);
    const Recipe recipe = CopyRecipe();
    const TemporaryFolder folder;
    const TrainingJob job{&recipe, &recipe.methods[1], 5, 5, folder.Path() / "run"};
    SequenceExperiment experiment(job);
    Train(experiment, job, Silent, never);
    at::set_num_threads(before);
    return experiment.FlatParameters().clone();
  };
  EXPECT_TRUE(at::equal(trained(1), trained(2)));
}

}  // namespace
}  // namespace tsallis::lab
