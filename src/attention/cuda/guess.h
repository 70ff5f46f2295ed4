// Guesses of thresholds, from which the sweep's bounds begin (attention/threshold_guess.h).
//
// A kernel sums the second moments of a sample of each key head's keys, the next one computes mean
// and deviation of every row's scores from them, and the sweep solves the pilots without a guess.
// Then the last one compares their thresholds with the curve, for each head.
#pragma once

#include <cstdint>

#include "attention/cuda/call.h"
#include "attention/cuda/sweep.h"
#include "attention/cuda/tile.h"
#include "attention/threshold_guess.h"

namespace tsallis::cuda {
inline namespace TSALLIS_SIDE {

struct GuessCall {
  DeviceCall call;
  // [batch, kv_heads, D, D] and [batch, kv_heads, D]: means of k k^T and of k, for sequences.
  float* moments = nullptr;
  float* means = nullptr;
  Words2* rows = nullptr;         // [rows]: Guesses::Row
  float* offsets = nullptr;       // [batch heads]
  const int* counts = nullptr;    // [rows]: of pilots
  const float* bounds = nullptr;  // [rows]: of pilots, what their guess should have been

  TSALLIS_DEVICE std::int64_t KeyHead(int b, int kv) const {
    return static_cast<std::int64_t>(b) * call.kv_heads + kv;
  }
};

// An element of a tile's row.
template <class Type, int D>
TSALLIS_DEVICE float TileElement(std::size_t tile_byte, int row, int column) {
  constexpr int kOfPiece = kPiece<Type>, kOfWord = kOfPiece / 4;
  const int piece = PieceAt<Type, D>(row, column / kOfPiece);
  const std::uint32_t word =
      Shared<std::uint32_t>(tile_byte).Load(piece * 4 + column % kOfPiece / kOfWord);
  if constexpr (kIsFloat32<Type>) {
    return FloatOf(word);
  } else {
    return Type::ToFloat(static_cast<std::uint16_t>(word >> column % 2 * 16));
  }
}

template <class Type, int D>
struct MomentsShape {
  // Rows and columns of k k^T that a block has: a warp has 16 rows, in as many registers as there
  // are.
  static constexpr int kRows = D < kWarps * 16 ? D : kWarps * 16, kColumns = D < 128 ? D : 128;
  static constexpr int kParts = D / kRows * (D / kColumns);
  static constexpr int kKeys = kIsFloat32<Type> ? 32 : 64, kStages = 2;
  static constexpr std::size_t kTileBytes = kKeys * D * sizeof(typename Type::Element);
  static constexpr std::size_t kSharedBytes = kStages * kTileBytes;
};

template <class Type, int D>
TSALLIS_KERNEL(kThreads)
MomentsKernel(const GuessCall guess) {
  using Shape = MomentsShape<Type, D>;
  constexpr int kKeys = Shape::kKeys;
  const DeviceCall& call = guess.call;
  const Sequence sequence = Head::SequenceOf(call, BlockZ());
  const std::int64_t keys = sequence.k.size();
  if (keys < kGuessKeys) return;
  const int samples = static_cast<int>(MomentSamples(keys));
  const auto k_rows = ArrayRows<Type>::Of(call.k, sequence.array_batch, BlockY());
  constexpr int kAcross = D / Shape::kColumns;
  const int first = BlockX() / kAcross * Shape::kRows + WarpIndex() * 16;
  const int first_column = BlockX() % kAcross * Shape::kColumns;
  const auto fetch = [&](int from, int stage) {
    FetchTile<Type, D, kKeys>(
        Shared<Words4>(stage * Shape::kTileBytes), k_rows, call.head_dim, [&](int i) {
          return from + i < samples ? sequence.k.begin + MomentRow(from + i, keys) : -1;
        });
  };
  float total[Shape::kColumns / 8][4], sums[2] = {0.0f, 0.0f};
  Clear(total);
  fetch(0, 0);
  CommitCopies();
  TSALLIS_LOOP
  for (int from = 0, stage = 0; from < samples; from += kKeys, stage ^= 1) {
    WaitForCopies<0>();
    SyncBlock();  // the tile is there, and nobody reads the one before
    if (from + kKeys < samples) fetch(from + kKeys, stage ^ 1);
    CommitCopies();
    if (first >= D) continue;
    const std::size_t tile = stage * Shape::kTileBytes;
    // The transpose of 16 of the tile's columns.
    float w[kKeys / 8][4];
    TSALLIS_UNROLL
    for (int i = 0; i < kKeys / 8; ++i) {
      TSALLIS_UNROLL
      for (int e = 0; e < 4; ++e) {
        const int key = 8 * i + Lane() % 4 * 2 + e % 2, column = first + e / 2 * 8 + Lane() / 4;
        w[i][e] = TileElement<Type, D>(tile, key, column);
        sums[e / 2] += w[i][e];
      }
    }
    AddWeighted<Type, D, kKeys>(total, w, tile, first_column, true);
  }
  if (first >= D) return;
  const std::int64_t key_head = guess.KeyHead(BlockZ(), BlockY());
  const float share = 1.0f / static_cast<float>(samples);
  TSALLIS_UNROLL
  for (int half = 0; half < 2; ++half) {
    const std::int64_t row = key_head * D + first + half * 8 + Lane() / 4;
    const float sum = QuadSum(sums[half]);
    if (Lane() % 4 == 0 && first_column == 0) StoreDevice(guess.means + row, share * sum);
    TSALLIS_UNROLL
    for (int j = 0; j < Shape::kColumns / 8; ++j) {
      StoreDevice(
          reinterpret_cast<Words2*>(guess.moments + row * D + first_column) + 4 * j + Lane() % 4,
          Words2{{BitsOf(share * total[j][2 * half]), BitsOf(share * total[j][2 * half + 1])}});
    }
  }
}

template <class Type, int D>
struct RowGuessShape {
  using Sweep = SweepShape<Type, D>;
  static constexpr int kTiles = Sweep::kTiles, kRows = Sweep::kRows, kKeys = Sweep::kKeys;
  static constexpr std::size_t kMeansAt = kKeys * D * sizeof(typename Type::Element);
  static constexpr std::size_t kCurveAt = kMeansAt + D * sizeof(float);
  static constexpr std::size_t kSharedBytes = kCurveAt + CurvePoints::kCount * sizeof(float);
};

// Mean and deviation of the scores of a block's rows, and where the curve places their thresholds.
template <class Type, int D>
TSALLIS_KERNEL(kThreads, 2)
RowGuessKernel(const GuessCall guess) {
  using Shape = RowGuessShape<Type, D>;
  constexpr int kKeys = Shape::kKeys, kOwn = 2 * Shape::kTiles, kPieces = D / kPiece<Type>;
  const DeviceCall& call = guess.call;
  const BlockPlace place =
      BlockPlace::Of(call, call.ranges.q_begin, false, BlockX(), BlockZ(), Shape::kRows);
  if (!place.any || !Head::IsSparse(call, BlockY())) return;
  const Head head = Head::Of(call, place.b, BlockY());
  const Sequence& sequence = head.sequence;
  const bool has_moments = sequence.k.size() >= kGuessKeys;
  const int t = Lane() % 4;
  const int first = static_cast<int>(place.first) + WarpIndex() * 16 * Shape::kTiles + Lane() / 4;
  const auto queries_of = ArrayRows<Type>::Of(call.q, sequence.array_batch, head.h);
  SweepQueries<Type, D, Shape::kTiles> queries;
  TSALLIS_UNROLL
  for (int r = 0; r < kOwn; ++r) {
    const bool in = has_moments && first + 8 * r < sequence.q.end;
    queries.Set(r, in ? queries_of.At(first + 8 * r) : nullptr, false, call.head_dim);
  }
  const Shared<Words4> tile(0);
  const Shared<float> means(Shape::kMeansAt), curve(Shape::kCurveAt);
  const std::int64_t key_head = guess.KeyHead(static_cast<int>(place.b), head.kv);
  for (int i = ThreadIndex(); has_moments && i < D; i += kThreads) {
    means.Store(i, LoadDevice(guess.means + key_head * D + i));
  }
  for (int i = ThreadIndex(); i < CurvePoints::kCount; i += kThreads) {
    curve.Store(i, static_cast<float>(CurvePoints::At(static_cast<double>(head.power), i)));
  }
  float mean[kOwn] = {}, variance[kOwn] = {};
  TSALLIS_UNROLL
  for (int column = 0; column < D; column += kKeys) {
    SyncBlock();  // the last tile has been read, and the means are there
    // The covariance, a row for each of these columns.
    TSALLIS_LOOP
    for (int i = ThreadIndex(); i < kKeys * kPieces; i += kThreads) {
      const int x = column + i / kPieces, y = i % kPieces * kPiece<Type>;
      float values[kPiece<Type>] = {};
      TSALLIS_UNROLL
      for (int four = 0; four < kPiece<Type>; four += 4) {
        if (!has_moments || x >= D) continue;
        const Words4 moments = LoadDevice(
            reinterpret_cast<const Words4*>(guess.moments + (key_head * D + x) * D + y + four));
        TSALLIS_UNROLL
        for (int e = 0; e < 4; ++e) {
          values[four + e] = FloatOf(moments.w[e]) - means.Load(x) * means.Load(y + four + e);
        }
      }
      Words4 piece;
      TSALLIS_UNROLL
      for (int e = 0; e < 4; ++e) {
        if constexpr (kIsFloat32<Type>) {
          piece.w[e] = BitsOf(values[e]);
        } else {
          piece.w[e] = PairOf<Type>(values[2 * e], values[2 * e + 1]);
        }
      }
      tile.Store(PieceAt<Type, D>(i / kPieces, i % kPieces), piece);
    }
    SyncBlock();
    float s[Shape::kTiles][kKeys / 8][4];
    TSALLIS_UNROLL
    for (int m = 0; m < Shape::kTiles; ++m) Clear(s[m]);
    queries.Multiply(s, tile);
    TSALLIS_UNROLL
    for (int j = 0; j < kKeys / 8; ++j) {
      if (column + 8 * j >= D) continue;
      TSALLIS_UNROLL
      for (int r = 0; r < kOwn; ++r) {
        float q[2];
        queries.Pair(q, r, column / 8 + j);
        TSALLIS_UNROLL
        for (int e = 0; e < 2; ++e) {
          const float m = has_moments ? means.Load(column + 8 * j + 2 * t + e) : 0.0f;
          mean[r] = fmaf(q[e], m, mean[r]);
          variance[r] = fmaf(q[e], s[r / 2][j][r % 2 * 2 + e], variance[r]);
        }
      }
    }
  }
  TSALLIS_UNROLL
  for (int r = 0; r < kOwn; ++r) {
    mean[r] = QuadSum(mean[r]);
    variance[r] = QuadSum(variance[r]);
    const int at = first + 8 * r;
    if (t != 0 || at >= sequence.q.end) continue;
    const float factor = head.Factor(call, at);
    const float sigma = fabsf(factor) * sqrtf(fmaxf(variance[r], 0.0f));
    const auto keys = static_cast<float>(sequence.VisibleKeys(call.mask, at).size());
    Words2 row = {{0, 0}};
    if (has_moments && keys >= static_cast<float>(kLeastGuessed) && sigma > 1e-6f &&
        sigma <= kMostFloat) {
      const float g = CurvePoints::Find(curve, logf(keys) + head.power * logf(sigma));
      row = {{BitsOf(fmaf(sigma, g, factor * mean[r])), BitsOf(sigma)}};
    }
    StoreDevice(guess.rows + head.Index(call, at), row);
  }
}

// The offset of a head's guesses; -inf if its pilots do not tell. A warp for each, with blocks of
// kRows rows.
template <int kRows>
TSALLIS_KERNEL(kWarp)
OffsetKernel(const GuessCall guess) {
  const DeviceCall& call = guess.call;
  const Head head = Head::Of(call, BlockZ(), BlockY());
  PilotFit fit;
  for (int i = 0; i < Guesses::kPilots && Head::IsSparse(call, BlockY()); ++i) {
    const BlockPlace place = Guesses::PilotPlace(call, BlockZ(), i, kRows);
    for (int row = Lane(); place.any && row < kRows; row += kWarp) {
      if (place.first + row >= head.sequence.q.end) continue;
      const std::int64_t index = head.Index(call, place.first + row);
      const Words2 own = LoadDevice(guess.rows + index);
      const float base = FloatOf(own.w[0]), sigma = FloatOf(own.w[1]);
      if (!(sigma > 0.0f) || LoadDevice(guess.counts + index) == kDenseRow) continue;
      fit.Add(static_cast<double>((LoadDevice(guess.bounds + index) - base) / sigma));
    }
  }
  TSALLIS_UNROLL
  for (int bits = 1; bits < kWarp; bits *= 2) {
    fit.samples += ShuffleXor(fit.samples, bits);
    fit.sum += ShuffleXor(fit.sum, bits);
    fit.squares += ShuffleXor(fit.squares, bits);
  }
  if (Lane() != 0) return;
  const float offset = fit.usable() ? fit.shift() - kGuessMargin * fit.spread() : -kInfinity;
  StoreDevice(guess.offsets + BlockZ() * call.heads + BlockY(), offset);
}

}  // namespace TSALLIS_SIDE
}  // namespace tsallis::cuda
