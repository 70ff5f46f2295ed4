// Describes a map to the drivers (reference.cc, rows.cc), and declares the list of maps.
// docs/change/adding-a-map.md walks through it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "tsallis/rows.h"

namespace tsallis {

// Statistics of one row, as RowStats reports them.
struct RowResult {
  double tau = 0.0;
  std::int64_t support_size = 0;
  double entropy = 0.0;
};

// The double-precision definition of a map. The drivers have already divided by the temperature,
// subtracted the row's maximum and dropped every entry of -inf: `depth[j] = max - s_j` is finite,
// >= 0, with at least one 0, and entries keep their order. `offset` is the maximum that was taken
// away: maps that commute with adding a constant to a row need it for tau only.
struct ReferenceMap {
  RowMap map;
  const char* name;
  // Throws InvalidArgument if a parameter of this map is out of range; null: nothing to check.
  void (*check)(const RowSpec& spec);
  // depth, p: [n], n >= 1. Returns tau; the driver counts the support and sums the entropy.
  double (*forward)(const RowSpec& spec, const double* depth, double offset, std::int64_t n,
                    double* p);
  // p, dp, ds: [n]; ds may be dp. dp is 0 wherever p is 0. The gradient in the tempered scores.
  void (*backward)(const RowSpec& spec, const double* depth, double offset, const double* p,
                   const double* dp, std::int64_t n, double* ds);
  // sum_j dp_j (d p_j / d alpha); null: the map has no alpha to learn.
  double (*d_alpha)(const RowSpec& spec, const double* p, const double* dp, std::int64_t n);
  // H(p) of the map's Fenchel-Young loss; null: no loss.
  double (*generator)(const RowSpec& spec, const double* p, std::int64_t n);
  // Whether a gradient needs `depth`, because p alone does not determine it.
  bool backward_needs_scores;
  // Whether ds may differ from 0 where p is 0.
  bool gradient_off_support = false;
  bool sums_to_one = true;
  bool in_attention = false;
  // Whether an entry more, whose weight is dropped, makes sense (AttentionTerms::sink).
  bool takes_sink = false;
};

// Which alpha entmax takes, and how an error says it.
inline bool IsEntmaxAlpha(double alpha) { return std::isfinite(alpha) && alpha > 0.0; }
inline constexpr const char* kEntmaxAlphaRange = "a finite number > 0";

// How many of n finite scores kTopKSoftmax keeps if none tie.
inline std::int64_t KeptOf(const TopK& top_k, std::int64_t n) {
  const double share = std::floor(top_k.fraction * static_cast<double>(n));
  return std::min(n, std::max(top_k.k, static_cast<std::int64_t>(share)));
}

// b of kSigmoid for a row of n finite scores.
double SigmoidBias(const RowSpec& spec, std::int64_t n);

// beta(H) of adaptive temperature and, unless null, its derivative (0 where beta is clamped to 1).
double BetaOfEntropy(const AdaptiveTemperature& adaptive, double entropy, double* derivative);

extern const ReferenceMap kSoftmaxReference;
extern const ReferenceMap kEntmaxReference;
extern const ReferenceMap kNormmaxReference;
extern const ReferenceMap kBudgetReference;
extern const ReferenceMap kAdaptiveTemperatureReference;
extern const ReferenceMap kTopKSoftmaxReference;
extern const ReferenceMap kSigmoidReference;
extern const ReferenceMap kSoftpickReference;
extern const ReferenceMap kStickBreakingReference;

// The one list. Throws InvalidArgument for a value that is no map.
const ReferenceMap& FindMap(RowMap map);

}  // namespace tsallis
