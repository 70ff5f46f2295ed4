// Checks a call of attention as far as this needs no element of a tensor.
#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "torch/attention.h"
#include "torch/row_view.h"

namespace tsallis {

void CheckBroadcasts(const at::Tensor& tensor, const char* argument, const char* axes,
                     at::ArrayRef<c10::SymInt> target) {
  const auto rank = static_cast<std::int64_t>(target.size());
  bool fits = tensor.dim() <= rank;
  const std::int64_t offset = rank - tensor.dim();
  for (std::int64_t d = 0; fits && d < tensor.dim(); ++d) {
    const c10::SymInt size = tensor.sym_size(d);
    fits = size == 1 || size == target[d + offset];
  }
  TORCH_CHECK_VALUE(fits, argument, ": expected a shape that broadcasts to ", axes, " = ", target,
                    ", got ", tensor.sym_sizes());
}

namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

constexpr std::int64_t kReservedBytesPerRow = 512;

void CheckRank4(const Tensor& tensor, const char* argument, const char* shape) {
  CheckScores(tensor, argument);
  TORCH_CHECK_VALUE(tensor.dim() == 4, argument, ": expected ", shape, ", got ",
                    tensor.sym_sizes());
}

void CheckSame(const char* argument, const char* what, const c10::SymInt& size,
               const c10::SymInt& expected) {
  TORCH_CHECK_VALUE(size == expected, argument, ": expected ", what, " = ", expected, ", got ",
                    size);
}

void CheckDevice(const Tensor& tensor, const char* argument, const Tensor& q) {
  TORCH_CHECK_VALUE(tensor.device() == q.device(), argument, ": expected the device of q, ",
                    q.device(), ", got ", tensor.device());
  TORCH_CHECK_VALUE(tensor.layout() == at::kStrided, argument, ": expected a dense tensor, got ",
                    tensor.layout());
}

void CheckMask(const OptionalTensor& mask, const char* argument, const char* axes,
               at::ArrayRef<c10::SymInt> target, const Tensor& q) {
  if (!mask) return;
  CheckDevice(*mask, argument, q);
  TORCH_CHECK_VALUE(mask->scalar_type() == at::kBool, argument,
                    ": expected dtype bool (true = visible), got ", mask->scalar_type());
  CheckBroadcasts(*mask, argument, axes, target);
}

void CheckFloating(const OptionalTensor& tensor, const char* argument, const Tensor& q) {
  if (!tensor) return;
  CheckScores(*tensor, argument);
  CheckDevice(*tensor, argument, q);
}

void CheckIntegers(const OptionalTensor& tensor, const char* argument, const Tensor& q) {
  if (!tensor) return;
  CheckDevice(*tensor, argument, q);
  TORCH_CHECK_VALUE(tensor->scalar_type() == at::kInt || tensor->scalar_type() == at::kLong,
                    argument, ": expected dtype int32 or int64, got ", tensor->scalar_type());
  TORCH_CHECK_VALUE(tensor->dim() == 1, argument, ": expected one dimension, got ",
                    tensor->sym_sizes());
}

void CheckMap(const AttentionOptions& options, const AttentionSizes& sizes, const Tensor& q) {
  const RowMap map = options.map;
  const std::vector<RowMap>& served = AttentionMaps();
  TORCH_CHECK_VALUE(std::find(served.begin(), served.end(), map) != served.end(),
                    "map: expected one of ", NamesOf(served), ", got ", Name(map));
  TORCH_CHECK_VALUE(map != RowMap::kStickBreaking || options.causal,
                    "causal: expected True for stick_breaking, which goes back from the query, got "
                    "False");
  const TopK& top_k = options.top_k;
  TORCH_CHECK_VALUE(map != RowMap::kTopKSoftmax || top_k.k >= 1,
                    "top_k: expected an integer >= 1 for top_k_softmax, got ", top_k.k);
  TORCH_CHECK_VALUE(map == RowMap::kTopKSoftmax || (top_k.k == 0 && top_k.fraction == 0.0),
                    "top_k: expected None for ", Name(map), ", got ", top_k.k,
                    " and a fraction of ", top_k.fraction);
  TORCH_CHECK_VALUE(map == RowMap::kSigmoid || !options.sigmoid_bias,
                    "sigmoid_bias: expected None for ", Name(map), ", got ",
                    options.sigmoid_bias.value_or(0.0));
  CheckFloating(options.sink, "sink", q);
  TORCH_CHECK_VALUE(TakesSink(map) || !options.sink, "sink: expected None for ", Name(map),
                    ", got a tensor");
  if (options.sink) CheckBroadcasts(*options.sink, "sink", "[heads]", {sizes.heads});
  CheckFloating(options.alpha_heads, "alpha", q);
  if (!options.alpha_heads) return;
  TORCH_CHECK_VALUE(map == RowMap::kEntmax, "alpha: expected none for ", Name(map),
                    ", got a tensor");
  CheckBroadcasts(*options.alpha_heads, "alpha", "[heads]", {sizes.heads});
}

// Whether the answer depends on where queries stand among the keys.
bool HasPositions(const AttentionOptions& options) {
  return options.causal || options.left >= 0 || options.right >= 0 || options.alibi_slopes ||
         options.terms.scale_invariant != 0.0;
}

void CheckRanges(const AttentionOptions& options, const AttentionSizes& sizes, const Tensor& q) {
  CheckIntegers(options.lengths, "lengths", q);
  CheckIntegers(options.query_lengths, "query_lengths", q);
  CheckIntegers(options.cu_seqlens_q, "cu_seqlens_q", q);
  CheckIntegers(options.cu_seqlens_k, "cu_seqlens_k", q);
  TORCH_CHECK_VALUE(options.cu_seqlens_q || !options.cu_seqlens_k,
                    "cu_seqlens_q: expected a tensor beside cu_seqlens_k, got None");
  if (options.cu_seqlens_q) {
    TORCH_CHECK_VALUE(!options.lengths && !options.query_lengths,
                      "lengths: expected None for packed sequences (cu_seqlens_q), got a tensor");
    TORCH_CHECK_VALUE(sizes.batch == 1,
                      "q: expected batch = 1 for packed sequences (cu_seqlens_q), got ",
                      sizes.batch);
    const c10::SymInt count = options.cu_seqlens_q->sym_size(0);
    TORCH_CHECK_VALUE(count >= 1, "cu_seqlens_q: expected sequences + 1 numbers, got none");
    if (options.cu_seqlens_k) {
      CheckSame("cu_seqlens_k", "as many numbers as cu_seqlens_q",
                options.cu_seqlens_k->sym_size(0), count);
    }
    return;
  }
  if (options.lengths) {
    CheckSame("lengths", "batch", options.lengths->sym_size(0), sizes.batch);
  }
  if (options.query_lengths) {
    CheckSame("query_lengths", "batch", options.query_lengths->sym_size(0), sizes.batch);
  }
  // Self-attention on a right-padded batch, told about its keys only: the last query, a padded one,
  // would stand at the last key, and every other query too early.
  const bool doubtful = options.lengths && !options.query_lengths &&
                        options.padding == Padding::kRight &&
                        options.alignment == Alignment::kEnd && HasPositions(options) &&
                        sizes.q_len != 1 && sizes.q_len == sizes.k_len;
  TORCH_CHECK_VALUE(!doubtful,
                    "query_lengths: expected the lengths of the queries (for self-attention: "
                    "lengths), as positions of a right-padded batch count from the ends of both, "
                    "or alignment \"start\"; got None");
}

}  // namespace

AttentionSizes CheckAttentionTensors(const Tensor& q, const Tensor& k, const Tensor& v,
                                     const AttentionOptions& options) {
  CheckRank4(q, "q", "[batch, heads, q_len, head_dim]");
  CheckRank4(k, "k", "[batch, kv_heads, k_len, head_dim]");
  AttentionSizes sizes{
      q.sym_size(0), q.sym_size(1), k.sym_size(1), q.sym_size(2), k.sym_size(2), q.sym_size(3), 1};
  const auto like_q = [&](const Tensor& tensor, const char* argument) {
    CheckDevice(tensor, argument, q);
    TORCH_CHECK_VALUE(tensor.scalar_type() == q.scalar_type(), argument,
                      ": expected the dtype of q, ", q.scalar_type(), ", got ",
                      tensor.scalar_type());
    CheckSame(argument, "batch", tensor.sym_size(0), sizes.batch);
  };
  like_q(k, "k");
  CheckSame("k", "head_dim", k.sym_size(3), sizes.head_dim);
  const bool grouped = sizes.kv_heads == 0 ? sizes.heads == 0 : sizes.heads % sizes.kv_heads == 0;
  TORCH_CHECK_VALUE(grouped, "q: expected a multiple of kv_heads = ", sizes.kv_heads,
                    " heads, got ", sizes.heads);
  if (v.defined()) {
    CheckRank4(v, "v", "[batch, kv_heads, k_len, value_dim]");
    like_q(v, "v");
    CheckSame("v", "kv_heads", v.sym_size(1), sizes.kv_heads);
    CheckSame("v", "k_len", v.sym_size(2), sizes.k_len);
    sizes.value_dim = v.sym_size(3);
  }
  CheckMap(options, sizes, q);
  TORCH_CHECK_VALUE(options.saved_budget >= 0, "saved_budget: expected bytes >= 0, got ",
                    options.saved_budget);

  const c10::SymInt scores[4] = {sizes.batch, sizes.heads, sizes.q_len, sizes.k_len};
  CheckFloating(options.bias, "bias", q);
  const char* axes = "[batch, heads, q_len, k_len]";
  if (options.bias) CheckBroadcasts(*options.bias, "bias", axes, scores);
  CheckMask(options.mask, "mask", axes, scores, q);
  if (options.block_mask) {
    TORCH_CHECK_VALUE(options.block_q > 0 && options.block_k > 0,
                      "block_size: expected two numbers > 0 beside block_mask, got ",
                      options.block_q, " and ", options.block_k);
    const c10::SymInt blocks[4] = {sizes.batch, sizes.heads,
                                   (sizes.q_len + (options.block_q - 1)) / options.block_q,
                                   (sizes.k_len + (options.block_k - 1)) / options.block_k};
    CheckMask(options.block_mask, "block_mask", "[batch, heads, q_blocks, k_blocks]", blocks, q);
  }
  CheckFloating(options.length_scale, "length_scale", q);
  if (options.length_scale) {
    CheckBroadcasts(*options.length_scale, "length_scale", "[batch, heads, q_len]",
                    {sizes.batch, sizes.heads, sizes.q_len});
  }
  CheckFloating(options.alibi_slopes, "alibi_slopes", q);
  if (options.alibi_slopes) {
    CheckBroadcasts(*options.alibi_slopes, "alibi_slopes", "[batch, heads]",
                    {sizes.batch, sizes.heads});
  }
  CheckRanges(options, sizes, q);
  return sizes;
}

std::array<c10::SymInt, 4> AttentionLayout(const std::array<c10::SymInt, 4>& sizes,
                                           const Tensor& like) {
  // As torch does, an empty axis counts as one: strides of 0 mean repetition.
  const c10::SymInt heads = sizes[1].max(1), rows = sizes[2].max(1), row = sizes[3].max(1);
  if (like.sym_stride(1) < like.sym_stride(2)) return {heads * rows * row, row, heads * row, 1};
  return {heads * rows * row, rows * row, row, 1};
}

c10::SymInt ReservedBytes(const Tensor& q, const AttentionOptions& options) {
  const bool sparse = options.map == RowMap::kEntmax &&
                      (options.alpha_heads || options.alpha != 1.0) && !options.sink;
  if (!sparse || q.scalar_type() == at::kDouble) return 0;
  const c10::SymInt rows = q.sym_size(0) * q.sym_size(1) * q.sym_size(2);
  return (rows * kReservedBytesPerRow).min(options.saved_budget);
}

}  // namespace tsallis
