// The outputs of softmax's rows in float32 that a forward pass leaves for the backward pass, in
// memory of the caller: there sum_j p_j dp_j = <d_out, out>, which spares two of seven products. A
// row of adaptive temperature is one of softmax where its beta is 1. What is not saved is computed
// again, with the same bits.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "attention/cpu/padding.h"
#include "attention/cpu/saved_header.h"

namespace tsallis {

class SavedValues {
 public:
  SavedValues() = default;  // holds nothing

  // For writing. An empty view if `bytes` do not hold every row.
  static SavedValues Create(const AttentionParams& params, void* memory, std::size_t bytes) {
    const SavedValues values(params, memory, bytes);
    if (values.rows_ == nullptr) return values;
    const SavedHeader header = HeaderOf(params);
    header.Write(memory);
    // No saved number is NaN.
    for (std::uint64_t row = 0; row < header.rows; ++row) {
      *values.Row(static_cast<std::int64_t>(row)) = std::numeric_limits<float>::quiet_NaN();
    }
    return values;
  }

  // For reading: an empty view unless Create() wrote there for the same shape.
  static SavedValues Open(const AttentionParams& params, const void* memory, std::size_t bytes) {
    const SavedValues values(params, const_cast<void*>(memory), bytes);
    return values.rows_ != nullptr && HeaderOf(params).IsAt(memory) ? values : SavedValues();
  }

  static std::size_t Bytes(const AttentionParams& params) {
    const SavedHeader header = HeaderOf(params);
    return SavedHeader::kBytes + header.rows * header.slot * sizeof(float);
  }

  bool any() const { return rows_ != nullptr; }
  // Whether the row was saved.
  bool Has(std::int64_t row) const { return any() && !std::isnan(*Row(row)); }
  // [Padded(value_dim)]
  float* Row(std::int64_t row) const { return rows_ + row * slot_; }

 private:
  static SavedHeader HeaderOf(const AttentionParams& params) {
    return {.mark = 0x7473616c6c697302,
            .rows = SavedHeader::Rows(params),
            .slot = static_cast<std::uint64_t>(Padded(params.value_dim))};
  }
  SavedValues(const AttentionParams& params, void* memory, std::size_t bytes) {
    if (memory == nullptr || SavedHeader::Rows(params) == 0 || bytes < Bytes(params)) return;
    rows_ = reinterpret_cast<float*>(static_cast<std::byte*>(memory) + SavedHeader::kBytes);
    slot_ = Padded(params.value_dim);
  }

  float* rows_ = nullptr;
  std::int64_t slot_ = 0;
};

}  // namespace tsallis
