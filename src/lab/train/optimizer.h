// Adam with either L2 in the gradient or AdamW's decoupled decay (Loshchilov and Hutter 2019),
// clipping by the global norm, and learning-rate schedules, over parameters in one piece of memory.
// Nothing here depends on the number of threads.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "lab/config/recipe.h"

namespace tsallis::lab {

// The learning rate of update `step`, from 0, of `steps`: config.lr, reached in equal steps within
// the first config.warmup updates, then constant, or down to 0 along half a cosine. Neither the
// first nor the last update is wasted on a rate of 0: it would come before the first and after the
// last.
double LearningRate(const TrainConfig& config, std::int64_t step, std::int64_t steps);

// sqrt(sum g^2), summed in double in an order that depends on the size alone. g: [size] float32,
// contiguous.
double GlobalNorm(const at::Tensor& gradient);

class Optimizer {
 public:
  // parameters, gradients: [size] float32, contiguous; kept by reference.
  Optimizer(const TrainConfig& config, std::int64_t steps, const at::Tensor& parameters,
            const at::Tensor& gradients);

  // Update `step`, from 0. The gradient is scaled down in place if it is clipped. Returns its
  // global norm before that, 0 if config.clip is 0 and it is not needed; a norm that is not finite
  // changes nothing.
  double Step(std::int64_t step);

  // Exponential averages of the gradient and of its square.
  const at::Tensor& First() const { return first_; }
  const at::Tensor& Second() const { return second_; }

 private:
  TrainConfig config_;
  std::int64_t steps_;
  at::Tensor parameters_, gradients_, first_, second_;
};

}  // namespace tsallis::lab
