// The engines of float32 sums on vectors, of which one takes products of a call's bf16 numbers two
// at a time. Included once per instruction set.
#if defined(TSALLIS_ATTENTION_CPU_STREAM_FLOATS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TSALLIS_ATTENTION_CPU_STREAM_FLOATS_INL_H_
#undef TSALLIS_ATTENTION_CPU_STREAM_FLOATS_INL_H_
#else
#define TSALLIS_ATTENTION_CPU_STREAM_FLOATS_INL_H_
#endif

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "attention/cpu/pairs-inl.h"
#include "attention/cpu/stream/strips-inl.h"
#include "attention/cpu/tile-inl.h"

#if TSALLIS_VECTORS_HERE
HWY_BEFORE_NAMESPACE();
namespace tsallis {
namespace HWY_NAMESPACE {

// [keys][queries] of a strip, and sums over keys as [columns][queries]: a product's right side is
// always vectors of queries, or rows of the call's arrays, and its left side single numbers.
template <bool kPairs>
struct FloatEngine {
  static constexpr bool kSolves = false;
  static constexpr stream::Shape kShape = stream::kFloatShape;
  static constexpr std::int64_t kRows = kShape.rows;
  static constexpr std::int64_t kGroups = kRows / kStreamLanes;
  static constexpr std::int64_t kGroupStride = kStreamLanes, kKeyStride = kRows;

  struct Loaded {
    std::int64_t padded;
    float* rows;
    float bound;
    float Dot(std::int64_t i, const float* other) const {
      const DF d;
      VF sum = hn::Zero(d);
      for (std::int64_t x = 0; x < padded; x += kStreamLanes) {
        sum = hn::MulAdd(hn::Load(d, rows + i * padded + x), hn::LoadU(d, other + x), sum);
      }
      return hn::GetLane(hn::SumOfLanes(d, sum));
    }
    // kPairs: [padded / 2] [rows].
    void Columns(std::byte* to) const {
      const std::uint32_t* from = reinterpret_cast<const std::uint32_t*>(rows);
      std::int64_t words = padded;
      HWY_ALIGN std::uint32_t pairs[kPairs ? kRows * kMostPadded / 2 : 1];
      if constexpr (kPairs) {
        words = padded / 2;
        const hn::Rebind<std::uint16_t, DF> dh;
        auto* halves = reinterpret_cast<std::uint16_t*>(pairs);
        for (std::int64_t i = 0; i < kRows * padded; i += kStreamLanes) {
          hn::StoreU(Rounded16(DF(), DType::kBFloat16, hn::Load(DF(), rows + i)), dh, halves + i);
        }
        from = pairs;
      }
      for (std::int64_t group = 0; group < kGroups; ++group) {
        TransposePairs(from + group * kGroupStride * words, static_cast<std::size_t>(words),
                       static_cast<std::size_t>(words),
                       reinterpret_cast<std::uint32_t*>(to) + group * kGroupStride, kRows);
      }
    }
    void Rows(std::byte* to) const {
      std::memcpy(to, rows, static_cast<std::size_t>(kRows * padded) * sizeof(float));
    }
  };
  static Loaded Load(const HeadRows& rows, std::int64_t count, std::int64_t columns,
                     const stream::Scratch& scratch) {
    auto* to = reinterpret_cast<float*>(scratch.loaded);
    return {Padded(columns), to, PackAll(rows, count, kRows, columns, to)};
  }

  static void Pack(const AttentionParams& params, const stream::PackedKv& head, std::int64_t begin,
                   std::int64_t end, bool backward, float* k_bound, float* v_bound) {
    const std::int64_t count = std::min(end, head.keys) - begin;
    const std::int64_t row = head.sequence.k.begin + begin;
    const auto pack = [&](const HeadRows& rows, std::int64_t columns, std::byte* floats,
                          std::byte* halves) {
      float bound = 0.0f;
      if (halves != nullptr) {
        const std::int64_t depth = PaddedDepth(columns);
        auto* to = reinterpret_cast<std::uint16_t*>(halves) + begin * depth;
        bound = PackHalves(rows, static_cast<std::size_t>(count), static_cast<std::size_t>(columns),
                           static_cast<std::size_t>(depth), to);
        std::fill(to + count * depth, to + (end - begin) * depth, std::uint16_t{0});
      }
      if (floats == nullptr) return bound;
      return PackAll(rows, count, end - begin, columns,
                     reinterpret_cast<float*>(floats) + begin * Padded(columns));
    };
    // Forward, pairs multiply keys alone, and keys alone are multiplied as pairs.
    *k_bound = pack(KeyRows(params, head.sequence, head.kv, row), params.head_dim,
                    kPairs && !backward ? nullptr : head.k_rows, kPairs ? head.k_columns : nullptr);
    *v_bound = pack(ValueRows(params, head.sequence, head.kv, row), params.value_dim, head.v_rows,
                    kPairs && backward ? head.v_columns : nullptr);
  }

  // scores[key][query] = <row of the key, column of the query>.
  static void MultiplyKeys(const stream::PackedKv& head, const AttentionParams& params,
                           const std::byte* columns, std::int64_t at, std::int64_t keys,
                           float* scores) {
    Multiply(kPairs ? head.k_columns : head.k_rows, params.head_dim, columns, at, keys, scores);
  }
  static void MultiplyValues(const stream::PackedKv& head, const AttentionParams& params,
                             const std::byte* columns, std::int64_t at, std::int64_t keys,
                             float* gradients) {
    Multiply(kPairs ? head.v_columns : head.v_rows, params.value_dim, columns, at, keys, gradients);
  }

  struct NoWork {
    void Slot() {}
  };
  class Strips {
   public:
    Strips(const stream::PackedKv& head, const AttentionParams& params,
           const stream::Scratch& scratch, const std::byte* columns, std::int64_t, std::int64_t end,
           std::int64_t, bool mixes)
        : head_(head),
          params_(params),
          scratch_(scratch),
          columns_(columns),
          end_(end),
          mixes_(mixes) {}
    float* Scores(std::int64_t at) {
      MultiplyKeys(head_, params_, columns_, at, Keys(at), scratch_.scores);
      return scratch_.scores;
    }
    NoWork Work(std::int64_t, std::int64_t) { return {}; }
    // Weights take the places of their scores.
    void Store(std::int64_t key, std::int64_t group, const VF (&p)[4]) {
      float* to = scratch_.scores + key * kKeyStride + group * kGroupStride;
      for (std::int64_t i = 0; i < 4; ++i) hn::Store(p[i], DF(), to + i * kKeyStride);
    }
    void Next(std::int64_t at) {
      if (!mixes_) return;
      AddRows(head_.v_rows, Padded(params_.value_dim), at, Keys(at), scratch_.scores,
              scratch_.sums);
    }
    void End() {}

   private:
    std::int64_t Keys(std::int64_t at) const { return std::min(kShape.strip, end_ - at); }

    const stream::PackedKv& head_;
    const AttentionParams& params_;
    const stream::Scratch& scratch_;
    const std::byte* columns_;
    std::int64_t end_;
    bool mixes_;
  };

  static void StoreWeights(const stream::Scratch& scratch, std::int64_t key, std::int64_t group,
                           const VF (&p)[2]) {
    StoreTwo(scratch.scores, key, group, p);
  }
  static void StoreGradients(const stream::Scratch& scratch, std::int64_t key, std::int64_t group,
                             const VF (&ds)[2]) {
    StoreTwo(scratch.gradients, key, group, ds);
  }
  static void SpreadWeights(const stream::Scratch& scratch, const std::byte* rows,
                            std::int64_t padded, std::int64_t keys, float* to) {
    Spread(scratch.scores, rows, padded, keys, to);
  }
  static void SpreadGradients(const stream::Scratch& scratch, const std::byte* rows,
                              std::int64_t padded, std::int64_t keys, float* to) {
    Spread(scratch.gradients, rows, padded, keys, to);
  }
  static void AddKeys(const stream::PackedKv& head, std::int64_t padded,
                      const stream::Scratch& scratch, std::int64_t at, std::int64_t keys,
                      float* sums) {
    AddRows(head.k_rows, padded, at, keys, scratch.gradients, sums);
  }

  static void Shrink(const VF* shrink, std::int64_t padded, float* HWY_RESTRICT sums) {
    const DF d;
    for (std::int64_t x = 0; x < padded; ++x) {
      for (std::int64_t group = 0; group < kGroups; ++group, sums += kStreamLanes) {
        hn::Store(hn::Mul(hn::Load(d, sums), shrink[group]), d, sums);
      }
    }
  }
  static void RowsOut(const float* sums, std::int64_t padded, std::int64_t group, float* to) {
    for (std::int64_t x = 0; x < padded; x += kStreamLanes) {
      TransposePairs(
          reinterpret_cast<const std::uint32_t*>(sums + x * kRows + group * kGroupStride), kRows,
          kLanes, reinterpret_cast<std::uint32_t*>(to + x), static_cast<std::size_t>(padded));
    }
  }

 private:
  static constexpr std::int64_t kMostPadded = 512;  // a call's largest head

  static void Multiply(const std::byte* rows, std::int64_t columns, const std::byte* block,
                       std::int64_t at, std::int64_t keys, float* scores) {
    using Element = std::conditional_t<kPairs, std::uint32_t, float>;
    const std::int64_t row = kPairs ? PaddedDepth(columns) / 2 : Padded(columns);
    const LeftOf<Element> left = {reinterpret_cast<const Element*>(rows) + at * row, row, 1};
    MultiplyAll<false>(static_cast<std::size_t>(keys), kRows,
                       static_cast<std::size_t>(kPairs ? (columns + 1) / 2 : columns), left,
                       reinterpret_cast<const Element*>(block), kRows, scores, kRows);
  }
  // The first `count` of `all` rows; the others are 0. Returns the largest magnitude.
  static float PackAll(const HeadRows& rows, std::int64_t count, std::int64_t all,
                       std::int64_t columns, float* to) {
    const std::int64_t padded = Padded(columns);
    std::fill(to + count * padded, to + all * padded, 0.0f);
    return PackRows(rows, static_cast<std::size_t>(count), static_cast<std::size_t>(columns),
                    static_cast<std::size_t>(padded), to);
  }
  // Rows from `at` on as the left side of a product that sums over their columns.
  static Left RowsAt(const std::byte* rows, std::int64_t padded, std::int64_t at) {
    return {reinterpret_cast<const float*>(rows) + at * padded, padded, 1};
  }
  // sums[x][query] += sum over keys [at, at + keys) of rows[key][x] weights[key][query].
  static void AddRows(const std::byte* rows, std::int64_t padded, std::int64_t at,
                      std::int64_t keys, const float* weights, float* sums) {
    const Left left = {RowsAt(rows, padded, at).data, 1, padded};
    MultiplyAll<true>(static_cast<std::size_t>(padded), kRows, static_cast<std::size_t>(keys), left,
                      weights, kRows, sums, kRows);
  }
  // to[key][x] += sum over queries of weights[key][query] rows[query][x].
  static void Spread(const float* weights, const std::byte* rows, std::int64_t padded,
                     std::int64_t keys, float* to) {
    MultiplyAll<true>(static_cast<std::size_t>(keys), static_cast<std::size_t>(padded), kRows,
                      Left{weights, kRows, 1}, reinterpret_cast<const float*>(rows), padded, to,
                      padded);
  }
  static void StoreTwo(float* strip, std::int64_t key, std::int64_t group, const VF (&v)[2]) {
    float* to = strip + key * kKeyStride + group * kGroupStride;
    hn::Store(v[0], DF(), to);
    hn::Store(v[1], DF(), to + kKeyStride);
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace tsallis
HWY_AFTER_NAMESPACE();
#endif  // TSALLIS_VECTORS_HERE

#endif  // per-target include guard
