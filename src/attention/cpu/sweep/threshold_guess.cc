#include "attention/cpu/sweep/threshold_guess.h"

#include <algorithm>
#include <cmath>

namespace tsallis {
namespace {

constexpr double kLowest = -12.0, kHighest = 12.0, kStep = 0.125;

// -ln E[(x - g)_+^b], x ~ N(0, 1), by Laplace's method around the integrand's maximum g + y,
// y (y + g) = b. Within a few percent of the truth, which is all a curve that is corrected needs.
double NegativeLogMoment(double b, double g) {
  const double y = 0.5 * (std::sqrt(g * g + 4.0 * b) - g);
  return -b * std::log(y) + 0.5 * (g + y) * (g + y) + 0.5 * std::log1p(b / (y * y));
}

}  // namespace

ThresholdCurve::ThresholdCurve(double alpha) : exponent_(static_cast<float>(1.0 / (alpha - 1.0))) {
  for (double g = kLowest; g <= kHighest; g += kStep) {
    log_mass_.push_back(static_cast<float>(NegativeLogMoment(1.0 / (alpha - 1.0), g)));
  }
}

float ThresholdCurve::At(float log_mass) const {
  const auto above = std::lower_bound(log_mass_.begin(), log_mass_.end(), log_mass);
  if (above == log_mass_.begin()) return static_cast<float>(kLowest);
  if (above == log_mass_.end()) return static_cast<float>(kHighest);
  const auto i = static_cast<float>(above - log_mass_.begin());
  const float low = *(above - 1), share = (log_mass - low) / (*above - low);
  return static_cast<float>(kLowest) + static_cast<float>(kStep) * (i - 1.0f + share);
}

}  // namespace tsallis
