// The sweep over all heads: packing, pilots, blocks, and who takes what is dense.
#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "attention/cpu/matrix_unit.h"
#include "attention/cpu/sweep.h"
#include "core/parallel.h"
#include "tsallis/cpu.h"

namespace tsallis {
namespace {

// Packed keys in memory at a time; heads are taken in groups that fit.
constexpr std::size_t kPackedBytes = std::size_t{64} << 20;
// Rows shorter than this are not guessed, nor worth a pilot.
constexpr std::int64_t kGuessKeys = 1024;
constexpr std::int64_t kPackTiles = 32;  // tiles of a packing task

// float[n], 64-byte aligned, left as it is.
template <typename T>
hwy::AlignedFreeUniquePtr<T[]> Aligned(std::int64_t n) {
  return hwy::AllocateAligned<T>(static_cast<std::size_t>(std::max<std::int64_t>(n, 1)));
}

std::int64_t LongestSequence(const AttentionParams& params) {
  std::int64_t longest = 0;
  for (std::int64_t b = 0; b < params.batch; ++b) {
    longest = std::max(longest, Sequence::Of(params, b).k.size());
  }
  return longest;
}

std::int64_t ListCapacity(std::int64_t longest) {
  // Beyond an eighth of the keys dense tiles are faster (docs/log.md).
  return std::clamp<std::int64_t>(longest / 8, 512, 8192);
}

// One key head with its packed keys, and its query heads' guesses.
struct PackedHead {
  Sequence sequence;
  std::int64_t kv = 0;
  PackedKeys keys;
};

// One block of one query head.
struct BlockTask {
  std::int32_t head = 0;  // of the wave
  std::int64_t h = 0;
  std::int64_t q_begin = 0, count = 0;
  std::int64_t cost = 0;  // keys in reach of the last row
};

// Everything of one call.
class SweepRun {
 public:
  SweepRun(const SweepFunctions& functions, bool emulated, const Context& context,
           const AttentionParams& params)
      : functions_(functions), emulated_(emulated), context_(context), params_(params) {
    const std::int64_t capacity = ListCapacity(LongestSequence(params));
    for (int worker = 0; worker < Threads(context); ++worker) {
      scratch_.push_back(std::make_unique<SweepScratch>(functions.engine, params.head_dim,
                                                        params.value_dim, capacity));
    }
    for (std::int64_t h = 0; h < params.heads; ++h) {
      const double alpha = AlphaOf(params, h);
      if (alpha > 1.0) curves_.try_emplace(alpha, alpha);
    }
    if (params.terms.scale_invariant != 0.0) {
      const std::int64_t distances = params.q_len + params.k_len + 1;
      distance_a_.resize(static_cast<std::size_t>(distances));
      for (std::int64_t d = 0; d < distances; ++d) {
        distance_a_[d] = static_cast<float>(DistanceFactor::At(params.terms.scale_invariant, d).a);
      }
    }
  }

  void Forward(const AttentionOutputs& outputs);

 private:
  bool Sweepable(std::int64_t h) const;
  void Pack(std::vector<PackedHead>& heads);
  HeadContext Head(const PackedHead& packed, std::int64_t h) const {
    const double alpha = AlphaOf(params_, h);
    return {&params_,
            &packed.sequence,
            &packed.keys,
            h,
            alpha,
            &curves_.at(alpha),
            distance_a_.empty() ? nullptr : distance_a_.data()};
  }
  // A worker's scratch, with tiles configured while it is held.
  template <class Body>
  void Tasks(std::int64_t count, const Body& body) {
    ParallelTasks(context_, count, [&](std::int64_t task, int worker) {
#if defined(__x86_64__)
      const MatrixUnitSession session(functions_.engine == ScoreEngine::kAmx && !emulated_);
#endif
      body(task, *scratch_[static_cast<std::size_t>(worker)]);
    });
  }

  const SweepFunctions functions_;
  const bool emulated_;
  const Context context_;
  const AttentionParams& params_;
  std::vector<std::unique_ptr<SweepScratch>> scratch_;
  std::map<double, ThresholdCurve> curves_;
  std::vector<float> distance_a_;
  hwy::AlignedFreeUniquePtr<std::byte[]> packed_;
  hwy::AlignedFreeUniquePtr<float[]> means_;
};

// Alpha near 1 keeps every key, and above 2 the threshold needs more digits than float32 has.
bool IsSweepAlpha(double alpha) { return alpha >= 1.1 && alpha <= 2.0; }

bool SweepRun::Sweepable(std::int64_t h) const { return IsSweepAlpha(AlphaOf(params_, h)); }

void SweepRun::Pack(std::vector<PackedHead>& heads) {
  const std::size_t tile = TileBytes(functions_.engine, params_.head_dim);
  const std::size_t covariance = static_cast<std::size_t>(Tiles(params_.head_dim)) * tile;
  const std::int64_t dim = PackedDim(functions_.engine, params_.head_dim);
  std::size_t bytes = 0;
  std::vector<std::pair<std::size_t, std::int64_t>> tasks;  // head, first tile
  for (std::size_t i = 0; i < heads.size(); ++i) {
    const std::int64_t tiles = Tiles(heads[i].keys.count);
    bytes += static_cast<std::size_t>(tiles) * tile + covariance;
    for (std::int64_t begin = 0; begin < tiles; begin += kPackTiles) tasks.push_back({i, begin});
  }
  packed_ = Aligned<std::byte>(static_cast<std::int64_t>(bytes));
  means_ = Aligned<float>(static_cast<std::int64_t>(heads.size()) * dim);
  std::byte* at = packed_.get();
  for (std::size_t i = 0; i < heads.size(); ++i) {
    PackedKeys& keys = heads[i].keys;
    keys.data = at;
    at += static_cast<std::size_t>(Tiles(keys.count)) * tile;
    keys.covariance = at;
    at += covariance;
    keys.mean = means_.get() + static_cast<std::int64_t>(i) * dim;
  }
  std::vector<PackedBounds> bounds(tasks.size());
  const auto moments = static_cast<std::int64_t>(heads.size());
  Tasks(static_cast<std::int64_t>(tasks.size()) + moments,
        [&](std::int64_t task, SweepScratch& scratch) {
          if (task < moments) {
            const PackedHead& head = heads[static_cast<std::size_t>(task)];
            if (head.keys.count >= kGuessKeys) {
              functions_.moments(params_, head.sequence, head.kv, head.keys, scratch);
            }
            return;
          }
          const auto at_task = static_cast<std::size_t>(task - moments);
          const auto& [i, begin] = tasks[at_task];
          const PackedHead& head = heads[i];
          functions_.pack(params_, head.sequence, head.kv, begin,
                          std::min(begin + kPackTiles, Tiles(head.keys.count)), head.keys,
                          &bounds[at_task]);
        });
  for (std::size_t task = 0; task < tasks.size(); ++task) {
    PackedKeys& keys = heads[tasks[task].first].keys;
    keys.largest_norm = std::max(keys.largest_norm, bounds[task].norm);
    keys.largest_error = std::max(keys.largest_error, bounds[task].error);
    keys.usable = keys.usable && bounds[task].usable;
  }
}

void SweepRun::Forward(const AttentionOutputs& outputs) {
  const SavedLists saved(params_, outputs.saved, outputs.saved_bytes);
  const std::int64_t group = params_.heads / std::max<std::int64_t>(params_.kv_heads, 1);
  std::vector<RowBlock> dense;
  const auto give_up = [&](std::int64_t b, std::int64_t h, const Sequence& sequence) {
    for (std::int64_t row = sequence.q.begin; row < sequence.q.end; ++row) {
      saved.Forget(RowIndex(params_, sequence, h, row));
    }
    dense.push_back({b, h, sequence.q});
  };
  // Rows outside of all sequences, and heads whose map is not for a sweep.
  for (std::int64_t b = 0; b < params_.batch; ++b) {
    const Sequence sequence = Sequence::Of(params_, b);
    for (std::int64_t h = 0; h < params_.heads; ++h) {
      if (!Sweepable(h)) give_up(b, h, sequence);
    }
  }
  const std::int64_t problems = params_.batch * params_.kv_heads;
  for (std::int64_t next = 0; next < problems;) {
    std::vector<PackedHead> heads;
    std::size_t bytes = 0;
    for (; next < problems && (heads.empty() || bytes < kPackedBytes); ++next) {
      PackedHead head;
      head.sequence = Sequence::Of(params_, next / params_.kv_heads);
      head.kv = next % params_.kv_heads;
      head.keys.count = head.sequence.k.size();
      head.keys.first = head.sequence.k.begin;
      bytes += static_cast<std::size_t>(Tiles(head.keys.count)) *
               TileBytes(functions_.engine, params_.head_dim);
      heads.push_back(head);
    }
    Pack(heads);

    const auto wave = static_cast<std::int64_t>(heads.size());
    std::vector<HeadGuess> guesses(static_cast<std::size_t>(wave * group));
    const bool terms =
        params_.terms.alibi_slopes.data != nullptr || params_.terms.scale_invariant != 0.0;
    Tasks(wave * group, [&](std::int64_t task, SweepScratch& scratch) {
      const PackedHead& head = heads[static_cast<std::size_t>(task / group)];
      const std::int64_t h = head.kv * group + task % group;
      if (!Sweepable(h) || terms || head.keys.count < kGuessKeys || !head.keys.usable) return;
      guesses[static_cast<std::size_t>(task)] = functions_.pilot(Head(head, h), scratch);
    });

    std::vector<BlockTask> blocks;
    for (std::int64_t task = 0; task < wave * group; ++task) {
      const PackedHead& head = heads[static_cast<std::size_t>(task / group)];
      const std::int64_t h = head.kv * group + task % group;
      if (!Sweepable(h)) continue;
      if (guesses[static_cast<std::size_t>(task)].dense) {
        give_up(head.sequence.batch, h, head.sequence);
        continue;
      }
      const Span rows = head.sequence.q;
      for (std::int64_t q = rows.begin; q < rows.end; q += kBlockRows) {
        const std::int64_t count = std::min(kBlockRows, rows.end - q);
        blocks.push_back({static_cast<std::int32_t>(task), h, q, count,
                          head.sequence.VisibleKeys(params_.mask, q + count - 1).size()});
      }
    }
    // The long ones first, so that threads end together.
    std::stable_sort(blocks.begin(), blocks.end(),
                     [](const BlockTask& a, const BlockTask& b) { return a.cost > b.cost; });
    std::vector<std::vector<RowBlock>> left(blocks.size());
    Tasks(static_cast<std::int64_t>(blocks.size()), [&](std::int64_t task, SweepScratch& scratch) {
      const BlockTask& block = blocks[static_cast<std::size_t>(task)];
      const PackedHead& head = heads[static_cast<std::size_t>(block.head / group)];
      functions_.forward(Head(head, block.h), guesses[static_cast<std::size_t>(block.head)],
                         block.q_begin, block.count, outputs, saved, scratch,
                         &left[static_cast<std::size_t>(task)]);
    });
    for (const auto& rest : left) dense.insert(dense.end(), rest.begin(), rest.end());
  }
  ClearRowsOutside(params_, outputs);
  if (!dense.empty()) DenseForwardBlocks(context_, params_, outputs, dense);
}

bool HasUnitStride(const ConstArray4& array) { return array.strides[3] == 1; }

std::string Refuses(const AttentionParams& params) {
  if (params.q.dtype == DType::kFloat64) return "float64";
  if (params.map != RowMap::kEntmax) return "a map without a threshold";
  bool any = false;
  for (std::int64_t h = 0; h < params.heads; ++h) any = any || IsSweepAlpha(AlphaOf(params, h));
  if (!any) return "alpha outside [1.1, 2]";
  if (params.mask.visible != nullptr || params.mask.blocks != nullptr) return "a mask";
  if (params.terms.bias.data != nullptr) return "a bias";
  if (!HasUnitStride(params.q) || !HasUnitStride(params.k) || !HasUnitStride(params.v)) {
    return "columns that are not contiguous";
  }
  if (LongestSequence(params) < 512) return "short sequences";
  return {};
}

}  // namespace

SweepScratch::SweepScratch(ScoreEngine engine, std::int64_t head_dim, std::int64_t value_dim,
                           std::int64_t capacity)
    : list_capacity(capacity), list_stride(capacity + 24) {
  const std::int64_t dim = PackedDim(engine, head_dim);
  scores = Aligned<float>(4 * static_cast<std::int64_t>(kUnitScores));
  masks = Aligned<std::uint16_t>(2 * kPairRows);
  std::fill_n(masks.get(), 2 * kPairRows, std::uint16_t{0});
  pair_bounds = Aligned<float>(2 * kPairRows);
  queries =
      Aligned<std::byte>(kBlockRows * dim * static_cast<std::int64_t>(PackedElementBytes(engine)));
  query_rows = Aligned<float>(kBlockRows * dim + 16);
  bounds = Aligned<float>(kBlockRows);
  constexpr std::size_t kLog = 2048 + static_cast<std::size_t>(kBlockRows * kTileKeys) +
                               static_cast<std::size_t>(2 * kPairRows * kTileKeys);
  log.score.resize(kLog);
  log.key.resize(kLog);
  log.row.resize(kLog);
  list_z = Aligned<float>(kBlockRows * list_stride);
  list_key = Aligned<std::uint32_t>(kBlockRows * list_stride);
  weights = Aligned<float>(list_stride);
  moments = Aligned<float>((kMomentSamples + head_dim) * dim);
  row_buffer = Aligned<float>(2 * (std::max(head_dim, value_dim) + 64));
  rows.resize(static_cast<std::size_t>(kBlockRows));
}

void SweepForward(const SweepFunctions& functions, bool emulated, const Context& context,
                  const AttentionParams& params, const AttentionOutputs& outputs) {
  SweepRun(functions, emulated, context, params).Forward(outputs);
}

namespace {

// Kernels of the list.
template <ScoreEngine kEngine>
void ForwardWith(const Context& context, const AttentionParams& params,
                 const AttentionOutputs& outputs) {
  SweepForward(GetSweepFunctions(kEngine, false), false, context, params, outputs);
}

template <ScoreEngine kEngine>
void BackwardWith(const Context& context, const AttentionParams& params,
                  const AttentionGradients& gradients) {
  kDenseAttention.backward(context, params, gradients);
}

std::size_t SavedBytes(const AttentionParams& params) { return SavedLists::Bytes(params, 64); }

std::size_t WorkspaceBytes(const Context& context, const AttentionParams& params, bool backward) {
  return kDenseAttention.workspace_bytes(context, params, backward);
}

std::string Avx3WithAmx() {
  const CpuInfo info = QueryCpu();
  return info.chosen_target == "AVX3" && MatrixUnitUsable() ? "AMX" : "";
}

std::string Avx3WithBf16() {
  const CpuInfo info = QueryCpu();
  return info.chosen_target == "AVX3" && info.avx512_bf16 ? "AVX-512 BF16" : "";
}

}  // namespace

const AttentionKernel kSweepAmx = {
    .name = "sweep-amx",
    .serves = "entmax with alpha in [1.1, 2] on rows from 512 keys, scores by bf16 tiles",
    .instruction_set = Avx3WithAmx,
    .refuses = Refuses,
    .forward = ForwardWith<ScoreEngine::kAmx>,
    .backward = BackwardWith<ScoreEngine::kAmx>,
    .saved_bytes = SavedBytes,
    .workspace_bytes = WorkspaceBytes};

const AttentionKernel kSweepBf16 = {.name = "sweep-bf16",
                                    .serves = "the same, scores by bf16 dot products",
                                    .instruction_set = Avx3WithBf16,
                                    .refuses = Refuses,
                                    .forward = ForwardWith<ScoreEngine::kBf16Dot>,
                                    .backward = BackwardWith<ScoreEngine::kBf16Dot>,
                                    .saved_bytes = SavedBytes,
                                    .workspace_bytes = WorkspaceBytes};

const AttentionKernel kSweepFloat = {.name = "sweep",
                                     .serves = "the same, scores in float32",
                                     .instruction_set = [] { return QueryCpu().chosen_target; },
                                     .refuses = Refuses,
                                     .forward = ForwardWith<ScoreEngine::kFloat>,
                                     .backward = BackwardWith<ScoreEngine::kFloat>,
                                     .saved_bytes = SavedBytes,
                                     .workspace_bytes = WorkspaceBytes};

}  // namespace tsallis
