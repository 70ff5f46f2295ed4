// The gradient of a bias: the scores' own, summed over the axes along which the bias repeats.
//
// A block owns a tile of 64 queries and 32 keys and goes through what adds to it, one sequence, one
// head, one tile after the other, so that every sum has one order. Scores and dp are computed
// again; DenseRowsKernel has stored each row's sums. Along an axis of stride 0 one block goes
// through the whole axis and adds it up.
#pragma once

#include <algorithm>
#include <cstdint>

#include "attention/cuda/call.h"
#include "attention/cuda/dense_backward.h"
#include "attention/cuda/gradients.h"
#include "attention/cuda/tile.h"

namespace tsallis::cuda {
inline namespace TSALLIS_SIDE {

struct BiasCall {
  BackwardCall backward;
  MutableArray4 d_bias;  // float32 or float64

  TSALLIS_HOST_DEVICE bool Sums(int axis) const { return d_bias.strides[axis] == 0; }
  TSALLIS_DEVICE void Store(std::int64_t b, std::int64_t h, std::int64_t row, std::int64_t key,
                            double value) const {
    const std::int64_t at = Offset(d_bias.strides, b, h, row, key);
    if (d_bias.dtype == DType::kFloat64) {
      StoreDevice(static_cast<double*>(d_bias.data) + at, value);
    } else {
      StoreDevice(static_cast<float*>(d_bias.data) + at, static_cast<float>(value));
    }
  }
};

template <class Type, int D>
struct BiasShape {
  using RowsShape = DenseRowsShape<Type, D>;
  static constexpr int kRows = RowsShape::kRows, kKeys = kInner;
  static constexpr std::size_t kSharedBytes =
      std::max(RowsShape::kKeysAt + RowsShape::kStageBytes, sizeof(double) * kRows * kKeys);
};

template <class Type, int D>
TSALLIS_KERNEL(kThreads)
BiasKernel(const BiasCall bias) {
  using Shape = BiasShape<Type, D>;
  constexpr int kRows = Shape::kRows, kKeys = Shape::kKeys;
  const BackwardCall& backward = bias.backward;
  const DeviceCall& call = backward.call;
  const int t = Lane() % 4;
  const bool sums_keys = bias.Sums(3), sums_rows = bias.Sums(2);
  const int key_tiles = sums_keys ? 1 : (call.k_len + kKeys - 1) / kKeys;
  const int own_key = sums_keys ? 0 : BlockX() % key_tiles * kKeys;
  const int own_row = sums_rows ? 0 : BlockX() / key_tiles * kRows;
  const int keys_end = sums_keys ? call.k_len : own_key + 1;
  const int rows_end = sums_rows ? call.q_len : own_row + 1;
  const int first_head = bias.Sums(1) ? 0 : BlockY();
  const int heads_end = bias.Sums(1) ? call.heads : first_head + 1;
  const Shared<Words4> k_tile(Shape::RowsShape::kKeysAt), v_tile(Shape::RowsShape::kValuesAt);
  using Left = LeftRows<Type, D, kRows>;

  double total[kKeys / 8][4] = {};
  for (int batch = 0; batch < call.batch; ++batch) {
    const Sequence sequence = Head::SequenceOf(call, batch);
    const std::int64_t b = sequence.array_batch;
    if (!bias.Sums(0) && b != BlockZ()) continue;
    for (int h = first_head; h < heads_end; ++h) {
      const Head head = Head::Of<true>(call, batch, h);
      TSALLIS_LOOP
      for (int row0 = own_row; row0 < rows_end; row0 += kRows) {
        const auto first_row = static_cast<int>(sequence.q.begin > row0 ? sequence.q.begin : row0);
        const auto last_row =
            static_cast<int>((sequence.q.end < row0 + kRows ? sequence.q.end : row0 + kRows) - 1);
        if (first_row > last_row) continue;
        const Span seen = head.KeysOf(call.mask, first_row, last_row);
        TSALLIS_LOOP
        for (int key0 = own_key; key0 < keys_end; key0 += kKeys) {
          const auto first_key = static_cast<int>(seen.begin > key0 ? seen.begin : key0);
          const auto behind = static_cast<int>(seen.end < key0 + kKeys ? seen.end : key0 + kKeys);
          if (first_key >= behind) continue;
          const TileMasks masks = head.MasksOf(call.mask, first_row, last_row, first_key, behind);
          if (!masks.any) continue;
          const auto row_of = [&](int i) {
            return row0 + i >= first_row && row0 + i <= last_row ? row0 + i : -1;
          };
          const auto key_of = [&](int i) {
            return key0 + i >= first_key && key0 + i < behind ? key0 + i : -1;
          };
          SyncBlock();  // the last tile has been read
          const Left queries(0, ArrayRows<Type>::Of(call.q, b, h), call.head_dim, row_of);
          const Left d_outs(Shape::RowsShape::kGradientsAt,
                            ArrayRows<Type>::Of(backward.d_out, b, h), call.value_dim, row_of);
          FetchTile<Type, D, kKeys>(k_tile, ArrayRows<Type>::Of(call.k, b, head.kv), call.head_dim,
                                    key_of);
          FetchTile<Type, D, kKeys>(v_tile, ArrayRows<Type>::Of(call.v, b, head.kv), call.value_dim,
                                    key_of);
          CommitCopies();
          WaitForCopies<0>();
          SyncBlock();
          float s[kKeys / 8][4], dp[kKeys / 8][4];
          Clear(s);
          Clear(dp);
          queries.Multiply(s, k_tile);
          d_outs.Multiply(dp, v_tile);
          TSALLIS_UNROLL
          for (int half = 0; half < 2; ++half) {
            const int row = row_of(WarpIndex() * 16 + half * 8 + Lane() / 4);
            if (row < 0) continue;
            const std::int64_t index = head.Index(call, row);
            const double tau = LoadDevice(backward.tau + index);
            if (tau == -static_cast<double>(kInfinity)) continue;
            const SplitTau split = SplitTau::Of(tau);
            const float mean = LoadDevice(backward.means + index);
            const float factor = head.Factor(call, row);
            const Span keys = sequence.VisibleKeys(call.mask, row);
            TSALLIS_UNROLL
            for (int j = 0; j < kKeys / 8; ++j) {
              TSALLIS_UNROLL
              for (int e = 2 * half; e < 2 * half + 2; ++e) {
                const int key = key0 + 8 * j + 2 * t + e % 2;
                float own = 0.0f;
                if (key < keys.begin || key >= keys.end) continue;
                if (!head.IsVisible(call, masks, row, key, &own)) continue;
                const float z = head.Score(factor, s[j][e], sequence.Distance(row, key)) + own;
                const Weight weight = split.WeightOf<true>(head, z);
                if (weight.u == 0.0f) continue;
                total[j][e] += static_cast<double>(weight.u * (dp[j][e] - mean));
              }
            }
          }
        }
      }
    }
  }

  if (!sums_rows && !sums_keys) {
    TSALLIS_UNROLL
    for (int j = 0; j < kKeys / 8; ++j) {
      TSALLIS_UNROLL
      for (int e = 0; e < 4; ++e) {
        const int row = own_row + WarpIndex() * 16 + e / 2 * 8 + Lane() / 4;
        const int key = own_key + 8 * j + 2 * t + e % 2;
        if (row < call.q_len && key < call.k_len) {
          bias.Store(BlockZ(), BlockY(), row, key, total[j][e]);
        }
      }
    }
    return;
  }
  const Shared<double> parts(0);  // [kRows, kKeys]
  SyncBlock();                    // the last tile has been read
  TSALLIS_UNROLL
  for (int j = 0; j < kKeys / 8; ++j) {
    TSALLIS_UNROLL
    for (int e = 0; e < 4; ++e) {
      const int row = WarpIndex() * 16 + e / 2 * 8 + Lane() / 4;
      parts.Store(row * kKeys + 8 * j + 2 * t + e % 2, total[j][e]);
    }
  }
  SyncBlock();
  // One thread for each sum, or for all.
  const int i = ThreadIndex();
  const int rows = sums_rows ? 1 : kRows, keys = sums_keys ? 1 : kKeys;
  if (i >= rows * keys || own_row + i / keys >= call.q_len || own_key + i % keys >= call.k_len) {
    return;
  }
  double sum = 0.0;
  for (int row = i / keys; row < kRows; row += rows) {
    for (int key = i % keys; key < kKeys; key += keys) sum += parts.Load(row * kKeys + key);
  }
  bias.Store(BlockZ(), BlockY(), own_row + i / keys, own_key + i % keys, sum);
}

}  // namespace TSALLIS_SIDE
}  // namespace tsallis::cuda
