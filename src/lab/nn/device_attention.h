// Attention of models that may stand on any device: our kernels where they serve, else torch's
// operations.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <string>

#include "lab/nn/decoder_config.h"
#include "lab/nn/text_cache.h"
#include "torch/operators.h"
#include "tsallis/attention.h"

namespace tsallis::lab {

// The longest of packed sequences: sizes of what is computed for each, known to the host.
struct LongestSequence {
  std::int64_t queries = 0, keys = 0;
};

// tsallis::Attention by torch's operations alone, with autograd, on any device: weights of all
// pairs are formed, for some queries at a time. An alpha of entmax between 1 and 1.001 counts
// as 1.001. It gives no statistics. InvalidArgument for a bias, windows, padded batches and grouped
// heads, for masks of packed sequences, and for slopes, scale-invariant scores or stick-breaking
// without `causal`.
// `longest`: of options.cu_seqlens_q, _k.
at::Tensor PlainAttention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          const AttentionOptions& options, const LongestSequence& longest = {});

// Attention for heads of one kind (SameCall), by the best there is on a device.
class DeviceAttention {
 public:
  // heads: how they attend; head_dim, dtype: of queries, keys and values. sloped, scaled: whether
  // calls have ALiBi slopes and a length scale.
  DeviceAttention(const AttentionConfig& heads, std::int64_t head_dim, at::ScalarType dtype,
                  bool sloped, bool scaled, const c10::Device& device);

  // Computes what PlainAttention computes.
  at::Tensor operator()(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                        const AttentionOptions& options, const LongestSequence& longest = {}) const;

  // Without a gradient. Rows of queries, [rows, heads, head_dim], each on the keys that `pages` has
  // for it: attended as the newest token of these, or, unless options.causal, as any. k, v: a
  // layer's pages, [pages, page, heads, head_dim], of these heads. visible: [rows, keys or more]
  // bool, the keys that each row sees among them; undefined: all. The kernels read pages in place
  // where they serve that; everything else attends to a copy of the rows' keys.
  at::Tensor OnPages(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                     const RowPages& pages, const at::Tensor& visible,
                     const AttentionOptions& options) const;

  // Tells people what runs in place of our kernels, and why; empty: they run.
  const std::string& Note() const { return note_; }

 private:
  enum class Way : std::uint8_t { kKernels, kSdpa, kPlain };

  bool KernelsReadPages(const AttentionOptions& options) const;

  Way way_ = Way::kKernels;
  Context context_;
  AttentionParams call_;  // of such heads, to ask the library what it serves
  std::string note_;
};

}  // namespace tsallis::lab
