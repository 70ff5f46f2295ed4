// Forward on keys and values in pages, for few queries: decoding.
//
//   scores  a block for each run of keys, key head and sequence. The query heads that share the key
//           head, times the queries, are the 16 rows of its matrix products. Scores go to memory in
//           units of 16 keys with the largest of each. No threshold lies further than 1 below the
//           largest z (alpha - 1 times the score), so entmax does not store a unit whose largest z
//           lies further below the largest that its warp has seen.
//   solve   a block for each query and head. The threshold of some keys never exceeds that of all:
//           of one key for each thread, the largest that it has read, it is a bound, and only units
//           that reach it are read. Keys that reach it go into a list in shared memory; Newton's
//           method from below until nothing moves, and the values of the support. Rows of softmax,
//           and rows that keep more than the list holds, are solved on the scores in memory.
//   values  for those rows, the weighted values of a run: a block for each run, as above
//   sum     for those rows, the sum of their runs, in order
//
// Warps go through keys and values in units of 16 rows, each with stages of its own in shared
// memory: no warp waits for another. All that a lane needs for its pieces of a unit in one page is
// one pointer and a step.
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

namespace tsallis::cuda {
inline namespace TSALLIS_SIDE {

inline constexpr int kPageRows = 16, kPageTile = 64, kPageUnit = 16;
inline constexpr int kTileUnits = kPageTile / kPageUnit;
// Threads that solve a row, and entries of each warp's part of its list.
inline constexpr int kSolveThreads = 256, kSolveWarps = kSolveThreads / kWarp;
inline constexpr int kSolveEntries = 256;

struct PagesCall {
  DeviceCall call;  // k and v are those of the pages, k_len what a table has room for
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
  float* partials = nullptr;  // [rows, runs, value_dim]; of softmax not divided by its sum

  TSALLIS_HOST_DEVICE int units() const { return tiles * kTileUnits; }
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
  // The place of a key in the sequence's row of the table.
  TSALLIS_DEVICE int PlaceOf(int key) const {
    return page_bits >= 0 ? key >> page_bits : key / page_size;
  }
  // -1: it does not exist.
  TSALLIS_DEVICE int PageOf(int place) const {
    const std::int64_t page = LoadInteger(table, first + place);
    return page < 0 || page >= pages ? -1 : static_cast<int>(page);
  }
  // The begin of a key's row in an array, in elements; -1: its page does not exist.
  TSALLIS_DEVICE std::int64_t At(const std::int64_t (&strides)[4], int key) const {
    const int place = PlaceOf(key), page = PageOf(place);
    return page < 0 ? -1 : Offset(strides, page, kv, key - place * page_size);
  }
};

TSALLIS_DEVICE Head PageHead(const PagesCall& pages, int b, int h) {
  Head head = Head::Of(pages.call, b, h);
  Sequence& sequence = head.sequence;
  const std::int64_t length = LoadInteger(pages.lengths, b);
  sequence.k = Head::Clip({0, length}, pages.call.k_len);
  sequence.Align(pages.call.mask);
  return head;
}

// The work of a block for a run of keys.
struct PageRun {
  int run = 0, b = 0, kv = 0;
  int first = 0, count = 0;          // of the key head's rows
  std::int64_t index = 0;            // of its first row in the statistics
  int keys_begin = 0, keys_end = 0;  // that any query sees
  int units_begin = 0, units_end = 0;

  // Without keys and units, for which lengths have to be read.
  TSALLIS_DEVICE static PageRun RowsOf(const PagesCall& pages) {
    const DeviceCall& call = pages.call;
    PageRun place;
    place.run = BlockX() / pages.blocks();
    place.b = BlockZ();
    place.kv = BlockY();
    place.first = BlockX() % pages.blocks() * kPageRows;
    place.count = pages.rows() - place.first;
    if (place.count > kPageRows) place.count = kPageRows;
    const std::int64_t head =
        static_cast<std::int64_t>(place.b) * call.heads + place.kv * call.group();
    place.index = head * call.q_len + place.first;
    return place;
  }
  TSALLIS_DEVICE static PageRun Of(const PagesCall& pages) {
    const DeviceCall& call = pages.call;
    PageRun place = RowsOf(pages);
    const Head head = PageHead(pages, place.b, place.kv * call.group());
    const Span seen = head.KeysOf(call.mask, 0, call.q_len - 1);
    if (seen.size() == 0) return place;
    place.keys_begin = static_cast<int>(seen.begin);
    place.keys_end = static_cast<int>(seen.begin + seen.size());
    place.units_begin = place.run * pages.run * kTileUnits;
    place.units_end = place.units_begin + pages.run * kTileUnits;
    const int from = place.keys_begin / kPageUnit;
    const int upto = (place.keys_end - 1) / kPageUnit + 1;
    if (place.units_begin < from) place.units_begin = from;
    if (place.units_end > upto) place.units_end = upto;
    return place;
  }
  // The head and the query of row i.
  TSALLIS_DEVICE int HeadOf(const DeviceCall& call, int i) const {
    return kv * call.group() + (first + i) / call.q_len;
  }
  TSALLIS_DEVICE int QueryOf(const DeviceCall& call, int i) const {
    return (first + i) % call.q_len;
  }
};

// A warp's stages in shared memory. With three to four of them some 100 KB are on their way to a
// multiprocessor, more than its share of what memory needs to be busy.
template <class Type, int D>
struct PageUnitsShape {
  static constexpr std::size_t kUnitBytes = kPageUnit * D * sizeof(typename Type::Element);
  static constexpr int kStages = kUnitBytes > 8192   ? 1
                                 : kUnitBytes > 4096 ? 2
                                 : kUnitBytes > 2048 ? 3
                                                     : 4;
  static constexpr std::size_t kWarpBytes = kStages * kUnitBytes;
  static constexpr std::size_t kSharedBytes = kWarps * kWarpBytes;
};

// Copies units of keys or values of a sequence and key head to stages of the warp. Rows that no
// query sees are 0. kNaN: those of pages that do not exist are NaN, else 0.
template <class Type, int D, bool kNaN>
class PageUnits {
  using Element = typename Type::Element;
  using Shape = PageUnitsShape<Type, D>;
  static constexpr int kPieces = D / kPiece<Type>;
  static constexpr int kAcross = kPieces < kWarp ? kPieces : kWarp, kDown = kWarp / kAcross;

 public:
  TSALLIS_DEVICE PageUnits(const PageKeys& keys, const ConstArray4& array, int columns,
                           const PageRun& place)
      : keys_(keys),
        array_(array),
        columns_(columns),
        begin_(place.keys_begin),
        end_(place.keys_end),
        one_page_(keys.page_size % kPageUnit == 0) {
    const int row = Lane() / kAcross, piece = Lane() % kAcross;
    from_ = static_cast<const Element*>(array.data) + keys.kv * array.strides[1] +
            row * array.strides[2] + piece * kPiece<Type>;
    to_ = PieceAt<Type, D>(row, piece);
    table_ = static_cast<const std::uint32_t*>(keys.table.data) + (keys.first << Wide());
  }
  static TSALLIS_DEVICE std::size_t StageByte(int stage) {
    return WarpIndex() * Shape::kWarpBytes + stage * Shape::kUnitBytes;
  }
  // Reads the table ahead of the unit's copies, so that these do not wait for it: the two words of
  // an integer as they are.
  TSALLIS_DEVICE void Find(int unit) {
    if (!one_page_) return;
    const int place = keys_.PlaceOf(unit * kPageUnit);
    const std::uint32_t* at = table_ + (std::int64_t{place} << Wide());
    low_ = LoadDevice(at);
    if (Wide() == 1) high_ = LoadDevice(at + 1);
  }
  // Begins to copy the unit that was found last.
  TSALLIS_DEVICE void Fetch(int unit, int stage) const {
    const Shared<Words4> to(StageByte(stage));
    const int key = unit * kPageUnit;
    const bool exists =
        (Wide() == 0 || high_ == 0) && low_ < static_cast<std::uint32_t>(keys_.pages);
    if (one_page_ && exists && key >= begin_ && key + kPageUnit <= end_) {
      const int in_page = key - keys_.PlaceOf(key) * keys_.page_size;
      const Element* from =
          from_ + static_cast<int>(low_) * array_.strides[0] + in_page * array_.strides[2];
      const std::int64_t step = kDown * array_.strides[2];
      TSALLIS_UNROLL
      for (int r = 0; r < kPageUnit; r += kDown) {
        TSALLIS_UNROLL
        for (int p = 0; p < kPieces; p += kAcross) {
          CopyAsync(to, PlaceOf(r, p), from + p * kPiece<Type>, Uses(p));
        }
        from += step;
      }
      return;
    }
    FetchSingly(to, key);
  }

 private:
  TSALLIS_DEVICE int Wide() const { return keys_.table.wide ? 1 : 0; }
  // The place of a lane's piece p of its row r, as PieceAt says: r is a multiple of kDown and p of
  // kAcross, so that neither meets the lane's own bits.
  TSALLIS_DEVICE int PlaceOf(int r, int p) const { return (to_ ^ (r & 7)) + r * kPieces + p; }
  TSALLIS_DEVICE bool Uses(int p) const { return (p + Lane() % kAcross) * kPiece<Type> < columns_; }
  // Looks up each key's page: a lane those of one key.
  TSALLIS_DEVICE void FetchSingly(const Shared<Words4>& to, int first) const {
    const int key = first + Lane() % kPageUnit;
    const bool seen = key >= begin_ && key < end_;
    const std::int64_t at = seen ? keys_.At(array_.strides, key) : -2;
    const auto* data = static_cast<const Element*>(array_.data);
    TSALLIS_LOOP
    for (int r = 0; r < kPageUnit; r += kDown) {
      const std::int64_t start = Shuffle(at, r + Lane() / kAcross);
      TSALLIS_UNROLL
      for (int p = 0; p < kPieces; p += kAcross) {
        if (kNaN && start == -1) {
          to.Store(PlaceOf(r, p), Words4{{~0u, ~0u, ~0u, ~0u}});
          continue;
        }
        const bool used = start >= 0 && Uses(p);
        const int column = (p + Lane() % kAcross) * kPiece<Type>;
        CopyAsync(to, PlaceOf(r, p), used ? data + start + column : data, used);
      }
    }
  }

  PageKeys keys_;
  const ConstArray4& array_;
  int columns_, begin_, end_;
  bool one_page_;                         // every unit lies in one
  const std::uint32_t* table_;            // the sequence's row
  std::uint32_t low_ = ~0u, high_ = ~0u;  // the page of the unit that was found last
  // The begin of a lane's first piece of a unit in page 0, and its place in a stage.
  const Element* from_;
  int to_;
};

// The rows of a block's queries in registers, as the left side of products takes them.
template <class Type, int D>
class PageQueries {
 public:
  template <class RowOf>
  TSALLIS_DEVICE PageQueries(const ArrayRows<Type>& rows, int columns, const RowOf& row_of) {
    const int quad = Lane() / 4, t = Lane() % 4;
    TSALLIS_UNROLL
    for (int half = 0; half < 2; ++half) {
      const std::int64_t row = row_of(half * 8 + quad);
      TSALLIS_UNROLL
      for (int c = 0; c < D / 8; ++c) {
        const int column = 8 * c + 2 * t;
        const bool used = row >= 0 && column < columns;
        a_[c / 2][half + c % 2 * 2] =
            used ? LoadDevice(reinterpret_cast<const std::uint32_t*>(rows.At(row) + column)) : 0u;
      }
    }
  }
  // sums[j] += queries times rows [8 j, 8 j + 8) of a unit; the order of LeftRows::Multiply.
  TSALLIS_DEVICE void Multiply(float (&sums)[2][4], const Shared<Words4>& unit) const {
    const int lane = Lane(), row = lane / 16 * 8 + lane % 8;
    TSALLIS_UNROLL
    for (int c = 0; c < D / 16; ++c) {
      std::uint32_t b[4];
      LoadMatrices(b, unit, PieceAt<Type, D>(row, 2 * c + lane / 8 % 2));
      MultiplyMatrices<Type>(sums[0], a_[c], b[0], b[1]);
      MultiplyMatrices<Type>(sums[1], a_[c], b[2], b[3]);
    }
  }

 private:
  std::uint32_t a_[D / 16][4];
};
template <int D>
class PageQueries<Float32, D> : public LeftRows<Float32, D, kPageRows> {
 public:
  template <class RowOf>
  TSALLIS_DEVICE PageQueries(const ArrayRows<Float32>& rows, int columns, const RowOf& row_of)
      : LeftRows<Float32, D, kPageRows>(0, rows, columns, row_of) {}
};

template <class Type, int D>
TSALLIS_KERNEL(kThreads)
PageScoresKernel(const PagesCall pages) {
  using Element = typename Type::Element;
  using Units = PageUnits<Type, D, true>;
  constexpr int kStages = PageUnitsShape<Type, D>::kStages, kBlocks = kPageUnit / 8;
  const DeviceCall& call = pages.call;
  const int quad = Lane() / 4, t = Lane() % 4;
  const PageRun place = PageRun::Of(pages);
  // The newest keys first: their scores are often the largest.
  const int newest = place.units_end - 1 - WarpIndex();
  const int steps = (newest - place.units_begin) / kWarps + 1;
  if (newest < place.units_begin) return;
  Units units(PageKeys::Of(pages, place.b, place.kv), call.k, call.head_dim, place);
  const auto fetch = [&](int step, int stage) {
    if (step < steps) {
      const int unit = newest - step * kWarps;
      units.Fetch(unit, stage);
      if (step + 1 < steps) units.Find(unit - kWarps);
    }
    CommitCopies();
  };
  units.Find(newest);
  TSALLIS_UNROLL
  for (int step = 0; step < kStages - 1; ++step) fetch(step, step);
  const PageQueries<Type, D> queries(
      {static_cast<const Element*>(call.q.data), 1}, call.head_dim, [&](int i) {
        return i < place.count
                   ? Offset(call.q.strides, place.b, place.HeadOf(call, i), place.QueryOf(call, i))
                   : std::int64_t{-1};
      });

  // A lane finds out about one row, and asks others for its two, quad and quad + 8.
  struct Row {
    bool used = false, all = false;    // all: softmax
    int begin = 0, end = 0, here = 0;  // here: the key at distance 0
    float factor = 0.0f, unit = 1.0f, slope = 0.0f, softcap = 0.0f, peak = -kInfinity;

    TSALLIS_DEVICE Row Of(int lane) const {
      Row row;
      const int bits = Shuffle((used ? 1 : 0) + (all ? 2 : 0), lane);
      row.used = (bits & 1) != 0;
      row.all = (bits & 2) != 0;
      row.begin = Shuffle(begin, lane);
      row.end = Shuffle(end, lane);
      row.here = Shuffle(here, lane);
      row.factor = Shuffle(factor, lane);
      row.unit = Shuffle(unit, lane);
      row.slope = Shuffle(slope, lane);
      row.softcap = Shuffle(softcap, lane);
      return row;
    }
  };
  Row own;
  // Keys that all rows see, and whether a score is its product times the factor.
  int all_begin = 0, all_end = 0x7FFFFFFF;
  bool terms = false;
  if (Lane() % kPageRows < place.count) {
    const int i = Lane() % kPageRows, query = place.QueryOf(call, i);
    const Head head = PageHead(pages, place.b, place.HeadOf(call, i));
    const Span seen = head.sequence.VisibleKeys(call.mask, query);
    own.used = true;
    own.all = head.softmax();
    own.begin = all_begin = static_cast<int>(seen.begin);
    own.end = all_end = static_cast<int>(seen.end);
    own.here = static_cast<int>(query + head.sequence.shift);
    own.factor = head.Factor(call, query);
    own.unit = head.terms.unit;
    own.slope = head.terms.slope;
    own.softcap = head.terms.softcap;
    terms = head.terms.any();
  }
  const bool plain = !Any(terms);
  TSALLIS_UNROLL
  for (int bits = 1; bits < kPageRows; bits *= 2) {
    const int begin = ShuffleXor(all_begin, bits), end = ShuffleXor(all_end, bits);
    all_begin = begin > all_begin ? begin : all_begin;
    all_end = end < all_end ? end : all_end;
  }
  Row rows[2] = {own.Of(quad), own.Of(8 + quad)};
  const std::int64_t at = (place.index + quad) * pages.units(),
                     at_next = std::int64_t{8} * pages.units();

  int stage = 0, free = kStages - 1;
  TSALLIS_LOOP
  for (int step = 0; step < steps; ++step) {
    fetch(step + kStages - 1, free);
    WaitForCopies<kStages - 1>();
    SyncWarp();
    const int unit = newest - step * kWarps, key0 = unit * kPageUnit;
    float s[kBlocks][4];
    Clear(s);
    queries.Multiply(s, Shared<Words4>(Units::StageByte(stage)));
    SyncWarp();  // the stage may be filled again
    free = stage;
    stage = stage + 1 == kStages ? 0 : stage + 1;
    // Most units need no branches: z is the product times the row's factor.
    const bool simple = plain && key0 >= all_begin && key0 + kPageUnit <= all_end;
    TSALLIS_UNROLL
    for (int half = 0; half < 2; ++half) {
      Row& row = rows[half];
      if (half * 8 >= place.count) continue;
      float most = -kInfinity;
      if (simple) {
        TSALLIS_UNROLL
        for (int x = 0; x < 2 * kBlocks; ++x) {
          float& z = s[x / 2][2 * half + x % 2];
          z = row.factor * z;
          most = MaxOrNaN(most, z);
        }
      } else {
        TSALLIS_UNROLL
        for (int x = 0; x < 2 * kBlocks; ++x) {
          float& z = s[x / 2][2 * half + x % 2];
          const int key = key0 + x / 2 * 8 + 2 * t + x % 2;
          z = row.factor * z;
          if (key < row.begin || key >= row.end) {
            z = -kInfinity;
          } else if (!plain) {
            // Only for keys that the row sees: there are factors for no other distances. Without
            // terms of its own a row's score is z all the same.
            const DeviceTerms of_row = {row.unit, row.slope, row.softcap, call.distances};
            z = of_row.Score(z, row.here - key);
          }
          most = MaxOrNaN(most, z);
        }
      }
      most = QuadMax(most);
      row.peak = MaxOrNaN(row.peak, most);
      if (!row.used) continue;
      const std::int64_t to = at + half * at_next + unit;
      if (t == 0) StoreDevice(pages.most + to, most);
      // Rounding is the same here and where a row is solved, with a peak that is no smaller.
      if (!row.all && row.peak - most >= 1.0f) continue;
      TSALLIS_UNROLL
      for (int j = 0; j < kBlocks; ++j) {
        const Words2 pair = {{BitsOf(s[j][2 * half]), BitsOf(s[j][2 * half + 1])}};
        StoreDevice(reinterpret_cast<Words2*>(pages.scores + to * kPageUnit + 8 * j + 2 * t), pair);
      }
    }
  }
  WaitForCopies<0>();
}

// The sum of two numbers over the threads that solve a row, in one order. room: [2 kSolveWarps].
struct SolveSums {
  double x = 0.0, y = 0.0;

  TSALLIS_DEVICE void Add(const Shared<double>& room) {
    TSALLIS_UNROLL
    for (int bits = 1; bits < kWarp; bits *= 2) {
      x += ShuffleXor(x, bits);
      y += ShuffleXor(y, bits);
    }
    if (Lane() == 0) {
      room.Store(2 * WarpIndex(), x);
      room.Store(2 * WarpIndex() + 1, y);
    }
    SyncBlock();
    x = y = 0.0;
    TSALLIS_UNROLL
    for (int i = 0; i < kSolveWarps; ++i) {
      x += room.Load(2 * i);
      y += room.Load(2 * i + 1);
    }
    SyncBlock();  // the room may be used again
  }
};

template <int D>
struct PageSolveShape {
  static constexpr std::size_t kKeysAt = kSolveWarps * kSolveEntries * 4;
  static constexpr std::size_t kUnitsAt = 2 * kKeysAt;
  static constexpr std::size_t kRoomAt = 3 * kKeysAt;
  static constexpr std::size_t kOutAt = kRoomAt + 2 * kSolveWarps * 8;
  // The threads' largest scores lie where the sums of values will.
  static constexpr std::size_t kSharedBytes = kOutAt + kSolveWarps * D * 4;
  static_assert(D >= kWarp);
};

// The largest score of each thread, a lane's share of them: every warp has them all.
struct PageMaxima {
  float z[kSolveWarps];
  Shared<float> room;  // of all

  TSALLIS_DEVICE explicit PageMaxima(const Shared<float>& all) : room(all) {
    TSALLIS_UNROLL
    for (int i = 0; i < kSolveWarps; ++i) z[i] = room.Load(i * kWarp + Lane());
  }

  TSALLIS_DEVICE float Largest() const {
    float largest = -kInfinity;
    TSALLIS_UNROLL
    for (int i = 0; i < kSolveWarps; ++i) largest = MaxOrNaN(largest, z[i]);
    TSALLIS_UNROLL
    for (int bits = 1; bits < kWarp; bits *= 2) {
      largest = MaxOrNaN(largest, ShuffleXor(largest, bits));
    }
    return largest;
  }
  // The largest distance of the threshold of all keys below the peak. Newton's method from below on
  // these and the sink; any of its steps is a bound, so that the last, short ones need not be made.
  TSALLIS_DEVICE float Reach(float peak, const Head& head) const {
    float top = 1.0f;
    TSALLIS_LOOP
    for (bool moves = true; moves;) {
      float p = 0.0f, u = 0.0f;
      if (head.alpha == 1.5f || head.alpha == 2.0f) {
        // Weight::Of without branches.
        const auto add = [&](float depth) {
          const float x = fmaxf(top - depth, 0.0f);
          p += head.alpha == 2.0f ? x : x * x;
          u += head.alpha == 2.0f ? (x > 0.0f ? 1.0f : 0.0f) : x;
        };
        TSALLIS_UNROLL
        for (int i = 0; i < kSolveWarps; ++i) add(peak - z[i]);
        add(Lane() == 0 ? peak - head.sink : kInfinity);
      } else {
        // Powers are long: one place for them.
        TSALLIS_LOOP
        for (int i = 0; i <= kSolveWarps; ++i) {
          const float of_sink = Lane() == 0 ? head.sink : -kInfinity;
          const float x =
              top - (peak - (i < kSolveWarps ? room.Load(i * kWarp + Lane()) : of_sink));
          if (!(x > 0.0f)) continue;
          const Weight weight = Weight::Of(x, head.alpha, head.power);
          p += weight.p;
          u += weight.u;
        }
      }
      TSALLIS_UNROLL
      for (int bits = 1; bits < kWarp; bits *= 2) {
        p += ShuffleXor(p, bits);
        u += ShuffleXor(u, bits);
      }
      const float next = top - (p - 1.0f) / (u * head.power);
      moves = next < top * 0.998f;
      if (next < top) top = next;
    }
    return fminf(1.0f, top + kSolveSlack);
  }
};

// A warp's part of a row's list.
struct PageList {
  Shared<float> z;
  Shared<int> key;
};

// The scores that a row is solved from: a warp's part of the list, or, of a row that has too many,
// those in memory.
struct PageRow {
  PageList list;
  Shared<int> units;  // of the warp's part, before their scores are read
  int count = 0;      // of the warp's part
  bool many = false;
  bool all = false;  // softmax: no score is too small
  float peak = -kInfinity, reach = 1.0f;
  const float *scores = nullptr, *most = nullptr;  // of the row
  int units_begin = 0, units_end = 0;

  // Whether a z may have a weight.
  TSALLIS_DEVICE bool Reaches(float z) const { return all || peak - z < reach; }

  TSALLIS_DEVICE void LoadUnit(int unit, float (&z)[kPageUnit]) const {
    TSALLIS_UNROLL
    for (int i = 0; i < kPageUnit / 4; ++i) {
      const Words4 words =
          LoadDevice(reinterpret_cast<const Words4*>(scores + unit * kPageUnit) + i);
      TSALLIS_UNROLL
      for (int x = 0; x < 4; ++x) z[4 * i + x] = FloatOf(words.w[x]);
    }
  }
  // Fills the list; whether the warp's part of it is long enough. Keys ascend in it. The warp may
  // read its part behind its next barrier.
  TSALLIS_DEVICE bool Fill() {
    // First the units, so that their scores are read together. Each has an entry at least.
    constexpr int kAtOnce = 4;
    int found = 0;
    TSALLIS_LOOP
    for (int first = units_begin + WarpIndex() * kWarp; first < units_end;
         first += kAtOnce * kSolveThreads) {
      float largest[kAtOnce];
      TSALLIS_UNROLL
      for (int i = 0; i < kAtOnce; ++i) {
        const int unit = first + i * kSolveThreads + Lane();
        largest[i] = unit < units_end ? LoadDevice(most + unit) : -kInfinity;
      }
      TSALLIS_UNROLL
      for (int i = 0; i < kAtOnce; ++i) {
        const bool takes = Reaches(largest[i]);
        const std::uint32_t hits = Ballot(takes);
        const int to = found + CountBits(hits & ((1u << Lane()) - 1u));
        if (takes && to < kSolveEntries) {
          units.Store(to, first + i * kSolveThreads + Lane());
        }
        found += CountBits(hits);
      }
    }
    SyncWarp();
    if (found > kSolveEntries) return false;
    TSALLIS_LOOP
    for (int first = 0; first < found; first += kWarp) {
      const bool takes = first + Lane() < found;
      const int unit = takes ? units.Load(first + Lane()) : 0;
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
      if (count + more > kSolveEntries) return false;
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
    return true;
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
      const auto* words = reinterpret_cast<const Words4*>(scores + unit * kPageUnit);
      TSALLIS_LOOP
      for (int i = 0; i < kPageUnit / 4; ++i) {
        const Words4 four = LoadDevice(words + i);
        TSALLIS_UNROLL
        for (int x = 0; x < 4; ++x) visit(FloatOf(four.w[x]));
      }
    }
  }
};

// sum p v over a warp's part of the list, to its row of `sums`: D / 8 lanes read a row of v, 256 /
// D entries at once.
template <class Type, int D>
TSALLIS_DEVICE void AddValues(const PagesCall& pages, const PageKeys& keys, const Head& head,
                              const PageRow& row, float top, const Shared<float>& sums) {
  constexpr int kLanes = D / 8, kAtOnce = kWarp / kLanes;
  // Rows that are under way together.
  constexpr int kDeep = kIsFloat32<Type> || kLanes == 4 ? 2 : 4;
  static_assert(kWarp % (kDeep * kAtOnce) == 0);
  const ConstArray4& v = pages.call.v;
  const auto* data = static_cast<const typename Type::Element*>(v.data);
  const int part = Lane() / kLanes, column = Lane() % kLanes * 8;
  const bool used = column < pages.call.value_dim;
  float sum[8] = {};
  TSALLIS_LOOP
  for (int first = 0; first < row.count; first += kWarp) {
    // A lane has an entry: its weight, and where its values lie.
    float own = 0.0f;
    std::int64_t at = 0;
    if (first + Lane() < row.count) {
      const float x = top - (row.peak - row.list.z.Load(first + Lane()));
      if (x > 0.0f) {
        own = Weight::Of(x, head.alpha, head.power).p;
        at = keys.At(v.strides, row.list.key.Load(first + Lane()));
      }
    }
    const int count = row.count - first < kWarp ? row.count - first : kWarp;
    TSALLIS_LOOP
    for (int i = 0; i < count; i += kDeep * kAtOnce) {
      float p[kDeep], values[kDeep][8];
      TSALLIS_UNROLL
      for (int j = 0; j < kDeep; ++j) {
        const int from = i + j * kAtOnce + part;
        p[j] = Shuffle(own, from);
        const std::int64_t start = Shuffle(at, from);
        LoadColumns<Type>(p[j] > 0.0f && used ? data + start + column : data, values[j]);
      }
      TSALLIS_UNROLL
      for (int j = 0; j < kDeep; ++j) {
        // A weight of 0 adds nothing, as 0 times NaN would not.
        if (!(p[j] > 0.0f)) continue;
        TSALLIS_UNROLL
        for (int c = 0; c < 8; ++c) sum[c] = fmaf(p[j], values[j][c], sum[c]);
      }
    }
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
  const DeviceCall& call = pages.call;
  const int query = BlockX(), warp = WarpIndex();
  const Head head = PageHead(pages, BlockZ(), BlockY());
  const Span seen = head.sequence.VisibleKeys(call.mask, query);
  const std::int64_t index = head.Index(call, query);
  const Shared<float> sums(Shape::kOutAt);
  const Shared<double> room(Shape::kRoomAt);
  PageRow row = {{Shared<float>(0).From(warp * kSolveEntries),
                  Shared<int>(Shape::kKeysAt).From(warp * kSolveEntries)},
                 Shared<int>(Shape::kUnitsAt).From(warp * kSolveEntries)};
  row.all = head.softmax();
  row.most = pages.most + index * pages.units();
  row.scores = pages.scores + index * pages.units() * kPageUnit;
  if (seen.size() > 0) {
    row.units_begin = static_cast<int>(seen.begin) / kPageUnit;
    row.units_end = static_cast<int>(seen.end - 1) / kPageUnit + 1;
  }
  float own = -kInfinity;
  for (int unit = row.units_begin + ThreadIndex(); unit < row.units_end; unit += kSolveThreads) {
    own = MaxOrNaN(own, LoadDevice(row.most + unit));
  }
  sums.Store(ThreadIndex(), own);
  SyncBlock();
  const PageMaxima maxima(sums);
  const float largest = maxima.Largest();
  // The sink is one more key; it counts where there is another.
  row.peak = MaxOrNaN(largest, head.sink);
  // Without a z above -inf a row is empty, and broken with one that is NaN or inf, the sink's too.
  const bool lives = largest > -kInfinity && row.peak <= kMostFloat;
  const bool broken = !lives && largest != -kInfinity;
  double top = 1.0, entropy = 0.0;
  int support = 0;
  if (lives) {
    row.many = row.all;
    if (!row.all) {
      row.reach = maxima.Reach(row.peak, head);
      top = static_cast<double>(row.reach);
      SolveSums short_parts = {row.Fill() ? 0.0 : 1.0};
      short_parts.Add(room);
      row.many = short_parts.x > 0.0;
    } else {
      SolveSums sum;
      row.ForEach([&](float z) { sum.x += static_cast<double>(expf(z - row.peak)); });
      sum.Add(room);
      top = sum.x + static_cast<double>(expf(head.sink - row.peak));
    }
    const float of_sink = row.peak - head.sink;
    TSALLIS_LOOP
    for (bool moves = !row.all; moves;) {
      const float here = static_cast<float>(top);
      SolveSums sums_here;  // of weights and slopes
      const auto add = [&](float depth) {
        const float x = here - depth;
        if (!(x > 0.0f)) return;
        const Weight weight = Weight::Of(x, head.alpha, head.power);
        sums_here.x += static_cast<double>(weight.p);
        sums_here.y += static_cast<double>(weight.u);
      };
      row.ForEach([&](float z) { add(row.peak - z); });
      if (ThreadIndex() == 0) add(of_sink);
      sums_here.Add(room);
      const auto next = static_cast<float>(
          top - (sums_here.x - 1.0) / (sums_here.y * static_cast<double>(head.power)));
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
      SolveSums counted = {static_cast<double>(support), entropy};
      counted.Add(room);
      support = static_cast<int>(counted.x);
      entropy = counted.y;
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
    // The maximum is that of the scores alone: a sink does not break it.
    const float most = largest <= kMostFloat ? largest : nan;
    StoreDevice(statistics.maximum + index,
                static_cast<double>(most) / static_cast<double>(head.unit));
  }
}

template <class Type, int D>
TSALLIS_KERNEL(kThreads)
PageValuesKernel(const PagesCall pages) {
  using Units = PageUnits<Type, D, false>;
  constexpr int kStages = PageUnitsShape<Type, D>::kStages, kBlocks = kPageUnit / 8;
  static_assert(kPageRows * D * 4 <= PageUnitsShape<Type, D>::kWarpBytes);
  // float16 has few exponents: small weights keep their digits as larger numbers.
  constexpr float kScale = Type::kNarrowRange ? 0x1p15f : 1.0f;
  const DeviceCall& call = pages.call;
  const int quad = Lane() / 4, t = Lane() % 4, own = Lane() % kPageRows;
  const PageRun rows_here = PageRun::RowsOf(pages);
  if (!Any(own < rows_here.count && LoadDevice(pages.many + rows_here.index + own) != 0)) return;
  const PageRun place = PageRun::Of(pages);

  // A lane's rows, quad and quad + 8.
  struct Row {
    bool weighs = false, all = false;
    float alpha = 1.5f, power = 2.0f, peak = 0.0f, top = 0.0f;
    const float *most = nullptr, *scores = nullptr;
  };
  Row rows[2];
  bool all = false;
  TSALLIS_UNROLL
  for (int half = 0; half < 2; ++half) {
    Row& row = rows[half];
    const int i = half * 8 + quad;
    const std::int64_t index = place.index + i;
    if (i < place.count && LoadDevice(pages.many + index) != 0) {
      const Head head = PageHead(pages, place.b, place.HeadOf(call, i));
      row.weighs = true;
      row.all = head.softmax();
      row.alpha = head.alpha;
      row.power = head.power;
      row.peak = LoadDevice(pages.solved + 2 * index);
      row.top = LoadDevice(pages.solved + 2 * index + 1);
      row.most = pages.most + index * pages.units();
      row.scores = pages.scores + index * pages.units() * kPageUnit + 2 * t;
      all = all || row.all;
    }
  }
  // With a row of softmax every unit has weights, and mostly all rows are of softmax.
  all = Any(all);
  const bool only = !Any((rows[0].weighs && !rows[0].all) || (rows[1].weighs && !rows[1].all));
  const int newest = place.units_end - 1 - WarpIndex();
  const int steps = newest < place.units_begin ? 0 : (newest - place.units_begin) / kWarps + 1;
  Units units(PageKeys::Of(pages, place.b, place.kv), call.v, call.value_dim, place);
  const auto fetch = [&](int step, int stage) {
    if (step < steps) {
      const int unit = newest - step * kWarps;
      bool takes = all;
      if (!all) {
        TSALLIS_UNROLL
        for (int half = 0; half < 2; ++half) {
          const Row& row = rows[half];
          takes = takes || (row.weighs && row.peak - LoadDevice(row.most + unit) < row.top);
        }
        takes = Any(takes);
      }
      if (takes) units.Fetch(unit, stage);
      if (step + 1 < steps) units.Find(unit - kWarps);
    }
    CommitCopies();
  };
  // A lane's scores of a unit; -inf where they have no weight and may not be there.
  const auto load = [&](int step, float(&z)[kBlocks][4]) {
    const int unit = newest - step * kWarps;
    TSALLIS_UNROLL
    for (int half = 0; half < 2; ++half) {
      const Row& row = rows[half];
      const bool stored = step < steps && row.weighs &&
                          (row.all || row.peak - LoadDevice(row.most + unit) < row.top);
      TSALLIS_UNROLL
      for (int j = 0; j < kBlocks; ++j) {
        z[j][2 * half] = z[j][2 * half + 1] = -kInfinity;
        if (!stored) continue;
        const Words2 pair =
            LoadDevice(reinterpret_cast<const Words2*>(row.scores + unit * kPageUnit + 8 * j));
        z[j][2 * half] = FloatOf(pair.w[0]);
        z[j][2 * half + 1] = FloatOf(pair.w[1]);
      }
    }
  };

  float total[D / 8][4];
  // A weight of 0 must not meet NaN. Matrix products let it, and then the sums are not finite:
  // these are made again, row by row.
  TSALLIS_LOOP
  for (bool careful = false;; careful = true) {
    Clear(total);
    float next[kBlocks][4];
    load(0, next);
    if (steps > 0) units.Find(newest);
    TSALLIS_UNROLL
    for (int step = 0; step < kStages - 1; ++step) fetch(step, step);
    int stage = 0, free = kStages - 1;
    TSALLIS_LOOP
    for (int step = 0; step < steps; ++step) {
      fetch(step + kStages - 1, free);
      float w[kBlocks][4];
      if (only) {
        TSALLIS_UNROLL
        for (int x = 0; x < 4 * kBlocks; ++x) {
          w[x / 4][x % 4] = expf(next[x / 4][x % 4] - rows[x / 2 % 2].peak);
        }
      } else {
        TSALLIS_UNROLL
        for (int x = 0; x < 4 * kBlocks; ++x) {
          const Row& row = rows[x / 2 % 2];
          const float depth = row.peak - next[x / 4][x % 4], above = row.top - depth;
          float& p = w[x / 4][x % 4];
          p = 0.0f;
          if (row.all) {
            p = expf(-depth);
          } else if (above > 0.0f) {
            p = Weight::Of(above, row.alpha, row.power).p;
          }
        }
      }
      bool any = false;
      TSALLIS_UNROLL
      for (int x = 0; x < 4 * kBlocks; ++x) {
        any = any || w[x / 4][x % 4] > 0.0f;
        w[x / 4][x % 4] *= kScale;
      }
      load(step + 1, next);
      WaitForCopies<kStages - 1>();
      SyncWarp();
      if (Any(any)) {
        const std::size_t byte = Units::StageByte(stage);
        AddWeighted<Type, D, kPageUnit>(total, w, byte, 0, !careful);
      }
      SyncWarp();  // the stage may be filled again
      free = stage;
      stage = stage + 1 == kStages ? 0 : stage + 1;
    }
    WaitForCopies<0>();
    bool finite = true;
    TSALLIS_UNROLL
    for (int x = 0; x < D / 2; ++x) finite = finite && fabsf(total[x / 4][x % 4]) <= kMostFloat;
    if (kIsFloat32<Type> || careful || !Any(!finite)) break;
  }
  // The warps' sums in place of their stages, then the block's.
  const Shared<Words2> pairs(Units::StageByte(0));
  TSALLIS_UNROLL
  for (int half = 0; half < 2; ++half) {
    TSALLIS_UNROLL
    for (int j = 0; j < D / 8; ++j) {
      pairs.Store(((half * 8 + quad) * D + 8 * j + 2 * t) / 2,
                  Words2{{BitsOf(total[j][2 * half]), BitsOf(total[j][2 * half + 1])}});
    }
  }
  SyncBlock();
  TSALLIS_LOOP
  for (int i = ThreadIndex(); i < place.count * (D / 4); i += kThreads) {
    const int r = i / (D / 4), column = i % (D / 4) * 4;
    if (column >= call.value_dim) continue;
    float sum[4] = {};
    TSALLIS_UNROLL
    for (int warp = 0; warp < kWarps; ++warp) {
      const Words4 part =
          Shared<Words4>(warp * PageUnitsShape<Type, D>::kWarpBytes).Load(r * (D / 4) + column / 4);
      TSALLIS_UNROLL
      for (int c = 0; c < 4; ++c) sum[c] += FloatOf(part.w[c]);
    }
    Words4 words;
    TSALLIS_UNROLL
    for (int c = 0; c < 4; ++c) words.w[c] = BitsOf(sum[c] * (1.0f / kScale));
    const std::int64_t to = ((place.index + r) * pages.runs + place.run) * call.value_dim + column;
    StoreDevice(reinterpret_cast<Words4*>(pages.partials + to), words);
  }
}

// One for all sizes.
template <class Type>
TSALLIS_KERNEL(kThreads)
PageSumKernel(const PagesCall pages) {
  const DeviceCall& call = pages.call;
  const std::int64_t index =
      (static_cast<std::int64_t>(BlockZ()) * call.heads + BlockY()) * call.q_len + BlockX();
  const int column = ThreadIndex() * 2;
  if (column >= call.value_dim || LoadDevice(pages.many + index) == 0) return;
  const float* partials = pages.partials + index * pages.runs * call.value_dim + column;
  float pair[2] = {};
  for (int i = 0; i < pages.runs; ++i) {
    const Words2 part =
        LoadDevice(reinterpret_cast<const Words2*>(partials + std::int64_t{i} * call.value_dim));
    TSALLIS_UNROLL
    for (int e = 0; e < 2; ++e) pair[e] += FloatOf(part.w[e]);
  }
  const double alpha = call.alphas != nullptr ? call.alphas[BlockY()] : call.alpha;
  if (alpha == 1.0) {
    const float sum = LoadDevice(pages.solved + 2 * index + 1);
    TSALLIS_UNROLL
    for (int e = 0; e < 2; ++e) pair[e] /= sum;
  }
  StoreColumns<Type>(pages.out, Offset(pages.out.strides, BlockZ(), BlockY(), BlockX()), column,
                     pair, 2);
}

}  // namespace TSALLIS_SIDE
}  // namespace tsallis::cuda
