// The numbers of scale-invariant scores, for programs that compute them by other means.
#pragma once

#include <algorithm>
#include <cmath>

#include "tsallis/attention.h"

namespace tsallis {

// The law of scale-invariant scores (Anson et al. 2025, eq. 16; docs/definitions.md, P7 and P8), by
// what its A and B come to: a_d^2 = 2 ln(d / length + 1) + nearest, m_d = sum - a_d^2.
struct DistanceLaw {
  double length = 0.0;   // l; 0: no such term
  double nearest = 1.0;  // a_0^2 = 2 (B / A - ln A)
  double sum = 1.0;      // a_d^2 + m_d = B / A

  static DistanceLaw Of(const AttentionTerms& terms) {
    DistanceLaw law{.length = terms.scale_invariant};
    if (terms.scale_invariant_alpha == 0.0 && terms.scale_invariant_beta == 0.0) return law;
    const double usual = std::exp(0.5);
    const double alpha = terms.scale_invariant_alpha > 0.0 ? terms.scale_invariant_alpha : usual;
    law.sum = (terms.scale_invariant_beta > 0.0 ? terms.scale_invariant_beta : usual) / alpha;
    law.nearest = std::max(0.0, 2.0 * (law.sum - std::log(alpha)));
    return law;
  }
  bool operator==(const DistanceLaw&) const = default;
};

}  // namespace tsallis
