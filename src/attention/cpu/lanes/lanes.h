// The kernel for short sequences: a block of queries, one in each lane of a vector, against all
// keys of its sequence. Scores and weights lie as [keys][lanes], so that maxima, sums and Newton's
// steps of all queries stay in their lanes, and the matrix products are dense tiles in registers.
// At n = 64 ... 128 lists of a support of 10 ... 20 entries cost more than they spare.
//
// The instruction sets share the following: the call, and one thread's memory.
#pragma once

#include <hwy/aligned_allocator.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "attention/cpu/lanes/amx.h"
#include "attention/cpu/padding.h"
#include "attention/kernels.h"
#include "attention/terms.h"
#include "core/memory.h"
#include "tsallis/attention.h"

namespace tsallis {

// Beyond, the scores of a block and the keys leave the first-level cache.
inline constexpr std::int64_t kLanesMostKeys = 512;
inline constexpr std::int64_t kLanesMostColumns = 128;
inline constexpr std::size_t kMostLanes = 16;
// Between 1 and this, float32 thresholds have too few digits: z - tau = 1 + O(alpha - 1).
inline constexpr double kLanesLeastAlpha = 1.05;

struct LanesCall {
  const AttentionParams& params;
  const AttentionOutputs* outputs = nullptr;      // forward
  const AttentionGradients* gradients = nullptr;  // backward
  std::size_t most_keys = 0;                      // of any sequence
  DistanceTable distances;
  // bfloat16 products on tiles, where instruction set and block allow; null: none.
  const TileFunctions* tiles = nullptr;
  bool stream = false;  // outputs are larger than caches: write past them
  // The work of LanesForwardRange and LanesBackwardRange: key heads, and, forward, the rows of
  // each: those of key head i are rows[first_row[i]] to rows[first_row[i + 1]].
  const std::vector<KeyHead>* key_heads = nullptr;
  const std::vector<RowBlock>* rows = nullptr;
  std::vector<std::size_t> first_row = {};
  HeadSums* heads = nullptr;  // backward: [batch heads]
};

// One thread's memory. Widths: keys = Padded(most_keys), d and e = Padded(head_dim, value_dim).
struct LanesScratch {
  explicit LanesScratch(const LanesCall& call);
  // Bytes that a thread allocates.
  static std::size_t Bytes(const LanesCall& call);

  hwy::AlignedFreeUniquePtr<char[]> memory;
  float* k;        // [keys][d]
  float* v;        // [keys][e]
  float* q;        // [lanes][d]
  float* columns;  // q or d_out of the block, transposed: [d or e][lanes]
  float* scores;   // [keys][lanes]
  float* weights;  // [keys][lanes]
  float* block;    // rows on their way out: [lanes][d or e]
  // Backward only.
  float* scaled_q;     // c scale q: [lanes][d]
  float* d_out;        // [lanes][e]
  float* slopes;       // p^{2 - alpha}: [keys][lanes]
  float* derivatives;  // of scores in products, if they are capped: [keys][lanes]
  float* dk;           // [keys][d]
  float* dv;           // [keys][e]
  // bfloat16 with tiles only; depths: PaddedDepth of keys, head_dim, value_dim.
  std::uint16_t* k_rows;          // [keys depth][d depth]
  std::uint16_t* v_rows;          // [keys depth][e depth]
  std::uint16_t* q_rows;          // [lanes][d depth]
  std::uint16_t* d_out_rows;      // [lanes][e depth]
  std::uint32_t* k_pairs;         // pairs of keys: [keys depth / 2][d]
  std::uint32_t* v_pairs;         // [keys depth / 2][e]
  std::uint32_t* lane_pairs;      // pairs of queries of q or d_out: [lanes / 2][d or e]
  std::uint32_t* weight_pairs;    // pairs of keys: [keys depth / 2][lanes]
  std::uint32_t* weight_columns;  // their transpose: [lanes][keys depth / 2]
  std::uint16_t* weight_rows;     // [keys][lanes]

 private:
  // The one list of parts; returns bytes, and assigns pointers from `memory` on unless null.
  std::size_t Layout(const LanesCall& call, char* memory);
  LanesScratch() = default;
};

// The kernel's passes on given tiles, which only bfloat16 uses; null: none.
void LanesForward(const TileFunctions* tiles, const Context& context, const AttentionParams& params,
                  const AttentionOutputs& outputs, const std::vector<RowBlock>& rows);
void LanesBackward(const TileFunctions* tiles, const Context& context,
                   const AttentionParams& params, const AttentionGradients& gradients,
                   const std::vector<KeyHead>& key_heads, HeadSums* heads);

// Highway's name of the instruction set that the kernel runs on now; empty if it has none.
const char* LanesTarget();

}  // namespace tsallis
