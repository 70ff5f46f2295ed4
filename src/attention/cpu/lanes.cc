#include "attention/cpu/lanes.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "attention/kernels.h"
#include "core/parallel.h"
#include "tsallis/error.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attention/cpu/lanes.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include "attention/cpu/lanes_run-inl.h"

#if HWY_ONCE
namespace tsallis {

HWY_EXPORT(LanesForwardRange);
HWY_EXPORT(LanesBackwardRange);
HWY_EXPORT(LanesTargetHere);

const char* LanesTarget() { return HWY_DYNAMIC_DISPATCH(LanesTargetHere)(); }

DistanceTable::DistanceTable(const AttentionParams& params) {
  const double length = params.terms.scale_invariant;
  if (length == 0.0) return;
  std::int64_t most = 0;
  for (std::int64_t b = 0; b < params.batch; ++b) {
    const Sequence sequence = Sequence::Of(params, b);
    least = std::min(least, sequence.Distance(sequence.q.begin, sequence.k.end));
    most = std::max(most, sequence.Distance(sequence.q.end, sequence.k.begin));
  }
  // Whole tiles of keys and whole blocks of queries reach beyond the sequence.
  least -= static_cast<std::int64_t>(kPadding);
  most += static_cast<std::int64_t>(kMostLanes);
  for (std::int64_t distance = least; distance <= most; ++distance) {
    const DistanceFactor factor = DistanceFactor::At(length, distance);
    a.push_back(static_cast<float>(factor.a));
    m.push_back(static_cast<float>(factor.m));
  }
}

std::size_t LanesScratch::Floats(std::size_t most_keys, const AttentionParams& params,
                                 bool backward) {
  const std::size_t keys = Padded(most_keys);
  const std::size_t d = Padded(static_cast<std::size_t>(params.head_dim));
  const std::size_t e = Padded(static_cast<std::size_t>(params.value_dim));
  const std::size_t forward =
      keys * (d + e + 2 * kMostLanes) + kMostLanes * (d + 2 * std::max(d, e));
  return forward + (backward ? keys * (kMostLanes + d + e) + kMostLanes * (d + e) : 0);
}

LanesScratch::LanesScratch(std::size_t most_keys, const AttentionParams& params, bool backward)
    : memory(hwy::AllocateAligned<float>(Floats(most_keys, params, backward) + kMostLanes)) {
  if (memory == nullptr) throw std::bad_alloc();
  const std::size_t keys = Padded(most_keys);
  const std::size_t dims = Padded(static_cast<std::size_t>(params.head_dim));
  const std::size_t values = Padded(static_cast<std::size_t>(params.value_dim));
  float* at = memory.get();
  const auto take = [&](std::size_t floats) {
    float* const here = at;
    at += floats;
    return here;
  };
  k = take(keys * dims);
  v = take(keys * values);
  q = take(kMostLanes * dims);
  columns = take(kMostLanes * std::max(dims, values));
  block = take(kMostLanes * std::max(dims, values));
  scores = take(keys * kMostLanes);
  weights = take(keys * kMostLanes);
  if (!backward) {
    scaled_q = d_out = slopes = dk = dv = nullptr;
    return;
  }
  scaled_q = take(kMostLanes * dims);
  d_out = take(kMostLanes * values);
  slopes = take(keys * kMostLanes);
  dk = take(keys * dims);
  dv = take(keys * values);
}

namespace {

std::int64_t MostKeys(const AttentionParams& params) {
  std::int64_t most = 0;
  for (std::int64_t b = 0; b < params.batch; ++b) {
    most = std::max(most, Sequence::Of(params, b).k.size());
  }
  return most;
}

// Outputs of this many bytes are gone from the second-level cache before anyone reads them.
constexpr std::int64_t kStreamBytes = std::int64_t{4} << 20;

bool Streams(const AttentionParams& params, std::int64_t row_bytes) {
  return ArrayBatch(params) * params.heads * params.q_len * row_bytes >= kStreamBytes;
}

std::string Refuses(const AttentionParams& params) {
  if (params.q.dtype == DType::kFloat64) return "float64";
  if (params.map != RowMap::kSoftmax && params.map != RowMap::kEntmax) return Name(params.map);
  for (std::int64_t h = 0; params.map == RowMap::kEntmax && h < params.heads; ++h) {
    const double alpha = AlphaOf(params, h);
    if (alpha > 2.0) return "alpha above 2";
    if (alpha > 1.0 && alpha < kLanesLeastAlpha) return "alpha just above 1";
    if (params.alpha_per_head == nullptr) break;
  }
  if (params.mask.visible != nullptr) return "boolean mask";
  if (params.mask.blocks != nullptr) return "block mask";
  if (params.terms.bias.data != nullptr) return "bias";
  const double scale = ScaleOf(params);
  if (!(scale > 1e-30 && scale < 1e30)) return "scale beyond float32";
  if (params.head_dim > kLanesMostColumns || params.value_dim > kLanesMostColumns) {
    return "head size above " + std::to_string(kLanesMostColumns);
  }
  if (MostKeys(params) > kLanesMostKeys) {
    return "more than " + std::to_string(kLanesMostKeys) + " keys";
  }
  return {};
}

void Forward(const Context& context, const AttentionParams& params,
             const AttentionOutputs& outputs) {
  const auto size = static_cast<std::int64_t>(SizeOf(params.q.dtype));
  const LanesCall call{.params = params,
                       .outputs = &outputs,
                       .most_keys = static_cast<std::size_t>(MostKeys(params)),
                       .distances = DistanceTable(params),
                       .stream = Streams(params, params.value_dim * size)};
  const auto& range = HWY_DYNAMIC_DISPATCH(LanesForwardRange);
  ParallelFor(context, params.batch * params.kv_heads, 1,
              [&](std::int64_t begin, std::int64_t end) { range(call, begin, end); });
}

void Backward(const Context& context, const AttentionParams& params,
              const AttentionGradients& gradients) {
  const std::int64_t heads = params.heads, problems = params.batch * heads;
  std::vector<double> d_alpha(static_cast<std::size_t>(gradients.d_alpha ? problems : 0));
  std::vector<double> d_slopes(static_cast<std::size_t>(gradients.d_slopes ? problems : 0));
  const auto size = static_cast<std::int64_t>(SizeOf(params.q.dtype));
  const LanesCall call{.params = params,
                       .gradients = &gradients,
                       .most_keys = static_cast<std::size_t>(MostKeys(params)),
                       .distances = DistanceTable(params),
                       .stream = Streams(params, params.head_dim * size),
                       .d_alpha = gradients.d_alpha ? d_alpha.data() : nullptr,
                       .d_slopes = gradients.d_slopes ? d_slopes.data() : nullptr};
  const auto& range = HWY_DYNAMIC_DISPATCH(LanesBackwardRange);
  ParallelFor(context, params.batch * params.kv_heads, 1,
              [&](std::int64_t begin, std::int64_t end) { range(call, begin, end); });
  if (gradients.d_alpha != nullptr) {
    std::fill_n(gradients.d_alpha, heads, 0.0);
    for (std::int64_t i = 0; i < problems; ++i) gradients.d_alpha[i % heads] += d_alpha[i];
  }
  if (gradients.d_slopes != nullptr) {
    std::fill_n(gradients.d_slopes, ArrayBatch(params) * heads, 0.0);
    for (std::int64_t i = 0; i < problems; ++i) {
      gradients.d_slopes[params.ranges.packed ? i % heads : i] += d_slopes[i];
    }
  }
}

}  // namespace

const AttentionKernel kLanesAttention = {
    .name = "lanes",
    .serves =
        "entmax with alpha 1 or in [1.05, 2] and softmax, up to 512 keys, head sizes up to 128",
    .instruction_set = [] { return std::string(LanesTarget()); },
    .refuses = Refuses,
    .declines = nullptr,
    .forward = Forward,
    .backward = Backward,
    .saved_bytes = nullptr,
    .workspace_bytes =
        [](const Context& context, const AttentionParams& params, bool backward) {
          const auto keys = static_cast<std::size_t>(MostKeys(params));
          const std::size_t table = 2 * sizeof(float) * DistanceTable(params).a.capacity();
          const auto sums = static_cast<std::size_t>(2 * params.batch * params.heads);
          return static_cast<std::size_t>(Threads(context)) *
                     (LanesScratch::Floats(keys, params, backward) + kMostLanes) * sizeof(float) +
                 table + (backward ? sums * sizeof(double) : 0);
        }};

}  // namespace tsallis
#endif  // HWY_ONCE
