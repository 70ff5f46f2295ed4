// Memory that a thread of the fast path keeps from row to row.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/memory.h"
#include "simplex/reference.h"

namespace tsallis {

// Rows up to here are solved in place: listing candidates costs more than it saves.
inline constexpr std::size_t kShortRow = 384;
// Rows that one chain of Newton steps may serve (short_rows-inl.h). Threads split the work at
// multiples of it, so that results do not depend on their number.
constexpr std::size_t RowsAtOnce(std::size_t length) { return length <= kShortRow ? 4 : 1; }

// Scores scanned between two updates of the running maximum; 8 KB stay in the first-level cache.
inline constexpr std::size_t kCollectBlock = 2048;

// Entries of one row that can be in its support.
struct CandidateScratch {
  explicit CandidateScratch(std::size_t n)
      // A row with more candidates than a quarter is dense: lists save nothing there.
      : capacity(kCollectBlock + n / 4),
        value(new float[capacity + kSlack]),
        p(new float[capacity + kSlack]),
        index(new std::uint32_t[capacity + kSlack]) {}

  // Between two checks a list at its capacity takes a block more, and stores are whole vectors.
  static constexpr std::size_t kSlack = 2 * kCollectBlock;

  std::size_t count = 0;
  std::size_t capacity;
  std::unique_ptr<float[]> value;          // scores
  std::unique_ptr<float[]> p;              // their probabilities, once solved
  std::unique_ptr<std::uint32_t[]> index;  // their columns
};

struct RowScratch {
  explicit RowScratch(std::size_t n)
      : a(new float[RowsAtOnce(n) * n + 1]),
        b(new float[RowsAtOnce(n) * n + 1]),
        c(new float[n + 1]),
        candidates(n),
        group(n > kShortRow ? nullptr : Aligned<float>(8 * (kShortRow + 64))) {}

  // Rows gathered from strided or 16-bit memory, or on their way there.
  std::unique_ptr<float[]> a, b;
  std::unique_ptr<float[]> c;
  CandidateScratch candidates;
  hwy::AlignedFreeUniquePtr<float[]> group;  // transposed short rows
  ReferenceScratch reference;
  std::vector<double> wide_scores, wide_p, wide_dp;

  // The most that one for rows up to n holds: four floats a column, the lists, and seven arrays in
  // double, which may have doubled once too often.
  static constexpr std::size_t Bytes(std::size_t n) {
    return (3 * RowsAtOnce(n) + 1) * (n + 1) * sizeof(float) +
           (kCollectBlock + n / 4 + CandidateScratch::kSlack) * 3 * sizeof(float) +
           8 * (kShortRow + 64) * sizeof(float) + 14 * n * sizeof(double);
  }
};

}  // namespace tsallis
