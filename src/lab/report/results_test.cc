#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <sstream>
#include <stdexcept>
#include <string>

#include "lab/report/contrast.h"
#include "lab/report/finding.h"
#include "lab/report/render.h"
#include "lab/report/results.h"
#include "lab/report/results_io.h"
#include "lab/report/table.h"

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
  results.methods = {{"softmax", "Softmax, θ = √d"}, {"asentmax-3", "ASEntmax, γ = 3"}};
  for (const auto& method : results.methods) {
    for (std::int64_t n = 16; n <= 16384; n *= 2) {
      ResultRow row;
      row.method = method.name;
      row.n = n;
      row.accuracy_mean = 100.0 - std::log2(static_cast<double>(n)) / 3.0;
      row.accuracy_std = 0.25;
      row.accuracy_best = row.accuracy_mean + 0.125;
      row.seeds = 3;
      if (n <= 4096) row.paper = row.accuracy_mean + (n == 16 ? -0.5 : n < 1024 ? 0.5 : 4.0);
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
  // The message of the exception that reading the folder throws.
  std::string ReadError() const {
    try {
      ReadResults(dir_);
    } catch (const std::runtime_error& error) {
      return error.what();
    }
    return "";
  }

  fs::path dir_;
};

using ResultsIoTest = ReportTest;
using RenderTest = ReportTest;

bool Contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_F(ResultsIoTest, RoundTrip) {
  const StudyResults written = Example();
  WriteResults(written, dir_ / "new" / "folder");
  const StudyResults read = ReadResults(dir_ / "new" / "folder");
  EXPECT_EQ(ToJson(read), ToJson(written));
  EXPECT_EQ(read.protocol, written.protocol);
  ASSERT_EQ(read.rows.size(), written.rows.size());
  for (std::size_t i = 0; i < read.rows.size(); ++i) {
    EXPECT_EQ(read.rows[i].accuracy_mean, written.rows[i].accuracy_mean);
    EXPECT_EQ(read.rows[i].paper, written.rows[i].paper);
  }
  ASSERT_EQ(read.entropies.size(), written.entropies.size());
  EXPECT_EQ(read.entropies[5].entropy_mean, written.entropies[5].entropy_mean);
  EXPECT_EQ(read.entropies[5].support_mean, written.entropies[5].support_mean);
  ASSERT_EQ(read.heat_maps.size(), 2U);
  EXPECT_EQ(read.heat_maps[1].method, "asentmax-3");
  EXPECT_EQ(read.heat_maps[1].samples, 2);
  EXPECT_EQ(read.heat_maps[1].weights, written.heat_maps[1].weights);
  ASSERT_EQ(read.heads.size(), 2U);
  EXPECT_EQ(read.heads[1].method, "asentmax-3");
  const HeadObservations& heads = read.heads[1].heads;
  ASSERT_EQ(heads.lengths.size(), 2U);
  EXPECT_EQ(heads.lengths[0].samples, 32);
  EXPECT_EQ(heads.lengths[0].numbers, written.heads[1].heads.lengths[0].numbers);
  ASSERT_EQ(heads.maps.size(), 2U);
  EXPECT_EQ(heads.maps[1].tokens, 3);
  EXPECT_EQ(heads.maps[1].cell, 2);
  EXPECT_EQ(heads.maps[0].weights, written.heads[1].heads.maps[0].weights);
  ASSERT_EQ(read.samples.size(), 1U);
  EXPECT_EQ(read.samples[0].words, written.samples[0].words);
  EXPECT_EQ(read.samples[0].scored, written.samples[0].scored);
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
  EXPECT_EQ(files, 8);
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

TEST_F(ResultsIoTest, JsonHasWhatEachHeadDoes) {
  const auto json = ToJson(Example());
  EXPECT_EQ(json["entropies"][0]["normalised_entropy"], 0.5);
  ASSERT_EQ(json["heads"].size(),
            2U * 3U);  // two methods; two quantities, one at the second length
  EXPECT_EQ(json["heads"][1]["quantity"], "beta");
  EXPECT_EQ(json["heads"][1]["mean"].dump(), "[[null,1.5]]");
  EXPECT_EQ(json["heads"][1]["std"].dump(), "[[null,0.5]]");
}

TEST_F(ResultsIoTest, JsonHasPercentagesAndNullForNoPaper) {
  const auto json = ToJson(Example());
  EXPECT_EQ(json["rows"][0]["n"], 16);
  EXPECT_TRUE(json["rows"][0]["paper"].is_number());
  EXPECT_TRUE(json["rows"][10]["paper"].is_null());
  EXPECT_EQ(json["methods"][0]["label"], "Softmax, θ = √d");
}

TEST_F(ResultsIoTest, NotANumberSurvives) {
  StudyResults results = Example();
  results.rows[0].accuracy_mean = std::nan("");
  results.entropies[0].entropy_mean = std::nan("");
  WriteResults(results, dir_);
  const StudyResults read = ReadResults(dir_);
  EXPECT_TRUE(std::isnan(read.rows[0].accuracy_mean));
  EXPECT_TRUE(std::isnan(read.entropies[0].entropy_mean));
}

TEST_F(ResultsIoTest, TextInAForeignEncodingIsReplaced) {
  StudyResults results = Example();
  results.processor = "caf\xE9";
  WriteResults(results, dir_);
  EXPECT_TRUE(ReadResults(dir_).processor.starts_with("caf"));
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
  fs::create_directories(dir_ / "report.md" / "inside");  // renaming onto a full folder fails
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

TEST_F(ResultsIoTest, ReadErrorsSayWhere) {
  EXPECT_TRUE(Contains(ReadError(), "results.json: no such file"));
  Put("results.json", "{\"study\": ");
  EXPECT_TRUE(Contains(ReadError(), "not JSON")) << ReadError();
  Put("results.json", "[]");
  EXPECT_TRUE(Contains(ReadError(), "expected an object")) << ReadError();
  Put("results.json", R"({"study": "s"})");
  EXPECT_TRUE(Contains(ReadError(), "'rows' is missing")) << ReadError();
  Put("results.json", R"({"study": "s", "rows": [{"method": "m", "n": "16"}]})");
  EXPECT_TRUE(Contains(ReadError(), "rows[0]: 'n': expected an integer")) << ReadError();
  Put("results.json", R"({"study": "s", "rows": []})");
  EXPECT_EQ(ReadError(), "");
  Put("data/entropy.csv",
      "method,n,entropy_mean,entropy_std,normalised_entropy,support_mean\nm,16,x,0,0,1\n");
  EXPECT_TRUE(Contains(ReadError(), "entropy.csv:2: 'entropy_mean' is 'x'")) << ReadError();
  Put("data/entropy.csv", "");
  Put("data/heatmap.csv", "method,n,set,rank,weight\nm,16,0,1,0.5\nm,16,1000000000,1000000,0.5\n");
  EXPECT_TRUE(Contains(ReadError(), "has 2 weights for")) << ReadError();
  Put("data/heatmap.csv", "method,n,set,weight\nm,16,0,1\n");
  EXPECT_TRUE(Contains(ReadError(), "no column 'rank'")) << ReadError();
  Put("data/heatmap.csv", "");
  const std::string columns = "method,n,layer,head,tokens,cell,row,column,weight\n";
  Put("data/attention.csv", columns + "m,16,0,0,1000000,1,0,0,1\n");
  EXPECT_TRUE(Contains(ReadError(), "a map of 1000000 tokens in cells of 1")) << ReadError();
  Put("data/attention.csv", columns + "m,16,0,0,4,1,0,4,1\n");
  EXPECT_TRUE(Contains(ReadError(), "cell 0, 4 of a map of 4 by 4")) << ReadError();
}

TEST_F(ResultsIoTest, ReadsAFileOfAnotherHand) {
  Put("results.json", R"({"study": "s", "rows": [{"method": "m", "n": 16, "accuracy_mean": 5}]})");
  const StudyResults results = ReadResults(dir_);
  EXPECT_EQ(results.rows[0].accuracy_mean, 5.0);
  EXPECT_FALSE(results.rows[0].paper.has_value());
  ASSERT_EQ(results.methods.size(), 1U);
  EXPECT_EQ(results.methods[0].label, "m");
}

// ---- tables ---------------------------------------------------------------------------------

std::vector<std::string> Lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

TEST(MarkdownTest, HoldsMethodsAgainstTheBaseline) {
  StudyResults results = Example();
  EXPECT_FALSE(Contains(MarkdownReport(results), "Accuracy minus that of"));
  results.baseline = "softmax";
  ResultRow& row = results.rows[11];  // of asentmax-3 at n = 16
  row.accuracy_mean += 12.5;
  row.accuracy_std = 1.0;
  // sqrt(0.25^2 / 3 + 1 / 3)
  const auto contrast = AgainstBaseline(results, "asentmax-3", 16);
  ASSERT_TRUE(contrast && contrast->error);
  EXPECT_NEAR(contrast->difference, 12.5, 1e-9);
  EXPECT_NEAR(*contrast->error, 0.59512, 1e-5);
  const auto written = ToJson(results)["rows"][11]["against_baseline"];
  EXPECT_EQ(written["difference"], contrast->difference);
  EXPECT_EQ(written["error"], *contrast->error);
  const std::string page = MarkdownReport(results);
  EXPECT_TRUE(Contains(page, "Accuracy minus that of Softmax, θ = √d, in points")) << page;
  EXPECT_TRUE(Contains(page, "| +12.5 ± 0.6 |")) << page;
  EXPECT_TRUE(Contains(page, "best seed")) << page;
  row.seeds = 1;
  EXPECT_EQ(ContrastText(*AgainstBaseline(results, "asentmax-3", 16)), "+12.5");
  EXPECT_FALSE(AgainstBaseline(results, "asentmax-3", 17));
  EXPECT_EQ(ToJson(results)["baseline"], "softmax");
  EXPECT_TRUE(ToJson(results)["rows"][11]["against_baseline"]["error"].is_null());
}

TEST(MarkdownTest, HoldsEveryPartAndIsAligned) {
  StudyResults results = Example();
  results.methods[0].label = "Softmax | θ";
  const std::string page = MarkdownReport(results);
  for (const char* part : {"# Max retrieval: accuracy against set size", "Adam, lr 1e-3",
                           "`tsallis reproduce", "`0123abc`", "A processor", "98.7 ± 0.2", "+",
                           "-4.0", "ASEntmax, γ = 3", "Softmax \\| θ"}) {
    EXPECT_TRUE(Contains(page, part)) << part << "\n" << page;
  }
  int width = 0;  // of the table of results, which comes first
  for (const std::string& line : Lines(page)) {
    if (!line.starts_with("|")) {
      if (width > 0) break;
      continue;
    }
    if (width == 0) width = DisplayWidth(line);
    EXPECT_EQ(DisplayWidth(line), width) << line;
  }
  EXPECT_GT(width, 0);
}

TEST(TableTest, DisplayWidthCountsColumnsNotBytes) {
  EXPECT_EQ(DisplayWidth(""), 0);
  EXPECT_EQ(DisplayWidth("entmax"), 6);
  EXPECT_EQ(DisplayWidth("γ = 3 ±"), 7);
  EXPECT_EQ(DisplayWidth("e\u0301"), 1);  // e and a combining acute
  EXPECT_EQ(DisplayWidth("熱"), 2);
  EXPECT_EQ(DisplayWidth("\xFF\xFE"), 2);  // not UTF-8
  EXPECT_EQ(DisplayWidth("\xCE"), 1);      // cut short
  EXPECT_EQ(Ellipsize("θ = √d, long", 6), "θ = √…");
  EXPECT_EQ(Ellipsize("γ", 1), "γ");
  EXPECT_EQ(PadLeft("γ", 3), "  γ");
  EXPECT_EQ(PadRight("γ", 3), "γ  ");
}

TEST(TableTest, DifferencesThatRoundToZeroHaveNoSign) {
  EXPECT_EQ(SignedPoints(0.04), "0.0");
  EXPECT_EQ(SignedPoints(-0.04), "0.0");
  EXPECT_EQ(SignedPoints(-1.26), "-1.3");
  EXPECT_EQ(SignedPoints(12.0), "+12.0");
}

TEST(TableTest, RowsAlignUnderTheirHeader) {
  StudyResults results = Example();
  const auto lines = Lines(TerminalTable(results, {.color = false, .width = 300}));
  ASSERT_GE(lines.size(), 6U);
  EXPECT_TRUE(Contains(lines[0], "16384"));
  // Rows of ours are as wide as the header: the last length has a value, though no paper.
  EXPECT_EQ(DisplayWidth(lines[1]), DisplayWidth(lines[0]));
  EXPECT_EQ(DisplayWidth(lines[2]), DisplayWidth(lines[0]));
  EXPECT_EQ(DisplayWidth(lines[4]), DisplayWidth(lines[0]));
  EXPECT_TRUE(lines[2].starts_with("Softmax, θ = √d ours "));
  EXPECT_TRUE(Contains(lines[2], "98.7 ±0.2"));
  EXPECT_TRUE(Contains(lines[3], "98.2 (+0.5)"));
}

TEST(TableTest, NarrowTerminalSplitsIntoBlocks) {
  const StudyResults results = Example();
  for (const int width : {80, 60, 40, 132}) {
    const std::string table = TerminalTable(results, {.color = false, .width = width});
    for (const std::string& line : Lines(table)) {
      EXPECT_LE(DisplayWidth(line), std::max(width, 63)) << line;
      if (!Contains(line, " in points") && !Contains(line, "deviation")) {
        EXPECT_LE(DisplayWidth(line), width) << line;
      }
    }
    for (const std::int64_t n : Lengths(results)) {
      EXPECT_TRUE(std::regex_search(table, std::regex("\\b" + std::to_string(n) + "\\b"))) << n;
    }
  }
  EXPECT_FALSE(TerminalTable(results, {.color = false, .width = 1}).empty());
}

TEST(TableTest, ColorOnlyWhenAsked) {
  const StudyResults results = Example();
  const std::string plain = TerminalTable(results, {.color = false, .width = 100});
  const std::string colored = TerminalTable(results, {.color = true, .width = 100});
  EXPECT_FALSE(Contains(plain, "\033"));
  EXPECT_TRUE(Contains(colored, "\033[32m"));  // 0.5 below
  EXPECT_TRUE(Contains(colored, "\033[31m"));  // 4 below
  EXPECT_EQ(std::regex_replace(colored, std::regex("\033\\[[0-9]*m"), ""), plain);
}

TEST(TableTest, OneSeedWithoutPaperTakesOneLineEach) {
  StudyResults results;
  results.rows.push_back({"m", 16, 50.0, 0.0, 50.0, 1, std::nullopt});
  const std::string table = TerminalTable(results);
  EXPECT_TRUE(Contains(table, "50.0"));
  EXPECT_FALSE(Contains(table, "±"));
  EXPECT_FALSE(Contains(table, "paper"));
  EXPECT_EQ(TerminalTable(StudyResults{}), "No results yet.\n");
}

// ---- rendering ------------------------------------------------------------------------------

TEST_F(RenderTest, PassesArgumentsAndPythonPath) {
  Put("python.sh", "#!/bin/sh\necho \"$1 $2 $PYTHONPATH\" > \"$3/seen\"\n");
  fs::permissions(dir_ / "python.sh", fs::perms::owner_all);
  const fs::path out = dir_ / "a folder; with $HOME";
  fs::create_directories(out);
  RenderFigures(out, dir_ / "python.sh", "/source");
  EXPECT_TRUE(Slurp(out / "seen").starts_with("-m tsallis_report /source/python"));
}

TEST_F(RenderTest, FailureCarriesTheEndOfTheOutput) {
  Put("python.sh",
      "#!/bin/sh\ni=0\nwhile [ $i -lt 3000 ]; do echo \"line $i of noise\"; i=$((i+1)); done\n"
      "echo 'ModuleNotFoundError: matplotlib' >&2\nexit 3\n");
  fs::permissions(dir_ / "python.sh", fs::perms::owner_all);
  try {
    RenderFigures(dir_, dir_ / "python.sh", "/source");
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
    RenderFigures(dir_, dir_ / "no-such-python", "/source");
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
  EXPECT_EQ(Finding(results, 32),
            "At n = 128, 4 times the longest length of training, right in %: A 86.3 ± 5.2; Softmax "
            "1.8 ± 3.0.");
  results.methods.resize(3);  // few enough to name all
  EXPECT_EQ(Finding(results, 32),
            "At n = 128, 4 times the longest length of training, right in %: B 88.0 ± 60.0; A 86.3 "
            "± 5.2; Softmax 1.8 ± 3.0.");
  EXPECT_EQ(Finding(results, 32, 64),
            "At n = 64, 2 times the longest length of training, right in %: A 97.0 ± 0.5; Softmax "
            "90.0 ± 1.0.");
  EXPECT_EQ(Finding(results, 32, 32),
            "No method differs surely from Softmax by 5 points or more, at n = 32.");
  EXPECT_EQ(Finding(results, 32, 256), Finding(results, 32));  // not measured
  std::erase_if(results.rows, [](const ResultRow& row) { return row.n > 32; });
  EXPECT_EQ(Finding(results, 32),
            "No method differs surely from Softmax by 5 points or more, up to n = 32.");
  // One that is behind is a finding, too.
  results.rows.back().accuracy_mean = 50.0;
  EXPECT_EQ(Finding(results, 32), "At n = 32, right in %: Softmax 99.0 ± 0.5; A 50.0 ± 0.3.");
  results.baseline = "";
  EXPECT_EQ(Finding(results, 32), "");
}

}  // namespace
}  // namespace tsallis::lab
