// Score engines: 16 queries x 64 keys at a time, and the filter that finds the few worth listing.
// Included once per instruction set.
//
// An engine stores the scores of a unit in its own type, Engine::Scores. Most store float32, in the
// order in which a matrix unit stores its tiles.
#if defined(TSALLIS_ATTENTION_CPU_SWEEP_ENGINES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TSALLIS_ATTENTION_CPU_SWEEP_ENGINES_INL_H_
#undef TSALLIS_ATTENTION_CPU_SWEEP_ENGINES_INL_H_
#else
#define TSALLIS_ATTENTION_CPU_SWEEP_ENGINES_INL_H_
#endif

#include "attention/cpu/matrix_unit.h"
#include "attention/cpu/sweep/sweep.h"
#include "simplex/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tsallis {
namespace HWY_NAMESPACE {

// One bit a lane.
HWY_INLINE std::uint32_t MaskBits(hn::Mask<DF> mask) {
#if HWY_TARGET <= HWY_AVX3
  return mask.raw;
#else
  std::uint8_t bits[8] = {};
  hn::StoreMaskBits(DF(), mask, bits);
  return bits[0];
#endif
}

// A unit's scores in float32. The Scores of every engine have these functions, except for
// FilterRows and Vector, which only engines of float32 scores are asked for.
struct FloatScores {
  HWY_ALIGN float scores[kUnitScores];  // [4 groups of 16 keys][16 rows][16 keys]

  // masks[r] != 0 where row r has a score at or above bounds[r], for r in [begin, end). Which of
  // its 64 keys it is, is looked up later: one comparison for the maximum of four vectors costs
  // half of four comparisons, and few rows have a hit.
  HWY_INLINE void FilterRows(const float* HWY_RESTRICT bounds, std::uint16_t* HWY_RESTRICT masks,
                             std::size_t begin, std::size_t end) const {
    const DF d;
    constexpr std::size_t kLanes = hn::MaxLanes(d);
    for (std::size_t r = begin; r < end; ++r) {
      const float* row = scores + r * 16;
      VF most = hn::Load(d, row);
      for (std::size_t lane = kLanes; lane < 16; lane += kLanes) {
        most = hn::Max(most, hn::Load(d, row + lane));
      }
      for (std::size_t lane = 0; lane < 16; lane += kLanes) {
        const VF a = hn::Load(d, row + 256 + lane), b = hn::Load(d, row + 512 + lane);
        most = hn::Max(hn::Max(most, hn::Load(d, row + 768 + lane)), hn::Max(a, b));
      }
      masks[r] = static_cast<std::uint16_t>(MaskBits(hn::Ge(most, hn::Set(d, bounds[r]))));
    }
  }
  // Filters all rows.
  HWY_INLINE void Filter(const float* HWY_RESTRICT bounds,
                         std::uint16_t* HWY_RESTRICT masks) const {
    FilterRows(bounds, masks, 0, kUnitRows);
  }

  // Row `row`'s scores of keys key, key + 1 ... of a vector.
  HWY_INLINE VF Vector(std::size_t row, std::size_t key) const {
    return hn::Load(DF(), scores + key / 16 * 256 + row * 16 + key % 16);
  }
  HWY_INLINE float At(std::size_t row, std::size_t key) const {
    return scores[key / 16 * 256 + row * 16 + key % 16];
  }
  // All 64 of a row.
  HWY_INLINE void Row(std::size_t row, float* HWY_RESTRICT to) const {
    const DF d;
    for (std::size_t key = 0; key < kTileKeys; key += hn::MaxLanes(d)) {
      hn::Store(Vector(row, key), d, to + key);
    }
  }
  // Bit x: row `row`'s score of key x is at or above the bound.
  HWY_INLINE std::uint64_t Hits(std::size_t row, float bound) const {
    const DF d;
    const VF least = hn::Set(d, bound);
    std::uint64_t bits = 0;
    for (std::size_t key = 0; key < kTileKeys; key += hn::MaxLanes(d)) {
      bits |= std::uint64_t{MaskBits(hn::Ge(Vector(row, key), least))} << key;
    }
    return bits;
  }
};

// A unit that the filter should look at while the next one is computed; null scores: none.
template <class Scores>
struct FilterJob {
  Scores* scores = nullptr;
  const float* bounds = nullptr;
  std::uint16_t* masks = nullptr;

  HWY_INLINE void Run() const {
    if (scores != nullptr) scores->Filter(bounds, masks);
  }
};

// float32: keys [4 groups][dim][16], queries [dim][16 rows].
struct FloatEngine {
  using Scores = FloatScores;
  HWY_INLINE static void Unit(const std::byte* queries, const std::byte* keys, std::int64_t dim,
                              Scores* HWY_RESTRICT unit, const FilterJob<Scores>& job) {
    float* HWY_RESTRICT scores = unit->scores;
    constexpr std::size_t kLanes = hn::MaxLanes(DF());
    const auto* q = reinterpret_cast<const float*>(queries);
    const auto* k = reinterpret_cast<const float*>(keys);
    for (std::size_t group = 0; group < 4; ++group, k += dim * 16, scores += 256) {
      // Computes as many sums as registers take: all rows by one vector of keys, or 5 or 6 rows by
      // two, or by four where there are 32 registers.
      if constexpr (kLanes == 16) {
        Rows<16>(q, k, dim, scores);
      } else if constexpr (kLanes == 8 || kManyRegisters) {
        Rows<6>(q, k, dim, scores);
        Rows<5>(q + 6, k, dim, scores + 6 * 16);
        Rows<5>(q + 11, k, dim, scores + 11 * 16);
      } else {
        for (std::size_t r = 0; r < 16; r += 2) Rows<2>(q + r, k, dim, scores + r * 16);
      }
    }
    job.Run();
  }

 private:
  // Scores of kRows queries and a group of 16 keys. q: [dim][16], of which the first kRows count.
  template <std::size_t kRows>
  HWY_INLINE static void Rows(const float* HWY_RESTRICT q, const float* HWY_RESTRICT k,
                              std::int64_t dim, float* HWY_RESTRICT scores) {
    const DF d;
    constexpr std::size_t kLanes = hn::MaxLanes(d), kVectors = 16 / kLanes;
    VF sums[kRows * kVectors];
    HWY_UNROLL(16)
    for (std::size_t i = 0; i < kRows * kVectors; ++i) sums[i] = hn::Zero(d);
    for (std::int64_t x = 0; x < dim; ++x) {
      VF key[kVectors];
      HWY_UNROLL(4)
      for (std::size_t v = 0; v < kVectors; ++v) key[v] = hn::Load(d, k + x * 16 + v * kLanes);
      HWY_UNROLL(16)
      for (std::size_t r = 0; r < kRows; ++r) {
        const VF query = hn::Set(d, q[x * 16 + r]);
        HWY_UNROLL(4)
        for (std::size_t v = 0; v < kVectors; ++v) {
          sums[r * kVectors + v] = hn::MulAdd(query, key[v], sums[r * kVectors + v]);
        }
      }
    }
    HWY_UNROLL(16)
    for (std::size_t r = 0; r < kRows; ++r) {
      HWY_UNROLL(4)
      for (std::size_t v = 0; v < kVectors; ++v) {
        hn::Store(sums[r * kVectors + v], d, scores + r * 16 + v * kLanes);
      }
    }
  }
};

#if HWY_TARGET <= HWY_AVX3
// bf16: keys [4 groups][dim / 32][16 pairs][16 keys][2], queries [dim / 32][16 rows][32]; a tile is
// 16 rows of 64 bytes. The filter of the unit before runs between the matrix operations, which
// leave the vector ports idle: 3.15 cycles per 16 scores instead of 3.9 one after the other
// (docs/log.md).
template <class Tiles>
struct MatrixEngine {
  using Scores = FloatScores;
  __attribute__((target(HWY_TARGET_STR ",amx-tile,amx-bf16"))) static void Unit(
      const std::byte* queries, const std::byte* keys, std::int64_t dim, Scores* HWY_RESTRICT unit,
      const FilterJob<Scores>& job) {
    float* HWY_RESTRICT scores = unit->scores;
    const std::int64_t chunks = dim / 32;
    const bool filter = job.scores != nullptr;
    if (chunks == 2) {  // head size 33 ... 64: queries stay in tiles
      Tiles::template Load<4>(queries, 64);
      Tiles::template Load<5>(queries + 1024, 64);
      Group2<0>(keys);
      Group2<1>(keys + 2048);
      if (filter) job.scores->FilterRows(job.bounds, job.masks, 0, 4);
      Tiles::template Store<0>(scores, 64);
      Group2<2>(keys + 4096);
      if (filter) job.scores->FilterRows(job.bounds, job.masks, 4, 8);
      Tiles::template Store<1>(scores + 256, 64);
      Group2<3>(keys + 6144);
      if (filter) job.scores->FilterRows(job.bounds, job.masks, 8, 12);
      Tiles::template Store<2>(scores + 512, 64);
      if (filter) job.scores->FilterRows(job.bounds, job.masks, 12, 16);
      Tiles::template Store<3>(scores + 768, 64);
      return;
    }
    const std::int64_t group = chunks * 1024;  // bytes
    Tiles::template Zero<0>();
    Tiles::template Zero<1>();
    Tiles::template Zero<2>();
    Tiles::template Zero<3>();
    for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
      const std::byte* k = keys + chunk * 1024;
      Tiles::template Load<4>(queries + chunk * 1024, 64);
      Tiles::template Load<5>(k, 64);
      Tiles::template Multiply<0, 4, 5>();
      Tiles::template Load<6>(k + group, 64);
      Tiles::template Multiply<1, 4, 6>();
      Tiles::template Load<7>(k + 2 * group, 64);
      Tiles::template Multiply<2, 4, 7>();
      Tiles::template Load<5>(k + 3 * group, 64);
      Tiles::template Multiply<3, 4, 5>();
    }
    job.Run();
    Tiles::template Store<0>(scores, 64);
    Tiles::template Store<1>(scores + 256, 64);
    Tiles::template Store<2>(scores + 512, 64);
    Tiles::template Store<3>(scores + 768, 64);
  }

 private:
  // Scores of the queries in tiles 4 and 5 and a group of 16 keys, into tile kOut.
  template <int kOut>
  __attribute__((always_inline, target(HWY_TARGET_STR ",amx-tile,amx-bf16"))) static inline void
  Group2(const std::byte* keys) {
    Tiles::template Zero<kOut>();
    Tiles::template Load<6>(keys, 64);
    Tiles::template Multiply<kOut, 4, 6>();
    Tiles::template Load<7>(keys + 1024, 64);
    Tiles::template Multiply<kOut, 5, 7>();
  }
};
#endif  // HWY_TARGET <= HWY_AVX3

}  // namespace HWY_NAMESPACE
}  // namespace tsallis
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
