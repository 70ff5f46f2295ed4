// Forward on tiles, for rows that keep many keys, and for softmax.
//
// A block owns 64 rows, a warp 16. Softmax: one pass with the running rescale of Milakov and
// Gimelshein (arXiv 1805.02867, algorithm 3) as in FlashAttention. Entmax: a pass for the largest
// score, passes of Newton's method from below until no row moves, a pass for the weights; it starts
// from the bound that the sweep proved. Statistics of softmax take another pass. Alphas below 1.1
// or above 2 have the same passes, with thresholds and weights in double.
//
// A GPU's cache of instructions holds little more than the products of a tile when these are
// unrolled. So each pass is a loop of its own, usual tiles (all keys visible, no terms; softmax,
// alpha 1.5 and 2) have short code without branches, and everything else is in loops that are not
// unrolled. Copies of the next tile are under way while the products of one are computed.
//
// Rows come as a compact list (of those that the sweeps left), or are all rows of a sequence: those
// of softmax, and those with a bias, of which the sweep has no bound.
#pragma once

#include <cstdint>

#include "attention/cuda/call.h"
#include "attention/cuda/sweep.h"
#include "attention/cuda/tile.h"

namespace tsallis::cuda {
inline namespace TSALLIS_SIDE {

struct DenseCall {
  DeviceCall call;
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
  // One where two would exceed what a block may have.
  static constexpr int kStages = kKeyBytes <= 16384 ? 2 : 1;
  static constexpr std::size_t kStageBytes = 2 * kKeyBytes;  // keys, values
  static constexpr std::size_t kKeysAt = LeftRows<Type, D, kRows>::kBytes;
  static constexpr std::size_t kValuesAt = kKeysAt + kKeyBytes;
  static constexpr std::size_t kFlagsAt = kKeysAt + kStages * kStageBytes;
  static constexpr std::size_t kSharedBytes = kFlagsAt + 2 * kWarps * 4;
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
  TSALLIS_DEVICE static DenseBlock Of(const DeviceCall& call, const DenseRows& dense,
                                      const Head& head, int first, int count) {
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
  // The block mask of the tile of `keys` keys from `key` on. The warp calls it.
  template <bool kGeneral>
  TSALLIS_DEVICE TileMasks MasksOf(const DeviceCall& call, const Head& head, int key,
                                   int keys) const {
    if (!kGeneral) return {};
    return head.MasksOf(call.mask, first_row, last_row, key,
                        key + keys < keys_end ? key + keys : keys_end);
  }
  // The first tile from `key` on with a pair that the block mask shows. The warp calls it.
  template <bool kGeneral>
  TSALLIS_DEVICE int NextTile(const DeviceCall& call, const Head& head, int key, int keys,
                              TileMasks* masks) const {
    TSALLIS_LOOP
    for (; key < keys_end; key += keys) {
      *masks = MasksOf<kGeneral>(call, head, key, keys);
      if (masks->any) break;
    }
    return key;
  }
};

// Turns products of a tile into z; -inf where a row does not see the key. masks: of the tile.
template <bool kGeneral, int kColumns>
TSALLIS_DEVICE void ToScores(const DeviceCall& call, const Head& head, const TileMasks& masks,
                             const DenseRow (&rows)[2], int key0, float (&s)[kColumns / 8][4]) {
  ForBlocks(s, [&](int j, float(&block)[4]) {
    TSALLIS_UNROLL
    for (int e = 0; e < 4; ++e) {
      const DenseRow& row = rows[e / 2];
      const int key = key0 + 8 * j + Lane() % 4 * 2 + e % 2;
      float bias = 0.0f;
      const bool seen = key >= row.begin && key < row.end &&
                        (!kGeneral || head.IsVisible(call, masks, row.row, key, &bias));
      block[e] = seen ? head.Score(row.factor, block[e], head.sequence.Distance(row.row, key))
                      : -kInfinity;
      if (kGeneral && seen) block[e] += bias;
    }
  });
}

// The bounds of the logarithm w of a wide row's largest weight. Its weights are
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

// The purpose of a pass over the keys.
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

// The largest z so far, with those of a tile.
template <int kBlocks>
TSALLIS_DEVICE float PeakOf(const float (&s)[kBlocks][4], int half, float peak) {
  TSALLIS_UNROLL
  for (int j = 0; j < kBlocks; ++j) {
    peak = MaxOrNaN(peak, MaxOrNaN(s[j][2 * half], s[j][2 * half + 1]));
  }
  return QuadMax(peak);
}

// Scores of a tile become exp(z - peak), which a lane adds to its own part of top; totals of before
// are brought to the new peak.
template <int kBlocks, int kColumnBlocks>
TSALLIS_DEVICE void RescaleTile(DenseRow (&rows)[2], float (&s)[kBlocks][4],
                                float (&total)[kColumnBlocks][4]) {
  constexpr float kLog2E = 1.44269504f;
  float changes[2];
  TSALLIS_UNROLL
  for (int half = 0; half < 2; ++half) {
    DenseRow& row = rows[half];
    const float peak = PeakOf(s, half, row.peak);
    const float change = row.peak == peak ? 1.0f : Exp2((row.peak - peak) * kLog2E);
    changes[half] = change;
    row.peak = peak;
    // Where nothing is seen at all every z is -inf, and no difference may be NaN.
    const float base = peak == -kInfinity ? 0.0f : peak;
    float sum = 0.0f;
    TSALLIS_UNROLL
    for (int j = 0; j < kBlocks; ++j) {
      TSALLIS_UNROLL
      for (int e = 2 * half; e < 2 * half + 2; ++e) {
        s[j][e] = Exp2((s[j][e] - base) * kLog2E);
        sum += s[j][e];
      }
    }
    row.top = row.top * change + sum;
  }
  // Peaks seldom rise after the first tiles.
  if (!Any(changes[0] != 1.0f || changes[1] != 1.0f)) return;
  TSALLIS_UNROLL
  for (int j = 0; j < kColumnBlocks; ++j) {
    TSALLIS_UNROLL
    for (int e = 0; e < 4; ++e) total[j][e] *= changes[e / 2];
  }
}

// Adds weights and slopes of a tile's scores, or puts weights in their place if kPut. weight_of:
// from x >= 0, the distance to the threshold.
template <bool kPut, int kBlocks, class WeightOf>
TSALLIS_DEVICE void WeighTile(const DenseRow (&rows)[2], float (&s)[kBlocks][4], DenseSums& sums,
                              const WeightOf& weight_of) {
  TSALLIS_UNROLL
  for (int half = 0; half < 2; ++half) {
    const DenseRow& row = rows[half];
    float p = 0.0f, u = 0.0f;
    TSALLIS_UNROLL
    for (int j = 0; j < kBlocks; ++j) {
      TSALLIS_UNROLL
      for (int e = 2 * half; e < 2 * half + 2; ++e) {
        // NaN, where nothing is seen at all, becomes 0.
        const float x = fmaxf(row.top - (row.peak - s[j][e]), 0.0f);
        const Weight weight = weight_of(x);
        if (kPut) {
          s[j][e] = weight.p;
        } else {
          p += weight.p;
          u += weight.u;
        }
      }
    }
    if (kPut) continue;
    sums.p[half] += static_cast<double>(p);
    sums.u[half] += static_cast<double>(u);
  }
}

// Weighs a tile for any alpha.
template <bool kGeneral, bool kPut, int kBlocks>
TSALLIS_DEVICE void WeighAnyTile(const Head& head, const DenseRow (&rows)[2],
                                 const WideRow (&wide)[2], bool counts, float (&s)[kBlocks][4],
                                 DenseSums& sums) {
  float p[2] = {0.0f, 0.0f}, u[2] = {0.0f, 0.0f};
  ForBlocks(s, [&](int, float(&block)[4]) {
    TSALLIS_UNROLL
    for (int e = 0; e < 4; ++e) {
      const int half = e / 2;
      const DenseRow& row = rows[half];
      if (kGeneral && head.wide) {
        double log_weight = 0.0, ratio = 1.0;
        const double weight = wide[half].Weight(head, row.peak, block[e], &log_weight, &ratio);
        if (kPut) {
          block[e] = static_cast<float>(weight);
          if (counts) sums.Count(half, block[e], static_cast<float>(log_weight));
        } else {
          sums.p[half] += weight;
          sums.u[half] += weight / ratio;
        }
        continue;
      }
      // powf has branches, for arguments that are not among these: x <= 1, exponents from 0 to 9.
      const float x = fmaxf(row.top - (row.peak - block[e]), 0.0f);
      const float slope = Exp2((head.power - 1.0f) * log2f(x));
      if (kPut) {
        block[e] = slope * x;
      } else {
        p[half] += slope * x;
        u[half] += slope;
      }
    }
  });
  TSALLIS_UNROLL
  for (int half = 0; half < 2; ++half) {
    sums.p[half] += static_cast<double>(p[half]);
    sums.u[half] += static_cast<double>(u[half]);
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
  const DeviceCall& call = dense.call;
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
    // The maximum is that of the scores alone: a sink does not break it.
    const float most = largest <= kMostFloat ? largest : nan;
    StoreDevice(statistics.maximum + index,
                static_cast<double>(most) / static_cast<double>(head.unit));
  }
}

// The data that the passes of a block work on.
template <class Type, int D, bool kGeneral>
struct DenseWork {
  using Shape = DenseShape<Type, D>;
  static constexpr int kKeys = Shape::kKeys;

  const DenseCall& dense;
  const Head& head;
  const HeldRows<Type, D, Shape::kRows>& queries;
  const TileRun<Type, D, kKeys>& keys;
  const TileRun<Type, D, kKeys>& values;
  DenseBlock<Shape::kRows>& block;
  // Keys [all_begin, all_end) are visible to all rows of the warp; without terms a score is a
  // product times a factor.
  int all_begin = 0, all_end = 0;
  bool plain = false, counts = false;
  float total[D / 8][4] = {};
  RowScale<Type> scale = {};
  DenseSums sums = {};
  WideRow wide[2] = {};

  TSALLIS_DEVICE void SetPlain() {
    const DeviceCall& call = dense.call;
    plain = !head.terms.any() &&
            (!kGeneral || (call.mask.visible == nullptr && call.terms.bias.data == nullptr));
    const DenseRow(&rows)[2] = block.rows;
    all_begin = rows[0].begin > rows[1].begin ? rows[0].begin : rows[1].begin;
    all_end = rows[0].end < rows[1].end ? rows[0].end : rows[1].end;
    TSALLIS_UNROLL
    for (int bits = 4; bits < kWarp; bits *= 2) {
      const int begin = ShuffleXor(all_begin, bits), end = ShuffleXor(all_end, bits);
      all_begin = begin > all_begin ? begin : all_begin;
      all_end = end < all_end ? end : all_end;
    }
  }
  template <bool kValues>
  TSALLIS_DEVICE void Fetch(std::size_t stage_byte, int key) const {
    keys.Fetch(Shared<Words4>(Shape::kKeysAt + stage_byte), key, block.keys_end);
    if (kValues) {
      values.Fetch(Shared<Words4>(Shape::kValuesAt + stage_byte), key, block.keys_end);
    }
  }

  // Goes through all keys. checks: whether tiles are looked at for values that are not finite. All
  // threads call it.
  template <DensePass kPass>
  TSALLIS_DEVICE void Pass(bool checks) {
    constexpr bool kValues = kPass == DensePass::kRescale || kPass == DensePass::kWeights;
    const DeviceCall& call = dense.call;
    DenseRow(&rows)[2] = block.rows;
    const Shared<int> flags(Shape::kFlagsAt);
    // The logarithms of the sums of softmax's weights, once more.
    float log_sum[2];
    TSALLIS_UNROLL
    for (int half = 0; kPass == DensePass::kCount && half < 2; ++half) {
      log_sum[half] = logf(rows[half].top);
    }
    sums.p[0] = sums.p[1] = sums.u[0] = sums.u[1] = 0.0;
    TileMasks masks, next_masks;
    int turn = 0;
    int key0 = block.template NextTile<kGeneral>(call, head, block.keys_begin, kKeys, &masks);
    if (key0 < block.keys_end) Fetch<kValues>(0, key0);
    CommitCopies();
    TSALLIS_LOOP
    while (key0 < block.keys_end) {
      const std::size_t stage = Shape::kStages == 2 && turn != 0 ? Shape::kStageBytes : 0;
      const Shared<Words4> k_tile(Shape::kKeysAt + stage), v_tile(Shape::kValuesAt + stage);
      WaitForCopies<0>();
      bool finite = true;
      if (kValues && checks) {
        finite = AllThreads(flags.From(turn * kWarps), IsFinite<Type, D, kKeys>(v_tile));
      } else {
        SyncBlock();  // the tile is there, and the last one has been read
      }
      const int next =
          block.template NextTile<kGeneral>(call, head, key0 + kKeys, kKeys, &next_masks);
      if (Shape::kStages == 2) {
        if (next < block.keys_end) Fetch<kValues>(Shape::kStageBytes - stage, next);
        CommitCopies();
      }
      float s[kKeys / 8][4];
      Clear(s);
      queries.Multiply(s, k_tile);
      if (plain && masks.all && key0 >= all_begin && key0 + kKeys <= all_end) {
        TSALLIS_UNROLL
        for (int j = 0; j < kKeys / 8; ++j) {
          TSALLIS_UNROLL
          for (int e = 0; e < 4; ++e) s[j][e] *= rows[e / 2].factor;
        }
      } else {
        ToScores<kGeneral, kKeys>(call, head, masks, rows, key0, s);
      }
      if constexpr (kPass == DensePass::kRescale) {
        RescaleTile(rows, s, total);
      } else if constexpr (kPass == DensePass::kLargest) {
        TSALLIS_UNROLL
        for (int half = 0; half < 2; ++half) rows[half].peak = PeakOf(s, half, rows[half].peak);
      } else if constexpr (kPass == DensePass::kCount) {
        ForBlocks(s, [&](int, float(&scores)[4]) {
          TSALLIS_UNROLL
          for (int e = 0; e < 4; ++e) {
            const float log_p = -(rows[e / 2].peak - scores[e]) - log_sum[e / 2];
            sums.Count(e / 2, expf(log_p), log_p);
          }
        });
      } else {
        const bool is_wide = kGeneral && head.wide;
        if (!is_wide && head.alpha == 1.5f) {
          WeighTile<kValues>(rows, s, sums, [](float x) { return Weight{x * x, x}; });
        } else if (!is_wide && head.alpha == 2.0f) {
          WeighTile<kValues>(rows, s, sums, [](float x) {
            return Weight{x, x > 0.0f ? 1.0f : 0.0f};
          });
        } else {
          WeighAnyTile<kGeneral, kValues>(head, rows, wide, counts, s, sums);
        }
        if (kValues && counts && !is_wide) {
          ForBlocks(s, [&](int, float(&weights)[4]) {
            TSALLIS_UNROLL
            for (int e = 0; e < 4; ++e) {
              sums.Count(e / 2, weights[e], weights[e] > 0.0f ? logf(weights[e]) : 0.0f);
            }
          });
        }
      }
      if constexpr (kValues) {
        scale.Divide(s, total);
        AddWeighted<Type, D, kKeys>(total, s, Shape::kValuesAt + stage, 0, finite);
      }
      if (Shape::kStages == 1) {
        SyncBlock();  // the only stage has been read
        if (next < block.keys_end) Fetch<kValues>(0, next);
        CommitCopies();
      }
      key0 = next;
      masks = next_masks;
      turn ^= 1;
    }
    WaitForCopies<0>();
    SyncBlock();  // the last tile has been read
  }

  // A pass that adds values. Products with the tiles are right while these are finite; if a sum is
  // not, because a weight of 0 may have met NaN, the pass is done again, more carefully.
  template <DensePass kPass>
  TSALLIS_DEVICE void AddValues() {
    TSALLIS_LOOP
    for (int turn = 0; turn < 2; ++turn) {
      Clear(total);
      scale = RowScale<Type>();
      sums = DenseSums();
      TSALLIS_UNROLL
      for (int half = 0; kPass == DensePass::kRescale && half < 2; ++half) {
        block.rows[half].peak = -kInfinity;
        block.rows[half].top = 0.0f;
      }
      Pass<kPass>(turn != 0);
      if (kIsFloat32<Type> || turn != 0) break;
      bool finite = true;
      TSALLIS_UNROLL
      for (int j = 0; j < D / 8; ++j) {
        TSALLIS_UNROLL
        for (int e = 0; e < 4; ++e) {
          finite = finite && (!block.rows[e / 2].Lives() || fabsf(total[j][e]) <= kMostFloat);
        }
      }
      // Not where the next pass puts its first flags, which no barrier holds back.
      if (AllThreads(Shared<int>(Shape::kFlagsAt).From(kWarps), finite)) break;
    }
  }

  // The sink is one more key; it counts where there is another. One that is NaN or inf breaks the
  // row.
  TSALLIS_DEVICE void AddSink(bool softmax, DenseRow& row, int half) {
    const float change = head.sink > row.peak ? expf(row.peak - head.sink) : 1.0f;
    row.peak = MaxOrNaN(row.peak, head.sink);
    if (!row.Lives()) return;
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
        const float top = row.peak - LoadDevice(dense.bounds + head.Index(dense.call, row.row));
        if (top > 0.0f && top < 1.0f) row.top = top;
      }
    }
  }
  // largest: receives the rows' largest z, without the sink.
  TSALLIS_DEVICE void AddSinks(bool softmax, float (&largest)[2]) {
    TSALLIS_UNROLL
    for (int half = 0; half < 2; ++half) {
      DenseRow& row = block.rows[half];
      largest[half] = row.peak;
      if (softmax) row.top = QuadSum(row.top);
      if (row.Lives()) AddSink(softmax, row, half);
    }
  }
  // Thresholds of all rows.
  TSALLIS_DEVICE void Solve() {
    const Shared<int> flags(Shape::kFlagsAt);
    TSALLIS_LOOP
    for (bool more = true; more;) {
      Pass<DensePass::kNewton>(false);
      DenseRow(&rows)[2] = block.rows;
      bool moves = MoveThreshold<kGeneral>(head, sums.p[0], sums.u[0], rows[0], wide[0]);
      moves = MoveThreshold<kGeneral>(head, sums.p[1], sums.u[1], rows[1], wide[1]) || moves;
      more = !AllThreads(flags, !moves);
    }
  }
};

// kGeneral: with masks, a bias and any alpha.
template <class Type, int D, bool kGeneral>
TSALLIS_KERNEL(kThreads)
DenseKernel(const DenseCall dense) {
  using Shape = DenseShape<Type, D>;
  const DeviceCall& call = dense.call;
  const Head head = Head::Of<kGeneral>(call, BlockZ(), BlockY());
  const Sequence& sequence = head.sequence;
  const int count = dense.dense.Count(call, head);
  const int first = (Blocks() - 1 - BlockX()) * Shape::kRows;
  if (first >= count) return;
  auto block = DenseBlock<Shape::kRows>::Of(call, dense.dense, head, first, count);
  const LeftRows<Type, D, Shape::kRows> query_rows(
      0, ArrayRows<Type>::Of(call.q, sequence.array_batch, head.h), call.head_dim,
      [&](int i) { return first + i < count ? dense.dense.At(call, head, first + i) : -1; });
  CommitCopies();
  const TileRun<Type, D, Shape::kKeys> keys(
      ArrayRows<Type>::Of(call.k, sequence.array_batch, head.kv), call.head_dim);
  const TileRun<Type, D, Shape::kKeys> values(
      ArrayRows<Type>::Of(call.v, sequence.array_batch, head.kv), call.value_dim);
  WaitForCopies<0>();
  SyncBlock();  // the queries are there
  const HeldRows<Type, D, Shape::kRows> queries(query_rows);

  DenseWork<Type, D, kGeneral> work{dense, head, queries, keys, values, block};
  work.SetPlain();
  work.counts = dense.statistics.entropy != nullptr || dense.statistics.support_size != nullptr;
  float largest[2];
  if (head.softmax()) {
    work.template AddValues<DensePass::kRescale>();
    work.AddSinks(true, largest);
    if (work.counts) work.template Pass<DensePass::kCount>(false);
  } else {
    work.template Pass<DensePass::kLargest>(false);
    work.AddSinks(false, largest);
    work.Solve();
    work.template AddValues<DensePass::kWeights>();
  }
  TSALLIS_UNROLL
  for (int half = 0; half < 2; ++half) {
    WriteRow<Type, D, kGeneral>(dense, head, block.rows[half], work.wide[half], half, largest[half],
                                work.scale.scale[half], work.total, work.sums);
  }
}

}  // namespace TSALLIS_SIDE
}  // namespace tsallis::cuda
