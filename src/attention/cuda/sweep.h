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

namespace tsallis::cuda {
inline namespace TSALLIS_SIDE {

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
  int mine = 0;                 // entries of its list that are the lane's; kDenseLane
  float factor = 0.0f;          // unit x from a product; > 0
  float bound = -kMostFloat;    // of z
  float product = -kMostFloat;  // of <q, k>, in the tile at hand
};

// The lane's entries of a row that is left to the dense kernel: more than any list holds.
inline constexpr int kDenseLane = 1 << 20, kLaneList = kList / 4;

// The product below which no key of [key, key + keys) has a z above the row's bound. Where any may
// have: below all finite ones, or under a soft cap NaN, which nothing is below: there a product of
// -inf has a score, too.
TSALLIS_DEVICE void SetProduct(const Head& head, int key, int keys, SweepRow& row) {
  if (row.mine == kDenseLane) return;
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

// What a list has become.
struct Listed {
  int mine = 0;
  float bound = -kMostFloat;
};

// Full lists: their thresholds become bounds, and what is not above is dropped; what stays is
// spread over the quad's lanes. `raise`: whether the quad's list is one of them. known: the bound
// is the row's threshold already.
template <int kStride>
TSALLIS_RARE Listed RaiseBound(const RowList<kStride> list, Listed listed, bool raise, bool known,
                               float alpha, float power) {
  const int mine = raise && listed.mine != kDenseLane ? listed.mine : 0;
  float bound = listed.bound;
  if (!known) {
    // Without the sink: the largest z must stay in the list, and a sink may lie above all of them.
    const Threshold solved = SolveList(list, mine, -kInfinity, listed.bound, alpha, power);
    const float least =
        solved.peak - solved.top * (1.0f + kSolveSlack) - fabsf(solved.peak) * kScoreSlack;
    bound = fmaxf(least, listed.bound);
    if (raise && !(solved.peak <= kMostFloat)) listed.mine = kDenseLane;
  }
  const int kept = CompactList(list, mine, bound);
  SyncWarp();
  if (raise && listed.mine != kDenseLane) {
    listed.mine = (kept - Lane() % 4 + 3) / 4;
    listed.bound = bound;
  }
  return listed;
}

// A lane's products of one of its rows with the keys of a tile, for AddHits.
template <int kKeys>
struct Hits {
  Head head;
  AttentionMask mask;
  SweepRow row;
  int key0 = 0;
  bool known = false;
  float x[kKeys / 4];  // 2 j + e: column 8 j + 2 t + e
};

// Adds the scores above the bound to lists that may be full, two a lane at a time. The warp calls
// it.
template <int kKeys, int kStride, bool kGeneral>
TSALLIS_RARE Listed AddHits(const RowList<kStride> list, const Hits<kKeys>& tile) {
  const Head& head = tile.head;
  const SweepRow& row = tile.row;
  const int lane = Lane(), t = lane % 4;
  Listed listed = {row.mine, row.bound};
  TSALLIS_LOOP
  for (int j = 0; j < kKeys / 8; ++j) {
    for (bool again = false;; again = true) {
      bool hit[2];
      float value[2];
      TSALLIS_UNROLL
      for (int e = 0; e < 2; ++e) {
        const float product = tile.x[2 * j + e];
        const int key = tile.key0 + 8 * j + 2 * t + e;
        hit[e] = false;
        value[e] = product;
        if (listed.mine != kDenseLane && !(product <= row.product) && key >= row.begin &&
            key < row.end && (!kGeneral || head.Sees(tile.mask, true, row.row, key))) {
          if (kGeneral) {
            value[e] = head.Score(row.factor, product, head.sequence.Distance(row.row, key));
          }
          hit[e] = !(list.unit * value[e] <= listed.bound);
        }
      }
      const int count = (hit[0] ? 1 : 0) + (hit[1] ? 1 : 0);
      const bool lacks = count > 0 && listed.mine + count > kLaneList;
      const bool full = (Ballot(lacks) >> (lane & 28) & 15u) != 0;
      if (Any(full) && !again) {
        // Others that are more than half full come along: the warp takes the same time.
        const float most = QuadMax(static_cast<float>(listed.mine));
        listed = RaiseBound(list, listed, full || most > kLaneList / 2 + 2, tile.known, head.alpha,
                            head.power);
        continue;
      }
      if (full) listed.mine = kDenseLane;
      if (listed.mine != kDenseLane) {
        TSALLIS_UNROLL
        for (int e = 0; e < 2; ++e) {
          if (!hit[e]) continue;
          const int to = listed.mine * kStride + t;
          list.value.Store(to, value[e]);
          list.key.Store(to, tile.key0 + 8 * j + 2 * t + e);
          ++listed.mine;
        }
      }
      break;
    }
  }
  return listed;
}

// Weights in place of the z of a quad's list, which keeps what has any; statistics and the list go
// to memory. The warp calls it; the size of the support, or kDenseRow.
template <int kStride>
TSALLIS_DEVICE int WriteList(const SweepCall& sweep, const Head& head, const RowList<kStride>& list,
                             const SweepRow& row) {
  const Call& call = sweep.call;
  const int lane = Lane(), t = lane % 4;
  bool dense = row.mine == kDenseLane;
  int mine = dense ? 0 : row.mine;
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
    solved = SolveList(list, mine, head.sink, row.bound, head.alpha, head.power);
    if (!(solved.peak <= kMostFloat)) {
      dense = true;
      mine = 0;
    }
    high = solved.peak;
    low = -solved.top;
    if ((Ballot(mine > 0) >> (lane & 28) & 15u) != 0) {
      tau = static_cast<double>(solved.peak) - static_cast<double>(solved.top);
    }
  }
  const bool writes = row.row >= 0 && sweep.lists.keys != nullptr;
  float entropy = 0.0f, largest = -kInfinity;
  int kept = 0;
  TSALLIS_LOOP
  for (int i = 0; Any(i < mine); ++i) {
    const bool in = i < mine;
    const float z = in ? list.Z(i) : -kInfinity;
    const int key = in ? list.key.Load(i * kStride + t) : 0;
    const float x = in ? (z - high) - low : 0.0f;
    const float p = x > 0.0f ? Weight::Of(x, head.alpha, head.power).p : 0.0f;
    const std::uint32_t quad = Ballot(p > 0.0f) >> (lane & 28) & 15u;
    largest = fmaxf(largest, z);
    SyncWarp();
    if (p > 0.0f) {
      const int to = kept + CountBits(quad & ((1u << t) - 1u));
      list.value.Store(list.At(to), p);
      list.key.Store(list.At(to), key);
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
  const int size = dense ? kDenseRow : kept;
  if (t != 0 || row.row < 0) return size;
  StoreDevice(sweep.lists.counts + index, size);
  if (dense && sweep.bounds != nullptr) StoreDevice(sweep.bounds + index, row.bound);
  if (dense || sweep.from_tau != nullptr) return size;
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
  return size;
}

// out = sum of p v of a row whose list holds weights: D / 8 lanes read a row of v, 256 / D entries
// at once. The warp calls it for one row after the other.
template <class Type, int D, int kStride>
TSALLIS_DEVICE void WriteOutput(const SweepCall& sweep, const Head& head, const Rows<Type>& v,
                                const RowList<kStride>& list, int count, int row) {
  constexpr int kLanes = D / 8, kAtOnce = kWarp / kLanes;
  const Call& call = sweep.call;
  const int part = Lane() / kLanes, column = Lane() % kLanes * 8;
  const bool used = column < call.value_dim;
  float sum[8] = {};
  // Several rows of v are under way at once: each is a wait for the second cache.
  constexpr int kAhead = 4;
  TSALLIS_LOOP
  for (int i = part; i < count && used; i += kAhead * kAtOnce) {
    float p[kAhead], values[kAhead][8];
    TSALLIS_UNROLL
    for (int a = 0; a < kAhead; ++a) {
      const int at = i + a * kAtOnce;
      p[a] = 0.0f;
      TSALLIS_UNROLL
      for (int x = 0; x < 8; ++x) values[a][x] = 0.0f;
      if (at < count) {
        p[a] = list.value.Load(list.At(at));
        LoadColumns<Type>(v.At(list.key.Load(list.At(at))) + column, values[a]);
      }
    }
    TSALLIS_UNROLL
    for (int a = 0; a < kAhead; ++a) {
      TSALLIS_UNROLL
      for (int x = 0; x < 8; ++x) sum[x] = fmaf(p[a], values[a][x], sum[x]);
    }
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

// kGeneral: with masks, terms beside the product, and heads of any alpha, which are dense.
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
  const TileRun<Type, D, kKeys> key_tiles(Rows<Type>::Of(call.k, sequence.array_batch, head.kv),
                                          call.head_dim);
  const bool has_terms = kGeneral && head.terms.any();

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
        row.mine = kDenseLane;
        row.product = kMostFloat;
        row.end = row.begin;
      }
    } else {
      row.mine = kDenseLane;
      row.product = kMostFloat;
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
    key_tiles.Fetch(Shared<Words4>(stage * Shape::kTileBytes), keys_begin + tile * kKeys, keys_end);
  };
  // The list of row 16 m + 8 half + group of the warp.
  constexpr int kStride = 4 * 16 * kTiles;
  const auto list_of = [&](int r, int group) {
    const int at = warp * 16 * kTiles * kList + (r * 8 + group) * 4;
    const std::size_t begin = Shape::kStages * Shape::kTileBytes;
    RowList<kStride> list = {Shared<float>(begin).From(at),
                             Shared<int>(begin + Shape::kListBytes).From(at)};
    if (!kGeneral) list.unit = rows[r].factor;
    return list;
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
    WaitForCopies<0>();
    SyncBlock();  // the tile is there, and nobody reads the one before
    if (next >= 0) fetch(next, (step + 1) % Shape::kStages);
    CommitCopies();
    const Shared<Words4> k(stage * Shape::kTileBytes);
    float s[kTiles][kKeys / 8][4];
    TSALLIS_UNROLL
    for (int m = 0; m < kTiles; ++m) Clear(s[m]);
    queries.Multiply(s, k);
    const int key0 = keys_begin + tile * kKeys;
    tile = next;
    // What a row does not see is no score. Only tiles at the ends of what the lane's rows see have
    // such keys.
    bool inside = true;
    TSALLIS_UNROLL
    for (int r = 0; r < kOwn; ++r) {
      inside = inside && (rows[r].mine == kDenseLane ||
                          (key0 >= rows[r].begin && key0 + kKeys <= rows[r].end));
    }
    if (Any(!inside)) {
      TSALLIS_UNROLL
      for (int r = 0; r < kOwn; ++r) {
        TSALLIS_UNROLL
        for (int i = 0; i < kKeys / 4; ++i) {
          const int key = key0 + i / 2 * 8 + 2 * t + i % 2;
          float& x = s[r / 2][i / 2][r % 2 * 2 + i % 2];
          if (key < rows[r].begin || key >= rows[r].end) x = -kInfinity;
        }
      }
    }
    TSALLIS_UNROLL
    for (int r = 0; r < kOwn; ++r) {
      SweepRow& row = rows[r];
      if (has_terms) SetProduct(head, key0, kKeys, row);
      const auto product = [&](int i) { return s[r / 2][i / 2][r % 2 * 2 + i % 2]; };
      std::uint32_t hits = 0;  // bit i: column i / 2 * 8 + 2 t + i % 2
      TSALLIS_UNROLL
      for (int i = 0; i < kKeys / 4; ++i) hits |= !(product(i) <= row.product) ? 1u << i : 0u;
      if (!Any(hits != 0)) continue;
      const int count = CountBits(hits);
      const RowList<kStride> list = list_of(r, quad);
      if (kGeneral || Any(count > 0 && row.mine + count > kLaneList)) {
        // Copies: what a function that is not inlined is given the address of lies in memory.
        Hits<kKeys> tile_hits;
        tile_hits.head = head;
        if (kGeneral) tile_hits.mask = call.mask;
        tile_hits.row = row;
        tile_hits.key0 = key0;
        tile_hits.known = sweep.from_tau != nullptr;
        TSALLIS_UNROLL
        for (int i = 0; i < kKeys / 4; ++i) tile_hits.x[i] = product(i);
        const Listed listed = AddHits<kKeys, kStride, kGeneral>(list, tile_hits);
        row.mine = listed.mine;
        row.bound = listed.bound;
        if (listed.mine == kDenseLane) {
          row.product = kMostFloat;
          row.end = row.begin;
        } else if (!has_terms) {
          SetProduct(head, row.begin, 1, row);
        }
        continue;
      }
      int to = row.mine * kStride + t;
      TSALLIS_UNROLL
      for (int i = 0; i < kKeys / 4; ++i) {
        if ((hits >> i & 1u) == 0) continue;
        list.value.Store(to, product(i));
        list.key.Store(to, key0 + i / 2 * 8 + 2 * t + i % 2);
        to += kStride;
      }
      row.mine += count;
    }
  }
  int sizes[kOwn];
  TSALLIS_UNROLL
  for (int r = 0; r < kOwn; ++r) sizes[r] = WriteList(sweep, head, list_of(r, quad), rows[r]);
  if (sweep.from_tau != nullptr) return;
  const Rows<Type> v = Rows<Type>::Of(call.v, sequence.array_batch, head.kv);
  TSALLIS_UNROLL
  for (int r = 0; r < kOwn; ++r) {
    TSALLIS_LOOP
    for (int g = 0; g < 8; ++g) {
      const int count = Shuffle(sizes[r], 4 * g), row = Shuffle(rows[r].row, 4 * g);
      if (count < 0 || row < 0) continue;
      WriteOutput<Type, D>(sweep, head, v, list_of(r, g), count, row);
    }
  }
}

}  // namespace TSALLIS_SIDE
}  // namespace tsallis::cuda
