// T1, max retrieval (Velickovic et al. 2024, appendix A.2): a set of items, each with a
// priority and a class; the answer is the class of the item of highest priority.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "lab/base/random.h"
#include "lab/tasks/task.h"

namespace tsallis::lab {

struct SetBatch {
  at::Tensor items;   // [sets, n, 1 + classes] float32: priority in [0, 1), then the class one-hot
  at::Tensor query;   // [sets, 1] float32, uniform in [0, 1): carries no information
  at::Tensor target;  // [sets] int64
};

struct MaxRetrievalConfig {
  std::int64_t train_length_min = 5;  // train_length = [min, max], uniform, one length a batch
  std::int64_t train_length_max = 16;
  std::int64_t classes = 10;
};

class MaxRetrieval : public Task {
 public:
  explicit MaxRetrieval(const MaxRetrievalConfig& config) : config_(config) {}

  std::vector<Metric> Metrics() const override { return {{.count = "sets"}}; }
  void CheckLength(std::int64_t) const override {}  // there are sets of every size

  std::int64_t Features() const { return 1 + config_.classes; }
  std::int64_t Classes() const { return config_.classes; }

  // The batch of training step `step`: all its sets have one length, uniform in [train_length_min,
  // _max].
  SetBatch TrainBatch(std::uint64_t seed, std::int64_t step, std::int64_t sets) const;

  // Sets [first, first + sets) of the endless list for length n of a split, kValidation or kTest;
  // the same for every method and seed.
  SetBatch EvalBatch(Split split, std::int64_t n, std::int64_t first, std::int64_t sets) const;

 private:
  MaxRetrievalConfig config_;
};

}  // namespace tsallis::lab
