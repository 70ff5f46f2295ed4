// By how much one method is ahead of another, with the uncertainty.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "lab/report/results.h"

namespace tsallis::lab {

struct Contrast {
  double difference = 0.0;  // of the means, in points
  // Its standard error, sqrt(s1^2 / k1 + s2^2 / k2) for standard deviations s over k seeds; nothing
  // if either has one seed only.
  std::optional<double> error;
  // The p-value of the two-sided paired t-test over the seeds that both have, which read the same
  // samples. Fewer than three seeds, or equal differences, have none.
  std::optional<double> p_value;
};

// P(|T| >= |t|) of Student's distribution with `freedom` >= 1 degrees of freedom (Abramowitz and
// Stegun, 26.7.3 and 26.7.4).
double TwoSidedStudent(double t, int freedom);

// The metric of `method` at length n minus that of results.baseline; nothing if either has no row.
std::optional<Contrast> AgainstBaseline(const StudyResults& results, const std::string& method,
                                        std::int64_t n);

}  // namespace tsallis::lab
