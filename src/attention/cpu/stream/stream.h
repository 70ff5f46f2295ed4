// Rows that keep many keys: softmax, adaptive temperature, and entmax where rows keep too many keys
// for lists. Keys stream by in strips. A row of softmax keeps its running maximum and sum (Milakov
// and Gimelshein 2018; Dao et al. 2022); one of entmax has its threshold solved for first, by
// passes over the keys that find their scores anew, so that nothing of n^2 is kept.
//
// Three engines compute the products. Each keeps queries in the lanes of vectors, so that maxima,
// sums and exponentials stay in their lanes:
//   tiles   bfloat16 on AMX. A block is 32 queries; scores lie as [2 groups][keys][16 lanes], and
//           weights of neighbouring keys pair up as a tile wants them without a transpose. Weights
//           enter products as the sum of two bf16 numbers, so that a product on tiles is as good as
//           one in float32.
//   floats  float32 on vectors of any length. A block is 64 queries; scores lie as [keys][queries].
//   pairs   the same, but products of two of the call's arrays multiply pairs of bf16 numbers.
//
// Adaptive temperature is softmax behind a pass for each row's entropy; backward, another pass
// finds the sums of its weights and the gradient of beta.
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
#include "attention/cpu/stream/saved_values.h"
#include "attention/geometry.h"
#include "attention/kernels.h"
#include "attention/terms.h"
#include "core/memory.h"

namespace tsallis::stream {

enum class Engine : std::uint8_t { kTiles, kEmulatedTiles, kFloats, kPairs };
inline constexpr bool OnVectors(Engine engine) {
  return engine == Engine::kFloats || engine == Engine::kPairs;
}

// The dense kernel keeps scores of 24 rows; beyond so many keys they leave the second-level cache.
// Pairs, which the dense kernel does not multiply, win earlier.
constexpr std::int64_t DenseKeys(Engine engine) { return engine == Engine::kPairs ? 4096 : 12288; }
// From so many keys on most rows may have an entropy at which adaptive temperature has no effect.
inline constexpr std::int64_t kBluntKeys = 2048;

// Queries of a block, and keys whose scores are held at a time.
struct Shape {
  std::int64_t rows, strip;
};
inline constexpr Shape kTileShape = {32, 128};
inline constexpr Shape kFloatShape = {64, 64};
inline constexpr Shape ShapeOf(Engine engine) {
  return OnVectors(engine) ? kFloatShape : kTileShape;
}
inline constexpr std::int64_t kDepth = 32;  // of a tile: keys or columns. Keys are padded to it
// The backward pass: queries that pass over the keys together, and keys that one task of them
// takes.
inline constexpr std::int64_t kWaveRows = 512;
inline constexpr std::int64_t kRangeKeys = 512;
inline constexpr std::int64_t kTileWords = 512;  // 16-bit words of a tile of 16 rows of 64 bytes

// Widths of rows in products.
struct Widths {
  explicit Widths(const AttentionParams& params)
      : d_depth(PaddedDepth(params.head_dim)),
        e_depth(PaddedDepth(params.value_dim)),
        d_padded(Padded(params.head_dim)),
        e_padded(Padded(params.value_dim)) {}
  std::int64_t d_depth, e_depth;    // as the inner dimension of a product
  std::int64_t d_padded, e_padded;  // as an outer one
};

// Keys of a task of the backward pass: few enough that all threads have some. Each range of them
// has sums of its own for the queries of a wave, so that their number is limited.
inline std::int64_t RangeKeys(std::int64_t keys) {
  const std::int64_t shared = std::min(kRangeKeys, RoundUp((keys + 15) / 16, kTileShape.strip));
  return std::max(shared, RoundUp((keys + 63) / 64, kTileShape.strip));
}

// Keys and values of one (sequence, key head), ready for products; keys past the end are 0.
//            tiles                                                       floats, pairs
//   rows     [keys / 16][depth / 32] tiles of 16 keys x 32 columns       [keys][padded] floats
//   columns  [keys / 32][padded / 16] tiles of 16 columns x 32 keys      pairs: [keys][depth] bf16
struct PackedKv {
  Sequence sequence;
  std::int64_t kv = 0;
  std::int64_t keys = 0;
  std::byte* k_rows = nullptr;           // pairs: backward
  std::byte* v_columns = nullptr;        // tiles, but entmax backward; pairs, backward
  std::byte* v_rows = nullptr;           // floats, and tiles backward
  std::byte* k_columns = nullptr;        // tiles, backward; pairs
  float k_bound = 0.0f, v_bound = 0.0f;  // largest magnitudes; infinite or NaN if any is
};

// Bytes of the four arrays of a head, in the order of PackedKv.
struct PackedSizes {
  PackedSizes(Engine engine, const AttentionParams& params, std::int64_t keys, bool backward) {
    const Widths widths(params);
    const std::int64_t padded = RoundUp(keys, kDepth);
    if (OnVectors(engine)) {
      const bool pairs = engine == Engine::kPairs;
      k_rows = pairs && !backward ? 0 : padded * widths.d_padded * 4;
      v_rows = padded * widths.e_padded * 4;
      k_columns = pairs ? padded * widths.d_depth * 2 : 0;
      v_columns = pairs && backward ? padded * widths.e_depth * 2 : 0;
      return;
    }
    k_rows = padded * widths.d_depth * 2;
    v_columns = backward && params.map == RowMap::kEntmax ? 0 : padded * widths.e_padded * 2;
    v_rows = backward ? padded * widths.e_depth * 2 : 0;
    k_columns = backward ? padded * widths.d_padded * 2 : 0;
  }
  std::int64_t All() const { return k_rows + v_columns + v_rows + k_columns; }
  std::int64_t k_rows = 0, v_columns = 0, v_rows = 0, k_columns = 0;
};

// Heads are packed in groups that fit.
inline constexpr std::int64_t kPackedBytes = std::int64_t{64} << 20;

struct StreamCall {
  const AttentionParams& params;
  const AttentionOutputs* outputs = nullptr;      // forward
  const AttentionGradients* gradients = nullptr;  // backward
  DistanceTable distances;
  SavedValues saved = {};     // softmax, and adaptive temperature
  bool wants_scores = false;  // a gradient that goes through the scores
};

// Memory of one thread. Strips of scores are [rows * strip] floats.
struct Scratch {
  Scratch() = default;  // no memory
  Scratch(Engine engine, const AttentionParams& params);
  static std::int64_t Floats(Engine engine, const AttentionParams& params);

  hwy::AlignedFreeUniquePtr<float[]> memory;
  float* scores;     // with floats, then weights
  float* gradients;  // of the weights; with floats, then of the scores
  float* products;   // of queries and keys
  // Rows on their way in: [rows][largest depth] bf16, or [rows][largest padded] floats.
  std::byte* loaded;
  // Of q. Tiles: [groups][d_depth / 32] tiles of 16 pairs of columns x 16 lanes; floats: [d_padded]
  // [rows]; pairs: [d_padded / 2][rows].
  std::byte* columns;
  // Tiles: [largest padded / 16][groups] tiles of 16 columns x 16 lanes; floats: [largest padded]
  // [rows].
  float* sums;
  float* block;  // rows on their way out: [16][largest padded]
  // Tiles alone. Pairs of weights: [2 parts][strip / 32][groups] tiles of 16 pairs x 16 lanes.
  std::uint32_t* pairs;
  // Weights and the gradients of scores: each [2 parts][strip / 16] tiles of 16 keys x 32 lanes.
  std::uint16_t* rows;
};

// The rows of one query head in a wave of the backward pass, ready for products; one block after
// the other.
struct WaveBlock {
  std::byte* q_columns = nullptr;      // as Scratch::columns
  std::byte* d_out_columns = nullptr;  // the same of d_out
  std::byte* q_rows = nullptr;         // tiles: pairs of queries, [16][d_padded]; floats:
                                       // [rows][d_padded]
  std::byte* d_out_rows = nullptr;     // the same of d_out
  float* tau = nullptr;                // in units of z, [2 parts][rows]; +inf: no weight
  float* mean = nullptr;               // sum_j p_j dp_j: [rows]
  // Of adaptive temperature: beta, and of the softmax that it sharpens tau, as above, the mean of z
  // less tau and the gradient of -H, times ln 2: [rows].
  float *beta = nullptr, *soft_tau = nullptr, *soft_mean = nullptr, *through_entropy = nullptr;
};
inline constexpr std::int64_t kRowNumbers = 8;  // of a row, as WaveBlock holds them

// Bytes of the operands of a block of a wave, in the order of WaveBlock; and the blocks of a wave.
struct WaveSizes {
  WaveSizes(Engine engine, const AttentionParams& params) {
    const Widths widths(params);
    const std::int64_t rows = ShapeOf(engine).rows;
    const bool floats = OnVectors(engine);
    blocks = kWaveRows / rows;
    const std::int64_t of_column = engine == Engine::kFloats ? 4 : 2;
    q_columns = rows * (floats ? widths.d_padded : widths.d_depth) * of_column;
    d_out_columns = rows * (floats ? widths.e_padded : widths.e_depth) * of_column;
    q_rows = rows * widths.d_padded * (floats ? 4 : 2);
    d_out_rows = rows * widths.e_padded * (floats ? 4 : 2);
  }
  std::int64_t All() const { return q_columns + d_out_columns + q_rows + d_out_rows; }
  std::int64_t blocks, q_columns, d_out_columns, q_rows, d_out_rows;
};

// Functions that one instruction set provides; null where it cannot.
struct Functions {
  // Packs keys [begin, end), multiples of kDepth from the first on.
  void (*pack)(const AttentionParams& params, const PackedKv& head, std::int64_t begin,
               std::int64_t end, bool backward, float* k_bound, float* v_bound) = nullptr;
  // Rows [q_begin, q_begin + count) of query head h. False: something might not be finite, or
  // a threshold was not found; nothing is written.
  bool (*forward)(const StreamCall& call, const PackedKv& head, std::int64_t h,
                  std::int64_t q_begin, std::int64_t count, Scratch& scratch) = nullptr;
  // Whether a few keys say that adaptive temperature has no effect on the same rows.
  bool (*looks_blunt)(const StreamCall& call, const PackedKv& head, std::int64_t h,
                      std::int64_t q_begin, std::int64_t count, Scratch& scratch) = nullptr;
  // Fills `block` for the same rows. False as above.
  bool (*prepare)(const StreamCall& call, const PackedKv& head, std::int64_t h,
                  std::int64_t q_begin, std::int64_t count, Scratch& scratch,
                  const WaveBlock& block) = nullptr;
  // Adds what keys [begin, end) and these rows give each other: dk: [keys][d_padded] and dv:
  // [keys][e_padded] from the sequence's first key on, dq as Scratch::sums; dc, [rows], is set to
  // the gradient of c / scale; all may be null. Returns the gradient of the head's slope.
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
Functions GetFunctions(Engine engine);

// The kernel's passes.
void Forward(Engine engine, const Context& context, const AttentionParams& params,
             const AttentionOutputs& outputs, const std::vector<RowBlock>& rows,
             std::vector<RowBlock>* remaining);
void Backward(Engine engine, const Context& context, const AttentionParams& params,
              const AttentionGradients& gradients, const std::vector<KeyHead>& key_heads,
              HeadSums* heads, std::vector<KeyHead>* remaining);

}  // namespace tsallis::stream
