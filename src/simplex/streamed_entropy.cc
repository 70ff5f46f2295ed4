#include <cmath>

#include "tsallis/rows.h"

namespace tsallis {

void StreamedEntropy::Add(double score) {
  if (score == __builtin_inf()) score = __builtin_nan("");
  if (score == -__builtin_inf()) return;
  if (!(score <= max_)) {  // NaN comes here too, and stays
    const double shift = max_ - score;
    const double shrink = std::exp(shift);
    weighted_ = sum_ > 0.0 ? shrink * (weighted_ + sum_ * shift) : 0.0;
    sum_ = sum_ * shrink + 1.0;
    max_ = score;
    return;
  }
  const double depth = score - max_;
  const double e = std::exp(depth);
  sum_ += e;
  weighted_ += e * depth;
}

void StreamedEntropy::Merge(const StreamedEntropy& other) {
  if (other.sum_ == 0.0) return;
  if (sum_ == 0.0) {
    *this = other;
    return;
  }
  const double top = max_ > other.max_ ? max_ : other.max_;
  const double a = max_ - top, b = other.max_ - top;
  weighted_ =
      std::exp(a) * (weighted_ + sum_ * a) + std::exp(b) * (other.weighted_ + other.sum_ * b);
  sum_ = sum_ * std::exp(a) + other.sum_ * std::exp(b);
  max_ = top;
}

double StreamedEntropy::LogSumExp() const {
  return sum_ == 0.0 ? -__builtin_inf() : max_ + std::log(sum_);
}

double StreamedEntropy::Entropy() const {
  return sum_ == 0.0 ? 0.0 : std::log(sum_) - weighted_ / sum_;
}

}  // namespace tsallis
