#include "lab/base/denormals.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <atomic>

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

}  // namespace
}  // namespace tsallis::lab
