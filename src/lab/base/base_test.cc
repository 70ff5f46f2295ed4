// The small parts of the room: denormals, paths.
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>

#include "lab/base/denormals.h"
#include "lab/base/paths.h"

namespace tsallis::lab {
namespace {

// Threads that multiply a denormal by one and get it back, of those that work for us.
int Keepers() {
  std::atomic<int> keepers{0};
#pragma omp parallel num_threads(at::get_num_threads())
  {
    const volatile float denormal = 1e-40F;
    const volatile float product = denormal * 1.0F;
    keepers += product != 0.0F ? 1 : 0;
  }
  return keepers;
}

TEST(Denormals, AreFlushedInThreadsThatWereThereBefore) {
  const int threads = at::get_num_threads();
  at::set_num_threads(3);
  at::globalContext().setFlushDenormal(false);
#pragma omp parallel num_threads(3)
  at::globalContext().setFlushDenormal(false);
  EXPECT_EQ(Keepers(), 3);
  FlushDenormals();
  EXPECT_EQ(Keepers(), 0);
  at::set_num_threads(threads);
}

TEST(PathsTest, DefaultsComeFromTheBuild) {
  ::unsetenv("TSALLIS_SOURCE_DIR");
  ::unsetenv("TSALLIS_PYTHON");
  EXPECT_TRUE(std::filesystem::exists(SourceDir() / "src/lab/base/base_test.cc")) << SourceDir();
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
