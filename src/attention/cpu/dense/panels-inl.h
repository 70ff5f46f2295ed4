// Rows of the caller's arrays as floats, and panels of keys and values. Included once per
// instruction set; the plain loops vectorize.
#if defined(TSALLIS_ATTENTION_CPU_DENSE_PANELS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TSALLIS_ATTENTION_CPU_DENSE_PANELS_INL_H_
#undef TSALLIS_ATTENTION_CPU_DENSE_PANELS_INL_H_
#else
#define TSALLIS_ATTENTION_CPU_DENSE_PANELS_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>

#include "attention/cpu/dense/dense.h"
#include "attention/cpu/load-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tsallis {
namespace HWY_NAMESPACE {

HWY_INLINE bool AllFinite(const float* HWY_RESTRICT values, std::int64_t n) {
  std::uint32_t bad = 0;
  for (std::int64_t x = 0; x < n; ++x) {
    const auto bits = std::bit_cast<std::uint32_t>(values[x]);
    bad |= (bits & 0x7F800000u) == 0x7F800000u ? 1u : 0u;
  }
  return bad == 0;
}

// to[x * to_pitch + j] = from[j * from_pitch + x] for j < 64, x < columns.
HWY_INLINE void Transpose(const float* HWY_RESTRICT from, std::int64_t from_pitch,
                          std::int64_t columns, float* HWY_RESTRICT to) {
  constexpr std::int64_t kTo = dense::kPanel;
  std::int64_t x = 0;
#if HWY_TARGET != HWY_SCALAR && !HWY_HAVE_SCALABLE
  const hn::FixedTag<float, 4> d;
  const hn::Repartition<std::uint64_t, decltype(d)> d2;
  for (; x + 4 <= columns; x += 4) {
    for (std::int64_t j = 0; j < dense::kPanel; j += 4) {
      const float* p = from + j * from_pitch + x;
      const auto v0 = hn::LoadU(d, p), v1 = hn::LoadU(d, p + from_pitch);
      const auto v2 = hn::LoadU(d, p + 2 * from_pitch), v3 = hn::LoadU(d, p + 3 * from_pitch);
      const auto low01 = hn::BitCast(d2, hn::InterleaveLower(d, v0, v1));
      const auto low23 = hn::BitCast(d2, hn::InterleaveLower(d, v2, v3));
      const auto high01 = hn::BitCast(d2, hn::InterleaveUpper(d, v0, v1));
      const auto high23 = hn::BitCast(d2, hn::InterleaveUpper(d, v2, v3));
      float* q = to + x * kTo + j;
      hn::StoreU(hn::BitCast(d, hn::InterleaveLower(d2, low01, low23)), d, q);
      hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(d2, low01, low23)), d, q + kTo);
      hn::StoreU(hn::BitCast(d, hn::InterleaveLower(d2, high01, high23)), d, q + 2 * kTo);
      hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(d2, high01, high23)), d, q + 3 * kTo);
    }
  }
#endif
  for (; x < columns; ++x) {
    for (std::int64_t j = 0; j < kTo; ++j) to[x * kTo + j] = from[j * from_pitch + x];
  }
}

struct PanelView {
  const float* data;
  std::ptrdiff_t pitch;
  std::int64_t rows;  // keys of the sequence in it, <= 64
  bool finite;        // not known of transposed panels
};

// Panel `p` of the cache's head. line: [64][Padded(columns)] to work in.
HWY_INLINE PanelView ViewPanel(dense::PanelCache& cache, std::int64_t p, float* line) {
  const std::int64_t begin = p * dense::kPanel;
  const std::int64_t rows = std::min(dense::kPanel, cache.keys - begin);
  const std::int64_t slot = p % cache.slots, columns = cache.columns;
  float* data = cache.memory.get() + slot * cache.panel_floats;
  const float* plain = static_cast<const float*>(cache.source.At(begin));
  if (cache.held[slot] != p) {
    cache.held[slot] = static_cast<std::int32_t>(p);
    bool finite = true;
    if (cache.in_place) {
      finite = AllFinite(plain, rows * columns);
    } else if (cache.transposed) {
      const bool direct = cache.source.dtype == DType::kFloat32 && cache.source.step == 1 &&
                          rows == dense::kPanel && cache.source.Adjacent(begin, rows);
      const std::int64_t pitch = Padded(columns);
      for (std::int64_t j = 0; !direct && j < rows; ++j) {
        LoadFloats(cache.source, begin + j, columns, line + j * pitch);
      }
      if (rows < dense::kPanel) std::fill(line + rows * pitch, line + dense::kPanel * pitch, 0.0f);
      Transpose(direct ? plain : line, direct ? cache.source.row_bytes / 4 : pitch, columns, data);
    } else {
      for (std::int64_t j = 0; j < rows; ++j) {
        float* row = data + j * cache.pitch;
        LoadFloats(cache.source, begin + j, columns, row);
        std::fill(row + columns, row + cache.pitch, 0.0f);
        finite = finite && AllFinite(row, columns);
      }
    }
    cache.finite[slot] = finite;
  }
  return {cache.in_place ? plain : data, cache.pitch, rows, cache.finite[slot] != 0};
}

}  // namespace HWY_NAMESPACE
}  // namespace tsallis
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
