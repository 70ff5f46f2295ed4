// Moving rows between memory and scratch, and the products of the lane kernel. Included once per
// instruction set. `kLanes` queries form a block; [..][kLanes] arrays hold one query a lane.
#if defined(TSALLIS_ATTENTION_LANES_TILES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TSALLIS_ATTENTION_LANES_TILES_INL_H_
#undef TSALLIS_ATTENTION_LANES_TILES_INL_H_
#else
#define TSALLIS_ATTENTION_LANES_TILES_INL_H_
#endif

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <bit>
#include <cstdint>
#include <cstring>

#include "attention/cpu/lanes.h"
#include "attention/cpu/load-inl.h"
#include "simplex/elements.h"
#include "simplex/short_rows-inl.h"
#include "simplex/vector-inl.h"

// Arrays of vectors need a known length, blocks of four lanes need four of them.
#undef TSALLIS_LANES_HERE
#if HWY_HAVE_SCALABLE || HWY_TARGET == HWY_SCALAR
#define TSALLIS_LANES_HERE 0
#else
#define TSALLIS_LANES_HERE 1
#endif

#if TSALLIS_LANES_HERE
HWY_BEFORE_NAMESPACE();
namespace tsallis {
namespace HWY_NAMESPACE {

constexpr std::size_t kLanes = hn::MaxLanes(DF());
using DI = hn::RebindToSigned<DF>;
using VI = hn::Vec<DI>;

// Registers allow for this many rows of a tile: 32 registers with AVX-512, 16 below.
#if HWY_TARGET <= HWY_AVX3
constexpr std::size_t kTileKeys = 16;
constexpr std::size_t kTileRows = 8;
#else
constexpr std::size_t kTileKeys = 8;
constexpr std::size_t kTileRows = 4;
#endif
static_assert(kPadding % kTileKeys == 0 && kLanes <= kMostLanes);

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

// to: [count][padded]; columns beyond `columns` become 0. from: rows `row_stride` apart, `step` between
// columns. Returns the largest |value|; infinite or NaN if any is.
template <class Source>
HWY_INLINE float PackRowsOf(const typename Source::Type* from, std::int64_t row_stride,
                            std::int64_t step, std::size_t count, std::size_t columns,
                            std::size_t padded, float* HWY_RESTRICT to) {
  const DF d;
  const DI di;
  // Patterns of |x| compare as numbers do, with NaN above infinity.
  const VI magnitude = hn::Set(di, 0x7FFFFFFF);
  VI largest = hn::Zero(di);
  for (std::size_t row = 0; row < count; ++row, to += padded) {
    const typename Source::Type* x = from + static_cast<std::int64_t>(row) * row_stride;
    std::size_t column = 0;
    if (step == 1) {
      for (; column + kLanes <= columns; column += kLanes) {
        const VF value = Source::Vector(x + column);
        largest = hn::Max(largest, hn::And(hn::BitCast(di, value), magnitude));
        hn::Store(value, d, to + column);
      }
    }
    if (column == padded) continue;
    const std::size_t rest = column;
    for (; column < columns; ++column) {
      to[column] = Source::Scalar(x + static_cast<std::int64_t>(column) * step);
    }
    for (; column < padded; ++column) to[column] = 0.0f;
    for (column = rest; column < padded; column += kLanes) {
      const VF value = hn::Load(d, to + column);
      largest = hn::Max(largest, hn::And(hn::BitCast(di, value), magnitude));
    }
  }
  return std::bit_cast<float>(hn::GetLane(hn::MaxOfLanes(di, largest)));
}

// `count` rows of (b, h) from `row` on, as above.
inline HWY_NOINLINE float PackRows(const ConstArray4& array, std::int64_t b, std::int64_t h,
                                   std::int64_t row, std::size_t count, std::size_t columns,
                                   std::size_t padded, float* to) {
  const std::int64_t start = Offset(array.strides, b, h, row);
  const std::int64_t row_stride = array.strides[2], step = array.strides[3];
  if (array.dtype == DType::kFloat32) {
    return PackRowsOf<LoadFloat32>(static_cast<const float*>(array.data) + start, row_stride, step,
                                   count, columns, padded, to);
  }
  const auto* from = static_cast<const std::uint16_t*>(array.data) + start;
  return array.dtype == DType::kBFloat16 ? PackRowsOf<Load16<DType::kBFloat16>>(
                                               from, row_stride, step, count, columns, padded, to)
                                         : PackRowsOf<Load16<DType::kFloat16>>(
                                               from, row_stride, step, count, columns, padded, to);
}

// Asks for `count` rows to come to the second-level cache. The processor's own prefetchers stop at the
// ends of short sequences: reading 33 MB from the third level took 2.9 of 8.1 ms (n = 64, d = 32).
HWY_INLINE void PrefetchRows(const ConstArray4& array, std::int64_t b, std::int64_t h,
                             std::int64_t row, std::int64_t count, std::size_t columns) {
  const auto size = static_cast<std::int64_t>(SizeOf(array.dtype));
  const std::int64_t row_stride = array.strides[2];
  std::int64_t bytes = static_cast<std::int64_t>(columns) * size;
  if (array.strides[3] != 1 || count <= 0) return;
  if (row_stride == static_cast<std::int64_t>(columns)) {
    bytes *= count;
    count = 1;
  }
  const char* at = static_cast<const char*>(array.data) + Offset(array.strides, b, h, row) * size;
  for (; count > 0; --count, at += row_stride * size) {
    for (std::int64_t x = 0; x < bytes; x += 64) __builtin_prefetch(at + x, 0, 2);
  }
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

// Rows `row` ... of (b, h) = factors[i] from[i]. from: [count][padded]; factors: [count], or null for
// 1. `stream`: past the caches, where the memory's alignment allows.
inline HWY_NOINLINE void StoreRows(const float* from, std::size_t padded, const float* factors,
                                   std::size_t count, std::size_t columns,
                                   const MutableArray4& array, std::int64_t b, std::int64_t h,
                                   std::int64_t row, bool stream) {
  const std::int64_t start = Offset(array.strides, b, h, row);
  const std::int64_t row_stride = array.strides[2], step = array.strides[3];
  const auto run = [&](auto target) HWY_ATTR {
    using Target = decltype(target);
    auto* to = static_cast<typename Target::Type*>(array.data) + start;
    constexpr std::size_t kBytes = kLanes * sizeof(*to);
    const auto stride_bytes = static_cast<std::size_t>(row_stride) * sizeof(*to);
    if (stream && kBytes >= 16 && reinterpret_cast<std::uintptr_t>(to) % kBytes == 0 &&
        stride_bytes % kBytes == 0) {
      StoreRowsOf<Target, true>(from, padded, factors, count, columns, to, row_stride, step);
    } else {
      StoreRowsOf<Target, false>(from, padded, factors, count, columns, to, row_stride, step);
    }
  };
  switch (array.dtype) {
    case DType::kFloat32: return run(StoreFloat32());
    case DType::kBFloat16: return run(Store16<DType::kBFloat16>());
    default: return run(Store16<DType::kFloat16>());
  }
}

// ---- products -----------------------------------------------------------------------------------

// to[j][lane] = sum_x rows[j][x] columns[x][lane] for j < keys, a multiple of kPadding.
// rows: [keys][kStride]. 32 products a byte of `columns` that is loaded: bound by the multipliers.
template <std::size_t kStride>
HWY_NOINLINE void ProductsOf(const float* HWY_RESTRICT rows, const float* HWY_RESTRICT columns,
                             std::size_t count, std::size_t keys, float* HWY_RESTRICT to) {
  const DF d;
  for (std::size_t j = 0; j < keys; j += kTileKeys) {
    const float* HWY_RESTRICT row = rows + j * kStride;
    VF sum[kTileKeys];
    HWY_UNROLL(16)
    for (std::size_t i = 0; i < kTileKeys; ++i) sum[i] = hn::Zero(d);
    HWY_UNROLL(2)
    for (std::size_t x = 0; x < count; ++x) {
      const VF column = hn::Load(d, columns + x * kLanes);
      HWY_UNROLL(16)
      for (std::size_t i = 0; i < kTileKeys; ++i) {
        sum[i] = hn::MulAdd(hn::Set(d, row[i * kStride + x]), column, sum[i]);
      }
    }
    HWY_UNROLL(16)
    for (std::size_t i = 0; i < kTileKeys; ++i) hn::Store(sum[i], d, to + (j + i) * kLanes);
  }
}

HWY_INLINE void Products(const float* rows, std::size_t stride, const float* columns,
                         std::size_t count, std::size_t keys, float* to) {
  switch (stride) {
    case 16: return ProductsOf<16>(rows, columns, count, keys, to);
    case 32: return ProductsOf<32>(rows, columns, count, keys, to);
    case 48: return ProductsOf<48>(rows, columns, count, keys, to);
    case 64: return ProductsOf<64>(rows, columns, count, keys, to);
    case 80: return ProductsOf<80>(rows, columns, count, keys, to);
    case 96: return ProductsOf<96>(rows, columns, count, keys, to);
    case 112: return ProductsOf<112>(rows, columns, count, keys, to);
    default: return ProductsOf<128>(rows, columns, count, keys, to);
  }
}
static_assert(kLanesMostColumns == 128);

// A row of x where its weight is not 0. Rows that a query does not see may hold NaN, which times a
// weight of 0 would be NaN: `kCareful` serves blocks that met NaN or infinity.
template <bool kCareful>
HWY_INLINE VF Seen(VF weight, VF x) {
  if constexpr (!kCareful) return x;
  return hn::IfThenElseZero(hn::Ne(weight, hn::Zero(DF())), x);
}

// to[row][0 ... kVectors) = sum_j weights[j][row] x[j][..] for kTileRows rows.
template <std::size_t kVectors, bool kCareful>
HWY_INLINE void MixTile(const float* HWY_RESTRICT weights, const float* HWY_RESTRICT x,
                        std::size_t stride, std::size_t keys, float* HWY_RESTRICT to) {
  const DF d;
  VF sum[kTileRows][kVectors];
  HWY_UNROLL(8)
  for (std::size_t i = 0; i < kTileRows; ++i) {
    HWY_UNROLL(2)
    for (std::size_t c = 0; c < kVectors; ++c) sum[i][c] = hn::Zero(d);
  }
  for (std::size_t j = 0; j < keys; ++j, weights += kLanes, x += stride) {
    VF value[kVectors];
    HWY_UNROLL(2)
    for (std::size_t c = 0; c < kVectors; ++c) value[c] = hn::Load(d, x + c * kLanes);
    HWY_UNROLL(8)
    for (std::size_t i = 0; i < kTileRows; ++i) {
      const VF weight = hn::Set(d, weights[i]);
      HWY_UNROLL(2)
      for (std::size_t c = 0; c < kVectors; ++c) {
        sum[i][c] = hn::MulAdd(weight, Seen<kCareful>(weight, value[c]), sum[i][c]);
      }
    }
  }
  HWY_UNROLL(8)
  for (std::size_t i = 0; i < kTileRows; ++i) {
    HWY_UNROLL(2)
    for (std::size_t c = 0; c < kVectors; ++c) {
      hn::Store(sum[i][c], d, to + i * stride + c * kLanes);
    }
  }
}

// to[lane][:] = sum_j weights[j][lane] x[j][:]. weights: [keys][kLanes]; x: [keys][stride];
// to: [kLanes][stride].
template <bool kCareful>
HWY_NOINLINE void Mix(const float* weights, const float* x, std::size_t stride, std::size_t keys,
                      float* to) {
  for (std::size_t row = 0; row < kLanes; row += kTileRows) {
    std::size_t c = 0;
    for (; c + 2 * kLanes <= stride; c += 2 * kLanes) {
      MixTile<2, kCareful>(weights + row, x + c, stride, keys, to + row * stride + c);
    }
    if (c < stride) {
      MixTile<1, kCareful>(weights + row, x + c, stride, keys, to + row * stride + c);
    }
  }
}

template <std::size_t kVectors, bool kCareful>
HWY_INLINE void SpreadTile(const float* HWY_RESTRICT weights, const float* HWY_RESTRICT x,
                           std::size_t stride, float* HWY_RESTRICT to) {
  const DF d;
  VF sum[kTileRows][kVectors];
  HWY_UNROLL(8)
  for (std::size_t i = 0; i < kTileRows; ++i) {
    HWY_UNROLL(2)
    for (std::size_t c = 0; c < kVectors; ++c) {
      sum[i][c] = hn::Load(d, to + i * stride + c * kLanes);
    }
  }
  for (std::size_t lane = 0; lane < kLanes; ++lane, x += stride) {
    VF value[kVectors];
    HWY_UNROLL(2)
    for (std::size_t c = 0; c < kVectors; ++c) value[c] = hn::Load(d, x + c * kLanes);
    HWY_UNROLL(8)
    for (std::size_t i = 0; i < kTileRows; ++i) {
      const VF weight = hn::Set(d, weights[i * kLanes + lane]);
      HWY_UNROLL(2)
      for (std::size_t c = 0; c < kVectors; ++c) {
        sum[i][c] = hn::MulAdd(weight, Seen<kCareful>(weight, value[c]), sum[i][c]);
      }
    }
  }
  HWY_UNROLL(8)
  for (std::size_t i = 0; i < kTileRows; ++i) {
    HWY_UNROLL(2)
    for (std::size_t c = 0; c < kVectors; ++c) {
      hn::Store(sum[i][c], d, to + i * stride + c * kLanes);
    }
  }
}

// to[j][:] += sum_lane weights[j][lane] x[lane][:]. weights: [keys][kLanes]; x: [kLanes][stride];
// to: [keys][stride].
template <bool kCareful>
HWY_NOINLINE void Spread(const float* weights, const float* x, std::size_t stride, std::size_t keys,
                         float* to) {
  for (std::size_t j = 0; j < keys; j += kTileRows) {
    std::size_t c = 0;
    for (; c + 2 * kLanes <= stride; c += 2 * kLanes) {
      SpreadTile<2, kCareful>(weights + j * kLanes, x + c, stride, to + j * stride + c);
    }
    if (c < stride) {
      SpreadTile<1, kCareful>(weights + j * kLanes, x + c, stride, to + j * stride + c);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tsallis
HWY_AFTER_NAMESPACE();
#endif  // TSALLIS_LANES_HERE

#endif  // per-target include guard
