// Scores screened in bytes on plain AVX2: sums of 16 bits. Included once per instruction set.
//
// vpmaddubsw leaves sums of two products in 16 bits, and they stay there: widening each would cost
// as much as the product. Additions wrap, so that only the end must fit, and it does because steps
// keep norms small (kWordNorm). Of head sizes above 64 every 64 dimensions are summed up for
// themselves, and their sums shifted so far that all together fit. int8-inl.h has the packing
// and the bounds.
#if defined(TSALLIS_ATTENTION_CPU_SWEEP_INT7_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TSALLIS_ATTENTION_CPU_SWEEP_INT7_INL_H_
#undef TSALLIS_ATTENTION_CPU_SWEEP_INT7_INL_H_
#else
#define TSALLIS_ATTENTION_CPU_SWEEP_INT7_INL_H_
#endif

#include "attention/cpu/sweep/int8-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tsallis {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_AVX2

using D16 = hn::Repartition<std::int16_t, DF>;
using VWords = hn::Vec<D16>;

// A unit's scores as sums: of key x and row r at most (sums[r][x] + rest[r]) * step[r].
struct WordScores {
  HWY_ALIGN std::int16_t sums[kUnitScores];  // [16 rows][64 keys]
  HWY_ALIGN float rest[kUnitRows];           // integers
  HWY_ALIGN float step[kUnitRows];
  HWY_ALIGN std::int16_t limits[kUnitRows];  // sums above them are listed; set by Filter

  // Sets rest and step.
  HWY_INLINE void SetBounds(const ByteUnitTail& rows, const ByteTileTail& keys, std::int64_t dim) {
    const DF d;
    const VF lost = hn::Set(d, keys.lost), norm = hn::Set(d, keys.norm);
    const auto unit = static_cast<float>(SumUnit(ScoreEngine::kInt7, dim));
    const VF slack = hn::Set(d, static_cast<float>(SumSlack(ScoreEngine::kInt7, dim)));
    for (std::size_t r = 0; r < kUnitRows; r += hn::Lanes(d)) {
      const VF bound =
          hn::MulAdd(hn::Load(d, rows.norm + r), lost, hn::Mul(hn::Load(d, rows.lost + r), norm));
      hn::Store(hn::Add(hn::Ceil(hn::Mul(bound, hn::Set(d, 1.0f / unit))), slack), d, rest + r);
      hn::Store(hn::Mul(hn::Load(d, rows.step + r), hn::Set(d, keys.step * unit)), d, step + r);
    }
  }

  // A score of a row is below its bound if its sum is not above this.
  HWY_INLINE static VF Limits(VF bound, VF rest, VF step) {
    const DF d;
    const VF limit = hn::Sub(hn::Sub(hn::Floor(hn::Div(bound, step)), rest), hn::Set(d, 1.0f));
    const VF least = hn::Set(d, -32768.0f), most = hn::Set(d, 32767.0f);
    // Not a number where steps are so tiny that their product is 0: everything is listed. An
    // infinite bound hides what was never computed, whatever its step.
    const VF finite = hn::IfThenElse(hn::IsNaN(limit), least, hn::Min(hn::Max(limit, least), most));
    return hn::IfThenElse(hn::Eq(bound, hn::Set(d, kInfinityF)), most, finite);
  }

  HWY_INLINE void Filter(const float* HWY_RESTRICT bounds, std::uint16_t* HWY_RESTRICT masks) {
    const DF d;
    const D16 d16;
    const hn::RebindToSigned<DF> di;
    const hn::Half<D16> half;
    for (std::size_t r = 0; r < kUnitRows; r += hn::MaxLanes(d)) {
      const VF limit =
          Limits(hn::LoadU(d, bounds + r), hn::Load(d, rest + r), hn::Load(d, step + r));
      hn::Store(hn::DemoteTo(half, hn::ConvertTo(di, limit)), half, limits + r);
    }
    for (std::size_t r = 0; r < kUnitRows; ++r) {
      const std::int16_t* row = sums + r * kTileKeys;
      const VWords most = hn::Max(hn::Max(hn::Load(d16, row), hn::Load(d16, row + 16)),
                                  hn::Max(hn::Load(d16, row + 32), hn::Load(d16, row + 48)));
      masks[r] = hn::AllFalse(d16, hn::Gt(most, hn::Set(d16, limits[r]))) ? 0 : 1;
    }
  }

  HWY_INLINE float At(std::size_t row, std::size_t key) const {
    return (static_cast<float>(sums[row * kTileKeys + key]) + rest[row]) * step[row];
  }
  HWY_INLINE void Row(std::size_t row, float* HWY_RESTRICT to) const {
    for (std::size_t key = 0; key < kTileKeys; ++key) to[key] = At(row, key);
  }
  // With the bound that Filter had: a higher one since would not be worth its quotient.
  HWY_INLINE std::uint64_t Hits(std::size_t row, float /*bound*/) const {
    const D16 d16;
    const VWords most = hn::Set(d16, limits[row]);
    std::uint64_t bits = 0;
    for (std::size_t key = 0; key < kTileKeys; key += 32) {
      const std::int16_t* from = sums + row * kTileKeys + key;
      const __m256i low = hn::VecFromMask(d16, hn::Gt(hn::Load(d16, from), most)).raw;
      const __m256i high = hn::VecFromMask(d16, hn::Gt(hn::Load(d16, from + 16), most)).raw;
      // Packing works on halves of vectors.
      const __m256i both = _mm256_permute4x64_epi64(_mm256_packs_epi16(low, high), 0xd8);
      bits |= std::uint64_t{static_cast<std::uint32_t>(_mm256_movemask_epi8(both))} << key;
    }
    return bits;
  }
};

// Keys [4 groups][dim / 2][16 keys][2] unsigned; queries by parts of 64 dimensions: [16 rows] where
// sums start, [32][16 rows] pairs, signed, every word of 16 bits twice. Each with its tail.
struct WordEngine {
  using Scores = WordScores;
  HWY_INLINE static void Unit(const std::byte* queries, const std::byte* keys, std::int64_t dim,
                              Scores* HWY_RESTRICT scores, const FilterJob<Scores>& job) {
    const auto* q = reinterpret_cast<const std::int32_t*>(queries);
    scores->SetBounds(
        *reinterpret_cast<const ByteUnitTail*>(q + kUnitRows * QueryWords(ScoreEngine::kInt7, dim)),
        *reinterpret_cast<const ByteTileTail*>(keys + kTileKeys * dim), dim);
    // Computes as many sums as registers take.
    for (std::int64_t half = 0; half < 2; ++half) {
      const auto* k = reinterpret_cast<const std::int16_t*>(keys + half * 32 * dim);
      std::int16_t* sums = scores->sums + half * 32;
      Rows<6>(q, k, dim, sums);
      Rows<5>(q + 6, k, dim, sums + 6 * kTileKeys);
      Rows<5>(q + 11, k, dim, sums + 11 * kTileKeys);
    }
    job.Run();
  }

 private:
  // kRows rows and 32 keys. q: the first of the rows; sums: [kRows][64], of which 32 are written.
  template <std::size_t kRows>
  HWY_INLINE static void Rows(const std::int32_t* HWY_RESTRICT q,
                              const std::int16_t* HWY_RESTRICT k, std::int64_t dim,
                              std::int16_t* HWY_RESTRICT to) {
    const D16 d;
    const hn::RebindToSigned<DF> di;
    const int shift = WordShift(dim);
    for (std::int64_t part = 0; part < dim; part += kWordDims) {
      VWords sums[kRows * 2];
      HWY_UNROLL(6)
      for (std::size_t r = 0; r < kRows; ++r) {
        sums[2 * r] = sums[2 * r + 1] = hn::BitCast(d, hn::Set(di, q[r]));
      }
      q += kUnitRows;
      const std::int64_t pairs = HWY_MIN(kWordDims, dim - part) / 2;
      for (std::int64_t x = 0; x < pairs; ++x, k += 16, q += kUnitRows) {
        const VWords low = hn::Load(d, k), high = hn::Load(d, k + 8 * dim);
        HWY_UNROLL(6)
        for (std::size_t r = 0; r < kRows; ++r) {
          const VWords query = hn::BitCast(d, hn::Set(di, q[r]));
          AddPairs(sums[2 * r], low, query);
          AddPairs(sums[2 * r + 1], high, query);
        }
      }
      HWY_UNROLL(6)
      for (std::size_t r = 0; r < kRows; ++r) {
        HWY_UNROLL(2)
        for (std::size_t v = 0; v < 2; ++v) {
          std::int16_t* sum = to + r * kTileKeys + v * 16;
          VWords all = hn::ShiftRightSame(sums[2 * r + v], shift);
          if (part > 0) all = hn::Add(all, hn::Load(d, sum));
          hn::Store(all, d, sum);
        }
      }
    }
  }

  // Keys of 7 bits and their zero never let two products leave 16 bits.
  HWY_INLINE static void AddPairs(VWords& sum, VWords keys, VWords query) {
    sum.raw = _mm256_add_epi16(sum.raw, _mm256_maddubs_epi16(keys.raw, query.raw));
  }
};
#endif  // HWY_AVX2

}  // namespace HWY_NAMESPACE
}  // namespace tsallis
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
