#include "tsallis/cpu.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace tsallis {
namespace {

TEST(Cpu, TheChosenTargetIsCompiled) {
  const CpuInfo info = QueryCpu();
  ASSERT_FALSE(info.compiled_targets.empty());
  EXPECT_NE(
      std::find(info.compiled_targets.begin(), info.compiled_targets.end(), info.chosen_target),
      info.compiled_targets.end())
      << info.chosen_target;
}

}  // namespace
}  // namespace tsallis
