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

// Measured: docs/log.md, "bfloat16 without tiles" and "On AMD's processors".
TEST(Cpu, BfloatIsFastOnTilesAndByDotProductsOfAmd) {
  CpuInfo cpu;
  EXPECT_FALSE(FastBfloat16(cpu));
  cpu.vendor = "AuthenticAMD";
  EXPECT_FALSE(FastBfloat16(cpu));
  cpu.avx512_bf16 = true;
  EXPECT_TRUE(FastBfloat16(cpu));
  cpu.vendor = "GenuineIntel";
  EXPECT_FALSE(FastBfloat16(cpu));
  cpu.amx_bf16 = true;
  EXPECT_TRUE(FastBfloat16(cpu));
}

TEST(Cpu, AMachineOfX86NamesItsVendor) {
#if defined(__x86_64__)
  EXPECT_EQ(QueryCpu().vendor.size(), 12U);
#else
  EXPECT_EQ(QueryCpu().vendor, "");
#endif
}

}  // namespace
}  // namespace tsallis
