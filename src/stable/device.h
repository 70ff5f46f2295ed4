// Where attention and row maps run: the kernels of the tensors' device, and its stream and memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "stable/arguments.h"
#include "stable/tensor.h"
#include "tsallis/attention.h"
#include "tsallis/pages.h"
#include "tsallis/rows.h"

namespace tsallis::stable {

// Threads as torch has them set in this thread.
Context TorchContext();

// The kernels that run where the tensors are.
struct AttentionPasses {
  Reader reader = Reader::kHost;
  std::function<void(const AttentionParams&, const AttentionOutputs&)> forward;
  std::function<void(const AttentionParams&, const AttentionGradients&)> backward;
  // tsallis/attention.h: AttentionSavedBytes, AttentionWeightCounts, AttentionWeights.
  std::function<std::size_t(const AttentionParams&, std::size_t budget)> saved_bytes;
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

// The same for row maps and their losses (tsallis/rows.h); errors that are about the device name
// the scores.
struct RowPasses {
  Reader reader = Reader::kHost;
  std::function<void(const RowMapParams&, const ConstRows& scores, const MutableRows& probabilities,
                     const RowStats&)>
      forward;
  std::function<void(const RowMapParams&, const ConstRows& scores, const ConstRows& probabilities,
                     const ConstRows& d_probabilities, const MutableRows& d_scores,
                     double* d_alpha)>
      backward;
  std::function<void(const RowMapParams&, const ConstRows& scores, const std::int64_t* targets,
                     std::int64_t ignore_index, double* losses, const MutableRows& d_scores)>
      loss;
};
const RowPasses& CpuRowPasses();
RowPasses CudaRowPasses(const Device& device);
template <typename Run>
auto WithRowPassesOf(const Tensor& scores, const Run& run) {
  if (scores.device().is_cpu()) return run(CpuRowPasses());
  if (scores.device().is_cuda()) return run(CudaRowPasses(scores.device()));
  throw InvalidArgument("scores", "a tensor on the CPU or on a CUDA device",
                        scores.device().Name());
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
