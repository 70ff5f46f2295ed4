// The kernels on a device: every instruction against the emulation, then drawn problems against the
// reference in double, each twice for the same bits, in several streams at once.
//
//   device_test [--cases N] [--seed S] [--most L] [--threads T] [--json FILE] [--emulated 1]
//
// --emulated: on the emulation in place of a device, to test this program itself.
// Ends with 0 if all is well, 1 if something is wrong, 3 where no device is that can run this.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "attention/cuda/cuda.h"
#include "attention/cuda/testing/check_weights.h"
#include "attention/cuda/testing/draw.h"
#include "attention/cuda/testing/on_device.h"
#include "attention/cuda/testing/paged.h"
#include "attention/testing/compare.h"
#include "instructions.h"
#include "simplex/cuda/testing/drawn_rows.h"
#include "tsallis/cuda.h"
#include "tsallis/error.h"

namespace tsallis::cuda {
namespace {

struct Options {
  std::uint64_t cases = 400, seed = 1;
  std::int64_t most = 0;  // 0: as drawn
  unsigned threads = std::max(1u, std::thread::hardware_concurrency());
  std::string json;
  bool emulated = false;
};

void Require(cudaError_t status, const char* call) {
  if (status != cudaSuccess) throw DeviceError(call, cudaGetErrorString(status));
}

// Each thread works in a stream of its own.
cudaStream_t MyStream() {
  struct Stream {
    Stream() {
      Require(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
    }
    ~Stream() { cudaStreamDestroy(stream); }
    cudaStream_t stream = nullptr;
  };
  static thread_local const Stream mine;
  return mine.stream;
}

// Memory that holds NaN before anything is written.
struct Device {
  static void* Allocate(std::size_t bytes) {
    void* data = nullptr;
    Require(cudaMalloc(&data, std::max<std::size_t>(bytes, 16)), "cudaMalloc");
    Require(cudaMemsetAsync(data, 0xFF, bytes, MyStream()), "cudaMemsetAsync");
    return data;
  }
  static void Free(void* data) { cudaFree(data); }
  static void ToDevice(void* to, const void* from, std::size_t bytes) {
    Copy(to, from, bytes, cudaMemcpyHostToDevice);
  }
  static void ToHost(void* to, const void* from, std::size_t bytes) {
    Copy(to, from, bytes, cudaMemcpyDeviceToHost);
  }

 private:
  static void Copy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
    Require(cudaMemcpyAsync(to, from, bytes, kind, MyStream()), "cudaMemcpyAsync");
    Require(cudaStreamSynchronize(MyStream()), "cudaStreamSynchronize");
  }
};

Results RunOnDevice(const Problem& problem, bool emulated) {
  if (emulated) return problem.RunBy(ForwardEmulated, BackwardEmulated, true, kWantAll);
  const Context context = {.device = DeviceKind::kCuda, .stream = MyStream()};
  return problem.RunBy(
      [&](const Context&, const AttentionParams& params, const AttentionOutputs& outputs) {
        OnDevice<Device> device;
        const AttentionParams there = device.Params(params);
        AttentionForward(context, there, device.Outputs(params, outputs));
        device.CopyBack();
      },
      [&](const Context&, const AttentionParams& params, const AttentionGradients& gradients) {
        OnDevice<Device> device;
        const AttentionParams there = device.Params(params);
        AttentionBackward(context, there, device.Gradients(params, gradients));
        device.CopyBack();
      },
      true, kWantAll);
}

// Forward alone, on pages in the order of a seed.
Results RunOnPagesOfDevice(const Problem& problem, std::uint64_t seed, bool emulated) {
  return problem.RunBy(
      [&](const Context&, const AttentionParams& params, const AttentionOutputs& outputs) {
        const InPages memory(params, DrawPageSize(seed), seed);
        if (emulated) return OnPagesEmulated({}, params, memory.pages(), outputs);
        const Context context = {.device = DeviceKind::kCuda, .stream = MyStream()};
        OnDevice<Device> device;
        const AttentionPages pages = PagesOn(device, params, memory.pages());
        AttentionOnPages(context, QueriesOn(device, params), pages,
                         device.Outputs(params, outputs));
        device.CopyBack();
      },
      AttentionBackward, false, kWantAll);
}

// Checks weights as CSR.
std::string CheckMatrix(const Problem& problem, bool emulated) {
  constexpr double kFloor = Expectation::kRareMeanFloor;
  if (emulated) return CheckWeights(problem, WeightCountsEmulated, WeightsEmulated, kFloor);
  const Context context = {.device = DeviceKind::kCuda, .stream = MyStream()};
  const auto count = [&](const AttentionParams& params, std::int64_t* counts) {
    CountWeights<Device>(params, counts,
                         [&](const auto&... there) { AttentionWeightCounts(context, there...); });
  };
  const auto put = [&](const AttentionParams& params, const std::int64_t* row_offsets,
                       std::int64_t entries, std::int64_t* columns, float* values) {
    PutWeights<Device>(params, row_offsets, entries, columns, values,
                       [&](const auto&... there) { AttentionWeights(context, there...); });
  };
  return CheckWeights(problem, count, put, kFloor);
}

// Empty, or what differs. Sums of matrix products may be either model's, or neither's: then they
// must be near.
std::string CheckInstructions(bool emulated, std::string* sums) {
  std::mt19937 engine(7);
  int as_truncated = 0, as_sequential = 0, all = 0;
  for (int round = 0; round < 64; ++round) {
    std::vector<std::uint32_t> in(kWarp * kInputs), truncated(kWarp * kOutputs);
    std::vector<std::uint32_t> sequential(truncated.size()), device(truncated.size());
    for (std::uint32_t& word : in) word = static_cast<std::uint32_t>(engine());
    RunInstructionsEmulated(in.data(), true, truncated.data());
    RunInstructionsEmulated(in.data(), false, sequential.data());
    if (emulated) {
      RunInstructionsEmulated(in.data(), true, device.data());
    } else {
      RunInstructionsOnDevice(in.data(), device.data());
    }
    for (std::size_t i = 0; i < device.size(); ++i) {
      const std::size_t output = i % kOutputs;
      if (output < kFirstSum || output >= kFirstSum + 8) {
        if (device[i] == truncated[i]) continue;
        return "instruction " + std::to_string(output) + " of lane " +
               std::to_string(i / kOutputs) + ": " + std::to_string(device[i]) +
               " on the device, " + std::to_string(truncated[i]) + " emulated";
      }
      ++all;
      as_truncated += device[i] == truncated[i] ? 1 : 0;
      as_sequential += device[i] == sequential[i] ? 1 : 0;
      const float x = std::bit_cast<float>(device[i]), y = std::bit_cast<float>(sequential[i]);
      if (std::abs(x - y) > 1e-3f + 1e-5f * std::abs(y)) {
        return "a matrix product, sum " + std::to_string(output) + " of lane " +
               std::to_string(i / kOutputs) + ": " + std::to_string(x) + " on the device, " +
               std::to_string(y) + " emulated";
      }
    }
  }
  *sums = std::to_string(as_truncated) + " of " + std::to_string(all) +
          " sums of matrix products have the bits of the cut-off model, " +
          std::to_string(as_sequential) + " those of a sum in sequence";
  return {};
}

// The same calls of row maps twice; empty, or what is wrong.
std::string CheckRows(std::uint64_t seed, bool emulated) {
  const Context context = {.device = DeviceKind::kCuda, .stream = emulated ? nullptr : MyStream()};
  const RowCalls calls = {
      .forward = [&](const auto&... call) { cuda::RowsForward(context, call...); },
      .backward = [&](const auto&... call) { cuda::RowsBackward(context, call...); },
      .loss = [&](const auto&... call) { cuda::FenchelYoungLoss(context, call...); }};
  try {
    const RowsProblem problem(seed, 0);
    const auto run = [&] {
      return emulated ? problem.Run<Emulation>(kEmulatedRows) : problem.Run<Device>(calls);
    };
    const RowsResults results = run();
    std::string wrong = problem.Check(results);
    if (wrong.empty() && !results.SameBits(run())) wrong = "other bits the second time";
    return wrong.empty() ? wrong : wrong + "  # " + problem.Describe();
  } catch (const std::exception& error) {
    return error.what();
  }
}

struct Report {
  std::string device, instructions, sums;
  std::uint64_t served = 0, refused = 0, row_calls = 0;
  std::vector<std::string> failures;
  std::map<std::string, std::uint64_t> dtypes;
};

// One problem, run twice by run(), and what more() says; empty, or what is wrong.
template <class Run, class More>
std::string CheckProblem(const Problem& problem, const Run& run, const More& more) {
  try {
    const Results results = run();
    std::string wrong = Expectation(problem, Expectation::kRareMeanFloor).Check(results);
    if (wrong.empty()) wrong = FirstDifference(results, run());
    return wrong.empty() ? more() : wrong;
  } catch (const std::exception& error) {
    return error.what();
  }
}

void CheckProblems(const Options& options, Report* report) {
  std::atomic<std::uint64_t> next = options.seed;
  std::mutex mutex;
  const auto work = [&] {
    for (;;) {
      const std::uint64_t seed = next++;
      if (seed >= options.seed + options.cases) return;
      // Every fourth is one of few queries, on pages.
      const bool paged = seed % 4 == 1;
      const std::int64_t drawn = paged            ? (seed % 16 == 1 ? 9000 : 700)
                                 : seed % 16 == 0 ? 700
                                 : seed % 4 == 0  ? 200
                                                  : 40;
      const std::int64_t most = options.most > 0 ? options.most : drawn;
      const Problem problem(paged ? DrawPaged(seed, most) : DrawServed(seed, most));
      const AttentionParams& params = problem.params();
      const bool served =
          Refusal(paged ? kServesOnPages : kServes, params, FeaturesOf(params), Pass::kForward)
              .empty();
      const auto run = [&] {
        return paged ? RunOnPagesOfDevice(problem, seed, options.emulated)
                     : RunOnDevice(problem, options.emulated);
      };
      const auto more = [&] { return paged ? "" : CheckMatrix(problem, options.emulated); };
      const std::string wrong = served ? CheckProblem(problem, run, more) : "";
      const std::string wrong_rows = CheckRows(seed, options.emulated);
      const std::lock_guard lock(mutex);
      ++report->row_calls;
      if (!wrong_rows.empty()) {
        report->failures.push_back("--seed " + std::to_string(seed) +
                                   " --cases 1: rows: " + wrong_rows);
        std::printf("FAILED %s\n", report->failures.back().c_str());
      }
      ++(served ? report->served : report->refused);
      if (served) ++report->dtypes[Name(problem.spec().dtype)];
      if (wrong.empty()) continue;
      report->failures.push_back("--seed " + std::to_string(seed) + " --cases 1: " + wrong +
                                 "  # " + problem.spec().Describe());
      std::printf("FAILED %s\n", report->failures.back().c_str());
    }
  };
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < options.threads; ++i) threads.emplace_back(work);
  for (std::thread& thread : threads) thread.join();
}

std::string Quoted(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += static_cast<unsigned char>(c) < 32 ? ' ' : c;
  }
  return quoted + '"';
}

void Write(const Report& report, const std::string& path) {
  std::FILE* file = std::fopen(path.c_str(), "w");
  if (file == nullptr) throw std::runtime_error("cannot write " + path);
  std::fprintf(file,
               "{\"device\": %s, \"instructions\": %s, \"sums\": %s, \"served\": %llu, "
               "\"row_calls\": %llu, ",
               Quoted(report.device).c_str(),
               Quoted(report.instructions.empty() ? "as emulated" : report.instructions).c_str(),
               Quoted(report.sums).c_str(), static_cast<unsigned long long>(report.served),
               static_cast<unsigned long long>(report.row_calls));
  std::fprintf(file, "\"dtypes\": {");
  const char* between = "";
  for (const auto& [name, count] : report.dtypes) {
    std::fprintf(file, "%s%s: %llu", between, Quoted(name).c_str(),
                 static_cast<unsigned long long>(count));
    between = ", ";
  }
  std::fprintf(file, "}, \"failures\": [");
  for (std::size_t i = 0; i < report.failures.size(); ++i) {
    std::fprintf(file, "%s%s", i > 0 ? ", " : "", Quoted(report.failures[i]).c_str());
  }
  std::fprintf(file, "]}\n");
  if (std::fclose(file) != 0) throw std::runtime_error("cannot write " + path);
}

int Run(const Options& options) {
  Report report;
  if (options.emulated) {
    report.device = "the emulation";
  } else {
    const CudaInfo info = QueryCuda();
    if (info.devices.empty()) {
      std::printf("no device: %s\n", info.why_no_devices.c_str());
      return 3;
    }
    report.device = Describe(info.devices[0]);
    if (!info.devices[0].why_unusable.empty()) {
      std::printf("%s\n", report.device.c_str());
      return 3;
    }
  }
  std::printf("%s\n", report.device.c_str());
  report.instructions = CheckInstructions(options.emulated, &report.sums);
  std::printf("instructions: %s\n",
              report.instructions.empty() ? report.sums.c_str() : report.instructions.c_str());
  // With a wrong instruction nothing else says anything.
  if (report.instructions.empty()) CheckProblems(options, &report);
  if (!options.json.empty()) Write(report, options.json);
  std::printf("%llu problems of attention and %llu calls of row maps: %zu wrong\n",
              static_cast<unsigned long long>(report.served),
              static_cast<unsigned long long>(report.row_calls), report.failures.size());
  return report.instructions.empty() && report.failures.empty() && report.served > 0 ? 0 : 1;
}

Options Parse(int count, char** words) {
  Options options;
  for (int i = 1; i < count; i += 2) {
    const std::string name = words[i];
    if (i + 1 == count) throw std::runtime_error(name + ": expected a value behind it");
    const char* value = words[i + 1];
    if (name == "--json") {
      options.json = value;
      continue;
    }
    char* end = nullptr;
    const unsigned long long number = std::strtoull(value, &end, 10);
    if (end == value || *end != 0) {
      throw std::runtime_error(name + ": expected a number, got " + value);
    }
    if (name == "--cases") {
      options.cases = number;
    } else if (name == "--seed") {
      options.seed = number;
    } else if (name == "--most") {
      options.most = static_cast<std::int64_t>(number);
    } else if (name == "--threads" && number > 0) {
      options.threads = static_cast<unsigned>(number);
    } else if (name == "--emulated" && number == 1) {
      options.emulated = true;
      options.threads = 1;  // of the machine that it emulates there is one
    } else {
      throw std::runtime_error(
          "expected --cases, --seed, --most, --threads, --json or --emulated and a value, got " +
          name + ' ' + value);
    }
  }
  return options;
}

}  // namespace
}  // namespace tsallis::cuda

int main(int count, char** words) {
  try {
    return tsallis::cuda::Run(tsallis::cuda::Parse(count, words));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "device_test: %s\n", error.what());
    return 1;
  }
}
