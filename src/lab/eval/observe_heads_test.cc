#include "lab/eval/observe_heads.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <numeric>
#include <string>

#include "lab/base/errors.h"
#include "lab/nn/decoder.h"
#include "lab/nn/layer_view.h"
#include "lab/tasks/sequence_batch.h"
#include "lab/tasks/sequence_tasks.h"
#include "lab/testing/lab_test_support.h"

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
  model.VisitLayers(
      DrawBatch(*task, kEvaluationSeed, Split::kTest, 0, 1, 5), [&](const LayerView& view) {
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

TEST(ObserveHeads, NumbersComeBackByLayerAndHead) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  const TemporaryFolder folder;
  const std::filesystem::path path = folder.Path() / "heads.json";
  const HeadNumber slope = {0, 1, "slope", 0.25, 0.0};
  const HeadNumber first = {0, 0, "entropy", 1.23456789, 0.5};
  const HeadNumber second = {0, 1, "entropy", -2e-7, kNan};
  const HeadNumber deep = {2, 0, "entropy", 0.0, 3e9};
  const HeadNumber lost = {1, 0, "entropy", kNan, 1.0};
  SaveHeads(path,
            {.lengths = {{.n = 8, .samples = 2, .numbers = {deep, slope, first, second, lost}},
                         {.n = 9, .samples = 1, .numbers = {}}},
             .maps = {}});
  const HeadObservations seen = LoadHeads(path);
  ASSERT_EQ(seen.lengths.size(), 2U);
  EXPECT_TRUE(seen.lengths[1].numbers.empty());
  const std::vector<HeadNumber>& found = seen.lengths[0].numbers;
  ASSERT_EQ(found.size(), 4U);  // a number that is not finite is not there
  EXPECT_EQ(found[0], (HeadNumber{0, 0, "entropy", 1.23457, 0.5}));
  EXPECT_EQ(found[1].mean, second.mean);
  EXPECT_TRUE(std::isnan(found[1].deviation));
  EXPECT_EQ(found[2], slope);
  EXPECT_EQ(found[3], deep);
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
      EXPECT_NEAR(seen.maps[m].weights[i], maps[m].weights[i], 5.1e-4);  // three digits are kept
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
                           R"({"lengths": [{"n": 1, "samples": 1, "numbers": []}], "maps": []})",
                           R"({"lengths": [{"n": 1, "samples": 1, "tables": [{"quantity": "keys",
                               "mean": [[1.0]], "std": [[]]}]}], "maps": []})",
                           R"({"lengths": [], "maps": [{"n": 1, "layer": 0, "head": 0, "tokens": 2,
                               "cell": 0, "thousandths": []}]})",
                           R"({"lengths": [], "maps": [{"n": 1, "layer": 0, "head": 0, "tokens": 2,
                               "cell": 1, "thousandths": [3, 500, 1, 500]}]})"}) {
    std::ofstream(path) << text;
    EXPECT_TRUE(LoadHeads(path).lengths.empty() && LoadHeads(path).maps.empty()) << text;
  }
}

// Entmax with alpha = 1.5 of z = s / 2.
std::vector<double> Entmax15(const std::vector<double>& z) {
  double low = *std::max_element(z.begin(), z.end()) - 1.0, high = low + 1.0;
  const auto weigh = [&](double tau) {
    std::vector<double> p;
    for (const double x : z) p.push_back(x > tau ? (x - tau) * (x - tau) : 0.0);
    return p;
  };
  for (int i = 0; i < 60; ++i) {
    const double tau = (low + high) / 2.0;
    const std::vector<double> p = weigh(tau);
    (std::accumulate(p.begin(), p.end(), 0.0) >= 1.0 ? low : high) = tau;
  }
  return weigh(low);
}

TEST(ObserveHeads, WritesWhatTheHeadsAttendTo) {
  const TaskPointer task = MakeSequenceTask("copy", {"symbols=4"});
  DecoderConfig config = Model(*task).Config();
  config.attention.length_scaling.kind = "adaptive";
  Decoder model(config, 2);
  const TensorFile file = AttentionInputs(model, *task, 5);
  EXPECT_EQ(file.metadata.at("layers.2.map"), "entmax");
  const auto cell = [&](const char* name, std::int64_t h, std::int64_t i, std::int64_t x) {
    return file.At(std::string("layers.2.") + name)[h][i][x].item<double>();
  };
  model.VisitLayers(
      DrawBatch(*task, kEvaluationSeed, Split::kTest, 0, 1, 5), [&](const LayerView& view) {
        if (view.layer != 2) return;
        for (const std::int64_t head : {0, 3}) {
          EXPECT_EQ(file.At("layers.2.alpha")[head].item<double>(), 1.5);
          const double slope = file.At("layers.2.slopes")[head].item<double>();
          EXPECT_EQ(slope > 0.0, head == 0);
          const SparseRows rows = view.Weights(0, head, 11, 12);
          std::vector<double> found(12, 0.0), z;
          for (std::size_t e = 0; e < rows.keys.size(); ++e) {
            found[static_cast<std::size_t>(rows.keys[e])] = static_cast<double>(rows.weights[e]);
          }
          for (std::int64_t j = 0; j < 12; ++j) {
            double s = 0.0;
            for (std::int64_t x = 0; x < 4; ++x)
              s += cell("q", head, 11, x) * cell("k", head, j, x);
            z.push_back((s / 2.0 - slope * static_cast<double>(11 - j)) / 2.0);
          }
          const std::vector<double> expected = Entmax15(z);
          for (std::size_t j = 0; j < 12; ++j)
            EXPECT_NEAR(found[j], expected[j], 1e-5) << head << j;
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
