// Adam with either L2 in the gradient or AdamW's decoupled decay (Loshchilov and Hutter 2019),
// Muon, clipping by the global norm, and learning-rate schedules, over parameters in one piece of
// memory, on any device. Nothing here depends on the number of threads.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lab/config/recipe.h"
#include "lab/nn/parameters.h"

namespace tsallis::lab {

// The learning rate of update `step`, from 0, of `steps`: config.lr, reached in equal steps within
// the first config.warmup updates, then constant, down to 0 along half a cosine, or constant and
// then down to 0 along a line within the last config.cooldown of the updates. Neither the
// first nor the last update is wasted on a rate of 0: it would come before the first and after the
// last.
double LearningRate(const TrainConfig& config, std::int64_t step, std::int64_t steps);

// sqrt(sum g^2), summed in double; on the CPU in an order that depends on the size alone. The host
// waits for a device. g: [size] float32, contiguous.
double GlobalNorm(const at::Tensor& gradient);

// O of U = O S, the nearest matrix with orthonormal rows or columns, roughly: five Newton-Schulz
// steps with the coefficients of Jordan et al. 2024 (Muon) bring every singular value of U / |U| to
// about 0.7 to 1.2. update: [rows, columns] float32.
at::Tensor Orthogonalised(const at::Tensor& update);

// What every rule of an update works on: flat memory, and tensors of its size by names that stay,
// which are kept beside the parameters to go on.
struct OptimizerMemory {
  using Named = std::vector<std::pair<std::string, at::Tensor>>;

  at::Tensor parameters, gradients;  // [size] float32, contiguous
  Named state;

  at::Tensor& State(const std::string& name);  // zeros where it is new
};

// How some of the parameters are updated; one class for each in optimizer.cc.
class UpdateRule {
 public:
  virtual ~UpdateRule() = default;
  // Update `step`, from 0, at the schedule's learning rate.
  virtual void Update(std::int64_t step, double lr) = 0;
};

// The rules of config.optimizer with clipping and the schedule.
class Optimizer {
 public:
  using Named = OptimizerMemory::Named;

  // parameters, gradients: [size] float32, contiguous; kept by reference. named: the parameters as
  // views into them; groups: of each, all scalars if empty.
  Optimizer(const TrainConfig& config, std::int64_t steps, const at::Tensor& parameters,
            const at::Tensor& gradients, const Named& named = {},
            const std::vector<ParameterGroup>& groups = {});

  // Update `step`, from 0. The gradient is scaled down in place if it is clipped. Returns its
  // global norm before that, 0 if config.clip is 0 and it is not needed; a norm that is not finite
  // changes nothing.
  double Step(std::int64_t step);

  // What has to be kept beside the parameters to go on.
  const Named& State() const { return memory_->state; }

 private:
  TrainConfig config_;
  std::int64_t steps_;
  std::unique_ptr<OptimizerMemory> memory_;  // where rules find it
  std::vector<std::unique_ptr<UpdateRule>> rules_;
};

}  // namespace tsallis::lab
