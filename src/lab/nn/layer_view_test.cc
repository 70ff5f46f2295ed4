#include "lab/nn/layer_view.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "lab/testing/decoder_variants.h"

namespace tsallis::lab {
namespace {

// Two layers of two sloped heads and two that are scaled, alpha learned, c the same in every row.
DecoderConfig Model(const std::string& scaling) {
  DecoderConfig config = Asentmax(Sized(11, 2, 32, 4, 32));
  config.attention.learn_alpha = "sigmoid";
  config.attention.alpha = 1.25;
  config.attention.length_scaling.kind = scaling;
  config.attention.length_scaling.init = 0.0;
  return config;
}

TokenBatch Batch(const std::vector<std::int64_t>& lengths) { return HalfScored(lengths, 11); }

const Moments& Find(const HeadQuantities& head, const std::string& name) {
  for (const auto& [known, moments] : head) {
    if (known == name) return moments;
  }
  ADD_FAILURE() << name;
  static const Moments none;
  return none;
}

bool Has(const HeadQuantities& head, const std::string& name) {
  return std::any_of(head.begin(), head.end(), [&](const auto& one) { return one.first == name; });
}

// The statistics are those of the weights, which are asked for in two parts.
void ExpectDescribesItsWeights(const std::vector<std::int64_t>& lengths) {
  Decoder model(Model("adaptive"), 3);
  // Scores far enough apart for zeros among the weights.
  for (const auto& [name, parameter] : model.Parameters()) {
    if (name.find("query") != std::string::npos) at::Tensor(parameter).mul_(200.0);
  }
  int layers = 0;
  bool any_zero = false;
  model.VisitLayers(Batch(lengths), [&](const LayerView& view) {
    EXPECT_EQ(view.layer, layers++);
    std::vector<HeadQuantities> heads;
    view.Describe(heads);
    ASSERT_EQ(heads.size(), 4U);
    for (std::int64_t h = 0; h < 4; ++h) {
      Moments entropy, normalised, support, keys;
      for (std::size_t s = 0; s < lengths.size(); ++s) {
        const std::int64_t cut = lengths[s] / 3;
        for (const auto& [begin, end] : {std::pair(std::int64_t{0}, cut), {cut, lengths[s]}}) {
          const SparseRows rows = view.Weights(static_cast<std::int64_t>(s), h, begin, end);
          for (std::int64_t i = begin; i < end; ++i) {
            const auto at = static_cast<std::size_t>(i - begin);
            double sum = 0.0;
            double nats = 0.0;
            for (auto e = static_cast<std::size_t>(rows.offsets[at]);
                 e < static_cast<std::size_t>(rows.offsets[at + 1]); ++e) {
              EXPECT_LE(rows.keys[e], i);
              sum += rows.weights[e];
              nats -= rows.weights[e] * std::log(rows.weights[e]);
            }
            EXPECT_NEAR(sum, 1.0, 1e-5);
            if (i < lengths[s] / 2) continue;  // not scored
            const auto size = static_cast<double>(rows.offsets[at + 1] - rows.offsets[at]);
            const auto seen = static_cast<double>(i + 1);
            any_zero = any_zero || size < seen;
            entropy.Add(nats);
            if (i > 0) normalised.Add(nats / std::log(seen));
            support.Add(size);
            keys.Add(seen);
          }
        }
      }
      const HeadQuantities& head = heads[static_cast<std::size_t>(h)];
      const auto expect = [&](const char* name, const Moments& wanted, double tolerance) {
        const Moments& found = Find(head, name);
        EXPECT_EQ(found.Count(), wanted.Count()) << name;
        EXPECT_NEAR(found.Mean(), wanted.Mean(), tolerance) << name << " of head " << h;
        EXPECT_NEAR(found.Deviation(), wanted.Deviation(), tolerance) << name << " of head " << h;
      };
      expect("entropy", entropy, 1e-4);
      expect("normalised entropy", normalised, 1e-4);
      expect("support", support, 1e-9);
      expect("keys", keys, 1e-9);
    }
  });
  EXPECT_EQ(layers, 2);
  EXPECT_TRUE(any_zero);
}

TEST(LayerView, DescribesItsWeights) { ExpectDescribesItsWeights({13, 13, 13}); }
TEST(LayerView, DescribesItsWeightsOfPackedSequences) { ExpectDescribesItsWeights({13, 1, 6}); }

TEST(LayerView, SaysWhatHeadsHaveLearned) {
  Decoder model(Model("adaptive"), 3);
  model.VisitLayers(Batch({9, 9}), [&](const LayerView& view) {
    std::vector<HeadQuantities> heads;
    view.Describe(heads);
    for (std::size_t h = 0; h < 4; ++h) {
      EXPECT_NEAR(Find(heads[h], "alpha").Mean(), 1.25, 1e-6);
      EXPECT_EQ(Has(heads[h], "slope"), h < 2);
      EXPECT_EQ(Has(heads[h], "c"), h >= 2);  // under NAPE
      if (h < 2) {
        EXPECT_NEAR(Find(heads[h], "slope").Mean(), h == 0 ? 1.0 : 0.5, 1e-6);
        continue;
      }
      // Projections of 0: beta = softplus(0), gamma = 0 in every row.
      EXPECT_EQ(Find(heads[h], "beta").Count(), 10);
      EXPECT_NEAR(Find(heads[h], "beta").Mean(), std::log(2.0), 1e-6);
      EXPECT_NEAR(Find(heads[h], "beta").Deviation(), 0.0, 1e-12);
      EXPECT_NEAR(Find(heads[h], "gamma").Mean(), 0.0, 1e-12);
      EXPECT_NEAR(Find(heads[h], "c").Mean(), 1.0 + std::log(2.0), 1e-5);
    }
  });
  // With biases of its own: c = delta + beta (ln n)^gamma, row by row.
  for (const auto& [name, parameter] : model.Parameters()) {
    if (name.ends_with("beta.bias")) at::Tensor(parameter).fill_(0.5);
    if (name.ends_with("gamma.bias")) at::Tensor(parameter).fill_(-0.25);
  }
  const double beta = std::log1p(std::exp(0.5));
  const double gamma = 2.0 * std::tanh(-0.25);
  double c = 0.0;
  for (std::int64_t i = 4; i < 9; ++i) {
    c += (1.0 + beta * std::pow(std::log(static_cast<double>(i + 2)), gamma)) / 5.0;
  }
  model.VisitLayers(Batch({9}), [&](const LayerView& view) {
    std::vector<HeadQuantities> heads;
    view.Describe(heads);
    EXPECT_NEAR(Find(heads[3], "beta").Mean(), beta, 1e-6);
    EXPECT_NEAR(Find(heads[3], "gamma").Mean(), gamma, 1e-6);
    EXPECT_NEAR(Find(heads[3], "c").Mean(), c, 1e-5);
  });
}

TEST(LayerView, NamesTheTermsOfEveryScaling) {
  for (const auto& [kind, terms] : std::vector<std::pair<std::string, std::vector<std::string>>>{
           {"ssmax", {"b"}}, {"scalar", {"b", "g"}}, {"table", {}}, {"none", {}}}) {
    DecoderConfig config = Model(kind);
    config.attention.length_scaling.positions = kind == "table" ? 4 : 0;
    Decoder model(config, 3);
    const auto value = [&](const std::string& name) {
      for (const auto& [known, parameter] : model.Parameters()) {
        if (known == "layers.0.attention.scale." + name) return parameter[1].item<double>();
      }
      return std::nan("");
    };
    model.VisitLayers(Batch({5}), [&](const LayerView& view) {
      if (view.layer != 0) return;
      std::vector<HeadQuantities> heads;
      view.Describe(heads);
      EXPECT_EQ(Has(heads[3], "c"), kind != "none") << kind;
      for (const std::string& term : terms) {
        EXPECT_NEAR(Find(heads[3], term).Mean(), value(term), 1e-6) << kind << " " << term;
      }
      for (const char* other : {"beta", "gamma"}) EXPECT_FALSE(Has(heads[3], other)) << kind;
    });
  }
}

TEST(Moments, AreMeanAndSampleDeviation) {
  Moments moments;
  moments.Add(1e6 + 1.0);
  EXPECT_EQ(moments.Deviation(), 0.0);
  moments.Add(1e6 + 2.0);
  moments.Add(1e6 + 6.0);
  EXPECT_DOUBLE_EQ(moments.Mean(), 1e6 + 3.0);
  EXPECT_NEAR(moments.Deviation(), std::sqrt(7.0), 1e-9);
}

}  // namespace
}  // namespace tsallis::lab
