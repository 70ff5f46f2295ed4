// A guess of entmax's threshold from the mean and spread of a row's scores, before any is computed.
//
// For n normal scores z ~ N(mu, sigma^2) the threshold solves n sigma^b E[(x - g)_+^b] = 1 with
// tau = mu + sigma g and b = 1 / (alpha - 1): g depends on ln(n sigma^b) alone. mu and sigma follow
// from the mean and covariance of the keys. Real scores are not normal; how far the thresholds of a
// few rows that are solved without a guess, the pilots, lie from the curve corrects it. A guess is
// only a guess: a sweep proves each row's or repeats it.
//
// Kernels for GPUs compile this file (host_device.h).
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "core/host_device.h"

namespace tsallis {

// Keys of a head from which on its rows are guessed.
inline constexpr std::int64_t kGuessKeys = 1024;
// Keys that a row sees from which on it is like the normal ones that the guess assumes.
inline constexpr std::int64_t kLeastGuessed = 128;
// Standard deviations below its expectation at which a threshold is guessed: one more lists more
// candidates, one less sweeps more rows twice.
inline constexpr float kGuessMargin = 2.0f;

// Keys whose mean and covariance stand for those of all kGuessKeys or more, at most. The fewer, the
// further a guess is off: 512 instead of 2 048 list 1.13 times the candidates (docs/log.md).
inline constexpr std::int64_t kMomentSamples = 2048;
TSALLIS_HOST_DEVICE constexpr std::int64_t MomentSamples(std::int64_t keys) {
  const std::int64_t quarter = keys / 4;
  if (quarter > kMomentSamples) return kMomentSamples;
  return quarter > 512 ? quarter : 512;
}
// The row of sample i, counted from the first key.
TSALLIS_HOST_DEVICE constexpr std::int64_t MomentRow(std::int64_t i, std::int64_t keys) {
  return i * keys / MomentSamples(keys);
}

// ln(n sigma^b) at points of g, ascending.
struct CurvePoints {
  static constexpr int kCount = 193;
  static constexpr double kLowest = -12.0, kStep = 0.125;

  // -ln E[(x - g)_+^b], x ~ N(0, 1), by Laplace's method around the integrand's maximum g + y,
  // y (y + g) = b. Within a few percent of the truth, which is all a curve that is corrected needs.
  static TSALLIS_HOST_DEVICE double At(double b, int i) {
    const double g = kLowest + kStep * i;
    const double y = 0.5 * (std::sqrt(g * g + 4.0 * b) - g);
    return -b * std::log(y) + 0.5 * (g + y) * (g + y) + 0.5 * std::log1p(b / (y * y));
  }
  // g for `log_mass`; points.Load(i): point i.
  template <class Points>
  static TSALLIS_HOST_DEVICE float Find(const Points& points, float log_mass) {
    if (!(log_mass > points.Load(0))) return static_cast<float>(kLowest);
    if (log_mass > points.Load(kCount - 1)) return -static_cast<float>(kLowest);
    int below = 0, above = kCount - 1;
    while (above - below > 1) {
      const int middle = (below + above) / 2;
      (points.Load(middle) < log_mass ? below : above) = middle;
    }
    const float low = points.Load(below);
    const float share = (log_mass - low) / (points.Load(above) - low);
    return static_cast<float>(kLowest) +
           static_cast<float>(kStep) * (static_cast<float>(below) + share);
  }
};
static_assert(CurvePoints::kLowest + CurvePoints::kStep * (CurvePoints::kCount - 1) ==
              -CurvePoints::kLowest);

class ThresholdCurve {
 public:
  explicit ThresholdCurve(double alpha);

  // g for `log_mass` = ln(n sigma^b).
  float At(float log_mass) const;

  float exponent() const { return exponent_; }  // b
  float Load(int i) const { return log_mass_[static_cast<std::size_t>(i)]; }

 private:
  float exponent_;
  std::vector<float> log_mass_;
};

// The distances of pilots' thresholds from the curve, in units of sigma.
struct PilotFit {
  double samples = 0.0, sum = 0.0, squares = 0.0;

  TSALLIS_HOST_DEVICE void Add(double x) {
    samples += 1.0;
    sum += x;
    squares += x * x;
  }
  TSALLIS_HOST_DEVICE bool usable() const { return samples >= 16.0; }
  // The mean, and the standard deviation with a little more, for heads whose pilots are all alike.
  TSALLIS_HOST_DEVICE float shift() const { return static_cast<float>(sum / samples); }
  TSALLIS_HOST_DEVICE float spread() const {
    const double mean = sum / samples, variance = squares / samples - mean * mean;
    return static_cast<float>(std::sqrt(variance > 0.0 ? variance : 0.0) + 0.01);
  }
};

// ln x within 1e-4, for normal x > 0: a guess deserves no more, and std::log was a twelfth of the
// work on short rows.
inline float FastLog(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const float m = std::bit_cast<float>((bits & 0x7FFFFF) | 0x3F800000);  // [1, 2)
  // ln m = 2 artanh((m - 1) / (m + 1)).
  const float t = (m - 1.0f) / (m + 1.0f), t2 = t * t;
  const float exponent = static_cast<float>(static_cast<std::int32_t>(bits >> 23) - 127);
  return exponent * 0.69314718f + t * (2.0f + t2 * (0.66666667f + t2 * (0.4f + t2 * 0.28571429f)));
}

}  // namespace tsallis
