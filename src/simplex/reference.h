// Double-precision rows: the obvious implementation, with every edge of rows.h handled once for all
// maps. float64 runs on it, and the fast path is tested against it.
#pragma once

#include <cstdint>
#include <vector>

#include "simplex/map.h"

namespace tsallis {

// Memory that a thread keeps from row to row.
struct ReferenceScratch {
  std::vector<std::int64_t> index;  // columns of the entries kept
  std::vector<double> depth, p, dp;
};

// scores, p: [n]; p may be scores.
RowResult ReferenceForward(const RowSpec& spec, const double* scores, std::int64_t n, double* p,
                           ReferenceScratch& scratch);

// scores, p, dp, ds: [n]; ds may be any of them. d_alpha may be null.
void ReferenceBackward(const RowSpec& spec, const double* scores, const double* p, const double* dp,
                       std::int64_t n, double* ds, double* d_alpha, ReferenceScratch& scratch);

// Fenchel-Young loss of one row, p = map(scores) given. scores, p: [n], 0 <= target < n.
double ReferenceLoss(const RowSpec& spec, const double* scores, const double* p, std::int64_t n,
                     std::int64_t target);

}  // namespace tsallis
