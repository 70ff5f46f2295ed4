// Softmax on long rows of bfloat16, and entmax where rows keep too many keys for lists: keys stream
// by in strips, products run on bf16 tiles (AMX). A row of softmax keeps its running maximum and
// sum (Milakov and Gimelshein 2018; Dao et al. 2022); one of entmax has its threshold solved for
// first, by passes over the keys that find their scores anew, so that nothing of n^2 is kept.
//
// A block is 32 queries, 16 in the lanes of either of two vectors: scores lie as [keys][16 lanes],
// so that maxima, sums and exponentials stay in their lanes, and weights of neighbouring keys pair
// up as a tile wants them without a transpose. Weights enter products as the sum of two bf16
// numbers, so that a product on tiles is as good as one in float32.
//
// Adaptive temperature, forward, is the same behind a pass for each row's entropy.
//
// A key of which a value might not be finite, or a score might exceed 2^24, sends its head's rows
// to the dense kernel.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "attention/cpu/padding.h"
#include "attention/geometry.h"
#include "attention/kernels.h"
#include "attention/terms.h"
#include "core/memory.h"

namespace tsallis::stream {

inline constexpr std::int64_t kLanes = 16;
inline constexpr std::int64_t kGroups = 2;  // vectors of queries
inline constexpr std::int64_t kRows = kGroups * kLanes;
inline constexpr std::int64_t kDepth = 32;   // of a tile: keys or columns
inline constexpr std::int64_t kStrip = 128;  // keys whose scores are held at a time
// The backward pass: queries that pass over the keys together, and keys that one task of them
// takes.
inline constexpr std::int64_t kWaveRows = 512;
inline constexpr std::int64_t kRangeKeys = 512;
inline constexpr std::int64_t kTileWords = 512;  // 16-bit words of a tile of 16 rows of 64 bytes

// Widths of rows in tiles.
struct Widths {
  explicit Widths(const AttentionParams& params)
      : d_depth(PaddedDepth(params.head_dim)),
        e_depth(PaddedDepth(params.value_dim)),
        d_padded(Padded(params.head_dim)),
        e_padded(Padded(params.value_dim)) {}
  std::int64_t d_depth, e_depth;    // as the inner dimension of a product
  std::int64_t d_padded, e_padded;  // as an outer one
};

// Keys of a task of the backward pass. Each range of them has sums of its own for the queries of a
// wave, so that their number is limited.
inline std::int64_t RangeKeys(std::int64_t keys) {
  return std::max(kRangeKeys, RoundUp((keys + 63) / 64, kStrip));
}

// Keys and values of one (sequence, key head) as tiles; keys past the end are 0.
//   rows:    [keys / 16][depth / 32] tiles of 16 keys x 32 columns
//   columns: [keys / 32][padded / 16] tiles of 16 columns x 32 keys
struct PackedKv {
  Sequence sequence;
  std::int64_t kv = 0;
  std::int64_t keys = 0;
  const std::uint16_t* k_rows = nullptr;
  const std::uint16_t* v_columns = nullptr;
  const std::uint16_t* v_rows = nullptr;     // backward only
  const std::uint16_t* k_columns = nullptr;  // backward only
  float k_bound = 0.0f, v_bound = 0.0f;      // largest magnitudes; infinite or NaN if any is
};

// 16-bit words of the four arrays of tiles of a head, in the order of PackedKv.
struct PackedSizes {
  PackedSizes(const AttentionParams& params, std::int64_t keys, bool backward) {
    const Widths widths(params);
    const std::int64_t padded = RoundUp(keys, kDepth);
    k_rows = padded * widths.d_depth;
    v_columns = backward ? 0 : padded * widths.e_padded;
    v_rows = backward ? padded * widths.e_depth : 0;
    k_columns = backward ? padded * widths.d_padded : 0;
  }
  std::int64_t All() const { return k_rows + v_columns + v_rows + k_columns; }
  std::int64_t k_rows, v_columns, v_rows, k_columns;
};

// Heads are packed in groups that fit.
inline constexpr std::size_t kPackedBytes = std::size_t{64} << 20;

struct StreamCall {
  const AttentionParams& params;
  const AttentionOutputs* outputs = nullptr;      // forward
  const AttentionGradients* gradients = nullptr;  // backward
  DistanceTable distances;
  bool wants_scores = false;  // a gradient that goes through the scores
};

// Memory of one thread.
struct Scratch {
  explicit Scratch(const AttentionParams& params);
  static std::int64_t Floats(const AttentionParams& params);

  hwy::AlignedFreeUniquePtr<float[]> memory;
  float* scores;         // [kGroups][kStrip][kLanes]
  float* gradients;      // the same: of the weights
  float* products;       // the same: of queries and keys
  std::uint32_t* pairs;  // of weights: [2 parts][kStrip / 32][kGroups] tiles of 16 pairs x 16 lanes
  // Holds weights and the gradients of scores: each [2 parts][kStrip / 16] tiles of 16 keys x 32
  // lanes.
  std::uint16_t* rows;
  std::uint16_t* halves;   // rows on their way in: [kRows][largest depth]
  std::uint32_t* columns;  // of q: [kGroups][d_depth / 32] tiles of 16 pairs of columns x 16 lanes
  float* sums;             // [largest padded / 16][kGroups] tiles of 16 columns x 16 lanes
  float* block;            // rows on their way out: [kLanes][largest padded]
};

// The rows of one query head in a wave of the backward pass, ready for products; one block after
// the other.
struct WaveBlock {
  std::uint32_t* q_columns = nullptr;      // as Scratch::columns
  std::uint32_t* d_out_columns = nullptr;  // the same of d_out, [kGroups][e_depth / 32]
  std::uint32_t* q_pairs = nullptr;        // pairs of queries: [16][d_padded]
  std::uint32_t* d_out_pairs = nullptr;    // [16][e_padded]
  float* tau = nullptr;                    // in units of z, [2 parts][kRows]; +inf: no weight
  float* mean = nullptr;                   // sum_j p_j dp_j: [kRows]
};

// Functions that one instruction set provides; null where it cannot.
struct Functions {
  // Packs keys [begin, end), a multiple of 32 from the first on.
  void (*pack)(const AttentionParams& params, const PackedKv& head, std::int64_t begin,
               std::int64_t end, bool backward, float* k_bound, float* v_bound) = nullptr;
  // Rows [q_begin, q_begin + count) of query head h. False: something might not be finite, or
  // a threshold was not found; nothing is written.
  bool (*forward)(const StreamCall& call, const PackedKv& head, std::int64_t h,
                  std::int64_t q_begin, std::int64_t count, Scratch& scratch) = nullptr;
  // Fills `block` for the same rows. False as above.
  bool (*prepare)(const StreamCall& call, const PackedKv& head, std::int64_t h,
                  std::int64_t q_begin, std::int64_t count, Scratch& scratch,
                  const WaveBlock& block) = nullptr;
  // Adds what keys [begin, end) and these rows give each other: dk: [keys][d_padded] and dv:
  // [keys][e_padded] from the sequence's first key on, dq: [d_padded / 16][kGroups] tiles as
  // Scratch::sums; dc, [kRows], is set to the gradient of c / scale; all may be null. Returns the
  // gradient of the head's slope.
  double (*gradients)(const StreamCall& call, const PackedKv& head, std::int64_t h,
                      std::int64_t q_begin, std::int64_t count, std::int64_t begin,
                      std::int64_t end, Scratch& scratch, const WaveBlock& block, float* dk,
                      float* dv, float* dq, float* dc) = nullptr;
  // Stores the sum of `parts` such dq, `stride` floats apart.
  void (*finish)(const StreamCall& call, const PackedKv& head, std::int64_t h, std::int64_t q_begin,
                 std::int64_t count, Scratch& scratch, const float* dq, std::int64_t parts,
                 std::int64_t stride) = nullptr;
  void (*store)(const float* values, std::int64_t padded, std::int64_t count, std::int64_t columns,
                const MutableArray4& array, std::int64_t b, std::int64_t h,
                std::int64_t row) = nullptr;
};
Functions GetFunctions(bool emulated);

// The kernel's passes, on tiles of the processor or emulated ones.
void Forward(bool emulated, const Context& context, const AttentionParams& params,
             const AttentionOutputs& outputs, const std::vector<RowBlock>& rows,
             std::vector<RowBlock>* remaining);
void Backward(bool emulated, const Context& context, const AttentionParams& params,
              const AttentionGradients& gradients, const std::vector<KeyHead>& key_heads,
              HeadSums* heads, std::vector<KeyHead>* remaining);

}  // namespace tsallis::stream
