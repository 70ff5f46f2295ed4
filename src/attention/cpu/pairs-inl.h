// bfloat16 blocks for tiles: packing rows, pairs and transposed pairs. Included once per
// instruction set; of use where vectors have 16 lanes.
#if defined(TSALLIS_ATTENTION_CPU_PAIRS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TSALLIS_ATTENTION_CPU_PAIRS_INL_H_
#undef TSALLIS_ATTENTION_CPU_PAIRS_INL_H_
#else
#define TSALLIS_ATTENTION_CPU_PAIRS_INL_H_
#endif

#include <algorithm>
#include <cstdint>

#include "attention/cpu/rows-inl.h"

#if TSALLIS_VECTORS_HERE
HWY_BEFORE_NAMESPACE();
namespace tsallis {
namespace HWY_NAMESPACE {

// Tiles need vectors of 16 floats beside them.
constexpr bool kWithTiles = HWY_TARGET <= HWY_AVX3 && kLanes == 16;

// Packs the first `count` rows as PackRows does, without conversion. to: [count][padded], padded a
// multiple of 32. Returns the largest |value|.
inline HWY_NOINLINE float PackHalves(const HeadRows& rows, std::size_t count, std::size_t columns,
                                     std::size_t padded, std::uint16_t* HWY_RESTRICT to) {
  const hn::ScalableTag<std::uint16_t> dh;
  const std::size_t lanes = hn::Lanes(dh);
  const auto magnitude = hn::Set(dh, 0x7FFF);
  auto largest = hn::Zero(dh);
  for (std::size_t i = 0; i < count; ++i, to += padded) {
    const auto* from = static_cast<const std::uint16_t*>(rows.At(static_cast<std::int64_t>(i)));
    if (rows.step == 1 && columns == padded) {
      for (std::size_t x = 0; x < padded; x += lanes) {
        const auto value = hn::LoadU(dh, from + x);
        largest = hn::Max(largest, hn::And(value, magnitude));
        hn::StoreU(value, dh, to + x);
      }
      continue;
    }
    for (std::size_t x = 0; x < columns; ++x) {
      to[x] = from[static_cast<std::int64_t>(x) * rows.step];
    }
    std::fill(to + columns, to + padded, std::uint16_t{0});
    for (std::size_t x = 0; x < padded; x += lanes) {
      largest = hn::Max(largest, hn::And(hn::LoadU(dh, to + x), magnitude));
    }
  }
  HWY_ALIGN std::uint16_t all[hn::MaxLanes(dh)];
  hn::Store(largest, dh, all);
  return FloatFromBFloat16(*std::max_element(all, all + lanes));
}

// to[j][x] = the pair rows[2 j][x], rows[2 j + 1][x]. rows: [count][stride]; to: [count /
// 2][width].
HWY_INLINE void PairRows(const std::uint16_t* HWY_RESTRICT rows, std::size_t stride,
                         std::size_t count, std::size_t width, std::uint32_t* HWY_RESTRICT to) {
  const hn::RebindToUnsigned<DF> du;
  const hn::Rebind<std::uint16_t, DF> dh;
  for (std::size_t j = 0; j < count; j += 2, rows += 2 * stride, to += width) {
    for (std::size_t x = 0; x < width; x += kLanes) {
      const auto first = hn::PromoteTo(du, hn::LoadU(dh, rows + x));
      const auto second = hn::PromoteTo(du, hn::LoadU(dh, rows + stride + x));
      hn::StoreU(hn::Or(first, hn::ShiftLeft<16>(second)), du, to + x);
    }
  }
}

// to[x][lane] = from[lane][x], 32 bits each. from: [kLanes][from_stride]; to: [columns][to_stride],
// columns a multiple of 4.
HWY_INLINE void TransposePairs(const std::uint32_t* from, std::size_t from_stride,
                               std::size_t columns, std::uint32_t* to, std::size_t to_stride) {
  const DF d;
  // Only moved, never computed with.
  const float* rows = reinterpret_cast<const float*>(from);
  float* out = reinterpret_cast<float*>(to);
  for (std::size_t x = 0; x < columns; x += 4) {
    const float* at = rows + x;
    VF v0 = LoadBlocks(d, at, from_stride), v1 = LoadBlocks(d, at + from_stride, from_stride);
    VF v2 = LoadBlocks(d, at + 2 * from_stride, from_stride);
    VF v3 = LoadBlocks(d, at + 3 * from_stride, from_stride);
    TransposeBlocks(v0, v1, v2, v3);
    hn::StoreU(v0, d, out + x * to_stride);
    hn::StoreU(v1, d, out + (x + 1) * to_stride);
    hn::StoreU(v2, d, out + (x + 2) * to_stride);
    hn::StoreU(v3, d, out + (x + 3) * to_stride);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tsallis
HWY_AFTER_NAMESPACE();
#endif  // TSALLIS_VECTORS_HERE

#endif  // per-target include guard
