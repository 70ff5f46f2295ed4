// Positions of the decoder as numbers: RoPE's tables, ALiBi's slopes, sinusoids
// (docs/definitions.md, P2-P6).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "lab/nn/decoder_config.h"

namespace tsallis::lab {

// Angle per position of every pair of a head, [head_dim / 2] (Su et al. 2024): base^(-2k /
// head_dim), changed as positions.scaling says for sequences of `length`:
//   linear  divided by factor (Chen et al. 2023)
//   ntk     base times (length / train_length)^(head_dim / (head_dim - 2)) beyond train_length
//   yarn    divided by factor where a pair turns fewer than beta_slow times within train_length,
//           unchanged above beta_fast, blended linearly between (Peng et al. 2023, section 3.2)
//   llama3  the same with its own two bounds (Grattafiori et al. 2024)
// (a std::bad_optional_access if the last three lack a train_length, which CheckDecoder asks for)
// and 0 for the slowest pairs if kept < 1 (Barbero et al. 2024).
std::vector<double> RopeFrequencies(const Positions& positions, std::int64_t head_dim,
                                    std::int64_t length);

// The factor of cosines and sines.
double RopeAttentionFactor(const RopeScaling& scaling);

struct RopeTable {
  at::Tensor cosine, sine;  // [length, head_dim / 2] float32
};
RopeTable MakeRopeTable(const Positions& positions, std::int64_t head_dim, std::int64_t length);

// Slopes of the heads that have one, the first SlopedHeads(positions, heads).
std::vector<double> AlibiSlopes(const Positions& positions, std::int64_t heads);

// [length, width] float32: sines in even columns, cosines in odd ones (Vaswani et al. 2017).
at::Tensor Sinusoids(std::int64_t length, std::int64_t width, double base);

}  // namespace tsallis::lab
