#include "core/target.h"

#include <gtest/gtest.h>
#include <hwy/highway.h>

#include "core/every_target.h"
#include "tsallis/cpu.h"

namespace tsallis {
namespace {

TEST(Target, IsWhatTheDispatchChose) {
  ForEachTarget([](const std::string& target) {
    EXPECT_EQ(TargetInUse(), target);
    EXPECT_EQ(QueryCpu().chosen_target, target);
    EXPECT_EQ(MultipliesPairsOfBytes(), hwy::TargetName(HWY_AVX2) == target);
  });
}

}  // namespace
}  // namespace tsallis
