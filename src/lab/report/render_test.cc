#include "lab/report/render.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

#include "lab/testing/lab_test_support.h"

namespace tsallis::lab {
namespace {

namespace fs = std::filesystem;

class RenderTest : public testing::Test {
 protected:
  static std::string Slurp(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }
  // In the place of Python; the folder of the report is its third argument.
  void PutPython(const std::string& script) const {
    std::ofstream(dir_ / "python.sh") << "#!/bin/sh\n" << script;
    fs::permissions(dir_ / "python.sh", fs::perms::owner_all);
  }

  const TemporaryFolder folder_;
  const fs::path dir_ = folder_.Path();
};

bool Contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_F(RenderTest, PassesArgumentsAndPythonPath) {
  PutPython("echo \"$1 $2 $PYTHONPATH\" > \"$3/seen\"\n");
  const fs::path out = dir_ / "a folder; with $HOME";
  fs::create_directories(out);
  RenderReport(out, dir_ / "python.sh", "/source");
  EXPECT_TRUE(Slurp(out / "seen").starts_with("-m tsallis_report /source/python"));
  EXPECT_FALSE(Contains(Slurp(out / "seen"), "--table"));
}

TEST_F(RenderTest, AsksForTheTableInColumnsOfTheTerminal) {
  PutPython("echo \"$*\" > \"$3/seen\"\n");
  RenderReport(dir_, dir_ / "python.sh", "/source", {.show = true, .color = true, .width = 64});
  EXPECT_TRUE(Contains(Slurp(dir_ / "seen"), "--table --width 64 --color\n"));
}

TEST_F(RenderTest, FailureCarriesTheEndOfTheOutput) {
  PutPython(
      "i=0\nwhile [ $i -lt 3000 ]; do echo \"line $i of noise\"; i=$((i+1)); done\n"
      "echo 'ModuleNotFoundError: matplotlib' >&2\nexit 3\n");
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

TEST_F(RenderTest, DescribesTheRunsOnStandardInput) {
  PutPython("echo \"$*\" > \"$3/seen\"\ncat > \"$3/read\"\n");
  const std::string many(300'000, 'x');  // more than a pipe holds
  // A name in a foreign encoding must not lose a week's training.
  ReportRuns({{"processor", "caf\xE9"}, {"title", many}}, dir_, dir_ / "python.sh", "/source",
             {.show = true, .width = 64});
  EXPECT_TRUE(Contains(Slurp(dir_ / "seen"), " --runs --table --width 64\n"));
  EXPECT_EQ(Slurp(dir_ / "read"),
            std::string("{\"processor\":\"caf\uFFFD\",\"title\":\"") + many + "\"}");
}

}  // namespace
}  // namespace tsallis::lab
