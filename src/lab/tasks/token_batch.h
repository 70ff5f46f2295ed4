// A batch of sequences, as tasks draw it and models read it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tsallis::lab {

inline constexpr std::int64_t kNotScored = -100;  // as in torch's cross_entropy

// Sequences, padded on the right.
struct TokenBatch {
  at::Tensor tokens;   // [batch, n] int64, in [0, vocabulary)
  at::Tensor labels;   // [batch, n] int64: the next token, or kNotScored
  at::Tensor lengths;  // [batch] int64, tokens that count, 1 ... n; undefined: n
};

}  // namespace tsallis::lab
