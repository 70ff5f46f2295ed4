// Attention on CPU tensors: tensors become AttentionParams, and results become tensors.
#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <c10/util/Exception.h>

#include <array>
#include <limits>
#include <string>
#include <vector>

#include "torch/array_view.h"
#include "torch/attention.h"
#include "torch/row_view.h"
#include "tsallis/error.h"

namespace tsallis {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using Sizes4 = std::array<std::int64_t, 4>;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// The kernel library names the members of its structs; callers here know arguments.
std::string ArgumentOf(const std::string& member) {
  if (member.starts_with("alpha_per_head")) return "alpha" + member.substr(14);
  if (member == "top_k.k") return "top_k";
  if (member == "top_k.fraction") return "top_k_fraction";
  for (const std::string prefix : {"terms.", "mask.", "ranges."}) {
    if (member.starts_with(prefix)) return member.substr(prefix.size());
  }
  return member;
}

template <typename Body>
auto Renamed(Body&& body) {
  try {
    return body();
  } catch (const InvalidArgument& error) {
    const std::string what = error.what();
    ThrowValueError((ArgumentOf(error.argument()) + what.substr(error.argument().size())).c_str());
  }
}

Tensor EmptyLike(const Sizes4& sizes, const Tensor& like) {
  const auto symbols = AttentionLayout(
      {c10::SymInt(sizes[0]), c10::SymInt(sizes[1]), c10::SymInt(sizes[2]), c10::SymInt(sizes[3])},
      like);
  Sizes4 strides;
  for (int i = 0; i < 4; ++i) strides[i] = symbols[i].expect_int();
  return at::Tensor(at::detail::empty_strided_cpu(sizes, strides, like.scalar_type()));
}

// Below autograd an operator must not return its input, which aten::to does where nothing changes.
Tensor As(const Tensor& tensor, at::ScalarType dtype) {
  return tensor.scalar_type() == dtype ? tensor : tensor.to(dtype);
}

// Integers as the kernels read them, on this thread's own copy. [n]
std::vector<std::int64_t> Integers(const Tensor& tensor) {
  const Tensor wide = As(tensor, at::kLong).contiguous();
  const auto* data = wide.const_data_ptr<std::int64_t>();
  return {data, data + wide.numel()};
}

// A call as the kernel library takes it. Holds what the pointers point to, beside q, k, v and the
// options, which must outlive it.
class KernelArguments {
 public:
  // v undefined: values of one element, all 0.
  KernelArguments(const Tensor& q, const Tensor& k, const Tensor& v,
                  const AttentionOptions& options);
  KernelArguments(const KernelArguments&) = delete;
  KernelArguments& operator=(const KernelArguments&) = delete;

  const AttentionParams& params() const { return params_; }
  std::int64_t array_batch() const { return array_batch_; }
  // Packed rows that belong to no sequence, which the kernels do not write.
  bool q_has_gaps() const { return q_gaps_; }
  bool k_has_gaps() const { return k_gaps_; }
  Sizes4 Scores() const { return {array_batch_, params_.heads, params_.q_len, params_.k_len}; }
  std::vector<std::int64_t> Rows() const { return {array_batch_, params_.heads, params_.q_len}; }

 private:
  void SetMasks(const AttentionOptions& options);
  void SetTerms(const AttentionOptions& options);
  void SetPadding(const OptionalTensor& lengths, const char* argument, std::int64_t length,
                  Padding padding, std::vector<std::int64_t>& begin,
                  std::vector<std::int64_t>& end);
  bool SetPacked(const Tensor& offsets, const char* argument, std::int64_t length,
                 std::vector<std::int64_t>& begin, std::vector<std::int64_t>& end);

  AttentionParams params_;
  std::int64_t array_batch_;
  bool q_gaps_ = false, k_gaps_ = false;
  Tensor alpha_, sink_;        // [heads], float64
  std::vector<Tensor> views_;  // expanded ones
  std::vector<std::int64_t> q_begin_, q_end_, k_begin_, k_end_;
  double no_value_ = 0.0;
};

KernelArguments::KernelArguments(const Tensor& q, const Tensor& k, const Tensor& v,
                                 const AttentionOptions& options)
    : array_batch_(q.size(0)) {
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
  p.alpha_per_head = per_head(options.alpha_heads, alpha_);
  p.terms = options.terms;
  p.terms.sink = per_head(options.sink, sink_);
  SetMasks(options);
  SetTerms(options);
  if (options.cu_seqlens_q) {
    const Tensor& cu_q = *options.cu_seqlens_q;
    q_gaps_ = SetPacked(cu_q, "cu_seqlens_q", p.q_len, q_begin_, q_end_);
    k_gaps_ = SetPacked(options.cu_seqlens_k.value_or(cu_q),
                        options.cu_seqlens_k ? "cu_seqlens_k" : "cu_seqlens_q", p.k_len, k_begin_,
                        k_end_);
    p.batch = cu_q.numel() - 1;
    p.ranges.packed = true;
  } else {
    SetPadding(options.lengths, "lengths", p.k_len, options.padding, k_begin_, k_end_);
    SetPadding(options.query_lengths, "query_lengths", p.q_len, options.padding, q_begin_, q_end_);
  }
  const auto pointer = [&](const std::vector<std::int64_t>& numbers) {
    return numbers.empty() ? nullptr : numbers.data();
  };
  p.ranges.q_begin = pointer(q_begin_);
  p.ranges.q_end = pointer(q_end_);
  p.ranges.k_begin = pointer(k_begin_);
  p.ranges.k_end = pointer(k_end_);
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
                                 std::int64_t length, Padding padding,
                                 std::vector<std::int64_t>& begin, std::vector<std::int64_t>& end) {
  if (!lengths) return;
  end = Integers(*lengths);
  begin.assign(end.size(), 0);
  for (std::size_t b = 0; b < end.size(); ++b) {
    TORCH_CHECK_VALUE(end[b] >= 0 && end[b] <= length, argument, "[", b,
                      "]: expected an integer in [0, ", length, "], got ", end[b]);
    if (padding == Padding::kRight) continue;
    begin[b] = length - end[b];
    end[b] = length;
  }
}

// Returns whether rows are left over before the first sequence or behind the last.
bool KernelArguments::SetPacked(const Tensor& offsets, const char* argument, std::int64_t length,
                                std::vector<std::int64_t>& begin, std::vector<std::int64_t>& end) {
  begin = Integers(offsets);
  std::int64_t last = 0;
  for (std::size_t i = 0; i < begin.size(); ++i) {
    TORCH_CHECK_VALUE(begin[i] >= last && begin[i] <= length, argument, "[", i,
                      "]: expected an integer in [", last, ", ", length,
                      "] (ascending, within the packed rows), got ", begin[i]);
    last = begin[i];
  }
  const bool gaps = begin.front() != 0 || begin.back() != length;
  end.assign(begin.begin() + 1, begin.end());
  begin.pop_back();
  return gaps;
}

// An output of the kernel, zeroed where it would leave elements unwritten.
Tensor Output(const Sizes4& sizes, const Tensor& like, bool has_gaps) {
  Tensor tensor = EmptyLike(sizes, like);
  if (has_gaps) tensor.zero_();
  return tensor;
}

}  // namespace

AttentionResults AttentionForwardCpu(const Tensor& q, const Tensor& k, const Tensor& v,
                                     const AttentionOptions& options,
                                     const AttentionRequest& request) {
  const KernelArguments call(q, k, v, options);
  const AttentionParams& params = call.params();
  AttentionResults results;
  results.out = Output({call.array_batch(), params.heads, params.q_len, params.value_dim}, q,
                       call.q_has_gaps());
  AttentionOutputs outputs{.out = Write(results.out)};
  // Kernels write the statistics of every row that they write the output of.
  const auto statistic = [&](at::ScalarType dtype, double outside) {
    Tensor tensor = at::Tensor(at::detail::empty_cpu(call.Rows(), dtype));
    if (call.q_has_gaps()) tensor.fill_(outside);
    return tensor;
  };
  if (request.tau || request.stats) {
    results.tau = statistic(at::kDouble, -kInfinity);
    outputs.tau = results.tau.mutable_data_ptr<double>();
  }
  if (request.stats) {
    results.support_size = statistic(at::kLong, 0);
    results.entropy = statistic(at::kDouble, 0.0);
    results.maximum = statistic(at::kDouble, -kInfinity);
    outputs.support_size = results.support_size.mutable_data_ptr<std::int64_t>();
    outputs.entropy = results.entropy.mutable_data_ptr<double>();
    outputs.maximum = results.maximum.mutable_data_ptr<double>();
  }
  Renamed([&] {
    const std::int64_t bytes = request.saved_bytes >= 0
                                   ? request.saved_bytes
                                   : static_cast<std::int64_t>(AttentionSavedBytes(
                                         params, static_cast<std::size_t>(options.saved_budget)));
    results.saved = at::Tensor(at::detail::empty_cpu({bytes}, at::kByte));
    outputs.saved = bytes > 0 ? results.saved.mutable_data_ptr() : nullptr;
    outputs.saved_bytes = static_cast<std::size_t>(bytes);
    AttentionForward(TorchContext(), params, outputs);
  });
  return results;
}

std::array<Tensor, kInputs> AttentionBackwardCpu(const Tensor& d_out, const Tensor& q,
                                                 const Tensor& k, const Tensor& v,
                                                 const Tensor& tau, const Tensor& saved,
                                                 const AttentionOptions& options,
                                                 const AttentionWanted& wanted) {
  const KernelArguments call(q, k, v, options);
  const AttentionParams& params = call.params();
  // torch may have copied what the forward pass kept (checkpoints, hooks).
  const Tensor thresholds = tau.contiguous();
  Tensor lists = saved.contiguous();
  if (reinterpret_cast<std::uintptr_t>(lists.const_data_ptr()) % 64 != 0) lists = lists.clone();
  AttentionGradients gradients;
  gradients.d_out = View(d_out);
  gradients.tau = thresholds.const_data_ptr<double>();
  gradients.saved = lists.numel() > 0 ? lists.const_data_ptr() : nullptr;
  gradients.saved_bytes = static_cast<std::size_t>(lists.numel());
  std::array<Tensor, kInputs> results;
  const auto like = [&](AttentionInput input, const Tensor& tensor, bool has_gaps) {
    if (!wanted[input]) return MutableArray4{};
    results[input] =
        Output({tensor.size(0), tensor.size(1), tensor.size(2), tensor.size(3)}, tensor, has_gaps);
    return Write(results[input]);
  };
  gradients.dq = like(kQ, q, call.q_has_gaps());
  gradients.dk = like(kK, k, call.k_has_gaps());
  gradients.dv = like(kV, v, call.k_has_gaps());
  const auto doubles = [&](AttentionInput input, const std::vector<std::int64_t>& sizes) {
    if (!wanted[input]) return static_cast<double*>(nullptr);
    results[input] = at::zeros(sizes, at::TensorOptions().dtype(at::kDouble));
    return results[input].mutable_data_ptr<double>();
  };
  gradients.d_alpha = doubles(kAlpha, {params.heads});
  gradients.d_length_scale = doubles(kLengthScale, call.Rows());
  gradients.d_slopes = doubles(kSlopes, {call.array_batch(), params.heads});
  gradients.d_sink = doubles(kSink, {params.heads});
  if (wanted[kBias]) {
    const Tensor& bias = *options.bias;
    results[kBias] = at::Tensor(at::detail::empty_cpu(
        bias.sizes(), bias.scalar_type() == at::kDouble ? at::kDouble : at::kFloat));
    // Without a single score the kernel has nothing to write.
    if (params.batch * params.heads * params.q_len * params.k_len == 0) results[kBias].zero_();
    gradients.d_bias = Write(results[kBias].expand(call.Scores()));
  }
  Renamed([&] { AttentionBackward(TorchContext(), params, gradients); });
  const auto finish = [&](AttentionInput input, const OptionalTensor& tensor) {
    if (!wanted[input]) return;
    results[input] = As(results[input].sum_to_size(tensor->sizes()), tensor->scalar_type());
  };
  finish(kAlpha, options.alpha_heads);
  finish(kLengthScale, options.length_scale);
  finish(kSlopes, options.alibi_slopes);
  finish(kBias, options.bias);
  finish(kSink, options.sink);
  return results;
}

std::tuple<Tensor, Tensor, Tensor> AttentionWeightsCpu(const Tensor& q, const Tensor& k,
                                                       const AttentionOptions& options) {
  const KernelArguments call(q, k, Tensor(), options);
  const AttentionParams& params = call.params();
  const std::int64_t rows =
      (params.ranges.packed ? std::min<std::int64_t>(params.batch, 1) : params.batch) *
      params.heads * params.q_len;
  const Tensor counts = at::empty({rows}, at::kLong);
  const Tensor row_offsets = at::zeros({rows + 1}, at::kLong);
  Tensor columns, values;
  Renamed([&] {
    AttentionWeightCounts(TorchContext(), params, counts.mutable_data_ptr<std::int64_t>());
    auto* offsets = row_offsets.mutable_data_ptr<std::int64_t>();
    const auto* sizes = counts.const_data_ptr<std::int64_t>();
    for (std::int64_t row = 0; row < rows; ++row) offsets[row + 1] = offsets[row] + sizes[row];
    columns = at::empty({offsets[rows]}, at::kLong);
    values = at::empty({offsets[rows]}, at::kFloat);
    AttentionWeights(TorchContext(), params, offsets, columns.mutable_data_ptr<std::int64_t>(),
                     values.mutable_data_ptr<float>());
  });
  return {row_offsets, columns, values};
}

AttentionStatTensors StatsOf(const AttentionResults& results, at::ScalarType dtype) {
  const at::ScalarType kind = dtype == at::kDouble ? at::kDouble : at::kFloat;
  return {As(results.tau, kind), results.support_size, As(results.entropy, kind),
          As(results.maximum, kind)};
}

}  // namespace tsallis
