// Which keys a query may see, and where both stand: the arithmetic of AttentionRanges, Alignment
// and AttentionMask, in one place for every kernel.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "core/host_device.h"
#include "tsallis/attention.h"

namespace tsallis {

// Half-open interval of rows along q's or k's axis.
struct Span {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  TSALLIS_HOST_DEVICE std::int64_t size() const { return end > begin ? end - begin : 0; }
};

// One sequence of the batch. Rows are indices along the axes of q and k; positions count from the
// sequence's first key.
struct Sequence {
  std::int64_t batch = 0;        // its number
  std::int64_t array_batch = 0;  // its index on the arrays' batch axis: 0 if packed
  Span q, k;
  std::int64_t shift =
      0;  // a query row's position minus a key row's: i - j = row_q + shift - row_k
  std::int64_t nearest = 0;  // least i - j that a causal mask admits

  static Sequence Of(const AttentionParams& params, std::int64_t b) {
    const Span q = {0, params.q_len}, k = {0, params.k_len};
    return Of(params.ranges, params.mask, params.map, q, k, b);
  }
  // q, k: all rows of the arrays.
  static TSALLIS_HOST_DEVICE Sequence Of(const AttentionRanges& ranges, const AttentionMask& mask,
                                         RowMap map, Span q, Span k, std::int64_t b) {
    if (ranges.q_begin != nullptr) q.begin = ranges.q_begin[b];
    if (ranges.q_end != nullptr) q.end = ranges.q_end[b];
    if (ranges.k_begin != nullptr) k.begin = ranges.k_begin[b];
    if (ranges.k_end != nullptr) k.end = ranges.k_end[b];
    Sequence sequence;
    sequence.batch = b;
    sequence.array_batch = ranges.packed ? 0 : b;
    sequence.q = q;
    sequence.k = k;
    sequence.nearest = map == RowMap::kStickBreaking ? 1 : 0;
    sequence.Align(mask);
    return sequence;
  }

  // Sets the shift, which follows from both spans: again if one of them changes.
  TSALLIS_HOST_DEVICE void Align(const AttentionMask& mask) {
    shift = mask.alignment == Alignment::kEnd ? k.end - q.end : k.begin - q.begin;
  }

  // i - j, for rows of the arrays.
  TSALLIS_HOST_DEVICE std::int64_t Distance(std::int64_t q_row, std::int64_t k_row) const {
    return q_row + shift - k_row;
  }

  // Keys that the causal rule and the window leave to a query; masks take more away.
  TSALLIS_HOST_DEVICE Span VisibleKeys(const AttentionMask& mask, std::int64_t q_row) const {
    const std::int64_t here = q_row + shift;  // the key row of distance 0
    Span span = k;
    if (mask.causal && span.end > here + 1 - nearest) span.end = here + 1 - nearest;
    // Compared before they are added: a window may be as large as a number can be.
    if (mask.right >= 0 && span.end - 1 - here > mask.right) span.end = here + mask.right + 1;
    if (mask.left >= 0 && here - span.begin > mask.left) span.begin = here - mask.left;
    if (span.end < span.begin) span.end = span.begin;
    return span;
  }
};

// Keys of the longest sequence.
inline std::int64_t MostKeys(const AttentionParams& params) {
  std::int64_t most = 0;
  for (std::int64_t b = 0; b < params.batch; ++b) {
    most = std::max(most, Sequence::Of(params, b).k.size());
  }
  return most;
}

// Whether the boolean mask or the block mask hides key row k_row from query row q_row.
inline bool IsMasked(const AttentionMask& mask, std::int64_t b, std::int64_t h, std::int64_t q_row,
                     std::int64_t k_row) {
  if (mask.visible != nullptr) {
    const std::int64_t* s = mask.visible_strides;
    if (mask.visible[b * s[0] + h * s[1] + q_row * s[2] + k_row * s[3]] == 0) return true;
  }
  if (mask.blocks != nullptr) {
    const std::int64_t* s = mask.block_strides;
    if (mask.blocks[b * s[0] + h * s[1] + q_row / mask.block_q * s[2] +
                    k_row / mask.block_k * s[3]] == 0) {
      return true;
    }
  }
  return false;
}

// Element offset of (b, h, row, column).
inline TSALLIS_HOST_DEVICE std::int64_t Offset(const std::int64_t (&strides)[4], std::int64_t b,
                                               std::int64_t h, std::int64_t row,
                                               std::int64_t column = 0) {
  return b * strides[0] + h * strides[1] + row * strides[2] + column * strides[3];
}

// Rows of one head of an array. Kernels read rows through this alone, and row `i` through At(i)
// alone: where rows lie is known here.
struct HeadRows {
  const std::byte* data = nullptr;  // row 0
  DType dtype = DType::kFloat32;
  std::int64_t row_bytes = 0;  // from a row to the next
  std::int64_t step = 1;       // elements from a column to the next
  // With `pages`: rows lie in pages of 2^page_shift rows, and row i is row first + i of all pages
  // together. A page's first row lies page_offset bytes behind the page's address.
  static constexpr int kPageShift = 6;
  static constexpr std::int64_t kPage = std::int64_t{1} << kPageShift;  // of our own cache
  const std::byte* const* pages = nullptr;
  std::int64_t page_offset = 0;
  int page_shift = kPageShift;
  std::int64_t first = 0;  // the place of row 0 in the pages

  // Those of (b, h), counted from row `first` and column `column` of the array.
  static HeadRows Of(const ConstArray4& array, std::int64_t b, std::int64_t h,
                     std::int64_t first = 0, std::int64_t column = 0) {
    const auto size = static_cast<std::int64_t>(SizeOf(array.dtype));
    return {static_cast<const std::byte*>(array.data) +
                Offset(array.strides, b, h, first, column) * size,
            array.dtype,
            array.strides[2] * size,
            array.strides[3],
            nullptr,
            0};
  }
  static HeadRows InPages(const std::byte* const* pages, std::int64_t page_offset, DType dtype,
                          std::int64_t row_bytes, int page_shift, std::int64_t step = 1,
                          std::int64_t first = 0) {
    return {nullptr, dtype, row_bytes, step, pages, page_offset, page_shift, first};
  }
  const void* At(std::int64_t row) const {
    if (pages == nullptr) return data + row * row_bytes;
    row += first;
    const std::int64_t in_page = row & ((std::int64_t{1} << page_shift) - 1);
    return pages[row >> page_shift] + page_offset + in_page * row_bytes;
  }
  // The first row behind `row` that lies on another page; arrays are cut likewise.
  std::int64_t PageEnd(std::int64_t row) const {
    return ((((row + first) >> page_shift) + 1) << page_shift) - first;
  }
  // Whether rows [begin, begin + count) lie row_bytes apart.
  bool Adjacent(std::int64_t begin, std::int64_t count) const {
    return pages == nullptr || begin + count <= PageEnd(begin);
  }
};

// The place of a call's keys and values if they do not lie in its arrays.
struct KeyValuePages {
  struct RowPages {
    const std::byte* const* const* tables = nullptr;  // [batch]: the addresses of its pages
    std::int64_t row_bytes = 0;                       // from a row of a page to the next
    std::int64_t offset = 0, head = 0;  // bytes to key head 0 in a page, and from one to the next
    std::int64_t step = 1;              // elements from a column to the next

    HeadRows Of(std::int64_t b, std::int64_t kv, DType dtype, int page_shift,
                std::int64_t first) const {
      return HeadRows::InPages(tables[b], offset + kv * head, dtype, row_bytes, page_shift, step,
                               first);
    }
  };
  int page_shift = HeadRows::kPageShift;
  RowPages keys, values;
};

// The keys and values of a head, counted from row `first`. Sequences that are packed behind each
// other in one array still have tables of pages of their own.
inline HeadRows KeyRows(const AttentionParams& params, const Sequence& sequence, std::int64_t kv,
                        std::int64_t first = 0) {
  if (params.pages == nullptr) return HeadRows::Of(params.k, sequence.array_batch, kv, first);
  return params.pages->keys.Of(sequence.batch, kv, params.q.dtype, params.pages->page_shift, first);
}
inline HeadRows ValueRows(const AttentionParams& params, const Sequence& sequence, std::int64_t kv,
                          std::int64_t first = 0) {
  if (params.pages == nullptr) return HeadRows::Of(params.v, sequence.array_batch, kv, first);
  return params.pages->values.Of(sequence.batch, kv, params.q.dtype, params.pages->page_shift,
                                 first);
}

// Index of a query row in the statistics of AttentionOutputs.
inline std::int64_t RowIndex(const AttentionParams& params, const Sequence& sequence,
                             std::int64_t h, std::int64_t q_row) {
  return (sequence.array_batch * params.heads + h) * params.q_len + q_row;
}

// Length of the batch axis of arrays and statistics: at most 1 if packed.
inline std::int64_t ArrayBatch(const AttentionParams& params) {
  return params.ranges.packed ? std::min<std::int64_t>(params.batch, 1) : params.batch;
}

inline std::int64_t KvHead(const AttentionParams& params, std::int64_t h) {
  return h / (params.heads / params.kv_heads);
}

inline double ScaleOf(const AttentionParams& params) {
  return params.terms.scale != 0.0 ? params.terms.scale
                                   : 1.0 / std::sqrt(static_cast<double>(params.head_dim));
}

inline double AlphaOf(const AttentionParams& params, std::int64_t h) {
  return params.alpha_per_head != nullptr ? params.alpha_per_head[h] : params.alpha;
}

// Alphas whose thresholds are solved for in float32: near 1 and below it a row keeps every key, and
// above 2 a threshold needs more digits.
inline constexpr double kLeastFloatAlpha = 1.1, kMostFloatAlpha = 2.0;

}  // namespace tsallis
