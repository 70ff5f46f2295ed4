// Lists that the forward pass leaves for the backward pass, in the caller's memory
// (AttentionOutputs::saved): behind a header of 64 bytes keys, weights and counts. The first rows
// of the statistics have room, as many as the memory holds.
//
// A row is saved where the sweep of the backward pass is sure to find the same: the same entries
// (WriteList), or that it is a dense row. Of rows that the dense kernel solves nothing is sure. The
// order of entries differs, so ListRowsKernel sorts them. Blocks of rows that are all saved are not
// swept again.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention/cuda/call.h"

namespace tsallis::cuda {
inline namespace TSALLIS_SIDE {

// The lists of rows: counts [rows], keys and weights [rows, kList], rows as in the statistics. Keys
// count along k's axis.
struct Lists {
  int* counts = nullptr;
  std::uint32_t* keys = nullptr;
  float* weights = nullptr;
};

// In place of a count: the row has to be swept again.
inline constexpr int kNotSaved = -2;

struct SavedLists : Lists {
  static constexpr std::size_t kHeaderBytes = 64, kRowBytes = kList * sizeof(Words2) + sizeof(int);
  static constexpr std::uint32_t kMark = 0x74736c03;

  std::uint32_t* header = nullptr;  // kMark, rows of a call and of these lists, most
  std::int64_t all_rows = 0, rows = 0;
  // So many entries near the threshold have room in the backward pass's lists, in whatever order
  // they come.
  int most = 0;

  // For lists of all rows.
  static std::size_t Bytes(std::size_t rows) { return kHeaderBytes + rows * kRowBytes; }
  // room: of a lane in the sweep. A list that is full has been spread evenly over four lanes, and
  // then one of these takes two more.
  static SavedLists Of(std::size_t rows, int room, const void* memory, std::size_t bytes) {
    SavedLists saved;
    if (memory == nullptr || bytes < kHeaderBytes) return saved;
    const std::size_t fit = (bytes - kHeaderBytes) / kRowBytes;
    const std::size_t saves = fit < rows ? fit : rows;
    auto* at = static_cast<std::byte*>(const_cast<void*>(memory));
    saved.header = reinterpret_cast<std::uint32_t*>(at);
    saved.all_rows = static_cast<std::int64_t>(rows);
    saved.rows = static_cast<std::int64_t>(saves);
    saved.most = 4 * room - 6 < kList ? 4 * room - 6 : kList;
    saved.keys = reinterpret_cast<std::uint32_t*>(at + kHeaderBytes);
    saved.weights = reinterpret_cast<float*>(saved.keys + saves * kList);
    saved.counts = reinterpret_cast<int*>(saved.weights + saves * kList);
    return saved;
  }

  TSALLIS_DEVICE std::uint32_t Header(int i) const {
    const auto narrow = [](std::int64_t size) { return static_cast<std::uint32_t>(size); };
    return i == 0 ? kMark : i == 1 ? narrow(all_rows) : i == 2 ? narrow(rows) : narrow(most);
  }
  // The count that a forward pass of the same shape left of a row.
  TSALLIS_DEVICE int CountOf(std::int64_t row) const {
    if (row >= rows) return kNotSaved;
    TSALLIS_UNROLL
    for (int i = 0; i < 4; ++i) {
      if (LoadDevice(header + i) != Header(i)) return kNotSaved;
    }
    const int count = LoadDevice(counts + row);
    return count >= kDenseRow && count <= kList ? count : kNotSaved;
  }
};

// The header, and counts of 0: rows of no sequence have no other.
template <int kOnly = 0>
TSALLIS_KERNEL(kThreads)
BeginSavedKernel(const SavedLists saved) {
  const std::int64_t i = static_cast<std::int64_t>(BlockX()) * kThreads + ThreadIndex();
  if (i < 4) StoreDevice(saved.header + i, saved.Header(static_cast<int>(i)));
  if (i < saved.rows) StoreDevice(saved.counts + i, 0);
}

// Copies what is saved to the lists of the backward pass. A warp takes kRows rows.
struct LoadSavedShape {
  static constexpr int kRows = 4, kRowsOfBlock = kRows * kWarps;
};
template <int kOnly = 0>
TSALLIS_KERNEL(kThreads)
LoadSavedKernel(const SavedLists saved, const Lists lists) {
  constexpr int kRows = LoadSavedShape::kRows;
  const std::int64_t first =
      static_cast<std::int64_t>(BlockX()) * LoadSavedShape::kRowsOfBlock + WarpIndex() * kRows;
  int count[kRows];
  std::uint32_t keys[kRows][2];
  float weights[kRows][2];
  TSALLIS_UNROLL
  for (int r = 0; r < kRows; ++r) count[r] = saved.CountOf(first + r);
  TSALLIS_UNROLL
  for (int r = 0; r < kRows; ++r) {
    TSALLIS_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int i = half * kWarp + Lane();
      if (i >= count[r]) continue;
      keys[r][half] = LoadDevice(saved.keys + (first + r) * kList + i);
      weights[r][half] = LoadDevice(saved.weights + (first + r) * kList + i);
    }
  }
  TSALLIS_UNROLL
  for (int r = 0; r < kRows; ++r) {
    if (count[r] == kNotSaved) continue;
    TSALLIS_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int i = half * kWarp + Lane();
      if (i >= count[r]) continue;
      StoreDevice(lists.keys + (first + r) * kList + i, keys[r][half]);
      StoreDevice(lists.weights + (first + r) * kList + i, weights[r][half]);
    }
    if (Lane() == 0) StoreDevice(lists.counts + first + r, count[r]);
  }
}

}  // namespace TSALLIS_SIDE
}  // namespace tsallis::cuda
