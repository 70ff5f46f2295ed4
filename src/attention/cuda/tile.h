// Tiles of rows in shared memory, and products with them.
//
// A tile holds rows of D elements as pieces of 16 bytes, exchanged within groups of eight so that
// eight rows at one column lie in eight banks. Elements beyond a row's columns, or of no row, are
// 0. Products are m16n8k16: a warp has 16 rows of sums, a lane those at rows lane / 4 and lane / 4
// + 8, two columns of each piece of eight. float32's have the same sums in the same lanes.
#pragma once

#include <cstdint>

#include "attention/cuda/call.h"
#include "core/cuda/device.h"

namespace tsallis::cuda {
inline namespace TSALLIS_SIDE {

// Elements of a piece.
template <class Type>
inline constexpr int kPiece = 16 / static_cast<int>(sizeof(typename Type::Element));

// The place of piece `piece` of row `row`.
template <class Type, int D>
TSALLIS_DEVICE int PieceAt(int row, int piece) {
  constexpr int kPieces = D / kPiece<Type>;
  static_assert(kPieces == 4 || kPieces % 8 == 0);
  if constexpr (kPieces == 4) return row * kPieces + (piece ^ (row >> 1 & 3));
  return row * kPieces + ((piece & ~7) | ((piece ^ row) & 7));
}

// PieceAt(row, piece + more) from `at`, PieceAt(row, piece); piece: 0 or 1, more: even. With `more`
// known when it is compiled, all pieces of a row are near four places.
template <class Type, int D>
TSALLIS_DEVICE int PieceBehind(int at, int more) {
  return D / kPiece<Type> == 4 ? at ^ more : (at ^ (more & 7)) + (more & ~7);
}

// Begins to copy kRows rows. row_of(i): the row for place i, below 0 for none. All threads call it.
template <class Type, int D, int kRows, class RowOf>
TSALLIS_DEVICE void FetchTile(const Shared<Words4>& tile, const ArrayRows<Type>& rows, int columns,
                              const RowOf& row_of) {
  constexpr int kPieces = D / kPiece<Type>;
  TSALLIS_UNROLL
  for (int i = ThreadIndex(); i < kRows * kPieces; i += kThreads) {
    const int place = i / kPieces, piece = i % kPieces;
    const std::int64_t row = row_of(place);
    const bool used = row >= 0 && piece * kPiece<Type> < columns;
    CopyAsync(tile, PieceAt<Type, D>(place, piece),
              used ? rows.At(row) + piece * kPiece<Type> : rows.data, used);
  }
}

// A thread's share of tiles that are runs of rows of one array: what FetchTile copies, with
// addresses that are computed once and move along.
template <class Type, int D, int kRows>
class TileRun {
 public:
  TSALLIS_DEVICE TileRun(const ArrayRows<Type>& rows, int columns) : rows_(rows) {
    const int piece = ThreadIndex() % kPieces;
    used_ = piece * kPiece<Type> < columns;
    own_ = rows.At(Place()) + (used_ ? piece * kPiece<Type> : 0);
  }
  // Begins to copy rows [first, first + kRows), with zeros for those from `end` on.
  TSALLIS_DEVICE void Fetch(const Shared<Words4>& tile, int first, int end) const {
    const int piece = ThreadIndex() % kPieces;
    const typename Type::Element* from = own_ + first * rows_.stride;
    if (first + kRows <= end) {
      TSALLIS_UNROLL
      for (int i = 0; i < kRows / kStep; ++i) {
        CopyAsync(tile, PieceAt<Type, D>(Place() + i * kStep, piece), from, used_);
        from += kStep * rows_.stride;
      }
    } else {
      TSALLIS_LOOP
      for (int i = 0; i < kRows / kStep; ++i) {
        const bool used = used_ && first + Place() + i * kStep < end;
        CopyAsync(tile, PieceAt<Type, D>(Place() + i * kStep, piece), used ? from : rows_.data,
                  used);
        from += kStep * rows_.stride;
      }
    }
  }

 private:
  static constexpr int kPieces = D / kPiece<Type>, kStep = kThreads / kPieces;
  static_assert(kRows % kStep == 0);

  TSALLIS_DEVICE static int Place() { return ThreadIndex() / kPieces; }

  ArrayRows<Type> rows_;
  const typename Type::Element* own_;
  bool used_;
};

// Whether what the running thread copied holds neither NaN nor an infinity, which matters to matrix
// instructions alone (AddWeighted). After its wait.
template <class Type, int D, int kRows>
TSALLIS_DEVICE bool IsFinite(const Shared<Words4>& tile) {
  bool finite = true;
  if constexpr (!kIsFloat32<Type>) {
    constexpr std::uint32_t kExponent = Type::kNarrowRange ? 0x7C00 : 0x7F80;
    TSALLIS_UNROLL
    for (int i = ThreadIndex(); i < kRows * (D / 8); i += kThreads) {
      const Words4 words = tile.Load(PieceAt<Type, D>(i / (D / 8), i % (D / 8)));
      TSALLIS_UNROLL
      for (int j = 0; j < 4; ++j) {
        finite = finite && (words.w[j] & kExponent) != kExponent &&
                 (words.w[j] >> 16 & kExponent) != kExponent;
      }
    }
  }
  return finite;
}

// Whether all threads of the block say yes. flags: [kWarps]. Holds the barrier behind which a tile
// may be read.
TSALLIS_DEVICE bool AllThreads(const Shared<int>& flags, bool yes) {
  const bool no = Any(!yes);
  if (Lane() == 0) flags.Store(WarpIndex(), no ? 1 : 0);
  SyncBlock();
  int count = 0;
  TSALLIS_UNROLL
  for (int i = 0; i < kWarps; ++i) count += flags.Load(i);
  return count == 0;
}

// The first of the 16 rows that a warp has on a product's left side; of 16 rows every warp has all.
template <int kRows>
TSALLIS_DEVICE int FirstLeftRow() {
  return kRows == 16 ? 0 : WarpIndex() * 16;
}

// The rows on a product's left side: a tile, from which a lane takes fragments.
template <class Type, int D, int kRows>
class LeftRows {
 public:
  static constexpr std::size_t kBytes = kRows * D * 2;  // of shared memory

  // Begins to copy the block's rows to byte `byte`; row_of as for FetchTile.
  template <class RowOf>
  TSALLIS_DEVICE LeftRows(std::size_t byte, const ArrayRows<Type>& rows, int columns,
                          const RowOf& row_of)
      : tile_(byte) {
    FetchTile<Type, D, kRows>(tile_, rows, columns, row_of);
  }
  // The fragment of columns [16 c, 16 c + 16). After the copies.
  TSALLIS_DEVICE void Load(std::uint32_t (&a)[4], int c) const {
    const int own = PieceAt<Type, D>(FirstLeftRow<kRows>() + Lane() % 16, Lane() / 16);
    LoadMatrices(a, tile_, PieceBehind<Type, D>(own, 2 * c));
  }
  // sums[j] += left times rows [8 j, 8 j + 8) of `tile`: products of rows with rows.
  template <int kBlocks>
  TSALLIS_DEVICE void Multiply(float (&sums)[kBlocks][4], const Shared<Words4>& tile) const {
    const int lane = Lane();
    TSALLIS_UNROLL
    for (int c = 0; c < D / 16; ++c) {
      std::uint32_t a[4];
      LoadMatrices(a, tile_,
                   PieceAt<Type, D>(FirstLeftRow<kRows>() + lane % 16, 2 * c + lane / 16));
      TSALLIS_UNROLL
      for (int j = 0; j < kBlocks; j += 2) {
        std::uint32_t b[4];
        const int row = 8 * j + lane / 16 * 8 + lane % 8;
        LoadMatrices(b, tile, PieceAt<Type, D>(row, 2 * c + lane / 8 % 2));
        MultiplyMatrices<Type>(sums[j], a, b[0], b[1]);
        MultiplyMatrices<Type>(sums[j + 1], a, b[2], b[3]);
      }
    }
  }

 private:
  Shared<Words4> tile_;
};

// A lane's piece of a row of float32, times a sign; zeros without a row. Shared memory has no room
// for these rows beside the tiles: they come from the first cache, to four lanes at once.
struct FloatPiece {
  float x[4];

  TSALLIS_DEVICE static FloatPiece Of(const float* row, int piece, float sign) {
    FloatPiece floats = {};
    if (row == nullptr) return floats;
    const Words4 words = LoadDevice(reinterpret_cast<const Words4*>(row) + piece);
    TSALLIS_UNROLL
    for (int i = 0; i < 4; ++i) floats.x[i] = sign * FloatOf(words.w[i]);
    return floats;
  }
};

// Products of a lane's kOwn rows with rows [0, 8 kBlocks) of the tile. sum_of(r, j, e): the sum of
// its row r and row 8 j + 2 (lane % 4) + e of the tile. signs: 1 or -1, by which rows are
// multiplied.
template <int D, int kOwn, int kBlocks, class SumOf>
TSALLIS_DEVICE void MultiplyFloats(const SumOf& sum_of, const float* const (&left)[kOwn],
                                   const float (&signs)[kOwn], int columns,
                                   const Shared<Words4>& tile) {
  const int t = Lane() % 4;
  TSALLIS_LOOP
  for (int piece = 0; piece * 4 < columns; ++piece) {
    FloatPiece a[kOwn];
    TSALLIS_UNROLL
    for (int r = 0; r < kOwn; ++r) a[r] = FloatPiece::Of(left[r], piece, signs[r]);
    TSALLIS_UNROLL
    for (int j = 0; j < kBlocks; ++j) {
      TSALLIS_UNROLL
      for (int e = 0; e < 2; ++e) {
        const Words4 b = tile.Load(PieceAt<Float32, D>(8 * j + 2 * t + e, piece));
        TSALLIS_UNROLL
        for (int r = 0; r < kOwn; ++r) {
          float& sum = sum_of(r, j, e);
          TSALLIS_UNROLL
          for (int x = 0; x < 4; ++x) sum = fmaf(a[r].x[x], FloatOf(b.w[x]), sum);
        }
      }
    }
  }
}

template <int D, int kRows>
class LeftRows<Float32, D, kRows> {
 public:
  static constexpr std::size_t kBytes = 0;

  template <class RowOf>
  TSALLIS_DEVICE LeftRows(std::size_t, const ArrayRows<Float32>& rows, int columns,
                          const RowOf& row_of)
      : columns_(columns) {
    TSALLIS_UNROLL
    for (int half = 0; half < 2; ++half) {
      const std::int64_t row = row_of(FirstLeftRow<kRows>() + half * 8 + Lane() / 4);
      rows_[half] = row >= 0 ? rows.At(row) : nullptr;
    }
  }
  template <int kBlocks>
  TSALLIS_DEVICE void Multiply(float (&sums)[kBlocks][4], const Shared<Words4>& tile) const {
    const float signs[2] = {1.0f, 1.0f};
    MultiplyFloats<D, 2, kBlocks>(
        [&](int half, int j, int e) -> float& { return sums[j][2 * half + e]; }, rows_, signs,
        columns_, tile);
  }

 private:
  const float* rows_[2];
  int columns_;
};

// LeftRows whose fragments stay in registers, where these are enough, for rows that many tiles
// pass. Products are in the same order: the same bits.
template <class Type, int D, int kRows>
class HeldRows {
 public:
  static constexpr bool kHolds = !kIsFloat32<Type> && D <= 128;

  // After the copies of `rows`, and the barrier behind.
  TSALLIS_DEVICE explicit HeldRows(const LeftRows<Type, D, kRows>& rows) : rows_(rows) {
    if constexpr (kHolds) {
      TSALLIS_UNROLL
      for (int c = 0; c < D / 16; ++c) rows.Load(a_[c], c);
    }
  }
  // sums[j] += left times rows [8 j, 8 j + 8) of `tile`.
  template <int kBlocks>
  TSALLIS_DEVICE void Multiply(float (&sums)[kBlocks][4], const Shared<Words4>& tile) const {
    if constexpr (kIsFloat32<Type>) {
      rows_.Multiply(sums, tile);
    } else {
      constexpr int kPieces = D / kPiece<Type>;
      const int lane = Lane();
      const int own = PieceAt<Type, D>(lane / 16 * 8 + lane % 8, lane / 8 % 2);
      TSALLIS_UNROLL
      for (int c = 0; c < D / 16; ++c) {
        const int at = PieceBehind<Type, D>(own, 2 * c);
        std::uint32_t a[4], b[kBlocks / 2][4];
        TSALLIS_UNROLL
        for (int j = 0; j < kBlocks; j += 2) LoadMatrices(b[j / 2], tile, 8 * j * kPieces + at);
        if (!kHolds) rows_.Load(a, c);
        TSALLIS_UNROLL
        for (int i = 0; kHolds && i < 4; ++i) a[i] = a_[kHolds ? c : 0][i];
        TSALLIS_UNROLL
        for (int j = 0; j < kBlocks; j += 2) {
          MultiplyMatrices<Type>(sums[j], a, b[j / 2][0], b[j / 2][1]);
          MultiplyMatrices<Type>(sums[j + 1], a, b[j / 2][2], b[j / 2][3]);
        }
      }
    }
  }

 private:
  const LeftRows<Type, D, kRows>& rows_;
  std::uint32_t a_[kHolds ? D / 16 : 1][4];
};

template <int kBlocks>
TSALLIS_DEVICE void Clear(float (&sums)[kBlocks][4]) {
  TSALLIS_UNROLL
  for (int j = 0; j < kBlocks; ++j) {
    TSALLIS_UNROLL
    for (int e = 0; e < 4; ++e) sums[j][e] = 0.0f;
  }
}

// Two float32 numbers as the sum of two pairs of 16-bit numbers: 16 digits of bfloat16, 22 of
// float16.
template <class Type>
TSALLIS_DEVICE void SplitPair(float x, float y, std::uint32_t* high, std::uint32_t* low) {
  const std::uint32_t pair = PairOf<Type>(x, y);
  *high = pair;
  *low = PairOf<Type>(x - Type::ToFloat(static_cast<std::uint16_t>(pair)),
                      y - Type::ToFloat(static_cast<std::uint16_t>(pair >> 16)));
}

// Adds two columns x, y of a row to the sums of the two rows that a lane has, by the row's weights
// for them. A weight of 0 adds nothing, as 0 times NaN would not.
TSALLIS_DEVICE void AddWeightedPair(float (&total)[4], float above, float below, float x, float y) {
  if (above != 0.0f) {
    total[0] = fmaf(above, x, total[0]);
    total[1] = fmaf(above, y, total[1]);
  }
  if (below != 0.0f) {
    total[2] = fmaf(below, x, total[2]);
    total[3] = fmaf(below, y, total[3]);
  }
}

// AddWeighted in float32: every lane of a quad gets a row's two weights, and adds to its columns.
template <int D, int kRows, int kBlocks>
TSALLIS_DEVICE void AddWeightedFloats(float (&total)[kBlocks][4], const float (&w)[kRows / 8][4],
                                      std::size_t tile_byte, int first) {
  const int lane = Lane(), t = lane % 4;
  const Shared<Words2> pairs(tile_byte);
  TSALLIS_UNROLL
  for (int i = 0; i < kRows / 8; ++i) {
    TSALLIS_LOOP
    for (int from = 0; from < 4; ++from) {
      TSALLIS_UNROLL
      for (int e = 0; e < 2; ++e) {
        const int row = 8 * i + 2 * from + e;
        const float above = Shuffle(w[i][e], (lane & ~3) + from);
        const float below = Shuffle(w[i][2 + e], (lane & ~3) + from);
        TSALLIS_UNROLL
        for (int j = 0; j < kBlocks; ++j) {
          const int column = first + 8 * j + 2 * t;
          const Words2 pair = pairs.Load(PieceAt<Float32, D>(row, column / 4) * 2 + column / 2 % 2);
          const float x = FloatOf(pair.w[0]), y = FloatOf(pair.w[1]);
          AddWeightedPair(total[j], above, below, x, y);
        }
      }
    }
  }
}

// AddWeighted for finite tiles. Two products each: weights keep more digits than a 16-bit number
// has. Four blocks of columns at a time: between two products that add to the same sums lie three
// others, so that none waits.
template <class Type, int D, int kRows, int kBlocks>
TSALLIS_DEVICE void AddFiniteWeighted(float (&total)[kBlocks][4], const float (&w)[kRows / 8][4],
                                      const Shared<Words4>& tile, int first) {
  const int own = PieceAt<Type, D>(Lane() % 16, Lane() / 16);
  static_assert(kBlocks % 4 == 0);
  TSALLIS_UNROLL
  for (int c = 0; c < kRows / 16; ++c) {
    std::uint32_t high[4], low[4];
    TSALLIS_UNROLL
    for (int i = 0; i < 4; ++i) {
      const float* pair = &w[2 * c + i / 2][i % 2 * 2];
      SplitPair<Type>(pair[0], pair[1], &high[i], &low[i]);
    }
    TSALLIS_UNROLL
    for (int j = 0; j < kBlocks; j += 4) {
      std::uint32_t b[2][4];
      TSALLIS_UNROLL
      for (int i = 0; i < 2; ++i) {
        LoadTransposed(b[i], tile, 2 * D * c + PieceBehind<Type, D>(own, first / 8 + j + 2 * i));
      }
      TSALLIS_UNROLL
      for (int i = 0; i < 4; ++i) {
        MultiplyMatrices<Type>(total[j + i], low, b[i / 2][i % 2 * 2], b[i / 2][i % 2 * 2 + 1]);
      }
      TSALLIS_UNROLL
      for (int i = 0; i < 4; ++i) {
        MultiplyMatrices<Type>(total[j + i], high, b[i / 2][i % 2 * 2], b[i / 2][i % 2 * 2 + 1]);
      }
    }
  }
}

// Brings the next block to the front, and the first to the end. An index of registers would put
// them into memory: in loops that are not unrolled, for long bodies, the block at hand is the
// first.
template <int kBlocks>
TSALLIS_DEVICE void Rotate(float (&w)[kBlocks][4]) {
  TSALLIS_UNROLL
  for (int e = 0; e < 4; ++e) {
    const float first = w[0][e];
    TSALLIS_UNROLL
    for (int i = 0; i + 1 < kBlocks; ++i) w[i][e] = w[i + 1][e];
    w[kBlocks - 1][e] = first;
  }
}

// Gives body(j, w[j]) one block after the other.
template <int kBlocks, class Body>
TSALLIS_DEVICE void ForBlocks(float (&w)[kBlocks][4], const Body& body) {
  TSALLIS_LOOP
  for (int j = 0; j < kBlocks; ++j) {
    body(j, w[0]);
    Rotate(w);
  }
}

// AddWeighted for tiles that are not finite: a weight of 0 leaves its row alone.
template <class Type, int D, int kRowBlocks, int kBlocks>
TSALLIS_DEVICE void AddTouchyWeighted(float (&total)[kBlocks][4], float (&w)[kRowBlocks][4],
                                      std::size_t tile_byte, int first) {
  const int lane = Lane();
  const Shared<std::uint32_t> pairs(tile_byte);
  ForBlocks(w, [&](int i, float(&block)[4]) {
    TSALLIS_LOOP
    for (int row = 0; row < 8; ++row) {
      const int owner = (lane & ~3) + row / 2;
      const float above = Shuffle(row % 2 == 0 ? block[0] : block[1], owner);
      const float below = Shuffle(row % 2 == 0 ? block[2] : block[3], owner);
      TSALLIS_UNROLL
      for (int j = 0; j < kBlocks; ++j) {
        const int piece = PieceAt<Type, D>(8 * i + row, first / 8 + j);
        const std::uint32_t pair = pairs.Load(piece * 4 + lane % 4);
        const float x = Type::ToFloat(static_cast<std::uint16_t>(pair));
        const float y = Type::ToFloat(static_cast<std::uint16_t>(pair >> 16));
        AddWeightedPair(total[j], above, below, x, y);
      }
    }
  });
}

// total[j] += w times columns [first + 8 j, first + 8 j + 8) of the kRows rows of the tile at
// `tile_byte`, for weights w [16, kRows] as a product leaves them. `finite`: whether the tile is;
// else a weight of 0 leaves its row alone, as 0 times NaN would not.
template <class Type, int D, int kRows, int kBlocks>
TSALLIS_DEVICE void AddWeighted(float (&total)[kBlocks][4], float (&w)[kRows / 8][4],
                                std::size_t tile_byte, int first, bool finite) {
  if constexpr (kIsFloat32<Type>) {
    AddWeightedFloats<D, kRows>(total, w, tile_byte, first);
  } else if (finite) {
    AddFiniteWeighted<Type, D, kRows>(total, w, Shared<Words4>(tile_byte), first);
  } else {
    AddTouchyWeighted<Type, D>(total, w, tile_byte, first);
  }
}

// Powers of two by which weights are divided before they become 16-bit numbers, one for each of a
// lane's two rows: float16 has no exponents for gradients as they come. bfloat16 has, and needs
// none. The sums that weights are added to are divided by the same.
template <class Type>
struct RowScale {
  float scale[2], inverse[2];

  TSALLIS_DEVICE RowScale() {
    scale[0] = scale[1] = Type::kNarrowRange ? 0x1p-100f : 1.0f;
    inverse[0] = inverse[1] = Type::kNarrowRange ? 0x1p100f : 1.0f;
  }
  // Divides the weights; if they are larger than any before, the total by a larger number, too.
  template <int kRowBlocks, int kBlocks>
  TSALLIS_DEVICE void Divide(float (&w)[kRowBlocks][4], float (&total)[kBlocks][4]) {
    for (int half = 0; Type::kNarrowRange && half < 2; ++half) {
      float most = 0.0f;
      TSALLIS_UNROLL
      for (int j = 0; j < kRowBlocks; ++j) {
        most = fmaxf(most, fmaxf(fabsf(w[j][2 * half]), fabsf(w[j][2 * half + 1])));
      }
      most = fmaxf(most, ShuffleXor(most, 1));
      most = fmaxf(most, ShuffleXor(most, 2));
      // The power of two below, times 2^-12: weights below 2^13 leave float16 room for small ones.
      const float needed = FloatOf(BitsOf(most) & 0x7F800000u) * 0x1p-12f;
      if (needed > scale[half] && needed <= 0x1p100f) {
        const float change = scale[half] / needed;
        TSALLIS_UNROLL
        for (int j = 0; j < kBlocks; ++j) {
          total[j][2 * half] *= change;
          total[j][2 * half + 1] *= change;
        }
        scale[half] = needed;
        inverse[half] = 1.0f / needed;
      }
      TSALLIS_UNROLL
      for (int j = 0; j < kRowBlocks; ++j) {
        w[j][2 * half] *= inverse[half];
        w[j][2 * half + 1] *= inverse[half];
      }
    }
  }
};

}  // namespace TSALLIS_SIDE
}  // namespace tsallis::cuda
