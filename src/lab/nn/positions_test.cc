#include "lab/nn/positions.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <tuple>
#include <vector>

namespace tsallis::lab {
namespace {

using Doubles = std::vector<double>;

Positions Rope(const std::string& scaling = "none") {
  Positions positions;
  positions.kind = "rope";
  positions.scaling.kind = scaling;
  positions.scaling.factor = 8.0;
  positions.scaling.train_length = 512;
  return positions;
}

double Plain(std::int64_t k, double base = 10000.0) {
  return std::pow(base, -static_cast<double>(k) / 16.0);  // head_dim 32
}

TEST(RopeFrequencies, PlainLinearAndNtk) {
  const Doubles plain = RopeFrequencies(Rope(), 32, 4096);
  const Doubles linear = RopeFrequencies(Rope("linear"), 32, 4096);
  const Doubles within = RopeFrequencies(Rope("ntk"), 32, 512);
  const Doubles beyond = RopeFrequencies(Rope("ntk"), 32, 4096);
  ASSERT_EQ(plain.size(), 16U);
  for (std::int64_t k = 0; k < 16; ++k) {
    EXPECT_DOUBLE_EQ(plain[k], Plain(k));
    EXPECT_DOUBLE_EQ(linear[k], Plain(k) / 8.0);
    EXPECT_DOUBLE_EQ(within[k], Plain(k));
    EXPECT_DOUBLE_EQ(beyond[k], Plain(k, 10000.0 * std::pow(8.0, 32.0 / 30.0)));
  }
  // The base changes so that the slowest pair reaches as much further as the sequence does.
  EXPECT_NEAR(beyond[15] * 8.0, plain[15], 1e-12);
}

TEST(RopeFrequencies, YarnAndLlama3KeepFastPairsAndInterpolateSlowOnes) {
  for (const auto& [kind, slow, fast] :
       {std::tuple{"yarn", 1.0, 32.0}, std::tuple{"llama3", 1.0, 4.0}}) {
    const Doubles scaled = RopeFrequencies(Rope(kind), 32, 4096);
    int kept = 0, blended = 0, divided = 0;
    for (std::int64_t k = 0; k < 16; ++k) {
      const double turns = 512.0 * Plain(k) / (2.0 * M_PI);
      if (turns > fast) {
        EXPECT_DOUBLE_EQ(scaled[k], Plain(k)) << kind << k;
        ++kept;
      } else if (turns < slow) {
        EXPECT_DOUBLE_EQ(scaled[k], Plain(k) / 8.0) << kind << k;
        ++divided;
      } else {
        const double share = (turns - slow) / (fast - slow);
        EXPECT_NEAR(scaled[k], (1.0 - share) * Plain(k) / 8.0 + share * Plain(k), 1e-12);
        ++blended;
      }
    }
    EXPECT_TRUE(kept > 0 && blended > 0 && divided > 0) << kind;
  }
}

TEST(RopeFrequencies, PRopeDropsTheSlowest) {
  Positions positions = Rope();
  positions.kept = 0.75;
  const Doubles kept = RopeFrequencies(positions, 32, 64);
  positions.kept_base = 1024.0;
  const Doubles spread = RopeFrequencies(positions, 32, 64);
  for (std::int64_t k = 0; k < 16; ++k) {
    EXPECT_DOUBLE_EQ(kept[k], k < 12 ? Plain(k) : 0.0);
    EXPECT_NEAR(spread[k], k < 12 ? std::pow(1024.0, -static_cast<double>(k) / 11.0) : 0.0, 1e-15);
  }
}

TEST(RopeTable, CosinesSinesAndTheAttentionFactor) {
  Positions positions = Rope("yarn");
  const double factor = 0.1 * std::log(8.0) + 1.0;
  EXPECT_DOUBLE_EQ(RopeAttentionFactor(positions.scaling), factor);
  EXPECT_DOUBLE_EQ(RopeAttentionFactor(Rope("llama3").scaling), 1.0);
  const RopeTable table = MakeRopeTable(positions, 8, 100);
  const Doubles frequency = RopeFrequencies(positions, 8, 100);
  for (std::int64_t i : {0, 1, 99}) {
    for (std::int64_t k = 0; k < 4; ++k) {
      const double angle = static_cast<double>(i) * frequency[k];
      EXPECT_NEAR(table.cosine[i][k].item<float>(), factor * std::cos(angle), 1e-6);
      EXPECT_NEAR(table.sine[i][k].item<float>(), factor * std::sin(angle), 1e-6);
    }
  }
  positions.scaling.attention_factor = 1.5;
  EXPECT_DOUBLE_EQ(RopeAttentionFactor(positions.scaling), 1.5);
}

TEST(AlibiSlopes, Families) {
  Positions positions;
  positions.kind = "alibi";
  EXPECT_EQ(AlibiSlopes(positions, 4), (Doubles{1.0, 1.0 / 2, 1.0 / 3, 1.0 / 4}));
  positions.slopes = "geometric";
  EXPECT_EQ(AlibiSlopes(positions, 8), (Doubles{1.0 / 2, 1.0 / 4, 1.0 / 8, 1.0 / 16, 1.0 / 32,
                                                1.0 / 64, 1.0 / 128, 1.0 / 256}));
  positions.slopes = "slow";
  EXPECT_DOUBLE_EQ(AlibiSlopes(positions, 8)[3], std::sqrt(0.5));
  positions.kind = "nape";  // half of the heads
  positions.slopes = "halving";
  EXPECT_EQ(AlibiSlopes(positions, 8), (Doubles{1.0, 0.5, 0.25, 0.125}));
  positions.share = 0.25;
  EXPECT_EQ(AlibiSlopes(positions, 8).size(), 2U);
  positions.slopes = "given";
  positions.given = {3.0, 2.0};
  EXPECT_EQ(AlibiSlopes(positions, 8), (Doubles{3.0, 2.0}));
}

TEST(Sinusoids, SinesAndCosines) {
  const at::Tensor table = Sinusoids(50, 6, 10000.0);
  for (std::int64_t i : {0, 7, 49}) {
    for (std::int64_t k = 0; k < 6; k += 2) {
      const double angle = static_cast<double>(i) / std::pow(10000.0, static_cast<double>(k) / 6.0);
      EXPECT_NEAR(table[i][k].item<float>(), std::sin(angle), 1e-6);
      EXPECT_NEAR(table[i][k + 1].item<float>(), std::cos(angle), 1e-6);
    }
  }
}

}  // namespace
}  // namespace tsallis::lab
