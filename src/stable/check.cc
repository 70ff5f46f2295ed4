// Checks the arguments of attention as far as this needs no element of a tensor.
#include <algorithm>

#include "stable/arguments.h"

namespace tsallis::stable {

std::string NamesOf(const std::vector<RowMap>& maps) {
  std::string names;
  for (const RowMap map : maps) names += (names.empty() ? "" : ", ") + std::string(Name(map));
  return names;
}

void CheckFloating(const Tensor& tensor, const char* argument) {
  if (!tensor.defined()) throw InvalidArgument(argument, "a tensor", "None");
  const std::int32_t dtype = tensor.dtype();
  if (dtype != dtypes::kFloat32 && dtype != dtypes::kFloat64 && dtype != dtypes::kBFloat16 &&
      dtype != dtypes::kFloat16) {
    throw InvalidArgument(argument, "dtype float32, float64, bfloat16 or float16",
                          DTypeName(dtype));
  }
  if (!tensor.dense()) throw InvalidArgument(argument, "a dense tensor", "one of another layout");
}

void CheckDevice(const Tensor& tensor, const char* argument, const Tensor& q) {
  if (tensor.device() != q.device()) {
    throw InvalidArgument(argument, "the device of q, " + q.device().Name(),
                          tensor.device().Name());
  }
  if (!tensor.dense()) throw InvalidArgument(argument, "a dense tensor", "one of another layout");
}

void CheckDType(const Tensor& tensor, const char* argument, const Tensor& q) {
  if (tensor.dtype() == q.dtype()) return;
  throw InvalidArgument(argument, "the dtype of q, " + DTypeName(q.dtype()),
                        DTypeName(tensor.dtype()));
}

void CheckIntegers(const Tensor& tensor, const char* argument, const Tensor& q) {
  if (!tensor.defined()) throw InvalidArgument(argument, "a tensor", "None");
  CheckDevice(tensor, argument, q);
  if (tensor.dtype() != dtypes::kInt32 && tensor.dtype() != dtypes::kInt64) {
    throw InvalidArgument(argument, "dtype int32 or int64", DTypeName(tensor.dtype()));
  }
}

void CheckGroups(std::int64_t heads, std::int64_t kv_heads) {
  if (kv_heads == 0 ? heads == 0 : heads % kv_heads == 0) return;
  throw InvalidArgument("q", "a multiple of kv_heads = " + std::to_string(kv_heads) + " heads",
                        std::to_string(heads));
}

namespace {

// `tensor` broadcasts to `target`; axes: names of its dimensions.
void CheckBroadcasts(const Tensor& tensor, const char* argument, const char* axes, Sizes target) {
  const auto rank = static_cast<std::int64_t>(target.size());
  bool fits = tensor.dim() <= rank;
  const std::int64_t offset = rank - tensor.dim();
  for (std::int64_t d = 0; fits && d < tensor.dim(); ++d) {
    fits = tensor.size(d) == 1 || tensor.size(d) == target[d + offset];
  }
  if (fits) return;
  throw InvalidArgument(argument,
                        "a shape that broadcasts to " + std::string(axes) + " = " + Text(target),
                        Text(tensor.sizes()));
}

void CheckRank4(const Tensor& tensor, const char* argument, const char* shape) {
  CheckFloating(tensor, argument);
  if (tensor.dim() != 4) throw InvalidArgument(argument, shape, Text(tensor.sizes()));
}

void CheckSame(const char* argument, const char* size_name, std::int64_t size,
               std::int64_t expected) {
  if (size == expected) return;
  throw InvalidArgument(argument, std::string(size_name) + " = " + std::to_string(expected),
                        std::to_string(size));
}

void CheckLikeQ(const Tensor& tensor, const char* argument, const Tensor& q) {
  CheckDevice(tensor, argument, q);
  CheckDType(tensor, argument, q);
  CheckSame(argument, "batch", tensor.size(0), q.size(0));
}

void CheckMask(const Tensor& mask, const char* argument, const char* axes, Sizes target,
               const Tensor& q) {
  if (!mask.defined()) return;
  CheckDevice(mask, argument, q);
  if (mask.dtype() != dtypes::kBool) {
    throw InvalidArgument(argument, "dtype bool (true = visible)", DTypeName(mask.dtype()));
  }
  CheckBroadcasts(mask, argument, axes, target);
}

void CheckTerm(const Tensor& tensor, const char* argument, const char* axes, Sizes target,
               const Tensor& q) {
  if (!tensor.defined()) return;
  CheckFloating(tensor, argument);
  CheckDevice(tensor, argument, q);
  CheckBroadcasts(tensor, argument, axes, target);
}

void CheckList(const Tensor& tensor, const char* argument, const Tensor& q) {
  if (!tensor.defined()) return;
  CheckIntegers(tensor, argument, q);
  if (tensor.dim() != 1) throw InvalidArgument(argument, "one dimension", Text(tensor.sizes()));
}

}  // namespace

void AttentionArguments::CheckMap(const Tensor& q) const {
  const RowMap map = params.map;
  const std::vector<RowMap>& served = AttentionMaps();
  if (std::find(served.begin(), served.end(), map) == served.end()) {
    throw InvalidArgument("map", "one of " + NamesOf(served), Name(map));
  }
  if (map == RowMap::kStickBreaking && !params.mask.causal) {
    throw InvalidArgument("causal", "True for stick_breaking, which goes back from the query",
                          "False");
  }
  const TopK& top_k = params.top_k;
  if (map == RowMap::kTopKSoftmax && top_k.k < 1) {
    throw InvalidArgument("top_k", "an integer >= 1 for top_k_softmax", std::to_string(top_k.k));
  }
  const std::string none = std::string("None for ") + Name(map);
  if (map != RowMap::kTopKSoftmax && (top_k.k != 0 || top_k.fraction != 0.0)) {
    throw InvalidArgument("top_k", none,
                          std::to_string(top_k.k) + " and a fraction of " + Text(top_k.fraction));
  }
  if (map != RowMap::kSigmoid && params.sigmoid_bias) {
    throw InvalidArgument("sigmoid_bias", none, Text(*params.sigmoid_bias));
  }
  const AdaptiveTemperature& adaptive = params.adaptive;
  const AdaptiveTemperature published;
  if (map != RowMap::kAdaptiveTemperature && adaptive.coefficients != published.coefficients) {
    throw InvalidArgument("coefficients", none,
                          "a list of " + std::to_string(adaptive.coefficients.size()));
  }
  if (map != RowMap::kAdaptiveTemperature && adaptive.threshold != published.threshold) {
    throw InvalidArgument("threshold", none, Text(adaptive.threshold));
  }
  const std::int64_t heads[1] = {q.size(1)};
  if (sink.defined() && !TakesSink(map)) {
    CheckFloating(sink, "sink");
    throw InvalidArgument("sink", none, "a tensor");
  }
  CheckTerm(sink, "sink", "[heads]", heads, q);
  if (!alpha_heads.defined()) return;
  CheckFloating(alpha_heads, "alpha");
  if (map != RowMap::kEntmax) {
    throw InvalidArgument("alpha", std::string("none for ") + Name(map), "a tensor");
  }
  CheckTerm(alpha_heads, "alpha", "[heads]", heads, q);
}

void AttentionArguments::CheckRanges(const Tensor& q, const Tensor& k) const {
  CheckList(lengths, "lengths", q);
  CheckList(query_lengths, "query_lengths", q);
  CheckList(cu_seqlens_q, "cu_seqlens_q", q);
  CheckList(cu_seqlens_k, "cu_seqlens_k", q);
  const std::int64_t batch = q.size(0);
  if (cu_seqlens_k.defined() && !cu_seqlens_q.defined()) {
    throw InvalidArgument("cu_seqlens_q", "a tensor beside cu_seqlens_k", "None");
  }
  if (cu_seqlens_q.defined()) {
    if (lengths.defined() || query_lengths.defined()) {
      throw InvalidArgument("lengths", "None for packed sequences (cu_seqlens_q)", "a tensor");
    }
    if (batch != 1) {
      throw InvalidArgument("q", "batch = 1 for packed sequences (cu_seqlens_q)",
                            std::to_string(batch));
    }
    const std::int64_t count = cu_seqlens_q.size(0);
    if (count < 1) throw InvalidArgument("cu_seqlens_q", "sequences + 1 numbers", "none");
    if (cu_seqlens_k.defined()) {
      CheckSame("cu_seqlens_k", "as many numbers as cu_seqlens_q", cu_seqlens_k.size(0), count);
    }
    return;
  }
  if (lengths.defined()) CheckSame("lengths", "batch", lengths.size(0), batch);
  if (query_lengths.defined()) CheckSame("query_lengths", "batch", query_lengths.size(0), batch);
  // Self-attention on a right-padded batch, told about its keys only: the last query, a padded one,
  // would stand at the last key, and every other query too early.
  const AttentionMask& m = params.mask;
  const bool has_positions = m.causal || m.left >= 0 || m.right >= 0 || alibi_slopes.defined() ||
                             params.terms.scale_invariant != 0.0;
  if (lengths.defined() && !query_lengths.defined() && padding == Padding::kRight &&
      m.alignment == Alignment::kEnd && has_positions && q.size(2) != 1 && q.size(2) == k.size(2)) {
    throw InvalidArgument("query_lengths",
                          "the lengths of the queries (for self-attention: lengths), as positions "
                          "of a right-padded batch count from the ends of both, or alignment "
                          "\"start\"",
                          "None");
  }
}

void AttentionArguments::Check(const Tensor& q, const Tensor& k, const Tensor& v) const {
  if (mistake) throw InvalidArgument(*mistake);
  CheckRank4(q, "q", "[batch, heads, q_len, head_dim]");
  CheckRank4(k, "k", "[batch, kv_heads, k_len, head_dim]");
  CheckLikeQ(k, "k", q);
  CheckSame("k", "head_dim", k.size(3), q.size(3));
  const std::int64_t heads = q.size(1), kv_heads = k.size(1);
  CheckGroups(heads, kv_heads);
  if (v.defined()) {
    CheckRank4(v, "v", "[batch, kv_heads, k_len, value_dim]");
    CheckLikeQ(v, "v", q);
    CheckSame("v", "kv_heads", v.size(1), kv_heads);
    CheckSame("v", "k_len", v.size(2), k.size(2));
  }
  CheckMap(q);
  if (saved_budget < 0) {
    throw InvalidArgument("saved_budget", "bytes >= 0", std::to_string(saved_budget));
  }
  const std::int64_t scores[4] = {q.size(0), heads, q.size(2), k.size(2)};
  const char* axes = "[batch, heads, q_len, k_len]";
  CheckTerm(bias, "bias", axes, scores, q);
  CheckMask(mask, "mask", axes, scores, q);
  if (block_mask.defined()) {
    const std::int64_t block_q = params.mask.block_q, block_k = params.mask.block_k;
    if (block_q <= 0 || block_k <= 0) {
      throw InvalidArgument("block_size", "two numbers > 0 beside block_mask",
                            std::to_string(block_q) + " and " + std::to_string(block_k));
    }
    const std::int64_t blocks[4] = {scores[0], heads, Blocks(scores[2], block_q),
                                    Blocks(scores[3], block_k)};
    CheckMask(block_mask, "block_mask", "[batch, heads, q_blocks, k_blocks]", blocks, q);
  }
  CheckTerm(length_scale, "length_scale", "[batch, heads, q_len]", Sizes(scores, 3), q);
  CheckTerm(alibi_slopes, "alibi_slopes", "[batch, heads]", Sizes(scores, 2), q);
  CheckRanges(q, k);
}

}  // namespace tsallis::stable
