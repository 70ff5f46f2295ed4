// A guess of entmax's threshold from the mean and spread of a row's scores, before any is computed.
//
// For n normal scores z ~ N(mu, sigma^2) the threshold solves n sigma^b E[(x - g)_+^b] = 1 with
// tau = mu + sigma g and b = 1 / (alpha - 1): g depends on ln(n sigma^b) alone. Real scores are not
// normal; how far a few rows, solved exactly, lie from the curve corrects it. A guess is only a
// guess: the sweep proves each row's or repeats it.
#pragma once

#include <bit>
#include <cstdint>
#include <vector>

namespace tsallis {

class ThresholdCurve {
 public:
  explicit ThresholdCurve(double alpha);

  // g for `log_mass` = ln(n sigma^b).
  float At(float log_mass) const;

  float exponent() const { return exponent_; }  // b

 private:
  float exponent_;
  std::vector<float> log_mass_;  // ascending, one for every g of the grid
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
