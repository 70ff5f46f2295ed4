// Calls with a context of a CUDA device, through the public interface: refusals, and errors where
// no device is. What kernels compute is tested on the emulation (emulated_test.cc).
#include "attention/cuda/cuda.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "attention/testing/problem.h"
#include "tsallis/attention.h"
#include "tsallis/error.h"
#include "tsallis/rows.h"

namespace tsallis {
namespace {

constexpr Context kCuda = {.device = DeviceKind::kCuda};

// The message of what `run` throws; of no other type than these.
template <class Run>
std::string ErrorOf(const Run& run) {
  try {
    run();
  } catch (const InvalidArgument& error) {
    return error.what();
  } catch (const DeviceError& error) {
    return error.what();
  }
  return {};
}

std::string ForwardError(const Problem& problem) {
  std::vector<std::uint16_t> out(4096);
  const AttentionParams& params = problem.params();
  const AttentionOutputs outputs = {
      .out = {out.data(), params.q.dtype, {0, params.q_len * 16, 16, 1}}};
  return ErrorOf([&] { AttentionForward(kCuda, params, outputs); });
}

TEST(Cuda, WhatTheKernelsDoNotServeIsNamed) {
  ProblemSpec spec = {.dtype = DType::kBFloat16};
  spec.bias = true;
  EXPECT_EQ(ForwardError(Problem(spec)),
            "context.device: expected kCpu, as the CUDA kernels do not serve this: a bias, got "
            "kCuda");
}

// Memory of the host is no mistake that can be seen here: where a device is, this is not run.
TEST(Cuda, WithoutADeviceThereIsATypedError) {
#if defined(TSALLIS_HAS_CUDA_DEVICE)
  GTEST_SKIP();
#endif
  const std::string error = ForwardError(Problem({.dtype = DType::kBFloat16}));
  const bool not_built = error.find("built without CUDA kernels") != std::string::npos;
  const bool no_device = error.rfind("cuda", 0) == 0;
  EXPECT_TRUE(not_built || no_device) << error;
}

TEST(Cuda, OtherEntryPointsRefuseTheDevice) {
  const Problem problem({.dtype = DType::kBFloat16});
  std::vector<std::int64_t> counts(64);
  EXPECT_NE(ErrorOf([&] {
              AttentionWeightCounts(kCuda, problem.params(), counts.data());
            }).find("context.device"),
            std::string::npos);
  std::vector<float> row(8, 1.0f);
  const ConstRows scores = {.data = row.data(), .rows = 1, .length = 8};
  const MutableRows p = {.data = row.data(), .rows = 1, .length = 8};
  EXPECT_NE(ErrorOf([&] { RowsForward(kCuda, {}, scores, p); }).find("context.device"),
            std::string::npos);
}

TEST(Cuda, ListsAreNotSaved) {
  const Problem problem({.dtype = DType::kBFloat16});
  alignas(64) static char saved[64];
  std::vector<std::uint16_t> out(4096);
  const AttentionOutputs outputs = {.out = {out.data(), DType::kBFloat16, {0, 128, 16, 1}},
                                    .saved = saved,
                                    .saved_bytes = sizeof(saved)};
  EXPECT_NE(
      ErrorOf([&] { AttentionForward(kCuda, problem.params(), outputs); }).find("saved_bytes"),
      std::string::npos);
}

}  // namespace
}  // namespace tsallis
