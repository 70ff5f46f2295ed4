#include "lab/generate/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "lab/testing/lab_test_support.h"

namespace tsallis::lab {
namespace {

// ln of 8, 4, 2, 1, 1 sixteenths, in another order.
const std::vector<float> kLogits = {std::log(2.0F), std::log(8.0F), std::log(1.0F), std::log(4.0F),
                                    std::log(1.0F)};

std::vector<double> Weights(const SamplerOptions& options) {
  CheckSampler(options);
  std::vector<double> weights =
      TokenWeights(kLogits.data(), static_cast<std::int64_t>(kLogits.size()), options);
  EXPECT_NEAR(std::accumulate(weights.begin(), weights.end(), 0.0), 1.0, 1e-12);
  return weights;
}

void ExpectWeights(const SamplerOptions& options, const std::vector<double>& expected) {
  const std::vector<double> weights = Weights(options);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(weights[i], expected[i], 1e-7) << i;
    EXPECT_EQ(weights[i] == 0.0, expected[i] == 0.0) << i;
  }
}

TEST(Sampler, CutsFollowTheirDefinitions) {
  ExpectWeights({}, {2.0 / 16, 8.0 / 16, 1.0 / 16, 4.0 / 16, 1.0 / 16});
  ExpectWeights({.temperature = 0.0}, {0, 1, 0, 0, 0});
  ExpectWeights({.temperature = 0.5}, {4.0 / 86, 64.0 / 86, 1.0 / 86, 16.0 / 86, 1.0 / 86});
  ExpectWeights({.top_k = 2}, {0, 8.0 / 12, 0, 4.0 / 12, 0});
  ExpectWeights({.top_k = 99}, {2.0 / 16, 8.0 / 16, 1.0 / 16, 4.0 / 16, 1.0 / 16});
  ExpectWeights({.top_p = 0.4}, {0, 1, 0, 0, 0});
  ExpectWeights({.top_p = 0.74}, {0, 8.0 / 12, 0, 4.0 / 12, 0});
  ExpectWeights({.min_p = 0.2}, {2.0 / 14, 8.0 / 14, 0, 4.0 / 14, 0});
  ExpectWeights({.min_p = 1.0}, {0, 1, 0, 0, 0});
  // One after the other: top-p looks at the two that top-k left, where 8 weighs 2/3.
  ExpectWeights({.top_k = 2, .top_p = 0.66}, {0, 1, 0, 0, 0});
}

TEST(Sampler, EntmaxCutsByItself) {
  // Sparsemax by hand: the two largest are ln 2 apart; tau = (ln 8 + ln 4 - 1) / 2.
  const double gap = std::log(2.0);
  ExpectWeights({.entmax = 2.0}, {0, 0.5 + gap / 2, 0, 0.5 - gap / 2, 0});
  // Colder, one is left; hotter, all are.
  ExpectWeights({.temperature = 0.1, .entmax = 2.0}, {0, 1, 0, 0, 0});
  for (const double weight : Weights({.temperature = 100.0, .entmax = 1.5})) {
    EXPECT_GT(weight, 0.0);
  }
}

TEST(Sampler, DrawsTokensAsOftenAsTheyWeigh) {
  const std::vector<double> weights = Weights({.top_k = 3});
  std::vector<double> drawn(weights.size());
  constexpr int kDraws = 20000;
  for (int i = 0; i < kDraws; ++i) {
    drawn[static_cast<std::size_t>(TokenAt(weights, SampleNumber(7, i % 100, i / 100)))] +=
        1.0 / kDraws;
  }
  for (std::size_t i = 0; i < weights.size(); ++i) EXPECT_NEAR(drawn[i], weights[i], 0.015) << i;
  EXPECT_EQ(TokenAt({0.0, 0.25, 0.75, 0.0}, 0.0), 1);
  EXPECT_EQ(TokenAt({0.0, 0.25, 0.75, 0.0}, 0.25), 2);
  EXPECT_EQ(TokenAt({0.0, 0.25, 0.7499, 0.0}, 0.99999), 2);  // of rounding
}

TEST(Sampler, NumbersDependOnSeedSequenceAndStep) {
  std::set<double> numbers;
  for (const std::uint64_t seed : {1U, 2U}) {
    for (int sequence = 0; sequence < 10; ++sequence) {
      for (int step = 0; step < 50; ++step) {
        const double u = SampleNumber(seed, sequence, step);
        EXPECT_GE(u, 0.0);
        EXPECT_LT(u, 1.0);
        EXPECT_EQ(u, SampleNumber(seed, sequence, step));
        numbers.insert(u);
      }
    }
  }
  EXPECT_EQ(numbers.size(), 1000U);
}

TEST(Sampler, NamesWhatItCannotDo) {
  const auto message = [](const SamplerOptions& options) {
    return UsageErrorOf([&] { CheckSampler(options); });
  };
  ExpectContains(message({.temperature = -1.0}), "--temperature: expected a number of 0 or more");
  ExpectContains(message({.temperature = std::nan("")}), "--temperature");
  ExpectContains(message({.top_k = -1}), "--top-k: expected 0 or more, got -1");
  ExpectContains(message({.top_p = 0.0}), "--top-p: expected a number above 0, up to 1, got 0");
  ExpectContains(message({.min_p = 1.5}), "--min-p: expected a number from 0 to 1, got 1.5");
  ExpectContains(message({.entmax = 1.0}), "--entmax: expected a number above 1, got 1");
  ExpectContains(message({.top_k = 3, .entmax = 1.5}), "--entmax: expected without --top-k");
  for (const SamplerOptions& cut : {SamplerOptions{.temperature = 0.0, .top_k = 3},
                                    {.temperature = 0.0, .top_p = 0.5},
                                    {.temperature = 0.0, .min_p = 0.5}}) {
    ExpectContains(message(cut), ": expected with a --temperature above 0");
  }
  ExpectContains(message({.temperature = 0.0, .entmax = 1.5}),
                 "--temperature: expected a number "
                 "above 0 with --entmax");
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    std::vector<float> logits = kLogits;
    logits[3] = bad;
    EXPECT_THROW(TokenWeights(logits.data(), 5, {}), std::runtime_error);
  }
  std::vector<float> logits = kLogits;
  logits[1] = -std::numeric_limits<float>::infinity();
  EXPECT_EQ(TokenWeights(logits.data(), 5, {})[1], 0.0);
}

}  // namespace
}  // namespace tsallis::lab
