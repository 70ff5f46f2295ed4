#include "lab/eval/observe_heads.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

#include "lab/base/errors.h"
#include "lab/nn/decoder.h"
#include "lab/nn/layer_view.h"
#include "lab/tasks/sequence_batch.h"
#include "lab/tasks/sequence_tasks.h"
#include "lab/testing/lab_test_support.h"
#include "torch/operators.h"

namespace tsallis::lab {
namespace {

Decoder Model(const SequenceTask& task) {
  DecoderConfig config = Sized(task.Vocabulary(), 3, 16, 4, 16);
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
  EXPECT_EQ(ChooseHeads(HeadTables(heads.numbers)),
            (std::vector<HeadPlace>{{0, 1}, {0, 2}, {3, 1}, {3, 2}, {5, 1}, {5, 2}}));
  std::erase_if(heads.numbers, [](const HeadNumber& number) {
    return number.quantity == "slope" || number.layer > 0;
  });
  EXPECT_EQ(ChooseHeads(HeadTables(heads.numbers)), (std::vector<HeadPlace>{{0, 2}}));
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
  model.VisitLayers(DrawBatch(*task, kEvaluationSeed, Split::kTest, 0, 1, 5),
                    [&](const LayerView& view) {
                      if (view.layer != 2) return;
                      const at::Tensor drawn = at::tensor(small[1].weights).view({12, 12});
                      EXPECT_TRUE(at::equal(view.Weights(0, 3), drawn));
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

TEST(ObserveHeads, NumbersStandInTablesByLayerAndHead) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(HeadTables({{2, 0, "entropy", 0.0, 3e9},
                        {0, 1, "slope", 0.25, 0.0},
                        {0, 0, "entropy", 1.23456789, 0.5},
                        {0, 1, "entropy", -2e-7, kNan},
                        {1, 0, "entropy", kNan, 1.0}}),
            nlohmann::ordered_json::parse(R"([
                {"quantity": "entropy", "mean": [[1.23457, -2e-7], [null, null], [0.0, null]],
                 "std": [[0.5, null], [1.0, null], [3e9, null]]},
                {"quantity": "slope", "mean": [[null, 0.25], [null, null], [null, null]],
                 "std": [[null, 0.0], [null, null], [null, null]]}])"));
  EXPECT_TRUE(HeadTables({}).empty());
}

TEST(ObserveHeads, KeepsWhatItHasSeen) {
  const TaskPointer task = MakeSequenceTask("copy", {"symbols=4"});
  Decoder model = Model(*task);
  const TemporaryFolder folder;
  const std::filesystem::path path = folder.Path() / "heads.json";
  ObserveMissing(model, *task, {3, 6}, {3}, path, never);
  HeadObservations seen = LoadHeads(path);
  ASSERT_EQ(seen.lengths.size(), 2U);
  EXPECT_EQ(seen.lengths[0]["samples"], 32);
  EXPECT_EQ(seen.lengths[1], ToJson(ObserveHeads(model, *task, 6)));
  ASSERT_EQ(seen.maps.size(), 6U);  // of three layers, with and without a slope
  const std::vector<AttentionMap> maps =
      DrawMaps(model, *task, 3, ChooseHeads(seen.lengths[0]["tables"]), never);
  for (std::size_t m = 0; m < 6; ++m) EXPECT_EQ(seen.maps[m], ToJson(maps[m]));
  AttentionMap map{.n = 3, .tokens = 2, .weights = {0.0F, 0.25F, 0.0004F, 0.7496F}};
  EXPECT_EQ(ToJson(map)["thousandths"], (std::vector<int>{1, 250, 2, 750}));

  // A second time, only what is missing.
  seen.lengths[0]["samples"] = 1;
  seen.maps[0]["thousandths"] = {5, 500};
  SaveHeads(path, seen);
  ObserveMissing(model, *task, {3, 6, 7}, {3, 7}, path, never);
  seen = LoadHeads(path);
  ASSERT_EQ(seen.lengths.size(), 3U);
  EXPECT_EQ(seen.lengths[0]["samples"], 1);
  EXPECT_EQ(seen.maps[0]["thousandths"], (std::vector<int>{5, 500}));
  EXPECT_TRUE(seen.HasMaps(7));

  // A file of something else is nothing.
  for (const char* text : {"{", "[]", R"({"lengths": [], "maps": [{"n": 1}]})",
                           R"({"lengths": [{"n": 1, "samples": 1, "numbers": []}], "maps": []})",
                           R"({"lengths": [{"n": 1, "tables": []}], "maps": []})"}) {
    std::ofstream(path) << text;
    EXPECT_TRUE(LoadHeads(path).lengths.empty() && LoadHeads(path).maps.empty()) << text;
  }
}

TEST(ObserveHeads, WritesWhatTheHeadsAttendTo) {
  const TaskPointer task = MakeSequenceTask("copy", {"symbols=4"});
  DecoderConfig config = Model(*task).Config();
  config.attention.length_scaling.kind = "adaptive";
  Decoder model(config, 2);
  const TensorFile file = AttentionInputs(model, *task, 5);
  EXPECT_EQ(file.metadata.at("layers.2.map"), "entmax");
  const auto of_head = [&](const char* name, std::int64_t head) {
    return file.At(std::string("layers.2.") + name)[head];
  };
  model.VisitLayers(
      DrawBatch(*task, kEvaluationSeed, Split::kTest, 0, 1, 5), [&](const LayerView& view) {
        if (view.layer != 2) return;
        for (const std::int64_t head : {0, 3}) {
          EXPECT_EQ(of_head("alpha", head).item<double>(), 1.5);
          const at::Tensor slope = of_head("slopes", head);
          EXPECT_EQ(slope.item<double>() > 0.0, head == 0);
          const at::Tensor scores = of_head("k", head).matmul(of_head("q", head)[11]) / 2.0;
          const at::Tensor expected = Entmax(scores - slope * (11 - at::arange(12)));
          EXPECT_TRUE(at::allclose(view.Weights(0, head)[11], expected, 0.0, 1e-5)) << head;
        }
      });
}

TEST(ObserveHeads, RefusesToWriteWhatOneMapCannotTell) {
  const TaskPointer task = MakeSequenceTask("copy", {"symbols=4"});
  DecoderConfig config = Model(*task).Config();
  config.attention.positions.kind = "rope";
  AttentionOverride one;
  one.layers = {1};
  one.heads = {2};
  one.given = {"map"};  // softmax
  config.overrides = {one};
  Decoder model(config, 1);
  EXPECT_THROW(AttentionInputs(model, *task, 5), UsageError);
  config.overrides.clear();
  config.attention.sink = "zero";
  Decoder with_sinks(config, 1);
  EXPECT_THROW(AttentionInputs(with_sinks, *task, 5), UsageError);
}

TEST(ObserveHeads, WritesWhatScalesTheScores) {
  const TaskPointer task = MakeSequenceTask("copy", {"symbols=4"});
  DecoderConfig config = Model(*task).Config();
  config.attention.positions.kind = "rope";
  config.attention.scale_invariant = 10.0;
  config.attention.length_scaling.kind = "table";
  config.attention.length_scaling.positions = 6;
  Decoder model(config, 1);
  for (const auto& [name, value] : model.Parameters()) {
    if (name == "layers.1.attention.scale.table") value.copy_(at::rand_like(value));
  }
  const TensorFile file = AttentionInputs(model, *task, 5);
  EXPECT_EQ(file.metadata.at("layers.1.scale_invariant"), "10");
  const at::Tensor c = file.At("layers.1.c");
  for (const auto& [name, value] : model.Parameters()) {
    if (name != "layers.1.attention.scale.table") continue;
    for (std::int64_t i = 0; i < c.size(1); ++i) {
      EXPECT_TRUE(c.select(1, i).equal(value[std::min<std::int64_t>(i, 5)])) << i;
    }
  }
}

}  // namespace
}  // namespace tsallis::lab
