#include "lab/eval/scores.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "lab/testing/lab_test_support.h"

namespace tsallis::lab {
namespace {

TEST(Scores, AreReadAsTheyWereWritten) {
  const TemporaryFolder folder;
  const auto path = folder.Path() / "eval.json";
  EXPECT_TRUE(LoadScores(path).empty());
  const double nothing = std::numeric_limits<double>::quiet_NaN();
  const std::vector<Score> written = {
      Score{{"n", 3}, {"samples", 20}, {"hits", 5}, {"asked", 20}, {"loss", nothing}},
      Score{{"n", 3}, {"samples", 40}, {"hits", 9}, {"asked", 40}},
      Score{{"n", 8}, {"sets", 20}, {"hits", 7}}};
  SaveScores(path, written);
  const std::vector<Score> scores = LoadScores(path);
  ASSERT_EQ(scores.size(), 3U);
  EXPECT_DOUBLE_EQ(Metric().Value(*FindScore(scores, 3, 20)), 25.0);
  EXPECT_DOUBLE_EQ(Metric().Value(*FindScore(scores, 3, 40)), 22.5);
  EXPECT_TRUE(std::isnan(LossMetric("byte").Value(scores[0])));  // null in the file
  EXPECT_DOUBLE_EQ(Metric{.count = "sets"}.Value(*FindScore(scores, 8, 20)), 35.0);
  EXPECT_EQ(FindScore(scores, 8, 40), nullptr);
  EXPECT_THROW(Metric().Value(scores[2]), std::runtime_error) << "sets are not asked";
  for (const char* damaged : {"[{\"n\": 3, \"samples\": 20", "{}", "[3]", "[{\"n\": 3}]"}) {
    std::ofstream(path) << damaged;
    EXPECT_TRUE(LoadScores(path).empty()) << damaged;
  }
}

}  // namespace
}  // namespace tsallis::lab
