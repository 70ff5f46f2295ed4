// Decoders whose queries see chosen keys alone.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "lab/base/errors.h"
#include "lab/nn/layer_view.h"
#include "lab/nn/patterns.h"
#include "lab/testing/decoder_variants.h"
#include "lab/testing/lab_test_support.h"
#include "tsallis/error.h"

namespace tsallis::lab {
namespace {

using at::Tensor;

constexpr std::int64_t kLength = 21;

TokenBatch Batch(const std::vector<std::int64_t>& lengths) { return HalfScored(lengths, 11); }

// Heads of two calls, with slopes, length scaling and learned alphas.
Shaken<> Model(const PatternConfig& pattern = {}) {
  DecoderConfig config = Asentmax();
  config.attention.learn_alpha = "sigmoid";
  config.attention.pattern = pattern;
  AttentionOverride softmax;
  softmax.heads = {1, 3};
  softmax.given = {"map", "learn_alpha"};  // softmax, no
  config.overrides = {softmax};
  return Shaken<>(config, 5);
}

Tensor All(const LayerInput& input) {
  return at::ones({input.rows.Sequences(), 4, input.rows.length, input.rows.length}, at::kBool);
}

class VisibleKeys : public testing::TestWithParam<std::vector<std::int64_t>> {
 private:
  OneThread one_thread_;
};

TEST_P(VisibleKeys, AllAreEvaluateToTheBit) {
  Shaken<> model = Model();
  const TokenBatch batch = Batch(GetParam());
  const SequenceScore plain = model.Evaluate(batch);
  EXPECT_EQ(model.Evaluate(batch, All).losses, plain.losses);
  EXPECT_EQ(model.Evaluate(batch, [](const LayerInput&) { return Tensor(); }).losses, plain.losses);
  // A mask that hides what causal attention hides anyway changes nothing.
  const SequenceScore causal =
      model.Evaluate(batch, [](const LayerInput& input) { return All(input).tril().contiguous(); });
  for (std::size_t i = 0; i < plain.losses.size(); ++i) {
    EXPECT_NEAR(causal.losses[i], plain.losses[i], 1e-5);
  }
}

TEST_P(VisibleKeys, ThoseOfAPatternAreThePattern) {
  for (const PatternConfig& pattern :
       {PatternConfig{.kind = "longformer", .window = 3, .global_tokens = 1},
        PatternConfig{.kind = "fixed", .segment = 5, .summary = 2}}) {
    Shaken<> with = Model(pattern);
    Shaken<> without = Model();
    const TokenBatch batch = Batch(GetParam());
    const PatternMask mask = MaskOf(PatternOf(pattern), kLength, kLength, 1, 1);
    const Tensor pairs =
        at::tensor(std::vector<std::int64_t>(mask.blocks.begin(), mask.blocks.end()), at::kLong)
            .view({kLength, kLength})
            .to(at::kBool);
    int layers = 0;
    const auto visible = [&](const LayerInput& input) {
      EXPECT_EQ(input.layer, layers++);
      const std::int64_t n = input.rows.length;
      return pairs.narrow(0, 0, n)
          .narrow(1, 0, n)
          .expand({input.rows.Sequences(), 4, n, n})
          .contiguous();
    };
    EXPECT_EQ(without.Evaluate(batch, visible).losses, with.Evaluate(batch).losses);
    EXPECT_EQ(layers, 2);
    EXPECT_NE(without.Evaluate(batch).losses, with.Evaluate(batch).losses);
    EXPECT_THROW(with.Evaluate(batch, All), UsageError);
  }
}

INSTANTIATE_TEST_SUITE_P(Decoder, VisibleKeys,
                         testing::Values(std::vector<std::int64_t>{kLength, kLength},
                                         std::vector<std::int64_t>{kLength, 4, 13}),
                         [](const auto& of) { return of.param.size() == 2 ? "Same" : "Ragged"; });

// A head and a sequence see what is said of them, and a layer's queries are those of a run whose
// layers below are restricted.
TEST(VisibleKeysOfOne, HeadOfOneSequence) {
  const OneThread one_thread;
  Shaken<> model = Model();
  const TokenBatch batch = Batch({kLength, kLength});
  Tensor below;
  const auto run = [&](std::int64_t layer) {
    return model.Evaluate(batch, [&](const LayerInput& input) {
      Tensor visible = All(input);
      // The queries of sequence 1 see nothing but themselves, in head 2.
      if (input.layer == layer) visible[1][2] = at::eye(kLength, at::kBool);
      if (input.layer == 1) below = input.inputs.projected.clone();
      return visible;
    });
  };
  const SequenceScore plain = run(-1);
  const Tensor free = below;
  const SequenceScore last = run(1);
  EXPECT_TRUE(at::equal(below, free));
  run(0);
  // Another kernel serves masks: other rounding.
  const auto close = [&](std::int64_t row) {
    return at::allclose(below.narrow(0, row, kLength), free.narrow(0, row, kLength), 1e-4, 1e-5);
  };
  EXPECT_TRUE(close(0));
  EXPECT_FALSE(close(kLength));
  const auto half = static_cast<std::ptrdiff_t>(plain.losses.size() / 2);
  const auto middle = plain.losses.begin() + half;
  for (std::ptrdiff_t i = 0; i < half; ++i) {
    EXPECT_NEAR(last.losses[static_cast<std::size_t>(i)], plain.losses[static_cast<std::size_t>(i)],
                1e-5);
  }
  EXPECT_FALSE(std::equal(middle, plain.losses.end(), last.losses.begin() + half));
}

TEST(VisibleKeysOfOne, RefusesWhatIsNoMask) {
  const OneThread one_thread;
  Shaken<> model = Model();
  const TokenBatch batch = Batch({kLength, kLength});
  const auto error_of = [&](const Tensor& visible) {
    return ErrorTextOf<InvalidArgument>(
        [&] { model.Evaluate(batch, [&](const LayerInput&) { return visible; }); });
  };
  EXPECT_EQ(error_of(at::ones({2, 4, 21, 20}, at::kBool)),
            "visible keys: expected bool [2, 4, 21, 21], contiguous, got Bool [2, 4, 21, 20]");
  EXPECT_EQ(error_of(at::ones({2, 4, 21, 21})),
            "visible keys: expected bool [2, 4, 21, 21], contiguous, got Float [2, 4, 21, 21]");
  EXPECT_EQ(error_of(at::ones({2, 4, 21, 21}, at::kBool).transpose(2, 3)),
            "visible keys: expected bool [2, 4, 21, 21], contiguous, got Bool [2, 4, 21, 21], not "
            "contiguous");
}

}  // namespace
}  // namespace tsallis::lab
