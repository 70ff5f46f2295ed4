#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>

#include "lab/report/contrast.h"
#include "lab/report/finding.h"
#include "lab/report/render.h"
#include "lab/report/results.h"
#include "lab/report/results_io.h"

namespace tsallis::lab {
namespace {

namespace fs = std::filesystem;

StudyResults Example() {
  StudyResults results;
  results.study = "max-retrieval";
  results.title = "Max retrieval: accuracy against set size";
  results.source = "softmax-is-not-enough, table 1";
  results.scale = "quick";
  results.commit = "0123abc";
  results.processor = "A processor";
  results.command = "tsallis reproduce max-retrieval --scale quick";
  results.protocol = "Adam, lr 1e-3, 100 steps of 128.";
  results.train_seconds = 123.5;
  results.methods = {{"softmax", "Softmax, θ = √d"},
                     {.name = "asentmax-3",
                      .label = "ASEntmax, γ = 3",
                      .map = "entmax",
                      .length_scaling = "scalar",
                      .like = "asentmax-3",
                      .variant = "weight decay",
                      .headline = true}};
  for (const auto& method : results.methods) {
    for (std::int64_t n = 16; n <= 16384; n *= 2) {
      ResultRow row;
      row.method = method.name;
      row.n = n;
      row.mean = 100.0 - std::log2(static_cast<double>(n)) / 3.0;
      row.deviation = 0.25;
      row.best = row.mean + 0.125;
      row.seeds = 3;
      if (n == 16) row.samples = 256;
      if (n <= 4096) row.paper = row.mean + (n == 16 ? -0.5 : n < 1024 ? 0.5 : 4.0);
      results.rows.push_back(row);
      results.entropies.push_back(
          {method.name, n, std::log(static_cast<double>(n)) / 2.0, 0.1, 0.5, 7.5});
    }
    HeadObservations heads;
    heads.lengths = {{8, 32, {{0, 0, "normalised entropy", 0.25, 0.125}, {0, 1, "beta", 1.5, 0.5}}},
                     {16, 16, {{0, 0, "normalised entropy", 0.5, 0.0}}}};
    heads.maps = {{8, 0, 1, 2, 1, {1.0F, 0.0F, 0.25F, 0.75F}}, {16, 0, 1, 3, 2, {1, 0, 0, 1}}};
    results.heads.push_back({method.name, heads});
    results.heat_maps.push_back({method.name, 16, 2, 3, {0.1F, 0.2F, 0.7F, 0.0F, 1e-9F, 1.0F}});
  }
  results.samples = {{8, {"<bos>", "a,\"b"}, {false, true}}};
  return results;
}

class ReportTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "tsallis-report-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    dir_ = pattern;
  }
  void TearDown() override { fs::remove_all(dir_); }

  static std::string Slurp(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }
  void Put(const fs::path& name, const std::string& text) const {
    fs::create_directories((dir_ / name).parent_path());
    std::ofstream(dir_ / name) << text;
  }
  fs::path dir_;
};

using ResultsIoTest = ReportTest;
using RenderTest = ReportTest;

bool Contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_F(ResultsIoTest, WritesTheFolderAndNothingElse) {
  WriteResults(Example(), dir_);
  WriteResults(Example(), dir_);  // over what is there
  int files = 0;
  for (const auto& entry : fs::recursive_directory_iterator(dir_)) {
    if (!entry.is_regular_file()) continue;
    ++files;
    EXPECT_FALSE(entry.path().filename().string().starts_with(".")) << entry.path();
  }
  EXPECT_EQ(files, 7);
  EXPECT_TRUE(Contains(Slurp(dir_ / "results.csv"), "asentmax-3,\"ASEntmax, γ = 3\",16,"));
  EXPECT_TRUE(Contains(Slurp(dir_ / "data/entropy.csv"), ",0.5,7.5\n"));  // H / ln n
  EXPECT_TRUE(Contains(Slurp(dir_ / "data/heatmap.csv"), "softmax,16,0,1,0.7\n"));
}

TEST_F(ResultsIoTest, DataThatIsNotThereHasNoFile) {
  WriteResults(Example(), dir_);
  StudyResults results = Example();
  results.heat_maps.clear();
  results.heads.clear();
  WriteResults(results, dir_);
  EXPECT_TRUE(fs::exists(dir_ / "data/entropy.csv"));
  for (const char* name : {"heatmap", "heads", "attention"}) {
    EXPECT_FALSE(fs::exists(dir_ / "data" / (std::string(name) + ".csv"))) << name;
  }
}

TEST_F(ResultsIoTest, WhatEachHeadDoesStandsInData) {
  WriteResults(Example(), dir_);
  EXPECT_EQ(ToJson(Example())["entropies"][0]["normalised_entropy"], 0.5);
  EXPECT_TRUE(Contains(Slurp(dir_ / "data/heads.csv"), "softmax,8,32,0,1,beta,1.5,0.5\n"));
}

TEST_F(ResultsIoTest, JsonHasPercentagesAndNullForNoPaper) {
  const auto json = ToJson(Example());
  EXPECT_EQ(json["rows"][0]["n"], 16);
  EXPECT_EQ(json["rows"][0]["samples"], 256);
  EXPECT_FALSE(json["rows"][1].contains("samples"));
  EXPECT_TRUE(json["rows"][0]["paper"].is_number());
  EXPECT_TRUE(json["rows"][10]["paper"].is_null());
  EXPECT_EQ(json["methods"][0]["label"], "Softmax, θ = √d");
  EXPECT_EQ(json["methods"][1]["map"], "entmax");
  EXPECT_EQ(json["methods"][1]["length_scaling"], "scalar");
  EXPECT_EQ(json["methods"][1]["like"], "asentmax-3");
  EXPECT_EQ(json["methods"][1]["variant"], "weight decay");
  EXPECT_EQ(json["methods"][1]["headline"], true);
}

TEST_F(ResultsIoTest, NotANumberIsNullInJson) {
  StudyResults results = Example();
  results.rows[0].mean = std::nan("");
  results.entropies[0].entropy_mean = std::nan("");
  WriteResults(results, dir_);
  const std::string written = Slurp(dir_ / "results.json");
  EXPECT_TRUE(Contains(written, R"("n":16,"mean":null,)")) << written;
  EXPECT_TRUE(Contains(Slurp(dir_ / "data/entropy.csv"), "softmax,16,nan,"));
}

TEST_F(ResultsIoTest, TextInAForeignEncodingIsReplaced) {
  StudyResults results = Example();
  results.processor = "caf\xE9";
  WriteResults(results, dir_);
  EXPECT_TRUE(Contains(Slurp(dir_ / "results.json"), "caf\uFFFD"));
}

// A file where the folder should be fails for everyone; permissions would not stop root.
TEST_F(ResultsIoTest, UnwritableFolderNamesPathAndReason) {
  Put("blocked", "a file");
  try {
    WriteResults(Example(), dir_ / "blocked");
    FAIL() << "nothing thrown";
  } catch (const std::runtime_error& error) {
    EXPECT_TRUE(Contains(error.what(), (dir_ / "blocked").string())) << error.what();
    EXPECT_TRUE(Contains(error.what(), "Not a directory")) << error.what();
  }
}

TEST_F(ResultsIoTest, FailedWriteLeavesNoPieces) {
  fs::create_directories(dir_ / "results.csv" / "inside");  // renaming onto a full folder fails
  EXPECT_THROW(WriteResults(Example(), dir_), std::runtime_error);
  EXPECT_FALSE(fs::exists(dir_ / "results.json"));  // it comes last
  for (const auto& entry : fs::directory_iterator(dir_)) {
    EXPECT_FALSE(entry.path().filename().string().starts_with(".")) << entry.path();
  }
}

TEST_F(ResultsIoTest, HeatMapOfTheWrongSizeIsRefusedBeforeAnythingIsWritten) {
  StudyResults results = Example();
  results.heat_maps[0].weights.pop_back();
  EXPECT_THROW(WriteResults(results, dir_ / "out"), std::runtime_error);
  EXPECT_FALSE(fs::exists(dir_ / "out"));
}

TEST(Contrast, HoldsMethodsAgainstTheBaseline) {
  StudyResults results = Example();
  results.baseline = "softmax";
  ResultRow& row = results.rows[11];  // of asentmax-3 at n = 16
  row.mean += 12.5;
  row.deviation = 1.0;
  // sqrt(0.25^2 / 3 + 1 / 3)
  const auto contrast = AgainstBaseline(results, "asentmax-3", 16);
  ASSERT_TRUE(contrast && contrast->error);
  EXPECT_NEAR(contrast->difference, 12.5, 1e-9);
  EXPECT_NEAR(*contrast->error, 0.59512, 1e-5);
  const auto written = ToJson(results)["rows"][11]["against_baseline"];
  EXPECT_EQ(written["difference"], contrast->difference);
  EXPECT_EQ(written["error"], *contrast->error);
  row.seeds = 1;
  EXPECT_FALSE(AgainstBaseline(results, "asentmax-3", 16)->error);
  EXPECT_FALSE(AgainstBaseline(results, "asentmax-3", 17));
  EXPECT_EQ(ToJson(results)["baseline"], "softmax");
  EXPECT_TRUE(ToJson(results)["rows"][11]["against_baseline"]["error"].is_null());
}

TEST(Contrast, PairsTheSeedsThatBothHave) {
  StudyResults results = Example();
  results.baseline = "softmax";
  ResultRow& base = results.rows[0];
  ResultRow& row = results.rows[11];  // of asentmax-3, at the same n = 16
  ASSERT_EQ(base.n, row.n);
  base.by_seed = {{1, 70.0}, {2, 75.0}, {3, 80.0}, {4, 60.0}};
  row.by_seed = {{1, 71.0}, {2, 77.5}, {3, 80.5}, {9, 12.0}};
  // Differences 1, 2.5, 0.5: mean 4/3, deviation sqrt(13/12), t = 2.2188, two degrees of freedom:
  // p = 1 - t / sqrt(2 + t^2).
  const double t = 4.0 / 3.0 / std::sqrt(13.0 / 12.0 / 3.0);
  const auto contrast = AgainstBaseline(results, "asentmax-3", 16);
  ASSERT_TRUE(contrast && contrast->p_value);
  EXPECT_NEAR(*contrast->p_value, 1.0 - t / std::sqrt(2.0 + t * t), 1e-12);
  EXPECT_NEAR(ToJson(results)["rows"][11]["against_baseline"]["p"], *contrast->p_value, 1e-4);
  row.by_seed.erase(row.by_seed.begin());  // two pairs are too few
  EXPECT_FALSE(AgainstBaseline(results, "asentmax-3", 16)->p_value);
  EXPECT_FALSE(ToJson(results)["rows"][11]["against_baseline"].contains("p"));
  row.by_seed = {{1, 71.0}, {2, 76.0}, {3, 81.0}};  // no spread, no test
  EXPECT_FALSE(AgainstBaseline(results, "asentmax-3", 16)->p_value);
}

TEST(Contrast, StudentsDistributionHasItsTabulatedQuantiles) {
  // Two-sided 5 % and 1 %.
  const std::vector<std::tuple<int, double, double>> table = {
      {1, 12.7062047, 63.6567412}, {2, 4.30265273, 9.92484320}, {3, 3.18244631, 5.84090931},
      {4, 2.77644511, 4.60409487}, {9, 2.26215716, 3.24983554}, {30, 2.04227246, 2.74999565}};
  for (const auto& [freedom, five, one] : table) {
    EXPECT_NEAR(TwoSidedStudent(five, freedom), 0.05, 1e-8) << freedom;
    EXPECT_NEAR(TwoSidedStudent(-one, freedom), 0.01, 1e-8) << freedom;
    EXPECT_EQ(TwoSidedStudent(0.0, freedom), 1.0);
  }
}

// ---- rendering ------------------------------------------------------------------------------

TEST_F(RenderTest, PassesArgumentsAndPythonPath) {
  Put("python.sh", "#!/bin/sh\necho \"$1 $2 $PYTHONPATH\" > \"$3/seen\"\n");
  fs::permissions(dir_ / "python.sh", fs::perms::owner_all);
  const fs::path out = dir_ / "a folder; with $HOME";
  fs::create_directories(out);
  RenderReport(out, dir_ / "python.sh", "/source");
  EXPECT_TRUE(Slurp(out / "seen").starts_with("-m tsallis_report /source/python"));
  EXPECT_FALSE(Contains(Slurp(out / "seen"), "--table"));
}

TEST_F(RenderTest, AsksForTheTableInColumnsOfTheTerminal) {
  Put("python.sh", "#!/bin/sh\necho \"$*\" > \"$3/seen\"\n");
  fs::permissions(dir_ / "python.sh", fs::perms::owner_all);
  RenderReport(dir_, dir_ / "python.sh", "/source", {.show = true, .color = true, .width = 64});
  EXPECT_TRUE(Contains(Slurp(dir_ / "seen"), "--table --width 64 --color\n"));
}

TEST_F(RenderTest, FailureCarriesTheEndOfTheOutput) {
  Put("python.sh",
      "#!/bin/sh\ni=0\nwhile [ $i -lt 3000 ]; do echo \"line $i of noise\"; i=$((i+1)); done\n"
      "echo 'ModuleNotFoundError: matplotlib' >&2\nexit 3\n");
  fs::permissions(dir_ / "python.sh", fs::perms::owner_all);
  try {
    RenderReport(dir_, dir_ / "python.sh", "/source");
    FAIL() << "nothing thrown";
  } catch (const std::runtime_error& error) {
    const std::string message = error.what();
    EXPECT_TRUE(Contains(message, "exit code 3")) << message;
    EXPECT_TRUE(Contains(message, "ModuleNotFoundError")) << message;
    EXPECT_FALSE(Contains(message, "line 5 of noise"));
    EXPECT_LT(message.size(), 5000U);
  }
}

TEST_F(RenderTest, MissingPythonIsNamed) {
  try {
    RenderReport(dir_, dir_ / "no-such-python", "/source");
    FAIL() << "nothing thrown";
  } catch (const std::runtime_error& error) {
    EXPECT_TRUE(Contains(error.what(), "no-such-python"));
    EXPECT_TRUE(Contains(error.what(), "No such file"));
  }
}

TEST(Finding, NamesTheSurestDifference) {
  StudyResults results;
  results.baseline = "softmax";
  results.methods = {{"softmax", "Softmax"}, {"a", "A"}, {"b", "B"}, {"c", ""}, {"d", ""}};
  const auto add = [&](const std::string& method, std::int64_t n, double mean, double deviation) {
    results.rows.push_back({method, n, mean, deviation, mean, 3, std::nullopt});
  };
  add("softmax", 32, 99.0, 0.5);
  add("softmax", 64, 90.0, 1.0);
  add("softmax", 128, 1.8, 3.0);
  add("softmax", 512, 0.0, 0.0);
  add("a", 32, 99.5, 0.3);
  add("a", 64, 97.0, 0.5);
  add("a", 128, 86.3, 5.2);
  add("a", 512, 6.8, 4.3);
  add("b", 128, 88.0, 60.0);  // more, but not surely
  EXPECT_EQ(Finding(results, 32).sentence,
            "At n = 128, 4 times the longest length of training, right in % (± standard "
            "deviation over seeds): A 86.3 ± 5.2; Softmax 1.8 ± 3.0.");
  EXPECT_EQ(Finding(results, 32).methods, (std::vector<std::string>{"a", "softmax"}));
  results.methods.resize(3);  // few enough to name all
  EXPECT_EQ(Finding(results, 32).sentence,
            "At n = 128, 4 times the longest length of training, right in % (± standard "
            "deviation over seeds): B 88.0 ± 60.0; A 86.3 ± 5.2; Softmax 1.8 ± 3.0.");
  EXPECT_EQ(Finding(results, 32, 64).sentence,
            "At n = 64, 2 times the longest length of training, right in % (± standard deviation "
            "over seeds): A 97.0 ± 0.5; Softmax 90.0 ± 1.0.");
  EXPECT_EQ(Finding(results, 32, 32).sentence,
            "No method is 5 points or more from Softmax once two standard errors are allowed for, "
            "at n = 32.");
  EXPECT_EQ(Finding(results, 32, 256).sentence, Finding(results, 32).sentence);  // not measured
  std::erase_if(results.rows, [](const ResultRow& row) { return row.n > 32; });
  EXPECT_EQ(Finding(results, 32).sentence,
            "No method is 5 points or more from Softmax once two standard errors are allowed for, "
            "up to n = 32.");
  // One that is behind is a finding, too.
  results.rows.back().mean = 50.0;
  EXPECT_EQ(Finding(results, 32).sentence,
            "At n = 32, right in % (± standard deviation over seeds): Softmax 99.0 ± 0.5; A 50.0 "
            "± 0.3.");
  // One run proves nothing beside others that were repeated.
  results.rows.push_back({"b", 32, 5.0, 0.0, 5.0, 1, std::nullopt});
  EXPECT_EQ(Finding(results, 32).sentence,
            "At n = 32, right in % (± standard deviation over seeds): Softmax 99.0 ± 0.5; A 50.0 "
            "± 0.3; B 5.0.");
  results.baseline = "";
  EXPECT_EQ(Finding(results, 32).sentence, "");
}

TEST(Finding, NamesTheMethodsBetweenTwoThatDifferInMapAndPositions) {
  StudyResults results;
  results.baseline = "softmax-nape";
  for (const char* map : {"softmax", "entmax", "sigmoid"}) {
    for (const char* positions : {"nape", "nope", "rope"}) {
      MethodInfo info{fmt::format("{}-{}", map, positions), fmt::format("{} {}", map, positions)};
      info.like = fmt::format("{}-nape", map);
      info.variant = positions;
      results.methods.push_back(info);
      // The positions alone make the difference.
      const double right = info.variant == "nape" ? 99.0 : info.variant == "rope" ? 90.0 : 10.0;
      results.rows.push_back({info.name, 64, right, 1.0, right, 3, std::nullopt});
    }
  }
  results.rows[4].mean = 9.0;  // entmax-nope
  EXPECT_EQ(Finding(results, 32).sentence,
            "At n = 64, 2 times the longest length of training, right in % (± standard deviation "
            "over seeds): softmax nape 99.0 ± 1.0; entmax nape 99.0 ± 1.0; softmax nope 10.0 ± "
            "1.0; entmax nope 9.0 ± 1.0.");
}

TEST(Finding, NamesTheLayerWhoseGradientDiffersMost) {
  StudyResults results;
  results.methods = {{"softmax", "Softmax"}, {"a", "A"}, {"b", "B"}};
  results.baseline = "softmax";
  const auto add = [&](const char* method, std::int64_t step, double first, double second) {
    results.flows.push_back({method, step, 0, first, 30.0});
    results.flows.push_back({method, step, 1, second, method == results.baseline ? 192.5 : 8.0});
  };
  EXPECT_EQ(FlowFinding(results).sentence, "");
  add("softmax", 1, 1.0, 1.0);
  add("softmax", 10, 4.0, 2.0);
  EXPECT_EQ(FlowFinding(results).sentence, "");
  add("a", 10, 100.0, 1.0);  // not the first step
  add("a", 1, 1.25, 0.25);
  add("b", 1, 1.0, 3.0);
  EXPECT_EQ(FlowFinding(results).sentence,
            "After 1 step, when every method is still equally wrong, a token's gradient at layer 2 "
            "of 2 is 0.25 times as large with A as with Softmax; a query gives weight to 8 keys "
            "there, with Softmax to 192.");
  EXPECT_EQ(FlowFinding(results).methods, (std::vector<std::string>{"softmax", "a"}));
  results.methods.push_back({.name = "a-nape", .label = "A, NAPE", .variant = "nape"});
  add("a-nape", 1, 400.0, 6.0);  // not the map alone makes the difference
  EXPECT_EQ(FlowFinding(results).methods, (std::vector<std::string>{"softmax", "a"}));
}

}  // namespace
}  // namespace tsallis::lab
