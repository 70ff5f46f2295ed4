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
#include "attention/cpu/lanes_backward-inl.h"
#include "attention/cpu/lanes_forward-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tsallis {
namespace HWY_NAMESPACE {

#if TSALLIS_LANES_HERE
const char* LanesTargetHere() { return hwy::TargetName(HWY_TARGET); }
#else
void LanesForwardRange(const LanesCall&, std::int64_t, std::int64_t) {}
void LanesBackwardRange(const LanesCall&, std::int64_t, std::int64_t) {}
const char* LanesTargetHere() { return ""; }
#endif

}  // namespace HWY_NAMESPACE
}  // namespace tsallis
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tsallis {

HWY_EXPORT(LanesForwardRange);
HWY_EXPORT(LanesBackwardRange);
HWY_EXPORT(LanesTargetHere);

const char* LanesTarget() { return HWY_DYNAMIC_DISPATCH(LanesTargetHere)(); }

DistanceTable::DistanceTable(const AttentionParams& params, std::int64_t more_queries,
                             std::int64_t more_keys) {
  const double length = params.terms.scale_invariant;
  if (length == 0.0) return;
  std::int64_t most = 0;
  for (std::int64_t b = 0; b < params.batch; ++b) {
    const Sequence sequence = Sequence::Of(params, b);
    least = std::min(least, sequence.Distance(sequence.q.begin, sequence.k.end));
    most = std::max(most, sequence.Distance(sequence.q.end, sequence.k.begin));
  }
  least -= more_keys;
  most += more_queries;
  for (std::int64_t distance = least; distance <= most; ++distance) {
    const DistanceFactor factor = DistanceFactor::At(length, distance);
    a.push_back(static_cast<float>(factor.a));
    m.push_back(static_cast<float>(factor.m));
  }
}

std::size_t LanesScratch::Layout(const LanesCall& call, char* base) {
  const std::size_t keys = Padded(call.most_keys), keys_depth = PaddedDepth(call.most_keys);
  const auto head_dim = static_cast<std::size_t>(call.params.head_dim);
  const auto value_dim = static_cast<std::size_t>(call.params.value_dim);
  const std::size_t d = Padded(head_dim), d_depth = PaddedDepth(head_dim);
  const std::size_t e = Padded(value_dim), e_depth = PaddedDepth(value_dim);
  const std::size_t widest = std::max(d_depth, e_depth);
  std::size_t bytes = 0;
  const auto take = [&]<class T>(T*& part, std::size_t count) {
    part = base == nullptr || count == 0 ? nullptr : reinterpret_cast<T*>(base + bytes);
    bytes += (count * sizeof(T) + 63) / 64 * 64;
  };
  take(k, keys * d);
  take(v, keys * e);
  take(q, kMostLanes * d);
  take(columns, kMostLanes * widest);
  take(scores, keys * kMostLanes);
  take(weights, keys * kMostLanes);
  take(block, kMostLanes * widest);
  const std::size_t backward = call.gradients != nullptr ? 1 : 0;
  take(scaled_q, backward * kMostLanes * d);
  take(d_out, backward * kMostLanes * e);
  take(slopes, backward * keys * kMostLanes);
  take(dk, backward * keys * d);
  take(dv, backward * keys * e);
  const std::size_t tiles = call.tiles != nullptr ? 1 : 0;
  take(k_rows, tiles * keys_depth * d_depth);
  take(v_rows, tiles * keys_depth * e_depth);
  take(q_rows, tiles * kMostLanes * d_depth);
  take(d_out_rows, tiles * backward * kMostLanes * e_depth);
  take(k_pairs, tiles * backward * keys_depth / 2 * d);
  take(v_pairs, tiles * keys_depth / 2 * e);
  take(lane_pairs, tiles * backward * kMostLanes / 2 * widest);
  take(weight_pairs, tiles * keys_depth / 2 * kMostLanes);
  take(weight_columns, tiles * keys_depth / 2 * kMostLanes);
  take(weight_rows, tiles * backward * keys * kMostLanes);
  return bytes;
}

std::size_t LanesScratch::Bytes(const LanesCall& call) {
  return LanesScratch().Layout(call, nullptr);
}

LanesScratch::LanesScratch(const LanesCall& call)
    : memory(hwy::AllocateAligned<char>(Layout(call, nullptr) + 64)) {
  if (memory == nullptr) throw std::bad_alloc();
  Layout(call, memory.get());
}

namespace {

// Outputs of this many bytes are gone from the second-level cache before anyone reads them.
constexpr std::int64_t kStreamBytes = std::int64_t{4} << 20;

bool Streams(const AttentionParams& params, std::int64_t columns) {
  const auto row_bytes = columns * static_cast<std::int64_t>(SizeOf(params.q.dtype));
  return ArrayBatch(params) * params.heads * params.q_len * row_bytes >= kStreamBytes;
}

std::string Refuses(const AttentionParams& params) {
  if (params.q.dtype == DType::kFloat64) return "float64";
  if (params.map != RowMap::kSoftmax && params.map != RowMap::kEntmax) return Name(params.map);
  for (std::int64_t h = 0; params.map == RowMap::kEntmax && h < params.heads; ++h) {
    const double alpha = AlphaOf(params, h);
    if (alpha > 2.0) return "alpha above 2";
    if (alpha < 1.0) return "alpha below 1";
    if (alpha > 1.0 && alpha < kLanesLeastAlpha) return "alpha just above 1";
    if (params.alpha_per_head == nullptr) break;
  }
  if (params.mask.visible != nullptr) return "boolean mask";
  if (params.mask.blocks != nullptr) return "block mask";
  if (params.terms.bias.data != nullptr) return "bias";
  if (params.terms.sink != nullptr) return "sink";
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

// The call without its pointers to results.
LanesCall CallOf(const TileFunctions* tiles, const AttentionParams& params) {
  return {.params = params,
          .most_keys = static_cast<std::size_t>(MostKeys(params)),
          .distances = DistanceTable(params),
          .tiles = params.q.dtype == DType::kBFloat16 ? tiles : nullptr};
}

}  // namespace

void LanesForward(const TileFunctions* tiles, const Context& context, const AttentionParams& params,
                  const AttentionOutputs& outputs) {
  LanesCall call = CallOf(tiles, params);
  call.outputs = &outputs;
  call.stream = Streams(params, params.value_dim);
  const auto& range = HWY_DYNAMIC_DISPATCH(LanesForwardRange);
  ParallelFor(context, params.batch * params.kv_heads, 1,
              [&](std::int64_t begin, std::int64_t end) { range(call, begin, end); });
}

void LanesBackward(const TileFunctions* tiles, const Context& context,
                   const AttentionParams& params, const AttentionGradients& gradients) {
  const std::int64_t heads = params.heads, problems = params.batch * heads;
  std::vector<double> d_alpha(static_cast<std::size_t>(gradients.d_alpha ? problems : 0));
  std::vector<double> d_slopes(static_cast<std::size_t>(gradients.d_slopes ? problems : 0));
  LanesCall call = CallOf(tiles, params);
  call.gradients = &gradients;
  call.stream = Streams(params, params.head_dim);
  call.d_alpha = gradients.d_alpha ? d_alpha.data() : nullptr;
  call.d_slopes = gradients.d_slopes ? d_slopes.data() : nullptr;
  const auto& range = HWY_DYNAMIC_DISPATCH(LanesBackwardRange);
  ParallelFor(context, params.batch * params.kv_heads, 1,
              [&](std::int64_t begin, std::int64_t end) { range(call, begin, end); });
  if (gradients.d_alpha != nullptr) {
    std::fill_n(gradients.d_alpha, heads, 0.0);
    for (std::int64_t i = 0; i < problems; ++i) gradients.d_alpha[i % heads] += d_alpha[i];
  }
  if (gradients.d_slopes != nullptr) SumSlopes(params, d_slopes.data(), gradients.d_slopes);
}

const AttentionKernel kLanesAttention = {
    .name = "lanes",
    .serves =
        "entmax with alpha 1 or in [1.05, 2] and softmax, up to 512 keys, head sizes up to 128",
    .instruction_set = [] { return std::string(LanesTarget()); },
    .refuses = Refuses,
    .declines = nullptr,
    .forward =
        [](const Context& context, const AttentionParams& params, const AttentionOutputs& outputs) {
          LanesForward(RealTileFunctions(), context, params, outputs);
        },
    .backward =
        [](const Context& context, const AttentionParams& params,
           const AttentionGradients& gradients) {
          LanesBackward(RealTileFunctions(), context, params, gradients);
        },
    .weights = nullptr,
    .saved_bytes = nullptr,
    .workspace_bytes =
        [](const Context& context, const AttentionParams& params, bool backward) {
          LanesCall call = CallOf(RealTileFunctions(), params);
          const AttentionGradients gradients;
          if (backward) call.gradients = &gradients;
          const std::size_t table = 2 * sizeof(float) * call.distances.a.capacity();
          const auto sums = static_cast<std::size_t>(2 * params.batch * params.heads);
          return static_cast<std::size_t>(Threads(context)) * (LanesScratch::Bytes(call) + 64) +
                 table + (backward ? sums * sizeof(double) : 0);
        }};

}  // namespace tsallis
#endif  // HWY_ONCE
