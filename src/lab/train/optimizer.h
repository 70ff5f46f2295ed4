// Adam with either L2 in the gradient or AdamW's decoupled decay (Loshchilov and Hutter 2019),
// Muon, clipping by the global norm, and learning-rate schedules, over parameters in one piece of
// memory, on any device. Nothing here depends on the number of threads.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "lab/config/recipe.h"

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

// Adam, AdamW, or Muon: Nesterov momentum of every hidden matrix, orthogonalised, times lr
// sqrt(max(1, rows / columns)); what is no matrix of a layer (embeddings, head, gains, learned
// scales) goes to Adam.
class Optimizer {
 public:
  using Named = std::vector<std::pair<std::string, at::Tensor>>;

  // parameters, gradients: [size] float32, contiguous; kept by reference. named: the parameters as
  // views into them.
  Optimizer(const TrainConfig& config, std::int64_t steps, const at::Tensor& parameters,
            const at::Tensor& gradients, const Named& named = {});

  // Update `step`, from 0. The gradient is scaled down in place if it is clipped. Returns its
  // global norm before that, 0 if config.clip is 0 and it is not needed; a norm that is not finite
  // changes nothing.
  double Step(std::int64_t step);

  // Tensors that have to be kept beside the parameters to go on, by names that stay: the
  // exponential averages of the gradient (of matrices that Muon trains, its momentum) and of its
  // square.
  Named State() const { return {{"adam.first", first_}, {"adam.second", second_}}; }

 private:
  // Numbers [begin, end) of the flat memory, which Adam trains at lr times `factor`.
  struct Range {
    std::int64_t begin, end;
    double factor;
  };
  // A matrix [rows, columns] of it, which Muon trains.
  struct Matrix {
    std::int64_t begin, rows, columns;
  };
  void AdamUpdate(std::int64_t step, double lr);
  void MuonUpdate(double lr);

  TrainConfig config_;
  std::int64_t steps_;
  at::Tensor parameters_, gradients_, first_, second_;
  std::vector<Range> ranges_;
  std::vector<Matrix> matrices_;
};

}  // namespace tsallis::lab
