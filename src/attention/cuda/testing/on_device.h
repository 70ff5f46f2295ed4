// For tests: calls of attention with arrays of the host, run on a device.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "attention/geometry.h"
#include "attention/testing/problem.h"
#include "core/cuda/testing/copies.h"
#include "tsallis/attention.h"

namespace tsallis::cuda {

template <class Device>
class OnDevice : public Copies<Device> {
 public:
  using Copies<Device>::Numbers;

  template <class Array>
  Array Elements(Array array, const std::int64_t (&sizes)[4], bool written) {
    array.data = this->Stretch(array.data, static_cast<std::int64_t>(SizeOf(array.dtype)),
                               array.strides, sizes, written);
    return array;
  }
  const std::uint8_t* Bytes(const std::uint8_t* data, const std::int64_t (&strides)[4],
                            const std::int64_t (&sizes)[4]) {
    return static_cast<const std::uint8_t*>(this->Stretch(data, 1, strides, sizes, false));
  }

  AttentionParams Params(AttentionParams p) {
    const std::int64_t batch = ArrayBatch(p);
    p.q = Elements(p.q, {batch, p.heads, p.q_len, p.head_dim}, false);
    p.k = Elements(p.k, {batch, p.kv_heads, p.k_len, p.head_dim}, false);
    p.v = Elements(p.v, {batch, p.kv_heads, p.k_len, p.value_dim}, false);
    for (const std::int64_t** span :
         {&p.ranges.q_begin, &p.ranges.q_end, &p.ranges.k_begin, &p.ranges.k_end}) {
      *span = Numbers(*span, p.batch, false);
    }
    AttentionMask& mask = p.mask;
    mask.visible = Bytes(mask.visible, mask.visible_strides, {batch, p.heads, p.q_len, p.k_len});
    if (mask.blocks != nullptr) {
      const std::int64_t rows = (p.q_len + mask.block_q - 1) / mask.block_q;
      const std::int64_t columns = (p.k_len + mask.block_k - 1) / mask.block_k;
      mask.blocks = Bytes(mask.blocks, mask.block_strides, {batch, p.heads, rows, columns});
    }
    AttentionTerms& terms = p.terms;
    terms.length_scale = Elements(terms.length_scale, {batch, p.heads, p.q_len, 1}, false);
    terms.alibi_slopes = Elements(terms.alibi_slopes, {batch, p.heads, 1, 1}, false);
    terms.bias = Elements(terms.bias, {batch, p.heads, p.q_len, p.k_len}, false);
    terms.sink = Numbers(terms.sink, p.heads, false);
    return p;
  }
  AttentionOutputs Outputs(const AttentionParams& p, AttentionOutputs o) {
    const std::int64_t batch = ArrayBatch(p), rows = batch * p.heads * p.q_len;
    o.out = Elements(o.out, {batch, p.heads, p.q_len, p.value_dim}, true);
    o.tau = Numbers(o.tau, rows, true);
    o.support_size = Numbers(o.support_size, rows, true);
    o.entropy = Numbers(o.entropy, rows, true);
    o.maximum = Numbers(o.maximum, rows, true);
    o.saved =
        Numbers(static_cast<std::byte*>(o.saved), static_cast<std::int64_t>(o.saved_bytes), true);
    return o;
  }
  AttentionGradients Gradients(const AttentionParams& p, AttentionGradients g) {
    const std::int64_t batch = ArrayBatch(p), rows = batch * p.heads * p.q_len;
    g.d_out = Elements(g.d_out, {batch, p.heads, p.q_len, p.value_dim}, false);
    g.tau = Numbers(g.tau, rows, false);
    g.saved = Numbers(static_cast<const std::byte*>(g.saved),
                      static_cast<std::int64_t>(g.saved_bytes), false);
    g.dq = Elements(g.dq, {batch, p.heads, p.q_len, p.head_dim}, true);
    g.dk = Elements(g.dk, {batch, p.kv_heads, p.k_len, p.head_dim}, true);
    g.dv = Elements(g.dv, {batch, p.kv_heads, p.k_len, p.value_dim}, true);
    g.d_length_scale = Numbers(g.d_length_scale, rows, true);
    g.d_alpha = Numbers(g.d_alpha, p.heads, true);
    g.d_slopes = Numbers(g.d_slopes, batch * p.heads, true);
    g.d_sink = Numbers(g.d_sink, p.heads, true);
    g.d_bias = Elements(g.d_bias, {batch, p.heads, p.q_len, p.k_len}, true);
    return g;
  }
};

// run(params, counts) and run(params, row_offsets, columns, values) on arrays of a device: what
// AttentionWeightCounts and AttentionWeights do, for arrays of the host.
template <class Device, class Run>
void CountWeights(const AttentionParams& params, std::int64_t* counts, const Run& run) {
  OnDevice<Device> device;
  const AttentionParams there = device.Params(params);
  run(there, device.Numbers(counts, ArrayBatch(params) * params.heads * params.q_len, true));
  device.CopyBack();
}
template <class Device, class Run>
void PutWeights(const AttentionParams& params, const std::int64_t* row_offsets,
                std::int64_t entries, std::int64_t* columns, float* values, const Run& run) {
  OnDevice<Device> device;
  const AttentionParams there = device.Params(params);
  const std::int64_t rows = ArrayBatch(params) * params.heads * params.q_len;
  const std::int64_t* offsets = device.Numbers(row_offsets, rows + 1, false);
  std::int64_t* to_columns = device.Numbers(columns, entries, true);
  run(there, offsets, to_columns, device.Numbers(values, entries, true));
  device.CopyBack();
}

}  // namespace tsallis::cuda
