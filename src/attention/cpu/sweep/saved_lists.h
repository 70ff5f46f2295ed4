// The support's lists that a forward pass leaves for the backward pass, in memory of the caller:
// for every row of the statistics a count, and where its (key, weight) pairs begin in a pool that
// all rows share. A row that the pool has no room for is not saved, and found again by a sweep.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "attention/cpu/saved_header.h"

namespace tsallis {

class SavedLists {
 public:
  static constexpr std::uint32_t kNotSaved = 0xFFFFFFFF;

  SavedLists() = default;  // holds nothing

  // For writing, by any number of threads. An empty view if `bytes` do not hold a pair a row.
  static SavedLists Create(const AttentionParams& params, void* memory, std::size_t bytes) {
    const SavedLists lists(params, memory, bytes);
    if (lists.counts_ == nullptr) return lists;
    lists.HeaderOf(params).Write(memory);
    *lists.taken_ = 0;
    return lists;
  }

  // For reading: an empty view unless Create() wrote there for the same shape.
  static SavedLists Open(const AttentionParams& params, const void* memory, std::size_t bytes) {
    const SavedLists lists(params, const_cast<void*>(memory), bytes);
    return lists.counts_ != nullptr && lists.HeaderOf(params).IsAt(memory) ? lists : SavedLists();
  }

  // For `pairs` a row on average.
  static std::size_t Bytes(const AttentionParams& params, std::size_t pairs) {
    const std::size_t rows = SavedHeader::Rows(params);
    return HeaderBytes(rows) + rows * pairs * kPairBytes;
  }

  // keys (from the sequence's first), weights: [n].
  void Save(std::int64_t row, const std::uint32_t* keys, const float* weights,
            std::size_t n) const {
    if (counts_ == nullptr) return;
    std::uint64_t at = 0;
    if (n > 0) {
      at = std::atomic_ref(*taken_).fetch_add(n, std::memory_order_relaxed);
      if (at + n > pairs_) return Forget(row);
    }
    counts_[row] = static_cast<std::uint32_t>(n);
    starts_[row] = static_cast<std::uint32_t>(at);
    if (n == 0) return;
    std::uint32_t* to = pool_ + at * 2;
    std::memcpy(to, keys, n * sizeof(*keys));
    std::memcpy(to + n, weights, n * sizeof(*weights));
  }
  void Forget(std::int64_t row) const {
    if (counts_ != nullptr) counts_[row] = kNotSaved;
  }

  // These lists, with rows counted from `row`.
  SavedLists From(std::int64_t row) const {
    SavedLists from = *this;
    if (counts_ == nullptr) return from;
    from.counts_ += row;
    from.starts_ += row;
    return from;
  }

  // kNotSaved if the row has to be found again.
  std::uint32_t Count(std::int64_t row) const {
    return counts_ == nullptr ? kNotSaved : counts_[row];
  }
  const std::uint32_t* Keys(std::int64_t row) const {
    return pool_ + static_cast<std::size_t>(starts_[row]) * 2;
  }
  const float* Weights(std::int64_t row) const {
    return reinterpret_cast<const float*>(Keys(row) + counts_[row]);
  }

 private:
  SavedLists(const AttentionParams& params, void* memory, std::size_t bytes) {
    const std::size_t rows = SavedHeader::Rows(params), header = HeaderBytes(rows);
    if (memory == nullptr || rows == 0 || bytes < header + rows * kPairBytes) return;
    pairs_ = std::min<std::size_t>((bytes - header) / kPairBytes, 0xFFFFFFFF);
    auto* at = static_cast<std::byte*>(memory);
    taken_ = reinterpret_cast<std::uint64_t*>(at + SavedHeader::kBytes) - 1;
    counts_ = reinterpret_cast<std::uint32_t*>(at + SavedHeader::kBytes);
    starts_ = counts_ + rows;
    pool_ = reinterpret_cast<std::uint32_t*>(at + header);
  }

  SavedHeader HeaderOf(const AttentionParams& params) const {
    return {.mark = 0x7473616c6c697303, .rows = SavedHeader::Rows(params), .slot = pairs_};
  }
  // With counts and starts, to a multiple of 64.
  static std::size_t HeaderBytes(std::size_t rows) {
    return SavedHeader::kBytes + (rows * 8 + 63) / 64 * 64;
  }

  static constexpr std::size_t kPairBytes = 8;

  std::uint64_t* taken_ = nullptr;   // pairs of the pool that have a row
  std::uint32_t* counts_ = nullptr;  // [rows]
  std::uint32_t* starts_ = nullptr;  // [rows]
  std::uint32_t* pool_ = nullptr;    // [pairs_][2]: n keys, then n weights
  std::size_t pairs_ = 0;
};

}  // namespace tsallis
