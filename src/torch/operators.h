// The row maps on tensors, for C++: what Python calls as torch.ops.tsallis.*, without the detour
// over the dispatcher where a tensor is an ordinary CPU one. Everything here records autograd (first
// derivatives; differentiating a gradient again throws) and runs on at::get_num_threads() threads.
//
// dtypes float32, float64, bfloat16, float16; any rank from 1; any strides. Mistakes throw
// c10::ValueError (ValueError in Python) with a message that names the argument; a dimension out of
// range throws c10::IndexError.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

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

// The same, filling `stats`.
at::Tensor MapRows(const at::Tensor& scores, const RowMapParams& params,
                   const std::optional<at::Tensor>& alpha, std::int64_t dim, RowStatTensors* stats);

// alpha-entmax with a fixed alpha >= 1 (1: softmax, 2: sparsemax).
at::Tensor Entmax(const at::Tensor& scores, double alpha = 1.5, std::int64_t dim = -1);

// Fenchel-Young losses, not reduced. scores: [..., classes]; targets: [...], any integer dtype, in
// [0, classes) or equal to `ignore_index` (loss 0, gradient 0). Returns [...], float32 (float64 for
// float64 scores). params.map: kSoftmax, kEntmax or kNormmax.
at::Tensor FenchelYoungLosses(const at::Tensor& scores, const at::Tensor& targets,
                              const RowMapParams& params, std::int64_t ignore_index = -100);

}  // namespace tsallis
