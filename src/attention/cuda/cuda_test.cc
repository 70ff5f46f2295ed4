// Calls with a context of a CUDA device, through the public interface: refusals, and errors where
// no device is. The results of kernels are tested on the emulation (emulated_test.cc).
#include "attention/cuda/cuda.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "attention/testing/problem.h"
#include "core/cuda/support.h"
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
  spec.map = RowMap::kSigmoid;
  EXPECT_EQ(ForwardError(Problem(spec)),
            "context.device: expected kCpu, as the CUDA kernels do not serve this: sigmoid, got "
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
  std::vector<float> row(8, 1.0f);
  const std::int64_t target = 0;
  const ConstRows scores = {.data = row.data(), .rows = 1, .length = 8};
  EXPECT_EQ(ErrorOf([&] { FitAdaptiveTemperature(kCuda, scores, &target); }),
            "context.device: expected kCpu, for what has no CUDA kernels, got kCuda");
}

TEST(Cuda, AlphasBeside1AreNamed) {
  Problem problem({.dtype = DType::kBFloat16, .alpha = 1.0 + 1e-10});
  EXPECT_EQ(ForwardError(problem),
            "alpha: expected 1, or a number at least 1e-9 away from it, on a CUDA device, got 1 + "
            "0.100000e-9");
  const double alphas[] = {1.0 - 1e-10};
  problem.params().alpha_per_head = alphas;
  EXPECT_EQ(ForwardError(problem).rfind("alpha_per_head[0]: expected 1, or", 0), 0u);
}

// Places among the entries of their lists are an int.
TEST(Cuda, RowsOfAKeyHeadAreLimited) {
  for (const std::int64_t group : {1, 4}) {
    const auto error_of = [&](std::int64_t q_len) {
      Problem problem({.dtype = DType::kBFloat16, .group = group});
      problem.params().q_len = q_len;
      return ErrorOf([&] { AttentionWorkspaceBytes(kCuda, problem.params(), true); });
    };
    EXPECT_EQ(error_of((1 << 25) / group),
              "q_len heads / kv_heads: expected at most 33554431 on a CUDA device, got 33554432");
    EXPECT_EQ(error_of((1 << 25) / group - 1).find("q_len"), std::string::npos);
  }
}

TEST(Cuda, WhichGpusTheKernelsRunOn) {
  const std::vector<std::string> all = {"80", "90a", "100", "120"};
  for (const auto& [major, minor] : {std::pair{8, 0}, {8, 9}, {9, 0}, {10, 0}, {13, 0}}) {
    EXPECT_EQ(cuda::WhyUnusable(all, "80", major, minor), "") << major << minor;
  }
  EXPECT_EQ(
      cuda::WhyUnusable(all, "80", 7, 5),
      "the kernels were compiled for sm_80, sm_90a, sm_100, sm_120 and what comes after sm_80");
  // Code of an "a" runs on its own GPU alone, and nothing compiles it for a later one.
  EXPECT_EQ(cuda::WhyUnusable({"90a"}, "", 9, 0), "");
  EXPECT_EQ(cuda::WhyUnusable({"90a"}, "", 10, 0), "the kernels were compiled for sm_90a");
  EXPECT_EQ(cuda::WhyUnusable({"120", "80"}, "80", 8, 6), "");
  EXPECT_NE(cuda::WhyUnusable({"90a", "100"}, "100", 8, 0), "");
}

TEST(Cuda, WeightsHaveTheSameRefusals) {
  Problem problem({.dtype = DType::kBFloat16, .map = RowMap::kSigmoid});
  std::vector<std::int64_t> numbers(64);
  const auto counts = [&](std::int64_t* to) {
    return ErrorOf([&] { AttentionWeightCounts(kCuda, problem.params(), to); });
  };
  EXPECT_NE(counts(numbers.data()).find("do not serve this: sigmoid"), std::string::npos);
  EXPECT_EQ(counts(nullptr), "counts: expected data, got null");
  EXPECT_EQ(
      ErrorOf([&] { AttentionWeights(kCuda, problem.params(), nullptr, numbers.data(), nullptr); }),
      "row_offsets: expected data, got null");
}

TEST(Cuda, ListsOfPagesAreNotSaved) {
  const Problem problem({.dtype = DType::kBFloat16});
  AttentionOutputs outputs;
  outputs.saved_bytes = 64;
  EXPECT_EQ(ErrorOf([&] { cuda::ForwardOnPages(kCuda, problem.params(), {}, outputs); }),
            "saved_bytes: expected 0, as CUDA kernels save no lists of pages, got 64");
}

TEST(Cuda, BytesForListsHaveTheSameRefusals) {
  const auto error_of = [](const ProblemSpec& spec) {
    return ErrorOf([&] { AttentionSavedBytes(kCuda, Problem(spec).params(), 1000); });
  };
  EXPECT_NE(error_of({.dtype = DType::kFloat64}).find("do not serve this: float64"),
            std::string::npos);
  EXPECT_EQ(error_of({.dtype = DType::kBFloat16}).find("do not serve"), std::string::npos);
}

}  // namespace
}  // namespace tsallis
