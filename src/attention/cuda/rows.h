// Small kernels: lists of the rows that the sweep left, zeros for what belongs to no sequence,
// ranges within their axes, values that the host knows.
#pragma once

#include <cstdint>

#include "attention/cuda/call.h"
#include "attention/cuda/dense.h"

namespace tsallis::cuda {
inline namespace TSALLIS_SIDE {

// The rows of a sequence and head whose count is kDenseRow, ascending. One block for each, whose
// threads look at eight rows at once. rows: [rows], counts: [batch heads]
template <int kOnly = 0>
TSALLIS_KERNEL(kThreads)
FindDenseKernel(const DeviceCall call, const int* list_counts, int* rows, int* counts) {
  constexpr int kOwn = 8;
  const Head head = Head::Of(call, BlockZ(), BlockY());
  const Span& q = head.sequence.q;
  const std::int64_t begin = head.Index(call, q.begin);
  const Shared<int> sums(0);  // [kWarps]
  int count = 0;
  TSALLIS_LOOP
  for (std::int64_t first = 0; first < q.size(); first += kOwn * kThreads) {
    const std::int64_t mine = first + WarpIndex() * kOwn * kWarp + Lane();
    int of_lists[kOwn];
    TSALLIS_UNROLL
    for (int j = 0; j < kOwn; ++j) {
      const std::int64_t i = mine + j * kWarp;
      of_lists[j] = i < q.size() ? LoadDevice(list_counts + begin + i) : 0;
    }
    std::uint32_t found[kOwn];
    int sum = 0;
    TSALLIS_UNROLL
    for (int j = 0; j < kOwn; ++j) {
      found[j] = Ballot(of_lists[j] == kDenseRow);
      sum += CountBits(found[j]);
    }
    SyncBlock();  // the sums have been read
    if (Lane() == 0) sums.Store(WarpIndex(), sum);
    SyncBlock();
    int before = count;
    TSALLIS_UNROLL
    for (int warp = 0; warp < kWarps; ++warp) {
      const int of_warp = sums.Load(warp);
      if (warp < WarpIndex()) before += of_warp;
      count += of_warp;
    }
    TSALLIS_UNROLL
    for (int j = 0; j < kOwn; ++j) {
      if (of_lists[j] == kDenseRow) {
        StoreDevice(rows + begin + before + CountBits(found[j] & ((1u << Lane()) - 1u)),
                    static_cast<int>(q.begin + mine + j * kWarp));
      }
      before += CountBits(found[j]);
    }
  }
  if (ThreadIndex() == 0) {
    StoreDevice(counts + head.sequence.batch * call.heads + head.h, count);
  }
}

// Fills rows of a padded batch that belong to no sequence. A warp a row.
struct ClearCall {
  DeviceCall call;
  bool of_keys = false;     // rows of k's axis
  int heads = 0;            // of the arrays
  MutableArray4 arrays[2];  // data null: none
  int columns[2] = {0, 0};
  Statistics statistics;
  double* d_length_scale = nullptr;
};

template <class Type>
TSALLIS_KERNEL(kThreads)
ClearKernel(const ClearCall clear) {
  const DeviceCall& call = clear.call;
  const std::int64_t row = static_cast<std::int64_t>(BlockX()) * kWarps + WarpIndex();
  const Sequence sequence = Head::SequenceOf(call, BlockZ());
  const Span& inside = clear.of_keys ? sequence.k : sequence.q;
  const int length = clear.of_keys ? call.k_len : call.q_len;
  if (row >= length || (row >= inside.begin && row < inside.end)) return;
  TSALLIS_UNROLL
  for (int i = 0; i < 2; ++i) {
    const MutableArray4& array = clear.arrays[i];
    if (array.data == nullptr) continue;
    using Element = typename Type::Element;
    Element* to =
        static_cast<Element*>(array.data) + Offset(array.strides, BlockZ(), BlockY(), row);
    for (int x = Lane(); x < clear.columns[i]; x += kWarp) {
      StoreDevice(to + x * array.strides[3], Element{0});
    }
  }
  if (Lane() != 0) return;
  const std::int64_t index =
      (static_cast<std::int64_t>(BlockZ()) * clear.heads + BlockY()) * length + row;
  const Statistics& statistics = clear.statistics;
  const double minus_infinity = -static_cast<double>(kInfinity);
  if (statistics.tau != nullptr) StoreDevice(statistics.tau + index, minus_infinity);
  if (statistics.support_size != nullptr) {
    StoreDevice(statistics.support_size + index, std::int64_t{0});
  }
  if (statistics.entropy != nullptr) StoreDevice(statistics.entropy + index, 0.0);
  if (statistics.maximum != nullptr) StoreDevice(statistics.maximum + index, minus_infinity);
  if (clear.d_length_scale != nullptr) StoreDevice(clear.d_length_scale + index, 0.0);
}

// Ranges of sequences, which nobody has looked at, without what lies beyond their axis: positions
// must not count from there. Once for all kernels. cut: [4, batch], begins and ends of q, then of
// k.
template <int kOnly = 0>
TSALLIS_KERNEL(kThreads)
CutRangesKernel(const DeviceCall call, std::int64_t* cut) {
  const std::int64_t b = static_cast<std::int64_t>(BlockX()) * kThreads + ThreadIndex();
  if (b >= call.batch) return;
  const auto store = [&](const std::int64_t* begins, const std::int64_t* ends, int length,
                         std::int64_t* to) {
    const Span span = Head::Clip({begins != nullptr ? LoadDevice(begins + b) : 0,
                                  ends != nullptr ? LoadDevice(ends + b) : length},
                                 length);
    StoreDevice(to + b, span.begin);
    StoreDevice(to + call.batch + b, span.end);
  };
  const AttentionRanges& ranges = call.ranges;
  store(ranges.q_begin, ranges.q_end, call.q_len, cut);
  store(ranges.k_begin, ranges.k_end, call.k_len, cut + 2 * static_cast<std::int64_t>(call.batch));
}

// Numbers that the host knows, as an argument: no copy that a stream or a graph would have to wait
// for.
struct Doubles {
  static constexpr int kMost = 128;
  double values[kMost];
};
template <int kOnly = 0>
TSALLIS_KERNEL(kThreads)
SetDoublesKernel(double* to, const Doubles doubles, int count) {
  if (ThreadIndex() < count) StoreDevice(to + ThreadIndex(), doubles.values[ThreadIndex()]);
}

// a_d and m_d for distances -reach ... reach. a, m: [2 reach + 1]
template <int kOnly = 0>
TSALLIS_KERNEL(kThreads)
DistancesKernel(DistanceLaw law, int reach, float* a, float* m) {
  const int distance = BlockX() * kThreads + ThreadIndex();
  if (distance > reach) return;
  const DistanceFactor factor = DistanceFactor::At(law, distance);
  for (int side = 0; side < (distance == 0 ? 1 : 2); ++side) {
    const int at = side == 0 ? reach - distance : reach + distance;
    StoreDevice(a + at, static_cast<float>(factor.a));
    StoreDevice(m + at, static_cast<float>(factor.m));
  }
}

}  // namespace TSALLIS_SIDE
}  // namespace tsallis::cuda
