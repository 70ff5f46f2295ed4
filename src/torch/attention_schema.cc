#include "torch/attention_schema.h"

#include <c10/util/Exception.h>

#include <limits>
#include <utility>
#include <vector>

#include "torch/row_view.h"

namespace tsallis {
namespace {

// One of two names; throws c10::ValueError.
template <typename Enum>
Enum OneOf(const char* argument, std::string_view name, Enum first, Enum second) {
  if (name == Name(first)) return first;
  TORCH_CHECK_VALUE(name == Name(second), argument, ": expected \"", Name(first), "\" or \"",
                    Name(second), "\", got \"", name, "\"");
  return second;
}

}  // namespace

const char* Name(Alignment alignment) { return alignment == Alignment::kEnd ? "end" : "start"; }

const char* Name(Padding padding) { return padding == Padding::kRight ? "right" : "left"; }

AttentionOptions Pack(TSALLIS_OPTIONS) {
  AttentionOptions o;
  o.alpha_heads = alpha_heads;
  o.length_scale = length_scale;
  o.alibi_slopes = alibi_slopes;
  o.bias = bias;
  o.mask = mask;
  o.block_mask = block_mask;
  o.lengths = lengths;
  o.query_lengths = query_lengths;
  o.cu_seqlens_q = cu_seqlens_q;
  o.cu_seqlens_k = cu_seqlens_k;
  o.map = RowMapFromName(map, AttentionMaps());
  o.alpha = alpha;
  o.scale = scale;
  o.scale_invariant = scale_invariant;
  o.causal = causal;
  o.alignment = OneOf("alignment", alignment, Alignment::kEnd, Alignment::kStart);
  o.left = left;
  o.right = right;
  o.block_q = block_q;
  o.block_k = block_k;
  o.padding = OneOf("padding", padding, Padding::kRight, Padding::kLeft);
  if (coefficients) o.adaptive.coefficients = coefficients->vec();
  if (threshold) o.adaptive.threshold = *threshold;
  o.saved_budget = saved_budget;
  o.sink = sink;
  o.top_k = {.k = top_k, .fraction = top_k_fraction};
  o.sigmoid_bias = sigmoid_bias;
  return o;
}

AttentionWanted HasGradientInput(const AttentionOptions& options) {
  return {true,
          true,
          true,
          options.alpha_heads.has_value(),
          options.length_scale.has_value(),
          options.alibi_slopes.has_value(),
          options.bias.has_value(),
          options.sink.has_value()};
}

void SaveOptions(torch::autograd::AutogradContext& context, const AttentionOptions& o,
                 torch::autograd::variable_list& saved) {
  // 0 stands for none: neither may be 0.
  std::vector<double> numbers = {
      o.alpha,          o.scale.value_or(0.0),        o.scale_invariant.value_or(0.0),
      o.top_k.fraction, o.sigmoid_bias.value_or(0.0), o.adaptive.threshold};
  numbers.insert(numbers.end(), o.adaptive.coefficients.begin(), o.adaptive.coefficients.end());
  context.saved_data["numbers"] = std::move(numbers);
  context.saved_data["integers"] = std::vector<std::int64_t>{static_cast<std::int64_t>(o.map),
                                                             o.causal ? 1 : 0,
                                                             static_cast<std::int64_t>(o.alignment),
                                                             o.left,
                                                             o.right,
                                                             o.block_q,
                                                             o.block_k,
                                                             static_cast<std::int64_t>(o.padding),
                                                             o.saved_budget,
                                                             o.top_k.k,
                                                             o.sigmoid_bias ? 1 : 0};
  for (const OptionalTensor AttentionOptions::*member : kOptionTensors) {
    saved.push_back((o.*member).value_or(at::Tensor()));
  }
}

AttentionOptions LoadOptions(const torch::autograd::AutogradContext& context,
                             const torch::autograd::variable_list& saved, std::size_t first) {
  const std::vector<double> numbers = context.saved_data.at("numbers").toDoubleVector();
  const std::vector<std::int64_t> integers = context.saved_data.at("integers").toIntVector();
  const auto positive = [](double number) {
    return number > 0.0 ? std::optional<double>(number) : std::nullopt;
  };
  AttentionOptions o;
  o.alpha = numbers[0];
  o.scale = positive(numbers[1]);
  o.scale_invariant = positive(numbers[2]);
  o.top_k.fraction = numbers[3];
  o.adaptive.threshold = numbers[5];
  o.adaptive.coefficients.assign(numbers.begin() + 6, numbers.end());
  o.map = static_cast<RowMap>(integers[0]);
  o.causal = integers[1] != 0;
  o.alignment = static_cast<Alignment>(integers[2]);
  o.left = integers[3];
  o.right = integers[4];
  o.block_q = integers[5];
  o.block_k = integers[6];
  o.padding = static_cast<Padding>(integers[7]);
  o.saved_budget = integers[8];
  o.top_k.k = integers[9];
  if (integers[10] != 0) o.sigmoid_bias = numbers[4];
  for (OptionalTensor AttentionOptions::*member : kOptionTensors) {
    const at::Tensor& tensor = saved[first++];
    if (tensor.defined()) o.*member = tensor;
  }
  return o;
}

}  // namespace tsallis
