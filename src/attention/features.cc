#include "attention/features.h"

#include <cstdio>

#include "attention/geometry.h"

namespace tsallis {
namespace {

constexpr const char* kNames[] = {"float32",
                                  "bfloat16",
                                  "float16",
                                  "float64",
                                  "softmax",
                                  "entmax",
                                  "adaptive temperature",
                                  "top-k softmax",
                                  "sigmoid",
                                  "softpick",
                                  "stick-breaking",
                                  "a causal mask",
                                  "a window",
                                  "alignment of the first query with the first key",
                                  "a boolean mask",
                                  "a block mask",
                                  "sequences of several lengths",
                                  "packed sequences",
                                  "a scale beyond float32",
                                  "a length scale",
                                  "ALiBi slopes",
                                  "scale-invariant scores",
                                  "another shape of scale-invariant scores",
                                  "a soft cap",
                                  "a bias",
                                  "a sink",
                                  "columns that are not contiguous",
                                  "rows that do not begin at multiples of 16 bytes",
                                  "keys in pages",
                                  "columns of d_out that are not contiguous",
                                  "the gradient of alpha",
                                  "scores that round as those of a backward pass"};
static_assert(std::size(kNames) == static_cast<std::size_t>(Feature::kFeatures));

Feature FeatureOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat32: return Feature::kFloat32;
    case DType::kBFloat16: return Feature::kBFloat16;
    case DType::kFloat16: return Feature::kFloat16;
    case DType::kFloat64: break;
  }
  return Feature::kFloat64;
}

Feature FeatureOf(RowMap map) {
  switch (map) {
    case RowMap::kSoftmax: return Feature::kSoftmax;
    case RowMap::kAdaptiveTemperature: return Feature::kAdaptiveTemperature;
    case RowMap::kTopKSoftmax: return Feature::kTopKSoftmax;
    case RowMap::kSigmoid: return Feature::kSigmoid;
    case RowMap::kSoftpick: return Feature::kSoftpick;
    case RowMap::kStickBreaking: return Feature::kStickBreaking;
    case RowMap::kEntmax:
    case RowMap::kNormmax:  // not for attention: CheckAttention
    case RowMap::kBudget: break;
  }
  return Feature::kEntmax;
}

bool HasStridedColumns(const ConstArray4& array) { return array.strides[3] != 1; }

// sizes: of the first three axes.
bool HasUnalignedRows(const ConstArray4& array, const std::int64_t (&sizes)[3]) {
  const auto size = static_cast<std::int64_t>(SizeOf(array.dtype));
  bool unaligned = reinterpret_cast<std::uintptr_t>(array.data) % 16 != 0;
  for (int i = 0; i < 3; ++i) {
    unaligned |= sizes[i] > 1 && array.strides[i] * size % 16 != 0;
  }
  return unaligned;
}

std::string Number(double number) {
  char text[32];
  std::snprintf(text, sizeof(text), "%g", number);
  return text;
}

// Sizes that the kernel does not serve: why it cannot run; empty if it can.
std::string SizeRefusal(const Serves& serves, const AttentionParams& params) {
  if (params.head_dim > serves.most_columns || params.value_dim > serves.most_columns) {
    return "head size above " + std::to_string(serves.most_columns);
  }
  if (params.head_dim % serves.column_step != 0 || params.value_dim % serves.column_step != 0) {
    return "a head size that is not a multiple of " + std::to_string(serves.column_step);
  }
  return {};
}

// Says which alphas keep the kernel from running; empty if none does.
std::string AlphaRefusal(const Serves& serves, const AttentionParams& params) {
  if (params.map != RowMap::kEntmax) return {};
  bool all = true, any = params.heads == 0;
  for (std::int64_t h = 0; h < params.heads; ++h) {
    const bool served = serves.ServesAlpha(AlphaOf(params, h));
    all = all && served;
    any = any || served;
    if (params.alpha_per_head == nullptr) break;
  }
  if (all || (any && serves.some_heads)) return {};
  std::string text =
      "alpha outside [" + Number(serves.least_alpha) + ", " + Number(serves.most_alpha) + "]";
  if (serves.alpha_one && serves.least_alpha > 1.0) text += " and not 1";
  return text;
}

}  // namespace

const char* Name(Feature feature) { return kNames[static_cast<int>(feature)]; }

Features FeaturesOf(const AttentionParams& params) {
  // Every field has a name here, so that these lines do not compile if a field is added: its author
  // must say which feature it is, and no kernel ignores it in silence. Numbers of a map have no
  // feature but the map's.
  const auto& [batch, heads, kv_heads, q_len, k_len, head_dim, value_dim, q, k, v, alpha_per_head,
               mask, ranges, terms, gradients, pages] =
      static_cast<const AttentionArguments&>(params);
  const auto& [causal, alignment, left, right, visible, visible_strides, blocks, block_strides,
               block_q, block_k] = mask;
  const auto& [q_begin, q_end, k_begin, k_end, packed] = ranges;
  const auto& [scale, length_scale, softcap, alibi_slopes, scale_invariant, scale_invariant_alpha,
               scale_invariant_beta, bias, sink] = terms;
  Features asked = {FeatureOf(q.dtype), FeatureOf(params.map)};
  asked.Add(Feature::kCausal, causal);
  asked.Add(Feature::kWindow, left >= 0 || right >= 0);
  asked.Add(Feature::kStartAlignment, alignment == Alignment::kStart);
  asked.Add(Feature::kBooleanMask, visible != nullptr);
  asked.Add(Feature::kBlockMask, blocks != nullptr);
  asked.Add(Feature::kRanges,
            q_begin != nullptr || q_end != nullptr || k_begin != nullptr || k_end != nullptr);
  asked.Add(Feature::kPacked, packed);
  const double factor = ScaleOf(params);
  asked.Add(Feature::kVastScale, !(factor > 1e-30 && factor < 1e30));
  asked.Add(Feature::kLengthScale, length_scale.data != nullptr);
  asked.Add(Feature::kAlibi, alibi_slopes.data != nullptr);
  asked.Add(Feature::kScaleInvariant, scale_invariant != 0.0);
  asked.Add(Feature::kScaleInvariantShape,
            scale_invariant_alpha != 0.0 || scale_invariant_beta != 0.0);
  asked.Add(Feature::kSoftcap, softcap != 0.0);
  asked.Add(Feature::kBias, bias.data != nullptr);
  asked.Add(Feature::kSink, sink != nullptr);
  asked.Add(Feature::kGradients, gradients);
  asked.Add(Feature::kStridedColumns,
            HasStridedColumns(q) || HasStridedColumns(k) || HasStridedColumns(v));
  const std::int64_t q_sizes[] = {packed ? 1 : batch, heads, q_len};
  const std::int64_t k_sizes[] = {packed ? 1 : batch, kv_heads, k_len};
  asked.Add(Feature::kUnalignedRows, HasUnalignedRows(q, q_sizes) || HasUnalignedRows(k, k_sizes) ||
                                         HasUnalignedRows(v, k_sizes));
  asked.Add(Feature::kPages, pages != nullptr);
  return asked;
}

Features FeaturesOf(const AttentionParams& params, const AttentionGradients& gradients) {
  // These lines do not compile if a field is added, as above. The other gradients belong to
  // features of the call.
  const auto& [d_out, tau, saved, saved_bytes, dq, dk, dv, d_length_scale, d_alpha, d_slopes,
               d_sink, d_bias] = gradients;
  Features asked = FeaturesOf(params);
  asked.Add(Feature::kAlphaGradient, d_alpha != nullptr);
  asked.Add(Feature::kStridedGradient, HasStridedColumns(d_out));
  const std::int64_t sizes[] = {params.ranges.packed ? 1 : params.batch, params.heads,
                                params.q_len};
  asked.Add(Feature::kUnalignedRows, HasUnalignedRows(d_out, sizes));
  return asked;
}

std::string Refusal(const Serves& serves, const AttentionParams& params, const Features& asked,
                    Pass pass) {
  const bool forward = pass == Pass::kForward;
  const Features served =
      serves.features.Without(forward ? serves.backward_only : serves.forward_only);
  const Features lacking = asked.Without(served);
  for (int i = 0; i < static_cast<int>(Feature::kFeatures); ++i) {
    const auto feature = static_cast<Feature>(i);
    if (!lacking.Has(feature)) continue;
    // The begin of rows follows from their size: a caller has to change the size.
    if (feature == Feature::kUnalignedRows) {
      if (std::string text = SizeRefusal(serves, params); !text.empty()) return text;
    }
    const bool other = serves.features.Has(feature);  // it has the other pass
    return std::string(Name(feature)) + (!other ? "" : forward ? ", forward" : ", backward");
  }
  if (std::string text = AlphaRefusal(serves, params); !text.empty()) return text;
  if (std::string text = SizeRefusal(serves, params); !text.empty()) return text;
  if (serves.most_keys < params.k_len && MostKeys(params) > serves.most_keys) {
    return "more than " + std::to_string(serves.most_keys) + " keys";
  }
  return {};
}

}  // namespace tsallis
