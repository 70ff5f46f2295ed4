// The begin of the memory that a forward pass leaves for the backward pass (AttentionOutputs::
// saved): which kernel wrote there, and for what shape. Another kernel may run backward, as strides
// decide too and may change between the passes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "attention/geometry.h"

namespace tsallis {

struct SavedHeader {
  static constexpr std::size_t kBytes = 64;

  static std::size_t Rows(const AttentionParams& params) {
    return static_cast<std::size_t>(ArrayBatch(params) * params.heads * params.q_len);
  }
  void Write(void* memory) const { std::memcpy(memory, this, sizeof(*this)); }
  bool IsAt(const void* memory) const {
    SavedHeader found;
    std::memcpy(&found, memory, sizeof(found));
    return found.mark == mark && found.rows == rows && found.slot == slot;
  }

  std::uint64_t mark = 0;  // of the kernel
  std::uint64_t rows = 0;  // of the statistics
  std::uint64_t slot = 0;  // the size of a row's part, or of the part that rows share
};

}  // namespace tsallis
