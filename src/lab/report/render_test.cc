#include "lab/report/render.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "lab/base/files.h"
#include "lab/testing/lab_test_support.h"

namespace tsallis::lab {
namespace {

namespace fs = std::filesystem;

class RenderTest : public testing::Test {
 protected:
  RenderTest() { setenv("TSALLIS_SOURCE_DIR", "/source", 1); }
  ~RenderTest() override {
    unsetenv("TSALLIS_PYTHON");
    unsetenv("TSALLIS_SOURCE_DIR");
  }
  // In the place of Python; the folder of the report is its third argument.
  void PutPython(const std::string& script) const {
    const fs::path python = dir_ / "python.sh";
    std::ofstream(python) << "#!/bin/sh\n" << script;
    fs::permissions(python, fs::perms::owner_all);
    setenv("TSALLIS_PYTHON", python.c_str(), 1);
  }

  const TemporaryFolder folder_;
  const fs::path dir_ = folder_.Path();
};

TEST_F(RenderTest, PassesArgumentsAndPythonPath) {
  PutPython("echo \"$1 $2 $PYTHONPATH\" > \"$3/seen\"\n");
  const fs::path out = dir_ / "a folder; with $HOME";
  fs::create_directories(out);
  RenderReports({out});
  EXPECT_TRUE(ReadFile(out / "seen").value().starts_with("-m tsallis_report /source/python"));
  EXPECT_EQ(ReadFile(out / "seen").value().find("--table"), std::string::npos);
}

TEST_F(RenderTest, AsksForTheTableInColumnsOfTheTerminal) {
  PutPython("echo \"$*\" > \"$3/seen\"\n");
  RenderReports({dir_}, {.show = true, .color = true, .width = 64});
  ExpectContains(ReadFile(dir_ / "seen").value(), "--table --width 64 --color\n");
}

TEST_F(RenderTest, FailureCarriesTheEndOfTheOutput) {
  PutPython(
      "i=0\nwhile [ $i -lt 3000 ]; do echo \"line $i of noise\"; i=$((i+1)); done\n"
      "echo 'ModuleNotFoundError: matplotlib' >&2\nexit 3\n");
  const std::string message = ErrorTextOf([&] { RenderReports({dir_}); });
  ExpectContains(message, "exit code 3");
  ExpectContains(message, "ModuleNotFoundError");
  EXPECT_EQ(message.find("line 5 of noise"), std::string::npos);
  EXPECT_LT(message.size(), 5000U);
}

TEST_F(RenderTest, MissingPythonIsNamed) {
  setenv("TSALLIS_PYTHON", (dir_ / "no-such-python").c_str(), 1);
  const std::string message = ErrorTextOf([&] { RenderReports({dir_}); });
  ExpectContains(message, "no-such-python");
  ExpectContains(message, "No such file");
}

TEST_F(RenderTest, DescribesTheRunsOnStandardInput) {
  PutPython("echo \"$*\" > \"$3/seen\"\ncat > \"$3/read\"\n");
  const std::string many(300'000, 'x');  // more than a pipe holds
  // A name in a foreign encoding must not lose a week's training.
  ReportRuns({{"processor", "caf\xE9"}, {"title", many}}, dir_, {.show = true, .width = 64});
  ExpectContains(ReadFile(dir_ / "seen").value(), " --runs --table --width 64\n");
  EXPECT_EQ(ReadFile(dir_ / "read").value(),
            std::string("{\"processor\":\"caf\uFFFD\",\"title\":\"") + many + "\"}");
}

}  // namespace
}  // namespace tsallis::lab
