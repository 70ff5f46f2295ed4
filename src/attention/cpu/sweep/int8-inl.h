// Scores screened in 8 bits: keys and queries rounded to bytes, and upper bounds of their products
// by vpdpbusd or sdot (bytes-inl.h). Included once per instruction set.
//
// A component of a key is divided, and of a query multiplied, by its dimension's scale
// (PackedKeys::scale), so that no dimension takes the digits of the others; then a tile of keys has
// one step and a query its own. With k = t (kb + dk) and q = s (qb + dq), kb and qb integers,
//   <q, k> = s t (<qb, kb> + rest),  |rest| <= |q| |dk| / s + |dq| (|k| + |dk|) / t
// in units of s t, and that bound is added to the sums (here they start at it): what comes out is
// never below the true score, whatever the values are, and the proof of the threshold needs no
// other error.
#if defined(TSALLIS_ATTENTION_CPU_SWEEP_INT8_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TSALLIS_ATTENTION_CPU_SWEEP_INT8_INL_H_
#undef TSALLIS_ATTENTION_CPU_SWEEP_INT8_INL_H_
#else
#define TSALLIS_ATTENTION_CPU_SWEEP_INT8_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "attention/cpu/bytes-inl.h"
#include "attention/cpu/sweep/engines-inl.h"
#include "attention/cpu/sweep/sweep.h"

HWY_BEFORE_NAMESPACE();
namespace tsallis {
namespace HWY_NAMESPACE {

// Float32 arithmetic in front of the integers, relative to the product of the norms.
constexpr float kByteRounding = 1e-6f;

// The largest byte of a packed key, and the one that stands for 0: keys are unsigned but for sdot.
inline int KeyLevels(ScoreEngine engine) { return engine == ScoreEngine::kInt8 ? 127 : 63; }
inline std::int32_t KeyZero(ScoreEngine engine) {
  return HWY_ARCH_ARM_A64 ? 0 : KeyLevels(engine) + 1;
}

// The effect of rounding a vector to bytes.
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

// Squared norm of factor * values. values: [n].
HWY_INLINE float SquaredNorm(const float* HWY_RESTRICT values, std::int64_t n, float factor) {
  const DF d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  VF sum = hn::Zero(d);
  std::int64_t x = 0;
  for (; x + lanes <= n; x += lanes) {
    const VF v = hn::Mul(hn::LoadU(d, values + x), hn::Set(d, factor));
    sum = hn::MulAdd(v, v, sum);
  }
  float squared = hn::GetLane(hn::SumOfLanes(d, sum));
  for (; x < n; ++x) squared += factor * values[x] * (factor * values[x]);
  return squared;
}

// The largest norm, in steps, of a part of a row whose products kInt7 sums up in 16 bits. Rounding
// adds at most half a step a dimension, 4 to the norm of 64: by Cauchy and Schwarz no sum of
// products of the integers leaves +-180.6^2 = 32 616, and shifting up to eight of them takes up to
// 8 more.
constexpr float kWordNorm = 176.5f;

// The step that takes some rows to integers up to `levels`, of norms that the engine can sum up.
// values: [rows][dim].
HWY_INLINE float ByteStep(ScoreEngine engine, const float* HWY_RESTRICT values, std::int64_t rows,
                          std::int64_t dim, int levels) {
  const float largest = LargestMagnitude(values, rows * dim);
  // A vector of tiny numbers (or NaN) keeps nothing; the bound has all of it.
  if (!(largest > 1e-30f)) return 1.0f;
  const float step = largest / static_cast<float>(levels);
  if (engine != ScoreEngine::kInt7) return step;
  float norm = 0.0f;  // squared, in steps: squares of the values themselves may underflow
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t x = 0; x < dim; x += kWordDims) {
      norm = HWY_MAX(norm,
                     SquaredNorm(values + row * dim + x, HWY_MIN(kWordDims, dim - x), 1.0f / step));
    }
  }
  return step * HWY_MAX(1.0f, std::sqrt(norm) / kWordNorm);
}

// Rounds values / step to integers in [-levels, levels], plus `shift`. values, bytes: [dim], a
// multiple of 4; bytes with room for a vector more.
HWY_INLINE ByteRow RoundToBytes(const float* HWY_RESTRICT values, std::int64_t dim, float step,
                                int levels, int shift, std::int32_t* HWY_RESTRICT bytes) {
  const DF d;
  const hn::RebindToSigned<DF> di;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
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
  return {std::sqrt(hn::GetLane(hn::SumOfLanes(d, norm))),
          std::sqrt(hn::GetLane(hn::SumOfLanes(d, lost))), hn::GetLane(hn::SumOfLanes(di, sum))};
}

// Two and four bytes, the first lowest.
HWY_INLINE std::uint32_t BytePair(const std::int32_t* bytes) {
  return (static_cast<std::uint32_t>(bytes[0]) & 0xff) |
         (static_cast<std::uint32_t>(bytes[1]) & 0xff) << 8;
}
HWY_INLINE std::uint32_t ByteQuad(const std::int32_t* bytes) {
  return BytePair(bytes) | BytePair(bytes + 2) << 16;
}

// Numbers of a packed query that the bounds of its row need.
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
  HWY_ALIGN std::int32_t rounded[512 + 32];
  const float step = ByteStep(engine, scaled, 1, dim, 127);
  const ByteRow bytes = RoundToBytes(scaled, dim, step, 127, 0, rounded);
  auto* word = reinterpret_cast<std::uint32_t*>(unit) + row;
  const auto put = [&](std::uint32_t value) {
    *word = value;
    word += kUnitRows;
  };
  // A sum starts from the amount that the keys' zero adds to it.
  if (engine == ScoreEngine::kInt8) {
    put(static_cast<std::uint32_t>(-KeyZero(engine) * bytes.sum));
    for (std::int64_t x = 0; x < dim; x += 4) put(ByteQuad(rounded + x));
  } else {
    for (std::int64_t x = 0; x < dim; x += kWordDims) {
      const std::int64_t end = HWY_MIN(x + kWordDims, dim);
      const std::int32_t sum = std::accumulate(rounded + x, rounded + end, 0);
      put((static_cast<std::uint32_t>(-KeyZero(engine) * sum) & 0xffff) * 0x10001);
      for (std::int64_t y = x; y < end; y += 2) put(BytePair(rounded + y) * 0x10001);
    }
  }
  auto* rows = reinterpret_cast<ByteUnitTail*>(unit + kUnitRows * 4 * QueryWords(engine, dim));
  rows->step[row] = step;
  rows->norm[row] = bytes.norm / step;
  rows->lost[row] = bytes.lost / step;
  return {bytes.norm, bytes.lost, step};
}

// Packs 64 keys. load(key, values) yields key 0 ... 63 of the tile, [dim] and already divided by
// the scale; it is called once for each.
template <class Load>
HWY_INLINE PackedBounds PackByteTile(ScoreEngine engine, std::int64_t dim, std::byte* tile,
                                     const Load& load) {
  HWY_ALIGN float values[kTileKeys * 512];  // [64][dim]: the step is that of all
  const int levels = KeyLevels(engine);
  for (std::int64_t key = 0; key < kTileKeys; ++key) load(key, values + key * dim);
  PackedBounds bounds;
  bounds.step = ByteStep(engine, values, kTileKeys, dim, levels);
  HWY_ALIGN std::int32_t rounded[512 + 32];
  for (std::int64_t key = 0; key < kTileKeys; ++key) {
    const ByteRow bytes =
        RoundToBytes(values + key * dim, dim, bounds.step, levels, KeyZero(engine), rounded);
    std::byte* group = tile + key / 16 * 16 * dim;
    if (engine == ScoreEngine::kInt8) {
      auto* words = reinterpret_cast<std::uint32_t*>(group) + key % 16;
      for (std::int64_t x = 0; x < dim; x += 4) words[x / 4 * 16] = ByteQuad(rounded + x);
    } else {
      auto* words = reinterpret_cast<std::uint16_t*>(group) + key % 16;
      for (std::int64_t x = 0; x < dim; x += 2) {
        words[x / 2 * 16] = static_cast<std::uint16_t>(BytePair(rounded + x));
      }
    }
    bounds.packed_norm = HWY_MAX(bounds.packed_norm, bytes.norm);
    bounds.error = HWY_MAX(bounds.error, bytes.lost);
  }
  auto* tail = reinterpret_cast<ByteTileTail*>(tile + kTileKeys * dim);
  tail->step = bounds.step;
  tail->lost = (1.001f * bounds.error + kByteRounding * bounds.packed_norm) / bounds.step;
  tail->norm = 1.001f * (bounds.packed_norm + bounds.error) / bounds.step;
  return bounds;
}

#if TSALLIS_BYTES_HERE

// The start of a unit's sums, and the size of a step.
struct ByteStart {
  HWY_ALIGN std::int32_t sum[kUnitRows];
  HWY_ALIGN float step[kUnitRows];

  // offset: [16 rows].
  HWY_INLINE ByteStart(const std::int32_t* offset, const ByteUnitTail& rows,
                       const ByteTileTail& keys) {
    const DF d;
    const hn::RebindToSigned<DF> di;
    const VF lost = hn::Set(d, keys.lost), norm = hn::Set(d, keys.norm);
    for (std::size_t r = 0; r < kUnitRows; r += hn::Lanes(d)) {
      const VF bound =
          hn::MulAdd(hn::Load(d, rows.norm + r), lost, hn::Mul(hn::Load(d, rows.lost + r), norm));
      // Rounded up, and one for the roundings on the way out.
      const auto up = hn::Add(hn::ConvertTo(di, hn::Ceil(bound)), hn::Set(di, 1));
      hn::Store(hn::Add(hn::Load(di, offset + r), up), di, sum + r);
      hn::Store(hn::Mul(hn::Load(d, rows.step + r), hn::Set(d, keys.step)), d, step + r);
    }
  }
};

// Bytes: keys [4 groups][dim / 4][16 keys][4], queries [16 rows] where their sums start and [dim /
// 4][16 rows][4], each with its tail.
struct ByteEngine {
  using Scores = FloatScores;
  TSALLIS_BYTES static void Unit(const std::byte* queries, const std::byte* keys, std::int64_t dim,
                                 Scores* HWY_RESTRICT unit, const FilterJob<Scores>& job) {
    const auto* offset = reinterpret_cast<const std::int32_t*>(queries);
    const std::int32_t* q = offset + kUnitRows;
    const ByteStart start(offset, *reinterpret_cast<const ByteUnitTail*>(q + kUnitRows * dim / 4),
                          *reinterpret_cast<const ByteTileTail*>(keys + kTileKeys * dim));
    float* HWY_RESTRICT scores = unit->scores;
    // Computes as many sums as registers take, and uses every broadcast of queries for all keys in
    // reach.
    constexpr std::size_t kGroups = HWY_TARGET <= HWY_AVX3 ? 4 : 1;
    for (std::size_t group = 0; group < 4; group += kGroups, scores += kGroups * 256) {
      Rows<6, kGroups>(q, keys, dim, start, 0, scores);
      Rows<5, kGroups>(q, keys, dim, start, 6, scores);
      Rows<5, kGroups>(q, keys, dim, start, 11, scores);
      keys += dim * 16 * static_cast<std::int64_t>(kGroups);
    }
    job.Run();
  }

 private:
  // Rows [first, first + kRows) and kGroups groups of 16 keys.
  template <std::size_t kRows, std::size_t kGroups>
  TSALLIS_BYTES_INLINE static void Rows(const std::int32_t* HWY_RESTRICT q,
                                        const std::byte* HWY_RESTRICT k, std::int64_t dim,
                                        const ByteStart& start, std::size_t first,
                                        float* HWY_RESTRICT scores) {
    const DF d;
    const hn::RebindToSigned<DF> di;
    constexpr std::size_t kLanes = hn::MaxLanes(d), kPerGroup = 16 / kLanes;
    constexpr std::size_t kVectors = kGroups * kPerGroup;
    // Offset of vector v of keys, in words.
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
        for (std::size_t v = 0; v < kVectors; ++v) {
          AddByteDots(sums[r * kVectors + v], key[v], query);
        }
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
#endif  // TSALLIS_BYTES_HERE

}  // namespace HWY_NAMESPACE
}  // namespace tsallis
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
