// Where attention runs: the kernels of the tensors' device, and its stream and memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "stable/arguments.h"
#include "stable/tensor.h"
#include "tsallis/attention.h"
#include "tsallis/pages.h"

namespace tsallis::stable {

// Threads as torch has them set in this thread.
Context TorchContext();

// The kernels that run where the tensors are.
struct AttentionPasses {
  Reader reader = Reader::kHost;
  bool saves = false;  // lists of the support; else they get no memory for them
  std::function<void(const AttentionParams&, const AttentionOutputs&)> forward;
  std::function<void(const AttentionParams&, const AttentionGradients&)> backward;
  // tsallis/attention.h: AttentionWeightCounts, AttentionWeights.
  std::function<void(const AttentionParams&, std::int64_t* counts)> weight_counts;
  std::function<void(const AttentionParams&, const std::int64_t* row_offsets, std::int64_t* columns,
                     float* values)>
      weights;
  std::function<void(const AttentionParams&, const AttentionPages&, const AttentionOutputs&)>
      on_pages;
};

// Of a CPU or a CUDA device. On the latter they run in the current stream, with torch's memory as
// their workspace, and errors that are about the device name q.
const AttentionPasses& CpuPasses();
AttentionPasses CudaPasses(const Device& device);
// Calls run(passes) with those of q's device. Throws InvalidArgument for another kind of device.
template <typename Run>
auto WithPassesOf(const Tensor& q, const Run& run) {
  if (q.device().is_cpu()) return run(CpuPasses());
  if (q.device().is_cuda()) return run(CudaPasses(q.device()));
  throw InvalidArgument("q", "a tensor on the CPU or on a CUDA device", q.device().Name());
}

// Makes a CUDA device the current one while it lives; does nothing for a CPU.
class DeviceScope {
 public:
  explicit DeviceScope(const Device& device);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  DeviceGuardHandle guard_ = nullptr;
};

}  // namespace tsallis::stable
