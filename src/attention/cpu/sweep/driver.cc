// Runs the sweep over all heads: packs their keys, computes a few rows of each head first (pilots),
// which tell how the others are best computed, and hands blocks of rows to the threads.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "attention/cpu/key_heads.h"
#include "attention/cpu/matrix_unit.h"
#include "attention/cpu/sweep/sweep.h"
#include "core/memory.h"
#include "core/parallel.h"

namespace tsallis {
namespace {

constexpr std::int64_t kPackTiles = 32;  // tiles of a packing task

// One key head with its packed keys.
struct PackedHead {
  PackedHead(const AttentionParams& params, std::int64_t b, std::int64_t kv_head)
      : sequence(Sequence::Of(params, b)), kv(kv_head) {
    keys.count = sequence.k.size();
    keys.first = sequence.k.begin;
  }

  Sequence sequence;
  std::int64_t kv = 0;
  PackedKeys keys;
};

struct PackedMemory {
  GrowingBuffer<std::byte> keys;
  GrowingBuffer<float> floats;  // means, centres and scales
};

// Everything of one call.
class SweepDriver {
 public:
  SweepDriver(const SweepFunctions& functions, bool emulated, const Context& context,
              const AttentionParams& params, bool backward)
      : functions_(functions),
        emulated_(emulated),
        context_(context),
        params_(params),
        distances_(params) {
    const std::int64_t capacity = ListCapacity(functions.engine, params, backward);
    for (int worker = 0; worker < Threads(context); ++worker) {
      scratch_.push_back(std::make_unique<SweepScratch>(functions.engine, params.head_dim,
                                                        params.value_dim, capacity));
    }
    for (std::int64_t h = 0; h < params.heads; ++h) {
      const double alpha = AlphaOf(params, h);
      if (alpha > 1.0) curves_.try_emplace(alpha, alpha);
    }
  }

  // The outputs or, if `receiver` is not null, the weights.
  void Forward(const AttentionOutputs& outputs, const WeightReceiver* receiver,
               const std::vector<RowBlock>& rows, std::vector<RowBlock>* remaining);
  void Backward(const AttentionGradients& gradients, const std::vector<KeyHead>& key_heads,
                HeadSums* heads, std::vector<KeyHead>* remaining);

 private:
  struct KvSums;
  bool BackwardKeyHead(const Context& context, int worker, const AttentionGradients& gradients,
                       const KeyHead& key_head, KvSums& sums, HeadSums* totals);
  bool Sweepable(std::int64_t h) const;
  // Whether the gradients of dense rows run on tiles rather than on vectors.
  bool HasDenseTiles(const AttentionGradients& gradients) const {
    return functions_.engine == ScoreEngine::kAmx &&
           Refusal(kStreamAmx.serves, params_, FeaturesOf(params_, gradients), Pass::kBackward)
               .empty();
  }
  void Pack(const Context& context, int outer, std::vector<PackedHead>& heads,
            PackedMemory& memory);
  HeadContext Head(const PackedHead& packed, std::int64_t h) const {
    const double alpha = AlphaOf(params_, h);
    return {.params = &params_,
            .sequence = &packed.sequence,
            .keys = &packed.keys,
            .h = h,
            .alpha = alpha,
            .curve = &curves_.at(alpha),
            .terms = HeadTerms::Of(params_, packed.sequence, h, distances_, alpha - 1.0),
            .score_terms = HeadTerms::Of(params_, packed.sequence, h, distances_, 1.0)};
  }
  // Runs body(task, scratch) with a worker's scratch, and tiles configured while it is held. Inside
  // of a task of worker `outer` everything is that worker's.
  template <class Body>
  void Tasks(const Context& context, int outer, std::int64_t count, const Body& body) {
    ParallelTasks(context, count, [&](std::int64_t task, int inner) {
      const int worker = outer + inner;
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
  const DistanceTable distances_;
  PackedMemory packed_;
};

bool SweepDriver::Sweepable(std::int64_t h) const {
  return kSweepFloat.serves.ServesAlpha(AlphaOf(params_, h));
}

void SweepDriver::Pack(const Context& context, int outer, std::vector<PackedHead>& heads,
                       PackedMemory& memory) {
  const std::size_t tile = TileBytes(functions_.engine, params_.head_dim);
  const std::size_t covariance = static_cast<std::size_t>(Tiles(params_.head_dim)) * tile;
  const std::int64_t dim = PackedDim(functions_.engine, params_.head_dim);
  std::size_t bytes = 0;
  std::vector<std::pair<std::size_t, std::int64_t>> tasks;  // head, first tile
  for (std::size_t i = 0; i < heads.size(); ++i) {
    const std::int64_t tiles = Tiles(heads[i].keys.count);
    bytes += static_cast<std::size_t>(tiles) * tile + covariance;
    for (std::int64_t begin = 0; begin < tiles; begin += kPackTiles) tasks.emplace_back(i, begin);
  }
  std::byte* at = memory.keys.Reserve(static_cast<std::int64_t>(bytes));
  float* floats = memory.floats.Reserve(3 * static_cast<std::int64_t>(heads.size()) * dim);
  for (std::size_t i = 0; i < heads.size(); ++i) {
    PackedKeys& keys = heads[i].keys;
    keys.data = at;
    at += static_cast<std::size_t>(Tiles(keys.count)) * tile;
    keys.covariance = at;
    at += covariance;
    keys.mean = floats + static_cast<std::int64_t>(3 * i) * dim;
    keys.centre = keys.mean + dim;
    keys.scale = keys.centre + dim;
  }
  if (functions_.scale != nullptr) {
    Tasks(context, outer, static_cast<std::int64_t>(heads.size()),
          [&](std::int64_t task, SweepScratch&) {
            const PackedHead& head = heads[static_cast<std::size_t>(task)];
            functions_.scale(params_, head.sequence, head.kv, head.keys);
          });
  }
  std::vector<PackedBounds> bounds(tasks.size());
  const auto moments = static_cast<std::int64_t>(heads.size());
  Tasks(context, outer, static_cast<std::int64_t>(tasks.size()) + moments,
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
    keys.packed_norm = std::max(keys.packed_norm, bounds[task].packed_norm);
    keys.largest_error = std::max(keys.largest_error, bounds[task].error);
    keys.largest_step = std::max(keys.largest_step, bounds[task].step);
    keys.usable = keys.usable && bounds[task].usable;
  }
}

void SweepDriver::Forward(const AttentionOutputs& outputs, const WeightReceiver* receiver,
                          const std::vector<RowBlock>& rows, std::vector<RowBlock>* remaining) {
  const SavedLists saved = SavedLists::Create(params_, outputs.saved, outputs.saved_bytes);
  const auto leave = [&](const RowBlock& block) {
    const Sequence sequence = Sequence::Of(params_, block.b);
    for (std::int64_t row = block.q.begin; row < block.q.end; ++row) {
      saved.Forget(RowIndex(params_, sequence, block.h, row));
    }
    remaining->push_back(block);
  };
  for (auto next = rows.begin(); next != rows.end();) {
    // Key heads that fit, and which rows each has.
    struct Item {
      std::size_t head;
      const RowBlock* rows;
    };
    std::vector<PackedHead> heads;
    std::vector<Item> items;
    std::size_t bytes = 0;
    for (; next != rows.end(); ++next) {
      if (!Sweepable(next->h)) {
        leave(*next);
        continue;
      }
      const std::int64_t kv = KvHead(params_, next->h);
      if (heads.empty() || heads.back().sequence.batch != next->b || heads.back().kv != kv) {
        if (!heads.empty() && bytes >= kPackedBytes) break;
        heads.emplace_back(params_, next->b, kv);
        bytes += static_cast<std::size_t>(Tiles(heads.back().keys.count)) *
                 TileBytes(functions_.engine, params_.head_dim);
      }
      items.push_back({heads.size() - 1, &*next});
    }
    Pack(context_, 0, heads, packed_);

    std::vector<HeadGuess> guesses(items.size());
    Tasks(context_, 0, static_cast<std::int64_t>(items.size()),
          [&](std::int64_t task, SweepScratch& scratch) {
            const Item& item = items[static_cast<std::size_t>(task)];
            const PackedHead& head = heads[item.head];
            if (head.keys.count < kGuessKeys || !head.keys.usable) return;
            const HeadContext context = Head(head, item.rows->h);
            if (context.by_distance()) return;
            guesses[static_cast<std::size_t>(task)] = functions_.pilot(context, scratch);
          });

    std::vector<BlockTask> blocks;
    for (std::size_t i = 0; i < items.size(); ++i) {
      const RowBlock& block = *items[i].rows;
      if (guesses[i].dense) {
        leave(block);
        continue;
      }
      for (std::int64_t q = block.q.begin; q < block.q.end; q += kBlockRows) {
        const std::int64_t count = std::min(kBlockRows, block.q.end - q);
        const Sequence& sequence = heads[items[i].head].sequence;
        blocks.push_back({i, q, count, sequence.VisibleKeys(params_.mask, q + count - 1).size()});
      }
    }
    // Key head by key head, whose keys then stay in the second-level cache; the long blocks first,
    // so that threads end together.
    std::stable_sort(blocks.begin(), blocks.end(), [&](const BlockTask& a, const BlockTask& b) {
      const std::size_t head_a = items[a.item].head, head_b = items[b.item].head;
      return head_a != head_b ? head_a < head_b : a.cost > b.cost;
    });
    std::vector<std::vector<RowBlock>> dense(blocks.size());
    Tasks(context_, 0, static_cast<std::int64_t>(blocks.size()),
          [&](std::int64_t task, SweepScratch& scratch) {
            const BlockTask& block = blocks[static_cast<std::size_t>(task)];
            const Item& item = items[block.item];
            functions_.forward(Head(heads[item.head], item.rows->h), guesses[block.item],
                               block.q_begin, block.count, outputs, receiver, saved, scratch,
                               &dense[static_cast<std::size_t>(task)]);
          });
    for (const auto& rest : dense) remaining->insert(remaining->end(), rest.begin(), rest.end());
  }
}

// Memory of one key head's backward pass: one for each worker that has key heads of its own.
struct SweepDriver::KvSums {
  PackedMemory packed;
  // [keys, head_dim], [keys, value_dim]. Aligned: half of AddEdges was vectors across two lines of
  // the cache.
  GrowingBuffer<float> dk, dv;
  std::vector<BlockEdges> edges;
};

// Rows of a query head that tell how many keys its rows keep: at one and at three quarters of them,
// which together keep the share that all rows do, whether a row keeps a fixed share of the keys
// that it sees, a fixed number, or as many as a power in between says. Of few rows some in the
// middle.
std::vector<Span> SampleRows(const Span& rows) {
  constexpr std::int64_t kSample = 16, kFew = 128, kMany = 512;
  const auto from = [&](std::int64_t eighths) {
    const std::int64_t begin = rows.begin + rows.size() * eighths / 8;
    return Span{begin, begin + kSample};
  };
  if (rows.size() < kFew) return {};
  if (rows.size() < kMany) return {from(4)};
  return {from(6), from(2)};
}

// False: some row is dense.
bool SweepDriver::BackwardKeyHead(const Context& context, int worker,
                                  const AttentionGradients& gradients, const KeyHead& key_head,
                                  KvSums& sums, HeadSums* totals) {
  const std::int64_t group = params_.heads / params_.kv_heads;
  std::vector<PackedHead> heads = {PackedHead(params_, key_head.b, key_head.kv)};
  const PackedHead& head = heads[0];
  const SavedLists saved = SavedLists::Open(params_, gradients.saved, gradients.saved_bytes);
  const Span rows = head.sequence.q;
  bool all_saved = true;
  for (std::int64_t h = head.kv * group; h < (head.kv + 1) * group; ++h) {
    if (!Sweepable(h)) return false;
    const std::int64_t index = RowIndex(params_, head.sequence, h, 0);
    for (std::int64_t row = rows.begin; row < rows.end; ++row) {
      // A row with NaN or +inf among its scores, or none that a sweep can hold.
      if (std::isnan(gradients.tau[index + row])) return false;
      all_saved = all_saved && saved.Count(index + row) != SavedLists::kNotSaved;
    }
  }
  if (!all_saved) Pack(context, worker, heads, sums.packed);
  const auto cleared = [&](const MutableArray4& array, GrowingBuffer<float>& buffer,
                           std::int64_t columns) {
    if (array.data == nullptr) return static_cast<float*>(nullptr);
    const std::int64_t count = head.keys.count * columns;
    float* at = buffer.Reserve(count);
    std::fill_n(at, count, 0.0f);
    return at;
  };
  float* dk = cleared(gradients.dk, sums.dk, params_.head_dim);
  float* dv = cleared(gradients.dv, sums.dv, params_.value_dim);

  const std::int64_t blocks = (rows.size() + kBlockRows - 1) / kBlockRows;
  const std::int64_t total = blocks * group;
  const auto block_of = [&](std::int64_t i) {
    const std::int64_t begin = rows.begin + (blocks - 1 - i % blocks) * kBlockRows;
    return std::pair(head.kv * group + i / blocks,
                     Span{begin, std::min(begin + kBlockRows, rows.end)});
  };
  if (sums.edges.size() < static_cast<std::size_t>(kWaveBlocks)) sums.edges.resize(kWaveBlocks);
  std::atomic<bool> dense = false;
  const auto run = [&](const std::pair<std::int64_t, Span>& block, BlockEdges& edges,
                       SweepScratch& scratch) {
    if (dense) return;
    const auto [h, span] = block;
    edges.array_batch = head.sequence.array_batch;
    edges.h = h;
    edges.q_begin = span.begin;
    if (!functions_.backward(Head(head, h), span.begin, span.size(), gradients, saved, scratch,
                             &edges)) {
      dense = true;
    }
  };
  // What a sample of rows keeps says whether the key head is for the dense kernel. These rows are
  // computed again with all others.
  const std::vector<Span> sample = SampleRows(rows);
  std::int64_t kept = 0, seen = 0;
  for (std::int64_t h = head.kv * group; h < (head.kv + 1) * group; ++h) {
    Tasks(context, worker, std::ssize(sample), [&](std::int64_t i, SweepScratch& scratch) {
      run({h, sample[static_cast<std::size_t>(i)]}, sums.edges[static_cast<std::size_t>(i)],
          scratch);
    });
    if (dense) return false;
    for (std::size_t i = 0; i < sample.size(); ++i) {
      kept += static_cast<std::int64_t>(sums.edges[i].size());
      seen += sample[i].size() * head.sequence.VisibleKeys(params_.mask, sample[i].end - 1).size();
    }
  }
  const double share = DenseShareBackward(HasDenseTiles(gradients));
  if (static_cast<double>(kept) > share * static_cast<double>(seen)) return false;
  std::int64_t count = 0, next = 2;
  for (std::int64_t wave = 0; wave < total; wave += count) {
    count = std::min(next, total - wave);
    Tasks(context, worker, count, [&](std::int64_t task, SweepScratch& scratch) {
      BlockEdges& edges = sums.edges[static_cast<std::size_t>(task)];
      run(block_of(wave + task), edges, scratch);
      if (!dense) edges.Sort(head.keys.count);
    });
    if (dense) return false;
    std::int64_t found = 0;
    for (std::int64_t task = 0; task < count; ++task) {
      const BlockEdges& edges = sums.edges[static_cast<std::size_t>(task)];
      found += static_cast<std::int64_t>(edges.size());
      totals[edges.h].d_alpha += edges.d_alpha;
      totals[edges.h].d_slope += edges.d_slope;
      totals[edges.h].d_sink += edges.d_sink;
    }
    next = std::clamp(kWaveEdges * count / std::max<std::int64_t>(found, 1), kLeastWaveBlocks,
                      kWaveBlocks);
    if (dk == nullptr && dv == nullptr) continue;
    const std::int64_t buckets = (head.keys.count + kBucketKeys - 1) / kBucketKeys;
    Tasks(context, worker, buckets, [&](std::int64_t bucket, SweepScratch&) {
      functions_.add_edges(params_, gradients, sums.edges.data(), static_cast<std::size_t>(count),
                           bucket, dk, dv);
    });
  }
  const auto store = [&](const MutableArray4& array, const float* values, std::int64_t columns) {
    if (array.data == nullptr) return;
    Tasks(context, worker, (head.keys.count + kBucketKeys - 1) / kBucketKeys,
          [&](std::int64_t bucket, SweepScratch&) {
            const std::int64_t end = std::min((bucket + 1) * kBucketKeys, head.keys.count);
            for (std::int64_t j = bucket * kBucketKeys; j < end; ++j) {
              functions_.store(
                  values + j * columns, array,
                  Offset(array.strides, head.sequence.array_batch, head.kv, head.keys.first + j),
                  columns);
            }
          });
  };
  store(gradients.dk, dk, params_.head_dim);
  store(gradients.dv, dv, params_.value_dim);
  return true;
}

void SweepDriver::Backward(const AttentionGradients& gradients,
                           const std::vector<KeyHead>& key_heads, HeadSums* heads,
                           std::vector<KeyHead>* remaining) {
  ForEachKeyHead<KvSums>(
      context_, 4, key_heads, remaining,
      [&](const Context& context, int worker, const KeyHead& key_head, KvSums& sums) {
        HeadSums* totals = heads + key_head.b * params_.heads;
        return BackwardKeyHead(context, worker, gradients, key_head, sums, totals);
      });
}

}  // namespace

void SweepForward(const SweepFunctions& functions, bool emulated, const Context& context,
                  const AttentionParams& params, const AttentionOutputs& outputs,
                  const std::vector<RowBlock>& rows, std::vector<RowBlock>* remaining) {
  SweepDriver(functions, emulated, context, params, /*backward=*/false)
      .Forward(outputs, nullptr, rows, remaining);
}

void SweepWeights(const SweepFunctions& functions, bool emulated, const Context& context,
                  const AttentionParams& params, const WeightReceiver& receiver,
                  const std::vector<RowBlock>& rows, std::vector<RowBlock>* remaining) {
  SweepDriver(functions, emulated, context, params, /*backward=*/false)
      .Forward({}, &receiver, rows, remaining);
}

void SweepBackward(const SweepFunctions& functions, bool emulated, const Context& context,
                   const AttentionParams& params, const AttentionGradients& gradients,
                   const std::vector<KeyHead>& key_heads, HeadSums* heads,
                   std::vector<KeyHead>* remaining) {
  SweepDriver(functions, emulated, context, params, /*backward=*/true)
      .Backward(gradients, key_heads, heads, remaining);
}

}  // namespace tsallis
