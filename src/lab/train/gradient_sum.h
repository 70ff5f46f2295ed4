// Sums the gradient of all processes while the backward pass still goes on: what is final of it is
// sent in buckets, as Li et al. 2020 (PyTorch Distributed, section 3.2.3) do.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "lab/train/processes.h"

namespace tsallis::lab {

class GradientSum {
 public:
  // Small enough that the first one leaves early; to start a sum takes as long as a sixth of this
  // one (docs/log.md).
  static constexpr std::int64_t kBucket = 1 << 18;  // numbers

  // gradients: [size] float32, contiguous; both are kept.
  GradientSum(const Processes& processes, const at::Tensor& gradients);

  // The numbers [begin, end) are final, and the caller must not touch them before Finish(). Calls
  // go from the back to the front without a gap.
  void Ready(std::int64_t begin, std::int64_t end);

  // Waits until all are summed, those too that were never called ready. Throws LostProcess.
  void Finish();

 private:
  void Send();

  Processes processes_;
  at::Tensor gradients_;
  std::int64_t begin_, end_;  // ready, and not sent yet
  std::vector<std::unique_ptr<Processes::Pending>> sent_;
};

}  // namespace tsallis::lab
