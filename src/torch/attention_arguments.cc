#include "torch/attention_arguments.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <string>

#include "torch/array_view.h"

namespace tsallis {

using at::Tensor;

std::string ArgumentOf(const std::string& member) {
  if (member.starts_with("alpha_per_head")) return "alpha" + member.substr(14);
  if (member == "top_k.k") return "top_k";
  if (member == "top_k.fraction") return "top_k_fraction";
  if (member == "pages.k" || member == "pages.v") return member.substr(6) + "_pages";
  if (member.starts_with("pages.table")) return "block_table" + member.substr(11);
  if (member == "pages.page_size" || member == "pages.pages") return "k_pages";
  for (const std::string prefix : {"pages.", "terms.", "mask.", "ranges.", "shape.", "options."}) {
    if (member.starts_with(prefix)) return member.substr(prefix.size());
  }
  return member;
}

namespace {

// Integers as the kernels read them, on this thread's own copy. [n]
std::vector<std::int64_t> Integers(const Tensor& tensor) {
  const Tensor wide = As(tensor, at::kLong).contiguous();
  const auto* data = wide.const_data_ptr<std::int64_t>();
  return {data, data + wide.numel()};
}

}  // namespace

KernelArguments::KernelArguments(const Tensor& q, const Tensor& k, const Tensor& v,
                                 const AttentionOptions& options, Reader reader)
    : reader_(reader), array_batch_(q.size(0)) {
  AttentionParams& p = params_;
  p.batch = q.size(0);
  p.heads = q.size(1);
  p.kv_heads = k.size(1);
  p.q_len = q.size(2);
  p.k_len = k.size(2);
  p.head_dim = q.size(3);
  p.q = View(q);
  p.k = View(k);
  if (v.defined()) {
    p.value_dim = v.size(3);
    p.v = View(v);
  } else {
    p.value_dim = 1;
    p.v = {&no_value_, p.q.dtype, {0, 0, 0, 0}};
  }
  p.map = options.map;
  p.alpha = options.alpha;
  p.adaptive = options.adaptive;
  p.top_k = options.top_k;
  p.sigmoid_bias = options.sigmoid_bias;
  const auto per_head = [&](const OptionalTensor& tensor, Tensor& wide) {
    if (!tensor) return static_cast<const double*>(nullptr);
    wide = As(*tensor, at::kDouble).expand({p.heads}).contiguous();
    return wide.const_data_ptr<double>();
  };
  OptionalTensor alphas = options.alpha_heads;
  if (alphas && !alphas->is_cpu()) alphas = alphas->to(at::kCPU);
  p.alpha_per_head = per_head(alphas, alpha_);
  p.terms = options.terms;
  p.terms.sink = per_head(options.sink, sink_);
  SetMasks(options);
  SetTerms(options);
  if (options.cu_seqlens_q) {
    const Tensor& cu_q = *options.cu_seqlens_q;
    q_gaps_ = SetPacked(cu_q, "cu_seqlens_q", p.q_len, q_axis_);
    k_gaps_ = SetPacked(options.cu_seqlens_k.value_or(cu_q),
                        options.cu_seqlens_k ? "cu_seqlens_k" : "cu_seqlens_q", p.k_len, k_axis_);
    p.batch = cu_q.numel() - 1;
    p.ranges.packed = true;
  } else {
    SetPadding(options.lengths, "lengths", p.k_len, options.padding, k_axis_);
    SetPadding(options.query_lengths, "query_lengths", p.q_len, options.padding, q_axis_);
  }
  const auto pointer = [&](const std::vector<std::int64_t>& numbers, const Tensor& on_device) {
    if (on_device.defined() && on_device.numel() > 0) {
      return on_device.const_data_ptr<std::int64_t>();
    }
    return numbers.empty() ? nullptr : numbers.data();
  };
  p.ranges.q_begin = pointer(q_axis_.begin, q_axis_.device_begin);
  p.ranges.q_end = pointer(q_axis_.end, q_axis_.device_end);
  p.ranges.k_begin = pointer(k_axis_.begin, k_axis_.device_begin);
  p.ranges.k_end = pointer(k_axis_.end, k_axis_.device_end);
}

void KernelArguments::SetMasks(const AttentionOptions& options) {
  AttentionMask& mask = params_.mask;
  mask.causal = options.causal;
  mask.alignment = options.alignment;
  mask.left = options.left;
  mask.right = options.right;
  const auto bytes = [&](const Tensor& tensor, const Sizes4& sizes, std::int64_t* strides) {
    views_.push_back(tensor.expand(sizes));
    std::copy_n(views_.back().strides().begin(), 4, strides);
    return static_cast<const std::uint8_t*>(views_.back().const_data_ptr());
  };
  if (options.mask) mask.visible = bytes(*options.mask, Scores(), mask.visible_strides);
  if (!options.block_mask) return;
  mask.block_q = options.block_q;
  mask.block_k = options.block_k;
  const Sizes4 blocks = {array_batch_, params_.heads,
                         (params_.q_len + mask.block_q - 1) / mask.block_q,
                         (params_.k_len + mask.block_k - 1) / mask.block_k};
  mask.blocks = bytes(*options.block_mask, blocks, mask.block_strides);
}

void KernelArguments::SetTerms(const AttentionOptions& options) {
  AttentionTerms& terms = params_.terms;
  if (options.length_scale) {
    views_.push_back(options.length_scale->expand(Rows()).unsqueeze(-1));
    terms.length_scale = View(views_.back());
  }
  if (options.alibi_slopes) {
    views_.push_back(
        options.alibi_slopes->expand({array_batch_, params_.heads}).unsqueeze(-1).unsqueeze(-1));
    terms.alibi_slopes = View(views_.back());
  }
  if (options.bias) {
    views_.push_back(options.bias->expand(Scores()));
    terms.bias = View(views_.back());
  }
}

void KernelArguments::SetPadding(const OptionalTensor& lengths, const char* argument,
                                 std::int64_t length, Padding padding, Axis& axis) const {
  if (!lengths) return;
  const bool left = padding == Padding::kLeft;
  if (reader_ == Reader::kDevice) {
    const Tensor counts = As(*lengths, at::kLong).contiguous();
    axis.device_begin = left ? at::rsub(counts, length) : at::zeros_like(counts);
    axis.device_end = left ? at::full_like(counts, length) : counts;
    return;
  }
  axis.end = Integers(*lengths);
  axis.begin.assign(axis.end.size(), 0);
  for (std::size_t b = 0; b < axis.end.size(); ++b) {
    TORCH_CHECK_VALUE(axis.end[b] >= 0 && axis.end[b] <= length, argument, "[", b,
                      "]: expected an integer in [0, ", length, "], got ", axis.end[b]);
    if (!left) continue;
    axis.begin[b] = length - axis.end[b];
    axis.end[b] = length;
  }
}

// Returns whether rows may be left over before the first sequence or behind the last.
bool KernelArguments::SetPacked(const Tensor& offsets, const char* argument, std::int64_t length,
                                Axis& axis) const {
  if (reader_ == Reader::kDevice) {
    const Tensor wide = As(offsets, at::kLong).contiguous();
    axis.device_begin = wide.narrow(0, 0, wide.numel() - 1);
    axis.device_end = wide.narrow(0, 1, wide.numel() - 1);
    return true;
  }
  axis.begin = Integers(offsets);
  std::int64_t last = 0;
  for (std::size_t i = 0; i < axis.begin.size(); ++i) {
    TORCH_CHECK_VALUE(axis.begin[i] >= last && axis.begin[i] <= length, argument, "[", i,
                      "]: expected an integer in [", last, ", ", length,
                      "] (ascending, within the packed rows), got ", axis.begin[i]);
    last = axis.begin[i];
  }
  const bool gaps = axis.begin.front() != 0 || axis.begin.back() != length;
  axis.end.assign(axis.begin.begin() + 1, axis.begin.end());
  axis.begin.pop_back();
  return gaps;
}

}  // namespace tsallis
