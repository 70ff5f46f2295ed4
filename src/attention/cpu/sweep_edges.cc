#include "attention/cpu/sweep_edges.h"

#include <cstring>

#include "simplex/map.h"

namespace tsallis {

void BlockEdges::Clear() {
  size_ = 0;
  runs_.clear();
  d_alpha = d_slope = 0.0;
}

float* BlockEdges::Begin(std::size_t n) {
  constexpr std::size_t kVector = 64;
  const auto room = static_cast<std::int64_t>(size_ + n + kVector);
  const auto kept = static_cast<std::int64_t>(size_);
  keys_.Extend(room, kept);
  p_.Extend(room, kept);
  return ds_.Extend(room, kept) + size_;
}

void BlockEdges::End(std::int64_t row, const std::uint32_t* keys, const float* p, std::size_t n) {
  std::memcpy(keys_.get() + size_, keys, n * sizeof(*keys));
  std::memcpy(p_.get() + size_, p, n * sizeof(*p));
  const auto panel_of = [&](std::size_t i) {
    return keys[i] / static_cast<std::uint32_t>(kPanelKeys);
  };
  for (std::size_t i = 0; i < n;) {
    const std::uint32_t panel = panel_of(i);
    const std::size_t begin = i++;
    while (i < n && panel_of(i) == panel) ++i;
    runs_.push_back({static_cast<std::int32_t>(row), panel, size_ + begin, size_ + i});
  }
  size_ += n;
}

void BlockEdges::AddAlpha(double alpha, const float* p, const float* dp, std::size_t n) {
  wide_p_.assign(p, p + n);
  wide_dp_.assign(dp, dp + n);
  const RowSpec spec{.map = RowMap::kEntmax, .alpha = alpha};
  d_alpha +=
      kEntmaxReference.d_alpha(spec, wide_p_.data(), wide_dp_.data(), static_cast<std::int64_t>(n));
}

void BlockEdges::Sort(std::int64_t keys) {
  const auto panels = static_cast<std::size_t>((keys + kPanelKeys - 1) / kPanelKeys);
  starts_.assign(panels + 1, 0);
  for (const EdgeRun& run : runs_) ++starts_[run.panel + 1];
  for (std::size_t i = 0; i < panels; ++i) starts_[i + 1] += starts_[i];
  sorted_.resize(runs_.size());
  for (const EdgeRun& run : runs_) sorted_[starts_[run.panel]++] = run;
  // Each start has moved to its end, which is the next one's start.
  for (std::size_t i = panels; i > 0; --i) starts_[i] = starts_[i - 1];
  starts_[0] = 0;
}

}  // namespace tsallis
