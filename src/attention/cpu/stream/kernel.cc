// The streaming kernel as an entry of the list: what it serves, the memory it takes.
#include <algorithm>
#include <string>

#include "attention/cpu/matrix_unit.h"
#include "attention/cpu/stream/stream.h"
#include "core/parallel.h"
#include "core/target.h"

namespace tsallis::stream {

namespace {

// Calls take(part, floats) for every part of the memory.
template <class Take>
void ForEachPart(Engine engine, const AttentionParams& params, Scratch& scratch, const Take& take) {
  const Widths widths(params);
  const auto [rows, strip] = ShapeOf(engine);
  const bool floats = OnVectors(engine);
  const std::int64_t depth = std::max(widths.d_depth, widths.e_depth);
  take(scratch.scores, rows * strip);
  take(scratch.gradients, rows * strip);
  take(scratch.products, rows * strip);
  take(scratch.loaded, rows * depth / (floats ? 1 : 2));
  take(scratch.columns, rows * widths.d_depth / (floats ? 1 : 2));
  take(scratch.sums, rows * depth);
  take(scratch.block, 16 * depth);
  take(scratch.pairs, floats ? 0 : 2 * strip * rows / 2);
  take(scratch.rows, floats ? 0 : 4 * strip * rows / 2);
}

}  // namespace

std::int64_t Scratch::Floats(Engine engine, const AttentionParams& params) {
  std::int64_t sum = 0;
  Scratch scratch;
  ForEachPart(engine, params, scratch, [&](auto&, std::int64_t floats) { sum += floats; });
  return sum;
}

Scratch::Scratch(Engine engine, const AttentionParams& params)
    : memory(Aligned<float>(Floats(engine, params))) {
  float* at = memory.get();
  ForEachPart(engine, params, *this, [&]<class T>(T*& part, std::int64_t floats) {
    part = reinterpret_cast<T*>(at);
    at += floats;
  });
}

namespace {

template <Engine kEngine>
std::string Declines(const AttentionParams& params, bool remaining) {
  const std::int64_t least = !OnVectors(kEngine) || params.map == RowMap::kSoftmax ? 0
                             : params.map == RowMap::kEntmax ? DenseKeys(kEngine)
                                                             : kBluntKeys;
  if (MostKeys(params) < least) return "few keys";
  if (params.map == RowMap::kEntmax) {
    return remaining ? "" : "a sweep leaves it the rows that keep many keys";
  }
  // Its betas move the scores, and another engine would find the same.
  if (remaining && params.map == RowMap::kAdaptiveTemperature) return "rows left by another engine";
  if (remaining) return "";
  // A block is computed whole.
  if (OnVectors(kEngine) && params.q_len < 48) return "few queries";
  return MostKeys(params) < 128 ? "few keys" : "";
}

template <Engine kEngine>
std::size_t WorkspaceBytes(const Context& context, const AttentionParams& params, bool backward) {
  const auto threads = static_cast<std::size_t>(Threads(context));
  const Widths widths(params);
  const std::int64_t keys = RoundUp(MostKeys(params), kDepth);
  const auto key_heads = static_cast<std::size_t>(params.batch * params.kv_heads);
  const auto head = static_cast<std::size_t>(PackedSizes(kEngine, params, keys, backward).All());
  std::size_t bytes =
      threads * (static_cast<std::size_t>(Scratch::Floats(kEngine, params)) * sizeof(float) + 64);
  bytes += DistanceTable::Bytes(params);
  if (!backward) {
    const auto rows = static_cast<std::size_t>(params.batch * params.heads) *
                      static_cast<std::size_t>(params.q_len / ShapeOf(kEngine).rows + 2);
    bytes += std::min(key_heads * head, static_cast<std::size_t>(kPackedBytes) + head) + rows * 128;
  } else {
    const std::size_t teams = key_heads >= 2 * threads ? threads : 1;
    const std::int64_t ranges = (keys + RangeKeys(keys) - 1) / RangeKeys(keys);
    const WaveSizes wave(kEngine, params);
    const std::int64_t floats = keys * (widths.d_padded + widths.e_padded) +
                                ranges * kWaveRows * (widths.d_padded + 1) +
                                kRowNumbers * kWaveRows;
    bytes += teams * (head + static_cast<std::size_t>(floats) * sizeof(float) +
                      static_cast<std::size_t>(wave.blocks * wave.All()) + 1024);
  }
  return bytes + static_cast<std::size_t>(params.batch * params.heads) * 64;
}

template <Engine kEngine>
constexpr AttentionKernel Kernel(const char* name, const char* summary,
                                 std::string (*instruction_set)(), Serves serves) {
  serves.features = serves.features | kCommonFeatures |
                    Features{Feature::kSoftmax, Feature::kEntmax, Feature::kStridedColumns};
  serves.least_alpha = kLeastFloatAlpha;
  serves.most_alpha = kMostFloatAlpha;
  serves.alpha_one = false;
  return {
      .name = name,
      .summary = summary,
      .instruction_set = instruction_set,
      .serves = serves,
      .declines = Declines<kEngine>,
      .leaves = OnVectors(kEngine)
                    ? "what might not be finite, and what adaptive temperature sharpens"
                    : "what might not be finite",
      .forward =
          [](const Context& context, const AttentionParams& params, const AttentionOutputs& outputs,
             const std::vector<RowBlock>& rows, std::vector<RowBlock>* remaining) {
            Forward(kEngine, context, params, outputs, rows, remaining);
          },
      .backward =
          [](const Context& context, const AttentionParams& params,
             const AttentionGradients& gradients, const std::vector<KeyHead>& key_heads,
             HeadSums* heads, std::vector<KeyHead>* remaining) {
            Backward(kEngine, context, params, gradients, key_heads, heads, remaining);
          },
      .weights = nullptr,
      .saved_bytes =
          [](const AttentionParams& params) {
            return params.map != RowMap::kEntmax ? SavedValues::Bytes(params) : 0;
          },
      .workspace_bytes = WorkspaceBytes<kEngine>};
}

}  // namespace
}  // namespace tsallis::stream

namespace tsallis {

constinit const AttentionKernel kStreamAmx = stream::Kernel<stream::Engine::kTiles>(
    "stream-amx",
    "softmax, adaptive temperature and entmax's dense rows with bfloat16, keys streaming by bf16 "
    "tiles",
    [] { return std::string(HasVectorsOf16Floats() && MatrixUnitUsable() ? "AMX" : ""); },
    {.features = {Feature::kBFloat16, Feature::kAdaptiveTemperature}});

constinit const AttentionKernel kStreamPairs = stream::Kernel<stream::Engine::kPairs>(
    "stream-bf16", "the same as stream, products of bfloat16 numbers two at a time",
    [] { return std::string(PairDots()); },
    {.features = {Feature::kBFloat16, Feature::kAdaptiveTemperature},
     .backward_only = {Feature::kEntmax}});

// Rows of entmax, and rows that adaptive temperature sharpens, take more products forward than on
// the dense kernel, which solves for thresholds and entropies on scores that it holds.
constinit const AttentionKernel kStreamFloat = stream::Kernel<stream::Engine::kFloats>(
    "stream",
    "softmax, adaptive temperature, and backward entmax's dense rows, keys streaming by in float32",
    [] {
      const bool bound = stream::GetFunctions(stream::Engine::kFloats).forward != nullptr;
      return std::string(bound ? TargetInUse() : "");
    },
    {.features = {Feature::kFloat32, Feature::kBFloat16, Feature::kFloat16,
                  Feature::kAdaptiveTemperature},
     .backward_only = {Feature::kEntmax}});

}  // namespace tsallis
