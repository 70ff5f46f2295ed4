// The vector kernels behind RowsForward and RowsBackward: float32 arithmetic on float32, bfloat16
// and float16 rows, compiled for every instruction set and chosen once a call. Arguments are
// checked by the caller.
#pragma once

#include <cstdint>

#include "tsallis/rows.h"

namespace tsallis {

struct ForwardCall {
  const RowMapParams* params;
  ConstRows scores;
  MutableRows probabilities;
  RowStats stats;
};

struct BackwardCall {
  const RowMapParams* params;
  ConstRows scores, probabilities, d_probabilities;
  MutableRows d_scores;
  double* d_alpha;  // [rows] or null
};

void FastForward(const Context& context, const ForwardCall& call);
void FastBackward(const Context& context, const BackwardCall& call);

// Highway's name of the instruction set that the two run on now; tests check that it changes.
const char* FastTarget();

// Rows a thread takes at least, so that a hand-off costs less than the work it carries.
inline std::int64_t RowGrain(std::int64_t length) {
  return length >= 16384 ? 1 : 16384 / (length + 1);
}

}  // namespace tsallis
