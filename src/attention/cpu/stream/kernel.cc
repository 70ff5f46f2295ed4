// The streaming kernel as an entry of the list: what it serves, the memory it takes.
#include <algorithm>
#include <string>

#include "attention/cpu/matrix_unit.h"
#include "attention/cpu/stream/stream.h"
#include "core/parallel.h"
#include "core/target.h"

namespace tsallis::stream {

std::int64_t Scratch::Floats(const AttentionParams& params) {
  const Widths widths(params);
  const std::int64_t depth = std::max(widths.d_depth, widths.e_depth);
  return 3 * kGroups * kStrip * kLanes + 2 * kStrip * kRows / 2 + 4 * kStrip * kRows / 2 +
         kRows * depth / 2 + kRows * widths.d_depth / 2 + kRows * depth + kLanes * depth;
}

Scratch::Scratch(const AttentionParams& params) : memory(Aligned<float>(Floats(params))) {
  const Widths widths(params);
  const std::int64_t depth = std::max(widths.d_depth, widths.e_depth);
  float* at = memory.get();
  const auto take = [&]<class T>(T*& part, std::int64_t floats) {
    part = reinterpret_cast<T*>(at);
    at += floats;
  };
  take(scores, kGroups * kStrip * kLanes);
  take(gradients, kGroups * kStrip * kLanes);
  take(products, kGroups * kStrip * kLanes);
  take(pairs, 2 * kStrip * kRows / 2);
  take(rows, 4 * kStrip * kRows / 2);
  take(halves, kRows * depth / 2);
  take(columns, kRows * widths.d_depth / 2);
  take(sums, kRows * depth);
  take(block, kLanes * depth);
}

namespace {

std::string Declines(const AttentionParams& params, bool remaining) {
  if (remaining) return {};
  if (params.map == RowMap::kEntmax) return "a sweep leaves it the rows that keep many keys";
  return MostKeys(params) < kStrip ? "few keys" : "";
}

std::size_t WorkspaceBytes(const Context& context, const AttentionParams& params, bool backward) {
  const auto threads = static_cast<std::size_t>(Threads(context));
  const Widths widths(params);
  const std::int64_t keys = RoundUp(MostKeys(params), kDepth);
  const auto key_heads = static_cast<std::size_t>(params.batch * params.kv_heads);
  const std::size_t head = 2 * static_cast<std::size_t>(PackedSizes(params, keys, backward).All());
  std::size_t bytes =
      threads * (static_cast<std::size_t>(Scratch::Floats(params)) * sizeof(float) + 64);
  bytes += DistanceTable::Bytes(params);
  if (!backward) {
    const auto rows = static_cast<std::size_t>(params.batch * params.heads) *
                      static_cast<std::size_t>(params.q_len / kRows + 2);
    bytes += std::min(key_heads * head, kPackedBytes + head) + rows * 128;
  } else {
    const std::size_t teams = key_heads >= 2 * threads ? threads : 1;
    const std::int64_t ranges = (keys + RangeKeys(keys) - 1) / RangeKeys(keys);
    const std::int64_t floats = keys * (widths.d_padded + widths.e_padded) +
                                ranges * kWaveRows * (widths.d_padded + 1) +
                                kWaveRows * (widths.d_depth + widths.e_depth + 3);
    bytes += teams * (head + static_cast<std::size_t>(floats) * sizeof(float) + 1024);
  }
  return bytes + static_cast<std::size_t>(params.batch * params.heads) * 64;
}

}  // namespace
}  // namespace tsallis::stream

namespace tsallis {

constinit const AttentionKernel kStreamAmx = {
    .name = "stream-amx",
    .summary =
        "softmax, adaptive temperature (forward) and entmax's dense rows with bfloat16, keys "
        "streaming by bf16 tiles",
    .instruction_set =
        [] { return std::string(HasVectorsOf16Floats() && MatrixUnitUsable() ? "AMX" : ""); },
    .serves = {.features = kCommonFeatures |
                           Features{Feature::kBFloat16, Feature::kSoftmax, Feature::kEntmax,
                                    Feature::kAdaptiveTemperature, Feature::kStridedColumns},
               // Adaptive temperature's beta has a gradient of its own, and no inference needs it.
               .forward_only = {Feature::kAdaptiveTemperature},
               .least_alpha = kLeastFloatAlpha,
               .most_alpha = kMostFloatAlpha,
               .alpha_one = false},
    .declines = stream::Declines,
    .leaves = "what might not be finite",
    .forward =
        [](const Context& context, const AttentionParams& params, const AttentionOutputs& outputs,
           const std::vector<RowBlock>& rows, std::vector<RowBlock>* remaining) {
          stream::Forward(false, context, params, outputs, rows, remaining);
        },
    .backward =
        [](const Context& context, const AttentionParams& params,
           const AttentionGradients& gradients, const std::vector<KeyHead>& key_heads,
           HeadSums* heads, std::vector<KeyHead>* remaining) {
          stream::Backward(false, context, params, gradients, key_heads, heads, remaining);
        },
    .weights = nullptr,
    .saved_bytes = nullptr,
    .workspace_bytes = stream::WorkspaceBytes};

}  // namespace tsallis
