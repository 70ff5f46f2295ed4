// The sweep's kernels: what they serve, the memory they take.
#include <algorithm>
#include <string>

#include "attention/cpu/matrix_unit.h"
#include "attention/cpu/stream.h"
#include "attention/cpu/sweep.h"
#include "core/parallel.h"
#include "tsallis/cpu.h"

namespace tsallis {

std::int64_t ListCapacity(ScoreEngine engine, const AttentionParams& params) {
  const std::int64_t longest = MostKeys(params);
  return std::clamp<std::int64_t>(
      ScoresAreExact(engine, params.q.dtype) ? longest / 2 : longest / 8, 512, 8192);
}

namespace {

// A multiple of 4 KB would make the lists of all rows meet in the same sets of the first-level cache.
std::int64_t ListStride(std::int64_t capacity) { return capacity + kTileKeys + 24; }

}  // namespace

std::size_t SweepScratch::Bytes(ScoreEngine engine, std::int64_t head_dim, std::int64_t value_dim,
                                std::int64_t capacity) {
  const std::int64_t dim = PackedDim(engine, head_dim), stride = ListStride(capacity);
  const std::int64_t floats = 4 * static_cast<std::int64_t>(kUnitScores) + 4 * kPairRows +
                              kBlockRows * (2 * dim + 17 + 2 * stride) + stride +
                              MomentFloats(dim) + 2 * (std::max(head_dim, value_dim) + 64);
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
  rows.resize(static_cast<std::size_t>(kBlockRows));
}

namespace {

bool HasUnitStride(const ConstArray4& array) { return array.strides[3] == 1; }

std::string Refuses(const AttentionParams& params) {
  if (params.q.dtype == DType::kFloat64) return "float64";
  if (params.map != RowMap::kEntmax) return "a map without a threshold";
  bool any = false;
  for (std::int64_t h = 0; h < params.heads; ++h) any = any || IsFloatAlpha(AlphaOf(params, h));
  if (!any) return "alpha outside [1.1, 2]";
  if (params.mask.visible != nullptr || params.mask.blocks != nullptr) return "a mask";
  if (params.terms.bias.data != nullptr) return "a bias";
  if (params.terms.sink != nullptr) return "a sink";
  if (!HasUnitStride(params.q) || !HasUnitStride(params.k) || !HasUnitStride(params.v)) {
    return "columns that are not contiguous";
  }
  return {};
}

std::string Declines(const AttentionParams& params) {
  return MostKeys(params) < 512 ? "dense tiles are faster on short rows" : "";
}

// Kernels of the list.
template <ScoreEngine kEngine>
void ForwardWith(const Context& context, const AttentionParams& params,
                 const AttentionOutputs& outputs) {
  SweepForward(GetSweepFunctions(kEngine, false), false, context, params, outputs);
}

template <ScoreEngine kEngine>
void BackwardWith(const Context& context, const AttentionParams& params,
                  const AttentionGradients& gradients) {
  SweepBackward(GetSweepFunctions(kEngine, false), false, context, params, gradients);
}

template <ScoreEngine kEngine>
void WeightsWith(const Context& context, const AttentionParams& params, const WeightSink& sink) {
  SweepWeights(GetSweepFunctions(kEngine, false), false, context, params, sink);
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
  const auto problems = static_cast<std::size_t>(params.batch * params.kv_heads);
  const std::int64_t capacity = ListCapacity(kEngine, params);
  std::size_t bytes =
      threads * SweepScratch::Bytes(kEngine, params.head_dim, params.value_dim, capacity);
  bytes += std::min(problems * head, kPackedBytes + head);
  if (params.terms.scale_invariant != 0.0) {
    bytes += static_cast<std::size_t>(params.q_len + params.k_len + 1) * sizeof(double);
  }
  if (backward) {
    const std::size_t teams = problems >= 4 * threads ? threads : 1;
    // Edges of full lists, which the support rarely comes near, in memory that grows by doubling.
    const auto edges =
        static_cast<std::size_t>(2 * kWaveBlocks * kBlockRows * capacity) * BlockEdges::kBytes;
    bytes += teams * (longest * (d + e) * sizeof(float) + edges + head);
  }
  // Rows that turn out dense are worked on after the sweep.
  const bool tiles = kEngine == ScoreEngine::kAmx && stream::Refuses(params).empty();
  const std::size_t dense = tiles ? stream::WorkspaceBytes(context, params, backward)
                                  : DenseWorkspaceBytes(context, params, backward);
  return std::max(bytes, dense) +
         static_cast<std::size_t>(params.batch * params.heads * (params.q_len / kBlockRows + 2)) *
             (sizeof(BlockTask) + sizeof(std::vector<RowBlock>) + 2 * sizeof(RowBlock));
}

std::string Avx3WithAmx() {
  const CpuInfo info = QueryCpu();
  return info.chosen_target == "AVX3" && MatrixUnitUsable() ? "AMX" : "";
}

std::string WithByteDots() {
  const CpuInfo info = QueryCpu();
  if (info.chosen_target == "AVX3" && info.avx512_vnni) return "AVX-512 VNNI";
  return info.chosen_target == "AVX2" && info.avx_vnni ? "AVX-VNNI" : "";
}

std::string WithBytePairs() { return QueryCpu().chosen_target == "AVX2" ? "AVX2" : ""; }

}  // namespace

const AttentionKernel kSweepAmx = {
    .name = "sweep-amx",
    .serves = "entmax with alpha in [1.1, 2] on rows from 512 keys, scores by bf16 tiles",
    .instruction_set = Avx3WithAmx,
    .refuses = Refuses,
    .declines = Declines,
    .forward = ForwardWith<ScoreEngine::kAmx>,
    .backward = BackwardWith<ScoreEngine::kAmx>,
    .weights = WeightsWith<ScoreEngine::kAmx>,
    .saved_bytes = SavedBytes,
    .workspace_bytes = WorkspaceWith<ScoreEngine::kAmx>};

const AttentionKernel kSweepInt8 = {.name = "sweep-int8",
                                    .serves = "the same, scores screened in bytes",
                                    .instruction_set = WithByteDots,
                                    .refuses = Refuses,
                                    .declines = Declines,
                                    .forward = ForwardWith<ScoreEngine::kInt8>,
                                    .backward = BackwardWith<ScoreEngine::kInt8>,
                                    .weights = WeightsWith<ScoreEngine::kInt8>,
                                    .saved_bytes = SavedBytes,
                                    .workspace_bytes = WorkspaceWith<ScoreEngine::kInt8>};

const AttentionKernel kSweepInt7 = {.name = "sweep-int7",
                                    .serves = "the same, keys screened in 7 bits",
                                    .instruction_set = WithBytePairs,
                                    .refuses = Refuses,
                                    .declines = Declines,
                                    .forward = ForwardWith<ScoreEngine::kInt7>,
                                    .backward = BackwardWith<ScoreEngine::kInt7>,
                                    .weights = WeightsWith<ScoreEngine::kInt7>,
                                    .saved_bytes = SavedBytes,
                                    .workspace_bytes = WorkspaceWith<ScoreEngine::kInt7>};

const AttentionKernel kSweepFloat = {.name = "sweep",
                                     .serves = "the same, scores in float32",
                                     .instruction_set = [] { return QueryCpu().chosen_target; },
                                     .refuses = Refuses,
                                     .declines = Declines,
                                     .forward = ForwardWith<ScoreEngine::kFloat>,
                                     .backward = BackwardWith<ScoreEngine::kFloat>,
                                     .weights = WeightsWith<ScoreEngine::kFloat>,
                                     .saved_bytes = SavedBytes,
                                     .workspace_bytes = WorkspaceWith<ScoreEngine::kFloat>};

}  // namespace tsallis
