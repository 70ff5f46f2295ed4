// The weights of every row as CSR: first how many, then columns that ascend and their values.
//
// Lists are the sweep's, whose entries a warp puts into order; dense rows go through their keys
// once more, from the first to the last, with the thresholds that the dense kernel has found.
// Counting and writing are the same code, so that they agree.
#pragma once

#include <cstdint>

#include "attention/cuda/call.h"
#include "attention/cuda/dense.h"
#include "attention/cuda/gradients.h"
#include "attention/cuda/tile.h"

namespace tsallis::cuda {
inline namespace TSALLIS_SIDE {

struct WeightsCall {
  DeviceCall call;
  Lists lists;
  DenseRows dense;
  const double* tau = nullptr;            // [rows]: of dense rows
  std::int64_t* counts = nullptr;         // [rows]: to be written, or null
  const std::int64_t* offsets = nullptr;  // [rows + 1]
  std::int64_t* columns = nullptr;
  float* values = nullptr;

  // Entry `i` of a row that begins at `begin`. An entry that has no room is left out: nobody has
  // looked at the offsets.
  TSALLIS_DEVICE void Put(std::int64_t begin, std::int64_t end, std::int64_t i, std::int64_t column,
                          float value) const {
    if (begin + i >= end) return;
    StoreDevice(columns + begin + i, column);
    StoreDevice(values + begin + i, value);
  }
};

// A warp a row, of all rows: those that belong to no sequence have a count of 0.
template <bool kPut>
TSALLIS_KERNEL(kThreads)
ListWeightsKernel(const WeightsCall weights, std::int64_t rows) {
  const std::int64_t row = static_cast<std::int64_t>(BlockX()) * kWarps + WarpIndex();
  if (row >= rows) return;
  const int count = weights.lists.counts != nullptr ? LoadDevice(weights.lists.counts + row) : 0;
  if (!kPut) {
    if (Lane() == 0 && count >= 0) StoreDevice(weights.counts + row, std::int64_t{count});
    return;
  }
  if (count <= 0) return;
  const std::uint32_t* keys = weights.lists.keys + row * kList;
  const float* values = weights.lists.weights + row * kList;
  const std::int64_t begin = LoadDevice(weights.offsets + row);
  const std::int64_t end = LoadDevice(weights.offsets + row + 1);
  for (int first = 0; first < count; first += kWarp) {
    const int i = first + Lane();
    const std::uint32_t key = i < count ? LoadDevice(keys + i) : 0;
    int before = 0;
    for (int other = 0; other < count; ++other) before += LoadDevice(keys + other) < key ? 1 : 0;
    if (i < count) weights.Put(begin, end, before, key, LoadDevice(values + i));
  }
}

template <class Type, int D>
struct WeightsShape {
  using Dense = DenseShape<Type, D>;
  static constexpr int kRows = Dense::kRows, kKeys = Dense::kKeys;
  static constexpr std::size_t kSharedBytes = Dense::kValuesAt;
};

template <class Type, int D, bool kPut>
TSALLIS_KERNEL(kThreads)
DenseWeightsKernel(const WeightsCall weights) {
  using Shape = WeightsShape<Type, D>;
  constexpr int kKeys = Shape::kKeys;
  const DeviceCall& call = weights.call;
  const int lane = Lane(), t = lane % 4;
  const Head head = Head::Of<true>(call, BlockZ(), BlockY());
  const int count = weights.dense.Count(call, head);
  const int first = (Blocks() - 1 - BlockX()) * Shape::kRows;
  if (first >= count) return;
  auto block = DenseBlock<Shape::kRows>::Of(call, weights.dense, head, first, count);
  const auto k_rows = ArrayRows<Type>::Of(call.k, head.sequence.array_batch, head.kv);
  const Shared<Words4> k_tile(Shape::Dense::kKeysAt);
  const LeftRows<Type, D, Shape::kRows> queries(
      0, ArrayRows<Type>::Of(call.q, head.sequence.array_batch, head.h), call.head_dim,
      [&](int i) { return first + i < count ? weights.dense.At(call, head, first + i) : -1; });
  CommitCopies();
  SplitTau tau[2];
  std::int64_t begin[2] = {0, 0}, end[2] = {0, 0}, kept[2] = {0, 0};
  TSALLIS_UNROLL
  for (int half = 0; half < 2; ++half) {
    DenseRow& row = block.rows[half];
    if (row.row < 0) continue;
    const std::int64_t index = head.Index(call, row.row);
    const double wide = LoadDevice(weights.tau + index);
    tau[half] = SplitTau::Of(wide);
    if (wide == -static_cast<double>(kInfinity)) row.end = row.begin;
    if (!kPut) continue;
    begin[half] = LoadDevice(weights.offsets + index);
    end[half] = LoadDevice(weights.offsets + index + 1);
  }
  TSALLIS_LOOP
  for (int key0 = block.keys_begin; key0 < block.keys_end; key0 += kKeys) {
    const TileMasks masks = block.template MasksOf<true>(call, head, key0, kKeys);
    if (!masks.any) continue;
    SyncBlock();  // the last tile has been read
    FetchTile<Type, D, kKeys>(k_tile, k_rows, call.head_dim,
                              [&](int i) { return key0 + i < block.keys_end ? key0 + i : -1; });
    CommitCopies();
    WaitForCopies<0>();
    SyncBlock();
    float s[kKeys / 8][4];
    Clear(s);
    queries.Multiply(s, k_tile);
    ToScores<true, kKeys>(call, head, masks, block.rows, key0, s);
    TSALLIS_UNROLL
    for (int half = 0; half < 2; ++half) {
      // Bit 2 j + e of a lane: column 8 j + 2 t + e of the tile.
      std::uint32_t mine = 0;
      TSALLIS_UNROLL
      for (int j = 0; j < kKeys / 8; ++j) {
        TSALLIS_UNROLL
        for (int e = 0; e < 2; ++e) {
          float& score = s[j][2 * half + e];
          score = score == -kInfinity ? 0.0f : tau[half].template WeightOf<true>(head, score).p;
          if (score > 0.0f) mine |= 1u << (2 * j + e);
        }
      }
      std::uint32_t quad[4];
      TSALLIS_UNROLL
      for (int i = 0; i < 4; ++i) quad[i] = Shuffle(mine, (lane & ~3) + i);
      TSALLIS_UNROLL
      for (int j = 0; kPut && j < kKeys / 8; ++j) {
        TSALLIS_UNROLL
        for (int e = 0; e < 2; ++e) {
          if ((mine >> (2 * j + e) & 1u) == 0) continue;
          // Counts the columns of this piece of the lanes to the left, too.
          int before = 0;
          TSALLIS_UNROLL
          for (int i = 0; i < 4; ++i) {
            const int upto = 2 * j + (i < t ? 2 : i == t ? e : 0);
            before += CountBits(quad[i] & ((1u << upto) - 1u));
          }
          weights.Put(begin[half], end[half], kept[half] + before, key0 + 8 * j + 2 * t + e,
                      s[j][2 * half + e]);
        }
      }
      TSALLIS_UNROLL
      for (int i = 0; i < 4; ++i) kept[half] += CountBits(quad[i]);
    }
  }
  WaitForCopies<0>();  // the queries', where no tile came
  TSALLIS_UNROLL
  for (int half = 0; half < 2; ++half) {
    const DenseRow& row = block.rows[half];
    if (!kPut && t == 0 && row.row >= 0) {
      StoreDevice(weights.counts + head.Index(call, row.row), kept[half]);
    }
  }
}

}  // namespace TSALLIS_SIDE
}  // namespace tsallis::cuda
