// Products of the lane kernel on vectors, in float32. Included once per instruction set.
#if defined(TSALLIS_ATTENTION_CPU_LANES_PRODUCTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TSALLIS_ATTENTION_CPU_LANES_PRODUCTS_INL_H_
#undef TSALLIS_ATTENTION_CPU_LANES_PRODUCTS_INL_H_
#else
#define TSALLIS_ATTENTION_CPU_LANES_PRODUCTS_INL_H_
#endif

#include "attention/cpu/lanes/lanes.h"
#include "attention/cpu/rows-inl.h"

#if TSALLIS_VECTORS_HERE
HWY_BEFORE_NAMESPACE();
namespace tsallis {
namespace HWY_NAMESPACE {

// A tile's sums fill half of the registers: some rows by some vectors, of rows at most a vector.
constexpr std::size_t kTileKeys = kManyRegisters ? 16 : 8;
constexpr std::size_t kTileRows = HWY_MIN(kTileKeys / 2, kLanes);
constexpr std::size_t kTileVectors = kTileKeys / kTileRows;
static_assert(kPadding % kTileKeys == 0 && kLanes <= kMostLanes);

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
    HWY_UNROLL(4)
    for (std::size_t c = 0; c < kVectors; ++c) sum[i][c] = hn::Zero(d);
  }
  for (std::size_t j = 0; j < keys; ++j, weights += kLanes, x += stride) {
    VF value[kVectors];
    HWY_UNROLL(4)
    for (std::size_t c = 0; c < kVectors; ++c) value[c] = hn::Load(d, x + c * kLanes);
    HWY_UNROLL(8)
    for (std::size_t i = 0; i < kTileRows; ++i) {
      const VF weight = hn::Set(d, weights[i]);
      HWY_UNROLL(4)
      for (std::size_t c = 0; c < kVectors; ++c) {
        sum[i][c] = hn::MulAdd(weight, Seen<kCareful>(weight, value[c]), sum[i][c]);
      }
    }
  }
  HWY_UNROLL(8)
  for (std::size_t i = 0; i < kTileRows; ++i) {
    HWY_UNROLL(4)
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
    for (; c + kTileVectors * kLanes <= stride; c += kTileVectors * kLanes) {
      MixTile<kTileVectors, kCareful>(weights + row, x + c, stride, keys, to + row * stride + c);
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
    HWY_UNROLL(4)
    for (std::size_t c = 0; c < kVectors; ++c) {
      sum[i][c] = hn::Load(d, to + i * stride + c * kLanes);
    }
  }
  for (std::size_t lane = 0; lane < kLanes; ++lane, x += stride) {
    VF value[kVectors];
    HWY_UNROLL(4)
    for (std::size_t c = 0; c < kVectors; ++c) value[c] = hn::Load(d, x + c * kLanes);
    HWY_UNROLL(8)
    for (std::size_t i = 0; i < kTileRows; ++i) {
      const VF weight = hn::Set(d, weights[i * kLanes + lane]);
      HWY_UNROLL(4)
      for (std::size_t c = 0; c < kVectors; ++c) {
        sum[i][c] = hn::MulAdd(weight, Seen<kCareful>(weight, value[c]), sum[i][c]);
      }
    }
  }
  HWY_UNROLL(8)
  for (std::size_t i = 0; i < kTileRows; ++i) {
    HWY_UNROLL(4)
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
    for (; c + kTileVectors * kLanes <= stride; c += kTileVectors * kLanes) {
      SpreadTile<kTileVectors, kCareful>(weights + j * kLanes, x + c, stride, to + j * stride + c);
    }
    if (c < stride) {
      SpreadTile<1, kCareful>(weights + j * kLanes, x + c, stride, to + j * stride + c);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tsallis
HWY_AFTER_NAMESPACE();
#endif  // TSALLIS_VECTORS_HERE

#endif  // per-target include guard
