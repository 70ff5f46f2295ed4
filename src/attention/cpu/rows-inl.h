// Rows between memory and scratch: packed and stored, transposed, fetched ahead. Included once per
// instruction set. `kLanes` queries form a block; [..][kLanes] arrays hold one query a lane.
#if defined(TSALLIS_ATTENTION_CPU_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TSALLIS_ATTENTION_CPU_ROWS_INL_H_
#undef TSALLIS_ATTENTION_CPU_ROWS_INL_H_
#else
#define TSALLIS_ATTENTION_CPU_ROWS_INL_H_
#endif

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <bit>
#include <cstdint>
#include <cstring>

#include "attention/cpu/load-inl.h"
#include "attention/kernels.h"
#include "core/elements.h"
#include "simplex/short_rows-inl.h"
#include "simplex/vector-inl.h"

// Arrays of vectors need a known length, blocks of four lanes need four of them.
#undef TSALLIS_VECTORS_HERE
#if HWY_HAVE_SCALABLE || HWY_TARGET == HWY_SCALAR
#define TSALLIS_VECTORS_HERE 0
#else
#define TSALLIS_VECTORS_HERE 1
#endif

#if TSALLIS_VECTORS_HERE
HWY_BEFORE_NAMESPACE();
namespace tsallis {
namespace HWY_NAMESPACE {

constexpr std::size_t kLanes = hn::MaxLanes(DF());
using DI = hn::RebindToSigned<DF>;
using VI = hn::Vec<DI>;

// ---- rows in ------------------------------------------------------------------------------------

// Vectors of float32 from memory of either type.
struct LoadFloat32 {
  using Type = float;
  static HWY_INLINE VF Vector(const float* p) { return hn::LoadU(DF(), p); }
  static HWY_INLINE float Scalar(const float* p) { return *p; }
};
template <DType kType>
struct Load16 {
  using Type = std::uint16_t;
  static HWY_INLINE VF Vector(const std::uint16_t* p) { return FloatsOf(DF(), kType, p); }
  static HWY_INLINE float Scalar(const std::uint16_t* p) { return LoadElement<float>(p, kType, 0); }
};

// The first `count` rows. to: [count][padded]; columns beyond `columns` become 0. Returns the
// largest |value|; infinite or NaN if any is.
template <class Source>
HWY_INLINE float PackRowsOf(const HeadRows& rows, std::size_t count, std::size_t columns,
                            std::size_t padded, float* HWY_RESTRICT to) {
  const DF d;
  const DI di;
  // Patterns of |x| compare as numbers do, with NaN above infinity.
  const VI magnitude = hn::Set(di, 0x7FFFFFFF);
  VI largest = hn::Zero(di);
  for (std::size_t row = 0; row < count; ++row, to += padded) {
    const auto* x =
        static_cast<const typename Source::Type*>(rows.At(static_cast<std::int64_t>(row)));
    std::size_t column = 0;
    if (rows.step == 1) {
      for (; column + kLanes <= columns; column += kLanes) {
        const VF value = Source::Vector(x + column);
        largest = hn::Max(largest, hn::And(hn::BitCast(di, value), magnitude));
        hn::Store(value, d, to + column);
      }
    }
    if (column == padded) continue;
    const std::size_t rest = column;
    for (; column < columns; ++column) {
      to[column] = Source::Scalar(x + static_cast<std::int64_t>(column) * rows.step);
    }
    for (; column < padded; ++column) to[column] = 0.0f;
    for (column = rest; column < padded; column += kLanes) {
      const VF value = hn::Load(d, to + column);
      largest = hn::Max(largest, hn::And(hn::BitCast(di, value), magnitude));
    }
  }
  return std::bit_cast<float>(hn::GetLane(hn::MaxOfLanes(di, largest)));
}

inline HWY_NOINLINE float PackRows(const HeadRows& rows, std::size_t count, std::size_t columns,
                                   std::size_t padded, float* to) {
  return ForDType(rows.dtype, [&](auto type) HWY_ATTR {
    using Source =
        std::conditional_t<type.value == DType::kFloat32, LoadFloat32, Load16<type.value>>;
    return PackRowsOf<Source>(rows, count, columns, padded, to);
  });
}

// Asks for `count` rows to come to the second-level cache. The processor's own prefetchers stop at
// the ends of short sequences: reading 33 MB from the third level took 2.9 of 8.1 ms (n = 64, d =
// 32).
HWY_INLINE void PrefetchRows(const HeadRows& rows, std::int64_t count, std::size_t columns) {
  auto bytes = static_cast<std::int64_t>(columns * SizeOf(rows.dtype));
  if (rows.step != 1 || count <= 0) return;
  if (rows.row_bytes == bytes && rows.Adjacent(0, count)) {
    bytes *= count;
    count = 1;
  }
  for (std::int64_t row = 0; row < count; ++row) PrefetchFar(rows.At(row), bytes);
}

// The 128-bit blocks at p, p + 4 stride, p + 8 stride ... side by side.
template <class D>
HWY_INLINE hn::Vec<D> LoadBlocks(D d, const float* p, std::size_t stride) {
  if constexpr (hn::MaxLanes(d) <= 4) {
    return hn::LoadU(d, p);
  } else {
    const hn::Half<D> dh;
    return hn::Combine(d, LoadBlocks(dh, p + hn::MaxLanes(d) / 2 * stride, stride),
                       LoadBlocks(dh, p, stride));
  }
}

// to[x][lane] = factor[lane] rows[lane][x]. rows: [kLanes][stride]; columns up to a multiple of 4.
HWY_INLINE void TransposeRows(const float* HWY_RESTRICT rows, std::size_t stride,
                              std::size_t columns, VF factor, float* HWY_RESTRICT to) {
  const DF d;
  for (std::size_t x = 0; x < columns; x += 4) {
    VF v0 = LoadBlocks(d, rows + x, stride), v1 = LoadBlocks(d, rows + stride + x, stride);
    VF v2 = LoadBlocks(d, rows + 2 * stride + x, stride);
    VF v3 = LoadBlocks(d, rows + 3 * stride + x, stride);
    TransposeBlocks(v0, v1, v2, v3);
    hn::Store(hn::Mul(v0, factor), d, to + x * kLanes);
    hn::Store(hn::Mul(v1, factor), d, to + (x + 1) * kLanes);
    hn::Store(hn::Mul(v2, factor), d, to + (x + 2) * kLanes);
    hn::Store(hn::Mul(v3, factor), d, to + (x + 3) * kLanes);
  }
}

// ---- rows out -----------------------------------------------------------------------------------

struct StoreFloat32 {
  using Type = float;
  template <bool kStream>
  static HWY_INLINE void Vector(VF v, float* p) {
    if constexpr (kStream) {
      hn::Stream(v, DF(), p);
    } else {
      hn::StoreU(v, DF(), p);
    }
  }
  static HWY_INLINE void Scalar(float v, float* p) { *p = v; }
};
template <DType kType>
struct Store16 {
  using Type = std::uint16_t;
  template <bool kStream>
  static HWY_INLINE void Vector(VF v, std::uint16_t* p) {
    const hn::Rebind<std::uint16_t, DF> dh;
    if constexpr (kStream) {
      hn::Stream(Rounded16(DF(), kType, v), dh, p);
    } else {
      hn::StoreU(Rounded16(DF(), kType, v), dh, p);
    }
  }
  static HWY_INLINE void Scalar(float v, std::uint16_t* p) { StoreElement(p, kType, 0, v); }
};

template <class Target, bool kStream>
HWY_INLINE void StoreRowsOf(const float* HWY_RESTRICT from, std::size_t padded,
                            const float* HWY_RESTRICT factors, std::size_t count,
                            std::size_t columns, typename Target::Type* to, std::int64_t row_stride,
                            std::int64_t step) {
  const DF d;
  for (std::size_t row = 0; row < count; ++row, from += padded) {
    typename Target::Type* y = to + static_cast<std::int64_t>(row) * row_stride;
    const float factor = factors != nullptr ? factors[row] : 1.0f;
    std::size_t column = 0;
    if (step == 1) {
      for (; column + kLanes <= columns; column += kLanes) {
        Target::template Vector<kStream>(hn::Mul(hn::Load(d, from + column), hn::Set(d, factor)),
                                         y + column);
      }
    }
    for (; column < columns; ++column) {
      Target::Scalar(from[column] * factor, y + static_cast<std::int64_t>(column) * step);
    }
  }
}

// Stores factors[i] from[i] as row `row` + i of (b, h). from: [count][padded]; factors: [count], or
// null for 1. `stream`: past the caches, where the memory's alignment allows.
inline HWY_NOINLINE void StoreRows(const float* from, std::size_t padded, const float* factors,
                                   std::size_t count, std::size_t columns,
                                   const MutableArray4& array, std::int64_t b, std::int64_t h,
                                   std::int64_t row, bool stream) {
  const std::int64_t start = Offset(array.strides, b, h, row);
  const std::int64_t row_stride = array.strides[2], step = array.strides[3];
  ForDType(array.dtype, [&](auto type) HWY_ATTR {
    using Target =
        std::conditional_t<type.value == DType::kFloat32, StoreFloat32, Store16<type.value>>;
    auto* to = static_cast<typename Target::Type*>(array.data) + start;
    constexpr std::size_t kBytes = kLanes * sizeof(*to);
    const auto stride_bytes = static_cast<std::size_t>(row_stride) * sizeof(*to);
    if (stream && kBytes >= 16 && reinterpret_cast<std::uintptr_t>(to) % kBytes == 0 &&
        stride_bytes % kBytes == 0) {
      StoreRowsOf<Target, true>(from, padded, factors, count, columns, to, row_stride, step);
    } else {
      StoreRowsOf<Target, false>(from, padded, factors, count, columns, to, row_stride, step);
    }
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace tsallis
HWY_AFTER_NAMESPACE();
#endif  // TSALLIS_VECTORS_HERE

#endif  // per-target include guard
