// The tokens of a batch that count, one row each, sequence by sequence.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "lab/nn/query_scale.h"

namespace tsallis::lab {

struct SequenceRows {
  std::int64_t rows = 0;
  std::int64_t length = 0;               // of the longest sequence
  std::int64_t reach = 0;                // above all positions
  bool packed = false;                   // sequences differ in length
  std::vector<std::int64_t> begin, end;  // [sequences], rows of each
  at::Tensor begins;                     // [sequences + 1] where the model is; undefined: padded
  std::vector<std::int64_t> last_begin;  // [sequences], from where on the last layer's are read
  std::vector<std::int32_t> position;    // [rows], within its sequence
  at::Tensor positions;                  // the same where the model is
  ScaleRows for_scales;                  // likewise
  std::int64_t block = kRowBlock;        // rows that products take at a time

  std::int64_t Sequences() const { return static_cast<std::int64_t>(begin.size()); }
};

}  // namespace tsallis::lab
