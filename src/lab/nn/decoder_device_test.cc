// The decoder on another device, by torch's operations, against the one on the CPU.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "lab/base/device.h"
#include "lab/nn/decoder.h"
#include "lab/testing/decoder_variants.h"
#include "lab/testing/lab_test_support.h"

namespace tsallis::lab {
namespace {

using at::Tensor;

// Sequences whose second halves are scored, with gaps; one is not at all.
TokenBatch Draw(std::int64_t vocabulary, bool ragged) {
  const std::vector<std::int64_t> lengths =
      ragged ? std::vector<std::int64_t>{10, 9, 8, 7} : std::vector<std::int64_t>(4, 11);
  return DrawnBatch(lengths, 11, vocabulary,
                    [](std::int64_t b, std::int64_t i) { return b != 2 && i >= 5 && i % 4 != 3; });
}

class EveryDeviceVariant : public EveryVariant {};

TEST_P(EveryDeviceVariant, IsTheDecoderOnTheCpu) {
  const DecoderConfig config = ConfigOf(GetParam());
  Decoder elsewhere(config, 5, DeviceNamed("pretend"));
  EXPECT_TRUE(at::equal(elsewhere.FlatParameters().cpu(), Decoder(config, 5).FlatParameters()));
  EXPECT_FALSE(elsewhere.Note().empty());
  Decoder host(config, 5);
  EXPECT_TRUE(host.Note().empty());
  Shake(host);
  Tensor(elsewhere.FlatParameters()).copy_(host.FlatParameters());
  for (const bool ragged : {false, true}) {
    const TokenBatch batch = Draw(config.vocabulary, ragged);
    const SequenceScore expected = host.LossAndGradient(batch);
    const SequenceScore score = elsewhere.LossAndGradient(batch);
    EXPECT_NEAR(score.loss, expected.loss, 1e-4 * expected.loss);
    EXPECT_EQ(score.scored, expected.scored);
    EXPECT_EQ(score.hits, expected.hits);
    EXPECT_EQ(score.is_exact, expected.is_exact);
    const SequenceScore evaluated = elsewhere.Evaluate(batch);
    EXPECT_NEAR(evaluated.loss, expected.loss, 1e-4 * expected.loss);
    for (std::size_t i = 0; i < host.Parameters().size(); ++i) {
      const Tensor& gradient = host.Gradients()[i];
      const double size = gradient.abs().max().item<double>();
      EXPECT_LT((elsewhere.Gradients()[i].cpu() - gradient).abs().max().item<double>(),
                3e-4 * size + 1e-9)
          << host.Parameters()[i].first;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(DecoderOnADevice, EveryDeviceVariant, testing::ValuesIn(Variants()),
                         [](const auto& variant) { return variant.param.name; });

TEST(DecoderOnADevice, AccumulatesGoesPieceByPieceAndShowsTheFlow) {
  const OneThread one_thread;
  Shaken<> host(Asentmax(), 5);
  Copied<> elsewhere(host, "pretend");
  const TokenBatch batch = Draw(11, true);
  std::vector<double> flow, expected;
  const auto gather = [](std::vector<double>& into) {
    return [&into](std::int64_t, double norm) { into.push_back(norm); };
  };
  GradientOptions options;
  options.flow = gather(expected);
  host.LossAndGradient(batch, options);
  options.flow = gather(flow);
  elsewhere.LossAndGradient(batch, options);
  ASSERT_EQ(flow.size(), expected.size());
  for (std::size_t i = 0; i < flow.size(); ++i)
    EXPECT_NEAR(flow[i], expected[i], 1e-3 * expected[i]);
  const Tensor once = elsewhere.FlatGradients().clone();
  options = {};
  options.accumulate = true;
  std::vector<std::pair<std::int64_t, std::int64_t>> ready;
  options.ready = [&](std::int64_t begin, std::int64_t end) { ready.emplace_back(begin, end); };
  elsewhere.LossAndGradient(batch, options);
  EXPECT_TRUE(at::allclose(elsewhere.FlatGradients().cpu(), (once * 2.0).cpu(), 1e-4, 1e-6));
  ASSERT_EQ(ready.size(), 1U);
  EXPECT_EQ(ready[0], std::pair(std::int64_t{0}, once.numel()));
}

}  // namespace
}  // namespace tsallis::lab
