// Scores screened in 8 bits: keys and queries rounded to bytes, and upper bounds of their products. Included
// once per instruction set.
//
// A component of a key is divided, and of a query multiplied, by its dimension's scale (PackedKeys::scale),
// so that no dimension takes the digits of the others; then a tile of keys has one step
// and a query its own. With k = t (kb + dk) and q = s (qb + dq), kb and qb integers,
//   <q, k> = s t (<qb, kb> + rest),  |rest| <= |q| |dk| / s + |dq| (|k| + |dk|) / t  in units of s t,
// and a unit's sums start at that bound: what comes out is never below the true score, whatever the values
// are, and the proof of the threshold needs no other error.
#if defined(TSALLIS_ATTENTION_CPU_SCORE_INT8_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TSALLIS_ATTENTION_CPU_SCORE_INT8_INL_H_
#undef TSALLIS_ATTENTION_CPU_SCORE_INT8_INL_H_
#else
#define TSALLIS_ATTENTION_CPU_SCORE_INT8_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstring>

#include "attention/cpu/score_engines-inl.h"
#include "attention/cpu/sweep.h"

HWY_BEFORE_NAMESPACE();
namespace tsallis {
namespace HWY_NAMESPACE {

// Float32 arithmetic in front of the integers, relative to the product of the norms.
constexpr float kByteRounding = 1e-6f;

// What rounding to bytes did to a vector.
struct ByteRow {
  float norm = 0.0f;  // of the vector
  float lost = 0.0f;  // of the vector minus its rounded self
  std::int32_t sum = 0;
};

HWY_INLINE float LargestMagnitude(const float* HWY_RESTRICT values, std::int64_t dim) {
  const DF d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  VF most = hn::Zero(d);
  std::int64_t x = 0;
  for (; x + lanes <= dim; x += lanes) most = hn::Max(most, hn::Abs(hn::LoadU(d, values + x)));
  float largest = hn::GetLane(hn::MaxOfLanes(d, most));
  for (; x < dim; ++x) largest = HWY_MAX(largest, std::abs(values[x]));
  return largest;
}

// The step that takes values up to `largest` to integers up to `levels`.
HWY_INLINE float ByteStep(float largest, int levels) {
  // Of hardly anything (or NaN) nothing is kept; the bound has all of it.
  return largest > 1e-30f ? largest / static_cast<float>(levels) : 1.0f;
}

// Rounds values / step to integers in [-levels, levels], plus `shift`. values: [dim], a multiple of 4;
// words: [dim / 4] at `pitch` words from each other.
HWY_INLINE ByteRow RoundToBytes(const float* HWY_RESTRICT values, std::int64_t dim, float step,
                                int levels, int shift, std::uint32_t* HWY_RESTRICT words,
                                std::int64_t pitch) {
  const DF d;
  const hn::RebindToSigned<DF> di;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  HWY_ALIGN std::int32_t bytes[512 + 32];
  HWY_ALIGN float padded[512 + 32];
  std::memcpy(padded, values, sizeof(float) * static_cast<std::size_t>(dim));
  std::fill(padded + dim, padded + dim + lanes, 0.0f);
  const VF scale = hn::Set(d, step), inverse = hn::Set(d, 1.0f / step);
  const VF most = hn::Set(d, static_cast<float>(levels)), least = hn::Neg(most);
  const auto shifts = hn::Set(di, shift);
  VF norm = hn::Zero(d), lost = norm;
  auto sum = hn::Zero(di);
  for (std::int64_t x = 0; x < dim; x += lanes) {
    const VF v = hn::Load(d, padded + x);
    const VF rounded = hn::Min(hn::Max(hn::Round(hn::Mul(v, inverse)), least), most);
    const VF rest = hn::NegMulAdd(rounded, scale, v);
    norm = hn::MulAdd(v, v, norm);
    lost = hn::MulAdd(rest, rest, lost);
    const auto integer = hn::ConvertTo(di, rounded);
    sum = hn::Add(sum, integer);
    hn::Store(hn::Add(integer, shifts), di, bytes + x);
  }
  for (std::int64_t x = 0; x < dim; x += 4) {
    words[x / 4 * pitch] = (static_cast<std::uint32_t>(bytes[x]) & 0xff) |
                           (static_cast<std::uint32_t>(bytes[x + 1]) & 0xff) << 8 |
                           (static_cast<std::uint32_t>(bytes[x + 2]) & 0xff) << 16 |
                           (static_cast<std::uint32_t>(bytes[x + 3]) & 0xff) << 24;
  }
  return {std::sqrt(hn::GetLane(hn::SumOfLanes(d, norm))),
          std::sqrt(hn::GetLane(hn::SumOfLanes(d, lost))), hn::GetLane(hn::SumOfLanes(di, sum))};
}

// What the bounds of a row need of its packed query.
struct PackedQuery {
  float norm = 0.0f;  // as packed
  float lost = 0.0f;  // norm of what rounding took away
  float step = 0.0f;  // of bytes
};

// Writes row `row` of a unit of queries. values, scale: [dim].
HWY_INLINE PackedQuery PackByteQuery(ScoreEngine engine, const float* HWY_RESTRICT values,
                                     const float* HWY_RESTRICT scale, std::int64_t dim,
                                     std::int64_t row, std::byte* unit) {
  HWY_ALIGN float scaled[512 + 32];
  for (std::int64_t x = 0; x < dim; ++x) scaled[x] = values[x] * scale[x];
  const float step = ByteStep(LargestMagnitude(scaled, dim), 127);
  const ByteRow bytes = RoundToBytes(scaled, dim, step, 127, 0,
                                     reinterpret_cast<std::uint32_t*>(unit) + row, kUnitRows);
  auto* rows = reinterpret_cast<ByteUnitTail*>(unit + kUnitRows * dim);
  rows->offset[row] = -KeyZero(engine) * bytes.sum;
  rows->step[row] = step;
  rows->norm[row] = bytes.norm / step;
  rows->lost[row] = bytes.lost / step;
  return {bytes.norm, bytes.lost, step};
}

// Packs 64 keys. load(key, values) yields key 0 ... 63 of the tile, [dim] and already divided by the scale;
// it is called once for each.
template <class Load>
HWY_INLINE PackedBounds PackByteTile(ScoreEngine engine, std::int64_t dim, std::byte* tile,
                                     const Load& load) {
  HWY_ALIGN float values[kTileKeys * 512];  // [64][dim]: the step is that of all
  const int levels = KeyZero(engine) - 1;
  for (std::int64_t key = 0; key < kTileKeys; ++key) load(key, values + key * dim);
  PackedBounds bounds;
  bounds.step = ByteStep(LargestMagnitude(values, kTileKeys * dim), levels);
  for (std::int64_t key = 0; key < kTileKeys; ++key) {
    const ByteRow bytes =
        RoundToBytes(values + key * dim, dim, bounds.step, levels, KeyZero(engine),
                     reinterpret_cast<std::uint32_t*>(tile + key / 16 * 16 * dim) + key % 16, 16);
    bounds.packed_norm = HWY_MAX(bounds.packed_norm, bytes.norm);
    bounds.error = HWY_MAX(bounds.error, bytes.lost);
  }
  auto* tail = reinterpret_cast<ByteTileTail*>(tile + kTileKeys * dim);
  tail->step = bounds.step;
  tail->lost = (1.001f * bounds.error + kByteRounding * bounds.packed_norm) / bounds.step;
  tail->norm = 1.001f * (bounds.packed_norm + bounds.error) / bounds.step;
  return bounds;
}

#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2

// Where a unit's sums start, and what a step of them is.
struct ByteStart {
  HWY_ALIGN std::int32_t sum[kUnitRows];
  HWY_ALIGN float step[kUnitRows];

  HWY_INLINE ByteStart(const ByteUnitTail& rows, const ByteTileTail& keys) {
    const DF d;
    const hn::RebindToSigned<DF> di;
    const VF lost = hn::Set(d, keys.lost), norm = hn::Set(d, keys.norm);
    for (std::size_t r = 0; r < kUnitRows; r += hn::Lanes(d)) {
      const VF bound =
          hn::MulAdd(hn::Load(d, rows.norm + r), lost, hn::Mul(hn::Load(d, rows.lost + r), norm));
      // Rounded up, and one for the roundings on the way out.
      const auto up = hn::Add(hn::ConvertTo(di, hn::Ceil(bound)), hn::Set(di, 1));
      hn::Store(hn::Add(hn::Load(di, rows.offset + r), up), di, sum + r);
      hn::Store(hn::Mul(hn::Load(d, rows.step + r), hn::Set(d, keys.step)), d, step + r);
    }
  }
};

using VBytes = hn::Vec<hn::RebindToSigned<DF>>;

// Sums of four products of unsigned and signed bytes. In assembly: GCC 12 moves arrays of sums to memory
// and back around the intrinsics.
struct ByteDots {
#if HWY_TARGET == HWY_AVX3
  static constexpr std::size_t kRows = 6, kGroups = 4;
#else
  static constexpr std::size_t kRows = 6, kGroups = 1;
#endif
  HWY_INLINE static void Add(VBytes& sum, VBytes keys, VBytes query) {
#if HWY_TARGET == HWY_AVX3
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sum.raw) : "v"(keys.raw), "v"(query.raw));
#else
    __asm__("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum.raw) : "x"(keys.raw), "x"(query.raw));
#endif
  }
};

#if HWY_TARGET == HWY_AVX2
// Without that instruction: two products a 16-bit sum, which keys of 7 bits do not overflow.
struct BytePairs {
  static constexpr std::size_t kRows = 4, kGroups = 1;
  HWY_INLINE static void Add(VBytes& sum, VBytes keys, VBytes query) {
    const __m256i pairs = _mm256_maddubs_epi16(keys.raw, query.raw);
    sum.raw = _mm256_add_epi32(sum.raw, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  }
};
#endif

// Bytes: keys [4 groups][dim / 4][16 keys][4] unsigned, queries [dim / 4][16 rows][4] signed, each with its
// tail.
template <class Dot>
struct ByteEngine {
  HWY_INLINE static void Unit(const std::byte* queries, const std::byte* keys, std::int64_t dim,
                              float* HWY_RESTRICT scores, const FilterJob& job) {
    const auto* q = reinterpret_cast<const std::int32_t*>(queries);
    const ByteStart start(*reinterpret_cast<const ByteUnitTail*>(queries + kUnitRows * dim),
                          *reinterpret_cast<const ByteTileTail*>(keys + kTileKeys * dim));
    // As many sums as registers take, with every broadcast of queries used for all keys in reach.
    constexpr std::size_t kGroups = Dot::kGroups;
    for (std::size_t group = 0; group < 4; group += kGroups, scores += kGroups * 256) {
      if constexpr (Dot::kRows == 6) {
        Rows<6, kGroups>(q, keys, dim, start, 0, scores);
        Rows<5, kGroups>(q, keys, dim, start, 6, scores);
        Rows<5, kGroups>(q, keys, dim, start, 11, scores);
      } else {
        for (std::size_t r = 0; r < kUnitRows; r += 4) {
          Rows<4, kGroups>(q, keys, dim, start, r, scores);
        }
      }
      keys += dim * 16 * static_cast<std::int64_t>(kGroups);
    }
    if (job.scores != nullptr) FilterRows(job.scores, job.bounds, job.masks, 0, 16);
  }

 private:
  // Rows [first, first + kRows) and kGroups groups of 16 keys.
  template <std::size_t kRows, std::size_t kGroups>
  HWY_INLINE static void Rows(const std::int32_t* HWY_RESTRICT q, const std::byte* HWY_RESTRICT k,
                              std::int64_t dim, const ByteStart& start, std::size_t first,
                              float* HWY_RESTRICT scores) {
    const DF d;
    const hn::RebindToSigned<DF> di;
    constexpr std::size_t kLanes = hn::MaxLanes(d), kPerGroup = 16 / kLanes;
    constexpr std::size_t kVectors = kGroups * kPerGroup;
    // Where vector v of keys lies, in words.
    const auto key_at = [&](std::size_t v) {
      return static_cast<std::int64_t>(v / kPerGroup) * dim * 4 +
             static_cast<std::int64_t>(v % kPerGroup * kLanes);
    };
    const auto* words = reinterpret_cast<const std::int32_t*>(k);
    VBytes sums[kRows * kVectors];
    HWY_UNROLL(6)
    for (std::size_t r = 0; r < kRows; ++r) {
      HWY_UNROLL(4)
      for (std::size_t v = 0; v < kVectors; ++v) {
        sums[r * kVectors + v] = hn::Set(di, start.sum[first + r]);
      }
    }
    for (std::int64_t x = 0; x < dim / 4; ++x, words += 16, q += 16) {
      VBytes key[kVectors];
      HWY_UNROLL(4)
      for (std::size_t v = 0; v < kVectors; ++v) key[v] = hn::Load(di, words + key_at(v));
      HWY_UNROLL(6)
      for (std::size_t r = 0; r < kRows; ++r) {
        const VBytes query = hn::Set(di, q[first + r]);
        HWY_UNROLL(4)
        for (std::size_t v = 0; v < kVectors; ++v) Dot::Add(sums[r * kVectors + v], key[v], query);
      }
    }
    HWY_UNROLL(6)
    for (std::size_t r = 0; r < kRows; ++r) {
      const VF step = hn::Set(d, start.step[first + r]);
      HWY_UNROLL(4)
      for (std::size_t v = 0; v < kVectors; ++v) {
        hn::Store(hn::Mul(hn::ConvertTo(d, sums[r * kVectors + v]), step), d,
                  scores + v / kPerGroup * 256 + (first + r) * 16 + v % kPerGroup * kLanes);
      }
    }
  }
};
#endif  // HWY_AVX3 or HWY_AVX2

}  // namespace HWY_NAMESPACE
}  // namespace tsallis
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
