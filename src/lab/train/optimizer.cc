#include "lab/train/optimizer.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numbers>
#include <vector>

#include "core/parallel.h"
#include "lab/base/sequential_products.h"
#include "lab/nn/parameters.h"
#include "lab/train/adam_step.h"

namespace tsallis::lab {
namespace {

using at::Tensor;

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

Tensor& OptimizerMemory::State(const std::string& name) {
  for (auto& [known, tensor] : state) {
    if (known == name) return tensor;
  }
  return state.emplace_back(name, at::zeros_like(parameters)).second;
}

namespace {

// A parameter in the flat memory.
struct Place {
  std::int64_t begin, count, columns;
  ParameterGroup group;
};

// Adam (Kingma and Ba 2015) with L2 in the gradient, or AdamW. State: exponential averages of the
// gradient and of its square.
class AdamRule : public UpdateRule {
 public:
  // Numbers [begin, end) of the flat memory at lr times `factor`.
  struct Range {
    std::int64_t begin, end;
    double factor;
  };

  AdamRule(const TrainConfig& config, OptimizerMemory& memory, std::vector<Range> ranges)
      : config_(config), memory_(memory), ranges_(std::move(ranges)) {
    for (const char* name : {"adam.first", "adam.second"}) memory.State(name);
  }

  void Update(std::int64_t step, double lr) override {
    const Tensor &g = memory_.gradients, &w = memory_.parameters;
    const Tensor first = memory_.State("adam.first"), second = memory_.State("adam.second");
    if (config_.optimizer == "adamw" && config_.weight_decay > 0.0) {
      w.mul_(static_cast<float>(1.0 - lr * config_.weight_decay));
    }
    const auto t = static_cast<double>(step + 1);
    AdamConstants constants{
        .lr = static_cast<float>(lr),
        .beta1 = static_cast<float>(config_.beta1),
        .beta2 = static_cast<float>(config_.beta2),
        .epsilon = static_cast<float>(config_.epsilon),
        .l2 = config_.optimizer == "adam" ? static_cast<float>(config_.l2) : 0.0F,
        .correction1 = static_cast<float>(1.0 - std::pow(config_.beta1, t)),
        .correction2 = static_cast<float>(1.0 - std::pow(config_.beta2, t))};
    for (const Range& range : ranges_) {
      constants.lr = static_cast<float>(lr * range.factor);
      const auto [begin, end, factor] = range;
      if (!w.is_cpu()) {
        const auto part = [&, begin = begin, end = end](const Tensor& flat) {
          return flat.narrow(0, begin, end - begin);
        };
        OnDevice(constants, part(g), part(w), part(first), part(second));
        continue;
      }
      const float* gradient = g.const_data_ptr<float>();
      auto* weight = w.mutable_data_ptr<float>();
      auto *m = first.mutable_data_ptr<float>(), *v = second.mutable_data_ptr<float>();
      // Element by element, so that any split gives the same bits.
      at::parallel_for(begin, end, kChunk, [&](std::int64_t from, std::int64_t to) {
        AdamStep(constants, to - from, gradient + from, weight + from, m + from, v + from);
      });
    }
  }

 private:
  // AdamStep by torch's operations.
  static void OnDevice(const AdamConstants& c, const Tensor& g, const Tensor& w,
                       const Tensor& first, const Tensor& second) {
    const Tensor gradient = c.l2 > 0.0F ? g + c.l2 * w : g;
    first.mul_(c.beta1).add_(gradient, 1.0F - c.beta1);
    second.mul_(c.beta2).addcmul_(gradient, gradient, 1.0F - c.beta2);
    const Tensor denominator = (second * (1.0F / c.correction2)).sqrt_().add_(c.epsilon);
    w.addcdiv_(first, denominator, -c.lr / c.correction1);
  }

  TrainConfig config_;
  OptimizerMemory& memory_;
  std::vector<Range> ranges_;
};

// Muon (Jordan et al. 2024): Nesterov momentum of matrices, orthogonalised, times lr sqrt(max(1,
// rows / columns)). State: the momentum, where Adam has the average of the gradient.
class MuonRule : public UpdateRule {
 public:
  MuonRule(const TrainConfig& config, OptimizerMemory& memory, std::vector<Place> matrices)
      : config_(config), memory_(memory), matrices_(std::move(matrices)) {}

  void Update(std::int64_t, double lr) override {
    const SequentialProducts guard;
    const auto count = static_cast<std::int64_t>(matrices_.size());
    // A device has threads of its own.
    const int threads = memory_.parameters.is_cpu() ? guard.threads() : 1;
    const Tensor momentum = memory_.State("adam.first");
    ParallelTasks({.threads = threads}, count, [&](std::int64_t i, int) {
      const at::AutoDispatchBelowADInplaceOrView no_autograd;
      const Place& place = matrices_[static_cast<std::size_t>(i)];
      const auto view = [&](const Tensor& flat) {
        return flat.narrow(0, place.begin, place.count).view({-1, place.columns});
      };
      const Tensor g = view(memory_.gradients), w = view(memory_.parameters);
      const Tensor average = view(momentum);
      average.lerp_(g, 1.0 - config_.momentum);
      const Tensor update = Orthogonalised(g.lerp(average, config_.momentum));
      const double aspect = static_cast<double>(w.size(0)) / static_cast<double>(w.size(1));
      if (config_.weight_decay > 0.0) w.mul_(1.0 - lr * config_.weight_decay);
      w.add_(update, -lr * std::sqrt(std::max(1.0, aspect)));
    });
  }

 private:
  TrainConfig config_;
  OptimizerMemory& memory_;
  std::vector<Place> matrices_;
};

using Rules = std::vector<std::unique_ptr<UpdateRule>>;

Rules MakeAdam(const TrainConfig& config, OptimizerMemory& memory, const std::vector<Place>&) {
  Rules rules;
  rules.push_back(std::make_unique<AdamRule>(
      config, memory, std::vector<AdamRule::Range>{{0, memory.parameters.numel(), 1.0}}));
  return rules;
}

// Muon of hidden matrices, Adam of the rest.
Rules MakeMuon(const TrainConfig& config, OptimizerMemory& memory,
               const std::vector<Place>& places) {
  std::vector<AdamRule::Range> ranges;
  std::vector<Place> matrices;
  for (const Place& place : places) {
    if (place.group == ParameterGroup::kHidden) {
      matrices.push_back(place);
      continue;
    }
    const double lr = place.group == ParameterGroup::kEmbedding
                          ? config.embedding_lr.value_or(config.adam_lr)
                          : config.adam_lr;
    ranges.push_back({place.begin, place.begin + place.count, lr / config.lr});
  }
  Rules rules;
  rules.push_back(std::make_unique<AdamRule>(config, memory, std::move(ranges)));
  rules.push_back(std::make_unique<MuonRule>(config, memory, std::move(matrices)));
  return rules;
}

// By the names of OptimizerKinds().
const std::map<std::string,
               Rules (*)(const TrainConfig&, OptimizerMemory&, const std::vector<Place>&)>
    kRules = {{"adam", MakeAdam}, {"adamw", MakeAdam}, {"muon", MakeMuon}};

}  // namespace

Optimizer::Optimizer(const TrainConfig& config, std::int64_t steps, const Tensor& parameters,
                     const Tensor& gradients, const Named& named,
                     const std::vector<ParameterGroup>& groups)
    : config_(config),
      steps_(steps),
      memory_(std::make_unique<OptimizerMemory>(OptimizerMemory{parameters, gradients, {}})) {
  std::vector<Place> places;
  for (std::size_t i = 0; i < named.size(); ++i) {
    const Tensor& value = named[i].second;
    places.push_back({value.storage_offset() - parameters.storage_offset(), value.numel(),
                      value.dim() == 0 ? 1 : value.size(-1),
                      groups.empty() ? ParameterGroup::kScalar : groups[i]});
  }
  rules_ = kRules.at(config.optimizer)(config, *memory_, places);
}

double Optimizer::Step(std::int64_t step) {
  const double lr = LearningRate(config_, step, steps_);
  const Tensor& gradients = memory_->gradients;
  double norm = 0.0;
  if (config_.clip > 0.0) {
    norm = GlobalNorm(gradients);
    if (!std::isfinite(norm)) return norm;
    if (norm > config_.clip) gradients.mul_(static_cast<float>(config_.clip / norm));
  }
  for (const std::unique_ptr<UpdateRule>& rule : rules_) rule->Update(step, lr);
  MarkChanged(memory_->parameters);
  return norm;
}

}  // namespace tsallis::lab
