// From a call on pages to launches, as run.h for a call on arrays.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "attention/cuda/pages.h"
#include "attention/cuda/run.h"
#include "tsallis/pages.h"

namespace tsallis::cuda {
inline namespace TSALLIS_SIDE {

template <class Type>
class PagesRunner : private Runner<Type> {
 public:
  // params: with the pages' k and v, and k_len as what a table has room for.
  PagesRunner(const Stream* stream, const Context& context, const AttentionParams& params,
              const AttentionPages& pages, const AttentionOutputs& outputs)
      : Runner<Type>(stream, context, params) {
    const auto narrow = [](std::int64_t size) { return static_cast<int>(size); };
    pages_.pages = narrow(pages.pages);
    pages_.page_size = narrow(pages.page_size);
    const auto size = static_cast<std::uint64_t>(pages.page_size);
    if (std::has_single_bit(size)) pages_.page_bits = std::countr_zero(size);
    pages_.table = pages.table;
    pages_.lengths = pages.lengths;
    pages_.table_stride = pages.table_stride;
    pages_.call = call_;
    pages_.out = outputs.out;
    pages_.statistics = {outputs.tau, outputs.support_size, outputs.entropy, outputs.maximum};
    pages_.tiles = (call_.k_len + kPageTile - 1) / kPageTile;
    SetRuns();
    workspace_.Want(&pages_.scores, rows_ * Size(pages_.units()) * kPageUnit);
    workspace_.Want(&pages_.most, rows_ * Size(pages_.units()));
    workspace_.Want(&pages_.solved, 2 * rows_);
    workspace_.Want(&pages_.many, rows_);
    workspace_.Want(&pages_.partials, rows_ * Size(pages_.runs) * Size(call_.value_dim));
  }
  using Runner<Type>::bytes;

  void Forward() {
    if (rows_ == 0) return;
    workspace_.Allocate();
    this->SetKnown();
    pages_.call.alphas = call_.alphas;
    pages_.call.distances = call_.distances;
    const Grid runs = {pages_.runs * pages_.blocks(), call_.kv_heads, call_.batch};
    const Grid rows = {call_.q_len, call_.heads, call_.batch};
    this->ForColumns([&]<int D>() {
      using Units = PageUnitsShape<Type, D>;
      this->Launch("PageScoresKernel", PageScoresKernel<Type, D>, runs, kThreads,
                   Units::kSharedBytes, pages_);
      this->Launch("PageSolveKernel", PageSolveKernel<Type, D>, rows, kSolveThreads,
                   PageSolveShape<D>::kSharedBytes, pages_);
      this->Launch("PageValuesKernel", PageValuesKernel<Type, D>, runs, kThreads,
                   Units::kSharedBytes, pages_);
    });
    this->Launch("PageSumKernel", PageSumKernel<Type>, rows, kThreads, 0, pages_);
  }

 private:
  using Runner<Type>::call_;
  using Runner<Type>::rows_;
  using Runner<Type>::workspace_;
  using Runner<Type>::Size;

  // No more blocks than the largest GPUs have at once, four for each multiprocessor, of four tiles
  // at least: a few that come behind all others would take as long as these. Where runs would be
  // longer than 32 tiles there are several times as many, whose ends even out. Sizes alone decide,
  // so that results have the same bits on every device.
  void SetRuns() {
    if (rows_ == 0) return;
    constexpr std::int64_t kBlocks = 528, kLongest = 32;
    const std::int64_t others = std::int64_t{call_.batch} * call_.kv_heads * pages_.blocks();
    const std::int64_t tiles = pages_.tiles;
    const std::int64_t least = std::max<std::int64_t>(1, kBlocks / others);
    const std::int64_t times = (tiles + least * kLongest - 1) / (least * kLongest);
    const std::int64_t runs = std::max<std::int64_t>(1, std::min(least * times, (tiles + 3) / 4));
    pages_.run = static_cast<int>(std::max<std::int64_t>(1, (tiles + runs - 1) / runs));
    pages_.runs = std::max(1, (pages_.tiles + pages_.run - 1) / pages_.run);
  }

  PagesCall pages_;
};

// Arguments are checked, and served. They return when the work is in the stream.
template <class Type>
void RunOnPages(const Context& context, const AttentionParams& params, const AttentionPages& pages,
                const AttentionOutputs& outputs) {
  const Stream stream(context);
  PagesRunner<Type>(&stream, context, params, pages, outputs).Forward();
}
template <class Type>
std::size_t RunOnPagesWorkspaceBytes(const AttentionParams& params, const AttentionPages& pages) {
  return PagesRunner<Type>(nullptr, {}, params, pages, {}).bytes();
}

}  // namespace TSALLIS_SIDE
}  // namespace tsallis::cuda
