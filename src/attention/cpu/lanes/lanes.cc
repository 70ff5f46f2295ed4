#include "attention/cpu/lanes/lanes.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "core/parallel.h"
#include "tsallis/error.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attention/cpu/lanes/lanes.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include "attention/cpu/lanes/backward-inl.h"
#include "attention/cpu/lanes/forward-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tsallis {
namespace HWY_NAMESPACE {

#if TSALLIS_VECTORS_HERE
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
  take(derivatives, NeedsProducts(call.params.terms) ? backward * keys * kMostLanes : 0);
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
    : memory(Aligned<char>(static_cast<std::int64_t>(Layout(call, nullptr)) + 64)) {
  Layout(call, memory.get());
}

namespace {

// Outputs of this many bytes are gone from the second-level cache before anyone reads them.
constexpr std::int64_t kStreamBytes = std::int64_t{4} << 20;

bool Streams(const AttentionParams& params, std::int64_t columns) {
  const auto row_bytes = columns * static_cast<std::int64_t>(SizeOf(params.q.dtype));
  return ArrayBatch(params) * params.heads * params.q_len * row_bytes >= kStreamBytes;
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
                  const AttentionOutputs& outputs, const std::vector<RowBlock>& rows) {
  LanesCall call = CallOf(tiles, params);
  call.outputs = &outputs;
  call.stream = Streams(params, params.value_dim);
  std::vector<KeyHead> key_heads;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const KeyHead key_head{rows[i].b, KvHead(params, rows[i].h)};
    if (i > 0 && key_head.b == key_heads.back().b && key_head.kv == key_heads.back().kv) continue;
    key_heads.push_back(key_head);
    call.first_row.push_back(i);
  }
  call.first_row.push_back(rows.size());
  call.key_heads = &key_heads;
  call.rows = &rows;
  const auto& range = HWY_DYNAMIC_DISPATCH(LanesForwardRange);
  ParallelFor(context, static_cast<std::int64_t>(key_heads.size()), 1,
              [&](std::int64_t begin, std::int64_t end) { range(call, begin, end); });
}

void LanesBackward(const TileFunctions* tiles, const Context& context,
                   const AttentionParams& params, const AttentionGradients& gradients,
                   const std::vector<KeyHead>& key_heads, HeadSums* heads) {
  LanesCall call = CallOf(tiles, params);
  call.gradients = &gradients;
  call.stream = Streams(params, params.head_dim);
  call.key_heads = &key_heads;
  call.heads = heads;
  const auto& range = HWY_DYNAMIC_DISPATCH(LanesBackwardRange);
  ParallelFor(context, static_cast<std::int64_t>(key_heads.size()), 1,
              [&](std::int64_t begin, std::int64_t end) { range(call, begin, end); });
}

constinit const AttentionKernel kLanesAttention = {
    .name = "lanes",
    .summary =
        "entmax with alpha 1 or in [1.05, 2] and softmax, up to 512 keys, head sizes up to 128",
    .instruction_set = [] { return std::string(LanesTarget()); },
    .serves = {.features = kCommonFeatures | Features{Feature::kFloat32, Feature::kBFloat16,
                                                      Feature::kFloat16, Feature::kSoftmax,
                                                      Feature::kEntmax, Feature::kStridedColumns,
                                                      Feature::kAlphaGradient},
               .least_alpha = kLanesLeastAlpha,
               .most_alpha = 2.0,
               .most_columns = kLanesMostColumns,
               .most_keys = kLanesMostKeys},
    .declines = nullptr,
    .leaves = nullptr,
    .forward =
        [](const Context& context, const AttentionParams& params, const AttentionOutputs& outputs,
           const std::vector<RowBlock>& rows, std::vector<RowBlock>*) {
          LanesForward(RealTileFunctions(), context, params, outputs, rows);
        },
    .backward =
        [](const Context& context, const AttentionParams& params,
           const AttentionGradients& gradients, const std::vector<KeyHead>& key_heads,
           HeadSums* heads, std::vector<KeyHead>*) {
          LanesBackward(RealTileFunctions(), context, params, gradients, key_heads, heads);
        },
    .weights = nullptr,
    .saved_bytes = nullptr,
    .workspace_bytes =
        [](const Context& context, const AttentionParams& params, bool backward) {
          LanesCall call = CallOf(RealTileFunctions(), params);
          const AttentionGradients gradients;
          if (backward) call.gradients = &gradients;
          const auto key_heads = static_cast<std::size_t>(params.batch * params.kv_heads);
          return static_cast<std::size_t>(Threads(context)) * (LanesScratch::Bytes(call) + 64) +
                 DistanceTable::Bytes(params) +
                 key_heads * 2 * (sizeof(KeyHead) + sizeof(std::size_t));
        }};

}  // namespace tsallis
#endif  // HWY_ONCE
