#include "lab/eval/observe_heads.h"

#include <gtest/gtest.h>

#include <fstream>

#include "lab/errors.h"
#include "lab/lab_test_support.h"
#include "lab/nn/layer_view.h"
#include "lab/tasks/sequence_batch.h"
#include "lab/tasks/sequence_tasks.h"

namespace tsallis::lab {
namespace {

std::atomic<bool> never{false};

Decoder Model(const SequenceTask& task) {
  DecoderConfig config;
  config.vocabulary = task.Vocabulary();
  config.layers = 3;
  config.width = 16;
  config.heads = 4;
  config.feed_forward = 16;
  config.compute = "float32";
  config.attention.map = "entmax";
  config.attention.positions.kind = "nape";
  return Decoder(config, 1);
}

TEST(ObserveHeads, ChoosesTheSharpestHeadOfEachKindInThreeLayers) {
  LengthHeads heads;
  for (std::int64_t layer = 0; layer < 6; ++layer) {
    for (std::int64_t head = 0; head < 4; ++head) {
      // Sharpest: head 1 of those with a slope, head 2 of the others, 3 as sharp as it.
      const double entropy = head == 1 ? 0.5 : head == 0 ? 0.9 : 0.2;
      heads.numbers.push_back({layer, head, "normalised entropy", entropy, 0.0});
      heads.numbers.push_back({layer, head, "entropy", 1.0 - entropy, 0.0});
      if (head < 2) heads.numbers.push_back({layer, head, "slope", 1.0, 0.0});
    }
  }
  EXPECT_EQ(ChooseHeads(heads),
            (std::vector<HeadPlace>{{0, 1}, {0, 2}, {3, 1}, {3, 2}, {5, 1}, {5, 2}}));
  std::erase_if(heads.numbers, [](const HeadNumber& number) {
    return number.quantity == "slope" || number.layer > 0;
  });
  EXPECT_EQ(ChooseHeads(heads), (std::vector<HeadPlace>{{0, 2}}));
}

TEST(ObserveHeads, DrawsShortSamplesByTokenAndLongOnesInCells) {
  const TaskPointer task = MakeSequenceTask("copy", {"symbols=4"});
  Decoder model = Model(*task);
  const std::vector<HeadPlace> places = {{0, 1}, {2, 3}};
  const std::vector<AttentionMap> small = DrawMaps(model, *task, 5, places, never);
  ASSERT_EQ(small.size(), 2U);
  EXPECT_EQ(small[1].layer, 2);
  EXPECT_EQ(small[1].head, 3);
  EXPECT_EQ(small[1].tokens, 12);  // bos, 5, sep, 5
  EXPECT_EQ(small[1].cell, 1);
  model.Look(DrawBatch(*task, kEvaluationSeed, Split::kTest, 0, 1, 5), [&](const LayerView& view) {
    if (view.layer != 2) return;
    std::vector<float> weights(144, 0.0F);
    const SparseRows rows = view.Weights(0, 3, 0, 12);
    for (std::size_t i = 0; i < 12; ++i) {
      for (auto e = static_cast<std::size_t>(rows.offsets[i]);
           e < static_cast<std::size_t>(rows.offsets[i + 1]); ++e) {
        weights[i * 12 + static_cast<std::size_t>(rows.keys[e])] = rows.weights[e];
      }
    }
    EXPECT_EQ(weights, small[1].weights);
  });
  // 202 tokens: 68 cells of three, the last of one.
  const AttentionMap large = DrawMaps(model, *task, 100, places, never).at(0);
  EXPECT_EQ(large.tokens, 202);
  EXPECT_EQ(large.cell, 3);
  ASSERT_EQ(large.Cells(), 68);
  ASSERT_EQ(large.weights.size(), 68U * 68U);
  for (std::size_t row = 0; row < 68; ++row) {
    double sum = 0.0;
    for (std::size_t column = 0; column < 68; ++column) {
      const float weight = large.weights[row * 68 + column];
      if (column > row) {
        EXPECT_EQ(weight, 0.0F);
      }
      sum += weight;
    }
    EXPECT_NEAR(sum, 1.0, 1e-5) << row;
  }
  std::atomic<bool> stop{true};
  EXPECT_THROW(DrawMaps(model, *task, 5, places, stop), Interrupted);
}

TEST(ObserveHeads, DrawsTheShortestAndTheLongestOfAffordableLengths) {
  const TaskPointer task = MakeSequenceTask("copy", {});
  using Lengths = std::vector<std::int64_t>;
  EXPECT_EQ(MapLengths(*task, {64, 128, 256, 4096}), (Lengths{64, 256}));
  EXPECT_EQ(MapLengths(*task, {8192, 4096}), (Lengths{4096}));
}

TEST(ObserveHeads, KeepsWhatItHasSeen) {
  const TaskPointer task = MakeSequenceTask("copy", {"symbols=4"});
  Decoder model = Model(*task);
  const TemporaryFolder folder;
  const std::filesystem::path path = folder.Path() / "heads.json";
  ObserveMissing(model, *task, {3, 6}, {3}, path, never);
  HeadObservations seen = LoadHeads(path);
  ASSERT_EQ(seen.lengths.size(), 2U);
  EXPECT_EQ(seen.lengths[0].samples, 32);
  const LengthHeads again = ObserveHeads(model, *task, 6);
  ASSERT_EQ(seen.lengths[1].numbers.size(), again.numbers.size());
  for (std::size_t i = 0; i < again.numbers.size(); ++i) {
    EXPECT_EQ(seen.lengths[1].numbers[i].quantity, again.numbers[i].quantity);
    EXPECT_NEAR(seen.lengths[1].numbers[i].mean, again.numbers[i].mean, 1e-4);
  }
  ASSERT_EQ(seen.maps.size(), 6U);  // of three layers, with and without a slope
  const std::vector<AttentionMap> maps =
      DrawMaps(model, *task, 3, ChooseHeads(seen.lengths[0]), never);
  for (std::size_t m = 0; m < 6; ++m) {
    EXPECT_EQ(seen.maps[m].head, maps[m].head);
    ASSERT_EQ(seen.maps[m].weights.size(), maps[m].weights.size());
    for (std::size_t i = 0; i < maps[m].weights.size(); ++i) {
      EXPECT_NEAR(seen.maps[m].weights[i], maps[m].weights[i], 1e-4);
    }
  }

  // A second time, only what is missing.
  seen.lengths[0].samples = 1;
  seen.maps[0].weights.assign(seen.maps[0].weights.size(), 0.5F);
  SaveHeads(path, seen);
  ObserveMissing(model, *task, {3, 6, 7}, {3, 7}, path, never);
  seen = LoadHeads(path);
  ASSERT_EQ(seen.lengths.size(), 3U);
  EXPECT_EQ(seen.lengths[0].samples, 1);
  EXPECT_EQ(seen.maps[0].weights[5], 0.5F);
  EXPECT_TRUE(seen.HasMaps(7));

  // A file of something else is nothing.
  for (const char* text : {"{", "[]", R"({"lengths": [], "maps": [{"n": 1}]})",
                           R"({"lengths": [], "maps": [{"n": 1, "layer": 0, "head": 0, "tokens": 2,
                               "cell": 0, "weights": []}]})",
                           R"({"lengths": [], "maps": [{"n": 1, "layer": 0, "head": 0, "tokens": 2,
                               "cell": 1, "weights": [4, 0.5]}]})"}) {
    std::ofstream(path) << text;
    EXPECT_TRUE(LoadHeads(path).lengths.empty() && LoadHeads(path).maps.empty()) << text;
  }
}

}  // namespace
}  // namespace tsallis::lab
