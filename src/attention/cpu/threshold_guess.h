// A guess of entmax's threshold from the mean and spread of a row's scores, before any is computed.
//
// For n normal scores z ~ N(mu, sigma^2) the threshold solves n sigma^b E[(x - g)_+^b] = 1 with
// tau = mu + sigma g and b = 1 / (alpha - 1): g depends on ln(n sigma^b) alone. Real scores are not
// normal; how far a few rows, solved exactly, lie from the curve corrects it. A guess is only a
// guess: the sweep proves each row's or repeats it.
#pragma once

#include <vector>

namespace tsallis {

class ThresholdCurve {
 public:
  explicit ThresholdCurve(double alpha);

  // g for `log_mass` = ln(n sigma^b).
  double At(double log_mass) const;

  double exponent() const { return exponent_; }  // b

 private:
  double exponent_;
  std::vector<double> log_mass_;  // ascending, one for every g of the grid
};

}  // namespace tsallis
