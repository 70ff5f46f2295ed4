// Entmax forward for rows that keep few keys: one pass over the keys, no exponentials.
//
// A block owns 64 or 128 queries of a head, a warp 16 or 32 of them, a quad of lanes two or four.
// Scores stay in registers; those above a row's bound go to the row's list in shared memory, which
// belongs to its quad, so that it needs no atomics and fills in one order. The bound lies below the
// threshold of what the list held when bounds were last raised: the threshold of a part of a row
// never exceeds that of the whole (docs/explain/attention.md), so no key of the support is lost.
// When a list of the block is nearly full, all its warps raise the bounds of all their rows between
// two tiles, so that none waits for another that does. The rest is solved at the end. Rows whose
// lists stay full are swept again, side by side, with longer lists in device memory. Those that do
// not fit there either, or have a score that is not finite, are left to the dense kernel. Masks are
// looked at for scores above the bound: what they take away never comes into a list, so that bounds
// are those of what a row sees.
//
// The bound begins at a guess of the threshold (guess.h) where there is one. A list proves it: the
// guess must not exceed the list's threshold. Rows whose guess does are among those that are swept
// again, from a bound that their list proves.
//
// With thresholds that are known (the backward pass) the same kernel makes the lists alone, where
// the forward pass has not saved them.
#pragma once

#include <cstdint>

#include "attention/cuda/call.h"
#include "attention/cuda/list.h"
#include "attention/cuda/saved_lists.h"
#include "attention/cuda/tile.h"

namespace tsallis::cuda {
inline namespace TSALLIS_SIDE {

struct Statistics {
  double* tau = nullptr;
  std::int64_t* support_size = nullptr;
  double* entropy = nullptr;
  double* maximum = nullptr;
};

// Guesses of thresholds: base + offset sigma. The first blocks of rows that a call sweeps are
// pilots, which have no offset yet: from their thresholds it follows (guess.h).
struct Guesses {
  struct Row {
    float base, sigma;  // in z; sigma 0: the row has no guess
  };
  const Words2* rows = nullptr;    // [rows]: Row; null: no row has a guess
  const float* offsets = nullptr;  // [batch heads]; null while pilots are swept

  // Blocks of pilots of each sequence and head: the last ones of its halves.
  static constexpr int kPilots = 2;

  // Block i of them, of sequence b, where blocks have `rows` rows.
  TSALLIS_DEVICE static BlockPlace PilotPlace(const DeviceCall& call, int b, int i, int rows) {
    const Span q = Head::SequenceOf(call, b).q;
    const std::int64_t block = (i + 1) * ((q.size() + rows - 1) / rows) / kPilots - 1;
    return {b, q.begin + block * rows, block >= 0};
  }
  TSALLIS_DEVICE static bool IsPilot(const DeviceCall& call, const BlockPlace& place, int rows) {
    bool is = false;
    for (int i = 0; i < kPilots; ++i) {
      is = is || PilotPlace(call, static_cast<int>(place.b), i, rows).first == place.first;
    }
    return is;
  }
  TSALLIS_DEVICE bool IsOfPilots() const { return rows != nullptr && offsets == nullptr; }
  // -kMostFloat: none. index: of the row.
  TSALLIS_DEVICE float Of(const DeviceCall& call, const Head& head, std::int64_t index) const {
    if (offsets == nullptr) return -kMostFloat;
    const Words2 row = LoadDevice(rows + index);
    const float sigma = FloatOf(row.w[1]);
    const float guess = fmaf(LoadDevice(offsets + head.sequence.batch * call.heads + head.h), sigma,
                             FloatOf(row.w[0]));
    return sigma > 0.0f && fabsf(guess) <= kMostFloat ? guess : -kMostFloat;
  }
};

struct SweepCall {
  DeviceCall call;
  MutableArray4 out;
  Statistics statistics;
  Lists lists;                       // keys and weights may be null: not wanted
  const double* from_tau = nullptr;  // thresholds; out and statistics are not written then
  int room = 0;                      // entries that a lane has for each of its rows
  // [rows] or null: of rows without a list, a z that they are swept again from; of pilots, what
  // their guess should have been.
  float* bounds = nullptr;
  Guesses guesses;
  SavedLists saved;  // written unless thresholds are known, else read

  // The bound that a row begins with. kLong: in the second sweep. -kMostFloat: none.
  template <bool kLong>
  TSALLIS_DEVICE float Start(const Head& head, int row, std::int64_t index) const {
    if (row < 0 || from_tau != nullptr) return -kMostFloat;
    return kLong ? LoadDevice(bounds + index) : guesses.Of(call, head, index);
  }
};

// Tiles of a sweep: kTilesOf of 16 queries in a warp.
template <class Type, int D, int kTilesOf>
struct SweepTiles {
  static constexpr int kTiles = kTilesOf;
  static constexpr int kRows = kWarps * 16 * kTiles;
  static constexpr int kKeys = kIsFloat32<Type> ? 32 : 64, kStages = 2;
  static constexpr std::size_t kTileBytes = kKeys * D * sizeof(typename Type::Element);
};

template <class Type, int D>
struct SweepShape : SweepTiles<Type, D, D <= 128 ? 2 : 1> {
  using Tiles = SweepTiles<Type, D, D <= 128 ? 2 : 1>;
  using Tiles::kRows, Tiles::kStages, Tiles::kTileBytes;
  // For entries of a lane. CompactList's registers for more would be missing at head size 128.
  static constexpr int kLeastRoom = kList / 4, kMostRoom = D == 128 ? 20 : 24;
  static constexpr int kStride = 4 * 16 * Tiles::kTiles;
  using List = RowList<kStride, kMostRoom>;

  // The list of row 16 m + 8 half + group of a warp, at r = 2 m + half. room: of a lane.
  TSALLIS_DEVICE static List ListOf(std::uint32_t*, int warp, int room, int r, int group) {
    constexpr auto kBegin = static_cast<int>(kStages * kTileBytes);
    constexpr auto kEntryBytes = static_cast<int>(sizeof(Words2));
    return List{kBegin + kEntryBytes * (warp * kStride * room + (r * 8 + group) * 4)};
  }

  static constexpr std::size_t SharedBytes(int room) {
    return kStages * kTileBytes + kRows * 4 * sizeof(Words2) * static_cast<std::size_t>(room);
  }
  // The more room, the fewer times bounds are raised. Two blocks have to fit on a multiprocessor
  // if they do with the least room.
  static constexpr int Room(const SharedMemory& shared) {
    constexpr std::size_t kOfSystem = 1024;  // that CUDA takes of each block's
    int room = kLeastRoom;
    const bool two = 2 * (SharedBytes(room) + kOfSystem) <= shared.multiprocessor_bytes;
    const auto fits = [&](int entries) {
      const std::size_t bytes = SharedBytes(entries);
      return bytes <= shared.block_bytes &&
             (!two || 2 * (bytes + kOfSystem) <= shared.multiprocessor_bytes);
    };
    while (room < kMostRoom && fits(room + 1)) ++room;
    return room;
  }
};

// Lists in device memory, for rows that have no room in shared memory. A block has a slot of them,
// whatever the number of its rows is.
template <class Type, int D>
struct LongShape : SweepTiles<Type, D, 1> {
  static constexpr int kStride = 2 * 2 * kWarp;
  using List = LongList<kStride>;

  TSALLIS_DEVICE static List ListOf(std::uint32_t* slot, int warp, int room, int r, int group) {
    return List{slot + warp * kStride * room + r * 2 * kWarp + group * 4};
  }
  static constexpr std::size_t kSharedBytes = LongShape::kStages * LongShape::kTileBytes;
};
struct LongSlots {
  static constexpr int kRows = LongShape<BFloat16, 64>::kRows;
  // Of fewer keys a row that keeps more than the sweep has room for costs the dense kernel less.
  static constexpr int kLeastKeys = 2048;

  // A lane's entries of a row: for a sixteenth of the keys, since more cost as much as the dense
  // kernel's passes over all of them, and for a tile. 1024 for each row make a slot of 512 KB.
  static constexpr int Room(int k_len) { return k_len / 64 + 16 < 256 ? k_len / 64 + 16 : 256; }
  static constexpr std::size_t Words(int room) {
    return 2 * 4 * kRows * static_cast<std::size_t>(room);
  }
};

// A warp's queries: fragments that stay in registers.
template <class Type, int D, int kTiles>
class SweepQueries {
 public:
  static constexpr int kKeys = SweepShape<Type, D>::kKeys;

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
  // Columns 8 j + 2 t and behind it of the lane's row r.
  TSALLIS_DEVICE void Pair(float (&pair)[2], int r, int j) const {
    const std::uint32_t bits = q_[r / 2][j / 2][2 * (j % 2) + r % 2];
    pair[0] = Type::ToFloat(static_cast<std::uint16_t>(bits));
    pair[1] = Type::ToFloat(static_cast<std::uint16_t>(bits >> 16));
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

template <int D, int kTiles>
class SweepQueries<Float32, D, kTiles> {
 public:
  static constexpr int kKeys = SweepShape<Float32, D>::kKeys;

  TSALLIS_DEVICE void Set(int r, const float* from, bool negative, int columns) {
    rows_[r] = from;
    signs_[r] = negative ? -1.0f : 1.0f;
    columns_ = columns;
  }
  TSALLIS_DEVICE void Pair(float (&pair)[2], int r, int j) const {
    const int column = 8 * j + 2 * (Lane() % 4);
    TSALLIS_UNROLL
    for (int e = 0; e < 2; ++e) {
      const bool used = rows_[r] != nullptr && column < columns_;
      pair[e] = used ? LoadDevice(rows_[r] + column + e) : 0.0f;
    }
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
inline constexpr int kDenseLane = 1 << 20;
// Lanes of a block with lists that are nearly full, for all of the block's bounds to be raised. A
// single row that keeps many raises its own, when there is no more room.
inline constexpr int kFullLanes = 2;

// The product below which no key of [key, key + keys) has a z above the row's bound. Where any may
// have: below all finite ones, or under a soft cap NaN, which nothing is below: there a product of
// -inf has a score, too.
template <bool kGeneral>
TSALLIS_DEVICE void SetProduct(const Head& head, int key, int keys, SweepRow& row) {
  if (row.mine == kDenseLane) return;
  if constexpr (!kGeneral) {
    if (row.bound == -kMostFloat) return;
    const float product = DeviceTerms().LeastProduct(row.bound, 0, 0, kScoreSlack) / row.factor;
    row.product = fminf(fmaxf(product, -kMostFloat), kMostFloat);
    return;
  }
  const float none = head.terms.bounded() ? kInfinity - kInfinity : -kMostFloat;
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

// A z that the threshold of a list exceeds.
TSALLIS_DEVICE float BoundOf(const Threshold& solved) {
  return solved.from - solved.top - kSolveSlack * (1.0f + fabsf(solved.top)) -
         kScoreSlack * fabsf(solved.from);
}

// The bound of a row whose threshold is known.
TSALLIS_DEVICE float BoundOf(double tau) {
  const auto near = static_cast<float>(tau);
  return near - kScoreSlack * (1.0f + fabsf(near));
}

// Thresholds of what lists hold become their bounds, and what is not above is dropped; what stays
// is spread over the quad's lanes. `raise`: whether the quad's lists are to change. known: bounds
// are the rows' thresholds already.
template <int kCount, class List>
TSALLIS_RARE RowLists<kCount, List> RaiseBounds(RowLists<kCount, List> lists, bool raise,
                                                bool known, float alpha, float power) {
  if (Lane() == 0) Count(Work::kRaised, 1);
  RowLists<kCount, List> raised = lists;
  TSALLIS_UNROLL
  for (int r = 0; r < kCount; ++r) {
    if (!raise || lists.mine[r] == kDenseLane) lists.mine[r] = 0;
  }
  if (!known) {
    // Without the sink: the largest z must stay in the list, and a sink may lie above all of them.
    bool bounded = true;
    TSALLIS_UNROLL
    for (int r = 0; r < kCount; ++r) bounded = bounded && lists.bound[r] != -kMostFloat;
    const Thresholds<kCount> solved =
        SolveLists(lists, -kInfinity, alpha, power, !Any(!bounded), List::kBoundStep);
    TSALLIS_UNROLL
    for (int r = 0; r < kCount; ++r) {
      lists.bound[r] = fmaxf(BoundOf(solved.of[r]), lists.bound[r]);
      if (raise && !(solved.of[r].from <= kMostFloat)) raised.mine[r] = kDenseLane;
    }
  }
  TSALLIS_UNROLL
  for (int r = 0; r < kCount; ++r) {
    const int kept = CompactList(lists.list[r], lists.mine[r], lists.bound[r]);
    if (!raise || raised.mine[r] == kDenseLane) continue;
    raised.mine[r] = (kept - Lane() % 4 + 3) / 4;
    raised.bound[r] = lists.bound[r];
  }
  SyncWarp();
  return raised;
}

// A lane's products of one of its rows with the keys of a tile, for AddHits.
template <int kKeys>
struct Hits {
  float alpha = 1.5f, power = 2.0f;
  SweepRow row;
  int key0 = 0, room = 0;
  bool known = false;
  float x[kKeys / 4];  // 2 j + e: column 8 j + 2 t + e
};

// Adds the scores above the bound to lists that may be full, two a lane at a time. The warp calls
// it. head, mask: of general kernels, else null.
template <bool kGeneral, int kKeys, class List>
TSALLIS_RARE RowLists<1, List> AddHits(const List list, const Hits<kKeys>& tile, const Head* head,
                                       const AttentionMask* mask) {
  const SweepRow& row = tile.row;
  const int lane = Lane(), t = lane % 4;
  RowLists<1, List> listed = {{list}, {row.mine}, {row.bound}};
  int& mine = listed.mine[0];
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
        if (mine != kDenseLane && !(product <= row.product) && key >= row.begin && key < row.end &&
            (!kGeneral || head->Sees(*mask, true, row.row, key))) {
          if (kGeneral) {
            value[e] = head->Score(row.factor, product, head->sequence.Distance(row.row, key));
          }
          hit[e] = !(list.unit * value[e] <= listed.bound[0]);
        }
      }
      const int count = (hit[0] ? 1 : 0) + (hit[1] ? 1 : 0);
      // A long list has room for a tile.
      const bool lacks = !List::kLong && count > 0 && mine + count > tile.room;
      const bool full = (Ballot(lacks) >> (lane & 28) & 15u) != 0;
      if (Any(full) && !again) {
        // Others that are more than half full come along: the warp takes the same time.
        const float most = QuadMax(static_cast<float>(mine));
        listed = RaiseBounds(listed, full || most > static_cast<float>(tile.room / 2 + 2),
                             tile.known, tile.alpha, tile.power);
        continue;
      }
      if (full) mine = kDenseLane;
      if (mine != kDenseLane) {
        TSALLIS_UNROLL
        for (int e = 0; e < 2; ++e) {
          if (!hit[e]) continue;
          list.Store(List::OwnAt(mine), value[e], tile.key0 + 8 * j + 2 * t + e);
          ++mine;
          Count(Work::kListed, 1);
        }
      }
      break;
    }
  }
  return listed;
}

// Weights in place of the z of a quad's list, which keeps what has any; statistics and the list go
// to memory. solved: its threshold, unless thresholds are known. The warp calls it; the size of the
// support, or kDenseRow.
template <class List>
TSALLIS_DEVICE int WriteList(const SweepCall& sweep, const Head& head, const List& list,
                             const SweepRow& row, const Threshold& solved) {
  const DeviceCall& call = sweep.call;
  const int lane = Lane(), t = lane % 4;
  bool dense = row.mine == kDenseLane;
  int mine = dense ? 0 : row.mine;
  const std::int64_t index = row.row >= 0 ? head.Index(call, row.row) : 0;
  const float start = sweep.Start<List::kLong>(head, row.row, index);
  double tau = -static_cast<double>(kInfinity);
  if (sweep.from_tau != nullptr) {
    if (row.row >= 0) tau = LoadDevice(sweep.from_tau + index);
  } else {
    if (!(solved.from <= kMostFloat)) {
      dense = true;
      mine = 0;
    }
    if ((Ballot(mine > 0) >> (lane & 28) & 15u) != 0) {
      tau = static_cast<double>(solved.from) - static_cast<double>(solved.top);
    }
  }
  // z - tau = (z - high) - low: near the threshold the difference is exact. A list that is saved
  // and one that is made again have the same weights.
  const auto high = static_cast<float>(tau);
  const auto low = static_cast<float>(tau - static_cast<double>(high));
  // The second sweep may have begun from a guess.
  float bound = List::kLong && !(row.bound > start) ? -kMostFloat : row.bound;
  const bool failed = !dense && start != -kMostFloat &&
                      !(start + kScoreSlack * (1.0f + fabsf(start)) <= static_cast<float>(tau));
  const bool saves = sweep.from_tau == nullptr && row.row >= 0 && index < sweep.saved.rows;
  const bool writes = saves || (row.row >= 0 && sweep.lists.keys != nullptr);
  const Lists& lists = saves ? sweep.saved : sweep.lists;
  const float known_bound = BoundOf(tau);
  float near = 0.0f;  // entries that a sweep with a known threshold lists
  float entropy = 0.0f, largest = -kInfinity;
  const int kept = KeepEntries(
      list, mine,
      [&](bool in, Words2* entry, float z) {
        const float x = in ? (z - high) - low : 0.0f;
        const float p = x > 0.0f ? Weight::Of(x, head.alpha, head.power).p : 0.0f;
        largest = fmaxf(largest, z);
        near += in && !(z < known_bound) ? 1.0f : 0.0f;
        entry->w[0] = BitsOf(p);
        return p > 0.0f;
      },
      [&](int to, const Words2& entry) {
        const float p = FloatOf(entry.w[0]);
        if (writes && to < kList) {
          StoreDevice(lists.keys + index * kList + to, entry.w[1]);
          StoreDevice(lists.weights + index * kList + to, p);
        }
        if (sweep.statistics.entropy != nullptr) entropy -= p * logf(p);
      });
  SyncWarp();  // all lanes read what this quad wrote
  entropy = QuadSum(entropy);
  largest = QuadMax(largest);
  near = QuadSum(near);
  // The lists that other kernels read have no more places.
  dense = dense || failed || (kept > kList && sweep.lists.keys != nullptr);
  const int size = dense ? kDenseRow : kept;
  if (t != 0 || row.row < 0) return size;
  StoreDevice(sweep.lists.counts + index, size);
  if (saves) {
    const bool any = tau != -static_cast<double>(kInfinity);
    const bool again =
        !any || (row.bound < known_bound && near <= static_cast<float>(sweep.saved.most));
    int count = dense || !again ? kNotSaved : kept;
    if (head.softmax() || head.wide || (!dense && kept > kList)) count = kDenseRow;
    StoreDevice(sweep.saved.counts + index, count);
  }
  // A sink's row may have its threshold above all scores, but its list holds the largest.
  if (failed) {
    // The guess was too high. What was listed has a threshold that the row's exceeds.
    const float below = largest - kScoreSlack * (1.0f + fabsf(largest));
    bound = fmaxf(fminf(BoundOf(solved), below), -kMostFloat);
  }
  if (dense && sweep.bounds != nullptr) StoreDevice(sweep.bounds + index, bound);
  if (!dense && sweep.guesses.IsOfPilots()) {
    StoreDevice(sweep.bounds + index, fminf(static_cast<float>(tau), largest));
  }
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

// out = sum of p v of rows whose lists hold weights: D / 8 lanes have a row, and each of them eight
// columns. The warp calls it; count: of the lane's row, below 0 without one.
template <class Type, int D, class List>
TSALLIS_DEVICE void WriteOutput(const SweepCall& sweep, const Head& head, const ArrayRows<Type>& v,
                                const List& list, int count, int row) {
  const int column = Lane() % (D / 8) * 8;
  if (count < 0 || column >= sweep.call.value_dim) return;
  float sum[8] = {};
  // Many rows of v are under way at once: each is a wait for the second cache.
  constexpr int kAhead = kIsFloat32<Type> ? 8 : 16;
  TSALLIS_LOOP
  for (int i = 0; i < count; i += kAhead) {
    float p[kAhead];
    Columns<Type> columns[kAhead];
    TSALLIS_UNROLL
    for (int a = 0; a < kAhead; ++a) {
      p[a] = 0.0f;
      if (i + a < count) {
        const Words2 entry = list.Load(list.At(i + a));
        p[a] = FloatOf(entry.w[0]);
        columns[a].Load(v.At(static_cast<int>(entry.w[1])) + column);
      }
    }
    TSALLIS_UNROLL
    for (int a = 0; a < kAhead; ++a) {
      float values[8];
      columns[a].ToFloats(values);
      TSALLIS_UNROLL
      for (int x = 0; x < 8; ++x) sum[x] = fmaf(p[a], values[x], sum[x]);
    }
  }
  const std::int64_t start = Offset(sweep.out.strides, head.sequence.array_batch, head.h, row);
  StoreColumns<Type>(sweep.out, start, column, sum, 8);
}

// The sweep of a block's rows: row_of(i), which ascend up to last_row; beyond the sequence: none.
// slot: of long lists. kGeneral: with masks, terms beside the product, and heads of any alpha,
// which are dense.
template <class Type, int D, bool kGeneral, class Shape, class RowOf>
TSALLIS_DEVICE void SweepRows(const SweepCall& sweep, const Head& head, std::int64_t last_row,
                              const RowOf& row_of, std::uint32_t* slot) {
  using List = typename Shape::List;
  constexpr int kKeys = Shape::kKeys, kTiles = Shape::kTiles, kOwn = 2 * kTiles;
  const DeviceCall& call = sweep.call;
  const int lane = Lane(), warp = WarpIndex(), quad = lane / 4, t = lane % 4;
  const Sequence& sequence = head.sequence;
  const TileRun<Type, D, kKeys> key_tiles(
      ArrayRows<Type>::Of(call.k, sequence.array_batch, head.kv), call.head_dim);
  const bool has_terms = kGeneral && head.terms.any();

  // A lane's rows: 16 m + 8 half + quad of the warp at 2 m + half.
  SweepRow rows[kOwn];
  SweepQueries<Type, D, kTiles> queries;
  TSALLIS_UNROLL
  for (int r = 0; r < kOwn; ++r) {
    SweepRow& row = rows[r];
    const int at = row_of(warp * 16 * kTiles + r * 8 + quad);
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
      from = ArrayRows<Type>::Of(call.q, sequence.array_batch, head.h).At(at);
      bool dense = head.softmax() || head.wide || !(row.factor >= 1e-30f && row.factor <= 1e30f);
      if (sweep.from_tau != nullptr) {
        const double tau = LoadDevice(sweep.from_tau + head.Index(call, at));
        dense = dense || tau != tau;
        if (tau == -static_cast<double>(kInfinity)) row.end = row.begin;
        row.bound = BoundOf(tau);
      }
      if (sweep.from_tau == nullptr) {
        row.bound = sweep.Start<List::kLong>(head, at, head.Index(call, at));
      }
      if (dense) {
        row.mine = kDenseLane;
        row.product = kMostFloat;
        row.end = row.begin;
      }
    } else {
      row.mine = kDenseLane;
      row.product = kMostFloat;
      // As all other rows have one.
      if (List::kLong || sweep.guesses.offsets != nullptr) row.bound = 0.0f;
    }
    queries.Set(r, from, negative, call.head_dim);
    if (!has_terms) SetProduct<kGeneral>(head, row.begin, 1, row);
  }

  const int first_row = row_of(0);
  const Span span = head.KeysOf(call.mask, first_row, last_row);
  const int keys_begin = static_cast<int>(span.begin), keys_end = static_cast<int>(span.end);
  const int tiles = static_cast<int>((span.size() + kKeys - 1) / kKeys);
  const auto fetch = [&](int tile, int stage) {
    key_tiles.Fetch(Shared<Words4>(stage * Shape::kTileBytes), keys_begin + tile * kKeys, keys_end);
  };
  const int room = sweep.room;
  const auto list_of = [&](int r, int group) { return Shape::ListOf(slot, warp, room, r, group); };
  // The quad's own.
  const auto own_list = [&](int r) {
    List list = list_of(r, quad);
    if (!kGeneral) list.unit = rows[r].factor;
    return list;
  };
  const auto lists_of = [&] {
    RowLists<kOwn, List> lists;
    TSALLIS_UNROLL
    for (int r = 0; r < kOwn; ++r) {
      lists.list[r] = own_list(r);
      lists.mine[r] = rows[r].mine;
      lists.bound[r] = rows[r].bound;
    }
    return lists;
  };
  const auto set_listed = [&](SweepRow& row, int mine, float bound) {
    row.mine = mine;
    row.bound = bound;
    if (mine == kDenseLane) {
      row.product = kMostFloat;
      row.end = row.begin;
    } else if (!has_terms) {
      SetProduct<kGeneral>(head, row.begin, 1, row);
    }
  };
  // More of the lane's entries of a row than this are nearly too many. As many as a tile's keys
  // are, since the first tile's all go to the lists, unless there is no room for more behind them.
  // A long list keeps room for a tile.
  const int usual = List::kLong ? room - kKeys / 4 : room - 4 < 15 ? room - 4 : 15;
  int limit = sweep.from_tau != nullptr ? kDenseLane : usual;

  // The newest tile up to `tile` with a pair that the block mask shows; below 0: none.
  const auto newest = [&](int tile) {
    while (kGeneral && tile >= 0) {
      const int key = keys_begin + tile * kKeys;
      const int end = key + kKeys < keys_end ? key + kKeys : keys_end;
      if (head.MasksOf(call.mask, first_row, static_cast<int>(last_row), key, end).any) break;
      --tile;
    }
    return tile;
  };

  // The newest tiles first: a causal row's largest scores are often there, and ALiBi's always.
  // Without terms the first tile comes before them: most rows of trained models keep one of the
  // first keys, and with it a bound that few others reach (docs/log.md).
  int tile = kGeneral ? newest(tiles - 1) : tiles > 0 ? 0 : -1;
  if (tile >= 0) fetch(tile, 0);
  CommitCopies();
  for (int step = 0; step < tiles; ++step) {
    // Without masks a tile follows from its step, which saves a register.
    if (!kGeneral) tile = step == 0 ? 0 : tiles - step;
    if (kGeneral && tile < 0) break;
    const int stage = step % Shape::kStages;
    const int next = kGeneral ? newest(tile - 1) : step + 1 < tiles ? tiles - step - 1 : -1;
    bool full = false;
    TSALLIS_UNROLL
    for (int r = 0; r < kOwn; ++r) {
      full = full || (rows[r].mine > limit && rows[r].mine != kDenseLane);
    }
    WaitForCopies<0>();
    // The tile is there, and nobody reads the one before.
    const bool raise = SyncBlockCount(full) >= (List::kLong ? 1 : kFullLanes);
    if (next >= 0) fetch(next, (step + 1) % Shape::kStages);
    CommitCopies();
    if (raise) {
      const RowLists<kOwn, List> raised =
          RaiseBounds(lists_of(), true, false, head.alpha, head.power);
      // A row that keeps many must not ask at every tile.
      limit = usual;
      TSALLIS_UNROLL
      for (int r = 0; r < kOwn; ++r) {
        int mine = raised.mine[r];
        if constexpr (List::kLong) {
          // Each time must make room. The quad's lanes go by the first one's, which has the most.
          if (Shuffle(mine, 4 * quad) > usual - usual / 8) mine = kDenseLane;
        }
        set_listed(rows[r], mine, raised.bound[r]);
        const int wanted = mine + room / 4;
        if (!List::kLong && mine != kDenseLane && wanted > limit) limit = wanted;
      }
    }
    if constexpr (List::kLong) {
      bool lives = false;
      TSALLIS_UNROLL
      for (int r = 0; r < kOwn; ++r) lives = lives || rows[r].mine != kDenseLane;
      // Rows become dense where bounds are raised; when all have, there is nothing left to sweep.
      if (raise && SyncBlockCount(lives) == 0) break;
      if (!Any(lives)) {
        tile = next;
        continue;
      }
    }
    const Shared<Words4> k(stage * Shape::kTileBytes);
    float s[kTiles][kKeys / 8][4];
    TSALLIS_UNROLL
    for (int m = 0; m < kTiles; ++m) Clear(s[m]);
    queries.Multiply(s, k);
    const int key0 = keys_begin + tile * kKeys;
    tile = next;
    // Keys that a row does not see have no score. Only tiles at the ends of the keys that the
    // lane's rows see have such keys.
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
    constexpr int kOfLane = kKeys / 4;
    const auto product = [&](int r, int i) { return s[r / 2][i / 2][r % 2 * 2 + i % 2]; };
    const auto add_hits = [&](int r) {
      // Copies: what a function that is not inlined is given the address of lies in memory.
      Hits<kKeys> tile_hits;
      tile_hits.alpha = head.alpha;
      tile_hits.power = head.power;
      tile_hits.row = rows[r];
      tile_hits.key0 = key0;
      tile_hits.room = room;
      tile_hits.known = sweep.from_tau != nullptr;
      TSALLIS_UNROLL
      for (int i = 0; i < kOfLane; ++i) tile_hits.x[i] = product(r, i);
      RowLists<1, List> listed;
      if constexpr (kGeneral) {
        const Head copy = head;
        const AttentionMask mask = call.mask;
        listed = AddHits<true>(own_list(r), tile_hits, &copy, &mask);
      } else {
        listed = AddHits<false>(own_list(r), tile_hits, nullptr, nullptr);
      }
      set_listed(rows[r], listed.mine[0], listed.bound[0]);
    };
    // Marks scores that exceed bounds: bit i for column i / 2 * 8 + 2 t + i % 2.
    std::uint32_t hits[kOwn], any = 0;
    bool lacks = false;
    TSALLIS_UNROLL
    for (int r = 0; r < kOwn; ++r) {
      if (has_terms) SetProduct<kGeneral>(head, key0, kKeys, rows[r]);
      std::uint32_t less = 0;
      TSALLIS_UNROLL
      for (int i = kOfLane - 1; i >= 0; --i) less = PushLess(less, product(r, i), rows[r].product);
      hits[r] = ~less & ((1u << kOfLane) - 1u);
      // Scores that are not finite exceed a dense row's, too.
      if (List::kLong && rows[r].mine == kDenseLane) hits[r] = 0;
      if (kGeneral && Any(hits[r] != 0)) add_hits(r);
      any |= hits[r];
      lacks = lacks || (hits[r] != 0 && rows[r].mine + CountBits(hits[r]) > room);
    }
    if (kGeneral) continue;
    if (!List::kLong && Any(lacks)) {
      TSALLIS_UNROLL
      for (int r = 0; r < kOwn; ++r) {
        if (Any(hits[r] != 0)) add_hits(r);
      }
      continue;
    }
    // Far from the first tile few keys have a hit: what the warp has none of is passed over. A
    // lane's rows go side by side, since each waits for its own last place.
    const std::uint32_t of_warp = OrOfWarp(any);
    if (of_warp == 0) continue;
    int to[kOwn];  // bytes
    TSALLIS_UNROLL
    for (int r = 0; r < kOwn; ++r) {
      to[r] = own_list(r).ByteOf(rows[r].mine);
      rows[r].mine += CountBits(hits[r]);
      Count(Work::kListed, CountBits(hits[r]));
    }
    const int first_key = key0 + 2 * t;
    TSALLIS_UNROLL
    for (int four = 0; four < kOfLane; four += 4) {
      if ((of_warp >> four & 15u) == 0) continue;
      TSALLIS_UNROLL
      for (int i = four; i < four + 4; ++i) {
        TSALLIS_UNROLL
        for (int r = 0; r < kOwn; ++r) {
          if ((hits[r] >> i & 1u) == 0) continue;
          own_list(r).StoreAt(to[r], product(r, i), first_key + i / 2 * 8 + i % 2);
          to[r] += List::kStepBytes;
        }
      }
    }
  }
  Thresholds<kOwn> solved;
  if (sweep.from_tau == nullptr) {
    RowLists<kOwn, List> lists = lists_of();
    TSALLIS_UNROLL
    for (int& mine : lists.mine) mine = mine == kDenseLane ? 0 : mine;
    solved = SolveLists(lists, head.sink, head.alpha, head.power, false, 0.0f);
  }
  int sizes[kOwn];
  TSALLIS_UNROLL
  for (int r = 0; r < kOwn; ++r) {
    sizes[r] = WriteList(sweep, head, own_list(r), rows[r], solved.of[r]);
  }
  if (sweep.from_tau != nullptr) return;
  const ArrayRows<Type> v = ArrayRows<Type>::Of(call.v, sequence.array_batch, head.kv);
  constexpr int kRowsAtOnce = kWarp / (D / 8);
  const int part = lane / (D / 8);
  TSALLIS_LOOP
  for (int at = 0; at < 8 * kOwn; at += kRowsAtOnce) {
    const int r = at / 8, group = at % 8 + part;
    int size = sizes[0];
    TSALLIS_UNROLL
    for (int other = 1; other < kOwn; ++other) size = r == other ? sizes[other] : size;
    WriteOutput<Type, D>(sweep, head, v, list_of(r, group), Shuffle(size, 4 * group),
                         row_of(warp * 16 * kTiles + at + part));
  }
}

// A block owns Shape::kRows rows of a sequence and head.
template <class Type, int D, bool kGeneral>
TSALLIS_KERNEL(kThreads, 2)
SweepKernel(const SweepCall sweep) {
  using Shape = SweepShape<Type, D>;
  const DeviceCall& call = sweep.call;
  // The longest rows of a causal mask first.
  BlockPlace place;
  if (!kGeneral && sweep.guesses.IsOfPilots()) {
    place = Guesses::PilotPlace(call, BlockZ(), BlockX(), Shape::kRows);
  } else {
    place = BlockPlace::Of(call, call.ranges.q_begin, false, Blocks() - 1 - BlockX(), BlockZ(),
                           Shape::kRows);
    if (!kGeneral && sweep.guesses.rows != nullptr) {
      place.any = place.any && !Guesses::IsPilot(call, place, Shape::kRows);
    }
  }
  if (!place.any) return;
  const Head head = Head::Of<kGeneral>(call, place.b, BlockY());
  const int first = static_cast<int>(place.first);
  const std::int64_t behind = first + Shape::kRows, end = head.sequence.q.end;
  if (sweep.from_tau != nullptr && sweep.saved.rows > 0) {
    static_assert(Shape::kRows <= kThreads);
    const int row = first + ThreadIndex();
    const bool lacks = ThreadIndex() < Shape::kRows && row < end &&
                       sweep.saved.CountOf(head.Index(call, row)) == kNotSaved;
    if (SyncBlockCount(lacks) == 0) return;
  }
  SweepRows<Type, D, kGeneral, Shape>(
      sweep, head, (behind < end ? behind : end) - 1, [&](int i) { return first + i; }, nullptr);
}

// Rows that the sweep left: dense.At() has them side by side. They are swept again, from the bounds
// that it proved, with lists in device memory. Blocks go through the rows of all sequences and
// heads in steps of the grid, so that they need no more memory than a slot each.
struct LongCall {
  SweepCall sweep;  // room: of a long list
  DenseRows dense;
  std::uint32_t* slots = nullptr;  // LongSlots::Words(room) for each block
};

template <class Type, int D, bool kGeneral>
TSALLIS_KERNEL(kThreads, 2)
LongSweepKernel(const LongCall of) {
  using Shape = LongShape<Type, D>;
  const DeviceCall& call = of.sweep.call;
  const int room = of.sweep.room;
  std::uint32_t* const slot = of.slots + BlockX() * LongSlots::Words(room);
  // A sequence and head, as a number, and that of its first blocks of rows.
  int pair = 0, before = 0;
  TSALLIS_LOOP
  for (int block = BlockX();; block += Blocks()) {
    int count = 0, blocks = 0;
    TSALLIS_LOOP
    for (; pair < call.batch * call.heads; ++pair) {
      count = Head::IsSparse(call, pair % call.heads) ? LoadDevice(of.dense.counts + pair) : 0;
      blocks = (count + Shape::kRows - 1) / Shape::kRows;
      if (block < before + blocks) break;
      before += blocks;
    }
    if (pair == call.batch * call.heads) break;
    const Head head = Head::Of<kGeneral>(call, pair / call.heads, pair % call.heads);
    // The longest rows of a causal mask first.
    const int first = (blocks - 1 - (block - before)) * Shape::kRows;
    const auto row_of = [&](int i) {
      return first + i < count ? of.dense.At(call, head, first + i)
                               : static_cast<int>(head.sequence.q.end);
    };
    const int last = first + Shape::kRows < count ? Shape::kRows - 1 : count - 1 - first;
    SweepRows<Type, D, kGeneral, Shape>(of.sweep, head, row_of(last), row_of, slot);
    // Of a block whose rows have all become dense a tile may be under way; others of its warps read
    // the last one and lists.
    WaitForCopies<0>();
    SyncBlock();
  }
}

}  // namespace TSALLIS_SIDE
}  // namespace tsallis::cuda
