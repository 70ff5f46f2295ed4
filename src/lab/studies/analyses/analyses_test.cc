// Every analysis at its quick size: the figures that papers and closed forms give, and that what a
// page draws is there.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "lab/report/analysis_io.h"
#include "lab/studies/analyses/catalogue.h"
#include "lab/testing/lab_test_support.h"

namespace tsallis::lab {
namespace {

AnalysisContext Quick() {
  AnalysisContext context;
  context.quick = true;
  context.kernels.threads = 1;
  return context;
}

double FactOf(const AnalysisResult& result, const std::string& part) {
  for (const Fact& fact : result.facts) {
    if (fact.quantity.find(part) != std::string::npos) return fact.value;
  }
  ADD_FAILURE() << "no number called " << part;
  return NAN;
}

// The result, after a look whether tables and columns that its figures name exist, and the rows
// that they pick are there.
AnalysisResult Drawable(AnalysisResult result) {
  const auto rows = [&](const std::string& table, const std::vector<std::string>& columns,
                        const Where& where) {
    const DataTable& data = result.Table(table);
    for (const std::string& column : columns) {
      if (!column.empty()) data.Place(column);
    }
    return std::count_if(data.Rows().begin(), data.Rows().end(), [&](const auto& row) {
      return std::all_of(where.begin(), where.end(), [&](const auto& wanted) {
        return CellText(row[data.Place(wanted.first)]) == CellText(wanted.second);
      });
    });
  };
  std::set<std::string> names;
  for (const AnalysisFigure& figure : result.figures) {
    EXPECT_TRUE(names.insert(figure.name).second) << figure.name;
    EXPECT_FALSE(figure.panels.empty()) << figure.name;
    EXPECT_FALSE(figure.caption.empty()) << figure.name;
    for (const Panel& panel : figure.panels) {
      EXPECT_TRUE(panel.heat || !panel.curves.empty());
      for (const Curve& curve : panel.curves) {
        EXPECT_GT(rows(curve.table, {curve.x, curve.y, curve.by}, curve.where), 0)
            << figure.name << " " << panel.title << " " << curve.table;
      }
      if (panel.heat) {
        const Heat& heat = *panel.heat;
        EXPECT_GT(rows(heat.table, {heat.x, heat.y, heat.value}, heat.where), 3) << figure.name;
      }
    }
  }
  return result;
}

TEST(Analyses, EntriesVanishWhereTheFormulaSays) {
  const AnalysisResult result = Drawable(EntmaxTemperature(Quick()));
  // Computed by another program.
  const std::vector<std::pair<double, std::vector<double>>> expected = {
      {1.25, {20.0, 9.8496, 6.3566, 4.6108}},
      {1.5, {10.0, 4.4721, 2.6726, 1.8257}},
      {1.75, {6.6667, 2.5943, 1.4220, 0.9115}},
      {2.0, {5.0, 1.6667, 0.8333, 0.5}},
      {4.0, {1.6667, 0.1444, 0.0328, 0.0113}}};
  const DataTable& vanishing = result.Table("vanishing");
  for (const auto& [alpha, times] : expected) {
    for (std::size_t j = 0; j < times.size(); ++j) {
      const std::vector<Cell> keys = {alpha, static_cast<int>(j + 2)};
      EXPECT_NEAR(vanishing.At(keys, "formula"), times[j], 6e-5 * std::max(1.0, times[j]));
      EXPECT_NEAR(vanishing.At(keys, "measured") / vanishing.At(keys, "formula"), 1.0, 1e-6)
          << alpha << " " << j;
    }
  }
}

TEST(Analyses, AScoreBelowTheThresholdChangesNothing) {
  const AnalysisResult result = Drawable(Insertion(Quick()));
  const DataTable& changes = result.Table("changes");
  for (const double alpha : {1.25, 1.5, 2.0, 4.0}) {
    EXPECT_LT(changes.At({alpha}, "largest_below"), 1e-13) << alpha;
    EXPECT_GT(changes.At({alpha}, "smallest_above"), 0.0) << alpha;
  }
}

TEST(Analyses, TwoLevelsNeedWhatTheLemmaSays) {
  const AnalysisResult result = Drawable(Dispersion(Quick()));
  for (const auto& row : result.Table("gap").Rows()) {
    EXPECT_NEAR(std::get<double>(row[3]), std::get<double>(row[4]), 1e-9);
  }
  EXPECT_NEAR(FactOf(result, "4 of n scores need, α = 1.5"), 1.0, 1e-9);
  EXPECT_NEAR(FactOf(result, "4 of n scores need, α = 2"), 0.25, 1e-9);
  EXPECT_NEAR(FactOf(result, "n^0.5 of"), 0.5, 1e-3);
  // Two levels 2 apart: with k = 4, entmax of 1.5 keeps H = ln 4 at every n, softmax disperses.
  const DataTable& entropy = result.Table("entropy");
  for (const std::int64_t n : {64, 1024}) {
    EXPECT_NEAR(entropy.At({"two levels", 4.0, "α = 1.5", n}, "normalised_entropy"),
                std::log(4.0) / std::log(n), 1e-9);
  }
  EXPECT_GT(entropy.At({"normal", 1.0, "softmax", 1024}, "normalised_entropy"), 0.9);
}

TEST(Analyses, TheRangeOfNormalScoresGrowsSlowlyTowardsItsLimit) {
  const AnalysisResult result = Drawable(ScoreRange(Quick()));
  EXPECT_NEAR(FactOf(result, "at n = 1 024"), 0.87, 0.03);
  // E[max] of 1 024 normal scores is 3.2: the range is twice that.
  EXPECT_NEAR(result.Table("ranges").At({1024}, "range"), 6.48, 0.15);
}

TEST(Analyses, SoftmaxCollapsesAndEntmaxDoesNot) {
  const AnalysisResult result = Drawable(Collapse(Quick()));
  // Computed by another program.
  const std::vector<std::pair<std::string, std::vector<double>>> expected = {
      {"softmax", {0.0893, 0.0500, 0.0183}},
      {"α = 1.5", {0.584, 0.551, 0.542}},
      {"α = 1.75", {1.59, 1.55, 1.54}},
      {"α = 2", {2.62, 2.60, 2.60}}};
  const DataTable& constant = result.Table("constant");
  for (const auto& [map, differences] : expected) {
    std::size_t i = 0;
    for (const std::int64_t n : {128, 512, 2048}) {
      const double digits = differences[i] > 1.0 ? 6e-3 : differences[i] > 0.1 ? 6e-4 : 6e-5;
      EXPECT_NEAR(constant.At({map, n}, "difference"), differences[i++], digits) << map << n;
    }
  }
  EXPECT_NEAR(FactOf(result, "worked example"), 0.353553, 1e-5);
  const DataTable& random = result.Table("random");
  const std::int64_t n = 512;
  EXPECT_LT(random.At({"softmax", n}, "difference"), random.At({"α = 1.5", n}, "difference"));
}

TEST(Analyses, NoWeightLiesBeyondALiBisWindowOrTheEndsOfRope) {
  const AnalysisResult result = Drawable(PositionLimits(Quick()));
  EXPECT_EQ(FactOf(result, "beyond ALiBi's window"), 0.0);
  EXPECT_GT(FactOf(result, "over the window, most"), 0.5);
  EXPECT_EQ(FactOf(result, "RoPE's support get wrong"), 0.0);
  EXPECT_EQ(FactOf(result, "rule of ratios"), 0.0);
  const DataTable& lags = result.Table("lags");
  EXPECT_LT(lags.At({"ALiBi, 2^(−h/8)"}, "lag"), 0.2 * lags.At({"NoPE"}, "lag"));
}

TEST(Analyses, ScaleInvariantScoresKeepLocalWeight) {
  const AnalysisResult result = Drawable(ScaleInvariance(Quick()));
  // Means of 2 000 draws in NumPy, at N = 1 000.
  const std::int64_t n = 1000;
  const DataTable& rows = result.Table("rows");
  const std::vector<std::pair<std::string, std::pair<double, double>>> expected = {
      {"none", {6.409, 0.0997}}, {"LogN", {3.736, 0.0991}}, {"scale-invariant", {3.749, 0.542}}};
  for (const auto& [law, numbers] : expected) {
    EXPECT_NEAR(rows.At({law, n}, "entropy"), numbers.first, 0.2) << law;
    EXPECT_NEAR(rows.At({law, n}, "last_100"), numbers.second, 0.06) << law;
  }
  EXPECT_NEAR(FactOf(result, "[t, 2t)"), 11.43, 0.01);
  EXPECT_NEAR(FactOf(result, "[t, 5t)"), 26.54, 0.01);
  EXPECT_NEAR(FactOf(result, "[t, 10t)"), 37.96, 0.01);
  // Means of 40 draws by another program: t = 10 and 100 for a range of ten times t.
  const DataTable& ranges = result.Table("range_entropy");
  EXPECT_NEAR(ranges.At({"scale-invariant", 10, 10}, "entropy"), 2.82, 0.2);
  EXPECT_NEAR(ranges.At({"none", 10, 10}, "entropy"), 4.02, 0.1);
}

TEST(Analyses, SoftmaxEndsAtTheFirstToken) {
  const AnalysisResult result = Drawable(Depth(Quick()));
  const DataTable& table = result.Table("first_token");
  const std::int64_t layers = 16;
  EXPECT_GT(table.At({"new scores in every layer", 1.0, "softmax", layers}, "mass"), 0.9);
  EXPECT_EQ(table.At({"new scores in every layer", 1.0, "softmax", layers}, "cut_off"), 0.0);
  EXPECT_GT(table.At({"the same in every layer", 4.0, "α = 2", layers}, "cut_off"), 0.02);
  EXPECT_LT(table.At({"the same in every layer", 4.0, "α = 2", layers}, "mass"), 0.9);
}

TEST(Analyses, EntropyFallsWithTheTemperature) {
  const AnalysisResult result = Drawable(SoftmaxEntropy(Quick()));
  EXPECT_EQ(FactOf(result, "rises"), 0.0);
  EXPECT_NEAR(FactOf(result, "from which on"), 0.849, 1e-3);
  EXPECT_NEAR(FactOf(result, "beyond which it does nothing (nats)"), 5.945, 1e-3);
  EXPECT_NEAR(FactOf(result, "largest factor"), 2.42, 5e-3);
}

TEST(Analyses, EveryWayFindsTheSameThreshold) {
  const AnalysisResult result = Drawable(ThresholdSteps(Quick()));
  EXPECT_LT(FactOf(result, "library's threshold"), 1e-5);
  const DataTable& passes = result.Table("passes");
  const std::int64_t n = 1024;
  EXPECT_NEAR(passes.At({1.5, "bisection", n}, "mean"), 20.0, 6.0);
  EXPECT_LT(passes.At({1.5, "Halley and bisection", n}, "most"), 9.0);
  EXPECT_LT(passes.At({1.5, "Newton on the norm (ours)", n}, "most"), 9.0);
}

TEST(Analyses, ALayerThatAveragesLeavesNothingToTheNext) {
  const AnalysisResult result = Drawable(DispersionDepth(Quick()));
  EXPECT_LT(FactOf(result, "no residual"), 0.05);
  EXPECT_GT(FactOf(result, "with a residual"), 0.2);
}

TEST(Analyses, LearnedEdgesFindMoreThanChanceAndPatternsAreWhatTheyAre) {
  const AnalysisResult result = Drawable(Sparsefinder(Quick()));
  const DataTable& table = result.Table("edges");
  // A window of 4 in 128 tokens: 4 n - 6 of n (n + 1) / 2 pairs.
  const double left_out = 100.0 * (1.0 - 506.0 / (128.0 * 129.0 / 2.0));
  EXPECT_NEAR(table.At({"all", "tokens", "window", 4.0}, "sparsity"), left_out, 1e-9);
  std::set<std::string> methods;
  for (const auto& row : table.Rows()) {
    methods.insert(std::get<std::string>(row[2]));
    const double sparsity = std::get<double>(row[4]);
    const double recall = std::get<double>(row[5]);
    const double mass = std::get<double>(row[6]);
    const double exact = std::get<double>(row[7]);
    for (const double share : {sparsity, recall, mass, exact}) {
      EXPECT_GE(share, -1e-9);
      EXPECT_LE(share, 100.0 + 1e-3);
    }
    // With pairs joined at random, recall would be the share that is joined.
    if (std::get<std::string>(row[0]) == "all" && std::get<std::string>(row[2]) == "distance") {
      EXPECT_GT(recall, 100.0 - sparsity);
    }
  }
  EXPECT_EQ(methods.size(), 8U + 5U + 6U);         // pairs, with first keys, chunks of 1, 8 and 16
  EXPECT_EQ(result.figures[1].panels.size(), 4U);  // of four layers
  // The model under these pairs: the same ones for a pattern, and less is known under fewer.
  const DataTable& answers = result.Table("answers");
  EXPECT_NEAR(answers.At({"tokens", "window", 4.0}, "sparsity"), left_out, 1e-9);
  const double whole = result.Table("full").At({0.0}, "value");
  EXPECT_NEAR(answers.At({"tokens", "window", 64.0}, "value"), whole, 0.2);
  EXPECT_GT(answers.At({"tokens", "window", 4.0}, "value"), whole + 0.2);
  for (const auto& row : result.Table("time").Rows()) {
    EXPECT_GT(std::get<double>(row[5]), 0.0);
    EXPECT_GT(std::get<double>(row[7]), 0.0);
  }
  // But for what is measured in milliseconds, the same again.
  const auto counted = [](const AnalysisResult& of) {
    std::vector<std::pair<std::string, double>> facts;
    for (const Fact& fact : of.facts) {
      if (!fact.quantity.starts_with("time")) facts.emplace_back(fact.quantity, fact.value);
    }
    return facts;
  };
  EXPECT_EQ(counted(Sparsefinder(Quick())), counted(result));
}

TEST(Analyses, TimeIsMeasured) { Drawable(SparsityTime(Quick())); }

TEST(Analyses, AFitToATrainedModelAndWhatItMisreads) {
  const TemporaryFolder folder;
  AnalysisContext context = Quick();
  context.models = folder.Path();
  const AnalysisResult fit = Drawable(TemperatureFit(context));
  EXPECT_EQ(fit.facts.size(), 6U);
  for (const auto& row : fit.Table("samples").Rows()) {
    EXPECT_GE(std::get<double>(row[1]), 0.1);
    EXPECT_LE(std::get<double>(row[1]), 10.0);
  }
  // The second study takes the model that the first has trained, and a checkpoint is the same.
  context.checkpoint = folder.Path() / "softmax-500-seed-1";
  Drawable(Misreading(context));
  context.checkpoint = folder.Path();
  ExpectContains(UsageErrorOf([&] { Misreading(context); }), "no weights in this folder");
}

TEST(Analyses, AFolderIsWrittenAndNotMadeTwice) {
  const TemporaryFolder folder;
  const std::atomic<bool> go{false};
  AnalysisOptions options;
  options.context.quick = true;
  options.progress.quiet = true;
  options.command = "first";
  const std::vector<const Analysis*> one = {&FindAnalysis("insertion")};
  const std::filesystem::path dir = folder.Path() / "insertion";
  const auto run = [&] { RunAnalyses(one, {dir}, folder.Path(), options, go); };
  run();
  EXPECT_TRUE(std::filesystem::exists(dir / "data" / "sweep.csv"));
  options.command = "second";
  options.resume = true;
  run();
  EXPECT_EQ(ReadAnalysis(dir).at("command"), "first");
  options.context.seed = 2;
  run();
  EXPECT_EQ(ReadAnalysis(dir).at("command"), "second");
  const std::atomic<bool> stop{true};
  options.resume = false;
  EXPECT_THROW(RunAnalyses(one, {dir}, folder.Path(), options, stop), Interrupted);
  ExpectContains(UsageErrorOf([] { FindAnalysis("disperson"); }), "did you mean \"dispersion\"?");
}

}  // namespace
}  // namespace tsallis::lab
