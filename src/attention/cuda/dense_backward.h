// Backward on tiles, for rows that keep many keys, and for softmax. Scores are computed again.
//
// DenseRowsKernel: a block owns 64 rows; one pass over the keys for the sums of dp, one for dq.
// DenseKeysKernel: a block owns 64 keys of a key head and goes through the dense rows of its group,
// so that dk and dv are sums in one order.
#pragma once

#include <cstdint>

#include "attention/cuda/call.h"
#include "attention/cuda/dense.h"
#include "attention/cuda/gradients.h"
#include "attention/cuda/tile.h"

namespace tsallis::cuda::inline TSALLIS_SIDE {

inline constexpr int kInner = 32;  // rows of the tiles that pass by

// ---- rows ---------------------------------------------------------------------------------------

template <class Type, int D>
struct DenseRowsShape {
  static constexpr int kRows = kWarps * 16;
  static constexpr std::size_t kRowBytes = LeftRows<Type, D, kRows>::kBytes;
  static constexpr std::size_t kKeyBytes = kInner * D * sizeof(typename Type::Element);
  static constexpr std::size_t kGradientsAt = kRowBytes, kKeysAt = 2 * kRowBytes;
  static constexpr std::size_t kValuesAt = kKeysAt + kKeyBytes, kFlagsAt = kValuesAt + kKeyBytes;
  static constexpr std::size_t kSharedBytes = kFlagsAt + kWarps * 4;
};

// kGeneral: with masks, a bias and any alpha.
template <class Type, int D, bool kGeneral>
TSALLIS_KERNEL(kThreads)
DenseRowsKernel(const BackwardCall backward) {
  using Shape = DenseRowsShape<Type, D>;
  const Call& call = backward.call;
  const int t = Lane() % 4;
  const Head head = Head::Of<kGeneral>(call, BlockZ(), BlockY());
  const std::int64_t b = head.sequence.array_batch;
  const int count = backward.dense.Count(call, head);
  const int first = (Blocks() - 1 - BlockX()) * Shape::kRows;
  if (first >= count) return;
  auto block = DenseBlock<Shape::kRows>::Of(call, backward.dense, head, first, count);
  DenseRow(&rows)[2] = block.rows;
  const Shared<Words4> k_tile(Shape::kKeysAt), v_tile(Shape::kValuesAt);
  const Shared<int> flags(Shape::kFlagsAt);
  const auto own_row = [&](int i) {
    return first + i < count ? backward.dense.At(call, head, first + i) : -1;
  };
  using Left = LeftRows<Type, D, Shape::kRows>;
  const Left queries(0, Rows<Type>::Of(call.q, b, head.h), call.head_dim, own_row);
  const Left d_outs(Shape::kGradientsAt, Rows<Type>::Of(backward.d_out, b, head.h), call.value_dim,
                    own_row);
  CommitCopies();
  const auto k_rows = Rows<Type>::Of(call.k, b, head.kv);
  const auto v_rows = Rows<Type>::Of(call.v, b, head.kv);

  double tau[2] = {-static_cast<double>(kInfinity), -static_cast<double>(kInfinity)};
  SplitTau split[2];
  TSALLIS_UNROLL
  for (int half = 0; half < 2; ++half) {
    DenseRow& row = rows[half];
    if (row.row < 0) continue;
    tau[half] = LoadDevice(backward.tau + head.Index(call, row.row));
    split[half] = SplitTau::Of(tau[half]);
    if (tau[half] == -static_cast<double>(kInfinity)) row.end = row.begin;
  }
  float total[D / 8][4];
  Clear(total);
  RowScale<Type> scale;
  double sum_u[2] = {0.0, 0.0}, sum_dp[2] = {0.0, 0.0};
  float mean[2] = {0.0f, 0.0f}, d_scale[2] = {0.0f, 0.0f}, d_slope[2] = {0.0f, 0.0f};
  AlphaSums alpha_sums[2];
  SinkPart sinks[2];
  TSALLIS_LOOP
  for (int pass = 0; pass < 2; ++pass) {
    TSALLIS_LOOP
    for (int key0 = block.keys_begin; key0 < block.keys_end; key0 += kInner) {
      const BlocksLeft left = block.template LeftOf<kGeneral>(call, head, key0, kInner);
      if (!left.any) continue;
      const auto row_of = [&](int i) { return key0 + i < block.keys_end ? key0 + i : -1; };
      SyncBlock();  // the last tile has been read
      FetchTile<Type, D, kInner>(k_tile, k_rows, call.head_dim, row_of);
      FetchTile<Type, D, kInner>(v_tile, v_rows, call.value_dim, row_of);
      CommitCopies();
      WaitForCopies<0>();
      const bool finite = AllThreads(flags, pass == 0 || IsFinite<Type, D, kInner>(k_tile));
      float s[kInner / 8][4], dp[kInner / 8][4];
      Clear(s);
      Clear(dp);
      queries.Multiply(s, k_tile);
      d_outs.Multiply(dp, v_tile);
      TSALLIS_UNROLL
      for (int half = 0; half < 2; ++half) {
        const DenseRow& row = rows[half];
        float tile_u = 0.0f, tile_dp = 0.0f;
        TSALLIS_UNROLL
        for (int j = 0; j < kInner / 8; ++j) {
          TSALLIS_UNROLL
          for (int e = 2 * half; e < 2 * half + 2; ++e) {
            const int key = key0 + 8 * j + 2 * t + e % 2;
            const std::int64_t distance = head.sequence.Distance(row.row, key);
            const float product = s[j][e];
            s[j][e] = 0.0f;
            if (key < row.begin || key >= row.end) continue;
            float bias = 0.0f;
            if (kGeneral && !head.Leaves(call, left, row.row, key, &bias)) continue;
            float z = head.Score(row.factor, product, distance);
            if (kGeneral) z += bias;
            const Weight weight = split[half].template WeightOf<kGeneral>(head, z);
            if (weight.IsZero(kGeneral)) continue;
            if (pass == 0) {
              tile_u += weight.u;
              tile_dp = fmaf(weight.u, dp[j][e], tile_dp);
              if (backward.sums.d_alpha != nullptr) {
                alpha_sums[half].template Add<kGeneral>(head, weight.p,
                                                        static_cast<double>(dp[j][e]));
              }
              continue;
            }
            const float ds = weight.u * (dp[j][e] - mean[half]);
            const float dx = ThroughTerms(head, ds, row.factor * product, distance);
            s[j][e] = dx;
            if (dx != 0.0f) d_scale[half] = fmaf(dx, product, d_scale[half]);
            d_slope[half] -= ds * static_cast<float>(distance < 0 ? -distance : distance);
          }
        }
        sum_u[half] += static_cast<double>(tile_u);
        sum_dp[half] += static_cast<double>(tile_dp);
      }
      if (pass == 1) {
        scale.Divide(s, total);
        AddWeighted<Type, D, kInner>(total, s, k_tile, Shape::kKeysAt, 0, finite);
      }
    }
    if (pass == 1) break;
    TSALLIS_UNROLL
    for (int half = 0; half < 2; ++half) {
      for (int bit = 1; bit < 4; bit *= 2) {
        sum_u[half] += ShuffleXor(sum_u[half], bit);
        sum_dp[half] += ShuffleXor(sum_dp[half], bit);
      }
      alpha_sums[half].Reduce(1, 4);
      sinks[half] = SinkPart::Of<kGeneral>(head, tau[half]);
      sum_u[half] += static_cast<double>(sinks[half].u);
      if (sum_u[half] != 0.0) mean[half] = static_cast<float>(sum_dp[half] / sum_u[half]);
    }
  }
  WaitForCopies<0>();  // the rows', where no tile came

  TSALLIS_UNROLL
  for (int half = 0; half < 2; ++half) {
    const DenseRow& row = rows[half];
    d_scale[half] = QuadSum(d_scale[half]);
    d_slope[half] = QuadSum(d_slope[half]);
    if (row.row < 0) continue;
    const std::int64_t index = head.Index(call, row.row);
    const float factor = scale.scale[half] * row.factor * head.power;
    const std::int64_t start = Offset(backward.dq.strides, b, head.h, row.row);
    TSALLIS_UNROLL
    for (int j = 0; j < D / 8; ++j) {
      if (8 * j >= call.head_dim || backward.dq.data == nullptr) break;
      // A row without weights has no gradient, whatever its factor is.
      float pair[2];
      TSALLIS_UNROLL
      for (int e = 0; e < 2; ++e) {
        const float sum = total[j][2 * half + e];
        pair[e] = sum == 0.0f ? 0.0f : factor * sum;
      }
      StoreColumns<Type>(backward.dq, start, 8 * j + 2 * t, pair, 2);
    }
    if (t != 0) continue;
    StoreDevice(backward.means + index, mean[half]);
    if (backward.d_length_scale != nullptr) {
      StoreDevice(backward.d_length_scale + index, call.scale * static_cast<double>(d_scale[half]));
    }
    const RowSums& sums = backward.sums;
    if (sums.d_slope != nullptr) {
      StoreDevice(sums.d_slope + index, static_cast<double>(d_slope[half]));
    }
    if (sums.d_sink != nullptr) {
      StoreDevice(sums.d_sink + index,
                  -static_cast<double>(sinks[half].u) * static_cast<double>(mean[half]));
    }
    if (sums.d_alpha != nullptr) {
      alpha_sums[half].template Add<kGeneral>(head, sinks[half].p, 0.0);
      StoreDevice(sums.d_alpha + index,
                  sum_u[half] != 0.0 ? alpha_sums[half].Gradient(head, sum_u[half]) : 0.0);
    }
  }
}

// ---- keys ---------------------------------------------------------------------------------------

// What the block's threads know of a query that passes by.
struct QueryView {
  SplitTau tau;
  float mean = 0.0f, factor = 0.0f;
  int row = 0, begin = 0, end = 0, padding = 0;
};

template <class Type, int D>
struct DenseKeysShape {
  static constexpr int kKeys = kWarps * 16;
  // Columns of dk and dv that a block computes: registers hold no more.
  static constexpr int kColumns = D <= 128 ? D : 128, kParts = D / kColumns;
  static constexpr std::size_t kKeyBytes = LeftRows<Type, D, kKeys>::kBytes;
  static constexpr std::size_t kQueryBytes = kInner * D * sizeof(typename Type::Element);
  static constexpr std::size_t kValuesAt = kKeyBytes, kQueriesAt = 2 * kKeyBytes;
  static constexpr std::size_t kGradientsAt = kQueriesAt + kQueryBytes;
  static constexpr std::size_t kViewsAt = kGradientsAt + kQueryBytes;
  static constexpr std::size_t kFlagsAt = kViewsAt + kInner * sizeof(QueryView);
  static constexpr std::size_t kSharedBytes = kFlagsAt + kWarps * 4;
};

template <class Type, int D, bool kGeneral>
TSALLIS_KERNEL(kThreads)
DenseKeysKernel(const BackwardCall backward) {
  using Shape = DenseKeysShape<Type, D>;
  constexpr int kBlocks = Shape::kColumns / 8;
  const Call& call = backward.call;
  const int t = Lane() % 4;
  const int first_column = BlockX() % Shape::kParts * Shape::kColumns;
  const BlockPlace place = BlockPlace::Of(call, call.ranges.k_begin, true, BlockX() / Shape::kParts,
                                          BlockZ(), Shape::kKeys);
  if (!place.any) return;
  const int kv = BlockY(), key0 = static_cast<int>(place.first);
  const Sequence sequence = Head::SequenceOf(call, place.b);
  const std::int64_t b = sequence.array_batch;
  const int behind = static_cast<int>(
      sequence.k.end < place.first + Shape::kKeys ? sequence.k.end : place.first + Shape::kKeys);
  const Shared<Words4> q_tile(Shape::kQueriesAt), d_out_tile(Shape::kGradientsAt);
  const Shared<QueryView> views(Shape::kViewsAt);
  const Shared<int> flags(Shape::kFlagsAt);
  const auto own_key = [&](int i) { return key0 + i < behind ? key0 + i : -1; };
  using Left = LeftRows<Type, D, Shape::kKeys>;
  const Left own_keys(0, Rows<Type>::Of(call.k, b, kv), call.head_dim, own_key);
  const Left own_values(Shape::kValuesAt, Rows<Type>::Of(call.v, b, kv), call.value_dim, own_key);
  CommitCopies();

  float dk[kBlocks][4], dv[kBlocks][4];
  Clear(dk);
  Clear(dv);
  RowScale<Type> dk_scale, dv_scale;
  for (int h = kv * call.group(); h < (kv + 1) * call.group(); ++h) {
    const Head head = Head::Of<kGeneral>(call, place.b, h);
    const int count = backward.dense.Count(call, head);
    const auto q_rows = Rows<Type>::Of(call.q, b, h);
    const auto d_out_rows = Rows<Type>::Of(backward.d_out, b, h);
    TSALLIS_LOOP
    for (int first = 0; first < count; first += kInner) {
      // Rows ascend, and so do both ends of what they see.
      const int last = first + kInner < count ? first + kInner - 1 : count - 1;
      const int first_row = backward.dense.At(call, head, first);
      const int last_row = backward.dense.At(call, head, last);
      const Span seen = head.KeysOf(call.mask, first_row, last_row);
      if (seen.end <= key0 || seen.begin >= behind) continue;
      BlocksLeft left;
      if (kGeneral) left = head.LeftOf(call.mask, first_row, last_row, key0, behind);
      if (!left.any) continue;
      const auto row_of = [&](int i) {
        return first + i < count ? backward.dense.At(call, head, first + i) : -1;
      };
      SyncBlock();  // the last tile has been read
      FetchTile<Type, D, kInner>(q_tile, q_rows, call.head_dim, row_of);
      FetchTile<Type, D, kInner>(d_out_tile, d_out_rows, call.value_dim, row_of);
      CommitCopies();
      if (ThreadIndex() < kInner) {
        QueryView view;
        view.row = row_of(ThreadIndex());
        if (view.row >= 0) {
          const std::int64_t index = head.Index(call, view.row);
          const double tau = LoadDevice(backward.tau + index);
          const Span keys = head.sequence.VisibleKeys(call.mask, view.row);
          view.tau = SplitTau::Of(tau);
          view.mean = LoadDevice(backward.means + index);
          view.factor = head.Factor(call, view.row);
          view.begin = static_cast<int>(keys.begin);
          view.end = static_cast<int>(keys.end);
          if (tau == -static_cast<double>(kInfinity)) view.end = view.begin;
        }
        views.Store(ThreadIndex(), view);
      }
      WaitForCopies<0>();
      bool finite = IsFinite<Type, D, kInner>(q_tile);
      finite = IsFinite<Type, D, kInner>(d_out_tile) && finite;
      finite = AllThreads(flags, finite);
      // Scores and dp of keys (rows) and queries (columns).
      float s[kInner / 8][4], dp[kInner / 8][4];
      Clear(s);
      Clear(dp);
      own_keys.Multiply(s, q_tile);
      own_values.Multiply(dp, d_out_tile);
      TSALLIS_UNROLL
      for (int j = 0; j < kInner / 8; ++j) {
        TSALLIS_UNROLL
        for (int e = 0; e < 2; ++e) {
          const QueryView view = views.Load(8 * j + 2 * t + e);
          TSALLIS_UNROLL
          for (int half = 0; half < 2; ++half) {
            const int at = 2 * half + e;
            const int key = key0 + WarpIndex() * 16 + half * 8 + Lane() / 4;
            const float product = s[j][at], here = dp[j][at];
            s[j][at] = dp[j][at] = 0.0f;
            if (key < view.begin || key >= view.end) continue;
            float bias = 0.0f;
            if (kGeneral && !head.Leaves(call, left, view.row, key, &bias)) continue;
            const std::int64_t distance = head.sequence.Distance(view.row, key);
            float z = head.Score(view.factor, product, distance);
            if (kGeneral) z += bias;
            const Weight weight = view.tau.template WeightOf<kGeneral>(head, z);
            if (weight.IsZero(kGeneral)) continue;
            const float ds = weight.u * (here - view.mean);
            const float dx = ThroughTerms(head, ds, view.factor * product, distance);
            s[j][at] = weight.p;
            dp[j][at] = dx == 0.0f ? 0.0f : dx * view.factor * head.power;
          }
        }
      }
      dv_scale.Divide(s, dv);
      AddWeighted<Type, D, kInner>(dv, s, d_out_tile, Shape::kGradientsAt, first_column, finite);
      dk_scale.Divide(dp, dk);
      AddWeighted<Type, D, kInner>(dk, dp, q_tile, Shape::kQueriesAt, first_column, finite);
    }
  }
  WaitForCopies<0>();  // the keys', where no tile came

  TSALLIS_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int key = key0 + WarpIndex() * 16 + half * 8 + Lane() / 4;
    if (key >= behind) continue;
    const std::int64_t row = (b * call.kv_heads + kv) * call.k_len + key;
    TSALLIS_UNROLL
    for (int j = 0; j < kBlocks; ++j) {
      TSALLIS_UNROLL
      for (int e = 0; e < 2; ++e) {
        const int column = first_column + 8 * j + 2 * t + e;
        if (column < call.head_dim) {
          StoreDevice(backward.dense_dk + row * call.head_dim + column,
                      dk_scale.scale[half] * dk[j][2 * half + e]);
        }
        if (column < call.value_dim) {
          StoreDevice(backward.dense_dv + row * call.value_dim + column,
                      dv_scale.scale[half] * dv[j][2 * half + e]);
        }
      }
    }
  }
}

}  // namespace tsallis::cuda::inline TSALLIS_SIDE
