#include "attention/cuda/cuda.h"

#include <cmath>
#include <string>

#include "attention/check.h"
#include "attention/cuda/launch.h"
#include "attention/geometry.h"
#include "core/cuda/support.h"
#include "tsallis/error.h"

namespace tsallis::cuda {
namespace {

// The backward pass finds weights again by a threshold in double, which says less and less of them
// the closer alpha is to 1.
void CheckAlpha(const AttentionParams& params, std::int64_t h) {
  const double alpha = AlphaOf(params, h);
  if (alpha == 1.0 || std::abs(alpha - 1.0) >= 1e-9) return;
  const bool per_head = params.alpha_per_head != nullptr;
  throw InvalidArgument(per_head ? "alpha_per_head[" + std::to_string(h) + "]" : "alpha",
                        "1, or a number at least 1e-9 away from it, on a CUDA device",
                        "1 + " + std::to_string((alpha - 1.0) * 1e9) + "e-9");
}

// The params of a call for weights, which needs no values.
AttentionParams WithoutValues(AttentionParams params) {
  params.v = params.k;
  params.value_dim = params.head_dim;
  return params;
}

// The passes for the call's dtype.
const Launches& Served(const AttentionParams& params, const Features& asked, Pass pass,
                       const Serves& serves = kServes) {
  const std::string refusal = Refusal(serves, params, asked, pass);
  if (!refusal.empty()) {
    throw InvalidArgument("context.device",
                          "kCpu, as the CUDA kernels do not serve this: " + refusal, "kCuda");
  }
  for (std::int64_t h = 0; params.map == RowMap::kEntmax && h < params.heads; ++h) {
    CheckAlpha(params, h);
    if (params.alpha_per_head == nullptr) break;
  }
  // Sizes of grids.
  CheckMost("batch", params.batch, 65535);
  CheckMost("heads", params.heads, 65535);
  const std::int64_t group = params.kv_heads > 0 ? params.heads / params.kv_heads : 1;
  CheckMost("q_len heads / kv_heads", params.q_len * group, kMostRows);
  CheckMost("k_len", params.k_len, kMostKeys);
#if defined(TSALLIS_HAS_CUDA)
  switch (params.q.dtype) {
    case DType::kFloat32: return kFloat32Launches;
    case DType::kFloat16: return kFloat16Launches;
    default: return kBFloat16Launches;
  }
#else
  ThrowNotCompiled();
#endif
}

void CheckNotSaved(std::size_t bytes) {
  if (bytes == 0) return;
  throw InvalidArgument("saved_bytes", "0, as CUDA kernels save no lists of pages",
                        std::to_string(bytes));
}

void CheckPageRows(const char* name, const ConstArray4& array, const std::int64_t (&sizes)[4]) {
  const auto size = static_cast<std::int64_t>(SizeOf(array.dtype));
  bool served = reinterpret_cast<std::uintptr_t>(array.data) % 16 == 0 && array.strides[3] == 1;
  for (int i = 0; i < 3; ++i) {
    served =
        served && (sizes[i] <= 1 || (array.strides[i] >= 0 && array.strides[i] * size % 16 == 0));
  }
  if (served) return;
  throw InvalidArgument(name,
                        "rows that begin at multiples of 16 bytes, columns side by side and no "
                        "negative strides, on a CUDA device",
                        "others");
}

const Launches& ServedOnPages(const AttentionParams& params, const AttentionPages& pages) {
  CheckPageRows("q", params.q, {params.batch, params.heads, params.q_len, params.head_dim});
  CheckPageRows("pages.k", pages.k,
                {pages.pages, params.kv_heads, pages.page_size, params.head_dim});
  CheckPageRows("pages.v", pages.v,
                {pages.pages, params.kv_heads, pages.page_size, params.value_dim});
  CheckMost("pages.pages", pages.pages, 0x7FFFFFFF);
  return Served(params, FeaturesOf(params).Without({Feature::kUnalignedRows}), Pass::kForward,
                kServesOnPages);
}

}  // namespace

void Forward(const Context& context, const AttentionParams& params,
             const AttentionOutputs& outputs) {
  CheckAttention(params, DeviceKind::kCuda);
  CheckOutputs(params, outputs);
  Served(params, FeaturesOf(params), Pass::kForward).forward(context, params, outputs);
}

void Backward(const Context& context, const AttentionParams& params,
              const AttentionGradients& gradients) {
  CheckAttention(params, DeviceKind::kCuda);
  CheckGradients(params, gradients);
  Served(params, FeaturesOf(params, gradients), Pass::kBackward)
      .backward(context, params, gradients);
}

void WeightCounts(const Context& context, const AttentionParams& params, std::int64_t* counts) {
  CheckAttention(params, DeviceKind::kCuda);
  CheckWeightCounts(params, counts);
  const AttentionParams here = WithoutValues(params);
  Served(here, FeaturesOf(here), Pass::kForward).weight_counts(context, here, counts);
}

void Weights(const Context& context, const AttentionParams& params, const std::int64_t* row_offsets,
             std::int64_t* columns, float* values) {
  CheckAttention(params, DeviceKind::kCuda);
  CheckWeights(params, row_offsets, columns, values, DeviceKind::kCuda);
  const AttentionParams here = WithoutValues(params);
  Served(here, FeaturesOf(here), Pass::kForward)
      .weights(context, here, row_offsets, columns, values);
}

std::size_t WorkspaceBytes(const AttentionParams& params, bool backward) {
  CheckAttention(params, DeviceKind::kCuda);
  const Pass pass = backward ? Pass::kBackward : Pass::kForward;
  return Served(params, FeaturesOf(params), pass).workspace_bytes(params, backward);
}

std::size_t SavedBytes(const AttentionParams& params) {
  CheckAttention(params, DeviceKind::kCuda);
  return Served(params, FeaturesOf(params), Pass::kBackward).saved_bytes(params);
}

void ForwardOnPages(const Context& context, const AttentionParams& params,
                    const AttentionPages& pages, const AttentionOutputs& outputs) {
  CheckNotSaved(outputs.saved_bytes);
  ServedOnPages(params, pages).on_pages(context, params, pages, outputs);
}

std::size_t OnPagesWorkspaceBytes(const AttentionParams& params, const AttentionPages& pages) {
  return ServedOnPages(params, pages).on_pages_workspace_bytes(params, pages);
}

}  // namespace tsallis::cuda
