// Entmax forward for rows that keep few keys: one pass over the keys, no exponentials.
//
// A block owns 64 or 128 queries of a head, a warp 16 or 32 of them, a quad of lanes two or four.
// Scores stay in registers; those above a row's bound go to the row's list in shared memory, which
// belongs to its quad, so that it needs no atomics and fills in one order. The bound is the
// threshold of what the list held when it was last full: the threshold of a part of a row never
// exceeds that of the whole (docs/attention.md), so no key of the support is lost. What remains is
// solved at the end. A row whose list stays full, or that has a score that is not finite, is left
// to the dense kernel. Masks are looked at for scores above the bound: what they take away never
// comes into a list, so that bounds are those of what a row sees.
//
// With thresholds that are known (the backward pass) the same kernel makes the lists alone.
#pragma once

#include <cstdint>

#include "attention/cuda/call.h"
#include "attention/cuda/list.h"
#include "attention/cuda/tile.h"

namespace tsallis::cuda::inline TSALLIS_SIDE {

// What a row keeps: counts [rows], keys and weights [rows, kList], rows as in the statistics. Keys
// count along k's axis.
struct Lists {
  int* counts = nullptr;
  std::uint32_t* keys = nullptr;
  float* weights = nullptr;
};

struct Statistics {
  double* tau = nullptr;
  std::int64_t* support_size = nullptr;
  double* entropy = nullptr;
  double* maximum = nullptr;
};

struct SweepCall {
  Call call;
  MutableArray4 out;
  Statistics statistics;
  Lists lists;                       // keys and weights may be null: not wanted
  const double* from_tau = nullptr;  // thresholds; out and statistics are not written then
  float* bounds = nullptr;           // [rows] or null: of dense rows, a z below their threshold
};

template <class Type, int D>
struct SweepShape {
  static constexpr int kTiles = D <= 128 ? 2 : 1;  // of 16 queries in a warp
  static constexpr int kRows = kWarps * 16 * kTiles;
  static constexpr int kKeys = kIsFloat32<Type> ? 32 : 64, kStages = 2;
  static constexpr std::size_t kTileBytes = kKeys * D * sizeof(typename Type::Element);
  static constexpr std::size_t kListBytes = kRows * kList * 4;
  static constexpr std::size_t kSharedBytes = kStages * kTileBytes + 2 * kListBytes;
};

// A warp's queries: fragments that stay in registers.
template <class Type, int D>
class SweepQueries {
 public:
  static constexpr int kTiles = SweepShape<Type, D>::kTiles, kKeys = SweepShape<Type, D>::kKeys;

  // A lane's row r: null without one; negated if `negative`.
  TSALLIS_DEVICE void Set(int r, const std::uint16_t* from, bool negative, int columns) {
    const std::uint32_t sign = negative ? 0x80008000u : 0u;
    TSALLIS_UNROLL
    for (int c = 0; c < D / 16; ++c) {
      TSALLIS_UNROLL
      for (int side = 0; side < 2; ++side) {
        const int column = 16 * c + 8 * side + 2 * (Lane() % 4);
        const bool used = from != nullptr && column < columns;
        q_[r / 2][c][2 * side + r % 2] =
            used ? LoadDevice(reinterpret_cast<const std::uint32_t*>(from + column)) ^ sign : 0u;
      }
    }
  }
  // s: products with the keys of a tile.
  TSALLIS_DEVICE void Multiply(float (&s)[kTiles][kKeys / 8][4], const Shared<Words4>& k) const {
    const int lane = Lane();
    TSALLIS_UNROLL
    for (int c = 0; c < D / 16; ++c) {
      TSALLIS_UNROLL
      for (int j = 0; j < kKeys / 8; j += 2) {
        // One load of keys serves all of the warp's queries.
        std::uint32_t b[4];
        LoadMatrices(b, k,
                     PieceAt<Type, D>(8 * j + lane / 16 * 8 + lane % 8, 2 * c + lane / 8 % 2));
        TSALLIS_UNROLL
        for (int m = 0; m < kTiles; ++m) {
          MultiplyMatrices<Type>(s[m][j], q_[m][c], b[0], b[1]);
          MultiplyMatrices<Type>(s[m][j + 1], q_[m][c], b[2], b[3]);
        }
      }
    }
  }

 private:
  std::uint32_t q_[kTiles][D / 16][4];
};

template <int D>
class SweepQueries<Float32, D> {
 public:
  static constexpr int kTiles = SweepShape<Float32, D>::kTiles;
  static constexpr int kKeys = SweepShape<Float32, D>::kKeys;

  TSALLIS_DEVICE void Set(int r, const float* from, bool negative, int columns) {
    rows_[r] = from;
    signs_[r] = negative ? -1.0f : 1.0f;
    columns_ = columns;
  }
  TSALLIS_DEVICE void Multiply(float (&s)[kTiles][kKeys / 8][4], const Shared<Words4>& k) const {
    MultiplyFloats<D, 2 * kTiles, kKeys / 8>(
        [&](int r, int j, int e) -> float& { return s[r / 2][j][r % 2 * 2 + e]; }, rows_, signs_,
        columns_, k);
  }

 private:
  const float* rows_[2 * kTiles];
  float signs_[2 * kTiles];
  int columns_ = 0;
};

// A lane's view of one of its rows while keys pass.
struct SweepRow {
  int row = -1;                 // on q's axis; -1: none
  int begin = 0, end = 0;       // keys it sees
  int count = 0;                // of its list; kDenseRow
  float factor = 0.0f;          // unit x from a product; > 0
  float bound = -kMostFloat;    // of z
  float product = -kMostFloat;  // of <q, k>, in the tile at hand
};

// Full lists: their thresholds become bounds, and what is not above is dropped.
TSALLIS_RARE void RaiseBound(const ListRow& list, bool full, const Head& head, SweepRow& row) {
  const int count = full && row.count > 0 ? row.count : 0;
  SyncWarp();
  // Without the sink: the largest z must stay in the list, and a sink may lie above all of them.
  const Threshold solved = SolveList(list, count, -kInfinity, head.alpha, head.power);
  float bound = solved.peak - solved.top * (1.0f + kSolveSlack) - fabsf(solved.peak) * kScoreSlack;
  bound = fmaxf(bound, row.bound);
  const int kept = CompactList(list, count, bound);
  if (count > 0) {
    row.count = kept;
    row.bound = bound;
  }
}

// The product below which no key of [key, key + keys) has a z above the row's bound. Where any may
// have: below all finite ones, or under a soft cap NaN, which nothing is below: there a product of
// -inf has a score, too.
TSALLIS_DEVICE void SetProduct(const Head& head, int key, int keys, SweepRow& row) {
  if (row.count < 0) return;
  const float none = head.terms.softcap != 0.0f ? kInfinity - kInfinity : -kMostFloat;
  row.product = none;
  if (row.bound == -kMostFloat) return;
  // Distances of keys that the row sees: there are factors for no others.
  const int begin = key > row.begin ? key : row.begin;
  const int end = key + keys < row.end ? key + keys : row.end;
  if (begin >= end) return;
  const std::int64_t first = head.sequence.Distance(row.row, end - 1);
  const std::int64_t last = head.sequence.Distance(row.row, begin);
  const std::int64_t a = first < 0 ? -first : first, b = last < 0 ? -last : last;
  const std::int64_t nearest = first <= 0 && last >= 0 ? 0 : a < b ? a : b;
  const float x = head.terms.LeastProduct(row.bound, nearest, a < b ? b : a, kScoreSlack);
  const float product = x / row.factor;
  if (product > -kMostFloat) row.product = fminf(product, kMostFloat);
}

// Weights in place of the z of a quad's list, which keeps what has any; statistics and the list go
// to memory. The warp calls it; row.count becomes the size of the support.
TSALLIS_DEVICE void WriteList(const SweepCall& sweep, const Head& head, const ListRow& list,
                              SweepRow& row) {
  const Call& call = sweep.call;
  const int lane = Lane(), t = lane % 4, have = row.count > 0 ? row.count : 0;
  const std::int64_t index = row.row >= 0 ? head.Index(call, row.row) : 0;
  // z - tau = (z - high) - low: near the threshold the difference is exact.
  Threshold solved;
  double tau = -static_cast<double>(kInfinity);
  float high = 0.0f, low = 0.0f;
  if (sweep.from_tau != nullptr) {
    if (row.row >= 0) tau = LoadDevice(sweep.from_tau + index);
    high = static_cast<float>(tau);
    low = static_cast<float>(tau - static_cast<double>(high));
  } else {
    solved = SolveList(list, have, head.sink, head.alpha, head.power);
    high = solved.peak;
    low = -solved.top;
    if (have > 0) tau = static_cast<double>(solved.peak) - static_cast<double>(solved.top);
  }
  const bool writes = row.row >= 0 && sweep.lists.keys != nullptr;
  float entropy = 0.0f, largest = -kInfinity;
  int kept = 0;
  for (int i = 0; Any(i < have); i += 4) {
    const bool in = i + t < have;
    const float z = in ? list.z.Load(i + t) : -kInfinity;
    const int key = in ? list.key.Load(i + t) : 0;
    const float x = in ? (z - high) - low : 0.0f;
    const float p = x > 0.0f ? Weight::Of(x, head.alpha, head.power).p : 0.0f;
    const std::uint32_t quad = Ballot(p > 0.0f) >> (lane & 28) & 15u;
    largest = fmaxf(largest, z);
    SyncWarp();
    if (p > 0.0f) {
      const int to = kept + CountBits(quad & ((1u << t) - 1u));
      list.z.Store(to, p);
      list.key.Store(to, key);
      if (writes) {
        StoreDevice(sweep.lists.keys + index * kList + to, static_cast<std::uint32_t>(key));
        StoreDevice(sweep.lists.weights + index * kList + to, p);
      }
      if (sweep.statistics.entropy != nullptr) entropy -= p * logf(p);
    }
    kept += CountBits(quad);
  }
  SyncWarp();  // all lanes read what this quad wrote
  entropy = QuadSum(entropy);
  largest = QuadMax(largest);
  const bool dense = row.count < 0;
  if (!dense) row.count = kept;
  if (t != 0 || row.row < 0) return;
  StoreDevice(sweep.lists.counts + index, row.count);
  if (dense && sweep.bounds != nullptr) StoreDevice(sweep.bounds + index, row.bound);
  if (dense || sweep.from_tau != nullptr) return;
  const Statistics& statistics = sweep.statistics;
  if (statistics.tau != nullptr) StoreDevice(statistics.tau + index, tau);
  if (statistics.support_size != nullptr) {
    StoreDevice(statistics.support_size + index, static_cast<std::int64_t>(kept));
  }
  if (statistics.entropy != nullptr) {
    StoreDevice(statistics.entropy + index, static_cast<double>(entropy));
  }
  if (statistics.maximum != nullptr) {
    StoreDevice(statistics.maximum + index,
                static_cast<double>(largest) / static_cast<double>(head.unit));
  }
}

// out = sum of p v of a row whose list holds weights: D / 8 lanes read a row of v, 256 / D entries
// at once. The warp calls it for one row after the other.
template <class Type, int D>
TSALLIS_DEVICE void WriteOutput(const SweepCall& sweep, const Head& head, const Rows<Type>& v,
                                const ListRow& list, int count, int row) {
  constexpr int kLanes = D / 8, kAtOnce = kWarp / kLanes;
  const Call& call = sweep.call;
  const int part = Lane() / kLanes, column = Lane() % kLanes * 8;
  const bool used = column < call.value_dim;
  float sum[8] = {};
  for (int i = part; i < count && used; i += kAtOnce) {
    const float p = list.z.Load(i);
    float values[8];
    LoadColumns<Type>(v.At(list.key.Load(i)) + column, values);
    TSALLIS_UNROLL
    for (int x = 0; x < 8; ++x) sum[x] = fmaf(p, values[x], sum[x]);
  }
  TSALLIS_UNROLL
  for (int x = 0; x < 8; ++x) {
    TSALLIS_UNROLL
    for (int bits = kLanes; bits < kWarp; bits *= 2) sum[x] += ShuffleXor(sum[x], bits);
  }
  if (part != 0 || !used) return;
  const std::int64_t start = Offset(sweep.out.strides, head.sequence.array_batch, head.h, row);
  StoreColumns<Type>(sweep.out, start, column, sum, 8);
}

// kGeneral: with masks, and beside heads of any alpha, which are dense.
template <class Type, int D, bool kGeneral>
TSALLIS_KERNEL(kThreads)
SweepKernel(const SweepCall sweep) {
  using Shape = SweepShape<Type, D>;
  constexpr int kKeys = Shape::kKeys, kTiles = Shape::kTiles, kOwn = 2 * kTiles;
  const Call& call = sweep.call;
  const int lane = Lane(), warp = WarpIndex(), quad = lane / 4, t = lane % 4;
  // The longest rows of a causal mask first.
  const BlockPlace place = BlockPlace::Of(call, call.ranges.q_begin, false, Blocks() - 1 - BlockX(),
                                          BlockZ(), Shape::kRows);
  if (!place.any) return;
  const Head head = Head::Of<kGeneral>(call, place.b, BlockY());
  const Sequence& sequence = head.sequence;
  const int first = static_cast<int>(place.first);
  const Rows<Type> keys = Rows<Type>::Of(call.k, sequence.array_batch, head.kv);
  const bool has_terms = head.terms.any();

  // A lane's rows: 16 m + 8 half + quad of the warp at 2 m + half.
  SweepRow rows[kOwn];
  SweepQueries<Type, D> queries;
  TSALLIS_UNROLL
  for (int r = 0; r < kOwn; ++r) {
    SweepRow& row = rows[r];
    const int at = first + warp * 16 * kTiles + r * 8 + quad;
    const typename Type::Element* from = nullptr;
    bool negative = false;
    if (at < sequence.q.end) {
      row.row = at;
      const Span seen = sequence.VisibleKeys(call.mask, at);
      row.begin = static_cast<int>(seen.begin);
      row.end = static_cast<int>(seen.end);
      const float factor = head.Factor(call, at);
      // Bounds are of products, so the factor must not turn them round: the query does.
      negative = factor < 0.0f;
      row.factor = fabsf(factor);
      from = Rows<Type>::Of(call.q, sequence.array_batch, head.h).At(at);
      bool dense = head.softmax() || head.wide || !(row.factor >= 1e-30f && row.factor <= 1e30f);
      if (sweep.from_tau != nullptr) {
        const double tau = LoadDevice(sweep.from_tau + head.Index(call, at));
        dense = dense || tau != tau;
        if (tau == -static_cast<double>(kInfinity)) row.end = row.begin;
        row.bound = static_cast<float>(tau) - kScoreSlack * (1.0f + fabsf(static_cast<float>(tau)));
      }
      if (dense) {
        row.count = kDenseRow;
        row.product = kMostFloat;
        row.end = row.begin;
      }
    }
    queries.Set(r, from, negative, call.head_dim);
    if (!has_terms) SetProduct(head, row.begin, 1, row);
  }

  const std::int64_t behind = first + Shape::kRows;
  const std::int64_t last_row = (behind < sequence.q.end ? behind : sequence.q.end) - 1;
  const Span span = head.KeysOf(call.mask, first, last_row);
  const int keys_begin = static_cast<int>(span.begin), keys_end = static_cast<int>(span.end);
  const int tiles = static_cast<int>((span.size() + kKeys - 1) / kKeys);
  const auto fetch = [&](int tile, int stage) {
    const Shared<Words4> to(stage * Shape::kTileBytes);
    FetchTile<Type, D, kKeys>(to, keys, call.head_dim, [&](int i) {
      const int key = keys_begin + tile * kKeys + i;
      return key < keys_end ? key : -1;
    });
  };
  // The list of row 16 m + 8 half + group of the warp.
  const auto list_of = [&](int r, int group) {
    const int at = (warp * 16 * kTiles + r * 8 + group) * kList;
    const std::size_t begin = Shape::kStages * Shape::kTileBytes;
    return ListRow{Shared<float>(begin).From(at), Shared<int>(begin + Shape::kListBytes).From(at)};
  };

  // The newest tile up to `tile` of which a block mask leaves anything; below 0: none.
  const auto newest = [&](int tile) {
    while (kGeneral && tile >= 0) {
      const int key = keys_begin + tile * kKeys;
      const int end = key + kKeys < keys_end ? key + kKeys : keys_end;
      if (head.LeftOf(call.mask, first, static_cast<int>(last_row), key, end).any) break;
      --tile;
    }
    return tile;
  };

  // The newest tile first: a causal row's largest scores are often there, and ALiBi's always.
  int tile = newest(tiles - 1);
  if (tile >= 0) fetch(tile, 0);
  CommitCopies();
  for (int step = 0; step < tiles; ++step) {
    // Without masks a tile follows from its step, which saves a register.
    if (!kGeneral) tile = tiles - 1 - step;
    if (kGeneral && tile < 0) break;
    const int stage = step % Shape::kStages, next = newest(tile - 1);
    if (next >= 0) fetch(next, (step + 1) % Shape::kStages);
    CommitCopies();
    WaitForCopies<1>();
    SyncBlock();
    const Shared<Words4> k(stage * Shape::kTileBytes);
    float s[kTiles][kKeys / 8][4];
    TSALLIS_UNROLL
    for (int m = 0; m < kTiles; ++m) Clear(s[m]);
    queries.Multiply(s, k);
    SyncBlock();  // the stage may be filled again
    const int key0 = keys_begin + tile * kKeys;
    tile = next;
    TSALLIS_UNROLL
    for (int r = 0; r < kOwn; ++r) {
      SweepRow& row = rows[r];
      float(*x)[4] = s[r / 2];
      const int e0 = r % 2 * 2;
      if (has_terms) SetProduct(head, key0, kKeys, row);
      float most = MaxOrNaN(x[0][e0], x[0][e0 + 1]);
      TSALLIS_UNROLL
      for (int j = 1; j < kKeys / 8; ++j) {
        most = MaxOrNaN(most, MaxOrNaN(x[j][e0], x[j][e0 + 1]));
      }
      if (!Any(!(most <= row.product))) continue;
      const ListRow list = list_of(r, quad);
      TSALLIS_UNROLL
      for (int half = 0; half < kKeys / 32; ++half) {
        // 32 keys at a time: a list that has just been solved has room for so many.
        for (bool again = false;; again = true) {
          std::uint32_t hits = 0;  // bit 2 j + e: column 8 j + 2 t + e of the half
          bool broken = false;
          float z[8];
          TSALLIS_UNROLL
          for (int i = 0; i < 8; ++i) {
            const float product = x[half * 4 + i / 2][e0 + i % 2];
            const int key = key0 + half * 32 + i / 2 * 8 + 2 * t + i % 2;
            z[i] = 0.0f;
            if (!(product <= row.product) && key >= row.begin && key < row.end &&
                (!kGeneral || head.Sees(call.mask, true, row.row, key))) {
              z[i] = head.Score(row.factor, product, sequence.Distance(row.row, key));
              if (!(z[i] <= row.bound)) hits |= 1u << i;
              broken = broken || !(z[i] <= kMostFloat);
            }
          }
          const int mine = CountBits(hits) + (broken ? 1 << 16 : 0);
          int upto = mine;
          int before = ShuffleUp(upto, 1, 4);
          if (t >= 1) upto += before;
          before = ShuffleUp(upto, 2, 4);
          if (t >= 2) upto += before;
          const int all = Shuffle(upto, lane | 3);
          const bool full = row.count + all > kList;
          if (Any(full)) {
            if (!again) {
              // Nothing is gained for rows that are broken, and nothing harmed.
              RaiseBound(list, full && all <= kList, head, row);
              SetProduct(head, has_terms ? key0 : row.begin, has_terms ? kKeys : 1, row);
              continue;
            }
            if (full) {
              row.count = kDenseRow;
              row.product = kMostFloat;
              row.end = row.begin;
              hits = 0;
            }
          }
          if (row.count >= 0) {
            int to = row.count + upto - mine;
            TSALLIS_UNROLL
            for (int i = 0; i < 8; ++i) {
              if ((hits >> i & 1u) == 0) continue;
              list.z.Store(to, z[i]);
              list.key.Store(to, key0 + half * 32 + i / 2 * 8 + 2 * t + i % 2);
              ++to;
            }
            row.count += all;
          }
          break;
        }
      }
    }
  }
  WaitForCopies<0>();
  SyncWarp();
  TSALLIS_UNROLL
  for (int r = 0; r < kOwn; ++r) WriteList(sweep, head, list_of(r, quad), rows[r]);
  if (sweep.from_tau != nullptr) return;
  const Rows<Type> v = Rows<Type>::Of(call.v, sequence.array_batch, head.kv);
  TSALLIS_UNROLL
  for (int r = 0; r < kOwn; ++r) {
    for (int g = 0; g < 8; ++g) {
      const int count = Shuffle(rows[r].count, 4 * g), row = Shuffle(rows[r].row, 4 * g);
      if (count < 0 || row < 0) continue;
      WriteOutput<Type, D>(sweep, head, v, list_of(r, g), count, row);
    }
  }
}

}  // namespace tsallis::cuda::inline TSALLIS_SIDE
