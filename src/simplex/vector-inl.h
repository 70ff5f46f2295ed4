// Vector building blocks of the row maps. Included once per instruction set.
#if defined(TSALLIS_SIMPLEX_VECTOR_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TSALLIS_SIMPLEX_VECTOR_INL_H_
#undef TSALLIS_SIMPLEX_VECTOR_INL_H_
#else
#define TSALLIS_SIMPLEX_VECTOR_INL_H_
#endif

#include <hwy/highway.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

HWY_BEFORE_NAMESPACE();
namespace tsallis {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::ScalableTag<float>;
using VF = hn::Vec<DF>;
using DD = hn::ScalableTag<double>;
using VD = hn::Vec<DD>;

constexpr float kInfinityF = std::numeric_limits<float>::infinity();

// Whether there are 32 vector registers, and not 16.
constexpr bool kManyRegisters = HWY_TARGET <= HWY_AVX3 || HWY_ARCH_ARM_A64;

// The last, short vector of a row: lanes from `count` on hold `fill`. Never reads past p + count,
// which MaskedLoad does on instruction sets without masks.
HWY_INLINE VF LoadPart(DF d, const float* HWY_RESTRICT p, std::size_t count, float fill) {
#if HWY_TARGET <= HWY_AVX3
  const auto mask = hn::FirstN(d, count);
  return hn::IfThenElse(mask, hn::MaskedLoad(mask, d, p), hn::Set(d, fill));
#else
  HWY_ALIGN float lanes[hn::MaxLanes(d)];
  hn::Store(hn::Set(d, fill), d, lanes);
  std::memcpy(lanes, p, count * sizeof(float));
  return hn::Load(d, lanes);
#endif
}

HWY_INLINE void StorePart(DF d, VF v, float* p, std::size_t count) {
#if HWY_TARGET <= HWY_AVX3
  hn::BlendedStore(v, hn::FirstN(d, count), d, p);
#else
  HWY_ALIGN float lanes[hn::MaxLanes(d)];
  hn::Store(v, d, lanes);
  std::memcpy(p, lanes, count * sizeof(float));
#endif
}

#if HWY_TARGET == HWY_AVX2
// Byte i of entry m is the i-th lane with its bit set in m.
constexpr auto kLanesOfBits = [] {
  std::array<std::uint64_t, 256> lanes = {};
  for (std::size_t bits = 0; bits < 256; ++bits) {
    int count = 0;
    for (std::uint64_t lane = 0; lane < 8; ++lane) {
      if (bits >> lane & 1) lanes[bits] |= lane << 8 * count++;
    }
  }
  return lanes;
}();
#endif

// Writes the lanes of two vectors that the mask takes, in their order, each to a place with room
// for a whole vector. Returns how many. Highway's Compress for AVX2 has its table on the stack,
// where GCC 12 puts it, all of its 1 KB, again at every use.
HWY_INLINE std::size_t StoreTaken(hn::Mask<DF> mask, VF a, float* HWY_RESTRICT to_a,
                                  hn::Vec<hn::RebindToUnsigned<DF>> b,
                                  std::uint32_t* HWY_RESTRICT to_b) {
#if HWY_TARGET == HWY_AVX2
  const auto bits = static_cast<unsigned>(_mm256_movemask_ps(mask.raw));
  const __m256i order =
      _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(&kLanesOfBits[bits])));
  _mm256_storeu_ps(to_a, _mm256_permutevar8x32_ps(a.raw, order));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to_b), _mm256_permutevar8x32_epi32(b.raw, order));
  return static_cast<std::size_t>(__builtin_popcount(bits));
#else
  const DF d;
  const hn::RebindToUnsigned<DF> du;
  hn::StoreU(hn::Compress(a, mask), d, to_a);
  hn::StoreU(hn::Compress(b, hn::RebindMask(du, mask)), du, to_b);
  return hn::CountTrue(d, mask);
#endif
}

// Sums of float terms in double lanes. Float lanes take kBurst terms at most before they are
// emptied: adding equal terms (a flat row) errs in one direction, by up to 2^-24 of the partial sum
// each time, and 16 such steps stay below 5e-7 whatever the length of the row.
constexpr std::size_t kBurst = 16;

HWY_INLINE VD AddWidened(VD total, VF v) {
#if HWY_TARGET == HWY_SCALAR  // one lane, no halves
  return hn::Add(total, hn::PromoteTo(DD(), v));
#else
  const DD dd;
  const hn::Half<DF> dh;
  const VD low = hn::PromoteTo(dd, hn::LowerHalf(dh, v));
  const VD high = hn::PromoteTo(dd, hn::UpperHalf(dh, v));
  return hn::Add(total, hn::Add(low, high));
#endif
}

HWY_INLINE double Total(VD v) { return hn::GetLane(hn::SumOfLanes(DD(), v)); }

// Up to a vector of p: its first `count` entries, the other lanes hold `fill`.
HWY_INLINE VF LoadUpTo(DF d, const float* HWY_RESTRICT p, std::size_t count, float fill) {
  return count == hn::Lanes(d) ? hn::LoadU(d, p) : LoadPart(d, p, count, fill);
}

// Calls term(i, count, a, b) for the vectors of [0, n), which begin at i and have `count` entries,
// a whole vector but for the last. It adds to a and b; returns the sums of the lanes of a and b.
template <class Term>
HWY_INLINE void SumTwoAt(std::size_t n, double* sum_a, double* sum_b, const Term& term) {
  const DF d;
  const std::size_t lanes = hn::Lanes(d);
  VD total_a = hn::Zero(DD()), total_b = hn::Zero(DD());
  std::size_t i = 0;
  while (i < n) {
    VF a0 = hn::Zero(d), a1 = hn::Zero(d), b0 = hn::Zero(d), b1 = hn::Zero(d);
    const std::size_t end = HWY_MIN(n, i + 2 * kBurst * lanes);
    for (; i + 2 * lanes <= end; i += 2 * lanes) {
      term(i, lanes, a0, b0);
      term(i + lanes, lanes, a1, b1);
    }
    for (; i < end; i += lanes) term(i, HWY_MIN(lanes, end - i), a0, b0);
    total_a = AddWidened(total_a, hn::Add(a0, a1));
    total_b = AddWidened(total_b, hn::Add(b0, b1));
  }
  *sum_a = Total(total_a);
  *sum_b = Total(total_b);
}

// The same of the vectors of x ([n], the last padded with `fill`): term(v, a, b).
template <class Term>
HWY_INLINE void SumTwo(const float* HWY_RESTRICT x, std::size_t n, float fill, double* sum_a,
                       double* sum_b, const Term& term) {
  SumTwoAt(n, sum_a, sum_b, [&](std::size_t i, std::size_t count, VF& a, VF& b) HWY_ATTR {
    term(LoadUpTo(DF(), x + i, count, fill), a, b);
  });
}

// y[j] = map(x[j]) with the same two sums as SumTwo; map(v, a, b) returns what is stored. y may be
// x.
template <class Map>
HWY_INLINE void MapSumTwo(const float* x, std::size_t n, float fill, float* y, double* sum_a,
                          double* sum_b, const Map& map) {
  const DF d;
  const std::size_t lanes = hn::Lanes(d);
  VD total_a = hn::Zero(DD()), total_b = hn::Zero(DD());
  std::size_t i = 0;
  while (i < n) {
    VF a0 = hn::Zero(d), a1 = hn::Zero(d), b0 = hn::Zero(d), b1 = hn::Zero(d);
    const std::size_t end = HWY_MIN(n, i + 2 * kBurst * lanes);
    for (; i + 2 * lanes <= end; i += 2 * lanes) {
      const VF y0 = map(hn::LoadU(d, x + i), a0, b0);
      const VF y1 = map(hn::LoadU(d, x + i + lanes), a1, b1);
      hn::StoreU(y0, d, y + i);
      hn::StoreU(y1, d, y + i + lanes);
    }
    for (; i < end; i += lanes) {
      if (end - i >= lanes) {
        hn::StoreU(map(hn::LoadU(d, x + i), a0, b0), d, y + i);
      } else {
        StorePart(d, map(LoadPart(d, x + i, end - i, fill), a0, b0), y + i, end - i);
      }
    }
    total_a = AddWidened(total_a, hn::Add(a0, a1));
    total_b = AddWidened(total_b, hn::Add(b0, b1));
  }
  *sum_a = Total(total_a);
  *sum_b = Total(total_b);
}

// e^x for x <= 0, 0 below -87.3 (and for -inf); error below 1.5 ulp.
HWY_INLINE VF ExpNonPositive(VF x) {
  const DF d;
  const hn::RebindToSigned<DF> di;
  const auto alive = hn::Gt(x, hn::Set(d, -87.3f));
  // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits.
  const VF magic = hn::Set(d, 12582912.0f);
  const VF shifted = hn::MulAdd(x, hn::Set(d, 1.44269504f), magic);
  const VF k = hn::Sub(shifted, magic);
  // ln 2 in two parts, the first exact in products with k even without a fused multiply-add.
  VF r = hn::NegMulAdd(k, hn::Set(d, 0.693359375f), x);
  r = hn::NegMulAdd(k, hn::Set(d, -2.12194440e-4f), r);
  VF poly = hn::Set(d, 1.9875691500e-4f);
  poly = hn::MulAdd(poly, r, hn::Set(d, 1.3981999507e-3f));
  poly = hn::MulAdd(poly, r, hn::Set(d, 8.3334519073e-3f));
  poly = hn::MulAdd(poly, r, hn::Set(d, 4.1665795894e-2f));
  poly = hn::MulAdd(poly, r, hn::Set(d, 1.6666665459e-1f));
  poly = hn::MulAdd(poly, r, hn::Set(d, 5.0000001201e-1f));
  const VF e = hn::Add(hn::MulAdd(hn::Mul(poly, r), r, r), hn::Set(d, 1.0f));
  const auto scaled = hn::Add(hn::BitCast(di, e), hn::ShiftLeft<23>(hn::BitCast(di, shifted)));
  return hn::IfThenElseZero(alive, hn::BitCast(d, scaled));
}

HWY_INLINE float LargestLane(VF v) {
  const DF d;
#if HWY_TARGET == HWY_EMU128
  // Highway 1.0.3 begins with the least finite float there.
  if (hn::AllTrue(d, hn::Eq(v, hn::Set(d, -kInfinityF)))) return -kInfinityF;
#endif
  return hn::GetLane(hn::MaxOfLanes(d, v));
}

// The maximum of x: [n]; NaN if x holds a NaN or +inf; -inf if it holds no finite entry. `maxima`
// ([4 * lanes], or null) receives the maxima of as many disjoint parts of x, which cost nothing
// here and contain most of what is worth knowing about the upper end of the row.
HWY_INLINE float RowMaximum(const float* HWY_RESTRICT x, std::size_t n, float* maxima = nullptr) {
  const DF d;
  const std::size_t lanes = hn::Lanes(d);
  const VF none = hn::Set(d, -kInfinityF);
  VF m0 = none, m1 = none, m2 = none, m3 = none;
  auto bad = hn::IsNaN(none);
  std::size_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    const VF v0 = hn::LoadU(d, x + i), v1 = hn::LoadU(d, x + i + lanes);
    const VF v2 = hn::LoadU(d, x + i + 2 * lanes), v3 = hn::LoadU(d, x + i + 3 * lanes);
    m0 = hn::Max(m0, v0);
    m1 = hn::Max(m1, v1);
    m2 = hn::Max(m2, v2);
    m3 = hn::Max(m3, v3);
    // A NaN makes the sum NaN. So does +inf with -inf, which ends as NaN anyway.
    bad = hn::Or(bad, hn::IsNaN(hn::Add(hn::Add(v0, v1), hn::Add(v2, v3))));
  }
  for (; i < n; i += lanes) {
    const VF v = n - i >= lanes ? hn::LoadU(d, x + i) : LoadPart(d, x + i, n - i, -kInfinityF);
    m0 = hn::Max(m0, v);
    bad = hn::Or(bad, hn::IsNaN(v));
  }
  if (maxima != nullptr) {
    hn::StoreU(m0, d, maxima);
    hn::StoreU(m1, d, maxima + lanes);
    hn::StoreU(m2, d, maxima + 2 * lanes);
    hn::StoreU(m3, d, maxima + 3 * lanes);
  }
  const float maximum = LargestLane(hn::Max(hn::Max(m0, m1), hn::Max(m2, m3)));
  // Sums of large finite scores may overflow to both infinities: look again before giving up.
  if (!hn::AllFalse(d, bad)) {
    for (std::size_t j = 0; j < n; ++j) {
      if (std::isnan(x[j])) return x[j];
    }
  }
  return maximum < kInfinityF ? maximum : std::numeric_limits<float>::quiet_NaN();
}

}  // namespace HWY_NAMESPACE
}  // namespace tsallis
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
