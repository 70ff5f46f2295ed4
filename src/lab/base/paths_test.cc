#include "lab/base/paths.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

namespace tsallis::lab {
namespace {

TEST(PathsTest, DefaultsComeFromTheBuild) {
  ::unsetenv("TSALLIS_SOURCE_DIR");
  ::unsetenv("TSALLIS_PYTHON");
  EXPECT_TRUE(std::filesystem::exists(SourceDir() / "src/lab/base/paths_test.cc")) << SourceDir();
  EXPECT_TRUE(std::filesystem::exists(PythonExecutable())) << PythonExecutable();
}

TEST(PathsTest, EnvironmentOverrides) {
  ::setenv("TSALLIS_SOURCE_DIR", "/somewhere", 1);
  ::setenv("TSALLIS_PYTHON", "/somewhere/python", 1);
  EXPECT_EQ(SourceDir(), "/somewhere");
  EXPECT_EQ(PythonExecutable(), "/somewhere/python");
  ::setenv("TSALLIS_PYTHON", "", 1);
  EXPECT_NE(PythonExecutable(), "");
  ::unsetenv("TSALLIS_SOURCE_DIR");
  ::unsetenv("TSALLIS_PYTHON");
}

TEST(PathsTest, PythonPathKeepsWhatThereIs) {
  ::unsetenv("PYTHONPATH");
  EXPECT_EQ(PythonPath("/source"), "/source/python");
  ::setenv("PYTHONPATH", "/mine:/yours", 1);
  EXPECT_EQ(PythonPath("/source"), "/source/python:/mine:/yours");
  ::unsetenv("PYTHONPATH");
}

}  // namespace
}  // namespace tsallis::lab
