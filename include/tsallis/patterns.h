// Fixed patterns of attention (docs/definitions.md, A2): which keys a query sees, whatever the
// scores are, as the masks that attention.h takes.
//
// A pattern is a union of parts. With i and j the positions of query and key, j is shown to i by
//
//   window         causal: if 0 <= i - j < window; else if |i - j| <= window / 2 (rounded down)
//   global_tokens  if j or i is below it (Beltagy, Peters and Cohan 2020: Longformer)
//   stride         if |i - j| is a multiple of it
//   segment        if floor(i / segment) = floor(j / segment), and to all i if j is among the last
//                  `summary` keys of its segment (Child et al. 2019: Sparse Transformer, fixed)
//   random         if j's block of `random_block` keys is among those drawn for i's block: that
//                  many of the blocks that no other part shows to i's block (Zaheer et al. 2020:
//                  BigBird), all if there are fewer. Causal: of the blocks up to i's own
//
// and, causal, only if j <= i. The seed, the block and the other parts decide what is drawn; if not
// causal, the number of key blocks does, too. The draw is the same on every machine, and a causal
// pattern shows a query the same keys however many come after it.
#pragma once

#include <cstdint>
#include <vector>

#include "tsallis/attention.h"

namespace tsallis {

// Numbers of 0 leave a part out.
struct AttentionPattern {
  bool causal = false;
  std::int64_t window = 0;
  std::int64_t global_tokens = 0;
  std::int64_t stride = 0;
  std::int64_t segment = 0;
  std::int64_t summary = 0;  // at most segment
  std::int64_t random = 0;
  std::int64_t random_block = 64;  // >= 1
  std::uint64_t seed = 0;

  bool operator==(const AttentionPattern&) const = default;
};

// The masks of a pattern, which add to each other in AttentionMask: a pair is visible if both say
// so. A causal pattern's also say j <= i.
struct PatternMask {
  std::int64_t q_len = 0, k_len = 0, block_q = 0, block_k = 0;
  // [ceil(q_len / block_q), ceil(k_len / block_k)]: 1 if some pair of the block is visible.
  std::vector<std::uint8_t> blocks;
  // Whether a pair is not visible whose block is 1: then the blocks alone show too much.
  bool cut = false;
  // [q_len, k_len], 1 if visible; empty unless `cut`.
  std::vector<std::uint8_t> elements;
  std::int64_t visible = 0;  // pairs
};

// Queries and keys are rows of q and k; where the queries stand is Alignment's. Sizes from 0,
// blocks from 1. Takes memory and time in proportion to q_len k_len. Throws InvalidArgument.
PatternMask MaskOf(const AttentionPattern& pattern, std::int64_t q_len, std::int64_t k_len,
                   std::int64_t block_q, std::int64_t block_k,
                   Alignment alignment = Alignment::kEnd);

// The mask of AttentionParams for every batch entry and head; `mask` must outlive it.
void Use(const PatternMask& mask, AttentionMask& attention);

// Patterns of papers.
//   causal: 0 <= i - j < window; else |i - j| <= window / 2; with the first `global_tokens` tokens
AttentionPattern Longformer(std::int64_t window, std::int64_t global_tokens, bool causal = false);
//   the same with `random` blocks for each block of queries
AttentionPattern BigBird(std::int64_t window, std::int64_t global_tokens, bool causal = false,
                         std::int64_t random = 3, std::int64_t random_block = 64,
                         std::uint64_t seed = 0);
//   |i - j| < stride, or a multiple of it
AttentionPattern StridedPattern(std::int64_t stride, bool causal = false);
//   the own segment, and the last `summary` keys of every segment
AttentionPattern FixedPattern(std::int64_t segment, std::int64_t summary, bool causal = false);

}  // namespace tsallis
