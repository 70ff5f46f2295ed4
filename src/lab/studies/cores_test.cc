#include "lab/studies/cores.h"

#include <gtest/gtest.h>

namespace tsallis::lab {
namespace {

TEST(Cores, AreSharedByTheJobsThatRun) {
  Cores cores(5, 4);
  for (int worker = 0; worker < 4; ++worker) cores.SetBusy(worker, true);
  EXPECT_EQ(cores.Share(0), 2);
  EXPECT_EQ(cores.Share(1), 1);
  EXPECT_EQ(cores.Share(3), 1);
  cores.SetBusy(1, false);
  EXPECT_EQ(cores.Share(0) + cores.Share(2) + cores.Share(3), 5);
  cores.SetBusy(0, false);
  cores.SetBusy(2, false);
  EXPECT_EQ(cores.Share(3), 5);
}

}  // namespace
}  // namespace tsallis::lab
