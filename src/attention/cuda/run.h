// From a call to launches: which kernels, on which memory. Included by launch_*.cu, and by tests
// for the emulation.
#pragma once

#include <algorithm>
#include <climits>
#include <cstdint>

#include "attention/cuda/bias.h"
#include "attention/cuda/call.h"
#include "attention/cuda/cuda.h"
#include "attention/cuda/dense.h"
#include "attention/cuda/dense_backward.h"
#include "attention/cuda/gradients.h"
#include "attention/cuda/guess.h"
#include "attention/cuda/list_backward.h"
#include "attention/cuda/rows.h"
#include "attention/cuda/saved_lists.h"
#include "attention/cuda/sweep.h"
#include "attention/cuda/weights.h"
#include "core/cuda/runtime.h"
#include "tsallis/attention.h"

namespace tsallis::cuda {
inline namespace TSALLIS_SIDE {

// A call's arguments and the memory that all its kernels share.
template <class Type>
class Runner {
 public:
  // stream: null to learn what the passes would allocate.
  Runner(const Stream* stream, const Context& context, const AttentionParams& params)
      : stream_(stream), workspace_(stream, context), params_(params) {
    const auto narrow = [](std::int64_t size) { return static_cast<int>(size); };
    call_.batch = narrow(params.batch);
    call_.heads = narrow(params.heads);
    call_.kv_heads = narrow(params.kv_heads);
    call_.q_len = narrow(params.q_len);
    call_.k_len = narrow(params.k_len);
    call_.head_dim = narrow(params.head_dim);
    call_.value_dim = narrow(params.value_dim);
    call_.q = params.q;
    call_.k = params.k;
    call_.v = params.v;
    call_.mask = params.mask;
    for (std::int64_t* size : {&call_.mask.block_q, &call_.mask.block_k}) {
      *size = std::min<std::int64_t>(*size, INT_MAX);  // beyond any axis
    }
    const bool biased = params.terms.bias.data != nullptr;
    general_ = biased || params.mask.visible != nullptr || params.mask.blocks != nullptr;
    const auto look_at = [&](double alpha) {
      sparse_ = sparse_ || (alpha != 1.0 && !Head::IsWide(alpha));
      general_ = general_ || Head::IsWide(alpha);
    };
    call_.ranges = params.ranges;
    call_.terms = params.terms;
    call_.scale = ScaleOf(params);
    call_.alpha = params.map == RowMap::kSoftmax ? 1.0 : params.alpha;
    rows_ = Size(call_.array_batch()) * Size(call_.heads) * Size(call_.q_len);
    const bool per_head = params.map == RowMap::kEntmax && params.alpha_per_head != nullptr;
    workspace_.Want(&alphas_, Size(call_.heads), per_head);
    workspace_.Want(&ranges_, 4 * Size(call_.batch), HasRanges());
    if (params.terms.scale_invariant != 0.0) reach_ = call_.q_len + call_.k_len;
    workspace_.Want(&a_, Size(2 * reach_ + 1), reach_ > 0);
    workspace_.Want(&m_, Size(2 * reach_ + 1), reach_ > 0);
    if (!per_head) look_at(call_.alpha);
    for (int h = 0; per_head && h < call_.heads; ++h) look_at(params.alpha_per_head[h]);
    // The sweep has no bound of scores with a bias.
    sparse_ = sparse_ && !biased;
    workspace_.Want(&counts_, rows_, sparse_);
    workspace_.Want(&dense_rows_, rows_, sparse_);
    workspace_.Want(&dense_counts_, Size(call_.batch) * Size(call_.heads), sparse_);
  }

  void Forward(const AttentionOutputs& outputs) {
    float* bounds = nullptr;
    LongCall of_long;
    const int slots = Slots(), room = LongSlots::Room(call_.k_len);
    workspace_.Want(&bounds, rows_, sparse_);
    workspace_.Want(&of_long.slots, Size(slots) * LongSlots::Words(room), slots > 0);
    GuessCall guess;
    const bool guesses = HasGuesses();
    const std::size_t key_heads = Size(call_.batch) * Size(call_.kv_heads), columns = Columns();
    workspace_.Want(&guess.moments, key_heads * columns * columns, guesses);
    workspace_.Want(&guess.means, key_heads * columns, guesses);
    workspace_.Want(&guess.rows, rows_, guesses);
    workspace_.Want(&guess.offsets, Size(call_.batch) * Size(call_.heads), guesses);
    if (!Begin()) return;
    const Statistics statistics = {outputs.tau, outputs.support_size, outputs.entropy,
                                   outputs.maximum};
    if (HasOutside()) {
      ClearCall clear;
      clear.arrays[0] = outputs.out;
      clear.columns[0] = call_.value_dim;
      clear.statistics = statistics;
      Clear(clear, false);
    }
    ForShape([&]<int D, bool kGeneral>() {
      SweepCall sweep;
      sweep.call = call_;
      sweep.out = outputs.out;
      sweep.statistics = statistics;
      sweep.lists.counts = counts_;
      sweep.bounds = bounds;
      if (sparse_) {
        sweep.saved = Saved<D>(outputs.saved, outputs.saved_bytes);
        Launch("BeginSavedKernel", BeginSavedKernel<>, Each(sweep.saved.rows, kThreads), kThreads,
               0, sweep.saved);
      }
      if (guesses) {
        guess.call = call_;
        guess.counts = counts_;
        guess.bounds = bounds;
        Guess<D>(guess, sweep);
      }
      if (sparse_) Sweep<D>(sweep);
      if (slots > 0) {
        of_long.sweep = sweep;
        of_long.sweep.room = room;
        of_long.dense = {dense_rows_, dense_counts_};
        using Long = LongShape<Type, D>;
        Launch("LongSweepKernel",
               IsSimple() ? LongSweepKernel<Type, D, false> : LongSweepKernel<Type, D, true>,
               {slots}, kThreads, Long::kSharedBytes, of_long);
        FindDense();
      }
      DenseCall dense;
      dense.call = call_;
      dense.dense = {dense_rows_, dense_counts_};
      dense.out = outputs.out;
      dense.statistics = statistics;
      dense.bounds = bounds;
      using Shape = DenseShape<Type, D>;
      Launch("DenseKernel", DenseKernel<Type, D, kGeneral>, Blocks(call_.q_len, Shape::kRows),
             kThreads, Shape::kSharedBytes, dense);
    });
  }

  void Backward(const AttentionGradients& gradients) {
    BackwardCall backward;
    SortCall sort;
    const std::size_t entries = rows_ * kList;
    const std::size_t keys = Size(call_.array_batch()) * Size(call_.kv_heads) * Size(call_.k_len);
    const std::size_t key_heads = Size(call_.array_batch()) * Size(call_.kv_heads);
    const std::size_t buckets = Size(SortCall::Buckets(call_));
    const bool sorts = sparse_ && rows_ > 0;
    workspace_.Want(&backward.lists.keys, entries, sparse_);
    workspace_.Want(&backward.lists.weights, entries, sparse_);
    workspace_.Want(&backward.w, entries, sparse_);
    workspace_.Want(&sort.entries, entries, sparse_);
    workspace_.Want(&sort.places, sorts ? key_heads * buckets * Size(SortCall::Tasks(call_)) : 0);
    workspace_.Want(&sort.bases, key_heads * (buckets + 1), sorts);
    workspace_.Want(&sort.begins, key_heads * (buckets * kBucket + 1), sorts);
    workspace_.Want(&backward.means, rows_);
    workspace_.Want(&backward.views, rows_);
    workspace_.Want(&backward.dense_dk, keys * Size(call_.head_dim));
    workspace_.Want(&backward.dense_dv, keys * Size(call_.value_dim));
    workspace_.Want(&backward.sums.d_alpha, rows_, gradients.d_alpha != nullptr);
    workspace_.Want(&backward.sums.d_slope, rows_, gradients.d_slopes != nullptr);
    workspace_.Want(&backward.sums.d_sink, rows_, gradients.d_sink != nullptr);
    if (!Begin()) return;
    backward.call = call_;
    backward.d_out = gradients.d_out;
    backward.tau = gradients.tau;
    backward.dq = gradients.dq;
    backward.dk = gradients.dk;
    backward.dv = gradients.dv;
    backward.d_length_scale = gradients.d_length_scale;
    backward.lists.counts = counts_;
    backward.dense = {dense_rows_, dense_counts_};
    sort.call = call_;
    sort.lists = backward.lists;
    sort.w = backward.w;
    sort.order = backward.lists.keys;
    if (HasOutside()) {
      ClearCall of_queries, of_keys;
      of_queries.arrays[0] = gradients.dq;
      of_queries.columns[0] = call_.head_dim;
      of_queries.d_length_scale = gradients.d_length_scale;
      Clear(of_queries, false);
      of_keys.arrays[0] = gradients.dk;
      of_keys.arrays[1] = gradients.dv;
      of_keys.columns[0] = call_.head_dim;
      of_keys.columns[1] = call_.value_dim;
      Clear(of_keys, true);
    }
    ForShape([&]<int D, bool kGeneral>() {
      if (sparse_) {
        SweepCall sweep;
        sweep.call = call_;
        sweep.lists = backward.lists;
        sweep.from_tau = gradients.tau;
        sweep.saved = Saved<D>(gradients.saved, gradients.saved_bytes);
        Launch("LoadSavedKernel", LoadSavedKernel<>,
               Each(sweep.saved.rows, LoadSavedShape::kRowsOfBlock), kThreads, 0, sweep.saved,
               sweep.lists);
        Sweep<D>(sweep);
        static_assert(kMostKeys * kList <= std::int64_t{1} << 32);
        Launch("ListRowsKernel", ListRowsKernel<Type, D>,
               Places(call_.q_len, kRowsOfBlock, call_.heads), kThreads, kRowsSharedBytes,
               backward);
        Sort(sort);
      }
      using RowsShape = DenseRowsShape<Type, D>;
      Launch("DenseRowsKernel", DenseRowsKernel<Type, D, kGeneral>,
             Blocks(call_.q_len, RowsShape::kRows), kThreads, RowsShape::kSharedBytes, backward);
      using KeysShape = DenseKeysShape<Type, D>;
      Grid grid = Places(call_.k_len, KeysShape::kKeys, call_.kv_heads);
      grid.x *= KeysShape::kParts;
      Launch("DenseKeysKernel", DenseKeysKernel<Type, D, kGeneral>, grid, kThreads,
             KeysShape::kSharedBytes, backward);
      Launch("ListKeysKernel", ListKeysKernel<Type, D>,
             Places(call_.k_len, kKeysOfBlock, call_.kv_heads), kThreads,
             ListKeysShape<D>::kSharedBytes, backward, sort);
    });
    if (gradients.d_bias.data != nullptr) BiasGradient(backward, gradients.d_bias);
    AddRows(backward.sums.d_alpha, gradients.d_alpha, true);
    AddRows(backward.sums.d_sink, gradients.d_sink, true);
    AddRows(backward.sums.d_slope, gradients.d_slopes, false);
  }

  // Counts, or columns and values: the others are null. The params' values are not read.
  void Weights(std::int64_t* counts, const std::int64_t* offsets, std::int64_t* columns,
               float* values) {
    WeightsCall weights;
    DenseCall dense;
    float* bounds = nullptr;
    const std::size_t entries = rows_ * kList;
    workspace_.Want(&weights.lists.keys, entries, sparse_);
    workspace_.Want(&weights.lists.weights, entries, sparse_);
    workspace_.Want(&bounds, rows_, sparse_);
    workspace_.Want(&dense.statistics.tau, rows_);
    // No values and no output: the kernels of the forward pass have no columns of them to look at.
    call_.v = call_.k;
    call_.value_dim = 0;
    if (!Begin()) return;
    weights.call = call_;
    weights.lists.counts = counts_;
    weights.dense = {dense_rows_, dense_counts_};
    weights.tau = dense.statistics.tau;
    weights.counts = counts;
    weights.offsets = offsets;
    weights.columns = columns;
    weights.values = values;
    ForShape([&]<int D, bool kGeneral>() {
      if (sparse_) {
        SweepCall sweep;
        sweep.call = call_;
        sweep.lists = weights.lists;
        sweep.bounds = bounds;
        Sweep<D>(sweep);
      }
      dense.call = call_;
      dense.dense = weights.dense;
      dense.bounds = bounds;
      using Shape = DenseShape<Type, D>;
      Launch("DenseKernel", DenseKernel<Type, D, kGeneral>, Blocks(call_.q_len, Shape::kRows),
             kThreads, Shape::kSharedBytes, dense);
    });
    const auto rows = static_cast<std::int64_t>(rows_);
    const Grid four_rows = Each(rows, kWarps);
    const auto list_weights =
        counts != nullptr ? ListWeightsKernel<false> : ListWeightsKernel<true>;
    Launch("ListWeightsKernel", list_weights, four_rows, kThreads, 0, weights, rows);
    ForColumns([&]<int D>() {
      using Shape = WeightsShape<Type, D>;
      const auto dense_weights = counts != nullptr ? DenseWeightsKernel<Type, D, false>
                                                   : DenseWeightsKernel<Type, D, true>;
      Launch("DenseWeightsKernel", dense_weights, Blocks(call_.q_len, Shape::kRows), kThreads,
             Shape::kSharedBytes, weights);
    });
  }

  // Bytes of the memory that the pass would take.
  std::size_t bytes() const { return workspace_.bytes(); }
  // Bytes that hold the lists of all rows.
  std::size_t SavedBytes() const { return sparse_ && rows_ > 0 ? SavedLists::Bytes(rows_) : 0; }

 protected:
  static std::size_t Size(int size) { return static_cast<std::size_t>(size); }
  int Group() const { return call_.kv_heads > 0 ? call_.heads / call_.kv_heads : 0; }

  template <class... Parameters, class... Arguments>
  void Launch(const char* name, void (*kernel)(Parameters...), Grid grid, int threads,
              const SharedBytes& shared, const Arguments&... arguments) const {
    stream_->Launch(name, kernel, grid, threads, shared, arguments...);
  }

  // Allocates memory and fills in what all kernels know. False: no stream, so bytes are only
  // counted.
  bool Begin() {
    if (stream_ == nullptr) return false;
    workspace_.Allocate();
    SetKnown();
    if (counts_ != nullptr) {
      const auto rows = static_cast<std::int64_t>(rows_);
      Launch("ZeroCountsKernel", ZeroCountsKernel<>, Each(rows, kThreads), kThreads, 0, counts_,
             rows);
    }
    return true;
  }

  // Puts the data that all kernels share into the workspace.
  void SetKnown() {
    if (ranges_ != nullptr) {
      Launch("CutRangesKernel", CutRangesKernel<>, {(call_.batch + kThreads - 1) / kThreads},
             kThreads, 0, call_, ranges_);
      AttentionRanges& ranges = call_.ranges;
      const std::int64_t* next = ranges_;
      for (const std::int64_t** of :
           {&ranges.q_begin, &ranges.q_end, &ranges.k_begin, &ranges.k_end}) {
        *of = next;
        next += call_.batch;
      }
    }
    if (alphas_ != nullptr) {
      call_.alphas = alphas_;
      for (int first = 0; first < call_.heads; first += Doubles::kMost) {
        Doubles doubles = {};
        const int count = std::min(Doubles::kMost, call_.heads - first);
        std::copy_n(params_.alpha_per_head + first, count, doubles.values);
        Launch("SetDoublesKernel", SetDoublesKernel<>, {}, kThreads, 0, alphas_ + first, doubles,
               count);
      }
    }
    if (reach_ > 0) {
      const DistanceLaw law = DistanceLaw::Of(params_.terms);
      call_.distances = {a_ + reach_, m_ + reach_, law.sum, DistanceFactor::At(law, reach_).a};
      Launch("DistancesKernel", DistancesKernel<>, {(reach_ + kThreads) / kThreads}, kThreads, 0,
             law, reach_, a_, m_);
    }
  }

  bool HasRanges() const {
    const AttentionRanges& ranges = call_.ranges;
    return ranges.q_begin != nullptr || ranges.q_end != nullptr || ranges.k_begin != nullptr ||
           ranges.k_end != nullptr;
  }
  bool HasOutside() const { return !call_.ranges.packed && HasRanges(); }
  void Clear(ClearCall& clear, bool of_keys) {
    clear.call = call_;
    clear.of_keys = of_keys;
    clear.heads = of_keys ? call_.kv_heads : call_.heads;
    const int length = of_keys ? call_.k_len : call_.q_len;
    Launch("ClearKernel", ClearKernel<Type>,
           {(length + kWarps - 1) / kWarps, clear.heads, call_.batch}, kThreads, 0, clear);
  }

  // Blocks of rows of every sequence and head. Those of a packed batch are as many as if each
  // sequence had all rows, and nearly all return at once. With BlockPlace there would be none of
  // these, but then the compiler no longer knows that a block has one sequence: what follows from
  // it takes registers of every lane, which these kernels lack (docs/log.md).
  Grid Blocks(int length, int rows) const {
    return {(length + rows - 1) / rows, call_.heads, call_.batch};
  }
  // The grid for kernels that find their sequence by BlockPlace.
  Grid Places(int length, int rows, int heads) const {
    const bool packed = call_.ranges.packed;
    return {BlockPlace::Count(packed, length, call_.batch, rows), heads, call_.array_batch()};
  }

  // A grid of blocks that take `of_block` of `count` each.
  static Grid Each(std::int64_t count, int of_block) {
    return {static_cast<int>((count + of_block - 1) / of_block)};
  }
  template <int D>
  SavedLists Saved(const void* memory, std::size_t bytes) const {
    return SavedLists::Of(rows_, SweepShape<Type, D>::Room(stream_->Shared()), memory, bytes);
  }

  // Whether rows begin from a guess of their thresholds. Those whose guess fails are the second
  // sweep's. Pilots are a launch of their own, which few blocks would have to wait for.
  bool HasGuesses() const {
    if (Slots() == 0 || !IsSimple()) return false;
    Grid blocks;
    ForColumns(
        [&]<int D>() { blocks = Places(call_.q_len, SweepShape<Type, D>::kRows, call_.heads); });
    return std::int64_t{blocks.x} * blocks.y * blocks.z >= 8 * kBlocksAtOnce;
  }
  // The guesses of all rows, and the pilots' results. Sets sweep.guesses.
  template <int D>
  void Guess(const GuessCall& guess, SweepCall& sweep) {
    using Moments = MomentsShape<Type, D>;
    Launch("MomentsKernel", MomentsKernel<Type, D>, {Moments::kParts, call_.kv_heads, call_.batch},
           kThreads, Moments::kSharedBytes, guess);
    using Shape = SweepShape<Type, D>;
    Launch("RowGuessKernel", RowGuessKernel<Type, D>,
           Places(call_.q_len, Shape::kRows, call_.heads), kThreads,
           RowGuessShape<Type, D>::kSharedBytes, guess);
    sweep.guesses.rows = guess.rows;
    const Grid pilots = {Guesses::kPilots, call_.heads, call_.batch};
    LaunchSweep<D, false>(sweep, pilots);
    Launch("OffsetKernel", OffsetKernel<Shape::kRows>, {1, call_.heads, call_.batch}, kWarp, 0,
           guess);
    sweep.guesses.offsets = guess.offsets;
  }

  // Lists of all rows, and which rows are dense.
  template <int D>
  void Sweep(const SweepCall& sweep) {
    const Grid grid = Places(call_.q_len, SweepShape<Type, D>::kRows, call_.heads);
    IsSimple() ? LaunchSweep<D, false>(sweep, grid) : LaunchSweep<D, true>(sweep, grid);
    FindDense();
  }
  template <int D, bool kGeneral>
  void LaunchSweep(SweepCall sweep, const Grid& grid) {
    using Shape = SweepShape<Type, D>;
    sweep.room = Shape::Room(stream_->Shared());
    Launch("SweepKernel", SweepKernel<Type, D, kGeneral>, grid, kThreads,
           Shape::SharedBytes(sweep.room), sweep);
  }
  // Terms beside the product are among what the sweep's simple kernels do not know.
  bool IsSimple() const {
    const auto& terms = params_.terms;
    return !general_ && terms.alibi_slopes.data == nullptr && !NeedsProducts(terms) && reach_ == 0;
  }
  // Blocks of the second sweep; 0: there is none.
  int Slots() const {
    if (!sparse_ || call_.k_len < LongSlots::kLeastKeys) return 0;
    const Grid blocks = Places(call_.q_len, LongSlots::kRows, call_.heads);
    return static_cast<int>(
        std::min<std::int64_t>(kBlocksAtOnce, std::int64_t{blocks.x} * blocks.y * blocks.z));
  }
  // The rows that have no list.
  void FindDense() const {
    Launch("FindDenseKernel", FindDenseKernel<>, {1, call_.heads, call_.batch}, kThreads,
           kWarps * sizeof(int), call_, static_cast<const int*>(counts_), dense_rows_,
           dense_counts_);
  }

  // The lists' entries by key.
  void Sort(const SortCall& sort) {
    if (sort.places == nullptr) return;
    const Grid heads = {1, call_.kv_heads, call_.array_batch()};
    Grid tasks = heads, buckets = heads;
    tasks.x = SortCall::Tasks(call_);
    buckets.x = SortCall::Buckets(call_);
    // The counts of a task: for each bucket.
    static_assert(kMostKeys % kBucket == 0 && kMostRows * kList <= INT_MAX);
    const SharedBytes bytes(Size(buckets.x) * sizeof(int), kMostKeys / kBucket * sizeof(int));
    const std::size_t scan_bytes = kWarps * sizeof(int);
    Launch("SortKernel", SortKernel<false>, tasks, kWarp, bytes, sort);
    Launch("ScanKernel", ScanKernel<false>, buckets, kThreads, scan_bytes, sort);
    Launch("ScanKernel", ScanKernel<true>, heads, kThreads, scan_bytes, sort);
    Launch("SortKernel", SortKernel<true>, tasks, kWarp, bytes, sort);
    Launch("OrderKernel", OrderKernel<>, buckets, kThreads, kOrderSharedBytes, sort);
  }

  void BiasGradient(const BackwardCall& backward, const MutableArray4& d_bias) {
    BiasCall bias;
    bias.backward = backward;
    bias.d_bias = d_bias;
    ForColumns([&]<int D>() {
      using Shape = BiasShape<Type, D>;
      const auto tiles = [&](int axis, int size, int tile) {
        return bias.Sums(axis) ? std::min(size, 1) : (size + tile - 1) / tile;
      };
      Launch("BiasKernel", BiasKernel<Type, D>,
             {tiles(3, call_.k_len, Shape::kKeys) * tiles(2, call_.q_len, Shape::kRows),
              tiles(1, call_.heads, 1), tiles(0, call_.array_batch(), 1)},
             kThreads, Shape::kSharedBytes, bias);
    });
  }

  // Sums over rows, for each head.
  void AddRows(const double* from, double* to, bool over_batch) {
    if (to == nullptr) return;
    SumCall sum;
    sum.call = call_;
    sum.over_batch = over_batch;
    sum.from = from;
    sum.to = to;
    Launch("SumKernel", SumKernel<>, {1, call_.heads, over_batch ? 1 : call_.array_batch()},
           kThreads, kThreads * sizeof(double), sum);
  }

  // The least D that holds head and value size.
  int Columns() const {
    const int columns = std::max(call_.head_dim, call_.value_dim);
    return columns <= 32 ? 32 : columns <= 64 ? 64 : columns <= 128 ? 128 : 256;
  }
  // body<Columns()>()
  template <class Body>
  void ForColumns(const Body& body) const {
    switch (Columns()) {
      case 32: return body.template operator()<32>();
      case 64: return body.template operator()<64>();
      case 128: return body.template operator()<128>();
      default: return body.template operator()<256>();
    }
  }
  // body<D, general_>()
  template <class Body>
  void ForShape(const Body& body) const {
    ForColumns([&]<int D>() {
      general_ ? body.template operator()<D, true>() : body.template operator()<D, false>();
    });
  }

  const Stream* stream_;
  Workspace workspace_;
  const AttentionParams& params_;
  DeviceCall call_;
  std::size_t rows_ = 0;  // of the statistics
  int reach_ = 0;         // greatest distance of the scale-invariant term
  bool sparse_ = false;   // whether any row may have a list
  // Whether the kernels are those that know more than the usual calls need, in registers that these
  // would miss: masks, a bias, wide heads.
  bool general_ = false;
  double* alphas_ = nullptr;
  std::int64_t* ranges_ = nullptr;
  float *a_ = nullptr, *m_ = nullptr;
  int *counts_ = nullptr, *dense_rows_ = nullptr, *dense_counts_ = nullptr;
};

// Arguments are checked, and served. They return when the work is in the stream.
template <class Type>
void RunForward(const Context& context, const AttentionParams& params,
                const AttentionOutputs& outputs) {
  const Stream stream(context);
  Runner<Type>(&stream, context, params).Forward(outputs);
}
template <class Type>
void RunBackward(const Context& context, const AttentionParams& params,
                 const AttentionGradients& gradients) {
  const Stream stream(context);
  Runner<Type>(&stream, context, params).Backward(gradients);
}
template <class Type>
void RunWeightCounts(const Context& context, const AttentionParams& params, std::int64_t* counts) {
  const Stream stream(context);
  Runner<Type>(&stream, context, params).Weights(counts, nullptr, nullptr, nullptr);
}
template <class Type>
void RunWeights(const Context& context, const AttentionParams& params,
                const std::int64_t* row_offsets, std::int64_t* columns, float* values) {
  const Stream stream(context);
  Runner<Type>(&stream, context, params).Weights(nullptr, row_offsets, columns, values);
}
template <class Type>
std::size_t RunSavedBytes(const AttentionParams& params) {
  return Runner<Type>(nullptr, {}, params).SavedBytes();
}
template <class Type>
std::size_t RunWorkspaceBytes(const AttentionParams& params, bool backward) {
  Runner<Type> runner(nullptr, {}, params);
  if (backward) {
    double wanted = 0.0;
    AttentionGradients gradients;
    gradients.d_alpha = gradients.d_slopes = gradients.d_sink = &wanted;
    runner.Backward(gradients);
  } else {
    runner.Forward({});
  }
  return runner.bytes();
}

}  // namespace TSALLIS_SIDE
}  // namespace tsallis::cuda
