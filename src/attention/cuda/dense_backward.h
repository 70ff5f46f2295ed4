// Backward on tiles, for rows that keep many keys, and for softmax. Scores are computed again.
//
// DenseRowsKernel: a block owns 64 rows; one pass over the keys for the sums of dp, one for dq.
// DenseKeysKernel: a block owns 64 keys of a key head and goes through the dense rows of its group,
// so that dk and dv are sums in one order.
//
// Tiles pass by in two stages of cp.async. The usual case (all pairs of a warp visible, no terms,
// alpha 1, 1.5 or 2, numbers of moderate size) has short code without branches: a loop that does
// not fit the instruction cache waits for instructions most of its time. All else takes the careful
// code, which is a loop over the columns.
#pragma once

#include <cstdint>

#include "attention/cuda/call.h"
#include "attention/cuda/dense.h"
#include "attention/cuda/gradients.h"
#include "attention/cuda/tile.h"

namespace tsallis::cuda {
inline namespace TSALLIS_SIDE {

inline constexpr int kInner = 32;  // rows of the tiles that pass by

// ---- tiles that pass by -------------------------------------------------------------------------

// A warp's rows on the left side of two products, q or k and d_out or v. kHold: in registers; else
// fragments come from shared memory each time.
template <class Type, int D, int kRows, bool kHold>
class OwnRows {
 public:
  using Left = LeftRows<Type, D, kRows>;

  template <class RowOf>
  TSALLIS_DEVICE OwnRows(const ArrayRows<Type>& x, int x_columns, const ArrayRows<Type>& y,
                         int y_columns, const RowOf& row_of)
      : x_(0, x, x_columns, row_of), y_(Left::kBytes, y, y_columns, row_of) {}
  // When the rows have arrived.
  TSALLIS_DEVICE void Take() {
    if constexpr (kHold) {
      TSALLIS_UNROLL
      for (int c = 0; c < D / 16; ++c) Load(c, held_x_[c], held_y_[c]);
    }
  }
  // s += x times a tile's rows, dp += y times another's. The two take turns, so that a product
  // need not wait for the one before it.
  TSALLIS_DEVICE void Multiply(float (&s)[kInner / 8][4], float (&dp)[kInner / 8][4],
                               const Shared<Words4>& x_tile, const Shared<Words4>& y_tile) const {
    if constexpr (kIsFloat32<Type>) {
      x_.Multiply(s, x_tile);
      y_.Multiply(dp, y_tile);
    } else {
      const int lane = Lane();
      const int at = PieceAt<Type, D>(lane / 16 * 8 + lane % 8, lane / 8 % 2);
      TSALLIS_UNROLL
      for (int c = 0; c < D / 16; ++c) {
        std::uint32_t read_x[4], read_y[4];
        if constexpr (!kHold) Load(c, read_x, read_y);
        const std::uint32_t(&x)[4] = *(kHold ? &held_x_[kHold ? c : 0] : &read_x);
        const std::uint32_t(&y)[4] = *(kHold ? &held_y_[kHold ? c : 0] : &read_y);
        std::uint32_t b[2][4], d[2][4];
        TSALLIS_UNROLL
        for (int i = 0; i < 2; ++i) {
          LoadMatrices(b[i], x_tile, PieceBehind<Type, D>(at, 2 * c) + i * 2 * D);
          LoadMatrices(d[i], y_tile, PieceBehind<Type, D>(at, 2 * c) + i * 2 * D);
        }
        TSALLIS_UNROLL
        for (int i = 0; i < 2; ++i) {
          MultiplyMatrices<Type>(s[2 * i], x, b[i][0], b[i][1]);
          MultiplyMatrices<Type>(s[2 * i + 1], x, b[i][2], b[i][3]);
        }
        TSALLIS_UNROLL
        for (int i = 0; i < 2; ++i) {
          MultiplyMatrices<Type>(dp[2 * i], y, d[i][0], d[i][1]);
          MultiplyMatrices<Type>(dp[2 * i + 1], y, d[i][2], d[i][3]);
        }
      }
    }
  }

 private:
  static_assert(kInner == 32);
  static constexpr int kHeld = kHold ? D / 16 : 1;

  TSALLIS_DEVICE static void Load(int c, std::uint32_t (&x)[4], std::uint32_t (&y)[4]) {
    const int lane = Lane();
    const int at = PieceAt<Type, D>(WarpIndex() * 16 + lane % 16, lane / 16);
    LoadMatrices(x, Shared<Words4>(0), PieceBehind<Type, D>(at, 2 * c));
    LoadMatrices(y, Shared<Words4>(Left::kBytes), PieceBehind<Type, D>(at, 2 * c));
  }

  Left x_, y_;
  std::uint32_t held_x_[kHeld][4], held_y_[kHeld][4];
};

// Whether all numbers of a warp's tile are of moderate size, below 2^60: then neither a sum of two
// nor 0 times a number is NaN, and no branch need spare what has a weight of 0. And the tiles are
// finite: a row with NaN or an infinity leaves it in all of its products.
class Moderate {
 public:
  TSALLIS_DEVICE void Look(int place, float x) {
    sums_[place % 4] = fmaf(x, 0x1p66f, sums_[place % 4]);
  }
  // The warp calls it.
  TSALLIS_DEVICE bool All() const {
    const float sum = (sums_[0] + sums_[1]) + (sums_[2] + sums_[3]);
    return !Any(!(fabsf(sum) <= kMostFloat));
  }

 private:
  float sums_[4] = {};
};

// Maps from z - tau to a weight in a few instructions.
enum class Short : std::uint8_t { kNone, kExp, kSquare, kLinear };

TSALLIS_DEVICE Short ShortOf(const Head& head) {
  if (head.wide || head.terms.any()) return Short::kNone;
  if (head.alpha == 1.0f) return Short::kExp;
  if (head.alpha == 1.5f) return Short::kSquare;
  return head.alpha == 2.0f ? Short::kLinear : Short::kNone;
}
// Gives the weight of SplitTau::WeightOf.
template <Short kShort>
TSALLIS_DEVICE Weight ShortWeight(float z, float high, float low) {
  const float x = (z - high) - low;
  if (kShort == Short::kExp) {
    const float p = expf(x);
    return {p, p};
  }
  const float above = x <= 0.0f ? 0.0f : x;  // NaN stays
  if (kShort == Short::kSquare) return {above * above, above};
  return {above, x > 0.0f ? 1.0f : above};
}
// body<how>(), where `how` is not kNone.
template <class Body>
TSALLIS_DEVICE void ForShort(Short how, const Body& body) {
  if (how == Short::kExp) {
    body.template operator()<Short::kExp>();
  } else if (how == Short::kSquare) {
    body.template operator()<Short::kSquare>();
  } else {
    body.template operator()<Short::kLinear>();
  }
}

// Whether neither masks nor a bias change any pair.
TSALLIS_DEVICE bool IsPlain(const DeviceCall& call) {
  return call.mask.visible == nullptr && call.terms.bias.data == nullptr;
}

// ---- rows ---------------------------------------------------------------------------------------

template <class Type, int D>
struct DenseRowsShape {
  static constexpr int kRows = kWarps * 16;
  static constexpr int kStages = D <= 128 ? 2 : 1;  // of tiles; shared memory has no room for more
  static constexpr std::size_t kRowBytes = LeftRows<Type, D, kRows>::kBytes;
  static constexpr std::size_t kKeyBytes = kInner * D * sizeof(typename Type::Element);
  static constexpr std::size_t kGradientsAt = kRowBytes, kKeysAt = 2 * kRowBytes;
  static constexpr std::size_t kValuesAt = kKeysAt + kKeyBytes;
  static constexpr std::size_t kStageBytes = 2 * kKeyBytes;
  static constexpr std::size_t kSharedBytes = kKeysAt + kStages * kStageBytes;
};

// The findings of the passes over the keys about a lane's two rows.
struct RowFindings {
  double sum_u[2] = {0.0, 0.0}, sum_dp[2] = {0.0, 0.0};
  float mean[2] = {0.0f, 0.0f}, d_scale[2] = {0.0f, 0.0f}, d_slope[2] = {0.0f, 0.0f};
  AlphaSums alpha_sums[2];
};

// Weights of a tile's products, for any map, terms and masks: what pass 0 sums, and the gradients
// of the products in pass 1, which take the products' place.
template <int kPass, bool kGeneral>
TSALLIS_DEVICE void CarefulRows(const BackwardCall& backward, const Head& head,
                                const TileMasks& masks, const DenseRow (&rows)[2],
                                const SplitTau (&split)[2], int key0, float (&s)[kInner / 8][4],
                                float (&dp)[kInner / 8][4], RowFindings& found) {
  const int t = Lane() % 4;
  float tile_u[2] = {0.0f, 0.0f}, tile_dp[2] = {0.0f, 0.0f};
  TSALLIS_LOOP
  for (int j = 0; j < kInner / 8; ++j) {
    TSALLIS_UNROLL
    for (int e = 0; e < 4; ++e) {
      const int half = e / 2;
      const DenseRow& row = rows[half];
      const int key = key0 + 8 * j + 2 * t + e % 2;
      const std::int64_t distance = head.sequence.Distance(row.row, key);
      const float product = s[0][e], here = dp[0][e];
      s[0][e] = 0.0f;
      if (key < row.begin || key >= row.end) continue;
      float bias = 0.0f;
      if (kGeneral && !head.IsVisible(backward.call, masks, row.row, key, &bias)) continue;
      float z = head.Score(row.factor, product, distance);
      if (kGeneral) z += bias;
      const Weight weight = split[half].template WeightOf<kGeneral>(head, z);
      if (weight.IsZero(kGeneral)) continue;
      if (kPass == 0) {
        tile_u[half] += weight.u;
        tile_dp[half] = fmaf(weight.u, here, tile_dp[half]);
        if (backward.sums.d_alpha != nullptr) {
          found.alpha_sums[half].template Add<kGeneral>(head, weight.p, static_cast<double>(here));
        }
        continue;
      }
      const float ds = weight.u * (here - found.mean[half]);
      const float dx = ThroughTerms(head, ds, row.factor * product, distance);
      s[0][e] = dx;
      if (dx != 0.0f) found.d_scale[half] = fmaf(dx, product, found.d_scale[half]);
      found.d_slope[half] -= ds * static_cast<float>(distance < 0 ? -distance : distance);
    }
    Rotate(s);
    Rotate(dp);
  }
  TSALLIS_UNROLL
  for (int half = 0; kPass == 0 && half < 2; ++half) {
    found.sum_u[half] += static_cast<double>(tile_u[half]);
    found.sum_dp[half] += static_cast<double>(tile_dp[half]);
  }
}

// Does this for moderate numbers of which every pair is visible.
template <int kPass, Short kShort>
TSALLIS_DEVICE void ShortRows(const DenseRow (&rows)[2], const SplitTau (&split)[2],
                              float (&s)[kInner / 8][4], const float (&dp)[kInner / 8][4],
                              RowFindings& found) {
  TSALLIS_UNROLL
  for (int half = 0; half < 2; ++half) {
    float tile_u = 0.0f, tile_dp = 0.0f;
    TSALLIS_UNROLL
    for (int j = 0; j < kInner / 8; ++j) {
      TSALLIS_UNROLL
      for (int e = 2 * half; e < 2 * half + 2; ++e) {
        const float product = s[j][e];
        const Weight weight =
            ShortWeight<kShort>(rows[half].factor * product, split[half].high, split[half].low);
        if (kPass == 0) {
          tile_u += weight.u;
          tile_dp = fmaf(weight.u, dp[j][e], tile_dp);
        } else {
          s[j][e] = weight.u * (dp[j][e] - found.mean[half]);
          found.d_scale[half] = fmaf(s[j][e], product, found.d_scale[half]);
        }
      }
    }
    if (kPass == 0) {
      found.sum_u[half] += static_cast<double>(tile_u);
      found.sum_dp[half] += static_cast<double>(tile_dp);
    }
  }
}

// kGeneral: with masks, a bias and any alpha.
template <class Type, int D, bool kGeneral>
TSALLIS_KERNEL(kThreads)
DenseRowsKernel(const BackwardCall backward) {
  using Shape = DenseRowsShape<Type, D>;
  const DeviceCall& call = backward.call;
  const int t = Lane() % 4;
  const Head head = Head::Of<kGeneral>(call, BlockZ(), BlockY());
  const std::int64_t b = head.sequence.array_batch;
  const int count = backward.dense.Count(call, head);
  const int first = (Blocks() - 1 - BlockX()) * Shape::kRows;
  if (first >= count) return;
  auto block = DenseBlock<Shape::kRows>::Of(call, backward.dense, head, first, count);
  DenseRow(&rows)[2] = block.rows;
  OwnRows<Type, D, Shape::kRows, !kIsFloat32<Type> && D <= 128> own(
      ArrayRows<Type>::Of(call.q, b, head.h), call.head_dim,
      ArrayRows<Type>::Of(backward.d_out, b, head.h), call.value_dim,
      [&](int i) { return first + i < count ? backward.dense.At(call, head, first + i) : -1; });
  CommitCopies();
  const auto k_rows = ArrayRows<Type>::Of(call.k, b, head.kv);
  const auto v_rows = ArrayRows<Type>::Of(call.v, b, head.kv);

  double tau[2] = {-static_cast<double>(kInfinity), -static_cast<double>(kInfinity)};
  SplitTau split[2];
  // Keys that all of the warp's rows see.
  int whole_begin = 0, whole_end = INT32_MAX;
  TSALLIS_UNROLL
  for (int half = 0; half < 2; ++half) {
    DenseRow& row = rows[half];
    split[half].high = kInfinity;  // no weights
    if (row.row < 0) continue;
    tau[half] = LoadDevice(backward.tau + head.Index(call, row.row));
    if (tau[half] == -static_cast<double>(kInfinity)) {
      row.end = row.begin;
    } else {
      split[half] = SplitTau::Of(tau[half]);
    }
    if (row.begin > whole_begin) whole_begin = row.begin;
    if (row.end < whole_end) whole_end = row.end;
  }
  for (int bit = 4; bit < kWarp; bit *= 2) {
    const int begin = ShuffleXor(whole_begin, bit), end = ShuffleXor(whole_end, bit);
    if (begin > whole_begin) whole_begin = begin;
    if (end < whole_end) whole_end = end;
  }
  const RowSums& sums = backward.sums;
  const Short how =
      sums.d_alpha != nullptr || sums.d_slope != nullptr || (kGeneral && !IsPlain(call))
          ? Short::kNone
          : ShortOf(head);
  float total[D / 8][4];
  Clear(total);
  RowScale<Type> scale;
  RowFindings found;

  const auto fetch = [&](int key0, int stage) {
    const std::size_t at = Shape::kKeysAt + static_cast<std::size_t>(stage) * Shape::kStageBytes;
    TileRun<Type, D, kInner>(k_rows, call.head_dim).Fetch(Shared<Words4>(at), key0, block.keys_end);
    TileRun<Type, D, kInner>(v_rows, call.value_dim)
        .Fetch(Shared<Words4>(at + Shape::kKeyBytes), key0, block.keys_end);
    CommitCopies();
  };
  // The first tile from key0 on with a pair that the masks show.
  TileMasks next_masks;
  const auto next_tile = [&](int key0) {
    for (; kGeneral && key0 < block.keys_end; key0 += kInner) {
      next_masks = block.template MasksOf<kGeneral>(call, head, key0, kInner);
      if (next_masks.any) break;
    }
    return key0;
  };
  const auto pass_over_keys = [&]<int kPass>() {
    int next = next_tile(block.keys_begin), stage = 0;
    SyncBlock();  // the last tile has been read
    if (next < block.keys_end) fetch(next, stage);
    if (kPass == 0) {
      WaitForCopies<0>();
      SyncBlock();
      own.Take();
    }
    TSALLIS_LOOP
    while (next < block.keys_end) {
      const int key0 = next;
      const TileMasks masks = next_masks;
      const std::size_t keys_at =
          Shape::kKeysAt + static_cast<std::size_t>(stage) * Shape::kStageBytes;
      next = next_tile(key0 + kInner);
      WaitForCopies<0>();
      SyncBlock();  // the tile is there, and the last one has been read
      if (Shape::kStages == 2 && next < block.keys_end) fetch(next, stage ^ 1);
      float s[kInner / 8][4], dp[kInner / 8][4];
      Clear(s);
      Clear(dp);
      own.Multiply(s, dp, Shared<Words4>(keys_at), Shared<Words4>(keys_at + Shape::kKeyBytes));
      Moderate numbers;
      TSALLIS_UNROLL
      for (int j = 0; j < kInner / 8; ++j) {
        TSALLIS_UNROLL
        for (int e = 0; e < 4; ++e) {
          numbers.Look(e, rows[e / 2].factor * s[j][e]);
          numbers.Look(e + 1, dp[j][e] - found.mean[e / 2]);
        }
      }
      const bool moderate = numbers.All();
      if (moderate && how != Short::kNone && (!kGeneral || masks.all) && key0 >= whole_begin &&
          key0 + kInner <= whole_end) {
        ForShort(how, [&]<Short kShort>() { ShortRows<kPass, kShort>(rows, split, s, dp, found); });
      } else {
        CarefulRows<kPass, kGeneral>(backward, head, masks, rows, split, key0, s, dp, found);
      }
      if (kPass == 1) {
        scale.Divide(s, total);
        AddWeighted<Type, D, kInner>(total, s, keys_at, 0, moderate);
      }
      if (Shape::kStages == 2) {
        stage ^= 1;
      } else if (next < block.keys_end) {
        SyncBlock();  // the tile has been read
        fetch(next, stage);
      }
    }
  };
  pass_over_keys.template operator()<0>();
  TSALLIS_UNROLL
  for (int half = 0; half < 2; ++half) {
    double &sum_u = found.sum_u[half], &sum_dp = found.sum_dp[half];
    for (int bit = 1; bit < 4; bit *= 2) {
      sum_u += ShuffleXor(sum_u, bit);
      sum_dp += ShuffleXor(sum_dp, bit);
    }
    found.alpha_sums[half].Reduce(1, 4);
    const auto sink = SinkPart::Of<kGeneral>(head, tau[half]);
    sum_u += static_cast<double>(sink.u);
    if (sum_u != 0.0) found.mean[half] = static_cast<float>(sum_dp / sum_u);
    // These results are written now, so that the second pass has their registers.
    if (t != 0 || rows[half].row < 0) continue;
    const std::int64_t index = head.Index(call, rows[half].row);
    StoreDevice(backward.means + index, found.mean[half]);
    StoreDevice(backward.views + index,
                Words4{{BitsOf(split[half].high), BitsOf(split[half].low), BitsOf(found.mean[half]),
                        BitsOf(rows[half].factor)}});
    if (sums.d_sink != nullptr) {
      StoreDevice(sums.d_sink + index,
                  -static_cast<double>(sink.u) * static_cast<double>(found.mean[half]));
    }
    if (sums.d_alpha != nullptr) {
      found.alpha_sums[half].template Add<kGeneral>(head, sink.p, 0.0);
      StoreDevice(sums.d_alpha + index,
                  sum_u != 0.0 ? found.alpha_sums[half].Gradient(head, sum_u) : 0.0);
    }
  }
  pass_over_keys.template operator()<1>();

  TSALLIS_UNROLL
  for (int half = 0; half < 2; ++half) {
    const DenseRow& row = rows[half];
    found.d_scale[half] = QuadSum(found.d_scale[half]);
    found.d_slope[half] = QuadSum(found.d_slope[half]);
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
    if (backward.d_length_scale != nullptr) {
      StoreDevice(backward.d_length_scale + index,
                  call.scale * static_cast<double>(found.d_scale[half]));
    }
    if (sums.d_slope != nullptr) {
      StoreDevice(sums.d_slope + index, static_cast<double>(found.d_slope[half]));
    }
  }
}

// ---- keys ---------------------------------------------------------------------------------------

// A query that passes by, as the block's threads see it: BackwardCall::views. Without a query
// zeros, of which nothing comes, since its rows are zeros too.
struct QueryView {
  SplitTau tau;
  float mean = 0.0f, factor = 0.0f;

  TSALLIS_DEVICE static QueryView Of(const Words4& words) {
    return {{FloatOf(words.w[0]), FloatOf(words.w[1])}, FloatOf(words.w[2]), FloatOf(words.w[3])};
  }
  // Whether it has weights at all.
  TSALLIS_DEVICE bool Lives() const { return tau.high != kInfinity; }
};

template <class Type, int D>
struct DenseKeysShape {
  static constexpr int kKeys = kWarps * 16;
  // Columns of dk and dv that a block computes: registers hold no more.
  static constexpr int kColumns = D <= 128 ? D : 128, kParts = D / kColumns;
  static constexpr int kStages = D <= 128 ? 2 : 1;
  static constexpr std::size_t kKeyBytes = LeftRows<Type, D, kKeys>::kBytes;
  static constexpr std::size_t kQueryBytes = kInner * D * sizeof(typename Type::Element);
  // A stage: queries, gradients, views.
  static constexpr std::size_t kStagesAt = 2 * kKeyBytes;
  static constexpr std::size_t kGradientsBehind = kQueryBytes, kViewsBehind = 2 * kQueryBytes;
  static constexpr std::size_t kStageBytes = kViewsBehind + kInner * sizeof(Words4);
  static constexpr std::size_t kSharedBytes = kStagesAt + kStages * kStageBytes;
};

// Products of keys (rows) and queries (columns) and their dp become weights and gradients of the
// products, for any map, terms and masks. row_of(i): the row of the tile's query i, or below 0.
template <bool kGeneral, class RowOf>
TSALLIS_DEVICE void CarefulKeys(const DeviceCall& call, const Head& head, const TileMasks& masks,
                                const RowOf& row_of, const Shared<Words4>& views, int key0,
                                float (&s)[kInner / 8][4], float (&dp)[kInner / 8][4]) {
  const int t = Lane() % 4;
  TSALLIS_LOOP
  for (int j = 0; j < kInner / 8; ++j) {
    TSALLIS_UNROLL
    for (int e = 0; e < 2; ++e) {
      const QueryView view = QueryView::Of(views.Load(8 * j + 2 * t + e));
      const int row = row_of(8 * j + 2 * t + e);
      Span seen;
      if (row >= 0 && view.Lives()) seen = head.sequence.VisibleKeys(call.mask, row);
      TSALLIS_UNROLL
      for (int half = 0; half < 2; ++half) {
        const int at = 2 * half + e;
        const int key = key0 + WarpIndex() * 16 + half * 8 + Lane() / 4;
        const float product = s[0][at], here = dp[0][at];
        s[0][at] = dp[0][at] = 0.0f;
        if (key < seen.begin || key >= seen.end) continue;
        float bias = 0.0f;
        if (kGeneral && !head.IsVisible(call, masks, row, key, &bias)) continue;
        const std::int64_t distance = head.sequence.Distance(row, key);
        float z = head.Score(view.factor, product, distance);
        if (kGeneral) z += bias;
        const Weight weight = view.tau.template WeightOf<kGeneral>(head, z);
        if (weight.IsZero(kGeneral)) continue;
        const float ds = weight.u * (here - view.mean);
        const float dx = ThroughTerms(head, ds, view.factor * product, distance);
        s[0][at] = weight.p;
        dp[0][at] = dx == 0.0f ? 0.0f : dx * view.factor * head.power;
      }
    }
    Rotate(s);
    Rotate(dp);
  }
}

// Does this for moderate numbers of which every pair is visible.
template <Short kShort>
TSALLIS_DEVICE void ShortKeys(float power, const Shared<Words4>& views, float (&s)[kInner / 8][4],
                              float (&dp)[kInner / 8][4]) {
  const int t = Lane() % 4;
  TSALLIS_UNROLL
  for (int j = 0; j < kInner / 8; ++j) {
    TSALLIS_UNROLL
    for (int e = 0; e < 2; ++e) {
      const QueryView view = QueryView::Of(views.Load(8 * j + 2 * t + e));
      const float factor = view.factor * power;
      TSALLIS_UNROLL
      for (int at = e; at < 4; at += 2) {
        const Weight weight =
            ShortWeight<kShort>(view.factor * s[j][at], view.tau.high, view.tau.low);
        s[j][at] = weight.p;
        dp[j][at] = weight.u * (dp[j][at] - view.mean) * factor;
      }
    }
  }
}

template <class Type, int D, bool kGeneral>
TSALLIS_KERNEL(kThreads)
DenseKeysKernel(const BackwardCall backward) {
  using Shape = DenseKeysShape<Type, D>;
  constexpr int kBlocks = Shape::kColumns / 8;
  const DeviceCall& call = backward.call;
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
  // The warp's keys.
  const int warp_key = key0 + WarpIndex() * 16;
  const int warp_behind = warp_key + 16 < behind ? warp_key + 16 : behind;
  OwnRows<Type, D, Shape::kKeys, false> own(
      ArrayRows<Type>::Of(call.k, b, kv), call.head_dim, ArrayRows<Type>::Of(call.v, b, kv),
      call.value_dim, [&](int i) { return key0 + i < behind ? key0 + i : -1; });
  CommitCopies();

  float dk[kBlocks][4], dv[kBlocks][4];
  Clear(dk);
  Clear(dv);
  RowScale<Type> dk_scale, dv_scale;
  TSALLIS_LOOP
  for (int h = kv * call.group(); h < (kv + 1) * call.group(); ++h) {
    const Head head = Head::Of<kGeneral>(call, place.b, h);
    const int count = backward.dense.Count(call, head);
    const auto q_rows = ArrayRows<Type>::Of(call.q, b, h);
    const auto d_out_rows = ArrayRows<Type>::Of(backward.d_out, b, h);
    const Short how = kGeneral && !IsPlain(call) ? Short::kNone : ShortOf(head);
    const auto row_at = [&](int i) { return backward.dense.At(call, head, i); };
    // Rows ascend, and so do both ends of what they see: the first row that sees keys of the block,
    // or ones behind it, is searched for.
    int low = 0, high = count;
    while (low < high) {
      const int middle = (low + high) / 2;
      const std::int64_t row = row_at(middle);
      const bool before = head.KeysOf(call.mask, row, row).end <= key0;
      low = before ? middle + 1 : low;
      high = before ? high : middle;
    }
    // The rows at the ends of the tile at `first`, and whether the warp's keys are all visible.
    int first_row = 0, last_row = 0;
    bool whole = false, next_whole = false;
    TileMasks masks, next_masks;
    // The first tile from `first` on that has visible pairs; count without one.
    const auto next_tile = [&](int first) {
      for (; first < count; first += kInner) {
        first_row = row_at(first);
        last_row = row_at(first + kInner < count ? first + kInner - 1 : count - 1);
        const Span of_first = head.sequence.VisibleKeys(call.mask, first_row);
        const Span of_last = head.sequence.VisibleKeys(call.mask, last_row);
        if (of_first.begin >= behind) return count;
        next_whole = of_last.begin <= warp_key && of_first.end >= warp_behind;
        if (kGeneral) next_masks = head.MasksOf(call.mask, first_row, last_row, key0, behind);
        if (next_masks.any) break;
      }
      return first;
    };
    const auto fetch = [&](int first, int stage) {
      const std::size_t at =
          Shape::kStagesAt + static_cast<std::size_t>(stage) * Shape::kStageBytes;
      const Shared<Words4> queries(at), d_outs(at + Shape::kGradientsBehind);
      const auto row_of = [&](int i) { return first + i < count ? row_at(first + i) : -1; };
      if (backward.dense.rows == nullptr) {
        const int rows_end = first_row + count - first;
        TileRun<Type, D, kInner>(q_rows, call.head_dim).Fetch(queries, first_row, rows_end);
        TileRun<Type, D, kInner>(d_out_rows, call.value_dim).Fetch(d_outs, first_row, rows_end);
      } else {
        FetchTile<Type, D, kInner>(queries, q_rows, call.head_dim, row_of);
        FetchTile<Type, D, kInner>(d_outs, d_out_rows, call.value_dim, row_of);
      }
      if (ThreadIndex() < kInner) {
        const int row = row_of(ThreadIndex());
        const Words4* view = backward.views + head.Index(call, row >= 0 ? row : first_row);
        CopyAsync(Shared<Words4>(at + Shape::kViewsBehind), ThreadIndex(), view, row >= 0);
      }
      CommitCopies();
    };
    int next = next_tile(low), stage = 0;
    SyncBlock();  // the last head's tiles have been read
    if (next < count) fetch(next, stage);
    TSALLIS_LOOP
    while (next < count) {
      const int first = next;
      const std::size_t queries_at =
          Shape::kStagesAt + static_cast<std::size_t>(stage) * Shape::kStageBytes;
      const std::size_t d_outs_at = queries_at + Shape::kGradientsBehind;
      const Shared<Words4> views(queries_at + Shape::kViewsBehind);
      whole = next_whole;
      masks = next_masks;
      next = next_tile(first + kInner);
      WaitForCopies<0>();
      SyncBlock();  // the tile is there, and the last one has been read
      if (Shape::kStages == 2 && next < count) fetch(next, stage ^ 1);
      // Scores and dp of keys (rows) and queries (columns).
      float s[kInner / 8][4], dp[kInner / 8][4];
      Clear(s);
      Clear(dp);
      own.Multiply(s, dp, Shared<Words4>(queries_at), Shared<Words4>(d_outs_at));
      Moderate numbers;
      TSALLIS_UNROLL
      for (int j = 0; j < kInner / 8; ++j) {
        TSALLIS_UNROLL
        for (int e = 0; e < 2; ++e) {
          const QueryView view = QueryView::Of(views.Load(8 * j + 2 * t + e));
          numbers.Look(e, view.factor * s[j][e]);
          numbers.Look(2 + e, dp[j][e] - view.mean);
          numbers.Look(e, dp[j][2 + e] - view.mean);
        }
      }
      const bool moderate = numbers.All();
      if (moderate && how != Short::kNone && whole && (!kGeneral || masks.all)) {
        ForShort(how, [&]<Short kShort>() { ShortKeys<kShort>(head.power, views, s, dp); });
      } else {
        CarefulKeys<kGeneral>(
            call, head, masks, [&](int i) { return first + i < count ? row_at(first + i) : -1; },
            views, key0, s, dp);
      }
      dv_scale.Divide(s, dv);
      AddWeighted<Type, D, kInner>(dv, s, d_outs_at, first_column, moderate);
      dk_scale.Divide(dp, dk);
      AddWeighted<Type, D, kInner>(dk, dp, queries_at, first_column, moderate);
      if (Shape::kStages == 2) {
        stage ^= 1;
      } else if (next < count) {
        SyncBlock();  // the tile has been read
        fetch(next, stage);
      }
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

}  // namespace TSALLIS_SIDE
}  // namespace tsallis::cuda
