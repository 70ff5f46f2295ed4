// The support's lists that a forward pass leaves for the backward pass, in memory of the caller:
// for every row of the statistics a count, and a slot of equal size for (key, weight) pairs. A row
// whose support does not fit its slot is not saved, and found again by a sweep.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "attention/cpu/saved_header.h"

namespace tsallis {

class SavedLists {
 public:
  static constexpr std::uint32_t kNotSaved = 0xFFFFFFFF;

  SavedLists() = default;  // holds nothing

  // For writing. An empty view if `bytes` do not hold a pair a row.
  static SavedLists Create(const AttentionParams& params, void* memory, std::size_t bytes) {
    const SavedLists lists(params, memory, bytes);
    if (lists.counts_ != nullptr) lists.HeaderOf(params).Write(memory);
    return lists;
  }

  // For reading: an empty view unless Create() wrote there for the same shape.
  static SavedLists Open(const AttentionParams& params, const void* memory, std::size_t bytes) {
    const SavedLists lists(params, const_cast<void*>(memory), bytes);
    return lists.counts_ != nullptr && lists.HeaderOf(params).IsAt(memory) ? lists : SavedLists();
  }

  static std::size_t Bytes(const AttentionParams& params, std::size_t slot) {
    const std::size_t rows = SavedHeader::Rows(params);
    return HeaderBytes(rows) + rows * slot * 8;
  }

  // keys (from the sequence's first), weights: [n].
  void Save(std::int64_t row, const std::uint32_t* keys, const float* weights,
            std::size_t n) const {
    if (counts_ == nullptr) return;
    if (n > slot_) return Forget(row);
    counts_[row] = static_cast<std::uint32_t>(n);
    if (n == 0) return;
    std::uint32_t* at = keys_ + static_cast<std::size_t>(row) * slot_ * 2;
    std::memcpy(at, keys, n * sizeof(*keys));
    std::memcpy(at + slot_, weights, n * sizeof(*weights));
  }
  void Forget(std::int64_t row) const {
    if (counts_ != nullptr) counts_[row] = kNotSaved;
  }

  // These lists, with rows counted from `row`.
  SavedLists From(std::int64_t row) const {
    SavedLists from = *this;
    if (counts_ == nullptr) return from;
    from.counts_ += row;
    from.keys_ += static_cast<std::size_t>(row) * slot_ * 2;
    return from;
  }

  // kNotSaved if the row has to be found again.
  std::uint32_t Count(std::int64_t row) const {
    return counts_ == nullptr ? kNotSaved : counts_[row];
  }
  const std::uint32_t* Keys(std::int64_t row) const {
    return keys_ + static_cast<std::size_t>(row) * slot_ * 2;
  }
  const float* Weights(std::int64_t row) const {
    return reinterpret_cast<const float*>(Keys(row) + slot_);
  }

 private:
  SavedLists(const AttentionParams& params, void* memory, std::size_t bytes) {
    const std::size_t rows = SavedHeader::Rows(params), header = HeaderBytes(rows);
    if (memory == nullptr || rows == 0 || bytes < header + rows * 8) return;
    slot_ = std::min<std::size_t>((bytes - header) / (rows * 8), 1 << 20);
    counts_ =
        reinterpret_cast<std::uint32_t*>(static_cast<std::byte*>(memory) + SavedHeader::kBytes);
    keys_ = reinterpret_cast<std::uint32_t*>(static_cast<std::byte*>(memory) + header);
  }

  SavedHeader HeaderOf(const AttentionParams& params) const {
    return {.mark = 0x7473616c6c697301, .rows = SavedHeader::Rows(params), .slot = slot_};
  }
  // With the counts, to a multiple of 64.
  static std::size_t HeaderBytes(std::size_t rows) {
    return SavedHeader::kBytes + (rows * 4 + 63) / 64 * 64;
  }

  std::uint32_t* counts_ = nullptr;
  std::uint32_t* keys_ = nullptr;
  std::size_t slot_ = 0;
};

}  // namespace tsallis
