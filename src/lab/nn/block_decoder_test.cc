// The decoder of blocks against the decoder of stages: parameters, loss and gradients.
#include "lab/nn/block_decoder.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "lab/base/device.h"
#include "lab/base/errors.h"
#include "lab/testing/decoder_variants.h"
#include "lab/testing/lab_test_support.h"
#include "tsallis/error.h"

namespace tsallis::lab {
namespace {

using at::Tensor;

// Sequences whose second halves are scored, with gaps; one is not at all.
TokenBatch Draw(std::int64_t vocabulary, bool ragged) {
  constexpr std::int64_t kBatch = 4, kLength = 11;
  RandomStream random(7, Purpose::kEval, 1);
  TokenBatch batch{at::empty({kBatch, kLength}, at::kLong),
                   at::full({kBatch, kLength}, kNotScored, at::kLong),
                   {}};
  std::vector<std::int64_t> lengths;
  for (std::int64_t b = 0; b < kBatch; ++b) {
    lengths.push_back(ragged ? kLength - 1 - b : kLength);
    for (std::int64_t i = 0; i < kLength; ++i) {
      batch.tokens[b][i] = static_cast<std::int64_t>(random.Below(vocabulary));
      const auto label = static_cast<std::int64_t>(random.Below(vocabulary));
      const bool scored = b != 2 && i >= kLength / 2 && i < lengths.back() && i % 4 != 3;
      if (scored) batch.labels[b][i] = label;
    }
  }
  if (ragged) batch.lengths = at::tensor(lengths, at::kLong);
  return batch;
}

bool HasPatterns(const DecoderConfig& config) {
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    for (std::int64_t head = 0; head < config.heads; ++head) {
      if (config.Head(layer, head).pattern.kind != "none") return true;
    }
  }
  return false;
}

class EveryBlockVariant : public EveryVariant {};

TEST_P(EveryBlockVariant, IsTheDecoderOfStages) {
  const DecoderConfig config = ConfigOf(GetParam());
  if (HasPatterns(config)) {
    ExpectContains(UsageErrorOf([&] { CheckBlockDecoder(config); }),
                   "model.attention.pattern.kind: expected \"none\"");
    return;
  }
  Decoder stages(config, 5);
  // On the CPU attention is our kernels'; on the other one it is that of torch's operations.
  for (const char* device : {"cpu", "pretend"}) {
    SCOPED_TRACE(device);
    BlockDecoder blocks(config, 5, DeviceNamed(device));
    ASSERT_EQ(blocks.Parameters().size(), stages.Parameters().size());
    EXPECT_TRUE(at::equal(blocks.FlatParameters().cpu(), Decoder(config, 5).FlatParameters()));
    EXPECT_EQ(blocks.Note().empty(), std::string(device) == "cpu");
    Decoder shaken(config, 5);
    Shake(shaken);
    Tensor(blocks.FlatParameters()).copy_(shaken.FlatParameters());
    for (const bool ragged : {false, true}) {
      const TokenBatch batch = Draw(config.vocabulary, ragged);
      const SequenceScore expected = shaken.LossAndGradient(batch);
      const SequenceScore score = blocks.LossAndGradient(batch);
      EXPECT_NEAR(score.loss, expected.loss, 1e-4 * expected.loss);
      EXPECT_EQ(score.scored, expected.scored);
      EXPECT_EQ(score.hits, expected.hits);
      EXPECT_EQ(score.is_exact, expected.is_exact);
      const SequenceScore evaluated = blocks.Evaluate(batch);
      EXPECT_NEAR(evaluated.loss, expected.loss, 1e-4 * expected.loss);
      for (std::size_t i = 0; i < shaken.Parameters().size(); ++i) {
        const auto& [name, value] = shaken.Parameters()[i];
        ASSERT_EQ(blocks.Parameters()[i].first, name);
        const Tensor found = blocks.FlatGradients()
                                 .cpu()
                                 .narrow(0, value.storage_offset(), value.numel())
                                 .view(value.sizes());
        const Tensor& gradient = shaken.Gradients()[i];
        const double size = gradient.abs().max().item<double>();
        EXPECT_LT((found - gradient).abs().max().item<double>(), 3e-4 * size + 1e-9) << name;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(BlockDecoder, EveryBlockVariant, testing::ValuesIn(Variants()),
                         [](const auto& variant) { return variant.param.name; });

DecoderConfig Mixed() {
  DecoderConfig config = Tiny();
  config.attention.map = "entmax";
  config.attention.length_scaling.kind = "adaptive";
  config.attention.positions.kind = "nape";
  return config;
}

TEST(BlockDecoder, AccumulatesGoesPieceByPieceAndShowsTheFlow) {
  const OneThread one_thread;
  Decoder stages(Mixed(), 5);
  Shake(stages);
  BlockDecoder blocks(Mixed(), 5, DeviceNamed("pretend"));
  Tensor(blocks.FlatParameters()).copy_(stages.FlatParameters());
  const TokenBatch batch = Draw(11, true);
  std::vector<double> flow, expected;
  const auto gather = [](std::vector<double>& into) {
    return [&into](std::int64_t, double norm) { into.push_back(norm); };
  };
  GradientOptions options;
  options.flow = gather(expected);
  stages.LossAndGradient(batch, options);
  options.flow = gather(flow);
  blocks.LossAndGradient(batch, options);
  ASSERT_EQ(flow.size(), expected.size());
  for (std::size_t i = 0; i < flow.size(); ++i)
    EXPECT_NEAR(flow[i], expected[i], 1e-3 * expected[i]);
  const Tensor once = blocks.FlatGradients().clone();
  options = {};
  options.accumulate = true;
  std::vector<std::pair<std::int64_t, std::int64_t>> ready;
  options.ready = [&](std::int64_t begin, std::int64_t end) { ready.emplace_back(begin, end); };
  blocks.LossAndGradient(batch, options);
  EXPECT_TRUE(at::allclose(blocks.FlatGradients().cpu(), (once * 2.0).cpu(), 1e-4, 1e-6));
  ASSERT_EQ(ready.size(), 1U);
  EXPECT_EQ(ready[0], std::pair(std::int64_t{0}, once.numel()));
}

TEST(BlockDecoder, WithoutAScoredPositionThereIsNothingToLearn) {
  const OneThread one_thread;
  BlockDecoder model(Mixed(), 5, DeviceNamed("pretend"));
  TokenBatch batch = Draw(11, false);
  batch.labels.fill_(kNotScored);
  EXPECT_EQ(model.LossAndGradient(batch).Mean(), 0.0);
  EXPECT_EQ(model.Evaluate(batch).scored, 0);
  EXPECT_EQ(model.FlatGradients().abs().max().item<float>(), 0.0F);
}

TEST(BlockDecoder, RefusesWhatIsNoBatch) {
  BlockDecoder model(Mixed(), 5, DeviceNamed("pretend"));
  TokenBatch batch = Draw(11, false);
  batch.tokens[1][2] = 11;
  EXPECT_THROW(model.Evaluate(batch), InvalidArgument);
}

TEST(BlockDecoder, InBfloat16IsCloseToFloat32) {
  const OneThread one_thread;
  DecoderConfig half = Mixed();
  half.compute = "bfloat16";
  BlockDecoder exact(Mixed(), 5, DeviceNamed("pretend"));
  BlockDecoder rounded(half, 5, DeviceNamed("pretend"));
  const TokenBatch batch = Draw(11, false);
  const SequenceScore a = exact.LossAndGradient(batch), b = rounded.LossAndGradient(batch);
  EXPECT_NEAR(a.loss, b.loss, 0.01 * a.loss);
  EXPECT_NE(a.loss, b.loss);
  const Tensor g = exact.FlatGradients().cpu(), h = rounded.FlatGradients().cpu();
  EXPECT_LT((g - h).norm().item<double>(), 0.05 * g.norm().item<double>());
}

}  // namespace
}  // namespace tsallis::lab
