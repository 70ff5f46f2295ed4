// The row maps and attention on tensors, for C++: what Python calls as torch.ops.tsallis.*, without
// the detour over the dispatcher where a tensor is an ordinary CPU one. Everything here records
// autograd (first derivatives; differentiating a gradient again throws) and runs on
// at::get_num_threads() threads.
//
// dtypes float32, float64, bfloat16, float16; any strides; maps take any rank from 1. Mistakes
// throw c10::ValueError (ValueError in Python) with a message that names the argument; a dimension
// out of range throws c10::IndexError.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "tsallis/attention.h"
#include "tsallis/rows.h"

namespace tsallis {

// Per-row statistics of a map, without gradients; shape: that of the scores less the mapped
// dimension. See RowStats for their meaning.
struct RowStatTensors {
  at::Tensor tau;           // float32, float64 for float64 scores
  at::Tensor support_size;  // int64
  at::Tensor entropy;       // as tau
};

// p = map(scores) along `dim`; contiguous, with the shape and dtype of `scores`. `alpha` overrides
// params.alpha: any floating dtype, broadcastable to the scores with size 1 in `dim`; its gradient
// (kEntmax only) has its shape and dtype. params.alpha_per_row must be null.
at::Tensor MapRows(const at::Tensor& scores, const RowMapParams& params,
                   const std::optional<at::Tensor>& alpha = std::nullopt, std::int64_t dim = -1);

// Does the same, and fills `stats`.
at::Tensor MapRows(const at::Tensor& scores, const RowMapParams& params,
                   const std::optional<at::Tensor>& alpha, std::int64_t dim, RowStatTensors* stats);

// alpha-entmax with a fixed alpha > 0 (1: softmax, 2: sparsemax).
at::Tensor Entmax(const at::Tensor& scores, double alpha = 1.5, std::int64_t dim = -1);

// Fenchel-Young losses, not reduced. scores: [..., classes]; targets: [...], any integer dtype, in
// [0, classes) or equal to `ignore_index` (loss 0, gradient 0). Returns [...], float32 (float64 for
// float64 scores). params.map: kSoftmax, kEntmax or kNormmax.
at::Tensor FenchelYoungLosses(const at::Tensor& scores, const at::Tensor& targets,
                              const RowMapParams& params, std::int64_t ignore_index = -100);

// ---- attention (tsallis/attention.h has the definition) -----------------------------------------

enum class Padding : std::uint8_t { kRight, kLeft };

// The arguments of attention beside q, k and v; `map` is one of AttentionMaps(). "Broadcastable" is
// torch's: missing leading dimensions and sizes of 1 repeat. Gradients go to the tensors marked
// (g), in their own shape and dtype. Floating tensors may have any of the four dtypes. For packed
// sequences `batch` is 1 in every shape.
struct AttentionOptions : MapSetting {
  std::optional<at::Tensor> alpha_heads;  // (g) in place of alpha; broadcastable to [heads]
  // Its numbers (scale, ...). Its arrays stay null: these tensors are in their place.
  AttentionTerms terms;
  std::optional<at::Tensor> length_scale;  // (g) broadcastable to [batch, heads, q_len]
  std::optional<at::Tensor> alibi_slopes;  // (g) [heads] or [batch, heads]
  // (g) broadcastable to [batch, heads, q_len, k_len]. Its gradient has its shape, so give it as it
  // is, not expanded.
  std::optional<at::Tensor> bias;
  // (g) broadcastable to [heads]: the score of one more key of every query, whose value is 0.
  // Softmax and entmax only.
  std::optional<at::Tensor> sink;

  bool causal = false;  // stick-breaking needs it, and leaves out a query's own key
  Alignment alignment = Alignment::kEnd;
  std::int64_t left = -1;  // sliding window; negative: no limit on that side
  std::int64_t right = -1;
  std::optional<at::Tensor> mask;  // bool, true = visible; broadcastable as the bias
  // bool, broadcastable to [batch, heads, ceil(q_len / block_q), ceil(k_len / block_k)]
  std::optional<at::Tensor> block_mask;
  std::int64_t block_q = 0;
  std::int64_t block_k = 0;

  // Padded batches: integers [batch]; keys, and queries, that count. Without query_lengths all
  // queries do.
  std::optional<at::Tensor> lengths;
  std::optional<at::Tensor> query_lengths;
  Padding padding = Padding::kRight;
  // Packed sequences: integers [sequences + 1], ascending; none for k: those of q.
  std::optional<at::Tensor> cu_seqlens_q;
  std::optional<at::Tensor> cu_seqlens_k;

  // Bytes that the forward pass may keep to spare the backward pass work.
  std::int64_t saved_budget = std::int64_t{1} << 28;
  int threads = 0;  // on the CPU; 0: at::get_num_threads()
};

// Per-row statistics, without gradients: [batch, heads, q_len].
struct AttentionStatTensors {
  at::Tensor tau;           // float32, float64 for float64 inputs
  at::Tensor support_size;  // int64
  at::Tensor entropy;       // as tau
  at::Tensor maximum;       // as tau
};

// q: [batch, heads, q_len, head_dim]; k: [batch, kv_heads, k_len, head_dim]; v: [batch, kv_heads,
// k_len, value_dim]; heads is a multiple of kv_heads. Returns [batch, heads, q_len, value_dim] of
// q's dtype, with rows before heads in memory if q has them so. `stats` may be null.
at::Tensor Attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                     const AttentionOptions& options = {}, AttentionStatTensors* stats = nullptr);

// The same on keys and values in pages (tsallis/pages.h), without a gradient. k_pages, v_pages:
// [pages, page_size, kv_heads, head_dim or value_dim]; table: int32 or int64 [batch, most pages of
// a sequence]; options.lengths: [batch].
at::Tensor AttentionOnPages(const at::Tensor& q, const at::Tensor& k_pages,
                            const at::Tensor& v_pages, const at::Tensor& table,
                            const AttentionOptions& options);

}  // namespace tsallis
