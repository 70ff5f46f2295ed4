#include "lab/nn/decoder.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "lab/base/device.h"
#include "lab/base/errors.h"
#include "lab/nn/parameters.h"
#include "lab/nn/patterns.h"
#include "lab/nn/positions.h"
#include "lab/testing/decoder_variants.h"
#include "lab/testing/lab_test_support.h"
#include "lab/train/optimizer.h"
#include "torch/operators.h"
#include "tsallis/error.h"

namespace tsallis::lab {
namespace {

using at::Tensor;

// ---- the model by its definition, in double, one sequence at a time, gradients recorded

using Weights = std::map<std::string, Tensor>;

Tensor Norm(const Tensor& x) { return x * (x.square().mean(-1, true) + 1e-6).rsqrt(); }

// `name` of a norm: its gain, if norms have one.
Tensor Norm(const DecoderConfig& config, const Weights& w, const std::string& name,
            const Tensor& x) {
  return config.norm_gain ? Norm(x) * (1.0 + w.at(name + ".weight")) : Norm(x);
}

// x: [n, d] -> rotated by the angles of RopeFrequencies, written with complex numbers' rule.
Tensor Rotated(const Tensor& x, const Positions& positions, std::int64_t length) {
  const std::int64_t n = x.size(0);
  const std::int64_t m = x.size(1) / 2;
  const Tensor frequency = at::tensor(RopeFrequencies(positions, 2 * m, length), at::kDouble);
  const Tensor angle = at::arange(n, at::kDouble).unsqueeze(1) * frequency.unsqueeze(0);
  const double factor = RopeAttentionFactor(positions.scaling);
  const Tensor a = x.narrow(1, 0, m), b = x.narrow(1, m, m);
  return factor *
         at::cat({a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()}, 1);
}

// One head's output: [n, d]. h: [n, width], the block's normalised input.
Tensor HeadOutput(const DecoderConfig& config, const Weights& w, std::int64_t layer,
                  std::int64_t head, const Tensor& h, std::int64_t length) {
  const std::string prefix = "layers." + std::to_string(layer) + ".attention.";
  const AttentionConfig how = config.Head(layer, head);
  const std::int64_t n = h.size(0);
  const auto projected = [&](const std::string& name) {
    return h.matmul(w.at(prefix + name + ".weight")[head].t());
  };
  Tensor q = projected("query"), k = projected("key"), v = projected("value");
  if (config.qk_norm) q = Norm(q), k = Norm(k);
  if (how.positions.kind == "rope") {
    q = Rotated(q, how.positions, length);
    k = Rotated(k, how.positions, length);
  }
  const std::int64_t sloped = SlopedHeads(how.positions, config.heads);
  // Length scaling; the heads of the tests that have one are a run that ends with the last head.
  Tensor c = at::ones({n}, at::kDouble);
  const QueryScaling& scaling = how.length_scaling;
  const bool scaled = scaling.kind != "none" &&
                      (scaling.heads == "all" || how.positions.kind != "nape" || head >= sloped);
  const Tensor log_n = (at::arange(n, at::kDouble) + 2.0).log();
  const std::string scale = prefix + "scale.";
  const auto delta = [&](std::int64_t own) {
    return scaling.learn_delta ? w.at(scale + "delta")[own]
                               : at::scalar_tensor(scaling.delta, at::kDouble);
  };
  if (scaled && scaling.kind == "ssmax") {
    const Tensor& b = w.at(scale + "b");
    c = b[head - config.heads + b.numel()] * log_n;
  } else if (scaled && scaling.kind == "scalar") {
    const Tensor &b = w.at(scale + "b"), &g = w.at(scale + "g");
    const std::int64_t own = head - config.heads + b.numel();
    c = delta(own) + b[own] * log_n.pow(g[own]);
  } else if (scaled && scaling.kind == "table") {
    const Tensor& table = w.at(scale + "table");
    const Tensor entry = at::arange(n, at::kLong).clamp_max(scaling.positions - 1);
    c = table.select(1, head - config.heads + table.size(1)).index_select(0, entry);
  } else if (scaled) {
    const Tensor &wb = w.at(scale + "beta.weight"), &wg = w.at(scale + "gamma.weight");
    const std::int64_t own = head - config.heads + wb.size(0);
    Tensor b = h.matmul(wb[own]), g = h.matmul(wg[own]);
    if (scaling.bias) {
      b = b + w.at(scale + "beta.bias")[own];
      g = g + w.at(scale + "gamma.bias")[own];
    }
    c = delta(own) + at::softplus(b) * log_n.pow(scaling.gamma_range * g.tanh());
  }
  Tensor s = c.unsqueeze(1) * q.matmul(k.t()) / std::sqrt(static_cast<double>(q.size(1)));
  const Tensor at_i = at::arange(n, at::kDouble);
  const Tensor distance = at_i.unsqueeze(1) - at_i.unsqueeze(0);
  if (how.scale_invariant) {
    const double alpha = how.scale_invariant_alpha.value_or(std::exp(0.5));
    const double ratio = how.scale_invariant_beta.value_or(std::exp(0.5)) / alpha;
    const Tensor far = (distance.clamp_min(0.0) / *how.scale_invariant + 1.0).log();
    const Tensor a2 = 2.0 * (far - std::log(alpha) + ratio);
    s = a2.sqrt() * s + ratio - a2;
  }
  if (head < sloped) {
    const Tensor slope =
        how.positions.learn_slopes
            ? w.at(prefix + "slopes")[head]
            : at::scalar_tensor(AlibiSlopes(how.positions, config.heads)[head], at::kDouble);
    s = s - slope * distance;
  }
  const std::int64_t nearest = how.map == "stick-breaking" ? 1 : 0;
  s = s.masked_fill(distance < nearest, -INFINITY);
  if (how.pattern.kind != "none") {
    const PatternMask mask = MaskOf(PatternOf(how.pattern), n, n, 1, 1);
    const Tensor visible =
        at::tensor(std::vector<std::int64_t>(mask.blocks.begin(), mask.blocks.end()), at::kLong);
    s = s.masked_fill(visible.view({n, n}) == 0, -INFINITY);
  }
  if (how.sink != "none") {
    const Tensor sink =
        how.sink == "zero" ? at::zeros({1}, at::kDouble) : w.at(prefix + "sink").narrow(0, head, 1);
    s = at::cat({s, sink.expand({n}).unsqueeze(1)}, 1);
    v = at::cat({v, at::zeros({1, v.size(1)}, at::kDouble)});
  }
  RowMapParams map;
  map.map = MapNamed(how.map);
  map.alpha = how.alpha;
  map.top_k = {how.top_k, how.top_k_fraction};
  map.sigmoid_bias = how.sigmoid_bias;
  if (how.coefficients) map.adaptive.coefficients = *how.coefficients;
  std::optional<Tensor> alpha;
  if (how.learn_alpha != "no") {
    const Tensor a = w.at(prefix + "alpha")[head];
    alpha = (1.0 + (how.learn_alpha == "sigmoid" ? a.sigmoid() : at::softplus(a))).view({1, 1});
  }
  return MapRows(s, map, alpha).matmul(v);
}

// [n, vocabulary]
Tensor ReferenceLogits(const DecoderConfig& config, const Weights& w, const Tensor& tokens,
                       std::int64_t length) {
  Tensor x = w.at("embedding.weight").index_select(0, tokens);
  if (config.embedding == "scaled") x = x * std::sqrt(static_cast<double>(config.width));
  if (config.embedding == "normed") x = Norm(x);
  const Positions& positions = config.attention.positions;
  if (positions.kind == "sinusoidal") {
    x = x + Sinusoids(tokens.size(0), config.width, positions.base).to(at::kDouble);
  }
  for (std::int64_t l = 0; l < config.layers; ++l) {
    const std::string prefix = "layers." + std::to_string(l) + ".";
    const auto weight = [&](const std::string& name) { return w.at(prefix + name + ".weight"); };
    const auto norm = [&](const std::string& name, const Tensor& of) {
      return Norm(config, w, prefix + name, of);
    };
    const auto branch = [&](const std::string& name, const Tensor& of) {
      return config.block == "sandwich" ? norm(name, of) : of;
    };
    const Tensor h = norm("attention.norm", x);
    std::vector<Tensor> heads;
    for (std::int64_t k = 0; k < config.heads; ++k) {
      heads.push_back(HeadOutput(config, w, l, k, h, length));
    }
    Tensor given = at::cat(heads, 1);
    if (config.output_gate) {
      given = given * Norm(x).matmul(weight("attention.output_gate").t()).sigmoid();
    }
    x = x + branch("attention.out_norm", given.matmul(weight("attention.out").t()));
    const Tensor f = norm("feed_forward.norm", x);
    const Tensor up = f.matmul(weight("feed_forward.up").t());
    const auto gate = [&] { return f.matmul(weight("feed_forward.gate").t()); };
    Tensor hidden;
    if (config.activation == "gelu-gated") hidden = at::gelu(gate(), "tanh") * up;
    if (config.activation == "silu-gated") hidden = at::silu(gate()) * up;
    if (config.activation == "relu2") hidden = up.relu().square();
    x = x + branch("feed_forward.out_norm", hidden.matmul(weight("feed_forward.down").t()));
  }
  return Norm(config, w, "norm", x).matmul(w.at("head.weight").t());
}

// ---- batches and models

// `ragged`: lengths differ. Labels at the second half of each sequence.
TokenBatch Draw(std::int64_t batch, std::int64_t n, std::int64_t vocabulary, bool ragged) {
  std::vector<std::int64_t> lengths;
  for (std::int64_t b = 0; b < batch; ++b) lengths.push_back(ragged ? n - b % 5 : n);
  // The third sequence has no label, the others have gaps, the first three from elsewhere on.
  return DrawnBatch(lengths, n, vocabulary, [n](std::int64_t b, std::int64_t i) {
    return i >= n / 2 && b != 2 && (b + i) % 5 != 0 && (b > 2 || i > n / 2 + b);
  });
}

Weights DoubleWeights(const Decoder& model) {
  Weights weights;
  for (const auto& [name, value] : model.Parameters()) {
    weights[name] = value.to(at::kDouble).set_requires_grad(true);
  }
  return weights;
}

struct Reference {
  double loss = 0.0;
  std::vector<Tensor> logits;  // of every sequence, [length, vocabulary]
};

// Mean cross-entropy; leaves gradients in the weights.
Reference RunReference(const DecoderConfig& config, const Weights& weights,
                       const TokenBatch& batch) {
  Reference reference;
  Tensor sum = at::zeros({}, at::kDouble);
  std::int64_t scored = 0;
  std::int64_t longest = 0;
  const std::int64_t n = batch.tokens.size(1);
  const auto length_of = [&](std::int64_t b) {
    return batch.lengths.defined() ? batch.lengths[b].item<std::int64_t>() : n;
  };
  for (std::int64_t b = 0; b < batch.tokens.size(0); ++b) longest = std::max(longest, length_of(b));
  for (std::int64_t b = 0; b < batch.tokens.size(0); ++b) {
    const Tensor tokens = batch.tokens[b].narrow(0, 0, length_of(b));
    const Tensor labels = batch.labels[b].narrow(0, 0, length_of(b));
    const Tensor logits = ReferenceLogits(config, weights, tokens, longest);
    reference.logits.push_back(logits.detach());
    sum = sum + at::cross_entropy_loss(logits, labels, {}, at::Reduction::Sum, kNotScored);
    scored += (labels != kNotScored).sum().item<std::int64_t>();
  }
  const Tensor mean = sum / static_cast<double>(scored);
  mean.backward();
  reference.loss = mean.item<double>();
  return reference;
}

// Largest difference over the largest size of any entry.
double Difference(const Tensor& a, const Tensor& b) {
  const double size = b.abs().max().item<double>();
  return (a.to(at::kDouble) - b).abs().max().item<double>() / std::max(size, 1e-30);
}

void ExpectMatchesReference(const DecoderConfig& config, bool ragged, double tolerance = 2e-4) {
  Shaken<> model(config, 5);
  const TokenBatch batch = Draw(6, 13, config.vocabulary, ragged);
  const Weights weights = DoubleWeights(model);
  const Reference reference = RunReference(model.Config(), weights, batch);
  const SequenceScore score = model.LossAndGradient(batch);
  EXPECT_NEAR(score.Mean(), reference.loss, tolerance * reference.loss);
  for (std::size_t i = 0; i < model.Parameters().size(); ++i) {
    const auto& [name, value] = model.Parameters()[i];
    const Tensor& expected = weights.at(name).grad();
    ASSERT_TRUE(expected.defined()) << name;
    EXPECT_LT(Difference(model.Gradients()[i], expected), tolerance) << name;
    EXPECT_GT(expected.abs().max().item<double>(), 0.0) << name;
  }
  // Logits, all of them and the scored ones alone.
  const Tensor all = model.Forward({batch.tokens, at::Tensor(), batch.lengths});
  const Tensor scored = model.Forward(batch);
  std::int64_t next = 0;
  for (std::int64_t b = 0; b < batch.tokens.size(0); ++b) {
    const Tensor& expected = reference.logits[static_cast<std::size_t>(b)];
    const Tensor ours = all.narrow(0, b * batch.tokens.size(1), expected.size(0));
    EXPECT_LT(Difference(ours, expected), tolerance);
    for (std::int64_t i = 0; i < expected.size(0); ++i) {
      if (batch.labels[b][i].item<std::int64_t>() == kNotScored) continue;
      EXPECT_LT(Difference(scored[next++], expected[i]), tolerance);
    }
  }
  EXPECT_EQ(next, scored.size(0));
  const SequenceScore evaluated = model.Evaluate(batch);
  EXPECT_NEAR(evaluated.loss, score.loss, 1e-5 * score.loss);
  EXPECT_EQ(evaluated.hits, score.hits);
  EXPECT_EQ(evaluated.exact, score.exact);
}

TEST_P(EveryVariant, LossLogitsAndGradientsFollowTheDefinition) {
  ExpectMatchesReference(ConfigOf(GetParam()), false);
}

TEST_P(EveryVariant, AndSoTheyDoWithLengthsThatDiffer) {
  ExpectMatchesReference(ConfigOf(GetParam()), true);
}

INSTANTIATE_TEST_SUITE_P(Decoder, EveryVariant, testing::ValuesIn(Variants()),
                         [](const auto& variant) { return variant.param.name; });

DecoderConfig Computing(const std::string& compute) {
  DecoderConfig config = Asentmax();
  config.compute = compute;
  return config;
}

TEST(Decoder, HasAsManyParametersAsThePapersModels) {
  const auto count = [](std::int64_t vocabulary, std::int64_t layers, std::int64_t width,
                        std::int64_t heads, std::int64_t feed_forward) {
    const DecoderConfig config = Sized(vocabulary, layers, width, heads, feed_forward);
    const std::int64_t layer = 4 * width + 4 * width * width + 3 * width * feed_forward;
    const std::int64_t expected = 2 * vocabulary * width + width + layers * layer;
    EXPECT_EQ(Decoder(config, 1).ParameterCount(), expected);
    return static_cast<double>(expected) / 1e6;
  };
  EXPECT_NEAR(count(37, 2, 256, 16, 1024), 2.1, 0.05);    // copy
  EXPECT_NEAR(count(37, 2, 256, 8, 1024), 2.1, 0.05);     // sort
  EXPECT_NEAR(count(37, 6, 256, 8, 1024), 6.3, 0.05);     // reverse
  EXPECT_NEAR(count(265, 4, 512, 16, 1024), 10.8, 0.05);  // MQMTAR
}

TEST(Decoder, StartsFromItsSeedAloneWhateverTheVariant) {
  const OneThread one_thread;
  const Decoder a(Tiny(), 3), again(Tiny(), 3), other(Tiny(), 4), variant(Asentmax(), 3);
  EXPECT_TRUE(at::equal(a.FlatParameters(), again.FlatParameters()));
  EXPECT_FALSE(at::equal(a.FlatParameters(), other.FlatParameters()));
  const std::map<std::string, Tensor> named(variant.Parameters().begin(),
                                            variant.Parameters().end());
  for (const auto& [name, value] : a.Parameters()) EXPECT_TRUE(at::equal(value, named.at(name)));
  const Tensor weight = named.at("layers.1.feed_forward.gate.weight");
  EXPECT_NEAR(weight.std().item<double>(), 0.02, 0.001);
  EXPECT_NEAR(weight.mean().item<double>(), 0.0, 0.002);
  EXPECT_EQ(named.at("layers.0.attention.norm.weight").abs().max().item<float>(), 0.0F);
}

TEST(Decoder, LearnedAlphasStartAroundTheirFirstValue) {
  const auto first = [](const std::string& kind, double alpha, double spread) {
    DecoderConfig config = Sized(11, 1, 64, 64, 16);
    config.attention.map = "entmax";
    config.attention.alpha = alpha;
    config.attention.learn_alpha = kind;
    config.attention.alpha_spread = spread;
    const Decoder model(config, 3);
    const std::map<std::string, Tensor> named(model.Parameters().begin(), model.Parameters().end());
    return named.at("layers.0.attention.alpha").to(at::kDouble);
  };
  for (const std::string kind : {"sigmoid", "free"}) {
    const Tensor same = first(kind, 1.3, 0.0), spread = first(kind, 1.3, 0.8);
    const Tensor above = kind == "free" ? at::softplus(same) : same.sigmoid();
    EXPECT_LT((above - 0.3).abs().max().item<double>(), 1e-6);
    EXPECT_NEAR((spread - same).mean().item<double>(), 0.0, 0.3);  // three standard errors
    EXPECT_NEAR(spread.std().item<double>(), 0.8, 0.22);
    EXPECT_TRUE(at::allclose(first(kind, 1.3, 1.6) - same, 2.0 * (spread - same), 1e-5, 1e-6));
  }
}

// Large enough that work is split, in both dtypes, dense and packed.
TEST(Decoder, SameBitsWhateverTheNumberOfThreads) {
  const int before = at::get_num_threads();
  for (const char* compute : {"float32", "bfloat16"}) {
    for (const bool ragged : {false, true}) {
      std::vector<Tensor> gradients, logits;
      std::vector<double> losses;
      for (const int threads : {1, 2, 5}) {
        at::set_num_threads(threads);
        DecoderConfig config = Computing(compute);
        config.vocabulary = 37;
        config.width = 96;
        config.head_dim = 24;
        config.feed_forward = 640;
        Decoder model(config, 5);
        const TokenBatch batch = Draw(24, 48, 37, ragged);
        losses.push_back(model.LossAndGradient(batch).loss);
        gradients.push_back(model.FlatGradients().clone());
        logits.push_back(model.Forward(batch).clone());
        EXPECT_EQ(at::get_num_threads(), threads);
      }
      for (std::size_t i = 1; i < losses.size(); ++i) {
        EXPECT_EQ(losses[i], losses[0]) << compute;
        EXPECT_TRUE(at::equal(gradients[i], gradients[0])) << compute;
        EXPECT_TRUE(at::equal(logits[i], logits[0])) << compute;
      }
    }
  }
  at::set_num_threads(before);
}

class DecoderOn : public testing::TestWithParam<const char*> {
 protected:
  c10::Device Device() const { return DeviceNamed(GetParam()); }

 private:
  OneThread one_thread_;
};

INSTANTIATE_TEST_SUITE_P(Decoder, DecoderOn, testing::Values("cpu", "pretend"));

TEST_P(DecoderOn, Bfloat16IsCloseToFloat32) {
  for (const bool ragged : {false, true}) {
    Decoder exact(Asentmax(), 5, Device()), rounded(Computing("bfloat16"), 5, Device());
    const TokenBatch batch = Draw(16, 24, 11, ragged);
    const SequenceScore a = exact.LossAndGradient(batch), b = rounded.LossAndGradient(batch);
    EXPECT_NEAR(a.loss, b.loss, 0.01 * a.loss);
    EXPECT_NE(a.loss, b.loss);
    // Direction and size of the whole gradient.
    const Tensor g = exact.FlatGradients().cpu(), h = rounded.FlatGradients().cpu();
    EXPECT_LT((g - h).norm().item<double>(), 0.04 * g.norm().item<double>());
  }
}

// However the parameters are written: by torch through a view or the whole, or through a pointer.
TEST(Decoder, RoundedWeightsFollowTheirParameters) {
  DecoderConfig config = Tiny();
  config.compute = "bfloat16";
  Decoder model(config, 3);
  const TokenBatch batch = Draw(4, 9, config.vocabulary, false);
  const auto expect_fresh = [&](const char* how) {
    Decoder other(config, 4);
    at::Tensor(other.FlatParameters()).copy_(model.FlatParameters());
    EXPECT_EQ(model.Evaluate(batch).loss, other.Evaluate(batch).loss) << how;
  };
  const double first = model.Evaluate(batch).loss;
  for (const auto& [name, parameter] : model.Parameters()) at::Tensor(parameter).mul_(1.5);
  EXPECT_NE(model.Evaluate(batch).loss, first);
  expect_fresh("views");
  at::Tensor(model.FlatParameters()).mul_(1.5);
  expect_fresh("whole");
  Shake(model);
  expect_fresh("pointer");
  const TrainConfig train;
  Optimizer optimizer(train, 1, model.FlatParameters(), model.FlatGradients());
  model.LossAndGradient(batch);
  model.Evaluate(batch);
  optimizer.Step(0);
  expect_fresh("optimizer");
}

TEST(Decoder, TeacherForcedExactMatchIsGreedyGeneration) {
  const OneThread one_thread;
  DecoderConfig config = Asentmax();
  config.vocabulary = 4;
  Shaken<> model(config, 6);
  constexpr std::int64_t kSource = 5, kTarget = 3, kBatch = 256;
  TokenBatch batch = Draw(kBatch, kSource + kTarget, 4, false);
  // Half of the targets are what the model generates, the others random.
  for (std::int64_t b = 0; b < kBatch; b += 2) {
    for (std::int64_t i = kSource; i < kSource + kTarget; ++i) {
      const Tensor prompt = batch.tokens[b].narrow(0, 0, i).unsqueeze(0);
      batch.tokens[b][i] = model.Forward({prompt, {}, {}})[i - 1].argmax();
    }
  }
  const Tensor target = batch.tokens.narrow(1, kSource, kTarget);
  TokenBatch forced{batch.tokens.narrow(1, 0, kSource + kTarget - 1).contiguous(),
                    at::full({kBatch, kSource + kTarget - 1}, kNotScored, at::kLong),
                    {}};
  forced.labels.narrow(1, kSource - 1, kTarget).copy_(target);
  const SequenceScore score = model.Evaluate(forced);
  std::int64_t exact = 0;
  for (std::int64_t b = 0; b < kBatch; ++b) {
    bool same = true;
    Tensor prompt = batch.tokens[b].narrow(0, 0, kSource);
    for (std::int64_t i = 0; i < kTarget && same; ++i) {
      const Tensor next = model.Forward({prompt.unsqueeze(0), {}, {}})[kSource + i - 1].argmax();
      same = next.item<std::int64_t>() == target[b][i].item<std::int64_t>();
      prompt = at::cat({prompt, next.unsqueeze(0)});
    }
    EXPECT_EQ(score.is_exact[static_cast<std::size_t>(b)], same) << b;
    exact += same ? 1 : 0;
  }
  EXPECT_EQ(score.exact, exact);
  EXPECT_GE(exact, kBatch / 2);
  EXPECT_LT(exact, kBatch);
}

TEST(Decoder, BatchesAccumulateAndGradientsAreReportedFromTheBack) {
  const OneThread one_thread;
  Shaken<> model(Asentmax(), 5);
  const TokenBatch whole = Draw(8, 12, 11, true);
  model.LossAndGradient(whole);
  const Tensor expected = model.FlatGradients().clone();
  const std::int64_t scored = (whole.labels != kNotScored).sum().item<std::int64_t>();
  std::vector<std::pair<std::int64_t, std::int64_t>> ranges;
  for (const std::int64_t half : {0, 1}) {
    const auto part = [&](const Tensor& tensor) { return tensor.narrow(0, 4 * half, 4); };
    GradientOptions options{
        .denominator = scored, .accumulate = half == 1, .ready = {}, .flow = {}};
    options.ready = [&](std::int64_t begin, std::int64_t end) { ranges.emplace_back(begin, end); };
    ranges.clear();
    model.LossAndGradient({part(whole.tokens), part(whole.labels), part(whole.lengths)}, options);
  }
  EXPECT_LT((model.FlatGradients() - expected).norm().item<double>(),
            1e-5 * expected.norm().item<double>());
  ASSERT_EQ(ranges.size(), 4U);  // head and norm, two layers, embedding
  EXPECT_EQ(ranges.front().second, expected.numel());
  for (std::size_t i = 1; i < ranges.size(); ++i) EXPECT_EQ(ranges[i].second, ranges[i - 1].first);
  EXPECT_EQ(ranges.back().first, 0);
}

TEST(Decoder, AHeadThatGoesPieceByPieceIsTheSameHead) {
  const OneThread one_thread;
  DecoderConfig config = Asentmax();
  config.norm_gain = true;
  Shaken<> model(config, 5);
  const TokenBatch batch = Draw(240, 50, 11, true);  // more rows than four blocks
  const SequenceScore whole = model.LossAndGradient(batch);
  ASSERT_GT(whole.scored, 4 * 1024);
  const Tensor expected = model.FlatGradients().clone();
  const SequenceScore pieces = model.LossAndGradient(
      batch, {.denominator = 0, .accumulate = false, .logits = 1, .ready = {}, .flow = {}});
  EXPECT_EQ(pieces.losses, whole.losses);
  EXPECT_EQ(pieces.hits, whole.hits);
  EXPECT_FALSE(model.FlatGradients().equal(expected)) << "it went in one piece";
  EXPECT_LT((model.FlatGradients() - expected).norm().item<double>(),
            1e-5 * expected.norm().item<double>());
}

TEST(Decoder, TheFlowOfGradientsIsThatOfTheResidualStream) {
  const OneThread one_thread;
  DecoderConfig config = Tiny();
  config.layers = 3;
  Shaken<> model(config, 4);
  // A sequence in which every token is another one: the gradient of its embedding is that of one
  // row of the stream, times the factor of embeddings.
  TokenBatch batch = Draw(1, config.vocabulary, config.vocabulary, false);
  batch.tokens.copy_(at::arange(config.vocabulary, at::kLong));
  std::vector<std::pair<std::int64_t, double>> flow;
  GradientOptions options;
  options.flow = [&](std::int64_t layer, double norm) { flow.emplace_back(layer, norm); };
  model.LossAndGradient(batch, options);
  ASSERT_EQ(flow.size(), 3U);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(flow[i].first, static_cast<std::int64_t>(2 - i));
    EXPECT_GT(flow[i].second, 0.0);
  }
  ASSERT_EQ(model.Parameters()[0].first, "embedding.weight");
  const Tensor rows = model.Gradients()[0].norm(2, {1}) / std::sqrt(double{24});
  EXPECT_NEAR(flow[2].second, rows.mean().item<double>(), 1e-5 * flow[2].second);
  EXPECT_NE(flow[0].second, flow[1].second);
}

// Every token is another one, so the gradient of its embedding is that of its row of the stream,
// times the factor of embeddings; with the identity as head the reference's logits are normed
// outputs.
TEST(Decoder, TheReachOfTokensIsTheNormOfTheirJacobians) {
  const OneThread one_thread;
  DecoderConfig config = Tiny();
  config.vocabulary = config.width;
  const std::int64_t n = config.width;
  Shaken<> model(config, 4);
  Weights weights = DoubleWeights(model);
  weights["norm.weight"] = at::zeros({n}, at::kDouble);
  weights["head.weight"] = at::eye(n, at::kDouble);
  const Tensor tokens = at::arange(n, at::kLong);
  Tensor embedding = weights.at("embedding.weight");
  const Tensor y = ReferenceLogits(config, weights, tokens, n)[n - 1];
  Tensor squares = at::zeros({n}, at::kDouble);
  for (std::int64_t c = 0; c < n; ++c) {
    embedding.mutable_grad().reset();
    y[c].backward({}, true);
    squares += embedding.grad().square().sum(1) / static_cast<double>(config.width);
  }
  // Signs differ from sequence to sequence.
  TokenBatch batch = Draw(256, n, n, false);
  batch.tokens.copy_(tokens.expand({256, n}));
  batch.labels.zero_();
  std::map<std::string, double> found;
  for (const auto& [name, value] : model.Observe(batch)) found[name] = value;
  for (std::int64_t from = 1; from < n; from *= 2) {
    const std::int64_t count = std::min(from, n - from);
    const Tensor in_bin = squares.narrow(0, n - from - count, count);
    const double expected = std::sqrt(in_bin.mean().item<double>());
    EXPECT_NEAR(found.at("reach " + std::to_string(from)), expected, 0.05 * expected) << from;
  }
  EXPECT_EQ(found.count("reach 32"), 0U);
}

// torch's products read a little beyond rows whose length is no multiple of 32.
TEST(Decoder, NothingOfOnePassReachesTheNext) {
  const OneThread one_thread;
  for (const char* compute : {"float32", "bfloat16"}) {
    const TokenBatch large = Draw(16, 33, 11, false), small = Draw(7, 19, 11, true);
    Decoder fresh(Computing(compute), 5), used(Computing(compute), 5);
    Tensor embedding = used.Parameters().front().second;
    const Tensor before = embedding.clone();
    embedding.fill_(NAN);
    EXPECT_TRUE(std::isnan(used.LossAndGradient(large).loss));
    embedding.copy_(before);
    EXPECT_EQ(used.LossAndGradient(small).loss, fresh.LossAndGradient(small).loss);
    EXPECT_TRUE(at::equal(used.FlatGradients(), fresh.FlatGradients())) << compute;
  }
}

TEST_P(DecoderOn, WithoutAScoredPositionThereIsNothingToLearn) {
  Decoder model(Asentmax(), 5, Device());
  TokenBatch batch = Draw(3, 8, 11, false);
  batch.labels.fill_(kNotScored);
  EXPECT_EQ(model.LossAndGradient(batch).Mean(), 0.0);
  EXPECT_EQ(model.Evaluate(batch).scored, 0);
  EXPECT_EQ(model.FlatGradients().abs().max().item<float>(), 0.0F);
}

TEST_P(DecoderOn, RefusesWhatIsNoBatch) {
  Decoder model(Tiny(), 5, Device());
  const TokenBatch fine = Draw(3, 8, 11, false);
  const auto error_of = [&](const TokenBatch& batch) {
    return ErrorTextOf<InvalidArgument>([&] { model.Evaluate(batch); });
  };
  TokenBatch batch = fine;
  batch.tokens = fine.tokens.clone();
  batch.tokens[1][2] = 11;
  EXPECT_EQ(error_of(batch), "tokens: expected 0 to 10, got 11");
  batch = fine;
  batch.labels = fine.labels.clone();
  batch.labels[0][7] = -1;
  EXPECT_EQ(error_of(batch), "labels: expected 0 to 10, or -100, got -1");
  batch = fine;
  batch.labels = fine.labels.narrow(1, 0, 7);
  EXPECT_NE(error_of(batch).find("labels: expected int64 [batch, n]"), std::string::npos);
  batch = fine;
  batch.lengths = at::tensor({8, 9, 8}, at::kLong);
  EXPECT_EQ(error_of(batch), "lengths: expected 1 to 8, got 9");
  DecoderConfig bad = Tiny();
  bad.vocabulary = 0;
  EXPECT_THROW(Decoder(bad, 1), UsageError);
}

}  // namespace
}  // namespace tsallis::lab
