// Drawn problems for the kernels for GPUs.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "attention/geometry.h"
#include "attention/testing/problem.h"
#include "attention/testing/problem_spec.h"
#include "core/elements.h"

namespace tsallis::cuda {

// A drawn problem, moved into what the kernels serve where little is missing.
inline ProblemSpec DrawServed(std::uint64_t seed, std::int64_t most) {
  ProblemSpec spec = DrawSpec(seed, most, /*broken=*/true);
  const std::int64_t sizes[] = {8, 16, 24, 32, 40, 64, 72, 128, 136, 256};
  spec.head_dim = sizes[seed % 10];
  spec.value_dim = seed % 3 != 0 ? spec.head_dim : sizes[seed / 3 % 10];
  if (spec.q_len * spec.k_len > 2000) {
    spec.batch = std::min<std::int64_t>(spec.batch, 1);
    spec.kv_heads = 1;
    spec.group = std::min<std::int64_t>(spec.group, 2);
    if (seed % 16 != 0) {
      spec.head_dim = std::min<std::int64_t>(spec.head_dim, 40);
      spec.value_dim = std::min<std::int64_t>(spec.value_dim, 40);
    }
  }
  if (spec.map != RowMap::kSoftmax) spec.map = RowMap::kEntmax;
  const double alphas[] = {1.0, 1.1,  1.25,   1.5, 1.5, 1.5,    1.75, 2.0,
                           1.5, 1.01, 1.0001, 0.5, 1.5, 0.9999, 2.5,  4.0};
  spec.alpha = alphas[seed / 2 % 16];
  spec.padding = 8;
  if (spec.odd == ProblemSpec::Odd::kTransposed) spec.odd = ProblemSpec::Odd::kNone;
  return spec;
}

// A problem whose rows may keep hundreds of keys: more than the sweep has room for, some of them
// more than its lists in device memory have.
inline ProblemSpec DrawLong(std::uint64_t seed) {
  ProblemSpec spec = DrawServed(seed, 24);
  const bool far = seed % 4 == 1;
  spec.batch = spec.ragged == ProblemSpec::Ragged::kNone ? 1 : 2;
  spec.kv_heads = std::min<std::int64_t>(spec.kv_heads, 2);
  spec.group = spec.kv_heads == 1 ? std::min<std::int64_t>(spec.group, 2) : 1;
  spec.head_dim = std::min<std::int64_t>(spec.head_dim, far ? 24 : 136);
  spec.value_dim = std::min<std::int64_t>(spec.value_dim, far ? 24 : 136);
  spec.q_len = 1 + static_cast<std::int64_t>(seed * 29 % (far ? 20 : 90));
  spec.k_len = (far ? 9000 : 2048) + static_cast<std::int64_t>(seed * 331 % 1000);
  spec.map = RowMap::kEntmax;
  const double alphas[] = {1.5, 1.25, 1.5, 2.0, 1.5}, spreads[] = {0.12, 0.3, 0.2, 0.5};
  spec.alpha = alphas[seed % 5];
  spec.spread = spec.alpha == 2.0 ? 0.03 : spreads[seed / 4 % 4];
  if (spec.left >= 0) spec.left = 1500;
  if (spec.right >= 0) spec.right = 90;
  spec.any_length_scale = spec.bias = false;
  spec.scale_invariant = 0.0;
  if (spec.slopes) spec.scale = 0.02;
  return spec;
}

// Rows of hundreds of keys that see a score of NaN behind which bounds are raised.
inline ProblemSpec NaNInLongLists(DType dtype) {
  return {.dtype = dtype,
          .q_len = 20,
          .k_len = 4096,
          .spread = 0.3,
          .causal = true,
          .values = ProblemSpec::Values::kNaN};
}

// A problem whose rows begin from guesses: of long rows, with as many blocks of them as guesses
// take on the emulation.
inline ProblemSpec DrawGuessed(std::uint64_t seed) {
  ProblemSpec spec = {.seed = seed,
                      .kv_heads = seed % 2 == 0 ? 2 : 4,
                      .group = seed % 2 == 0 ? 2 : 1,
                      .q_len = 641,
                      .k_len = 2048 + static_cast<std::int64_t>(seed * 37 % 50)};
  const DType dtypes[] = {DType::kBFloat16, DType::kFloat16, DType::kBFloat16, DType::kFloat32};
  spec.dtype = dtypes[seed % 4];
  const std::int64_t sizes[] = {8, 16, 40, 8, 24};
  spec.head_dim = sizes[seed % 5];
  spec.value_dim = sizes[(seed + seed / 5) % 5];
  const double alphas[] = {1.5, 2.0, 1.5, 1.25, 1.75};
  spec.alpha = alphas[seed / 2 % 5];
  spec.spread = spec.alpha < 1.5 ? 4.0 : 1.0;
  spec.causal = seed % 3 != 1;
  if (seed % 4 == 2) spec.left = 1500;
  spec.sink = seed % 5 == 3;
  spec.length_scale = spec.any_length_scale = seed % 3 == 0;
  const ProblemSpec::Ragged raggeds[] = {ProblemSpec::Ragged::kNone, ProblemSpec::Ragged::kPacked,
                                         ProblemSpec::Ragged::kNone, ProblemSpec::Ragged::kMiddle};
  spec.ragged = raggeds[seed / 2 % 4];
  if (spec.ragged != ProblemSpec::Ragged::kNone) spec.batch = 3;
  spec.gaps = spec.ragged == ProblemSpec::Ragged::kPacked;
  spec.garbage = seed % 7 == 0;
  return spec;
}

// Replaces elements of q or k by value(head, row, column, as it is).
template <class Value>
void Replace(Problem* problem, ConstArray4 AttentionParams::*array, const Value& value) {
  const ProblemSpec& spec = problem->spec();
  const bool keys = array == &AttentionParams::k;
  for (std::int64_t h = 0; h < spec.kv_heads * (keys ? 1 : spec.group); ++h) {
    for (std::int64_t row = 0; row < (keys ? spec.k_len : spec.q_len); ++row) {
      for (std::int64_t x = 0; x < spec.head_dim; ++x) {
        const ConstArray4& from = problem->params().*array;
        const std::int64_t at = Offset(from.strides, 0, h, row, x);
        double rounded = 0.0;  // an element of any type
        StoreElement(&rounded, from.dtype, 0,
                     value(h, row, x, LoadElement<double>(from.data, from.dtype, at)));
        const double after = LoadElement<double>(&rounded, from.dtype, 0);
        for (AttentionParams* params : {&problem->params(), &problem->wide()}) {
          const ConstArray4& to = params->*array;
          StoreElement(const_cast<void*>(to.data), to.dtype, Offset(to.strides, 0, h, row, x),
                       after);
        }
      }
    }
  }
}

// A problem whose guesses are too high: the queries of its pilots look for one key alone, from
// which all others turn away, the further above all others the greater `strength` is.
inline ProblemSpec MisledSpec(DType dtype, double spread, bool sink) {
  return {.seed = 4,
          .dtype = dtype,
          .kv_heads = 2,
          .group = 2,
          .q_len = 641,
          .k_len = 2048,
          .head_dim = 8,
          .value_dim = 8,
          .spread = spread,
          .sink = sink};
}
inline void MisleadPilots(Problem* problem, double strength) {
  Replace(problem, &AttentionParams::k,
          [](std::int64_t, std::int64_t row, std::int64_t x, double value) {
            return row == 7 ? (x == 0 ? 12.0 : 0.0) : value;
          });
  Replace(problem, &AttentionParams::q,
          [&](std::int64_t, std::int64_t row, std::int64_t x, double value) {
            const bool pilot = row / 128 % 3 == 2;
            return x == 0 ? (pilot ? strength : 0.0) : (pilot ? 0.0 : value);
          });
}

// Rows that keep 62 keys, which fill a lane of the sweep's smallest lists: 60 of the first tile,
// and two more that come to the lane that has the most. The second sweep has room for them.
inline ProblemSpec FullListsSpec(DType dtype) {
  return {.seed = 12, .dtype = dtype, .q_len = 20, .k_len = 2048, .head_dim = 128, .value_dim = 16};
}
inline void FillLists(Problem* problem) {
  const auto keeps = [](std::int64_t row) { return row < 60 || row / 2 == 640; };
  Replace(problem, &AttentionParams::k,
          [&](std::int64_t, std::int64_t row, std::int64_t x, double value) {
            return x != 0 ? value : keeps(row) ? 0.9 + 0.1 * static_cast<double>(row % 3) : -8.0;
          });
  Replace(problem, &AttentionParams::q, [](std::int64_t, std::int64_t row, std::int64_t x, double) {
    return x == 0 ? 4.0 + 0.25 * static_cast<double>(row % 3) : 0.0;
  });
}

// A problem whose backward pass has more places (tasks of rows times buckets of keys) to add up
// than a block has threads: ScanKernel goes round twice. A window keeps it small.
inline ProblemSpec ManyPlaces(DType dtype) {
  return {.seed = 7,
          .dtype = dtype,
          .group = 8,
          .q_len = 256,
          .k_len = 8320,
          .causal = true,
          .left = 20};
}

// Keys that most rows keep, more than a warp adds up alone.
inline ProblemSpec KeysOfManyRows(DType dtype, std::int64_t k_len) {
  return {.seed = 11,
          .dtype = dtype,
          .kv_heads = 2,
          .group = 8,
          .q_len = k_len == 2 ? 90 : 300,
          .k_len = k_len,
          .head_dim = 32,
          .value_dim = 24,
          .spread = 0.5};
}

// The farther a key, the larger its score: every tile brings scores above all bounds.
inline ProblemSpec RisingScores(DType dtype) {
  ProblemSpec spec = {.seed = 5, .dtype = dtype, .q_len = 40, .k_len = 320, .causal = true};
  spec.slopes = spec.negative_slopes = true;
  return spec;
}

// A problem of 256 queries and 512 keys whose mask of blocks of 8 x 8 leaves something of three of
// its tiles of 128 queries and 64 keys: one block, the tile's last. `blocks` outlives it.
inline void LeaveFewBlocks(Problem* problem, std::vector<std::uint8_t>* blocks) {
  constexpr int kColumns = 512 / 8;
  blocks->assign(256 / 8 * kColumns, 0);
  const int tiles[][2] = {{0, 1}, {0, 6}, {1, 3}};
  for (const auto& [row, column] : tiles) {
    (*blocks)[static_cast<std::size_t>((16 * row + 15) * kColumns + 8 * column + 7)] = 1;
  }
  for (AttentionParams* params : {&problem->params(), &problem->wide()}) {
    AttentionMask& mask = params->mask;
    mask.blocks = blocks->data();
    mask.block_q = mask.block_k = 8;
    mask.block_strides[2] = kColumns;
  }
}

}  // namespace tsallis::cuda
