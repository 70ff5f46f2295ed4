#include "attention/threshold_guess.h"

namespace tsallis {

ThresholdCurve::ThresholdCurve(double alpha) : exponent_(static_cast<float>(1.0 / (alpha - 1.0))) {
  for (int i = 0; i < CurvePoints::kCount; ++i) {
    log_mass_.push_back(static_cast<float>(CurvePoints::At(1.0 / (alpha - 1.0), i)));
  }
}

float ThresholdCurve::At(float log_mass) const { return CurvePoints::Find(*this, log_mass); }

}  // namespace tsallis
