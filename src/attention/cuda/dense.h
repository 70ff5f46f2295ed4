// Forward on tiles, for rows that keep many keys, and for softmax.
//
// A block owns 64 rows, a warp 16. Softmax: one pass with the running rescale of Milakov and
// Gimelshein (arXiv 1805.02867, algorithm 3) as in FlashAttention. Entmax: a pass for the largest
// score, passes of Newton's method from below until no row moves, a pass for the weights; it starts
// from the bound that the sweep proved. Statistics of softmax take another pass. Alphas below 1.1
// or above 2 have the same passes, with thresholds and weights in double.
//
// Rows come as a compact list (of those that the sweep left), or are all rows of a sequence: those
// of softmax, and those with a bias, of which the sweep has no bound.
#pragma once

#include <cstdint>

#include "attention/cuda/call.h"
#include "attention/cuda/sweep.h"
#include "attention/cuda/tile.h"

namespace tsallis::cuda::inline TSALLIS_SIDE {

// Rows that the dense kernels take: those of sequence b and head h are the first counts[b heads +
// h] of rows + Index(first row of the sequence). rows null: all.
struct DenseRows {
  const int* rows = nullptr;
  const int* counts = nullptr;

  TSALLIS_DEVICE int Count(const Call& call, const Head& head) const {
    if (rows == nullptr) return static_cast<int>(head.sequence.q.size());
    return LoadDevice(counts + head.sequence.batch * call.heads + head.h);
  }
  // i: below Count.
  TSALLIS_DEVICE int At(const Call& call, const Head& head, int i) const {
    const std::int64_t begin = head.sequence.q.begin;
    if (rows == nullptr) return static_cast<int>(begin) + i;
    return LoadDevice(rows + head.Index(call, begin) + i);
  }
};

struct DenseCall {
  Call call;
  DenseRows dense;
  MutableArray4 out;
  Statistics statistics;
  const float* bounds = nullptr;  // [rows] or null: a z below each threshold
};

template <class Type, int D>
struct DenseShape {
  static constexpr int kRows = kWarps * 16;
  static constexpr int kKeys = D <= 128 && !kIsFloat32<Type> ? 64 : 32;
  static constexpr std::size_t kKeyBytes = kKeys * D * sizeof(typename Type::Element);
  static constexpr std::size_t kKeysAt = LeftRows<Type, D, kRows>::kBytes;
  static constexpr std::size_t kValuesAt = kKeysAt + kKeyBytes;
  static constexpr std::size_t kFlagsAt = kValuesAt + kKeyBytes;
  static constexpr std::size_t kSharedBytes = kFlagsAt + kWarps * 4;
};

// One of a lane's two rows.
struct DenseRow {
  int row = -1;
  int begin = 0, end = 0;
  float factor = 0.0f;
  float peak = -kInfinity;  // largest z; NaN spreads
  float top = 0.0f;         // entmax: peak - tau; softmax: the sum of exp(z - peak)

  // Whether it has keys, and no score that is NaN or infinite.
  TSALLIS_DEVICE bool Lives() const { return peak > -kInfinity && peak <= kMostFloat; }
};

// Places of a warp's rows in the block's list, and the keys that any row of the block sees.
template <int kRows>
struct DenseBlock {
  DenseRow rows[2];
  int first_row = 0, last_row = 0;  // of the block
  int keys_begin = 0, keys_end = 0;

  // first: of the block, in the list of `count` rows.
  TSALLIS_DEVICE static DenseBlock Of(const Call& call, const DenseRows& dense, const Head& head,
                                      int first, int count) {
    DenseBlock block;
    const int last = first + kRows < count ? first + kRows - 1 : count - 1;
    block.first_row = dense.At(call, head, first);
    block.last_row = dense.At(call, head, last);
    const Span keys = head.KeysOf(call.mask, block.first_row, block.last_row);
    block.keys_begin = static_cast<int>(keys.begin);
    block.keys_end = static_cast<int>(keys.end);
    TSALLIS_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int at = first + WarpIndex() * 16 + half * 8 + Lane() / 4;
      if (at >= count) continue;
      DenseRow& row = block.rows[half];
      row.row = dense.At(call, head, at);
      const Span seen = head.sequence.VisibleKeys(call.mask, row.row);
      row.begin = static_cast<int>(seen.begin);
      row.end = static_cast<int>(seen.end);
      row.factor = head.Factor(call, row.row);
    }
    return block;
  }
  // Of the tile of `keys` keys from `key` on, a block mask's. The warp calls it.
  template <bool kGeneral>
  TSALLIS_DEVICE BlocksLeft LeftOf(const Call& call, const Head& head, int key, int keys) const {
    if (!kGeneral) return {};
    return head.LeftOf(call.mask, first_row, last_row, key,
                       key + keys < keys_end ? key + keys : keys_end);
  }
};

// Products of a tile become z; -inf where a row does not see the key. left: of the tile.
template <bool kGeneral, int kColumns>
TSALLIS_DEVICE void ToScores(const Call& call, const Head& head, const BlocksLeft& left,
                             const DenseRow (&rows)[2], int key0, float (&s)[kColumns / 8][4]) {
  TSALLIS_UNROLL
  for (int j = 0; j < kColumns / 8; ++j) {
    TSALLIS_UNROLL
    for (int e = 0; e < 4; ++e) {
      const DenseRow& row = rows[e / 2];
      const int key = key0 + 8 * j + Lane() % 4 * 2 + e % 2;
      float bias = 0.0f;
      const bool seen = key >= row.begin && key < row.end &&
                        (!kGeneral || head.Leaves(call, left, row.row, key, &bias));
      s[j][e] =
          seen ? head.Score(row.factor, s[j][e], head.sequence.Distance(row.row, key)) : -kInfinity;
      if (kGeneral && seen) s[j][e] += bias;
    }
  }
}

// What is known of the logarithm w of a wide row's largest weight. Its weights are
//   e^w [1 - r]^(1 / eps),  r = eps depth e^(-eps w),
// for eps = alpha - 1 of either sign and a score's depth below the largest: simplex/solve.h has
// why.
struct WideRow {
  double w = 0.0, low = 0.0, high = 0.0;
  double error = 0.0;   // of the logarithm of the sum, one step before
  double shrink = 1.0;  // e^(-eps w)

  // keys: at most so many have a weight.
  TSALLIS_DEVICE static WideRow Of(const Head& head, int keys) {
    WideRow row;
    row.low = -log(static_cast<double>(keys)) * (1.0 + 1e-15) - 1e-15;
    row.error = static_cast<double>(kInfinity);
    row.MoveTo(head, row.low);
    return row;
  }
  TSALLIS_DEVICE void MoveTo(const Head& head, double next) {
    w = next;
    shrink = exp(-head.eps * w);
  }
  // A weight, its logarithm, and its ratio to its derivative in w: 1 - r. 0 if there is none.
  TSALLIS_DEVICE double Weight(const Head& head, float peak, float score, double* log_weight,
                               double* ratio) const {
    const double depth = static_cast<double>(peak) - static_cast<double>(score);
    const double r = head.eps * depth * shrink;
    if (!(r < 1.0)) return 0.0;
    *ratio = 1.0 - r;
    *log_weight = w + log1p(-r) / head.eps;
    return exp(*log_weight);
  }
  // From the sums of weights and of their derivatives; whether w moves.
  TSALLIS_DEVICE bool Step(const Head& head, double sum, double slope) {
    const double log_sum = log(sum);
    if (fabs(log_sum) <= 1e-12) return false;
    if (log_sum < 0.0) {
      low = fmax(low, w);
    } else {
      high = fmin(high, w);
    }
    const double middle = low + 0.5 * (high - low);
    if (!(middle > low && middle < high)) return false;
    // Newton's step where it stays inside and the last one was worth it, else half of the bracket.
    double next = w - log_sum * sum / slope;
    if (!(next > low && next < high) || fabs(log_sum) > 0.5 * error) next = middle;
    error = fabs(log_sum);
    MoveTo(head, next);
    return true;
  }
  TSALLIS_DEVICE double Tau(const Head& head, float peak) const {
    return head.eps * static_cast<double>(peak) - exp(head.eps * w);
  }
};

// What a pass over the keys is for.
enum class DensePass : std::uint8_t {
  kRescale,  // softmax: largest z, sums, values
  kLargest,  // entmax: largest z
  kNewton,   // entmax: a step of Newton's method
  kWeights,  // entmax: values, statistics
  kCount,    // softmax: statistics
};

// A lane's share of what a pass finds out about its two rows.
struct DenseSums {
  double p[2] = {0.0, 0.0}, u[2] = {0.0, 0.0};
  float entropy[2] = {0.0f, 0.0f};
  int support[2] = {0, 0};

  TSALLIS_DEVICE void Count(int half, float p_here, float log_p) {
    if (!(p_here > 0.0f)) return;
    ++support[half];
    entropy[half] -= p_here * log_p;
  }
};

// Scores of a tile become weights, or what else the pass wants.
template <bool kGeneral, int kBlocks, int kColumnBlocks>
TSALLIS_DEVICE void TakeTile(DensePass pass, const Head& head, bool counts, DenseRow (&rows)[2],
                             const WideRow (&wide)[2], float (&s)[kBlocks][4],
                             float (&total)[kColumnBlocks][4], DenseSums& sums) {
  TSALLIS_UNROLL
  for (int half = 0; half < 2; ++half) {
    DenseRow& row = rows[half];
    if (pass == DensePass::kRescale || pass == DensePass::kLargest) {
      float peak = row.peak;
      TSALLIS_UNROLL
      for (int j = 0; j < kBlocks; ++j) {
        peak = MaxOrNaN(peak, MaxOrNaN(s[j][2 * half], s[j][2 * half + 1]));
      }
      peak = QuadMax(peak);
      if (pass == DensePass::kRescale) {
        const float change = row.peak == -kInfinity ? 0.0f : expf(row.peak - peak);
        TSALLIS_UNROLL
        for (int j = 0; j < kColumnBlocks; ++j) {
          total[j][2 * half] *= change;
          total[j][2 * half + 1] *= change;
        }
        row.top *= change;
      }
      row.peak = peak;
      if (pass == DensePass::kLargest) continue;
    }
    if (kGeneral && head.wide) {
      TSALLIS_UNROLL
      for (int j = 0; j < kBlocks; ++j) {
        TSALLIS_UNROLL
        for (int e = 2 * half; e < 2 * half + 2; ++e) {
          double log_weight = 0.0, ratio = 1.0;
          const double weight = wide[half].Weight(head, row.peak, s[j][e], &log_weight, &ratio);
          s[j][e] = static_cast<float>(weight);
          sums.p[half] += weight;
          sums.u[half] += weight / ratio;
          if (counts && pass == DensePass::kWeights) {
            sums.Count(half, s[j][e], static_cast<float>(log_weight));
          }
        }
      }
      continue;
    }
    const float log_sum = pass == DensePass::kCount ? logf(row.top) : 0.0f;
    float p_sum = 0.0f, u_sum = 0.0f;
    TSALLIS_UNROLL
    for (int j = 0; j < kBlocks; ++j) {
      TSALLIS_UNROLL
      for (int e = 2 * half; e < 2 * half + 2; ++e) {
        const float depth = row.peak - s[j][e];  // NaN where nothing is seen at all
        if (pass == DensePass::kRescale) {
          s[j][e] = s[j][e] == -kInfinity ? 0.0f : expf(-depth);
          p_sum += s[j][e];
        } else if (pass == DensePass::kCount) {
          const float log_p = -depth - log_sum;
          sums.Count(half, expf(log_p), log_p);
        } else {
          const float x = row.top - depth;
          Weight weight;
          if (x > 0.0f) weight = Weight::Of(x, head.alpha, head.power);
          s[j][e] = weight.p;
          p_sum += weight.p;
          u_sum += weight.u;
          if (counts && pass == DensePass::kWeights) {
            sums.Count(half, weight.p, weight.p > 0.0f ? logf(weight.p) : 0.0f);
          }
        }
      }
    }
    if (pass == DensePass::kRescale) row.top += QuadSum(p_sum);
    sums.p[half] += static_cast<double>(p_sum);
    sums.u[half] += static_cast<double>(u_sum);
  }
}

// Whether the row's threshold moves: a step of Newton's method from below.
template <bool kGeneral>
TSALLIS_DEVICE bool MoveThreshold(const Head& head, double p, double u, DenseRow& row,
                                  WideRow& wide) {
  p += ShuffleXor(p, 1);
  p += ShuffleXor(p, 2);
  u += ShuffleXor(u, 1);
  u += ShuffleXor(u, 2);
  if (kGeneral && head.wide) {
    double log_weight = 0.0, ratio = 1.0;
    const double weight = wide.Weight(head, row.peak, head.sink, &log_weight, &ratio);
    return row.Lives() && wide.Step(head, p + weight, u + weight / ratio);
  }
  const float x = row.top - (row.peak - head.sink);
  if (x > 0.0f) {
    const Weight weight = Weight::Of(x, head.alpha, head.power);
    p += static_cast<double>(weight.p);
    u += static_cast<double>(weight.u);
  }
  const double step = (p - 1.0) / (u * static_cast<double>(head.power));
  const auto next = static_cast<float>(static_cast<double>(row.top) - step);
  const bool moves = row.Lives() && next < row.top;
  if (moves) row.top = next;
  return moves;
}

// The output and the statistics of one of a lane's rows. The warp calls it.
template <class Type, int D, bool kGeneral>
TSALLIS_DEVICE void WriteRow(const DenseCall& dense, const Head& head, const DenseRow& row,
                             const WideRow& wide_row, int half, float largest, float scale,
                             const float (&total)[D / 8][4], const DenseSums& sums) {
  const Call& call = dense.call;
  const int t = Lane() % 4;
  const float entropy = QuadSum(sums.entropy[half]);
  int support = sums.support[half] + ShuffleXor(sums.support[half], 1);
  support += ShuffleXor(support, 2);
  if (row.row < 0) return;
  // Without a z above -inf a row is empty, and broken with one that is NaN or inf.
  const bool lives = row.Lives(), broken = !lives && row.peak != -kInfinity;
  const float nan = kInfinity - kInfinity;
  const float factor = scale / (head.softmax() ? row.top : 1.0f);
  const std::int64_t start = Offset(dense.out.strides, head.sequence.array_batch, head.h, row.row);
  TSALLIS_UNROLL
  for (int j = 0; j < D / 8; ++j) {
    if (8 * j >= call.value_dim) break;
    float pair[2];
    TSALLIS_UNROLL
    for (int e = 0; e < 2; ++e) {
      pair[e] = broken ? nan : lives ? factor * total[j][2 * half + e] : 0.0f;
    }
    StoreColumns<Type>(dense.out, start, 8 * j + 2 * t, pair, 2);
  }
  if (t != 0) return;
  const std::int64_t index = head.Index(call, row.row);
  const Statistics& statistics = dense.statistics;
  const auto wide = [&](double x) { return broken ? static_cast<double>(nan) : x; };
  if (statistics.tau != nullptr) {
    const double top = head.softmax() ? -log(static_cast<double>(row.top)) : row.top;
    double tau = static_cast<double>(row.peak) - top;
    if (kGeneral && head.wide) tau = wide_row.Tau(head, row.peak);
    StoreDevice(statistics.tau + index, wide(lives ? tau : -static_cast<double>(kInfinity)));
  }
  if (statistics.support_size != nullptr) {
    StoreDevice(statistics.support_size + index, static_cast<std::int64_t>(broken  ? -1
                                                                           : lives ? support
                                                                                   : 0));
  }
  if (statistics.entropy != nullptr) {
    StoreDevice(statistics.entropy + index, wide(lives ? static_cast<double>(entropy) : 0.0));
  }
  if (statistics.maximum != nullptr) {
    StoreDevice(statistics.maximum + index,
                wide(static_cast<double>(largest) / static_cast<double>(head.unit)));
  }
}

// kGeneral: with masks, a bias and any alpha.
template <class Type, int D, bool kGeneral>
TSALLIS_KERNEL(kThreads)
DenseKernel(const DenseCall dense) {
  using Shape = DenseShape<Type, D>;
  constexpr int kKeys = Shape::kKeys;
  const Call& call = dense.call;
  const Head head = Head::Of<kGeneral>(call, BlockZ(), BlockY());
  const Sequence& sequence = head.sequence;
  const int count = dense.dense.Count(call, head);
  const int first = (Blocks() - 1 - BlockX()) * Shape::kRows;
  if (first >= count) return;
  auto block = DenseBlock<Shape::kRows>::Of(call, dense.dense, head, first, count);
  DenseRow(&rows)[2] = block.rows;
  const auto k_rows = Rows<Type>::Of(call.k, sequence.array_batch, head.kv);
  const auto v_rows = Rows<Type>::Of(call.v, sequence.array_batch, head.kv);
  const Shared<Words4> k_tile(Shape::kKeysAt), v_tile(Shape::kValuesAt);
  const Shared<int> flags(Shape::kFlagsAt);
  const LeftRows<Type, D, Shape::kRows> queries(
      0, Rows<Type>::Of(call.q, sequence.array_batch, head.h), call.head_dim,
      [&](int i) { return first + i < count ? dense.dense.At(call, head, first + i) : -1; });
  CommitCopies();

  const bool softmax = head.softmax();
  const bool counts =
      dense.statistics.entropy != nullptr || dense.statistics.support_size != nullptr;
  DensePass pass = softmax ? DensePass::kRescale : DensePass::kLargest;
  float total[D / 8][4];
  Clear(total);
  RowScale<Type> scale;
  DenseSums sums;
  WideRow wide[2];
  float largest[2] = {-kInfinity, -kInfinity};
  TSALLIS_LOOP
  for (bool more = true; more;) {
    const bool values = pass == DensePass::kRescale || pass == DensePass::kWeights;
    sums.p[0] = sums.p[1] = sums.u[0] = sums.u[1] = 0.0;
    TSALLIS_LOOP
    for (int key0 = block.keys_begin; key0 < block.keys_end; key0 += kKeys) {
      const BlocksLeft left = block.template LeftOf<kGeneral>(call, head, key0, kKeys);
      if (!left.any) continue;
      const auto row_of = [&](int i) { return key0 + i < block.keys_end ? key0 + i : -1; };
      SyncBlock();  // the last tile has been read
      FetchTile<Type, D, kKeys>(k_tile, k_rows, call.head_dim, row_of);
      if (values) FetchTile<Type, D, kKeys>(v_tile, v_rows, call.value_dim, row_of);
      CommitCopies();
      WaitForCopies<0>();
      const bool finite = AllThreads(flags, !values || IsFinite<Type, D, kKeys>(v_tile));
      float s[kKeys / 8][4];
      Clear(s);
      queries.Multiply(s, k_tile);
      ToScores<kGeneral, kKeys>(call, head, left, rows, key0, s);
      TakeTile<kGeneral>(pass, head, counts, rows, wide, s, total, sums);
      if (values) {
        scale.Divide(s, total);
        AddWeighted<Type, D, kKeys>(total, s, v_tile, Shape::kValuesAt, 0, finite);
      }
    }
    if (pass == DensePass::kRescale || pass == DensePass::kLargest) {
      TSALLIS_UNROLL
      for (int half = 0; half < 2; ++half) {
        DenseRow& row = rows[half];
        largest[half] = row.peak;
        if (!row.Lives()) continue;
        // The sink is one more key; it counts where there is another.
        const float change = head.sink > row.peak ? expf(row.peak - head.sink) : 1.0f;
        row.peak = fmaxf(row.peak, head.sink);
        if (softmax) {
          row.top = row.top * change + expf(head.sink - row.peak);
          TSALLIS_UNROLL
          for (int j = 0; j < D / 8; ++j) {
            total[j][2 * half] *= change;
            total[j][2 * half + 1] *= change;
          }
        } else if (kGeneral && head.wide) {
          // The sink is one of them.
          wide[half] = WideRow::Of(head, row.end - row.begin + 1);
        } else {
          row.top = 1.0f;
          if (dense.bounds != nullptr) {
            const float top = row.peak - LoadDevice(dense.bounds + head.Index(call, row.row));
            if (top > 0.0f && top < 1.0f) row.top = top;
          }
        }
      }
      more = !softmax || counts;
      pass = softmax ? DensePass::kCount : DensePass::kNewton;
    } else if (pass == DensePass::kNewton) {
      bool moves = MoveThreshold<kGeneral>(head, sums.p[0], sums.u[0], rows[0], wide[0]);
      moves = MoveThreshold<kGeneral>(head, sums.p[1], sums.u[1], rows[1], wide[1]) || moves;
      SyncBlock();  // the flags have been read
      if (AllThreads(flags, !moves)) pass = DensePass::kWeights;
    } else {
      more = false;
    }
  }
  WaitForCopies<0>();  // the queries', where no tile came

  TSALLIS_UNROLL
  for (int half = 0; half < 2; ++half) {
    WriteRow<Type, D, kGeneral>(dense, head, rows[half], wide[half], half, largest[half],
                                scale.scale[half], total, sums);
  }
}

}  // namespace tsallis::cuda::inline TSALLIS_SIDE
