#include "lab/tasks/metric.h"

#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace tsallis::lab {

double NumberIn(const Score& score, const std::string& name) {
  const auto found = score.find(name);
  if (found != score.end() && found->is_null()) return std::numeric_limits<double>::quiet_NaN();
  if (found == score.end() || !found->is_number()) {
    throw std::runtime_error("damaged: a score without the number \"" + name + "\"");
  }
  return found->get<double>();
}

double Metric::Value(const Score& score) const {
  return AddsUp() ? Value(NumberIn(score, sum), NumberIn(score, count)) : NumberIn(score, sum);
}

Metric LossMetric(const std::string& answer, const std::string& count) {
  return {.name = "loss",
          .unit = "nats a " + answer,
          .higher_is_better = false,
          .digits = 3,
          .notable = 0.02,
          .sum = "loss",
          .count = count,
          .factor = 1.0};
}

}  // namespace tsallis::lab
