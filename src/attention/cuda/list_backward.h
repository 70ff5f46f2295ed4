// Backward on lists: rows first (dp, ds, dq), then keys (dk, dv) over the lists sorted by key. No
// atomics, and every sum has one order.
//
// Entries are sorted in one pass: tasks of kTaskRows rows count their entries for each bucket of
// kBucket keys, a scan turns the counts into places, and the tasks put their entries there. Within
// a bucket entries ascend by row, and the warp that owns a key picks that key's entries.
#pragma once

#include <cstdint>

#include "attention/cuda/call.h"
#include "attention/cuda/gradients.h"

namespace tsallis::cuda::inline TSALLIS_SIDE {

inline constexpr int kTaskRows = 128, kBucket = 64;

TSALLIS_DEVICE int DivideUp(int a, int b) { return (a + b - 1) / b; }

// ---- rows ---------------------------------------------------------------------------------------

inline constexpr std::size_t kRowsSharedBytes = kWarps * kList * 4;

// A warp takes a row; D / 8 lanes an entry, 256 / D entries at once.
template <class Type, int D>
TSALLIS_KERNEL(kThreads)
ListRowsKernel(const BackwardCall backward) {
  constexpr int kLanes = D / 8, kAtOnce = kWarp / kLanes;
  const Call& call = backward.call;
  const int warp = WarpIndex(), part = Lane() / kLanes, column = Lane() % kLanes * 8;
  const BlockPlace place =
      BlockPlace::Of(call, call.ranges.q_begin, false, BlockX(), BlockZ(), kWarps);
  if (!place.any) return;
  const Head head = Head::Of(call, place.b, BlockY());
  const std::int64_t row = place.first + warp;
  if (row >= head.sequence.q.end) return;
  const std::int64_t index = head.Index(call, row), b = head.sequence.array_batch;
  const int count = LoadDevice(backward.lists.counts + index);
  if (count < 0) return;
  const double tau = LoadDevice(backward.tau + index);
  const std::uint32_t* keys = backward.lists.keys + index * kList;
  const float* weights = backward.lists.weights + index * kList;
  const Shared<float> dps = Shared<float>(0).From(warp * kList);
  const auto k = Rows<Type>::Of(call.k, b, head.kv), v = Rows<Type>::Of(call.v, b, head.kv);
  const bool has_k = column < call.head_dim, has_v = column < call.value_dim;
  float d_out[8] = {}, q[8] = {};
  if (has_v) LoadColumns<Type>(Rows<Type>::Of(backward.d_out, b, head.h).At(row) + column, d_out);
  if (has_k) LoadColumns<Type>(Rows<Type>::Of(call.q, b, head.h).At(row) + column, q);

  const auto over_lanes = [](float x) {
    for (int bit = 1; bit < kLanes; bit *= 2) x += ShuffleXor(x, bit);
    return x;
  };
  const auto over_parts = [](float x) {
    for (int bit = kLanes; bit < kWarp; bit *= 2) x += ShuffleXor(x, bit);
    return x;
  };
  float sum_u = 0.0f, sum_dp = 0.0f;
  AlphaSums alpha_sums;
  for (int first = 0; first < count; first += kAtOnce) {
    const int i = first + part;
    const bool in = i < count;
    float dp = 0.0f;
    if (in && has_v) {
      float values[8];
      LoadColumns<Type>(v.At(LoadDevice(keys + i)) + column, values);
      TSALLIS_UNROLL
      for (int x = 0; x < 8; ++x) dp = fmaf(d_out[x], values[x], dp);
    }
    dp = over_lanes(dp);
    if (!in) continue;
    const float p = LoadDevice(weights + i), u = Weight::Slope(p, head.alpha);
    sum_u += u;
    sum_dp = fmaf(u, dp, sum_dp);
    if (backward.sums.d_alpha != nullptr) alpha_sums.Add<false>(head, p, static_cast<double>(dp));
    if (column == 0) dps.Store(i, dp);
  }
  sum_u = over_parts(sum_u);
  sum_dp = over_parts(sum_dp);
  alpha_sums.Reduce(kLanes, kWarp);
  const SinkPart sink = SinkPart::Of<false>(head, tau);
  sum_u += sink.u;
  const float mean = sum_u > 0.0f ? sum_dp / sum_u : 0.0f;
  SyncWarp();

  const float factor = head.Factor(call, row), to_product = factor * head.power;
  const bool wants_product = head.terms.softcap != 0.0f || backward.d_length_scale != nullptr;
  float dq[8] = {}, d_scale = 0.0f, d_slope = 0.0f;
  for (int first = 0; first < count; first += kAtOnce) {
    const int i = first + part;
    const bool in = i < count;
    const std::uint32_t key = in ? LoadDevice(keys + i) : 0;
    float values[8] = {}, product = 0.0f;
    if (in && has_k) LoadColumns<Type>(k.At(key) + column, values);
    if (wants_product) {
      TSALLIS_UNROLL
      for (int x = 0; x < 8; ++x) product = fmaf(q[x], values[x], product);
      product = over_lanes(product);
    }
    if (!in) continue;
    const float ds = Weight::Slope(LoadDevice(weights + i), head.alpha) * (dps.Load(i) - mean);
    const std::int64_t distance = head.sequence.Distance(row, key);
    const float dx = ThroughTerms(head, ds, factor * product, distance);
    const float w = dx * to_product;
    TSALLIS_UNROLL
    for (int x = 0; x < 8; ++x) dq[x] = fmaf(w, values[x], dq[x]);
    if (column != 0) continue;
    StoreDevice(backward.w + index * kList + i, w);
    d_scale = fmaf(dx, product, d_scale);
    d_slope -= ds * static_cast<float>(distance < 0 ? -distance : distance);
  }
  TSALLIS_UNROLL
  for (int x = 0; x < 8; ++x) dq[x] = over_parts(dq[x]);
  d_scale = over_parts(d_scale);
  d_slope = over_parts(d_slope);
  if (part != 0) return;
  if (has_k && backward.dq.data != nullptr) {
    StoreColumns<Type>(backward.dq, Offset(backward.dq.strides, b, head.h, row), column, dq, 8);
  }
  if (column != 0) return;
  if (backward.d_length_scale != nullptr) {
    StoreDevice(backward.d_length_scale + index, call.scale * static_cast<double>(d_scale));
  }
  const RowSums& sums = backward.sums;
  if (sums.d_slope != nullptr) StoreDevice(sums.d_slope + index, static_cast<double>(d_slope));
  if (sums.d_sink != nullptr) {
    StoreDevice(sums.d_sink + index, -static_cast<double>(sink.u) * static_cast<double>(mean));
  }
  if (sums.d_alpha != nullptr) {
    alpha_sums.Add<false>(head, sink.p, 0.0);
    const double gradient = alpha_sums.Gradient(head, static_cast<double>(sum_u));
    StoreDevice(sums.d_alpha + index, sum_u > 0.0f ? gradient : 0.0);
  }
}

// ---- entries by key -----------------------------------------------------------------------------

// For each array batch and key head: places [buckets, tasks], and one more, the end; entries
// [group q_len kList], of which each is a place among the group's lists and a key.
struct SortCall {
  Call call;
  Lists lists;
  int* places = nullptr;
  Words2* entries = nullptr;

  TSALLIS_DEVICE static int Buckets(const Call& call) { return DivideUp(call.k_len, kBucket); }
  TSALLIS_DEVICE static int Tasks(const Call& call) {
    return DivideUp(call.group() * call.q_len, kTaskRows);
  }
  TSALLIS_DEVICE int* PlacesOf(std::int64_t b, int kv) const {
    const std::int64_t size = static_cast<std::int64_t>(Buckets(call)) * Tasks(call) + 1;
    return places + (b * call.kv_heads + kv) * size;
  }
  TSALLIS_DEVICE std::int64_t FirstRow(std::int64_t b, int kv) const {
    return (b * call.heads + static_cast<std::int64_t>(kv) * call.group()) * call.q_len;
  }
};

// A warp takes a task. kPut: entries go to their places; else they are counted.
template <bool kPut>
TSALLIS_KERNEL(kWarp)
SortKernel(const SortCall sort) {
  const Call& call = sort.call;
  const int lane = Lane(), task = BlockX();
  const int buckets = SortCall::Buckets(call), tasks = SortCall::Tasks(call);
  int* places = sort.PlacesOf(BlockZ(), BlockY());
  const std::int64_t first_row = sort.FirstRow(BlockZ(), BlockY());
  const Shared<int> next(0);
  for (int i = lane; i < buckets; i += kWarp) {
    next.Store(i, kPut ? LoadDevice(places + static_cast<std::int64_t>(i) * tasks + task) : 0);
  }
  SyncWarp();
  const int rows = call.group() * call.q_len;
  for (int i = 0; i < kTaskRows; ++i) {
    const int row = task * kTaskRows + i;
    if (row >= rows) break;
    const std::int64_t index = first_row + row;
    // Rows of no sequence have counts of 0 (ZeroCountsKernel).
    const int count = LoadDevice(sort.lists.counts + index);
    for (int begin = 0; begin < count; begin += kWarp) {
      const bool in = begin + lane < count;
      const std::uint32_t key =
          in ? LoadDevice(sort.lists.keys + index * kList + begin + lane) : 0xFFFFFFFFu;
      const std::uint32_t bucket = in ? key / kBucket : 0xFFFFFFFFu;
      const std::uint32_t same = MatchAny(bucket);
      const int at = in ? next.Load(static_cast<int>(bucket)) : 0;
      SyncWarp();
      const int rank = CountBits(same & ((1u << lane) - 1u));
      if (in && rank == 0) next.Store(static_cast<int>(bucket), at + CountBits(same));
      if (kPut && in) {
        const std::int64_t place = first_row * kList + at + rank;
        const auto entry =
            static_cast<std::uint32_t>(row) * kList + static_cast<std::uint32_t>(begin + lane);
        StoreDevice(sort.entries + place, Words2{{entry, key}});
      }
      SyncWarp();
    }
  }
  if (kPut) return;
  for (int i = lane; i < buckets; i += kWarp) {
    StoreDevice(places + static_cast<std::int64_t>(i) * tasks + task, next.Load(i));
  }
}

// Counts become places: their sums so far. A block takes a key head.
template <int kOnly = 0>
TSALLIS_KERNEL(kThreads)
ScanKernel(const SortCall sort) {
  const int buckets = SortCall::Buckets(sort.call), tasks = SortCall::Tasks(sort.call);
  int* places = sort.PlacesOf(BlockZ(), BlockY());
  const std::int64_t size = static_cast<std::int64_t>(buckets) * tasks;
  const Shared<int> sums(0);  // [kWarps]
  int before = 0;
  for (std::int64_t first = 0; first < size; first += kThreads) {
    const std::int64_t i = first + ThreadIndex();
    const int here = i < size ? LoadDevice(places + i) : 0;
    int upto = here;
    for (int by = 1; by < kWarp; by *= 2) {
      const int below = ShuffleUp(upto, by, kWarp);
      if (Lane() >= by) upto += below;
    }
    SyncBlock();  // the sums have been read
    if (Lane() == kWarp - 1) sums.Store(WarpIndex(), upto);
    SyncBlock();
    int all = 0, of_warps = 0;
    for (int warp = 0; warp < kWarps; ++warp) {
      const int sum = sums.Load(warp);
      if (warp < WarpIndex()) of_warps += sum;
      all += sum;
    }
    if (i < size) StoreDevice(places + i, before + of_warps + upto - here);
    before += all;
  }
  if (ThreadIndex() == 0) StoreDevice(places + size, before);
}

// ---- keys ---------------------------------------------------------------------------------------

// A block takes 64 keys of a sequence, a warp one after the other; dense rows' part is added.
template <class Type, int D>
TSALLIS_KERNEL(kThreads)
ListKeysKernel(const BackwardCall backward, const SortCall sort) {
  constexpr int kLanes = D / 8, kAtOnce = kWarp / kLanes;
  const Call& call = backward.call;
  const int lane = Lane(), part = lane / kLanes, column = lane % kLanes * 8;
  const BlockPlace place =
      BlockPlace::Of(call, call.ranges.k_begin, true, BlockX(), BlockZ(), kBucket);
  if (!place.any) return;
  const Sequence sequence = Head::SequenceOf(call, place.b);
  const std::int64_t b = sequence.array_batch;
  const int kv = BlockY();
  const std::int64_t first_row = sort.FirstRow(b, kv);
  const int last = static_cast<int>(place.first + kBucket < sequence.k.end ? place.first + kBucket
                                                                           : sequence.k.end);
  // A sequence's keys need not begin with a bucket.
  int begin = 0, end = 0;
  if (sort.places != nullptr) {
    const int tasks = SortCall::Tasks(call);
    const int* places = sort.PlacesOf(b, kv);
    begin = LoadDevice(places + place.first / kBucket * tasks);
    end = LoadDevice(places + (static_cast<std::int64_t>(last - 1) / kBucket + 1) * tasks);
  }
  const bool has_k = column < call.head_dim, has_v = column < call.value_dim;
  for (int key = static_cast<int>(place.first) + WarpIndex(); key < last; key += kWarps) {
    float dk[8] = {}, dv[8] = {};
    for (int from = begin; from < end; from += kWarp) {
      Words2 entry = {{0, 0xFFFFFFFFu}};
      if (from + lane < end) entry = LoadDevice(sort.entries + first_row * kList + from + lane);
      std::uint32_t hits = Ballot(entry.w[1] == static_cast<std::uint32_t>(key));
      while (hits != 0) {
        int mine = -1;
        TSALLIS_UNROLL
        for (int i = 0; i < kAtOnce; ++i) {
          const int lowest = hits != 0 ? LowestBit(hits) : -1;
          if (i == part) mine = lowest;
          hits &= hits - 1u;
        }
        const std::uint32_t at = Shuffle(entry.w[0], mine < 0 ? 0 : mine);
        if (mine < 0) continue;
        const std::int64_t list = first_row * kList + at;
        const float p = LoadDevice(backward.lists.weights + list);
        const float w = LoadDevice(backward.w + list);
        const int row = static_cast<int>(at / kList);
        const int h = kv * call.group() + row / call.q_len;
        if (has_k && w != 0.0f) {
          float q[8];
          LoadColumns<Type>(Rows<Type>::Of(call.q, b, h).At(row % call.q_len) + column, q);
          TSALLIS_UNROLL
          for (int x = 0; x < 8; ++x) dk[x] = fmaf(w, q[x], dk[x]);
        }
        if (has_v) {
          float d_out[8];
          LoadColumns<Type>(Rows<Type>::Of(backward.d_out, b, h).At(row % call.q_len) + column,
                            d_out);
          TSALLIS_UNROLL
          for (int x = 0; x < 8; ++x) dv[x] = fmaf(p, d_out[x], dv[x]);
        }
      }
    }
    const std::int64_t row = (b * call.kv_heads + kv) * call.k_len + key;
    TSALLIS_UNROLL
    for (int x = 0; x < 8; ++x) {
      for (int bit = kLanes; bit < kWarp; bit *= 2) {
        dk[x] += ShuffleXor(dk[x], bit);
        dv[x] += ShuffleXor(dv[x], bit);
      }
      if (has_k) dk[x] += LoadDevice(backward.dense_dk + row * call.head_dim + column + x);
      if (has_v) dv[x] += LoadDevice(backward.dense_dv + row * call.value_dim + column + x);
    }
    if (part != 0) continue;
    if (has_k && backward.dk.data != nullptr) {
      StoreColumns<Type>(backward.dk, Offset(backward.dk.strides, b, kv, key), column, dk, 8);
    }
    if (has_v && backward.dv.data != nullptr) {
      StoreColumns<Type>(backward.dv, Offset(backward.dv.strides, b, kv, key), column, dv, 8);
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

}  // namespace tsallis::cuda::inline TSALLIS_SIDE
