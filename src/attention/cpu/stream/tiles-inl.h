// The engine of bfloat16 tiles: products cut into steps, and rows on their way in and out. Included
// once per instruction set.
#if defined(TSALLIS_ATTENTION_CPU_STREAM_TILES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TSALLIS_ATTENTION_CPU_STREAM_TILES_INL_H_
#undef TSALLIS_ATTENTION_CPU_STREAM_TILES_INL_H_
#else
#define TSALLIS_ATTENTION_CPU_STREAM_TILES_INL_H_
#endif

#include <algorithm>
#include <cstring>

#include "attention/cpu/matrix_unit.h"
#include "attention/cpu/pairs-inl.h"
#include "attention/cpu/stream/strips-inl.h"

// Tiles need vectors of 16 floats beside them.
#undef TSALLIS_TILES_HERE
#if HWY_TARGET <= HWY_AVX3
#define TSALLIS_TILES_HERE 1
#else
#define TSALLIS_TILES_HERE 0
#endif

#if TSALLIS_TILES_HERE
HWY_BEFORE_NAMESPACE();
namespace tsallis {
namespace HWY_NAMESPACE {

static_assert(kLanes == 16);
using DU = hn::RebindToUnsigned<DF>;

constexpr std::int64_t kTiledRows = stream::kTileShape.rows;
constexpr std::int64_t kTiledStrip = stream::kTileShape.strip;
constexpr std::int64_t kTiledGroups = kTiledRows / 16;
constexpr std::int64_t kTileFloats = 256;                // 16 x 16
constexpr std::int64_t kGroupScores = kTiledStrip * 16;  // of one vector of queries
constexpr std::int64_t kPartPairs = kTiledStrip / kDepth * kTiledGroups * kTileFloats;
constexpr std::int64_t kPartRows = kTiledStrip / 16 * kTileWords;

// ---- products -----------------------------------------------------------------------------------

// Products are cut into steps of some hundred cycles of the tile unit, so that vector code can run
// between them: tiles alone took 12 and vectors alone 12 of 29 cycles for 16 scores one after the
// other.

// scores[group][key][lane] = <row of the key, column of the lane> for `keys` keys, a multiple
// of 32. rows: [keys / 16][chunks] tiles; columns: [kTiledGroups][chunks] tiles.
template <class Tiles>
class ProductSteps {
 public:
  ProductSteps() = default;
  ProductSteps(const std::uint16_t* rows, const std::uint32_t* columns, std::int64_t chunks,
               std::int64_t keys, float* scores)
      : rows_(rows),
        columns_(columns),
        chunks_(chunks),
        remaining_(keys / 32 * chunks),
        scores_(scores) {}

  std::int64_t remaining() const { return remaining_; }

  TSALLIS_STREAM_TILES void Step() {
    if (chunk_ == 0) {
      Tiles::template Zero<0>();
      Tiles::template Zero<1>();
      Tiles::template Zero<2>();
      Tiles::template Zero<3>();
    }
    const std::uint32_t* column = columns_ + chunk_ * kTileFloats;
    Tiles::template Load<4>(rows_, 64);
    Tiles::template Load<6>(column, 64);
    Tiles::template Multiply<0, 4, 6>();
    Tiles::template Load<7>(column + chunks_ * kTileFloats, 64);
    Tiles::template Multiply<1, 4, 7>();
    Tiles::template Load<5>(rows_ + chunks_ * kTileWords, 64);
    Tiles::template Multiply<2, 5, 6>();
    Tiles::template Multiply<3, 5, 7>();
    rows_ += kTileWords;
    --remaining_;
    if (++chunk_ < chunks_) return;
    chunk_ = 0;
    rows_ += chunks_ * kTileWords;
    Tiles::template Store<0>(scores_, 64);
    Tiles::template Store<1>(scores_ + kGroupScores, 64);
    Tiles::template Store<2>(scores_ + kTileFloats, 64);
    Tiles::template Store<3>(scores_ + kGroupScores + kTileFloats, 64);
    scores_ += 2 * kTileFloats;
  }

 private:
  const std::uint16_t* rows_ = nullptr;
  const std::uint32_t* columns_ = nullptr;
  std::int64_t chunks_ = 0, chunk_ = 0, remaining_ = 0;
  float* scores_ = nullptr;
};

// sums[tile][group][x][lane] += sum over keys of columns[x][key] weight[key][lane], of both parts.
// columns: [keys / 32][tiles] tiles; pairs: as Scratch::pairs.
template <class Tiles>
class MixSteps {
 public:
  MixSteps() = default;
  MixSteps(const std::uint16_t* columns, std::int64_t tiles, const std::uint32_t* pairs,
           std::int64_t keys, float* sums)
      : columns_(columns),
        pairs_(pairs),
        tiles_(tiles),
        depth_(keys / kDepth),
        remaining_((tiles + 1) / 2 * depth_),
        sums_(sums) {}

  std::int64_t remaining() const { return remaining_; }

  TSALLIS_STREAM_TILES void Step() {
    const bool two = tile_ + 2 <= tiles_;
    if (step_ == 0) {
      Tiles::template Load<0>(sums_, 64);
      Tiles::template Load<1>(sums_ + kTileFloats, 64);
      if (two) {
        Tiles::template Load<2>(sums_ + 2 * kTileFloats, 64);
        Tiles::template Load<3>(sums_ + 3 * kTileFloats, 64);
      }
    }
    const std::uint32_t* weights = pairs_ + step_ * kTiledGroups * kTileFloats;
    const std::uint16_t* columns = columns_ + (step_ * tiles_ + tile_) * kTileWords;
    Tiles::template Load<4>(columns, 64);
    if (two) Tiles::template Load<5>(columns + kTileWords, 64);
    for (int part = 0; part < 2; ++part, weights += kPartPairs) {
      Tiles::template Load<6>(weights, 64);
      Tiles::template Multiply<0, 4, 6>();
      if (two) Tiles::template Multiply<2, 5, 6>();
      Tiles::template Load<7>(weights + kTileFloats, 64);
      Tiles::template Multiply<1, 4, 7>();
      if (two) Tiles::template Multiply<3, 5, 7>();
    }
    --remaining_;
    if (++step_ < depth_) return;
    step_ = 0;
    tile_ += 2;
    Tiles::template Store<0>(sums_, 64);
    Tiles::template Store<1>(sums_ + kTileFloats, 64);
    if (two) {
      Tiles::template Store<2>(sums_ + 2 * kTileFloats, 64);
      Tiles::template Store<3>(sums_ + 3 * kTileFloats, 64);
    }
    sums_ += 4 * kTileFloats;
  }

 private:
  const std::uint16_t* columns_ = nullptr;
  const std::uint32_t* pairs_ = nullptr;
  std::int64_t tiles_ = 0, depth_ = 0, remaining_ = 0, tile_ = 0, step_ = 0;
  float* sums_ = nullptr;
};

template <class Steps>
TSALLIS_STREAM_TILES void RunSteps(Steps steps) {
  while (steps.remaining() > 0) steps.Step();
}

// The work of the tile unit while a strip of weights is computed.
template <class Tiles>
class TileWork {
 public:
  TileWork(const ProductSteps<Tiles>& products, const MixSteps<Tiles>& mix, std::int64_t slots)
      : products_(products),
        mix_(mix),
        slots_(slots),
        all_(products.remaining() + mix.remaining()) {}

  // Its share of one slot.
  TSALLIS_STREAM_TILES void Slot() {
    ++slot_;
    while (done_ * slots_ < all_ * slot_) {
      if (products_.remaining() > 0) {
        products_.Step();
      } else {
        mix_.Step();
      }
      ++done_;
    }
  }

 private:
  ProductSteps<Tiles> products_;
  MixSteps<Tiles> mix_;
  std::int64_t slots_, all_, slot_ = 0, done_ = 0;
};

// ---- rows in ------------------------------------------------------------------------------------

// The tiles of `count` rows as columns of a product: to: [kTiledGroups][depth / 32] tiles.
HWY_INLINE void TileColumnsOf(const std::uint16_t* rows, std::int64_t depth, std::uint32_t* to) {
  const auto words = static_cast<std::size_t>(depth / 2);
  for (std::int64_t group = 0; group < kTiledGroups; ++group) {
    TransposePairs(reinterpret_cast<const std::uint32_t*>(rows + group * kLanes * depth), words,
                   words, to + group * depth / kDepth * kTileFloats, kLanes);
  }
}

// Loads the first `count` rows of kRows; the others are 0. Returns the largest magnitude.
HWY_INLINE float TileLoad(const HeadRows& rows, std::int64_t count, std::int64_t columns,
                          std::int64_t depth, std::uint16_t* to) {
  std::fill_n(to + count * depth, (kTiledRows - count) * depth, std::uint16_t{0});
  return PackHalves(rows, static_cast<std::size_t>(count), static_cast<std::size_t>(columns),
                    static_cast<std::size_t>(depth), to);
}

// Tiles of 32 keys from `rows`, [32][depth]: as rows, [2][depth / 32] tiles, and as columns,
// [padded / 16] tiles; either may be null.
HWY_INLINE void TilePackSteps(const std::uint16_t* rows, std::int64_t depth, std::int64_t padded,
                              std::uint16_t* row_tiles, std::uint16_t* column_tiles) {
  const std::int64_t chunks = depth / kDepth;
  for (std::int64_t key = 0; row_tiles != nullptr && key < kDepth; ++key) {
    for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
      std::memcpy(row_tiles + (key / 16 * chunks + chunk) * kTileWords + key % 16 * kDepth,
                  rows + key * depth + chunk * kDepth, 64);
    }
  }
  if (column_tiles == nullptr) return;
  HWY_ALIGN std::uint32_t pairs[16 * 16];
  for (std::int64_t x = 0; x < padded; x += 16) {
    PairRows(rows + x, static_cast<std::size_t>(depth), 32, 16, pairs);
    TransposePairs(pairs, 16, 16,
                   reinterpret_cast<std::uint32_t*>(column_tiles + x / 16 * kTileWords), 16);
  }
}

void TilePack(const AttentionParams& params, const stream::PackedKv& head, std::int64_t begin,
              std::int64_t end, bool backward, float* k_bound, float* v_bound) {
  const stream::Widths widths(params);
  HWY_ALIGN std::uint16_t rows[kDepth * 512];
  *k_bound = *v_bound = 0.0f;
  const bool with_columns = !backward || params.map != RowMap::kEntmax;
  const auto tiles = [](std::byte* base, std::int64_t per_step, std::int64_t step) {
    return reinterpret_cast<std::uint16_t*>(base) + step * per_step * kTileWords;
  };
  for (std::int64_t key = begin; key < end; key += kDepth) {
    const std::int64_t count = std::min(kDepth, head.keys - key), step = key / kDepth;
    const std::int64_t row = head.sequence.k.begin + key;
    RaiseBound(k_bound, TileLoad(KeyRows(params, head.sequence, head.kv, row), count,
                                 params.head_dim, widths.d_depth, rows));
    TilePackSteps(rows, widths.d_depth, widths.d_padded,
                  tiles(head.k_rows, 2 * widths.d_depth / kDepth, step),
                  backward ? tiles(head.k_columns, widths.d_padded / 16, step) : nullptr);
    RaiseBound(v_bound, TileLoad(ValueRows(params, head.sequence, head.kv, row), count,
                                 params.value_dim, widths.e_depth, rows));
    TilePackSteps(rows, widths.e_depth, widths.e_padded,
                  backward ? tiles(head.v_rows, 2 * widths.e_depth / kDepth, step) : nullptr,
                  with_columns ? tiles(head.v_columns, widths.e_padded / 16, step) : nullptr);
  }
}
static_assert(kTiledRows == kDepth);

// ---- weights ------------------------------------------------------------------------------------

// The nearest bf16 to each lane, in the upper half of the word, and what is left of it.
struct SplitWords {
  HWY_INLINE explicit SplitWords(VF v) {
    const DU du;
    const auto half = hn::Set(du, 0x8000u), upper = hn::Set(du, 0xFFFF0000u);
    high = hn::And(hn::Add(hn::BitCast(du, v), half), upper);
    const VF rest = hn::Sub(v, hn::BitCast(DF(), high));
    low = hn::And(hn::Add(hn::BitCast(du, rest), half), upper);
  }
  hn::Vec<DU> high, low;
};

// Weights of two neighbouring keys as pairs, both parts.
HWY_INLINE void StorePairs(const SplitWords& first, const SplitWords& second, std::uint32_t* to) {
  const DU du;
  hn::Store(hn::Or(hn::ShiftRight<16>(first.high), second.high), du, to);
  hn::Store(hn::Or(hn::ShiftRight<16>(first.low), second.low), du, to + kPartPairs);
}

// Offset of the pairs of keys j and j + 1.
HWY_INLINE std::int64_t PairOffset(std::int64_t j, std::int64_t group) {
  return (j / kDepth * kTiledGroups + group) * kTileFloats + j % kDepth / 2 * 16;
}

// Words of a query's lane, in the row of its key; both parts.
HWY_INLINE void StoreInRow(const SplitWords& words, std::uint16_t* to) {
  const hn::Rebind<std::uint16_t, DF> d16;
  hn::Store(hn::TruncateTo(d16, hn::ShiftRight<16>(words.high)), d16, to);
  hn::Store(hn::TruncateTo(d16, hn::ShiftRight<16>(words.low)), d16, to + kPartRows);
}

// ---- backward -----------------------------------------------------------------------------------

// to[key][x] += sum over queries of weights[key][query] x[query], of both parts, for `keys` keys.
// weights: as Scratch::rows; pairs: [16][padded] pairs of queries; to: [keys][padded].
template <class Tiles>
TSALLIS_STREAM_TILES void TileSpread(const std::uint16_t* weights, const std::uint32_t* pairs,
                                     std::int64_t padded, std::int64_t keys, float* to) {
  const auto row_bytes = static_cast<std::size_t>(padded) * sizeof(float);
  for (std::int64_t j = 0; j < keys; j += 16, to += 16 * padded) {
    Tiles::template Load<4>(weights + j / 16 * kTileWords, 64);
    Tiles::template Load<5>(weights + kPartRows + j / 16 * kTileWords, 64);
    std::int64_t x = 0;
    for (; x + 32 <= padded; x += 32) {
      Tiles::template Load<0>(to + x, row_bytes);
      Tiles::template Load<6>(pairs + x, row_bytes);
      Tiles::template Multiply<0, 4, 6>();
      Tiles::template Load<1>(to + x + 16, row_bytes);
      Tiles::template Load<7>(pairs + x + 16, row_bytes);
      Tiles::template Multiply<1, 4, 7>();
      Tiles::template Multiply<0, 5, 6>();
      Tiles::template Multiply<1, 5, 7>();
      Tiles::template Store<0>(to + x, row_bytes);
      Tiles::template Store<1>(to + x + 16, row_bytes);
    }
    if (x == padded) continue;
    Tiles::template Load<0>(to + x, row_bytes);
    Tiles::template Load<6>(pairs + x, row_bytes);
    Tiles::template Multiply<0, 4, 6>();
    Tiles::template Multiply<0, 5, 6>();
    Tiles::template Store<0>(to + x, row_bytes);
  }
}

// ---- the engine ---------------------------------------------------------------------------------

template <class TileUnit>
struct TileEngine {
  // Whether passes over the keys solve for thresholds and entropies.
  static constexpr bool kSolves = true;
  static constexpr stream::Shape kShape = stream::kTileShape;
  static constexpr std::int64_t kGroups = kTiledGroups;
  static constexpr std::int64_t kGroupStride = kGroupScores, kKeyStride = 16;

  // Rows of a call's array as an operand of products with keys, and of sums over queries.
  struct Loaded {
    std::int64_t depth, padded;
    std::uint16_t* rows;
    float bound;  // the largest magnitude; infinite or NaN if any is
    // <row i, other>, other: [padded].
    float Dot(std::int64_t i, const float* other) const {
      const DF d;
      VF sum = hn::Zero(d);
      for (std::int64_t x = 0; x < padded; x += kStreamLanes) {
        sum = hn::MulAdd(FloatsOf(d, DType::kBFloat16, rows + i * depth + x),
                         hn::LoadU(d, other + x), sum);
      }
      return hn::GetLane(hn::SumOfLanes(d, sum));
    }
    void Columns(std::byte* to) const {
      TileColumnsOf(rows, depth, reinterpret_cast<std::uint32_t*>(to));
    }
    void Rows(std::byte* to) const {
      PairRows(rows, static_cast<std::size_t>(depth), kTiledRows, static_cast<std::size_t>(padded),
               reinterpret_cast<std::uint32_t*>(to));
    }
  };
  static Loaded Load(const HeadRows& rows, std::int64_t count, std::int64_t columns,
                     const stream::Scratch& scratch) {
    auto* to = reinterpret_cast<std::uint16_t*>(scratch.loaded);
    const std::int64_t depth = PaddedDepth(columns);
    return {depth, Padded(columns), to, TileLoad(rows, count, columns, depth, to)};
  }

  static void Pack(const AttentionParams& params, const stream::PackedKv& head, std::int64_t begin,
                   std::int64_t end, bool backward, float* k_bound, float* v_bound) {
    TilePack(params, head, begin, end, backward, k_bound, v_bound);
  }

  // scores = products of keys [at, at + keys) of rows, as wide as `columns`, with a block's rows.
  static ProductSteps<TileUnit> Products(const std::byte* rows, std::int64_t columns,
                                         const std::byte* block, std::int64_t at, std::int64_t keys,
                                         float* scores) {
    const std::int64_t chunks = PaddedDepth(columns) / kDepth;
    return {reinterpret_cast<const std::uint16_t*>(rows) + at / 16 * chunks * kTileWords,
            reinterpret_cast<const std::uint32_t*>(block), chunks, keys, scores};
  }
  static void MultiplyKeys(const stream::PackedKv& head, const AttentionParams& params,
                           const std::byte* columns, std::int64_t at, std::int64_t keys,
                           float* scores) {
    RunSteps(Products(head.k_rows, params.head_dim, columns, at, keys, scores));
  }
  static void MultiplyValues(const stream::PackedKv& head, const AttentionParams& params,
                             const std::byte* columns, std::int64_t at, std::int64_t keys,
                             float* gradients) {
    RunSteps(Products(head.v_rows, params.value_dim, columns, at, keys, gradients));
  }

  // What streams by: scores of one strip after the other, every `stride`th, and the sums of values.
  // While the vector ports work on a strip, the tile unit finds the scores of the next and adds up
  // the values of the one before.
  class Strips {
   public:
    Strips(const stream::PackedKv& head, const AttentionParams& params,
           const stream::Scratch& scratch, const std::byte* columns, std::int64_t begin,
           std::int64_t end, std::int64_t stride, bool mixes)
        : head_(head),
          params_(params),
          scratch_(scratch),
          columns_(columns),
          begin_(begin),
          end_(end),
          step_(stride * kTiledStrip),
          mixes_(mixes),
          scores_(scratch.scores),
          next_scores_(scratch.gradients),
          pairs_(scratch.pairs),
          last_pairs_(reinterpret_cast<std::uint32_t*>(scratch.rows)) {
      if (begin < end) RunSteps(ProductsAt(begin, scores_));
    }
    float* Scores(std::int64_t) { return scores_; }
    TileWork<TileUnit> Work(std::int64_t at, std::int64_t slots) {
      return {at + step_ < end_ ? ProductsAt(at + step_, next_scores_) : ProductSteps<TileUnit>(),
              mixes_ && at > begin_ ? MixAt(at - step_, last_pairs_) : MixSteps<TileUnit>(), slots};
    }
    void Store(std::int64_t key, std::int64_t group, const VF (&p)[4]) {
      std::uint32_t* to = pairs_ + PairOffset(key, group);
      StorePairs(SplitWords(p[0]), SplitWords(p[1]), to);
      StorePairs(SplitWords(p[2]), SplitWords(p[3]), to + 16);
    }
    void Next(std::int64_t) {
      std::swap(scores_, next_scores_);
      std::swap(pairs_, last_pairs_);
    }
    void End() {
      if (begin_ < end_) RunSteps(MixAt(begin_ + (end_ - 1 - begin_) / step_ * step_, last_pairs_));
    }

   private:
    ProductSteps<TileUnit> ProductsAt(std::int64_t at, float* scores) const {
      return Products(head_.k_rows, params_.head_dim, columns_, at,
                      std::min(kTiledStrip, end_ - at), scores);
    }
    MixSteps<TileUnit> MixAt(std::int64_t at, const std::uint32_t* pairs) const {
      const std::int64_t tiles = Padded(params_.value_dim) / 16;
      return {reinterpret_cast<const std::uint16_t*>(head_.v_columns) +
                  at / kDepth * tiles * kTileWords,
              tiles, pairs, std::min(kTiledStrip, end_ - at), scratch_.sums};
    }

    const stream::PackedKv& head_;
    const AttentionParams& params_;
    const stream::Scratch& scratch_;
    const std::byte* columns_;  // of the block's queries
    std::int64_t begin_, end_, step_;
    bool mixes_;
    float *scores_, *next_scores_;
    std::uint32_t *pairs_, *last_pairs_;
  };

  // The backward pass. Weights and gradients of the scores of keys `key` and key + 1 of a strip.
  static void StoreWeights(const stream::Scratch& scratch, std::int64_t key, std::int64_t group,
                           const VF (&p)[2]) {
    std::uint16_t* to = scratch.rows + key * 32 + group * 16;
    StoreInRow(SplitWords(p[0]), to);
    StoreInRow(SplitWords(p[1]), to + 32);
  }
  static void StoreGradients(const stream::Scratch& scratch, std::int64_t key, std::int64_t group,
                             const VF (&ds)[2]) {
    const SplitWords first(ds[0]), second(ds[1]);
    StorePairs(first, second, scratch.pairs + PairOffset(key, group));
    std::uint16_t* to = scratch.rows + 2 * kPartRows + key * 32 + group * 16;
    StoreInRow(first, to);
    StoreInRow(second, to + 32);
  }
  // to: [keys][padded], from a strip's first key on.
  static void SpreadWeights(const stream::Scratch& scratch, const std::byte* rows,
                            std::int64_t padded, std::int64_t keys, float* to) {
    TileSpread<TileUnit>(scratch.rows, reinterpret_cast<const std::uint32_t*>(rows), padded, keys,
                         to);
  }
  static void SpreadGradients(const stream::Scratch& scratch, const std::byte* rows,
                              std::int64_t padded, std::int64_t keys, float* to) {
    TileSpread<TileUnit>(scratch.rows + 2 * kPartRows, reinterpret_cast<const std::uint32_t*>(rows),
                         padded, keys, to);
  }
  static void AddKeys(const stream::PackedKv& head, std::int64_t padded,
                      const stream::Scratch& scratch, std::int64_t at, std::int64_t keys,
                      float* sums) {
    const std::int64_t tiles = padded / 16;
    RunSteps(MixSteps<TileUnit>(
        reinterpret_cast<const std::uint16_t*>(head.k_columns) + at / kDepth * tiles * kTileWords,
        tiles, scratch.pairs, keys, sums));
  }

  // sums: as Scratch::sums.
  static void Shrink(const VF* shrink, std::int64_t padded, float* HWY_RESTRICT sums) {
    const DF d;
    for (std::int64_t tile = 0; tile < padded / 16; ++tile) {
      for (std::int64_t group = 0; group < kGroups; ++group) {
        for (std::int64_t x = 0; x < kTileFloats; x += 16, sums += 16) {
          hn::Store(hn::Mul(hn::Load(d, sums), shrink[group]), d, sums);
        }
      }
    }
  }
  // Rows of a group: to: [16][padded].
  static void RowsOut(const float* sums, std::int64_t padded, std::int64_t group, float* to) {
    for (std::int64_t tile = 0; tile < padded / 16; ++tile) {
      TransposePairs(
          reinterpret_cast<const std::uint32_t*>(sums + (tile * kGroups + group) * kTileFloats),
          kLanes, kLanes, reinterpret_cast<std::uint32_t*>(to + tile * 16),
          static_cast<std::size_t>(padded));
    }
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace tsallis
HWY_AFTER_NAMESPACE();
#endif  // TSALLIS_TILES_HERE

#endif  // per-target include guard
