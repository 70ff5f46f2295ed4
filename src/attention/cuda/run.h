// From a call to launches: which kernels, on which memory. Included by launch.cu, and by tests for
// the emulation.
#pragma once

#include <algorithm>
#include <cstdint>

#include "attention/cuda/call.h"
#include "attention/cuda/cuda.h"
#include "attention/cuda/dense.h"
#include "attention/cuda/dense_backward.h"
#include "attention/cuda/gradients.h"
#include "attention/cuda/list_backward.h"
#include "attention/cuda/rows.h"
#include "attention/cuda/runtime.h"
#include "attention/cuda/sweep.h"
#include "tsallis/attention.h"

namespace tsallis::cuda {
#if defined(__CUDACC__)
inline namespace gpu {
#else
inline namespace emulated {
#endif

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
    call_.ranges = params.ranges;
    call_.terms = params.terms;
    call_.scale = ScaleOf(params);
    call_.alpha = params.map == RowMap::kSoftmax ? 1.0f : static_cast<float>(params.alpha);
    rows_ = Size(call_.array_batch()) * Size(call_.heads) * Size(call_.q_len);
    const bool per_head = params.map == RowMap::kEntmax && params.alpha_per_head != nullptr;
    workspace_.Want(&alphas_, Size(call_.heads), per_head);
    if (params.terms.scale_invariant != 0.0) reach_ = call_.q_len + call_.k_len;
    workspace_.Want(&a_, Size(2 * reach_ + 1), reach_ > 0);
    workspace_.Want(&m_, Size(2 * reach_ + 1), reach_ > 0);
    // Softmax has dense rows alone.
    sparse_ = per_head || call_.alpha != 1.0f;
    workspace_.Want(&counts_, rows_, sparse_);
    workspace_.Want(&dense_rows_, rows_, sparse_);
    workspace_.Want(&dense_counts_, Size(call_.batch) * Size(call_.heads), sparse_);
  }

  void Forward(const AttentionOutputs& outputs) {
    float* bounds = nullptr;
    workspace_.Want(&bounds, rows_, sparse_);
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
    ForShape([&]<int D>() {
      SweepCall sweep;
      sweep.call = call_;
      sweep.out = outputs.out;
      sweep.statistics = statistics;
      sweep.lists.counts = counts_;
      sweep.bounds = bounds;
      if (sparse_) Sweep<D>(sweep);
      DenseCall dense;
      dense.call = call_;
      dense.dense = {dense_rows_, dense_counts_};
      dense.out = outputs.out;
      dense.statistics = statistics;
      dense.bounds = bounds;
      using Shape = DenseShape<Type, D>;
      Launch("DenseKernel", DenseKernel<Type, D>, Blocks(call_.q_len, Shape::kRows), kThreads,
             Shape::kSharedBytes, dense);
    });
  }

  void Backward(const AttentionGradients& gradients) {
    BackwardCall backward;
    SortCall sort;
    const std::size_t entries = rows_ * kList;
    const std::size_t keys = Size(call_.array_batch()) * Size(call_.kv_heads) * Size(call_.k_len);
    const std::size_t places =
        Size(call_.array_batch()) * Size(call_.kv_heads) *
        (Size((call_.k_len + kBucket - 1) / kBucket) *
             ((Size(Group()) * Size(call_.q_len) + kTaskRows - 1) / kTaskRows) +
         1);
    workspace_.Want(&backward.lists.keys, entries, sparse_);
    workspace_.Want(&backward.lists.weights, entries, sparse_);
    workspace_.Want(&backward.w, entries, sparse_);
    workspace_.Want(&sort.entries, entries, sparse_);
    workspace_.Want(&sort.places, places, sparse_ && rows_ > 0);
    workspace_.Want(&backward.means, rows_);
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
    ForShape([&]<int D>() {
      if (sparse_) {
        SweepCall sweep;
        sweep.call = call_;
        sweep.lists = backward.lists;
        sweep.from_tau = gradients.tau;
        Sweep<D>(sweep);
        Launch("ListRowsKernel", ListRowsKernel<Type, D>, Places(call_.q_len, kWarps, call_.heads),
               kThreads, kRowsSharedBytes, backward);
        Sort(sort);
      }
      using RowsShape = DenseRowsShape<Type, D>;
      Launch("DenseRowsKernel", DenseRowsKernel<Type, D>, Blocks(call_.q_len, RowsShape::kRows),
             kThreads, RowsShape::kSharedBytes, backward);
      using KeysShape = DenseKeysShape<Type, D>;
      Grid grid = Places(call_.k_len, KeysShape::kKeys, call_.kv_heads);
      grid.x *= KeysShape::kParts;
      Launch("DenseKeysKernel", DenseKeysKernel<Type, D>, grid, kThreads, KeysShape::kSharedBytes,
             backward);
      Launch("ListKeysKernel", ListKeysKernel<Type, D>,
             Places(call_.k_len, kBucket, call_.kv_heads), kThreads, 0, backward, sort);
    });
    AddRows(backward.sums.d_alpha, gradients.d_alpha, true);
    AddRows(backward.sums.d_sink, gradients.d_sink, true);
    AddRows(backward.sums.d_slope, gradients.d_slopes, false);
  }

  // Bytes of the memory that the pass would take.
  std::size_t bytes() const { return workspace_.bytes(); }

 protected:
  static std::size_t Size(int size) { return static_cast<std::size_t>(size); }
  int Group() const { return call_.kv_heads > 0 ? call_.heads / call_.kv_heads : 0; }

  template <class... Parameters, class... Arguments>
  void Launch(const char* name, void (*kernel)(Parameters...), Grid grid, int threads,
              std::size_t shared_bytes, const Arguments&... arguments) const {
    stream_->Launch(name, kernel, grid, threads, shared_bytes, arguments...);
  }

  // Memory, and what is known beforehand in it. False: there is nobody to do the work.
  bool Begin() {
    if (stream_ == nullptr) return false;
    workspace_.Allocate();
    SetKnown();
    if (counts_ != nullptr) {
      const auto blocks = static_cast<int>((rows_ + kThreads - 1) / kThreads);
      Launch("ZeroCountsKernel", ZeroCountsKernel<>, {blocks}, kThreads, 0, counts_,
             static_cast<std::int64_t>(rows_));
    }
    return true;
  }

  // What the host knows, in the workspace.
  void SetKnown() {
    if (alphas_ != nullptr) {
      call_.alphas = alphas_;
      for (int first = 0; first < call_.heads; first += Floats::kMost) {
        Floats floats = {};
        const int count = std::min(Floats::kMost, call_.heads - first);
        for (int i = 0; i < count; ++i) {
          floats.values[i] = static_cast<float>(params_.alpha_per_head[first + i]);
        }
        Launch("SetFloatsKernel", SetFloatsKernel<>, {}, kThreads, 0, alphas_ + first, floats,
               count);
      }
    }
    if (reach_ > 0) {
      call_.distances = {a_ + reach_, m_ + reach_};
      Launch("DistancesKernel", DistancesKernel<>, {(reach_ + kThreads) / kThreads}, kThreads, 0,
             DistanceLaw::Of(params_.terms), reach_, a_, m_);
    }
  }

  bool HasOutside() const {
    const AttentionRanges& ranges = call_.ranges;
    return !ranges.packed && (ranges.q_begin != nullptr || ranges.q_end != nullptr ||
                              ranges.k_begin != nullptr || ranges.k_end != nullptr);
  }
  void Clear(ClearCall& clear, bool of_keys) {
    clear.call = call_;
    clear.of_keys = of_keys;
    clear.heads = of_keys ? call_.kv_heads : call_.heads;
    const int length = of_keys ? call_.k_len : call_.q_len;
    Launch("ClearKernel", ClearKernel<Type>,
           {(length + kWarps - 1) / kWarps, clear.heads, call_.batch}, kThreads, 0, clear);
  }

  // Blocks of rows of every sequence and head.
  Grid Blocks(int length, int rows) const {
    return {(length + rows - 1) / rows, call_.heads, call_.batch};
  }
  // The same for kernels that find their sequence by BlockPlace.
  Grid Places(int length, int rows, int heads) const {
    const bool packed = call_.ranges.packed;
    return {BlockPlace::Count(packed, length, call_.batch, rows), heads, packed ? 1 : call_.batch};
  }

  // Lists of all rows, and which rows are dense.
  template <int D>
  void Sweep(const SweepCall& sweep) {
    using Shape = SweepShape<Type, D>;
    Launch("SweepKernel", SweepKernel<Type, D>, Places(call_.q_len, Shape::kRows, call_.heads),
           kThreads, Shape::kSharedBytes, sweep);
    Launch("FindDenseKernel", FindDenseKernel<>, {1, call_.heads, call_.batch}, kWarp, 0, call_,
           static_cast<const int*>(counts_), dense_rows_, dense_counts_);
  }

  // The lists' entries by key.
  void Sort(const SortCall& sort) {
    if (sort.places == nullptr) return;
    const Grid heads = {1, call_.kv_heads, call_.array_batch()};
    Grid tasks = heads;
    tasks.x = (Group() * call_.q_len + kTaskRows - 1) / kTaskRows;
    const std::size_t bytes = Size((call_.k_len + kBucket - 1) / kBucket) * sizeof(int);
    Launch("SortKernel", SortKernel<false>, tasks, kWarp, bytes, sort);
    Launch("ScanKernel", ScanKernel<>, heads, kThreads, kWarps * sizeof(int), sort);
    Launch("SortKernel", SortKernel<true>, tasks, kWarp, bytes, sort);
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

  // body<D>() for the least D that holds head and value size.
  template <class Body>
  void ForShape(const Body& body) {
    const int columns = std::max(call_.head_dim, call_.value_dim);
    if (columns <= 32) return body.template operator()<32>();
    if (columns <= 64) return body.template operator()<64>();
    if (columns <= 128) return body.template operator()<128>();
    return body.template operator()<256>();
  }

  const Stream* stream_;
  Workspace workspace_;
  const AttentionParams& params_;
  Call call_;
  std::size_t rows_ = 0;  // of the statistics
  int reach_ = 0;         // greatest distance of the scale-invariant term
  bool sparse_ = false;
  float *alphas_ = nullptr, *a_ = nullptr, *m_ = nullptr;
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

}  // namespace gpu or emulated
}  // namespace tsallis::cuda
