// Dense attention tiles: the kernel that serves every map, mask, term, shape and 16- or 32-bit dtype in
// float32 arithmetic. Others hand it the rows that turned out dense.
//
// A group of up to 48 query rows stores its scores on the keys it may see (12 rows of the longest
// sequences: O(12 k_len) a thread, never q_len k_len), solves each row with the row maps' own code, and
// multiplies with the values. Cost model: a score costs head_dim multiply-adds, an output
// value_dim, at 6 rows x 64 columns of registers; the map passes over the scores 3 to 6 times at a load
// a score. Panels of weights that are 0 are skipped, sparse ones multiplied by a list.
#pragma once

#include <cstdint>
#include <vector>

#include "attention/geometry.h"
#include "attention/kernels.h"
#include "tsallis/attention.h"

namespace tsallis {

// Query rows of one problem: sequence b, query head h. Rows lie inside the sequence's range.
struct RowBlock {
  std::int64_t b = 0, h = 0;
  Span q;
};

// A key head with all its query heads: sequence b.
struct KvProblem {
  std::int64_t b = 0, kv = 0;
};

inline std::vector<KvProblem> AllProblems(const AttentionParams& params) {
  std::vector<KvProblem> problems;
  for (std::int64_t b = 0; b < params.batch; ++b) {
    for (std::int64_t kv = 0; kv < params.kv_heads; ++kv) problems.push_back({b, kv});
  }
  return problems;
}

// Outputs and statistics of these rows. Blocks in the order of (b, h) share the panels of their keys.
// With a sink: their weights to it, and nothing else.
void DenseForwardBlocks(const Context& context, const AttentionParams& params,
                        const AttentionOutputs& outputs, const std::vector<RowBlock>& blocks,
                        const WeightSink* sink = nullptr);

// dq, dk, dv and d_length_scale of these problems, rows outside of the ranges included. Adds to
// d_bias, d_slopes and d_sink, which the driver has set to 0, in the order of the list.
//   d_alpha_problems: [batch * heads] or null; those of the problems' heads are written
void DenseBackwardProblems(const Context& context, const AttentionParams& params,
                           const AttentionGradients& gradients,
                           const std::vector<KvProblem>& problems, double* d_alpha_problems);

// Bytes that the two allocate at most.
std::size_t DenseWorkspaceBytes(const Context& context, const AttentionParams& params,
                                bool backward);

extern const AttentionKernel kDenseAttention;

}  // namespace tsallis
