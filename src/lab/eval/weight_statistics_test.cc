#include "lab/eval/weight_statistics.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "lab/base/errors.h"
#include "lab/eval/observe_heads.h"
#include "lab/nn/layer_view.h"
#include "lab/nn/parameters.h"
#include "lab/tasks/sequence_batch.h"
#include "lab/tasks/sequence_tasks.h"
#include "lab/testing/decoder_variants.h"
#include "torch/operators.h"

namespace tsallis::lab {
namespace {

using at::Tensor;

// Weights of all heads of a sample from what they are given, in double: [heads, n, n].
Tensor Dense(const HeadArrays& arrays) {
  const Tensor q = arrays.q.to(at::kDouble), k = arrays.k.to(at::kDouble);
  const std::int64_t n = q.size(1);
  Tensor s = q.matmul(k.transpose(1, 2)) / std::sqrt(static_cast<double>(q.size(2)));
  const Tensor at_i = at::arange(n, at::kDouble);
  const Tensor distance = at_i.unsqueeze(1) - at_i.unsqueeze(0);
  if (arrays.slopes.defined()) s = s - arrays.slopes.to(at::kDouble).view({-1, 1, 1}) * distance;
  s = s.masked_fill(distance < 0, -INFINITY);
  RowMapParams map;
  if (arrays.map == "softmax") {
    map.map = RowMap::kSoftmax;
    return MapRows(s, map);
  }
  return MapRows(s, map, arrays.alpha.view({-1, 1, 1}));
}

// By the definitions, sample by sample, with torch.
TEST(WeightStatistics, AreThoseOfTheDenseWeights) {
  const OneThread one_thread;
  const TaskPointer task = MakeSequenceTask("copy", {"symbols=4"});
  for (const char* attention : {R"({"attention": {"map": "entmax", "learn_alpha": "sigmoid",
                                    "positions": {"kind": "nape"}}})",
                                R"({"attention": {"map": "softmax"}})"}) {
    nlohmann::ordered_json json = ToJson(Tiny());
    json.merge_patch(nlohmann::ordered_json::parse(attention));
    json["vocabulary"] = task->Vocabulary();
    Decoder model(DecoderFromJson(json, "test"), 3);
    Shake(model);
    constexpr std::int64_t kLength = 30;  // 62 tokens
    const WeightStatistics found = MeasureWeights(model, *task, kLength, never);
    EXPECT_EQ(found.tokens, 62);
    EXPECT_EQ(found.samples, 32);
    ASSERT_EQ(found.heads.size(), 8U);
    ASSERT_EQ(found.layers.size(), 2U);
    const TokenBatch batch = DrawBatch(*task, kEvaluationSeed, Split::kTest, 0, 32, kLength);
    model.VisitLayers(batch, [&](const LayerView& view) {
      Tensor density = at::zeros({4}, at::kDouble), blocks = at::zeros({4}, at::kDouble);
      double divergence = 0.0;
      Tensor alpha;
      for (std::int64_t sample = 0; sample < 32; ++sample) {
        const HeadArrays arrays = view.Arrays(sample);
        alpha = arrays.alpha;
        const Tensor p = Dense(arrays);
        // The kernel's zeros: float32's, at thresholds that nothing comes near.
        const Tensor some = p > 1e-9;
        density += some.to(at::kDouble).sum({1, 2}) / (62.0 * 63.0 / 2.0);
        const Tensor padded = at::constant_pad_nd(some.to(at::kDouble), {0, 2, 0, 2});
        blocks += (padded.view({4, 4, 16, 4, 16}).amax({2, 4})).sum({1, 2}) / 10.0;
        const auto entropy = [](const Tensor& of) { return -at::xlogy(of, of).sum(-1); };
        divergence += (entropy(p.mean(0)) - entropy(p).mean(0)).mean().item<double>();
      }
      EXPECT_NEAR(found.layers[static_cast<std::size_t>(view.layer)].divergence, divergence / 32.0,
                  1e-5);
      for (std::int64_t h = 0; h < 4; ++h) {
        const HeadWeights& head = found.heads[static_cast<std::size_t>(4 * view.layer + h)];
        EXPECT_EQ(head.layer, view.layer);
        EXPECT_EQ(head.head, h);
        ASSERT_TRUE(head.alpha);
        EXPECT_NEAR(*head.alpha, alpha.defined() ? alpha[h].item<double>() : 1.0, 1e-6);
        EXPECT_NEAR(head.density, density[h].item<double>() / 32.0, 1e-4);
        ASSERT_TRUE(head.blocks[0]);
        EXPECT_NEAR(*head.blocks[0], blocks[h].item<double>() / 32.0, 1e-3);
        EXPECT_FALSE(head.blocks[1]);  // 62 tokens are not two blocks of 64
      }
    });
  }
}

TEST(WeightStatistics, EveryMapHasThem) {
  const OneThread one_thread;
  const TaskPointer task = MakeSequenceTask("copy", {"symbols=4"});
  for (const char* attention :
       {R"({"attention": {"map": "stick-breaking"}})", R"({"attention": {"map": "sigmoid"}})",
        R"({"attention": {"pattern": {"kind": "window", "window": 5}}})"}) {
    nlohmann::ordered_json json = ToJson(Tiny());
    json.merge_patch(nlohmann::ordered_json::parse(attention));
    json["vocabulary"] = task->Vocabulary();
    Decoder model(DecoderFromJson(json, "test"), 3);
    Shake(model);
    const WeightStatistics found = MeasureWeights(model, *task, 70, never);  // 142 tokens
    for (const HeadWeights& head : found.heads) {
      EXPECT_GT(head.density, 0.0);
      EXPECT_LE(head.density, 1.0);
      ASSERT_TRUE(head.blocks[1]);
      EXPECT_GE(*head.blocks[1], head.density);
      EXPECT_FALSE(head.blocks[2]);
    }
    for (const LayerWeights& layer : found.layers) {
      EXPECT_GT(layer.divergence, 0.0);
      EXPECT_LT(layer.divergence, std::log(4.0));
    }
    if (std::string(attention).find("window") == std::string::npos) continue;
    // Five of 142 keys, fewer at the beginning; both blocks of 16 that they lie in.
    EXPECT_NEAR(found.heads[0].density, (142.0 * 5.0 - 10.0) / (142.0 * 143.0 / 2.0), 1e-9);
    EXPECT_NEAR(*found.heads[0].blocks[0], 17.0 / 45.0, 1e-9);
  }
  std::atomic<bool> stop{true};
  Decoder model(
      [&] {
        DecoderConfig config = Tiny();
        config.vocabulary = task->Vocabulary();
        return config;
      }(),
      3);
  EXPECT_THROW(MeasureWeights(model, *task, 5, stop), Interrupted);
}

}  // namespace
}  // namespace tsallis::lab
