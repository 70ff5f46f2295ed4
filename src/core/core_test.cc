// The small parts of the room: types and errors, version, targets, processor, checksums, threads.
#include <gtest/gtest.h>
#include <hwy/highway.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <regex>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/crc32c.h"
#include "core/every_target.h"
#include "core/parallel.h"
#include "core/target.h"
#include "core/version.h"
#include "tsallis/cpu.h"
#include "tsallis/error.h"
#include "tsallis/types.h"

namespace tsallis {
namespace {

TEST(TypesTest, NamesAndSizes) {
  EXPECT_STREQ(Name(DType::kFloat32), "float32");
  EXPECT_STREQ(Name(DType::kBFloat16), "bfloat16");
  EXPECT_STREQ(Name(DType::kFloat16), "float16");
  EXPECT_STREQ(Name(DType::kFloat64), "float64");
  EXPECT_EQ(SizeOf(DType::kFloat32), 4u);
  EXPECT_EQ(SizeOf(DType::kBFloat16), 2u);
  EXPECT_EQ(SizeOf(DType::kFloat16), 2u);
  EXPECT_EQ(SizeOf(DType::kFloat64), 8u);
}

TEST(ErrorTest, NamesTheArgumentAndWhatCame) {
  const InvalidArgument error("alpha", "a finite value >= 1", "0.5");
  EXPECT_STREQ(error.what(), "alpha: expected a finite value >= 1, got 0.5");
  EXPECT_EQ(error.argument(), "alpha");
  EXPECT_EQ(error.expected(), "a finite value >= 1");
  EXPECT_EQ(error.actual(), "0.5");
}

TEST(VersionTest, HasThreeNumbers) {
  EXPECT_TRUE(std::regex_match(Version(), std::regex(R"(\d+\.\d+\.\d+)"))) << Version();
}

TEST(VersionTest, CommitIsAHashOrUnknown) {
  const std::string commit = GitCommit();
  EXPECT_TRUE(std::regex_match(commit, std::regex("([0-9a-f]{40})(-dirty)?|unknown"))) << commit;
}

TEST(Target, IsWhatTheDispatchChose) {
  ForEachTarget([](const std::string& target) {
    EXPECT_EQ(TargetInUse(), target);
    EXPECT_EQ(QueryCpu().chosen_target, target);
    EXPECT_EQ(MultipliesPairsOfBytes(), hwy::TargetName(HWY_AVX2) == target);
  });
}

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

TEST(Crc32c, HasTheValuesOfItsDefinition) {
  // RFC 3720, B.4, and the usual check value.
  EXPECT_EQ(Crc32c("123456789", 9), 0xE3069283U);
  EXPECT_EQ(Crc32c(std::string(32, '\0').data(), 32), 0x8A9136AAU);
  EXPECT_EQ(Crc32c(std::string(32, '\xFF').data(), 32), 0x62A8AB43U);
  EXPECT_EQ(Crc32c("", 0), 0U);
}

TEST(Crc32c, GoesOnFromAnyPiece) {
  const std::string text = "keys and values of a sequence";
  const std::uint32_t whole = Crc32c(text.data(), text.size());
  for (std::size_t cut = 0; cut <= text.size(); ++cut) {
    EXPECT_EQ(Crc32c(text.data() + cut, text.size() - cut, Crc32c(text.data(), cut)), whole);
  }
}

TEST(ParallelForTest, CoversTheRangeOnce) {
  for (int threads : {1, 2, 5}) {
    for (std::int64_t count : {0, 1, 2, 7, 64, 1000}) {
      std::vector<std::atomic<int>> visits(static_cast<std::size_t>(count));
      ParallelFor(Context{threads}, count, 3, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) ++visits[static_cast<std::size_t>(i)];
      });
      for (const std::atomic<int>& visit : visits) EXPECT_EQ(visit, 1);
    }
  }
}

TEST(ParallelForTest, KeepsPiecesAtLeastAGrainLong) {
  std::atomic<int> pieces = 0;
  ParallelFor(Context{8}, 10, 5, [&](std::int64_t begin, std::int64_t end) {
    EXPECT_GE(end - begin, 5);
    ++pieces;
  });
  EXPECT_EQ(pieces, 2);
}

TEST(ParallelForTest, RethrowsInTheCaller) {
  const auto fail = [](std::int64_t, std::int64_t) { throw std::runtime_error("piece"); };
  EXPECT_THROW(ParallelFor(Context{4}, 100, 1, fail), std::runtime_error);
}

TEST(ParallelForTest, RefusesOtherDevices) {
  const Context context = {.device = DeviceKind::kCuda};
  EXPECT_THROW(Threads(context), InvalidArgument);
  EXPECT_THROW(ParallelFor(context, 100, 1, [](std::int64_t, std::int64_t) {}), InvalidArgument);
}

TEST(ParallelForTest, RunsNestedCallsInPlace) {
  std::atomic<int> sum = 0;
  ParallelFor(Context{2}, 2, 1, [&](std::int64_t, std::int64_t) {
    ParallelFor(Context{2}, 10, 1, [&](std::int64_t begin, std::int64_t end) {
      sum += static_cast<int>(end - begin);
    });
  });
  EXPECT_EQ(sum, 20);
}

}  // namespace
}  // namespace tsallis
