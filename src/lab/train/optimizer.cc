#include "lab/train/optimizer.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <vector>

#include "core/parallel.h"
#include "lab/base/sequential_products.h"
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
  if (config.schedule == "linear") {
    const double cooling = config.cooldown * static_cast<double>(steps);
    const double remaining = static_cast<double>(steps - step);
    return config.lr * std::min(1.0, cooling > 0.0 ? remaining / cooling : 1.0);
  }
  const double done = static_cast<double>(step - config.warmup) /
                      static_cast<double>(std::max<std::int64_t>(1, steps - config.warmup));
  return config.lr * 0.5 * (1.0 + std::cos(std::numbers::pi * done));
}

double GlobalNorm(const at::Tensor& gradient) {
  if (!gradient.is_cpu()) return at::norm(gradient, 2, at::kDouble).item<double>();
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

at::Tensor Orthogonalised(const at::Tensor& update) {
  // Takes products of the shorter side, which are the smaller.
  const bool tall = update.size(0) > update.size(1);
  at::Tensor x = tall ? update.t().contiguous() : update.clone();
  x.div_(x.norm().to(at::kDouble).add_(1e-7).to(x.scalar_type()));
  for (int i = 0; i < 5; ++i) {
    const at::Tensor a = x.mm(x.t());
    const at::Tensor b = at::addmm(a, a, a, -4.7750, 2.0315);
    x = at::addmm(x, b, x, 3.4445);
  }
  return tall ? x.t() : x;
}

namespace {

// A decoder's layers, and those of an encoder-decoder.
bool IsOfLayer(const std::string& name) {
  return name.starts_with("layers.") || name.starts_with("encoder.") ||
         name.starts_with("decoder.");
}

}  // namespace

Optimizer::Optimizer(const TrainConfig& config, std::int64_t steps, const at::Tensor& parameters,
                     const at::Tensor& gradients, const Named& named)
    : config_(config),
      steps_(steps),
      parameters_(parameters),
      gradients_(gradients),
      first_(at::zeros_like(parameters)),
      second_(at::zeros_like(parameters)) {
  if (config.optimizer != "muon") {
    ranges_.push_back({0, parameters.numel(), 1.0});
    return;
  }
  for (const auto& [name, value] : named) {
    const std::int64_t begin = value.storage_offset() - parameters.storage_offset();
    const bool scale = name.find(".scale.") != std::string::npos;
    if (IsOfLayer(name) && value.dim() >= 2 && !scale) {
      const std::int64_t columns = value.size(-1);
      matrices_.push_back({begin, value.numel() / columns, columns});
    } else {
      const double lr = name.starts_with("embedding.")
                            ? config.embedding_lr.value_or(config.adam_lr)
                            : config.adam_lr;
      ranges_.push_back({begin, begin + value.numel(), lr / config.lr});
    }
  }
}

double Optimizer::Step(std::int64_t step) {
  const double lr = LearningRate(config_, step, steps_);
  double norm = 0.0;
  if (config_.clip > 0.0) {
    norm = GlobalNorm(gradients_);
    if (!std::isfinite(norm)) return norm;
    if (norm > config_.clip) gradients_.mul_(static_cast<float>(config_.clip / norm));
  }
  if (config_.optimizer == "adamw" && config_.weight_decay > 0.0) {
    parameters_.mul_(static_cast<float>(1.0 - lr * config_.weight_decay));
  }
  AdamUpdate(step, lr);
  if (!matrices_.empty()) MuonUpdate(lr);
  MarkChanged(parameters_);
  return norm;
}

namespace {

// AdamStep (set_kernels.h) by torch's operations.
void AdamOnDevice(const AdamConstants& c, const at::Tensor& g, const at::Tensor& w,
                  const at::Tensor& first, const at::Tensor& second) {
  const at::Tensor gradient = c.l2 > 0.0F ? g + c.l2 * w : g;
  first.mul_(c.beta1).add_(gradient, 1.0F - c.beta1);
  second.mul_(c.beta2).addcmul_(gradient, gradient, 1.0F - c.beta2);
  const at::Tensor denominator = (second * (1.0F / c.correction2)).sqrt_().add_(c.epsilon);
  w.addcdiv_(first, denominator, -c.lr / c.correction1);
}

}  // namespace

void Optimizer::AdamUpdate(std::int64_t step, double lr) {
  const auto t = static_cast<double>(step + 1);
  AdamConstants constants{.lr = static_cast<float>(lr),
                          .beta1 = static_cast<float>(config_.beta1),
                          .beta2 = static_cast<float>(config_.beta2),
                          .epsilon = static_cast<float>(config_.epsilon),
                          .l2 = config_.optimizer == "adam" ? static_cast<float>(config_.l2) : 0.0F,
                          .correction1 = static_cast<float>(1.0 - std::pow(config_.beta1, t)),
                          .correction2 = static_cast<float>(1.0 - std::pow(config_.beta2, t))};
  if (!parameters_.is_cpu()) {
    for (const Range& range : ranges_) {
      constants.lr = static_cast<float>(lr * range.factor);
      const auto part = [&](const at::Tensor& flat) {
        return flat.narrow(0, range.begin, range.end - range.begin);
      };
      AdamOnDevice(constants, part(gradients_), part(parameters_), part(first_), part(second_));
    }
    return;
  }
  const float* g = gradients_.const_data_ptr<float>();
  auto* w = parameters_.mutable_data_ptr<float>();
  auto* first = first_.mutable_data_ptr<float>();
  auto* second = second_.mutable_data_ptr<float>();
  for (const Range& range : ranges_) {
    constants.lr = static_cast<float>(lr * range.factor);
    // Element by element, so that any split gives the same bits.
    at::parallel_for(range.begin, range.end, kChunk, [&](std::int64_t begin, std::int64_t end) {
      AdamStep(constants, end - begin, g + begin, w + begin, first + begin, second + begin);
    });
  }
}

void Optimizer::MuonUpdate(double lr) {
  const SequentialProducts guard;
  const auto count = static_cast<std::int64_t>(matrices_.size());
  const int threads = parameters_.is_cpu() ? guard.threads() : 1;  // a device has its own
  ParallelTasks({.threads = threads}, count, [&](std::int64_t i, int) {
    const at::AutoDispatchBelowADInplaceOrView no_autograd;
    const auto [begin, rows, columns] = matrices_[static_cast<std::size_t>(i)];
    const auto view = [&, begin = begin, rows = rows, columns = columns](const at::Tensor& flat) {
      return flat.narrow(0, begin, rows * columns).view({rows, columns});
    };
    const at::Tensor g = view(gradients_), w = view(parameters_), average = view(first_);
    average.lerp_(g, 1.0 - config_.momentum);
    const at::Tensor update = Orthogonalised(g.lerp(average, config_.momentum));
    const double size = std::max(1.0, static_cast<double>(rows) / static_cast<double>(columns));
    if (config_.weight_decay > 0.0) w.mul_(1.0 - lr * config_.weight_decay);
    w.add_(update, -lr * std::sqrt(size));
  });
}

}  // namespace tsallis::lab
