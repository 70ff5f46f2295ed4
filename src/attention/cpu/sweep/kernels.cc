// The sweep's kernels: what they serve, the memory they take.
#include <algorithm>
#include <string>

#include "attention/cpu/matrix_unit.h"
#include "attention/cpu/sweep/sweep.h"
#include "core/parallel.h"
#include "core/target.h"

namespace tsallis {

double DenseShareBackward(bool on_tiles) { return on_tiles || HasVectorsOf16Floats() ? 0.13 : 0.2; }

std::int64_t ListCapacity(ScoreEngine engine, const AttentionParams& params, bool backward) {
  const std::int64_t longest = MostKeys(params);
  const bool all = backward || ScoresAreExact(engine, params.q.dtype);
  return std::clamp<std::int64_t>(longest / (all ? 2 : 4), 512, 8192);
}

namespace {

// A multiple of 4 KB would make the lists of all rows meet in the same sets of the first-level
// cache.
std::int64_t ListStride(std::int64_t capacity) { return capacity + kTileKeys + 24; }

}  // namespace

std::size_t SweepScratch::Bytes(ScoreEngine engine, std::int64_t head_dim, std::int64_t value_dim,
                                std::int64_t capacity) {
  const std::int64_t dim = PackedDim(engine, head_dim), stride = ListStride(capacity);
  const std::int64_t floats = 4 * static_cast<std::int64_t>(kUnitScores) + 4 * kPairRows +
                              kBlockRows * (2 * dim + 17 + 2 * stride) + stride +
                              MomentFloats(dim) + 2 * (std::max(head_dim, value_dim) + 64) +
                              2 * kBlockRows * std::max(head_dim, value_dim);
  return static_cast<std::size_t>(floats) * sizeof(float) +
         static_cast<std::size_t>(kBlockRows) * sizeof(Row) + 16 * 128;
}

SweepScratch::SweepScratch(ScoreEngine engine, std::int64_t head_dim, std::int64_t value_dim,
                           std::int64_t capacity)
    : list_capacity(capacity), list_stride(ListStride(capacity)) {
  const std::int64_t dim = PackedDim(engine, head_dim);
  scores = Aligned<std::byte>(4 * static_cast<std::int64_t>(kUnitScoreBytes));
  masks = Aligned<std::uint16_t>(2 * kPairRows);
  std::fill_n(masks.get(), 2 * kPairRows, std::uint16_t{0});
  pair_bounds = Aligned<float>(2 * kPairRows);
  queries = Aligned<std::byte>(kBlockRows / kUnitRows *
                               static_cast<std::int64_t>(UnitBytes(engine, head_dim)));
  query_rows = Aligned<float>(kBlockRows * dim + 16);
  bounds = Aligned<float>(kBlockRows);
  list_z = Aligned<float>(kBlockRows * list_stride);
  list_key = Aligned<std::uint32_t>(kBlockRows * list_stride);
  weights = Aligned<float>(list_stride);
  moments = Aligned<float>(MomentFloats(dim));
  row_buffer = Aligned<float>(2 * (std::max(head_dim, value_dim) + 64));
  pairs = Aligned<float>(2 * kBlockRows * std::max(head_dim, value_dim));
  rows.resize(static_cast<std::size_t>(kBlockRows));
}

namespace {

std::string Declines(const AttentionParams& params, bool remaining) {
  if (remaining) return "rows that keep many keys are not for lists";
  return MostKeys(params) < 512 ? "dense tiles are faster on short rows" : "";
}

template <ScoreEngine kEngine>
void ForwardWith(const Context& context, const AttentionParams& params,
                 const AttentionOutputs& outputs, const std::vector<RowBlock>& rows,
                 std::vector<RowBlock>* remaining) {
  SweepForward(GetSweepFunctions(kEngine, false), false, context, params, outputs, rows, remaining);
}

template <ScoreEngine kEngine>
void BackwardWith(const Context& context, const AttentionParams& params,
                  const AttentionGradients& gradients, const std::vector<KeyHead>& key_heads,
                  HeadSums* heads, std::vector<KeyHead>* remaining) {
  SweepBackward(GetSweepFunctions(kEngine, false), false, context, params, gradients, key_heads,
                heads, remaining);
}

template <ScoreEngine kEngine>
void WeightsWith(const Context& context, const AttentionParams& params,
                 const WeightReceiver& receiver, const std::vector<RowBlock>& rows,
                 std::vector<RowBlock>* remaining) {
  SweepWeights(GetSweepFunctions(kEngine, false), false, context, params, receiver, rows,
               remaining);
}

std::size_t SavedBytes(const AttentionParams& params) { return SavedLists::Bytes(params, 64); }

template <ScoreEngine kEngine>
std::size_t WorkspaceWith(const Context& context, const AttentionParams& params, bool backward) {
  const auto threads = static_cast<std::size_t>(Threads(context));
  const auto longest = static_cast<std::size_t>(MostKeys(params));
  const auto d = static_cast<std::size_t>(params.head_dim);
  const auto e = static_cast<std::size_t>(params.value_dim);
  const std::size_t head =
      (longest / kTileKeys + 1 + d / kTileKeys + 1) * TileBytes(kEngine, params.head_dim);
  const auto key_heads = static_cast<std::size_t>(params.batch * params.kv_heads);
  const std::int64_t capacity = ListCapacity(kEngine, params, backward);
  std::size_t bytes =
      threads * SweepScratch::Bytes(kEngine, params.head_dim, params.value_dim, capacity);
  bytes += std::min(key_heads * head, kPackedBytes + head);
  if (params.terms.scale_invariant != 0.0) {
    bytes += static_cast<std::size_t>(params.q_len + params.k_len + 1) * sizeof(double);
  }
  if (backward) {
    const std::size_t teams = key_heads >= 4 * threads ? threads : 1;
    // Edges of full lists, which the support rarely comes near, in memory that grows by doubling.
    const auto edges =
        static_cast<std::size_t>(2 * kWaveBlocks * kBlockRows * capacity) * BlockEdges::kBytes;
    bytes += teams * (longest * (d + e) * sizeof(float) + edges + head);
  }
  return bytes +
         static_cast<std::size_t>(params.batch * params.heads * (params.q_len / kBlockRows + 2)) *
             (sizeof(BlockTask) + sizeof(std::vector<RowBlock>) + 2 * sizeof(RowBlock));
}

std::string WithTiles() { return HasVectorsOf16Floats() && MatrixUnitUsable() ? "AMX" : ""; }

std::string WithByteDots() { return ByteDots(); }

// AVX-512 has no version of its own: nearly every processor with it has VNNI.
std::string WithBytePairs() { return MultipliesPairsOfBytes() ? "AVX2" : ""; }

std::string Any() { return TargetInUse(); }

constexpr Serves kSweepServes = {
    .features = kCommonFeatures | Features{Feature::kFloat32, Feature::kBFloat16, Feature::kFloat16,
                                           Feature::kEntmax, Feature::kSink, Feature::kVastScale,
                                           Feature::kAlphaGradient},
    .least_alpha = kLeastFloatAlpha,
    .most_alpha = kMostFloatAlpha,
    .alpha_one = false,
    .some_heads = true};

template <ScoreEngine kEngine>
constexpr AttentionKernel SweepKernel(const char* name, const char* summary,
                                      std::string (*instruction_set)()) {
  return {.name = name,
          .summary = summary,
          .instruction_set = instruction_set,
          .serves = kSweepServes,
          .declines = Declines,
          .leaves = "rows that keep many keys",
          .forward = ForwardWith<kEngine>,
          .backward = BackwardWith<kEngine>,
          .weights = WeightsWith<kEngine>,
          .saved_bytes = SavedBytes,
          .workspace_bytes = WorkspaceWith<kEngine>};
}

}  // namespace

constinit const AttentionKernel kSweepAmx = SweepKernel<ScoreEngine::kAmx>(
    "sweep-amx", "entmax with alpha in [1.1, 2] on rows from 512 keys, scores by bf16 tiles",
    WithTiles);
constinit const AttentionKernel kSweepInt8 = SweepKernel<ScoreEngine::kInt8>(
    "sweep-int8", "the same, scores screened in bytes", WithByteDots);
constinit const AttentionKernel kSweepInt7 = SweepKernel<ScoreEngine::kInt7>(
    "sweep-int7", "the same, keys screened in 7 bits", WithBytePairs);
constinit const AttentionKernel kSweepFloat =
    SweepKernel<ScoreEngine::kFloat>("sweep", "the same, scores in float32", Any);

}  // namespace tsallis
