// The tokens of a batch that count, one row each, sequence by sequence.
#pragma once

#include <cstdint>
#include <vector>

#include "lab/nn/query_scale.h"

namespace tsallis::lab {

struct SequenceRows {
  std::int64_t rows = 0;
  std::int64_t length = 0;               // of the longest sequence
  bool packed = false;                   // sequences differ in length
  std::vector<std::int64_t> begin, end;  // [sequences], rows of each
  std::vector<std::int64_t> last_begin;  // [sequences], from where on the last layer's are read
  std::vector<std::int32_t> position;    // [rows], within its sequence
  std::vector<float> log_n, log_log_n;   // [rows]: ln(position + 2) and its logarithm

  std::int64_t Sequences() const { return static_cast<std::int64_t>(begin.size()); }
  ScaleRows ForScales() const { return {rows, position.data(), log_n.data(), log_log_n.data()}; }
};

}  // namespace tsallis::lab
