#include "lab/train/optimizer.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <array>
#include <cmath>
#include <numbers>
#include <vector>

#include "lab/nn/parameters.h"
#include "lab/nn/set_kernels.h"

namespace tsallis::lab {
namespace {

constexpr std::int64_t kChunk = 1 << 15;  // numbers that one thread works on at a time

double SumOfSquares(const float* x, std::int64_t count) {
  std::array<double, 8> sums{};  // side by side in a register
  std::int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    for (int k = 0; k < 8; ++k) sums[k] += static_cast<double>(x[i + k]) * x[i + k];
  }
  double sum = 0.0;
  for (; i < count; ++i) sum += static_cast<double>(x[i]) * x[i];
  for (const double part : sums) sum += part;
  return sum;
}

}  // namespace

double LearningRate(const TrainConfig& config, std::int64_t step, std::int64_t steps) {
  if (step < config.warmup) {
    return config.lr * static_cast<double>(step + 1) / static_cast<double>(config.warmup);
  }
  if (config.schedule == "constant") return config.lr;
  const double done = static_cast<double>(step - config.warmup) /
                      static_cast<double>(std::max<std::int64_t>(1, steps - config.warmup));
  return config.lr * 0.5 * (1.0 + std::cos(std::numbers::pi * done));
}

double GlobalNorm(const at::Tensor& gradient) {
  const std::int64_t size = gradient.numel();
  const float* g = gradient.const_data_ptr<float>();
  std::vector<double> parts(static_cast<std::size_t>((size + kChunk - 1) / kChunk));
  at::parallel_for(0, static_cast<std::int64_t>(parts.size()), 1,
                   [&](std::int64_t begin, std::int64_t end) {
                     for (std::int64_t c = begin; c < end; ++c) {
                       parts[static_cast<std::size_t>(c)] =
                           SumOfSquares(g + c * kChunk, std::min(kChunk, size - c * kChunk));
                     }
                   });
  double sum = 0.0;
  for (const double part : parts) sum += part;
  return std::sqrt(sum);
}

Optimizer::Optimizer(const TrainConfig& config, std::int64_t steps, const at::Tensor& parameters,
                     const at::Tensor& gradients)
    : config_(config),
      steps_(steps),
      parameters_(parameters),
      gradients_(gradients),
      first_(at::zeros_like(parameters)),
      second_(at::zeros_like(parameters)) {}

double Optimizer::Step(std::int64_t step) {
  const double lr = LearningRate(config_, step, steps_);
  double norm = 0.0;
  if (config_.clip > 0.0) {
    norm = GlobalNorm(gradients_);
    if (!std::isfinite(norm)) return norm;
    if (norm > config_.clip) gradients_.mul_(static_cast<float>(config_.clip / norm));
  }
  const bool decoupled = config_.optimizer == "adamw";
  if (decoupled && config_.weight_decay > 0.0) {
    parameters_.mul_(static_cast<float>(1.0 - lr * config_.weight_decay));
  }
  const auto t = static_cast<double>(step + 1);
  const AdamConstants constants{
      .lr = static_cast<float>(lr),
      .beta1 = static_cast<float>(config_.beta1),
      .beta2 = static_cast<float>(config_.beta2),
      .epsilon = static_cast<float>(config_.epsilon),
      .l2 = decoupled ? 0.0F : static_cast<float>(config_.l2),
      .correction1 = static_cast<float>(1.0 - std::pow(config_.beta1, t)),
      .correction2 = static_cast<float>(1.0 - std::pow(config_.beta2, t))};
  const float* g = gradients_.const_data_ptr<float>();
  auto* w = parameters_.mutable_data_ptr<float>();
  auto* first = first_.mutable_data_ptr<float>();
  auto* second = second_.mutable_data_ptr<float>();
  // Element by element, so that any split gives the same bits.
  at::parallel_for(0, parameters_.numel(), kChunk, [&](std::int64_t begin, std::int64_t end) {
    AdamStep(constants, end - begin, g + begin, w + begin, first + begin, second + begin);
  });
  MarkChanged(parameters_);
  return norm;
}

}  // namespace tsallis::lab
