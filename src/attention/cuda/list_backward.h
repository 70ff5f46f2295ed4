// Backward on lists: rows first (dp, ds, dq), then keys (dk, dv) over the lists sorted by key. No
// atomics, and every sum has one order.
//
// Rows of arrays are read by pieces of 16 bytes, D / 8 lanes a row, four rows a lane at once: only
// many loads under way hide the time that one takes. The data of an entry alone, its key, its
// weights and addresses, is loaded and computed by one lane of 32 and handed to the others.
//
// Entries are sorted in two steps, by buckets of kBucket keys and by the keys of a bucket. Tasks of
// some rows count their entries for each bucket, scans turn the counts into places, and the tasks
// put their entries there, with all that keys need of them. Then a block counts its bucket's
// entries for each key. Both steps are stable: a key's entries ascend by row.
#pragma once

#include <cstdint>

#include "attention/cuda/call.h"
#include "attention/cuda/gradients.h"

namespace tsallis::cuda {
inline namespace TSALLIS_SIDE {

inline constexpr int kBucket = 64;
// Blocks of list rows and list keys, and entries from which on a key is the whole block's.
inline constexpr int kRowsOfBlock = 16, kKeysOfBlock = 16, kLongKey = 512;
static_assert(kList == 2 * kWarp);

TSALLIS_HOST_DEVICE inline int DivideUp(int a, int b) { return (a + b - 1) / b; }

// Says which lane reads which part of rows: D / 8 lanes a row, kTurns rows a lane.
template <class Type, int D, int kTurnsOf = 4>
struct Pieces {
  static constexpr int kTurns = kTurnsOf;
  static constexpr int kLanes = D / 8, kAtOnce = kWarp / kLanes, kBatch = kAtOnce * kTurns;
};

// Eight elements side by side, as they were loaded: the next loads need not wait for them.
template <class Type>
struct Piece8 {
  Words4 words[kIsFloat32<Type> ? 2 : 1];

  TSALLIS_DEVICE void Load(const typename Type::Element* from) {
    const auto* pieces = reinterpret_cast<const Words4*>(from);
    words[0] = LoadDevice(pieces);
    if constexpr (kIsFloat32<Type>) words[1] = LoadDevice(pieces + 1);
  }
  // Zeros unless `used`.
  TSALLIS_DEVICE void Keep(bool used) {
    TSALLIS_UNROLL
    for (Words4& four : words) {
      TSALLIS_UNROLL
      for (std::uint32_t& word : four.w) word &= used ? 0xFFFFFFFFu : 0u;
    }
  }
  TSALLIS_DEVICE float At(int i) const {
    if constexpr (kIsFloat32<Type>) {
      return FloatOf(words[i / 4].w[i % 4]);
    } else {
      const std::uint32_t pair = words[0].w[i / 2];
      return Type::ToFloat(static_cast<std::uint16_t>(i % 2 == 0 ? pair : pair >> 16));
    }
  }
};

// ---- rows ---------------------------------------------------------------------------------------

// <own, the row of its key> for each of `count` entries, in the entry's lane. own: the lane's
// columns. key: the lane's entry's, of lanes without one another's. The warp calls it.
template <class Type, int D>
TSALLIS_DEVICE float ProductsOf(const ArrayRows<Type>& rows, const float (&own)[8], bool has_column,
                                std::uint32_t key, int count) {
  using Lanes = Pieces<Type, D>;
  constexpr int kLanes = Lanes::kLanes, kTurns = Lanes::kTurns;
  const int lane = Lane(), part = lane / kLanes, column = lane % kLanes;
  const typename Type::Element* from = rows.data + (has_column ? column * 8 : 0);
  // The lane in which the batch leaves the product of this lane's entry.
  const int mine = lane % Lanes::kBatch;
  const int source = mine % Lanes::kAtOnce * kLanes + mine / Lanes::kAtOnce * (kLanes / kTurns);
  float product = 0.0f;
  TSALLIS_LOOP
  for (int first = 0; first < count; first += Lanes::kBatch) {
    Piece8<Type> pieces[kTurns];
    TSALLIS_UNROLL
    for (int turn = 0; turn < kTurns; ++turn) {
      const std::uint32_t row = Shuffle(key, first + turn * Lanes::kAtOnce + part);
      pieces[turn].Load(from + static_cast<std::int64_t>(row) * rows.stride);
    }
    SyncWarp();  // as in AddBatch: for ptxas
    float sums[kTurns] = {};
    TSALLIS_UNROLL
    for (int turn = 0; turn < kTurns; ++turn) {
      TSALLIS_UNROLL
      for (int x = 0; x < 8; ++x) sums[turn] = fmaf(own[x], pieces[turn].At(x), sums[turn]);
      sums[turn] = has_column ? sums[turn] : 0.0f;
    }
    // Over a row's lanes: half of them go on with half of the four sums, then a quarter with one.
    static_assert(kTurns == 4 && kLanes >= 4);
    const bool upper = (column & (kLanes / 2)) != 0, odd = (column & (kLanes / 4)) != 0;
    const float low =
        (upper ? sums[2] : sums[0]) + ShuffleXor(upper ? sums[0] : sums[2], kLanes / 2);
    const float high =
        (upper ? sums[3] : sums[1]) + ShuffleXor(upper ? sums[1] : sums[3], kLanes / 2);
    float sum = (odd ? high : low) + ShuffleXor(odd ? low : high, kLanes / 4);
    TSALLIS_UNROLL
    for (int bit = kLanes / 8; bit > 0; bit /= 2) sum += ShuffleXor(sum, bit);
    const float here = Shuffle(sum, source);
    if (lane / Lanes::kBatch == first / Lanes::kBatch) product = here;
  }
  return product;
}

// totals += w times the row of its key, over `count` entries. Lanes without an entry have another's
// key and a weight of 0: rows of a list's keys have no infinity, which 0 would make a NaN, unless
// the row's weights are NaN.
template <class Type, int D>
TSALLIS_DEVICE void AddRowsOf(float (&totals)[8], const ArrayRows<Type>& rows, bool has_column,
                              std::uint32_t key, float w, int count) {
  using Lanes = Pieces<Type, D>;
  const int part = Lane() / Lanes::kLanes;
  const typename Type::Element* from = rows.data + (has_column ? Lane() % Lanes::kLanes * 8 : 0);
  TSALLIS_LOOP
  for (int first = 0; first < count; first += Lanes::kBatch) {
    Piece8<Type> pieces[Lanes::kTurns];
    float weights[Lanes::kTurns];
    TSALLIS_UNROLL
    for (int turn = 0; turn < Lanes::kTurns; ++turn) {
      const int i = first + turn * Lanes::kAtOnce + part;
      const std::uint32_t row = Shuffle(key, i);
      weights[turn] = Shuffle(w, i);
      pieces[turn].Load(from + static_cast<std::int64_t>(row) * rows.stride);
    }
    TSALLIS_UNROLL
    for (int turn = 0; turn < Lanes::kTurns; ++turn) {
      TSALLIS_UNROLL
      for (int x = 0; x < 8; ++x) totals[x] = fmaf(weights[turn], pieces[turn].At(x), totals[x]);
    }
  }
}

TSALLIS_DEVICE float SumOverLanes(float x) {
  TSALLIS_UNROLL
  for (int bit = 1; bit < kWarp; bit *= 2) x += ShuffleXor(x, bit);
  return x;
}

inline constexpr std::size_t kRowsSharedBytes = kWarps * kList * sizeof(Words2);

// The work of a row's warp: a lane has entries `lane` and kWarp + `lane` of those that ascend by
// key. Their order in the list is the sweep's that made it, and sums have the same bits for any.
template <class Type, int D>
TSALLIS_DEVICE void RowBackward(const BackwardCall& backward, const Head& head, std::int64_t row) {
  using Lanes = Pieces<Type, D>;
  const DeviceCall& call = backward.call;
  const int lane = Lane(), column = lane % Lanes::kLanes * 8;
  const std::int64_t index = head.Index(call, row), b = head.sequence.array_batch;
  const int count = LoadDevice(backward.lists.counts + index);
  if (count < 0) return;
  const double tau = LoadDevice(backward.tau + index);
  const bool has_k = column < call.head_dim, has_v = column < call.value_dim;
  const auto k = ArrayRows<Type>::Of(call.k, b, head.kv),
             v = ArrayRows<Type>::Of(call.v, b, head.kv);
  // A word of a key and the entry's place in the list, and its weight.
  const Shared<Words2> entries = Shared<Words2>(0).From(WarpIndex() * kList);
  std::uint32_t keys[2];
  float p[2], dp[2] = {};
  TSALLIS_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int i = half * kWarp + lane;
    const bool in = i < count;
    keys[half] = in ? LoadDevice(backward.lists.keys + index * kList + i) : 0;
    p[half] = in ? LoadDevice(backward.lists.weights + index * kList + i) : 0.0f;
  }
  int before[2] = {0, 0};
  TSALLIS_UNROLL
  for (int half = 0; half < 2; ++half) {
    TSALLIS_LOOP
    for (int i = 0; i < kWarp && half * kWarp + i < count; ++i) {
      const std::uint32_t other = Shuffle(keys[half], i);
      before[0] += other < keys[0] ? 1 : 0;
      before[1] += other < keys[1] ? 1 : 0;
    }
  }
  SyncWarp();  // the entries of the row before have been read
  TSALLIS_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int i = half * kWarp + lane;
    if (i >= count) continue;
    const auto place = static_cast<std::uint32_t>(i);
    entries.Store(before[half], {{keys[half] * kList + place, BitsOf(p[half])}});
  }
  SyncWarp();  // all lanes read what others sorted
  TSALLIS_UNROLL
  for (int half = 0; half < 2; ++half) {
    if (half * kWarp + lane >= count) continue;
    const Words2 entry = entries.Load(half * kWarp + lane);
    keys[half] = entry.w[0] / kList;
    p[half] = FloatOf(entry.w[1]);
  }
  TSALLIS_UNROLL
  for (int half = 0; half < 2; ++half) {
    const std::uint32_t key = Shuffle(keys[0], 0);
    if (half * kWarp + lane >= count) keys[half] = key;
  }
  float d_out[8] = {};
  if (has_v)
    LoadColumns<Type>(ArrayRows<Type>::Of(backward.d_out, b, head.h).At(row) + column, d_out);
  TSALLIS_LOOP
  for (int half = 0; half * kWarp < count; ++half) {
    const int rest = count - half * kWarp;
    const float products = ProductsOf<Type, D>(v, d_out, has_v, half == 0 ? keys[0] : keys[1],
                                               rest < kWarp ? rest : kWarp);
    (half == 0 ? dp[0] : dp[1]) = products;
  }

  float u[2], sum_u = 0.0f, sum_dp = 0.0f;
  TSALLIS_UNROLL
  for (int half = 0; half < 2; ++half) {
    u[half] = Weight::Slope(p[half], head.alpha);
    if (half * kWarp + lane >= count) continue;
    sum_u += u[half];
    sum_dp = fmaf(u[half], dp[half], sum_dp);
  }
  const SinkPart sink = SinkPart::Of<false>(head, tau);
  sum_u = SumOverLanes(sum_u) + sink.u;
  sum_dp = SumOverLanes(sum_dp);
  const float mean = sum_u > 0.0f ? sum_dp / sum_u : 0.0f;

  const float factor = head.Factor(call, row), to_product = factor * head.power;
  const bool wants_product = head.terms.needs_products() || backward.d_length_scale != nullptr;
  float q[8] = {}, dq[8] = {}, d_scale = 0.0f, d_slope = 0.0f;
  if (wants_product && has_k) {
    LoadColumns<Type>(ArrayRows<Type>::Of(call.q, b, head.h).At(row) + column, q);
  }
  TSALLIS_LOOP
  for (int half = 0; half * kWarp < count; ++half) {
    const int rest = count - half * kWarp, here = rest < kWarp ? rest : kWarp;
    const std::uint32_t key = half == 0 ? keys[0] : keys[1];
    float product = 0.0f;
    if (wants_product) product = ProductsOf<Type, D>(k, q, has_k, key, here);
    float w = 0.0f;
    if (lane < here) {
      const float ds = (half == 0 ? u[0] : u[1]) * ((half == 0 ? dp[0] : dp[1]) - mean);
      const std::int64_t distance = head.sequence.Distance(row, key);
      const float dx = ThroughTerms(head, ds, factor * product, distance);
      w = dx * to_product;
      const auto place = static_cast<int>(entries.Load(half * kWarp + lane).w[0] % kList);
      StoreDevice(backward.w + index * kList + place, w);
      d_scale = fmaf(dx, product, d_scale);
      d_slope -= ds * static_cast<float>(distance < 0 ? -distance : distance);
    }
    AddRowsOf<Type, D>(dq, k, has_k, key, w, here);
  }
  if (backward.dq.data != nullptr) {
    TSALLIS_UNROLL
    for (int x = 0; x < 8; ++x) {
      for (int bit = Lanes::kLanes; bit < kWarp; bit *= 2) dq[x] += ShuffleXor(dq[x], bit);
    }
    if (has_k && lane < Lanes::kLanes) {
      StoreColumns<Type>(backward.dq, Offset(backward.dq.strides, b, head.h, row), column, dq, 8);
    }
  }
  if (backward.d_length_scale != nullptr) {
    d_scale = SumOverLanes(d_scale);
    if (lane == 0) {
      StoreDevice(backward.d_length_scale + index, call.scale * static_cast<double>(d_scale));
    }
  }
  const RowSums& sums = backward.sums;
  if (sums.d_slope != nullptr) {
    d_slope = SumOverLanes(d_slope);
    if (lane == 0) StoreDevice(sums.d_slope + index, static_cast<double>(d_slope));
  }
  if (sums.d_sink != nullptr && lane == 0) {
    StoreDevice(sums.d_sink + index, -static_cast<double>(sink.u) * static_cast<double>(mean));
  }
  if (sums.d_alpha != nullptr) {
    AlphaSums alpha_sums;
    // The lane's two entries, and lane 0 the sink.
    TSALLIS_LOOP
    for (int turn = 0; turn < 3; ++turn) {
      const float weight = turn == 0 ? p[0] : turn == 1 ? p[1] : lane == 0 ? sink.p : 0.0f;
      const float product = turn == 0 ? dp[0] : turn == 1 ? dp[1] : 0.0f;
      alpha_sums.Add<false>(head, weight, static_cast<double>(product));
    }
    alpha_sums.Reduce(1, kWarp);
    const double gradient = alpha_sums.Gradient(head, static_cast<double>(sum_u));
    if (lane == 0) StoreDevice(sums.d_alpha + index, sum_u > 0.0f ? gradient : 0.0);
  }
}

// Blocks that a multiprocessor has registers for: many warps hide the time that loads take.
template <class Type>
inline constexpr int kRowsBlocks = kIsFloat32<Type> ? 5 : 6;
inline constexpr int kKeysBlocks = 5;

// A warp takes a row after the other: what a head is made of is computed once for them.
template <class Type, int D>
TSALLIS_KERNEL(kThreads, kRowsBlocks<Type>)
ListRowsKernel(const BackwardCall backward) {
  const DeviceCall& call = backward.call;
  const BlockPlace place =
      BlockPlace::Of(call, call.ranges.q_begin, false, BlockX(), BlockZ(), kRowsOfBlock);
  if (!place.any) return;
  const Head head = Head::Of(call, place.b, BlockY());
  TSALLIS_LOOP
  for (int i = WarpIndex(); i < kRowsOfBlock; i += kWarps) {
    if (place.first + i >= head.sequence.q.end) return;
    RowBackward<Type, D>(backward, head, place.first + i);
  }
}

// ---- entries by key -----------------------------------------------------------------------------

// An entry of a list, for its key: the row among the group's.
struct KeyEntry {
  enum { kRow, kKey, kWeight, kW };
};

// For each array batch and key head: places [buckets, tasks], within their bucket; bases [buckets +
// 1], of the buckets; begins [buckets kBucket + 1], of the keys; entries [group q_len kList] by
// bucket, and order, the entries' places by key.
struct SortCall {
  DeviceCall call;
  Lists lists;
  const float* w = nullptr;
  int* places = nullptr;
  int* bases = nullptr;
  int* begins = nullptr;
  Words4* entries = nullptr;
  std::uint32_t* order = nullptr;  // in place of the lists' keys, which nobody needs any more

  TSALLIS_HOST_DEVICE static int Buckets(const DeviceCall& call) {
    return DivideUp(call.k_len, kBucket);
  }
  // A multiple of a warp. The more keys, the more rows, so that there are no more counts than some
  // for each entry.
  TSALLIS_HOST_DEVICE static int TaskRows(const DeviceCall& call) {
    const int rows = DivideUp(call.k_len, 128 * kWarp) * kWarp;
    return rows < 128 ? 128 : rows;
  }
  TSALLIS_HOST_DEVICE static int Tasks(const DeviceCall& call) {
    return DivideUp(call.group() * call.q_len, TaskRows(call));
  }
  TSALLIS_DEVICE int* PlacesOf(std::int64_t b, int kv) const {
    const std::int64_t size = static_cast<std::int64_t>(Buckets(call)) * Tasks(call);
    return places + (b * call.kv_heads + kv) * size;
  }
  TSALLIS_DEVICE int* BasesOf(std::int64_t b, int kv) const {
    return bases + (b * call.kv_heads + kv) * (Buckets(call) + 1);
  }
  TSALLIS_DEVICE int* BeginsOf(std::int64_t b, int kv) const {
    const std::int64_t size = static_cast<std::int64_t>(Buckets(call)) * kBucket + 1;
    return begins + (b * call.kv_heads + kv) * size;
  }
  TSALLIS_DEVICE std::int64_t FirstRow(std::int64_t b, int kv) const {
    return (b * call.heads + static_cast<std::int64_t>(kv) * call.group()) * call.q_len;
  }
};

// Places of the lanes' entries, by the next place of each digit; those of one digit in the order of
// lanes. The warp calls it.
TSALLIS_DEVICE int TakePlace(const Shared<int>& next, bool in, std::uint32_t digit) {
  const std::uint32_t same = MatchAny(in ? digit : 0xFFFFFFFFu);
  const int at = in ? next.Load(static_cast<int>(digit)) : 0;
  SyncWarp();
  const int rank = CountBits(same & ((1u << Lane()) - 1u));
  if (in && rank == 0) next.Store(static_cast<int>(digit), at + CountBits(same));
  SyncWarp();
  return at + rank;
}

// A warp takes a task. kPut: entries go to their places; else they are counted.
template <bool kPut>
TSALLIS_KERNEL(kWarp)
SortKernel(const SortCall sort) {
  constexpr int kAhead = 4;  // rows that are loaded at once
  const DeviceCall& call = sort.call;
  const int lane = Lane(), task = BlockX();
  const int buckets = SortCall::Buckets(call), tasks = SortCall::Tasks(call);
  int* places = sort.PlacesOf(BlockZ(), BlockY());
  const int* bases = sort.BasesOf(BlockZ(), BlockY());
  const std::int64_t first_row = sort.FirstRow(BlockZ(), BlockY());
  Words4* entries = sort.entries + first_row * kList;
  const Shared<int> next(0);
  TSALLIS_LOOP
  for (int i = lane; i < buckets; i += kWarp) {
    const std::int64_t at = static_cast<std::int64_t>(i) * tasks + task;
    next.Store(i, kPut ? LoadDevice(bases + i) + LoadDevice(places + at) : 0);
  }
  SyncWarp();
  const int rows = call.group() * call.q_len, task_rows = SortCall::TaskRows(call);
  TSALLIS_LOOP
  for (int i = 0; i < task_rows; i += kWarp) {
    const int first = task * task_rows + i;
    if (first >= rows) break;
    // Rows of no sequence have counts of 0 (ZeroCountsKernel).
    const int counts =
        first + lane < rows ? LoadDevice(sort.lists.counts + first_row + first + lane) : 0;
    TSALLIS_LOOP
    for (int j = 0; j < kWarp; j += kAhead) {
      int count[kAhead];
      std::uint32_t key[kAhead][2];
      float p[kAhead][2], w[kAhead][2];
      TSALLIS_UNROLL
      for (int ahead = 0; ahead < kAhead; ++ahead) {
        count[ahead] = Shuffle(counts, j + ahead);
        TSALLIS_UNROLL
        for (int half = 0; half < 2; ++half) {
          key[ahead][half] = 0;
          p[ahead][half] = w[ahead][half] = 0.0f;
          if (half * kWarp + lane >= count[ahead]) continue;
          const std::int64_t at = (first_row + first + j + ahead) * kList + half * kWarp + lane;
          key[ahead][half] = LoadDevice(sort.lists.keys + at);
          if (!kPut) continue;
          p[ahead][half] = LoadDevice(sort.lists.weights + at);
          w[ahead][half] = LoadDevice(sort.w + at);
        }
      }
      TSALLIS_UNROLL
      for (int ahead = 0; ahead < kAhead; ++ahead) {
        TSALLIS_UNROLL
        for (int half = 0; half < 2; ++half) {
          if (half * kWarp >= count[ahead]) continue;
          const bool in = half * kWarp + lane < count[ahead];
          const int place = TakePlace(next, in, key[ahead][half] / kBucket);
          if (!kPut || !in) continue;
          StoreDevice(entries + place,
                      Words4{{static_cast<std::uint32_t>(first + j + ahead), key[ahead][half],
                              BitsOf(p[ahead][half]), BitsOf(w[ahead][half])}});
        }
      }
    }
  }
  TSALLIS_LOOP
  for (int i = kPut ? buckets : lane; i < buckets; i += kWarp) {
    StoreDevice(places + static_cast<std::int64_t>(i) * tasks + task, next.Load(i));
  }
}

// Numbers become the sums of those before them; what the sum of all is. The block calls it. sums:
// [kWarps]
TSALLIS_DEVICE int ScanNumbers(const Shared<int>& sums, int* numbers, int size) {
  int before = 0;
  TSALLIS_LOOP
  for (int first = 0; first < size; first += kThreads) {
    const int i = first + ThreadIndex();
    const int here = i < size ? LoadDevice(numbers + i) : 0;
    int upto = here;
    TSALLIS_UNROLL
    for (int by = 1; by < kWarp; by *= 2) {
      const int below = ShuffleUp(upto, by, kWarp);
      if (Lane() >= by) upto += below;
    }
    SyncBlock();  // the sums have been read
    if (Lane() == kWarp - 1) sums.Store(WarpIndex(), upto);
    SyncBlock();
    int all = 0, of_warps = 0;
    TSALLIS_UNROLL
    for (int warp = 0; warp < kWarps; ++warp) {
      const int sum = sums.Load(warp);
      if (warp < WarpIndex()) of_warps += sum;
      all += sum;
    }
    if (i < size) StoreDevice(numbers + i, before + of_warps + upto - here);
    before += all;
  }
  return before;
}

// A block takes a bucket's counts; or, behind that, the buckets' sums.
template <bool kOfBuckets>
TSALLIS_KERNEL(kThreads)
ScanKernel(const SortCall sort) {
  const int buckets = SortCall::Buckets(sort.call), tasks = SortCall::Tasks(sort.call);
  int* bases = sort.BasesOf(BlockZ(), BlockY());
  int* places = sort.PlacesOf(BlockZ(), BlockY()) + static_cast<std::int64_t>(BlockX()) * tasks;
  const int sum =
      ScanNumbers(Shared<int>(0), kOfBuckets ? bases : places, kOfBuckets ? buckets : tasks);
  if (ThreadIndex() == 0) StoreDevice(bases + (kOfBuckets ? buckets : BlockX()), sum);
}

inline constexpr std::size_t kOrderSharedBytes = kWarps * kBucket * sizeof(int);

// A block takes a bucket, a warp a run of its entries: it counts them for each key, and behind the
// sums over keys and warps puts their places there.
template <int kOnly = 0>
TSALLIS_KERNEL(kThreads)
OrderKernel(const SortCall sort) {
  constexpr int kAhead = 4;
  static_assert(kBucket == 2 * kWarp);
  const int lane = Lane(), warp = WarpIndex(), bucket = BlockX();
  const int* bases = sort.BasesOf(BlockZ(), BlockY());
  const int begin = LoadDevice(bases + bucket), end = LoadDevice(bases + bucket + 1);
  const std::int64_t first = sort.FirstRow(BlockZ(), BlockY()) * kList;
  const auto* words = reinterpret_cast<const std::uint32_t*>(sort.entries + first);
  std::uint32_t* order = sort.order + first;
  const Shared<int> all(0);  // [kWarps, kBucket]
  const Shared<int> next = all.From(warp * kBucket);
  next.Store(lane, 0);
  next.Store(kWarp + lane, 0);
  SyncWarp();
  const int each = DivideUp(end - begin, kWarps), from = begin + warp * each;
  const int to = from + each < end ? from + each : end;
  TSALLIS_LOOP
  for (int put = 0; put < 2; ++put) {
    TSALLIS_LOOP
    for (int i = from; i < to; i += kAhead * kWarp) {
      std::uint32_t digits[kAhead];
      TSALLIS_UNROLL
      for (int ahead = 0; ahead < kAhead; ++ahead) {
        const int at = i + ahead * kWarp + lane;
        digits[ahead] =
            at < to ? LoadDevice(words + std::int64_t{at} * 4 + KeyEntry::kKey) % kBucket : 0;
      }
      TSALLIS_UNROLL
      for (int ahead = 0; ahead < kAhead; ++ahead) {
        if (i + ahead * kWarp >= to) break;
        const int at = i + ahead * kWarp + lane;
        const int place = TakePlace(next, at < to, digits[ahead]);
        if (put != 0 && at < to) StoreDevice(order + place, static_cast<std::uint32_t>(at));
      }
    }
    if (put != 0) return;
    SyncBlock();
    if (warp == 0) {
      // A lane takes two keys.
      int sums[2] = {0, 0};
      TSALLIS_UNROLL
      for (int i = 0; i < 2 * kWarps; ++i)
        sums[i % 2] += all.Load(i / 2 * kBucket + 2 * lane + i % 2);
      int upto = sums[0] + sums[1];
      TSALLIS_UNROLL
      for (int by = 1; by < kWarp; by *= 2) {
        const int below = ShuffleUp(upto, by, kWarp);
        if (lane >= by) upto += below;
      }
      int places[2] = {begin + upto - sums[0] - sums[1], begin + upto - sums[1]};
      int* begins = sort.BeginsOf(BlockZ(), BlockY()) + bucket * kBucket;
      TSALLIS_UNROLL
      for (int i = 0; i < 2; ++i) StoreDevice(begins + 2 * lane + i, places[i]);
      if (bucket == Blocks() - 1 && lane == 0) StoreDevice(begins + kBucket, end);
      TSALLIS_UNROLL
      for (int i = 0; i < 2 * kWarps; ++i) {
        const int at = i / 2 * kBucket + 2 * lane + i % 2, counted = all.Load(at);
        all.Store(at, places[i % 2]);
        places[i % 2] += counted;
      }
    }
    SyncBlock();
  }
}

// ---- keys ---------------------------------------------------------------------------------------

// A warp's 32 entries (where their rows of q and d_out begin, w and p), and for keys of the whole
// block the warps' sums.
template <int D>
struct ListKeysShape {
  static constexpr std::size_t kAddressesAt = 0, kWeightsAt = kThreads * sizeof(Words4);
  static constexpr std::size_t kSumsAt = kWeightsAt + kThreads * sizeof(Words2);
  static constexpr std::size_t kSharedBytes = kSumsAt + kWarps * 2 * D * sizeof(float);
};

// One key's sums: a lane's columns of dk and dv, over every kAtOnce-th entry.
struct KeySums {
  float dk[8], dv[8];

  TSALLIS_DEVICE void Clear() {
    TSALLIS_UNROLL
    for (int x = 0; x < 8; ++x) dk[x] = dv[x] = 0.0f;
  }
};

// The entries of one key head's keys.
template <class Type, int D>
class EntriesOfKeys {
 public:
  // Two rows an entry: of float32 half as many entries at once.
  using Lanes = Pieces<Type, D, kIsFloat32<Type> ? 2 : 4>;
  using Shape = ListKeysShape<D>;

  TSALLIS_DEVICE EntriesOfKeys(const BackwardCall& backward, const SortCall& sort, std::int64_t b,
                               int kv)
      : entries_(sort.entries + sort.FirstRow(b, kv) * kList),
        order_(sort.order + sort.FirstRow(b, kv) * kList),
        q_(ArrayRows<Type>::Of(backward.call.q, b, kv * backward.call.group())),
        d_out_(ArrayRows<Type>::Of(backward.d_out, b, kv * backward.call.group())),
        q_head_(backward.call.q.strides[1]),
        d_out_head_(backward.d_out.strides[1]),
        q_len_(backward.call.q_len),
        has_k_(Lane() % Lanes::kLanes * 8 < backward.call.head_dim),
        has_v_(Lane() % Lanes::kLanes * 8 < backward.call.value_dim) {}

  // Adds entries [begin, end), 32 of every `step`. The warp calls it.
  TSALLIS_DEVICE void Add(KeySums* sums, int begin, int end, int step) const {
    const int lane = Lane();
    const Shared<Words4> addresses = Shared<Words4>(Shape::kAddressesAt).From(WarpIndex() * kWarp);
    const Shared<Words2> weights = Shared<Words2>(Shape::kWeightsAt).From(WarpIndex() * kWarp);
    const auto place_of = [&](int from) {
      return from + lane < end ? LoadDevice(order_ + from + lane) : kNone;
    };
    const auto entry_at = [&](std::uint32_t place) {
      return place != kNone ? LoadDevice(entries_ + place) : Words4{{0, 0, 0, 0}};
    };
    // Entries are loaded while those before them are added.
    Words4 entry = entry_at(place_of(begin));
    std::uint32_t place = place_of(begin + step);
    TSALLIS_LOOP
    for (int from = begin; from < end; from += step) {
      const int row = static_cast<int>(entry.w[KeyEntry::kRow]), h = row / q_len_;
      const auto q = Address(q_.At(row - h * q_len_) + h * q_head_);
      const auto d_out = Address(d_out_.At(row - h * q_len_) + h * d_out_head_);
      addresses.Store(
          lane, {{static_cast<std::uint32_t>(q), static_cast<std::uint32_t>(q >> 32),
                  static_cast<std::uint32_t>(d_out), static_cast<std::uint32_t>(d_out >> 32)}});
      weights.Store(lane, {{entry.w[KeyEntry::kW], entry.w[KeyEntry::kWeight]}});
      SyncWarp();
      entry = entry_at(place);
      place = place_of(from + 2 * step);
      const int count = end - from < kWarp ? end - from : kWarp;
      int first = 0;
      TSALLIS_LOOP
      for (; first + Lanes::kBatch <= count; first += Lanes::kBatch) {
        AddBatch<false>(sums, addresses, weights, first, count);
      }
      if (first < count) AddBatch<true>(sums, addresses, weights, first, count);
    }
  }

 private:
  using Element = typename Type::Element;
  static constexpr std::uint32_t kNone = 0xFFFFFFFFu;

  // Adds the kBatch entries from `first` on. kCut: those before `count`; the others have addresses
  // that may be read, and weights of 0, which infinities would make a NaN.
  template <bool kCut>
  TSALLIS_DEVICE void AddBatch(KeySums* sums, const Shared<Words4>& addresses,
                               const Shared<Words2>& weights, int first, int count) const {
    const int part = Lane() / Lanes::kLanes, column = Lane() % Lanes::kLanes * 8;
    const int k_column = has_k_ ? column : 0, v_column = has_v_ ? column : 0;
    Piece8<Type> of_q[Lanes::kTurns], of_d_out[Lanes::kTurns];
    float w[Lanes::kTurns], p[Lanes::kTurns];
    TSALLIS_UNROLL
    for (int turn = 0; turn < Lanes::kTurns; ++turn) {
      const int i = first + turn * Lanes::kAtOnce + part;
      const Words4 address = addresses.Load(i);
      const Words2 weight = weights.Load(i);
      w[turn] = FloatOf(weight.w[0]);
      p[turn] = FloatOf(weight.w[1]);
      of_q[turn].Load(RowAt(address.w[0], address.w[1]) + k_column);
      of_d_out[turn].Load(RowAt(address.w[2], address.w[3]) + v_column);
      if (kCut) of_q[turn].Keep(i < count);
      if (kCut) of_d_out[turn].Keep(i < count);
    }
    // The entries have been read: others may be written. And without it ptxas moves loads behind
    // sums, one by one, to save registers.
    SyncWarp();
    TSALLIS_UNROLL
    for (int turn = 0; turn < Lanes::kTurns; ++turn) {
      TSALLIS_UNROLL
      for (int x = 0; x < 8; ++x) {
        sums->dk[x] = fmaf(w[turn], of_q[turn].At(x), sums->dk[x]);
        sums->dv[x] = fmaf(p[turn], of_d_out[turn].At(x), sums->dv[x]);
      }
    }
  }

  TSALLIS_DEVICE static std::uint64_t Address(const Element* row) {
    return static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(row));
  }
  TSALLIS_DEVICE static const Element* RowAt(std::uint32_t low, std::uint32_t high) {
    const std::uint64_t row = static_cast<std::uint64_t>(high) << 32 | low;
    return reinterpret_cast<const Element*>(static_cast<std::uintptr_t>(row));
  }

  const Words4* entries_;
  const std::uint32_t* order_;
  ArrayRows<Type> q_, d_out_;
  std::int64_t q_head_, d_out_head_;
  int q_len_;
  bool has_k_, has_v_;
};

// A warp takes a key after the other. Of a key with many entries every warp of the block takes a
// part, and the first adds the parts up. Dense rows' part is added.
template <class Type, int D>
TSALLIS_KERNEL(kThreads, kKeysBlocks)
ListKeysKernel(const BackwardCall backward, const SortCall sort) {
  using Entries = EntriesOfKeys<Type, D>;
  constexpr int kLanes = Entries::Lanes::kLanes;
  const DeviceCall& call = backward.call;
  const int lane = Lane(), warp = WarpIndex(), column = lane % kLanes * 8, kv = BlockY();
  const BlockPlace place =
      BlockPlace::Of(call, call.ranges.k_begin, true, BlockX(), BlockZ(), kKeysOfBlock);
  if (!place.any) return;
  const Sequence sequence = Head::SequenceOf(call, place.b);
  const std::int64_t b = sequence.array_batch;
  const int first = static_cast<int>(place.first);
  const int last = static_cast<int>(first + kKeysOfBlock < sequence.k.end ? first + kKeysOfBlock
                                                                          : sequence.k.end);
  const bool has_k = column < call.head_dim, has_v = column < call.value_dim;
  const bool sparse = sort.places != nullptr;
  const Entries entries(backward, sort, b, kv);
  const int* begins = sparse ? sort.BeginsOf(b, kv) : nullptr;
  const Shared<float> parts = Shared<float>(ListKeysShape<D>::kSumsAt).From(column);
  // First the warps' keys, then the block's.
  TSALLIS_LOOP
  for (int whole = 0; whole < (sparse ? 2 : 1); ++whole) {
    TSALLIS_LOOP
    for (int key = first + (whole != 0 ? 0 : warp); key < last; key += whole != 0 ? 1 : kWarps) {
      const int begin = sparse ? LoadDevice(begins + key) : 0;
      const int end = sparse ? LoadDevice(begins + key + 1) : 0;
      if ((end - begin > kLongKey) != (whole != 0)) continue;
      KeySums sums;
      sums.Clear();
      entries.Add(&sums, begin + (whole != 0 ? warp * kWarp : 0), end,
                  whole != 0 ? kThreads : kWarp);
      TSALLIS_UNROLL
      for (int x = 0; x < 8; ++x) {
        for (int bit = kLanes; bit < kWarp; bit *= 2) {
          sums.dk[x] += ShuffleXor(sums.dk[x], bit);
          sums.dv[x] += ShuffleXor(sums.dv[x], bit);
        }
      }
      if (whole != 0) {
        TSALLIS_UNROLL
        for (int x = 0; x < 8 && lane < kLanes; ++x) {
          parts.Store(2 * warp * D + x, sums.dk[x]);
          parts.Store((2 * warp + 1) * D + x, sums.dv[x]);
        }
        SyncBlock();
        sums.Clear();
        TSALLIS_UNROLL
        for (int i = 0; i < kWarps && warp == 0; ++i) {
          TSALLIS_UNROLL
          for (int x = 0; x < 8; ++x) {
            sums.dk[x] += parts.Load(2 * i * D + x);
            sums.dv[x] += parts.Load((2 * i + 1) * D + x);
          }
        }
        SyncBlock();  // the next key's parts may be written
        if (warp != 0) continue;
      }
      if (lane >= kLanes) continue;
      const std::int64_t row = (b * call.kv_heads + kv) * call.k_len + key;
      if (has_k && backward.dk.data != nullptr) {
        Piece8<Float32> dense;
        dense.Load(backward.dense_dk + row * call.head_dim + column);
        TSALLIS_UNROLL
        for (int x = 0; x < 8; ++x) sums.dk[x] += dense.At(x);
        StoreColumns<Type>(backward.dk, Offset(backward.dk.strides, b, kv, key), column, sums.dk,
                           8);
      }
      if (has_v && backward.dv.data != nullptr) {
        Piece8<Float32> dense;
        dense.Load(backward.dense_dv + row * call.value_dim + column);
        TSALLIS_UNROLL
        for (int x = 0; x < 8; ++x) sums.dv[x] += dense.At(x);
        StoreColumns<Type>(backward.dv, Offset(backward.dv.strides, b, kv, key), column, sums.dv,
                           8);
      }
    }
  }
}

// Rows of a packed batch, or beyond a sequence, have no lists: their counts are not set otherwise.
template <int kOnly = 0>
TSALLIS_KERNEL(kThreads)
ZeroCountsKernel(int* counts, std::int64_t rows) {
  const std::int64_t i = static_cast<std::int64_t>(BlockX()) * kThreads + ThreadIndex();
  if (i < rows) StoreDevice(counts + i, 0);
}

}  // namespace TSALLIS_SIDE
}  // namespace tsallis::cuda
