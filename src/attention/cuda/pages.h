// Forward on keys and values in pages, for few queries: decoding.
//
//   scores  a block for each run of keys, key head and sequence. The query heads that share the key
//           head, times the queries, are the 16 rows of its matrix products. Scores go to memory in
//           units of 16 keys with the largest of each. No threshold lies further than 1 below the
//           largest z (alpha - 1 times the score), so entmax does not store a unit whose largest z
//           lies further below the largest that its warp has seen.
//   solve   a block for each query and head: the scores that may have a weight into a list in
//           shared memory, Newton's method from below until nothing moves, the values of the
//           support. Rows of softmax, and rows that keep more than the list holds, are solved on
//           the scores in memory.
//   values  for those rows, the weighted values of a run: a block for each run, as above
//   sum     for those rows, the sum of their runs, in order
//
// The bits of a score depend on key and query alone, and the list ascends. So a row of the list has
// the same bits whatever pages its keys lie in and however many runs there are; the sums of the
// others are added run by run.
#pragma once

#include <cstdint>

#include "attention/cuda/call.h"
#include "attention/cuda/sweep.h"
#include "attention/cuda/tile.h"
#include "tsallis/pages.h"

namespace tsallis::cuda::inline TSALLIS_SIDE {

inline constexpr int kPageRows = 16, kPageTile = 64, kPageUnit = kPageTile / kWarps;
// Threads that solve a row, and entries of each warp's part of its list.
inline constexpr int kSolveThreads = 256, kSolveWarps = kSolveThreads / kWarp;
inline constexpr int kSolveEntries = 256;

struct PagesCall {
  Call call;  // k and v are those of the pages, k_len what a table has room for
  int pages = 0, page_size = 1;
  int page_bits = -1;  // page_size = 2^page_bits; -1: it is no power of two
  ConstIntegers table, lengths;
  std::int64_t table_stride = 0;
  int tiles = 0, runs = 0;  // of kPageTile keys that k_len has; runs of `run` tiles
  int run = 0;
  MutableArray4 out;
  Statistics statistics;
  // Rows as in the statistics.
  float* scores = nullptr;    // [rows, units, kPageUnit]
  float* most = nullptr;      // [rows, units]
  float* solved = nullptr;    // [rows, 2]: the largest z, sink too, and DenseRow's top
  int* many = nullptr;        // [rows]: whether the row is left to the last two kernels
  float* partials = nullptr;  // [rows, runs, kWarps, value_dim]

  TSALLIS_HOST_DEVICE int units() const { return tiles * (kPageTile / kPageUnit); }
  TSALLIS_HOST_DEVICE int rows() const { return call.group() * call.q_len; }  // of a key head
  TSALLIS_HOST_DEVICE int blocks() const { return (rows() + kPageRows - 1) / kPageRows; }
};

TSALLIS_DEVICE std::int64_t LoadInteger(const ConstIntegers& integers, std::int64_t i) {
  if (integers.wide) return LoadDevice(static_cast<const std::int64_t*>(integers.data) + i);
  return LoadDevice(static_cast<const std::int32_t*>(integers.data) + i);
}

// The keys of a sequence and key head.
struct PageKeys {
  ConstIntegers table;
  std::int64_t first = 0;  // of the sequence in the table
  int pages = 0, page_size = 1, page_bits = -1, kv = 0;

  TSALLIS_DEVICE static PageKeys Of(const PagesCall& pages, int b, int kv) {
    return {pages.table, b * pages.table_stride, pages.pages, pages.page_size, pages.page_bits, kv};
  }
  // Where a key's row begins in an array, in elements; -1: its page does not exist.
  TSALLIS_DEVICE std::int64_t At(const std::int64_t (&strides)[4], int key) const {
    const int place = page_bits >= 0 ? key >> page_bits : key / page_size;
    const std::int64_t page = LoadInteger(table, first + place);
    if (page < 0 || page >= pages) return -1;
    return Offset(strides, page, kv, key - place * page_size);
  }
};

TSALLIS_DEVICE Head PageHead(const PagesCall& pages, int b, int h) {
  Head head = Head::Of(pages.call, b, h);
  Sequence& sequence = head.sequence;
  const std::int64_t length = LoadInteger(pages.lengths, b);
  sequence.k = Head::Clip({0, length}, pages.call.k_len);
  if (pages.call.mask.alignment == Alignment::kEnd) {
    sequence.shift = sequence.k.end - sequence.q.end;
  }
  return head;
}

// What a block for a run of keys has to do.
struct PageRun {
  int run = 0, b = 0, kv = 0;
  int first = 0, count = 0;          // of the key head's rows
  std::int64_t index = 0;            // of its first row in the statistics
  int keys_begin = 0, keys_end = 0;  // that any query sees
  int tiles_begin = 0, tiles_end = 0;

  TSALLIS_DEVICE static PageRun Of(const PagesCall& pages) {
    const Call& call = pages.call;
    PageRun place;
    place.run = BlockX() / pages.blocks();
    place.b = BlockZ();
    place.kv = BlockY();
    place.first = BlockX() % pages.blocks() * kPageRows;
    place.count = pages.rows() - place.first;
    if (place.count > kPageRows) place.count = kPageRows;
    const Head head = PageHead(pages, place.b, place.kv * call.group());
    place.index = head.Index(call, 0) + place.first;
    const Span seen = head.KeysOf(call.mask, 0, call.q_len - 1);
    place.keys_begin = static_cast<int>(seen.begin);
    place.keys_end = static_cast<int>(seen.begin + seen.size());
    place.tiles_begin = place.run * pages.run;
    place.tiles_end = place.tiles_begin + pages.run;
    const int from = place.keys_begin / kPageTile;
    const int upto = (place.keys_end + kPageTile - 1) / kPageTile;
    if (place.tiles_begin < from) place.tiles_begin = from;
    if (place.tiles_end > upto) place.tiles_end = upto;
    if (seen.size() == 0) place.tiles_end = place.tiles_begin;
    return place;
  }
  // The head and the query of row i.
  TSALLIS_DEVICE int HeadOf(const Call& call, int i) const {
    return kv * call.group() + (first + i) / call.q_len;
  }
  TSALLIS_DEVICE int QueryOf(const Call& call, int i) const { return (first + i) % call.q_len; }
};

template <class Type, int D>
struct PageScoresShape {
  static constexpr std::size_t kTileBytes = kPageTile * D * sizeof(typename Type::Element);
  static constexpr int kStages = kTileBytes > 32768 ? 1 : kTileBytes > 16384 ? 2 : 3;
  static constexpr std::size_t kKeysAt = LeftRows<Type, D, kPageRows>::kBytes;
  static constexpr std::size_t kSharedBytes = kKeysAt + kStages * kTileBytes;
};

template <class Type, int D>
TSALLIS_KERNEL(kThreads)
PageScoresKernel(const PagesCall pages) {
  using Shape = PageScoresShape<Type, D>;
  using Element = typename Type::Element;
  constexpr int kStages = Shape::kStages, kBlocks = kPageUnit / 8;
  const Call& call = pages.call;
  const int warp = WarpIndex(), quad = Lane() / 4, t = Lane() % 4;
  const PageRun place = PageRun::Of(pages);
  const int tiles = place.tiles_end - place.tiles_begin;
  if (tiles <= 0) return;
  const PageKeys keys = PageKeys::Of(pages, place.b, place.kv);
  const Rows<Type> k_rows = {static_cast<const Element*>(call.k.data), 1};
  const Rows<Type> q_rows = {static_cast<const Element*>(call.q.data), 1};
  const LeftRows<Type, D, kPageRows> queries(0, q_rows, call.head_dim, [&](int i) {
    return i < place.count
               ? Offset(call.q.strides, place.b, place.HeadOf(call, i), place.QueryOf(call, i))
               : std::int64_t{-1};
  });
  // The newest keys first: their scores are often the largest.
  const auto fetch = [&](int step) {
    if (step < tiles) {
      const int key0 = (place.tiles_end - 1 - step) * kPageTile;
      const Shared<Words4> to(Shape::kKeysAt + step % kStages * Shape::kTileBytes);
      FetchTile<Type, D, kPageTile>(to, k_rows, call.head_dim, [&](int i) {
        const int key = key0 + i;
        return key >= place.keys_begin && key < place.keys_end ? keys.At(call.k.strides, key)
                                                               : std::int64_t{-1};
      });
    }
    CommitCopies();
  };

  // A lane's rows, quad and quad + 8.
  struct Row {
    Head head;
    bool used = false;
    int query = 0, begin = 0, end = 0;
    float factor = 0.0f, peak = -kInfinity;
  };
  Row rows[2];
  TSALLIS_UNROLL
  for (int half = 0; half < 2; ++half) {
    Row& row = rows[half];
    const int i = half * 8 + quad;
    if (i >= place.count) continue;
    row.used = true;
    row.head = PageHead(pages, place.b, place.HeadOf(call, i));
    row.query = place.QueryOf(call, i);
    const Span seen = row.head.sequence.VisibleKeys(call.mask, row.query);
    row.begin = static_cast<int>(seen.begin);
    row.end = static_cast<int>(seen.end);
    row.factor = row.head.Factor(call, row.query);
  }

  TSALLIS_UNROLL
  for (int step = 0; step < kStages - 1; ++step) fetch(step);
  TSALLIS_LOOP
  for (int step = 0; step < tiles; ++step) {
    fetch(step + kStages - 1);
    WaitForCopies<kStages - 1>();
    SyncBlock();
    const int unit = (place.tiles_end - 1 - step) * kWarps + warp;
    const Shared<Words4> tile(Shape::kKeysAt + step % kStages * Shape::kTileBytes);
    float s[kBlocks][4];
    Clear(s);
    queries.Multiply(s, tile.From(warp * kPageUnit * (D / kPiece<Type>)));
    SyncBlock();  // the stage may be filled again
    bool exists[2 * kBlocks];
    TSALLIS_UNROLL
    for (int x = 0; x < 2 * kBlocks; ++x) {
      const int key = unit * kPageUnit + x / 2 * 8 + 2 * t + x % 2;
      exists[x] =
          key < place.keys_begin || key >= place.keys_end || keys.At(call.k.strides, key) >= 0;
    }
    TSALLIS_UNROLL
    for (int half = 0; half < 2; ++half) {
      Row& row = rows[half];
      float most = -kInfinity;
      TSALLIS_UNROLL
      for (int x = 0; x < 2 * kBlocks; ++x) {
        float& z = s[x / 2][2 * half + x % 2];
        const int key = unit * kPageUnit + x / 2 * 8 + 2 * t + x % 2;
        if (key < row.begin || key >= row.end) {
          z = -kInfinity;
        } else if (!exists[x]) {
          z = kInfinity - kInfinity;
        } else {
          z = row.head.Score(row.factor, z, row.head.sequence.Distance(row.query, key));
        }
        most = MaxOrNaN(most, z);
      }
      most = QuadMax(most);
      row.peak = MaxOrNaN(row.peak, most);
      if (!row.used) continue;
      const std::int64_t at = (place.index + half * 8 + quad) * pages.units() + unit;
      if (t == 0) StoreDevice(pages.most + at, most);
      // Rounding is the same here and where a row is solved, with a peak that is no smaller.
      if (!row.head.softmax() && row.peak - most >= 1.0f) continue;
      TSALLIS_UNROLL
      for (int j = 0; j < kBlocks; ++j) {
        const Words2 pair = {{BitsOf(s[j][2 * half]), BitsOf(s[j][2 * half + 1])}};
        StoreDevice(reinterpret_cast<Words2*>(pages.scores + at * kPageUnit + 8 * j + 2 * t), pair);
      }
    }
  }
  WaitForCopies<0>();
}

// Sums and maxima of the threads that solve a row, in one order. room: [kSolveWarps].
TSALLIS_DEVICE double SolveSum(const Shared<double>& room, double x) {
  TSALLIS_UNROLL
  for (int bits = 1; bits < kWarp; bits *= 2) x += ShuffleXor(x, bits);
  if (Lane() == 0) room.Store(WarpIndex(), x);
  SyncBlock();
  double sum = 0.0;
  TSALLIS_UNROLL
  for (int i = 0; i < kSolveWarps; ++i) sum += room.Load(i);
  SyncBlock();  // the room may be used again
  return sum;
}
TSALLIS_DEVICE float SolveMax(const Shared<float>& room, float x) {
  TSALLIS_UNROLL
  for (int bits = 1; bits < kWarp; bits *= 2) x = MaxOrNaN(x, ShuffleXor(x, bits));
  if (Lane() == 0) room.Store(WarpIndex(), x);
  SyncBlock();
  float most = -kInfinity;
  TSALLIS_UNROLL
  for (int i = 0; i < kSolveWarps; ++i) most = MaxOrNaN(most, room.Load(i));
  SyncBlock();
  return most;
}

template <int D>
struct PageSolveShape {
  static constexpr std::size_t kKeysAt = kSolveThreads / kWarp * kSolveEntries * 4;
  static constexpr std::size_t kRoomAt = 2 * kKeysAt;
  static constexpr std::size_t kOutAt = kRoomAt + kSolveWarps * 8;
  static constexpr std::size_t kSharedBytes = kOutAt + kSolveWarps * D * 4;
};

// The scores that a row is solved from: a warp's part of the list, or, of a row that has too many,
// those in memory.
struct PageRow {
  ListRow list;
  int count = 0;  // of the warp's part
  bool many = false;
  bool all = false;  // softmax: no score is too small
  float peak = -kInfinity;
  const float *scores = nullptr, *most = nullptr;  // of the row
  int units_begin = 0, units_end = 0;

  // Whether a z may have a weight: 0 < top <= 1.
  TSALLIS_DEVICE bool Reaches(float z) const { return all || peak - z < 1.0f; }

  TSALLIS_DEVICE void LoadUnit(int unit, float (&z)[kPageUnit]) const {
    TSALLIS_UNROLL
    for (int i = 0; i < kPageUnit / 4; ++i) {
      const Words4 words =
          LoadDevice(reinterpret_cast<const Words4*>(scores + unit * kPageUnit) + i);
      TSALLIS_UNROLL
      for (int x = 0; x < 4; ++x) z[4 * i + x] = FloatOf(words.w[x]);
    }
  }
  // Fills the list; whether the warp's part of it is long enough. Keys ascend in it. All lanes may
  // read it behind the block's next barrier.
  TSALLIS_DEVICE bool Fill() {
    bool fits = true;
    TSALLIS_LOOP
    for (int first = units_begin + WarpIndex() * kWarp; first < units_end; first += kSolveThreads) {
      const int unit = first + Lane();
      const bool takes = unit < units_end && Reaches(LoadDevice(most + unit));
      float z[kPageUnit];
      std::uint32_t hits = 0;
      if (takes) {
        LoadUnit(unit, z);
        TSALLIS_UNROLL
        for (int x = 0; x < kPageUnit; ++x) hits |= (Reaches(z[x]) ? 1u : 0u) << x;
      }
      const int mine = CountBits(hits);
      int upto = mine;
      TSALLIS_UNROLL
      for (int by = 1; by < kWarp; by *= 2) {
        const int before = ShuffleUp(upto, by, kWarp);
        if (Lane() >= by) upto += before;
      }
      const int more = Shuffle(upto, kWarp - 1);
      fits = fits && count + more <= kSolveEntries;
      if (!fits) continue;
      int to = count + upto - mine;
      TSALLIS_UNROLL
      for (int x = 0; x < kPageUnit; ++x) {
        if ((hits >> x & 1u) == 0) continue;
        list.z.Store(to, z[x]);
        list.key.Store(to, unit * kPageUnit + x);
        ++to;
      }
      count += more;
    }
    return fits;
  }
  // visit(z) for the thread's share of the scores that may have a weight.
  template <class Visit>
  TSALLIS_DEVICE void ForEach(const Visit& visit) const {
    if (!many) {
      for (int i = Lane(); i < count; i += kWarp) visit(list.z.Load(i));
      return;
    }
    TSALLIS_LOOP
    for (int unit = units_begin + ThreadIndex(); unit < units_end; unit += kSolveThreads) {
      if (!Reaches(LoadDevice(most + unit))) continue;
      float z[kPageUnit];
      LoadUnit(unit, z);
      TSALLIS_UNROLL
      for (int x = 0; x < kPageUnit; ++x) visit(z[x]);
    }
  }
};

// sum p v over a warp's part of the list, to its row of `sums`: D / 8 lanes read a row of v, 256 /
// D entries at once.
template <class Type, int D>
TSALLIS_DEVICE void AddValues(const PagesCall& pages, const PageKeys& keys, const Head& head,
                              const PageRow& row, float top, const Shared<float>& sums) {
  constexpr int kLanes = D / 8, kAtOnce = kWarp / kLanes;
  const ConstArray4& v = pages.call.v;
  const int part = Lane() / kLanes, column = Lane() % kLanes * 8;
  float sum[8] = {};
  for (int i = part; i < row.count && column < pages.call.value_dim; i += kAtOnce) {
    const float x = top - (row.peak - row.list.z.Load(i));
    if (!(x > 0.0f)) continue;
    const float p = Weight::Of(x, head.alpha, head.power).p;
    float values[8];
    LoadColumns<Type>(static_cast<const typename Type::Element*>(v.data) +
                          keys.At(v.strides, row.list.key.Load(i)) + column,
                      values);
    TSALLIS_UNROLL
    for (int c = 0; c < 8; ++c) sum[c] = fmaf(p, values[c], sum[c]);
  }
  TSALLIS_UNROLL
  for (int c = 0; c < 8; ++c) {
    TSALLIS_UNROLL
    for (int bits = kLanes; bits < kWarp; bits *= 2) sum[c] += ShuffleXor(sum[c], bits);
    if (part == 0) sums.Store(WarpIndex() * D + column + c, sum[c]);
  }
}

template <class Type, int D>
TSALLIS_KERNEL(kSolveThreads)
PageSolveKernel(const PagesCall pages) {
  using Shape = PageSolveShape<D>;
  const Call& call = pages.call;
  const int query = BlockX(), warp = WarpIndex();
  const Head head = PageHead(pages, BlockZ(), BlockY());
  const Span seen = head.sequence.VisibleKeys(call.mask, query);
  const std::int64_t index = head.Index(call, query);
  const Shared<float> float_room(Shape::kRoomAt), sums(Shape::kOutAt);
  const Shared<double> room(Shape::kRoomAt);
  PageRow row = {{Shared<float>(0).From(warp * kSolveEntries),
                  Shared<int>(Shape::kKeysAt).From(warp * kSolveEntries)}};
  row.all = head.softmax();
  row.most = pages.most + index * pages.units();
  row.scores = pages.scores + index * pages.units() * kPageUnit;
  if (seen.size() > 0) {
    row.units_begin = static_cast<int>(seen.begin) / kPageUnit;
    row.units_end = static_cast<int>(seen.end - 1) / kPageUnit + 1;
  }
  float largest = -kInfinity;
  for (int unit = row.units_begin + ThreadIndex(); unit < row.units_end; unit += kSolveThreads) {
    largest = MaxOrNaN(largest, LoadDevice(row.most + unit));
  }
  largest = SolveMax(float_room, largest);
  // Without a z above -inf a row is empty, and broken with one that is NaN or inf.
  const bool lives = largest > -kInfinity && largest <= kMostFloat;
  const bool broken = !lives && largest != -kInfinity;
  // The sink is one more key; it counts where there is another.
  row.peak = fmaxf(largest, head.sink);
  double top = 1.0, entropy = 0.0;
  int support = 0;
  if (lives) {
    row.many = row.all;
    if (!row.all) row.many = SolveMax(float_room, row.Fill() ? 0.0f : 1.0f) > 0.0f;
    if (row.all) {
      double sum = 0.0;
      row.ForEach([&](float z) { sum += static_cast<double>(expf(z - row.peak)); });
      top = SolveSum(room, sum) + static_cast<double>(expf(head.sink - row.peak));
    }
    const float of_sink = row.peak - head.sink;
    TSALLIS_LOOP
    for (bool moves = !row.all; moves;) {
      const float here = static_cast<float>(top);
      double p = 0.0, u = 0.0;
      const auto add = [&](float depth) {
        const float x = here - depth;
        if (!(x > 0.0f)) return;
        const Weight weight = Weight::Of(x, head.alpha, head.power);
        p += static_cast<double>(weight.p);
        u += static_cast<double>(weight.u);
      };
      row.ForEach([&](float z) { add(row.peak - z); });
      if (ThreadIndex() == 0) add(of_sink);
      p = SolveSum(room, p);
      u = SolveSum(room, u);
      const auto next = static_cast<float>(top - (p - 1.0) / (u * static_cast<double>(head.power)));
      moves = next < here;
      if (moves) top = static_cast<double>(next);
    }
    const float here = static_cast<float>(top), log_sum = row.all ? logf(here) : 0.0f;
    const bool counts =
        pages.statistics.support_size != nullptr || pages.statistics.entropy != nullptr;
    if (counts) {
      row.ForEach([&](float z) {
        const float depth = row.peak - z, x = here - depth;
        float p = 0.0f, log_p = 0.0f;
        if (row.all) {
          log_p = -depth - log_sum;
          p = expf(log_p);
        } else if (x > 0.0f) {
          p = Weight::Of(x, head.alpha, head.power).p;
          log_p = logf(p);
        }
        if (!(p > 0.0f)) return;
        ++support;
        entropy -= static_cast<double>(p * log_p);
      });
      support = static_cast<int>(SolveSum(room, static_cast<double>(support)));
      entropy = SolveSum(room, entropy);
    }
  }
  const float nan = kInfinity - kInfinity;
  if (!row.many) {
    const PageKeys keys = PageKeys::Of(pages, BlockZ(), head.kv);
    if (lives) {
      AddValues<Type, D>(pages, keys, head, row, static_cast<float>(top), sums);
      SyncBlock();
    }
    const std::int64_t start = Offset(pages.out.strides, head.sequence.array_batch, head.h, query);
    const int column = ThreadIndex() * 2;
    if (column < call.value_dim) {
      float pair[2] = {};
      TSALLIS_UNROLL
      for (int e = 0; e < 2; ++e) {
        for (int i = 0; lives && i < kSolveWarps; ++i) pair[e] += sums.Load(i * D + column + e);
        if (broken) pair[e] = nan;
      }
      StoreColumns<Type>(pages.out, start, column, pair, 2);
    }
  }
  if (ThreadIndex() != 0) return;
  StoreDevice(pages.many + index, row.many ? 1 : 0);
  StoreDevice(pages.solved + 2 * index, row.peak);
  StoreDevice(pages.solved + 2 * index + 1, static_cast<float>(top));
  const Statistics& statistics = pages.statistics;
  const auto wide = [&](double x) { return broken ? static_cast<double>(nan) : x; };
  if (statistics.tau != nullptr) {
    const double depth = row.all ? -log(top) : top;
    StoreDevice(statistics.tau + index, wide(lives ? static_cast<double>(row.peak) - depth
                                                   : -static_cast<double>(kInfinity)));
  }
  if (statistics.support_size != nullptr) {
    StoreDevice(statistics.support_size + index, static_cast<std::int64_t>(broken ? -1 : support));
  }
  if (statistics.entropy != nullptr) StoreDevice(statistics.entropy + index, wide(entropy));
  if (statistics.maximum != nullptr) {
    StoreDevice(statistics.maximum + index,
                wide(static_cast<double>(largest) / static_cast<double>(head.unit)));
  }
}

inline constexpr std::size_t kPageValuesBytes = kPageRows * kPageTile * 4;

template <class Type, int D>
TSALLIS_KERNEL(kThreads)
PageValuesKernel(const PagesCall pages) {
  constexpr int kLanes = D / 8, kAtOnce = kThreads / kLanes;
  const Call& call = pages.call;
  const PageRun place = PageRun::Of(pages);
  const int own = Lane() % kPageRows;
  if (!Any(own < place.count && LoadDevice(pages.many + place.index + own) != 0)) return;
  const PageKeys keys = PageKeys::Of(pages, place.b, place.kv);
  const auto* v = static_cast<const typename Type::Element*>(call.v.data);
  const Shared<float> weights(0);  // [kPageTile, kPageRows]
  const int part = ThreadIndex() / kLanes, column = ThreadIndex() % kLanes * 8;
  const bool used = column < call.value_dim;
  // A thread's weights are all of one row.
  const int mine = ThreadIndex() % kPageRows;
  const bool weighs = mine < place.count && LoadDevice(pages.many + place.index + mine) != 0;
  const std::int64_t at = (place.index + mine) * pages.units();
  Head head;
  float peak = 0.0f, top = 0.0f;
  if (weighs) {
    head = PageHead(pages, place.b, place.HeadOf(call, mine));
    peak = LoadDevice(pages.solved + 2 * (place.index + mine));
    top = LoadDevice(pages.solved + 2 * (place.index + mine) + 1);
  }
  float sum[kPageRows][8] = {};
  TSALLIS_LOOP
  for (int tile = place.tiles_begin; tile < place.tiles_end; ++tile) {
    SyncBlock();  // the last weights have been read
    for (int i = ThreadIndex() / kPageRows; i < kPageTile; i += kThreads / kPageRows) {
      const int key = tile * kPageTile + i;
      float p = 0.0f;
      if (weighs) {
        const std::int64_t unit = at + key / kPageUnit;
        // Scores of a unit without a weight may not be there.
        if (head.softmax() || peak - LoadDevice(pages.most + unit) < 1.0f) {
          const float depth = peak - LoadDevice(pages.scores + unit * kPageUnit + key % kPageUnit);
          if (head.softmax()) {
            p = expf(-depth) / top;
          } else if (top - depth > 0.0f) {
            p = Weight::Of(top - depth, head.alpha, head.power).p;
          }
        }
      }
      weights.Store(i * kPageRows + mine, p);
    }
    SyncBlock();
    TSALLIS_LOOP
    for (int i = part; i < kPageTile && used; i += kAtOnce) {
      float p[kPageRows];
      bool any = false;
      TSALLIS_UNROLL
      for (int r = 0; r < kPageRows; ++r) {
        p[r] = weights.Load(i * kPageRows + r);
        any = any || p[r] > 0.0f;
      }
      if (!any) continue;
      float values[8];
      LoadColumns<Type>(v + keys.At(call.v.strides, tile * kPageTile + i) + column, values);
      TSALLIS_UNROLL
      for (int r = 0; r < kPageRows; ++r) {
        // A weight of 0 adds nothing, as 0 times NaN would not.
        if (!(p[r] > 0.0f)) continue;
        TSALLIS_UNROLL
        for (int c = 0; c < 8; ++c) sum[r][c] = fmaf(p[r], values[c], sum[r][c]);
      }
    }
  }
  TSALLIS_UNROLL
  for (int r = 0; r < kPageRows; ++r) {
    const std::int64_t to =
        (((place.index + r) * pages.runs + place.run) * kWarps + WarpIndex()) * call.value_dim;
    TSALLIS_UNROLL
    for (int c = 0; c < 8; ++c) {
      TSALLIS_UNROLL
      for (int bits = kLanes; bits < kWarp; bits *= 2) sum[r][c] += ShuffleXor(sum[r][c], bits);
      if (Lane() < kLanes && used && r < place.count) {
        StoreDevice(pages.partials + to + column + c, sum[r][c]);
      }
    }
  }
}

// One for all sizes.
template <class Type>
TSALLIS_KERNEL(kThreads)
PageSumKernel(const PagesCall pages) {
  const Call& call = pages.call;
  const std::int64_t index =
      (static_cast<std::int64_t>(BlockZ()) * call.heads + BlockY()) * call.q_len + BlockX();
  const int column = ThreadIndex() * 2;
  if (column >= call.value_dim || LoadDevice(pages.many + index) == 0) return;
  const int parts = pages.runs * kWarps;
  float pair[2] = {};
  for (int i = 0; i < parts; ++i) {
    TSALLIS_UNROLL
    for (int e = 0; e < 2; ++e) {
      pair[e] += LoadDevice(pages.partials + (index * parts + i) * call.value_dim + column + e);
    }
  }
  StoreColumns<Type>(pages.out, Offset(pages.out.strides, BlockZ(), BlockY(), BlockX()), column,
                     pair, 2);
}

}  // namespace tsallis::cuda::inline TSALLIS_SIDE
