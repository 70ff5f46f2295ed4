// Small float32 matrix products in registers, and the same over a list of columns, for the dense
// and the streaming kernel. Included once per instruction set.
//
// One shape serves all five products of attention: C[r][x] (+)= sum_t A[r][t] B[t][x] with B's rows
// in vectors and A's elements broadcast. Scores take B = keys transposed, outputs B = values, and
// the gradients of keys and values read A by columns.
#if defined(TSALLIS_ATTENTION_CPU_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TSALLIS_ATTENTION_CPU_TILE_INL_H_
#undef TSALLIS_ATTENTION_CPU_TILE_INL_H_
#else
#define TSALLIS_ATTENTION_CPU_TILE_INL_H_
#endif

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "simplex/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tsallis {
namespace HWY_NAMESPACE {

// A's element (r, t) is data[r * row + t * step].
template <class Element>
struct LeftOf {
  const Element* data;
  std::ptrdiff_t row;
  std::ptrdiff_t step;
};
using Left = LeftOf<float>;

constexpr std::size_t kTileRows = 6;

#if HWY_HAVE_SCALABLE
// Vectors of unknown length cannot stand in arrays, so one at a time.
template <bool kAdd, bool kListed>
HWY_INLINE void MultiplyRows(std::size_t rows, std::size_t columns, std::size_t depth,
                             const std::uint8_t* list, const Left& a, const float* b,
                             std::ptrdiff_t b_pitch, float* c, std::ptrdiff_t c_pitch) {
  const DF d;
  const std::size_t lanes = hn::Lanes(d);
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t x = 0; x < columns; x += lanes) {
      const std::size_t count = HWY_MIN(lanes, columns - x);
      VF sum = hn::Zero(d);
      for (std::size_t i = 0; i < depth; ++i) {
        const auto t = static_cast<std::ptrdiff_t>(kListed ? list[i] : i);
        const VF left = hn::Set(d, a.data[static_cast<std::ptrdiff_t>(r) * a.row + t * a.step]);
        sum = hn::MulAdd(left, LoadPart(d, b + t * b_pitch + x, count, 0.0f), sum);
      }
      float* to = c + static_cast<std::ptrdiff_t>(r) * c_pitch + x;
      if (kAdd) sum = hn::Add(LoadPart(d, to, count, 0.0f), sum);
      StorePart(d, sum, to, count);
    }
  }
}
#else
// 24 accumulators, 4 vectors of B and one broadcast fit 32 registers: 10 loads for 24
// multiply-adds. With 16 registers 12 accumulators.
constexpr int kTileVectors = kManyRegisters ? 4 : 2;

// Elements are floats, or pairs of bf16 numbers, of two neighbouring t, on processors of which
// PairDots() (core/target.h) has a name: an instruction adds both products of a pair, rounded after
// each, in the time of a multiply-add.
HWY_INLINE VF AddTerm(VF a, VF b, VF sum) { return hn::MulAdd(a, b, sum); }
#if HWY_TARGET <= HWY_AVX3
using VPairs = hn::Vec<hn::RebindToUnsigned<DF> >;
HWY_INLINE VF AddTerm(VPairs a, VPairs b, VF sum) {
  // Assembly, because an intrinsic wants the whole function compiled for such processors.
  asm("vdpbf16ps %2, %1, %0" : "+v"(sum.raw) : "v"(a.raw), "v"(b.raw));
  return sum;
}
#endif

// C[kRows][kVectors vectors] (+)= A B over t < depth, or over t = list[0 ... depth). The sum starts
// at zero in registers whatever C holds: rounding errors of a long sum grow with the number of
// panels instead of the number of its terms.
template <int kRows, int kVectors, bool kAdd, bool kListed, class Element>
HWY_NOINLINE void Tile(std::size_t depth, const std::uint8_t* HWY_RESTRICT list,
                       const LeftOf<Element>& left, const Element* HWY_RESTRICT b,
                       std::ptrdiff_t b_pitch, float* HWY_RESTRICT c, std::ptrdiff_t c_pitch) {
  const DF d;
  const hn::Rebind<Element, DF> d_in;
  using In = hn::Vec<decltype(d_in)>;
  constexpr std::ptrdiff_t kVector = static_cast<std::ptrdiff_t>(hn::MaxLanes(DF()));
  const Element* HWY_RESTRICT a = left.data;
  const std::ptrdiff_t row = left.row, step = left.step;
  VF sum[kRows][kVectors];
  HWY_UNROLL(8) for (int r = 0; r < kRows; ++r) {
    HWY_UNROLL(8) for (int v = 0; v < kVectors; ++v) sum[r][v] = hn::Zero(d);
  }
  for (std::size_t i = 0; i < depth; ++i) {
    const auto t = static_cast<std::ptrdiff_t>(kListed ? list[i] : i);
    const Element* HWY_RESTRICT right = b + t * b_pitch;
    const Element* HWY_RESTRICT element = a + t * step;
    In vectors[kVectors];
    HWY_UNROLL(8) for (int v = 0; v < kVectors; ++v) {
      vectors[v] = hn::LoadU(d_in, right + v * kVector);
    }
    HWY_UNROLL(8) for (int r = 0; r < kRows; ++r) {
      const In broadcast = hn::Set(d_in, element[r * row]);
      HWY_UNROLL(8) for (int v = 0; v < kVectors; ++v) {
        sum[r][v] = AddTerm(broadcast, vectors[v], sum[r][v]);
      }
    }
  }
  HWY_UNROLL(8) for (int r = 0; r < kRows; ++r) {
    HWY_UNROLL(8) for (int v = 0; v < kVectors; ++v) {
      float* to = c + r * c_pitch + v * kVector;
      hn::StoreU(kAdd ? hn::Add(hn::LoadU(d, to), sum[r][v]) : sum[r][v], d, to);
    }
  }
}

template <int kRows, bool kAdd, bool kListed, class Element>
HWY_INLINE void TileColumns(std::size_t columns, std::size_t depth, const std::uint8_t* list,
                            const LeftOf<Element>& a, const Element* b, std::ptrdiff_t b_pitch,
                            float* c, std::ptrdiff_t c_pitch) {
  constexpr std::size_t kVector = hn::MaxLanes(DF());
  std::size_t x = 0;
  for (; x + kTileVectors * kVector <= columns; x += kTileVectors * kVector) {
    Tile<kRows, kTileVectors, kAdd, kListed>(depth, list, a, b + x, b_pitch, c + x, c_pitch);
  }
  // Columns come in multiples of 16: with short vectors nothing is left.
  if constexpr (kTileVectors * kVector > 16) {
    switch ((columns - x) / kVector) {
      case 3: Tile<kRows, 3, kAdd, kListed>(depth, list, a, b + x, b_pitch, c + x, c_pitch); break;
      case 2: Tile<kRows, 2, kAdd, kListed>(depth, list, a, b + x, b_pitch, c + x, c_pitch); break;
      case 1: Tile<kRows, 1, kAdd, kListed>(depth, list, a, b + x, b_pitch, c + x, c_pitch); break;
      default: break;
    }
  }
}

// C[rows][columns] (+)= A B, rows <= kTileRows, columns a multiple of 16. A row's result does not
// depend on its neighbours.
template <bool kAdd, bool kListed, class Element>
HWY_INLINE void MultiplyRows(std::size_t rows, std::size_t columns, std::size_t depth,
                             const std::uint8_t* list, const LeftOf<Element>& a, const Element* b,
                             std::ptrdiff_t b_pitch, float* c, std::ptrdiff_t c_pitch) {
  if (rows == kTileRows) {
    return TileColumns<6, kAdd, kListed>(columns, depth, list, a, b, b_pitch, c, c_pitch);
  }
  LeftOf<Element> rest = a;
  const auto advance = [&](std::ptrdiff_t by) {
    rest.data += by * rest.row;
    c += by * c_pitch;
  };
  if (rows & 4) {
    TileColumns<4, kAdd, kListed>(columns, depth, list, rest, b, b_pitch, c, c_pitch);
    advance(4);
  }
  if (rows & 2) {
    TileColumns<2, kAdd, kListed>(columns, depth, list, rest, b, b_pitch, c, c_pitch);
    advance(2);
  }
  if (rows & 1) TileColumns<1, kAdd, kListed>(columns, depth, list, rest, b, b_pitch, c, c_pitch);
}
#endif  // HWY_HAVE_SCALABLE

// C (+)= A B for any number of rows.
template <bool kAdd, class Element>
HWY_INLINE void MultiplyAll(std::size_t rows, std::size_t columns, std::size_t depth,
                            const LeftOf<Element>& a, const Element* b, std::ptrdiff_t b_pitch,
                            float* c, std::ptrdiff_t c_pitch) {
  for (std::size_t r = 0; r < rows; r += kTileRows) {
    const auto at = static_cast<std::ptrdiff_t>(r);
    MultiplyRows<kAdd, false>(HWY_MIN(kTileRows, rows - r), columns, depth, nullptr,
                              LeftOf<Element>{a.data + at * a.row, a.row, a.step}, b, b_pitch,
                              c + at * c_pitch, c_pitch);
  }
}

// C += A B where `used` marks the t < depth <= 64 for which a row of A may hold something; what is
// not marked is 0 in all of them. B may hold NaN and infinities if not `finite`: they count only
// where A is not 0.
HWY_INLINE void AddProduct(std::size_t rows, std::size_t columns, std::size_t depth,
                           std::uint64_t used, bool finite, const Left& a, const float* b,
                           std::ptrdiff_t b_pitch, float* c, std::ptrdiff_t c_pitch) {
  if (used == 0) return;
  if (!finite) {
    for (std::size_t r = 0; r < rows; ++r) {
      float* to = c + static_cast<std::ptrdiff_t>(r) * c_pitch;
      for (std::size_t t = 0; t < depth; ++t) {
        const auto at = static_cast<std::ptrdiff_t>(t);
        const float left = a.data[static_cast<std::ptrdiff_t>(r) * a.row + at * a.step];
        if (left == 0.0f) continue;
        for (std::size_t x = 0; x < columns; ++x) to[x] += left * b[at * b_pitch + x];
      }
    }
    return;
  }
  const auto count = static_cast<std::size_t>(hwy::PopCount(used));
  // The list costs an address a term.
  if (4 * count > 3 * depth) {
    MultiplyRows<true, false>(rows, columns, depth, nullptr, a, b, b_pitch, c, c_pitch);
    return;
  }
  std::uint8_t list[64];
  std::size_t listed = 0;
  for (std::uint64_t rest = used; rest != 0; rest &= rest - 1) {
    list[listed++] = static_cast<std::uint8_t>(hwy::Num0BitsBelowLS1Bit_Nonzero64(rest));
  }
  MultiplyRows<true, true>(rows, columns, listed, list, a, b, b_pitch, c, c_pitch);
}

// Which of x[0 ... 64) are not 0 (NaN is not), bit j for x[j].
HWY_INLINE std::uint64_t NonZeroBits(const float* x) {
  const DF d;
  const std::size_t lanes = hn::Lanes(d);
  std::uint64_t bits = 0;
  for (std::size_t i = 0; i < 64; i += lanes) {
    // Ne would deny that NaN differs.
    const auto mask = hn::Not(hn::Eq(hn::LoadU(d, x + i), hn::Zero(d)));
    std::uint8_t bytes[8];
    hn::StoreMaskBits(d, mask, bytes);
    // Reading what was written and no more keeps the bits in registers.
    std::uint64_t word = bytes[0];
    if (lanes == 16) {
      std::uint16_t two;
      std::memcpy(&two, bytes, sizeof(two));
      word = two;
    } else if (lanes > 16) {
      for (std::size_t byte = 1; byte < lanes / 8; ++byte) {
        word |= static_cast<std::uint64_t>(bytes[byte]) << (8 * byte);
      }
    }
    bits |= word << i;
  }
  return bits;
}

}  // namespace HWY_NAMESPACE
}  // namespace tsallis
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
