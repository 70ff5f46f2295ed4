// Attention in double precision, one row at a time: the definition that every kernel is tested
// against, and what float64 runs on. Memory: O(k_len) a thread forward, O(k_len (head_dim +
// value_dim)) backward. Arguments are checked by the caller.
#pragma once

#include <cstdint>
#include <vector>

#include "attention/geometry.h"
#include "simplex/reference.h"
#include "tsallis/attention.h"

namespace tsallis {

// The scores of one query on the span of keys that it may see, masked ones -inf, and what its map
// makes of them. With a sink, `scores` and `p` have it at their end.
struct ReferenceRow {
  Span keys;
  double c = 1.0;  // length scaling
  double slope = 0.0;
  std::vector<double> product;  // scale <q, k_j>: [keys.size()]
  std::vector<double> scores;   // s: [keys.size()]
  std::vector<double> p;        // [keys.size()]
  double maximum = 0.0;
  RowResult result;  // of the keys; tau of all
  ReferenceScratch scratch;

  void Compute(const AttentionParams& params, const Sequence& sequence, std::int64_t h,
               std::int64_t q_row);
};

// The map's parameters for one head.
RowSpec SpecOfHead(const AttentionParams& params, std::int64_t h);

}  // namespace tsallis
