#include "core/parallel.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <vector>

#include "tsallis/error.h"

namespace tsallis {
namespace {

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
