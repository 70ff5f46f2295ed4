#include "stable/arguments.h"

#include <algorithm>
#include <initializer_list>

#include "core/elements.h"

namespace tsallis::stable {

std::string ArgumentOf(const std::string& member) {
  if (member.starts_with("alpha_per_head")) return "alpha" + member.substr(14);
  if (member.starts_with("alpha_per_row")) return "alpha" + member.substr(13);
  if (member == "top_k.k") return "top_k";
  if (member == "top_k.fraction") return "top_k_fraction";
  if (member == "block_q" || member == "mask.block_q" || member == "block_k" ||
      member == "mask.block_k") {
    return "block_size";
  }
  if (member == "pages.k" || member == "pages.v") return member.substr(6) + "_pages";
  if (member.starts_with("pages.table")) return "block_table" + member.substr(11);
  if (member.starts_with("pages.query_starts")) return "cu_seqlens_q" + member.substr(18);
  if (member == "pages.page_size" || member == "pages.pages") return "k_pages";
  for (const std::string prefix : {"pages.", "tokens.", "terms.", "mask.", "ranges.", "shape.",
                                   "options.", "pattern.", "adaptive."}) {
    if (member.starts_with(prefix)) return member.substr(prefix.size());
  }
  return member;
}

namespace {

// [n], whatever the dtype, repeated where the tensor has one element.
std::vector<double> Doubles(const Tensor& tensor, std::int64_t n) {
  const std::int64_t stride =
      tensor.dim() == 0 || tensor.size(tensor.dim() - 1) == 1 ? 0 : tensor.stride(tensor.dim() - 1);
  std::vector<double> numbers(static_cast<std::size_t>(n));
  const void* data = n > 0 ? tensor.data() : nullptr;
  const DType dtype = KernelDType(tensor);
  for (std::int64_t i = 0; i < n; ++i) {
    numbers[static_cast<std::size_t>(i)] = LoadElement<double>(data, dtype, i * stride);
  }
  return numbers;
}

// Integers as the kernels read them, on this thread's own copy. [n]
std::vector<std::int64_t> Integers(const Tensor& tensor) {
  const std::int64_t n = tensor.size(0), stride = tensor.stride(0);
  std::vector<std::int64_t> integers(static_cast<std::size_t>(n));
  const bool wide = tensor.dtype() == dtypes::kInt64;
  for (std::int64_t i = 0; i < n; ++i) {
    integers[static_cast<std::size_t>(i)] =
        wide ? tensor.data_as<std::int64_t>()[i * stride]
             : std::int64_t{tensor.data_as<std::int32_t>()[i * stride]};
  }
  return integers;
}

}  // namespace

void AttentionArguments::Bind(const Tensor& q, const Tensor& k, const Tensor& v, Reader reader) {
  reader_ = reader;
  array_batch_ = q.size(0);
  AttentionParams& p = params;
  p.batch = array_batch_;
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
  if (alpha_heads.defined()) {
    alpha_ = Doubles(OnDevice(alpha_heads, Device::Cpu()), p.heads);
    p.alpha_per_head = alpha_.data();
  }
  if (sink.defined() && sink.device().is_cpu()) {
    host_sink_ = Doubles(sink, p.heads);
    p.terms.sink = host_sink_.data();
  } else if (sink.defined()) {
    const std::int64_t heads[1] = {p.heads}, strides[1] = {Broadcast4(sink, heads)[0]};
    device_sink_ = Contiguous(Cast(Restrided(sink, heads, strides), dtypes::kFloat64));
    p.terms.sink = device_sink_.data_as<double>();
  }
  SetMasks();
  SetTerms();
  if (cu_seqlens_q.defined()) {
    const bool own = cu_seqlens_k.defined();
    q_gaps_ = SetPacked(cu_seqlens_q, "cu_seqlens_q", p.q_len, q_axis_);
    k_gaps_ = SetPacked(own ? cu_seqlens_k : cu_seqlens_q, own ? "cu_seqlens_k" : "cu_seqlens_q",
                        p.k_len, k_axis_);
    p.batch = cu_seqlens_q.size(0) - 1;
    p.ranges.packed = true;
  } else {
    SetPadding(lengths, "lengths", p.k_len, k_axis_);
    SetPadding(query_lengths, "query_lengths", p.q_len, q_axis_);
  }
  const auto pointer = [](const std::vector<std::int64_t>& numbers, const Tensor& on_device) {
    if (on_device.defined() && on_device.numel() > 0) return on_device.data_as<std::int64_t>();
    return numbers.empty() ? nullptr : numbers.data();
  };
  p.ranges.q_begin = pointer(q_axis_.begin, q_axis_.device_begin);
  p.ranges.q_end = pointer(q_axis_.end, q_axis_.device_end);
  p.ranges.k_begin = pointer(k_axis_.begin, k_axis_.device_begin);
  p.ranges.k_end = pointer(k_axis_.end, k_axis_.device_end);
}

void AttentionArguments::SetMasks() {
  AttentionMask& m = params.mask;
  const auto bytes = [](const Tensor& tensor, const Sizes4& sizes, std::int64_t* strides) {
    std::ranges::copy(Broadcast4(tensor, sizes), strides);
    return static_cast<const std::uint8_t*>(tensor.data());
  };
  if (mask.defined()) m.visible = bytes(mask, Scores(), m.visible_strides);
  if (!block_mask.defined()) {
    m.block_q = m.block_k = 0;
    return;
  }
  // A block beyond the end is as good as one that ends there, and no sum of it overflows.
  m.block_q = std::min(m.block_q, std::max<std::int64_t>(params.q_len, 1));
  m.block_k = std::min(m.block_k, std::max<std::int64_t>(params.k_len, 1));
  const Sizes4 blocks = {array_batch_, params.heads, Blocks(params.q_len, m.block_q),
                         Blocks(params.k_len, m.block_k)};
  m.blocks = bytes(block_mask, blocks, m.block_strides);
}

void AttentionArguments::SetTerms() {
  const Sizes4 scores = Scores();
  // The first `axes` of [batch, heads, rows, columns].
  const auto array = [&](const Tensor& tensor, std::size_t axes) {
    const auto strides = Broadcast4(tensor, Sizes(scores.data(), axes));
    return ConstArray4{
        tensor.data(), KernelDType(tensor), {strides[0], strides[1], strides[2], strides[3]}};
  };
  AttentionTerms& terms = params.terms;
  if (length_scale.defined()) terms.length_scale = array(length_scale, 3);
  if (alibi_slopes.defined()) terms.alibi_slopes = array(alibi_slopes, 2);
  if (bias.defined()) terms.bias = array(bias, 4);
}

void AttentionArguments::SetPadding(const Tensor& counts, const char* argument, std::int64_t length,
                                    Axis& axis) const {
  if (!counts.defined()) return;
  const bool left = padding == Padding::kLeft;
  if (reader_ == Reader::kDevice) {
    // Left: [length - count, length]; right: [0, count].
    Tensor bounds = Contiguous(Cast(counts, dtypes::kInt64));
    Tensor other = Empty(bounds.sizes(), dtypes::kInt64, bounds.device());
    Fill(other, left ? static_cast<double>(length) : 0.0);
    if (left) bounds = Difference(other, bounds);
    axis.device_begin = left ? std::move(bounds) : std::move(other);
    axis.device_end = left ? std::move(other) : std::move(bounds);
    return;
  }
  axis.end = Integers(counts);
  axis.begin.assign(axis.end.size(), 0);
  for (std::size_t b = 0; b < axis.end.size(); ++b) {
    if (axis.end[b] < 0 || axis.end[b] > length) {
      throw InvalidArgument(std::string(argument) + '[' + std::to_string(b) + ']',
                            "an integer in [0, " + std::to_string(length) + ']',
                            std::to_string(axis.end[b]));
    }
    if (!left) continue;
    axis.begin[b] = length - axis.end[b];
    axis.end[b] = length;
  }
}

// Returns whether rows may be left over before the first sequence or behind the last.
bool AttentionArguments::SetPacked(const Tensor& offsets, const char* argument, std::int64_t length,
                                   Axis& axis) const {
  if (reader_ == Reader::kDevice) {
    const Tensor wide = Contiguous(Cast(offsets, dtypes::kInt64));
    const std::int64_t count[1] = {wide.size(0) - 1}, stride[1] = {1};
    axis.device_begin = Restrided(wide, count, stride);
    axis.device_end = Restrided(wide, count, stride, 1);
    return true;
  }
  axis.begin = Integers(offsets);
  std::int64_t last = 0;
  for (std::size_t i = 0; i < axis.begin.size(); ++i) {
    if (axis.begin[i] < last || axis.begin[i] > length) {
      throw InvalidArgument(std::string(argument) + '[' + std::to_string(i) + ']',
                            "an integer in [" + std::to_string(last) + ", " +
                                std::to_string(length) + "] (ascending, within the packed rows)",
                            std::to_string(axis.begin[i]));
    }
    last = axis.begin[i];
  }
  const bool gaps = axis.begin.front() != 0 || axis.begin.back() != length;
  axis.end.assign(axis.begin.begin() + 1, axis.begin.end());
  axis.begin.pop_back();
  return gaps;
}

}  // namespace tsallis::stable
