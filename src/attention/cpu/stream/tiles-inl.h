// The streamed softmax's products on tiles, cut into steps, and rows on their way in and out.
// Included once per instruction set.
#if defined(TSALLIS_ATTENTION_CPU_STREAM_TILES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TSALLIS_ATTENTION_CPU_STREAM_TILES_INL_H_
#undef TSALLIS_ATTENTION_CPU_STREAM_TILES_INL_H_
#else
#define TSALLIS_ATTENTION_CPU_STREAM_TILES_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstring>

#include "attention/cpu/matrix_unit.h"
#include "attention/cpu/pairs-inl.h"
#include "attention/cpu/stream/stream.h"

// Tiles need vectors of 16 floats beside them.
#undef TSALLIS_STREAM_HERE
#if HWY_TARGET <= HWY_AVX3
#define TSALLIS_STREAM_HERE 1
#else
#define TSALLIS_STREAM_HERE 0
#endif

#if TSALLIS_STREAM_HERE
HWY_BEFORE_NAMESPACE();
namespace tsallis {
namespace HWY_NAMESPACE {

using stream::kDepth;
using stream::kGroups;
using stream::kStrip;
using stream::kTileWords;
using DU = hn::RebindToUnsigned<DF>;

static_assert(kLanes == static_cast<std::size_t>(stream::kLanes));
constexpr std::int64_t kTileFloats = 256;                       // 16 x 16
constexpr std::int64_t kGroupScores = kStrip * stream::kLanes;  // of one vector of queries
constexpr std::int64_t kPartPairs = kStrip / kDepth * kGroups * kTileFloats;
constexpr std::int64_t kSlotKeys = 16;  // between two steps of the tile unit
constexpr std::int64_t kPartRows = kStrip / 16 * kTileWords;
constexpr double kLog2E = 1.4426950408889634;
constexpr double kLn2 = 0.6931471805599453;

// ---- products -----------------------------------------------------------------------------------

#define TSALLIS_STREAM_TILES __attribute__((target(HWY_TARGET_STR ",amx-tile,amx-bf16")))

// Products are cut into steps of some hundred cycles of the tile unit, so that vector code can run
// between them: tiles alone took 12 and vectors alone 12 of 29 cycles for 16 scores one after the
// other.

// scores[group][key][lane] = <row of the key, column of the lane> for `keys` keys, a multiple
// of 32. rows: [keys / 16][chunks] tiles; columns: [kGroups][chunks] tiles.
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
    const std::uint32_t* weights = pairs_ + step_ * kGroups * kTileFloats;
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

// The tiles of `count` rows as columns of a product: to: [kGroups][depth / 32] tiles.
HWY_INLINE void StreamColumns(const std::uint16_t* rows, std::int64_t depth, std::uint32_t* to) {
  const auto words = static_cast<std::size_t>(depth / 2);
  for (std::int64_t group = 0; group < kGroups; ++group) {
    TransposePairs(reinterpret_cast<const std::uint32_t*>(rows + group * stream::kLanes * depth),
                   words, words, to + group * depth / kDepth * kTileFloats, kLanes);
  }
}

// Loads the first `count` rows of kRows; the others are 0. Returns the largest magnitude.
HWY_INLINE float StreamLoad(const HeadRows& rows, std::int64_t count, std::int64_t columns,
                            std::int64_t depth, std::uint16_t* to) {
  std::fill_n(to + count * depth, (stream::kRows - count) * depth, std::uint16_t{0});
  return PackHalves(rows, static_cast<std::size_t>(count), static_cast<std::size_t>(columns),
                    static_cast<std::size_t>(depth), to);
}

// Tiles of 32 keys from `rows`, [32][depth]: as rows, [2][depth / 32] tiles, and as columns,
// [padded / 16] tiles; either may be null.
HWY_INLINE void StreamPackTiles(const std::uint16_t* rows, std::int64_t depth, std::int64_t padded,
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

void StreamPack(const AttentionParams& params, const stream::PackedKv& head, std::int64_t begin,
                std::int64_t end, bool backward, float* k_bound, float* v_bound) {
  const stream::Widths widths(params);
  HWY_ALIGN std::uint16_t rows[kDepth * 512];
  *k_bound = *v_bound = 0.0f;
  const auto tiles = [](const std::uint16_t* base, std::int64_t per_step, std::int64_t step) {
    return const_cast<std::uint16_t*>(base) + step * per_step * kTileWords;
  };
  for (std::int64_t key = begin; key < end; key += kDepth) {
    const std::int64_t count = std::min(kDepth, head.keys - key), step = key / kDepth;
    const std::int64_t row = head.sequence.k.begin + key;
    RaiseBound(k_bound, StreamLoad(KeyRows(params, head.sequence, head.kv, row), count,
                                   params.head_dim, widths.d_depth, rows));
    StreamPackTiles(rows, widths.d_depth, widths.d_padded,
                    tiles(head.k_rows, 2 * widths.d_depth / kDepth, step),
                    backward ? tiles(head.k_columns, widths.d_padded / 16, step) : nullptr);
    RaiseBound(v_bound, StreamLoad(ValueRows(params, head.sequence, head.kv, row), count,
                                   params.value_dim, widths.e_depth, rows));
    StreamPackTiles(rows, widths.e_depth, widths.e_padded,
                    backward ? tiles(head.v_rows, 2 * widths.e_depth / kDepth, step) : nullptr,
                    backward ? nullptr : tiles(head.v_columns, widths.e_padded / 16, step));
  }
}
static_assert(stream::kRows == kDepth);

// ---- rows out -----------------------------------------------------------------------------------

// Rows of a block from their tiles: to: [kLanes][padded], of one group.
HWY_INLINE void StreamRowsOut(const float* sums, std::int64_t tiles, std::int64_t group,
                              float* to) {
  for (std::int64_t tile = 0; tile < tiles; ++tile) {
    TransposePairs(
        reinterpret_cast<const std::uint32_t*>(sums + (tile * kGroups + group) * kTileFloats),
        kLanes, kLanes, reinterpret_cast<std::uint32_t*>(to + tile * stream::kLanes),
        static_cast<std::size_t>(tiles * stream::kLanes));
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tsallis
HWY_AFTER_NAMESPACE();
#endif  // TSALLIS_STREAM_HERE

#endif  // per-target include guard
