// Attention on keys and values in pages: the operator on CPUs, CUDA devices and meta tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

#include "torch/attention.h"
#include "tsallis/pages.h"

namespace tsallis {

// Calls the kernels that run on the tensors' device.
using PagesPass = std::function<void(const AttentionParams& params, const AttentionPages& pages,
                                     const AttentionOutputs& outputs)>;

// Checks tensors, and makes the results. q: [batch, heads, q_len, head_dim]; k_pages, v_pages:
// [pages, page_size, kv_heads, head_dim or value_dim]; block_table: [batch, most pages of a
// sequence]; options.lengths: [batch]. Statistics have no elements unless want_stats. Throws
// c10::ValueError.
AttentionResults AttentionOnPagesBy(Reader reader, const PagesPass& run, const at::Tensor& q,
                                    const at::Tensor& k_pages, const at::Tensor& v_pages,
                                    const at::Tensor& block_table, const AttentionOptions& options,
                                    bool want_stats);

}  // namespace tsallis
