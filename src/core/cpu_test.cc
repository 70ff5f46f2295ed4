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

TEST(Cpu, TheProcessorIsNamed) {
#if defined(__x86_64__)
  EXPECT_EQ(QueryCpu().vendor.size(), 12U);
#elif defined(__aarch64__) && defined(__linux__)
  // The one that scripts/check_arm.sh emulates is expected by name.
  const char* expected = std::getenv("TSALLIS_EXPECTED_CPU");
  if (expected != nullptr) {
    EXPECT_EQ(QueryCpu().processor, expected);
  }
#endif
}

// An instruction set belongs to the processor's architecture: no flag of the other one is up.
TEST(Cpu, FlagsAreThoseOfTheArchitecture) {
  const CpuInfo info = QueryCpu();
#if !defined(__x86_64__)
  EXPECT_FALSE(info.avx_vnni || info.avx512_vnni || info.avx512_bf16 || info.amx_bf16);
#endif
#if !defined(__aarch64__)
  EXPECT_FALSE(info.arm_dotprod || info.arm_bf16 || info.arm_i8mm);
#endif
}

}  // namespace
}  // namespace tsallis
