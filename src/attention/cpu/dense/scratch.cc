// Sizes and memory of the dense kernel.
#include <algorithm>
#include <limits>

#include "attention/cpu/dense/dense.h"

namespace tsallis {
namespace dense {
namespace {

std::size_t FloatBytes(std::int64_t count) {
  return static_cast<std::size_t>(count) * sizeof(float);
}

std::int64_t LineFloats(const AttentionParams& params, std::int64_t most_keys) {
  return std::max(kPanel * Padded(std::max(params.head_dim, params.value_dim)), most_keys);
}

// The others are in a table, or 1.
std::int64_t DerivativeFloats(const AttentionParams& params, std::int64_t most_keys,
                              bool backward) {
  return backward && NeedsProducts(params.terms) ? most_keys : 1;
}

std::int64_t SumFloats(const AttentionParams& params) {
  return kMostRows * Padded(std::max(params.head_dim, params.value_dim));
}

// Floats of the largest group's scores, with one row more.
std::int64_t ScoreFloats(std::int64_t most_keys) {
  const std::int64_t pitch = ScorePitch(most_keys);
  return std::min(std::max(kScoreFloats, kLeastRows * pitch), kMostRows * pitch) + pitch;
}

std::int64_t PanelFloats(std::int64_t columns) { return kPanel * Padded(columns); }

std::int64_t Panels(std::int64_t keys) { return RoundUp(keys, kPanel) / kPanel; }

// Panels that a cache keeps: a panel p stands in slot p modulo their number.
std::int64_t Slots(std::int64_t columns, std::int64_t most_keys) {
  const std::int64_t panels = Panels(most_keys) + 1;
  return panels * PanelFloats(columns) <= kCacheFloats ? panels : 1;
}

// Whether the rows of a panel always lie one after the other.
bool PanelsLieAdjacent(const HeadRows& rows) {
  const std::int64_t page = std::int64_t{1} << rows.page_shift;
  return rows.pages == nullptr || (page % kPanel == 0 && rows.first % kPanel == 0);
}

}  // namespace

RowGroup GroupAt(const AttentionParams& params, const Sequence& sequence, std::int64_t h,
                 std::int64_t q_row, std::int64_t q_end) {
  const auto visible = [&](std::int64_t end) {
    // Both ends of what a row sees rise with the row.
    Span keys = {sequence.VisibleKeys(params.mask, q_row).begin,
                 std::min(sequence.VisibleKeys(params.mask, end - 1).end, sequence.k.end)};
    return keys.size() > 0 ? keys : Span{sequence.k.begin, sequence.k.begin};
  };
  std::int64_t end = std::min(q_end, q_row + kMostRows);
  end = std::min(end, q_row + GroupRows(visible(end).size()));
  return {sequence, h, {q_row, end}, visible(end)};
}

void Most::Include(const AttentionParams& params, const Sequence& sequence) {
  const AttentionMask& mask = params.mask;
  std::int64_t here = sequence.k.size();
  rows = std::max(rows, here);
  if (mask.left >= 0 && (mask.right >= 0 || mask.causal)) {
    const std::int64_t left = std::min(mask.left, here);
    const std::int64_t right = mask.right >= 0 ? std::min(mask.right, here) : 0;
    here = std::min(here, left + right + kMostRows);
  }
  keys = std::max(keys, here);
}

PanelCall::PanelCall(const AttentionParams& call_params, const AttentionOutputs* call_outputs,
                     const AttentionGradients* call_gradients)
    : params(call_params),
      outputs(call_outputs),
      gradients(call_gradients),
      distances(call_params) {
  if (gradients != nullptr) {
    wants_ds = gradients->dq.data != nullptr || gradients->dk.data != nullptr ||
               gradients->d_length_scale != nullptr || gradients->d_alpha != nullptr ||
               gradients->d_slopes != nullptr || gradients->d_sink != nullptr ||
               gradients->d_bias.data != nullptr;
  }
}

PanelCache::PanelCache(std::int64_t cache_columns, bool is_transposed, std::int64_t most_keys,
                       std::int64_t most_rows)
    : columns(cache_columns),
      transposed(is_transposed),
      memory(Aligned<float>(Slots(cache_columns, most_keys) * PanelFloats(cache_columns))),
      panel_floats(PanelFloats(cache_columns)),
      most_slots_(Slots(cache_columns, most_keys)) {
  // In place every panel has its slot.
  const auto most = static_cast<std::size_t>(std::max(most_slots_, Panels(most_rows)));
  held.reserve(most);
  finite.reserve(most);
}

std::size_t PanelCache::Bytes(std::int64_t columns, std::int64_t most_keys,
                              std::int64_t most_rows) {
  const std::int64_t slots = Slots(columns, most_keys);
  return FloatBytes(slots * PanelFloats(columns)) +
         static_cast<std::size_t>(std::max(slots, Panels(most_rows))) * 5;
}

void PanelCache::Point(const HeadRows& rows, const Sequence& sequence, std::int64_t kv) {
  if (sequence.batch == batch_ && kv == kv_) return;
  batch_ = sequence.batch;
  kv_ = kv;
  source = rows;
  keys = sequence.k.size();
  // Rows a power of two apart would meet in the same sets of the first-level cache.
  in_place = !transposed && rows.dtype == DType::kFloat32 && rows.step == 1 &&
             rows.row_bytes == columns * static_cast<std::int64_t>(sizeof(float)) &&
             PanelsLieAdjacent(rows) && columns == Padded(columns);
  pitch = in_place ? columns : transposed ? kPanel : Padded(columns);
  slots = in_place ? std::max<std::int64_t>(1, Panels(keys)) : most_slots_;
  held.assign(static_cast<std::size_t>(slots), -1);
  finite.assign(static_cast<std::size_t>(slots), 0);
}

GroupBuffers::GroupBuffers(const AttentionParams& params, std::int64_t most_keys, bool backward) {
  const std::int64_t floats = ScoreFloats(most_keys);
  scores = Aligned<float>(floats);
  q = Aligned<float>(kMostRows * Padded(params.head_dim));
  if (backward) {
    ds = Aligned<float>(floats);
    d_out = Aligned<float>(kMostRows * Padded(params.value_dim));
  }
  bits.resize(static_cast<std::size_t>(floats / kPanel + 1));
}

std::size_t GroupBuffers::Bytes(const AttentionParams& params, std::int64_t most_keys,
                                bool backward) {
  const std::int64_t floats = ScoreFloats(most_keys);
  return FloatBytes(floats * (backward ? 2 : 1)) +
         FloatBytes(kMostRows * (Padded(params.head_dim) + Padded(params.value_dim))) +
         static_cast<std::size_t>(floats / kPanel + 1) * 8;
}

void GroupBuffers::Point(const RowGroup& group) {
  at = group;
  pitch = ScorePitch(group.keys.size());
  const std::int64_t first = group.keys.begin - group.sequence.k.begin;
  first_panel = first / kPanel;
  panels =
      group.keys.size() > 0 ? Panels(group.keys.end - group.sequence.k.begin) - first_panel : 0;
}

Thread::Thread(const AttentionParams& params, const Most& most, bool backward)
    : row(static_cast<std::size_t>(most.keys + 1)),  // with a sink
      k_columns(params.head_dim, true, most.keys, most.rows),
      v_rows(params.value_dim, false, most.keys, most.rows),
      // One panel each where they are not used.
      v_columns(params.value_dim, true, backward ? most.keys : 0, most.rows),
      k_rows(params.head_dim, false, backward ? most.keys : 0, most.rows),
      sum(Aligned<float>(SumFloats(params))),
      total(Aligned<float>(SumFloats(params))),
      line(Aligned<float>(LineFloats(params, most.keys))),
      derivatives(Aligned<float>(DerivativeFloats(params, most.keys, backward))) {}

std::size_t Thread::Bytes(const AttentionParams& params, const Most& most, bool backward) {
  const std::int64_t other = backward ? most.keys : 0;
  return RowScratch::Bytes(static_cast<std::size_t>(most.keys + 1)) +
         PanelCache::Bytes(params.head_dim, most.keys, most.rows) +
         PanelCache::Bytes(params.value_dim, most.keys, most.rows) +
         PanelCache::Bytes(params.head_dim, other, most.rows) +
         PanelCache::Bytes(params.value_dim, other, most.rows) +
         FloatBytes(2 * SumFloats(params) + LineFloats(params, most.keys) +
                    DerivativeFloats(params, most.keys, backward));
}

void Thread::Point(const AttentionParams& params, const Sequence& sequence, std::int64_t kv) {
  const HeadRows keys = KeyRows(params, sequence, kv, sequence.k.begin);
  const HeadRows values = ValueRows(params, sequence, kv, sequence.k.begin);
  k_columns.Point(keys, sequence, kv);
  v_rows.Point(values, sequence, kv);
  v_columns.Point(values, sequence, kv);
  k_rows.Point(keys, sequence, kv);
}

}  // namespace dense
}  // namespace tsallis
