#include "attention/cpu/sweep_edges.h"

#include "simplex/map.h"

namespace tsallis {

void BlockEdges::Clear() {
  edges_.clear();
  d_alpha = d_slope = 0.0;
}

float* BlockEdges::Room(std::size_t n) {
  constexpr std::size_t kVector = 64;
  if (room_.size() < n + kVector) room_.resize(2 * n + kVector);
  return room_.data();
}

void BlockEdges::Append(std::int64_t row, const std::uint32_t* keys, const float* p,
                        const float* ds, std::size_t n) {
  const std::size_t at = edges_.size();
  edges_.resize(at + n);
  for (std::size_t i = 0; i < n; ++i) {
    edges_[at + i] = {keys[i], static_cast<std::int32_t>(row), p[i], ds[i]};
  }
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
  for (const Edge& edge : edges_) ++starts_[edge.key / kPanelKeys + 1];
  for (std::size_t i = 0; i < panels; ++i) starts_[i + 1] += starts_[i];
  sorted_.resize(edges_.size());
  for (const Edge& edge : edges_) sorted_[starts_[edge.key / kPanelKeys]++] = edge;
  // Each start has moved to its end, which is the next one's start.
  for (std::size_t i = panels; i > 0; --i) starts_[i] = starts_[i - 1];
  starts_[0] = 0;
}

}  // namespace tsallis
