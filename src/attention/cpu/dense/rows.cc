// The dense kernel's arithmetic, for every instruction set.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "attention/cpu/dense/dense.h"
#include "attention/reference.h"
#include "core/elements.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attention/cpu/dense/rows.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include "attention/cpu/dense/panels-inl.h"
#include "attention/cpu/dense/scores-inl.h"
#include "attention/cpu/tile-inl.h"
#include "simplex/row-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tsallis {
namespace HWY_NAMESPACE {

using dense::GroupBuffers;
using dense::kPanel;
using dense::PanelCall;
using dense::Thread;

// Panel sums that are added to `total` at once: the error of a sum over n keys is that of
// 64 + 16 + n / 1024 additions.
constexpr std::int64_t kFold = 16;

HWY_INLINE std::int64_t RowsOf(const GroupBuffers& group) { return group.at.q.size(); }

// Rows of an array as floats times factor(row). to: [rows][Padded(columns)].
template <class Factor>
HWY_INLINE void LoadRows(const ConstArray4& array, const dense::RowGroup& at, std::int64_t columns,
                         float* to, const Factor& factor) {
  const std::int64_t pitch = Padded(columns);
  for (std::int64_t q_row = at.q.begin; q_row < at.q.end; ++q_row, to += pitch) {
    LoadFloats(HeadRows::Of(array, at.sequence.array_batch, at.h), q_row, columns, to);
    const float times = factor(q_row);
    for (std::int64_t x = 0; x < columns; ++x) to[x] *= times;
    std::fill(to + columns, to + pitch, 0.0f);
  }
}

HWY_INLINE RowPlace PlaceOf(const PanelCall& call, const GroupBuffers& group, std::int64_t r) {
  const dense::RowGroup& at = group.at;
  const std::int64_t q_row = at.q.begin + r;
  Span keys = at.sequence.VisibleKeys(call.params.mask, q_row);
  if (keys.size() == 0) keys = {at.keys.begin, at.keys.begin};
  return {at.sequence, at.h, q_row, keys};
}

// First key of the group's rows of scores.
HWY_INLINE std::int64_t FirstKey(const GroupBuffers& group) {
  return group.at.sequence.k.begin + group.first_panel * kPanel;
}

// product[r][j] = left_r . column j of the panels. left: [rows][Padded(depth)].
HWY_INLINE void Products(const PanelCall& call, const GroupBuffers& group, const float* left,
                         std::int64_t depth, dense::PanelCache& panels, float* line,
                         float* product) {
  for (std::int64_t p = 0; p < group.panels; ++p) {
    const std::int64_t first = FirstKey(group) + p * kPanel;
    const Span keys = {first, std::min(first + kPanel, group.at.sequence.k.end)};
    if (HiddenByBlocks(call.params.mask, group.at.sequence.array_batch, group.at.h, group.at.q,
                       keys)) {
      // Whatever stands here gets masked; terms must not read memory nobody wrote.
      for (std::int64_t r = 0; r < RowsOf(group); ++r) {
        float* row = product + r * group.pitch + p * kPanel;
        std::fill(row, row + kPanel, 0.0f);
      }
      continue;
    }
    const PanelView view = ViewPanel(panels, group.first_panel + p, line);
    MultiplyAll<false>(static_cast<std::size_t>(RowsOf(group)), kPanel,
                       static_cast<std::size_t>(depth), Left{left, Padded(depth), 1}, view.data,
                       view.pitch, product + p * kPanel, group.pitch);
  }
}

// sum over the panels of left[r][j] times row j, in thread.total. left: [rows][group.pitch], 0
// wherever group.bits says so.
HWY_INLINE void AddRows(const GroupBuffers& group, const float* left, dense::PanelCache& panels,
                        Thread& thread) {
  const std::int64_t rows = RowsOf(group), columns = Padded(panels.columns);
  const auto size = static_cast<std::size_t>(rows * columns);
  float* HWY_RESTRICT sum = thread.sum.get();
  float* HWY_RESTRICT total = thread.total.get();
  std::fill(total, total + size, 0.0f);
  std::fill(sum, sum + size, 0.0f);
  for (std::int64_t p = 0; p < group.panels; ++p) {
    std::uint64_t any = 0;
    for (std::int64_t r = 0; r < rows; ++r) any |= group.bits[r * group.panels + p];
    if (any != 0) {
      const PanelView view = ViewPanel(panels, group.first_panel + p, thread.line.get());
      for (std::int64_t r = 0; r < rows; r += kTileRows) {
        const std::int64_t count = std::min<std::int64_t>(kTileRows, rows - r);
        std::uint64_t used = 0;
        for (std::int64_t i = r; i < r + count; ++i) used |= group.bits[i * group.panels + p];
        AddProduct(static_cast<std::size_t>(count), static_cast<std::size_t>(columns),
                   static_cast<std::size_t>(view.rows), used, view.finite,
                   {left + r * group.pitch + p * kPanel, group.pitch, 1}, view.data, view.pitch,
                   sum + r * columns, columns);
      }
    }
    if (p % kFold == kFold - 1 || p + 1 == group.panels) {
      for (std::size_t x = 0; x < size; ++x) {
        total[x] += sum[x];
        sum[x] = 0.0f;
      }
    }
  }
}

// Zeros around the keys that row r may see, and the bits of its weights.
HWY_INLINE void CloseRow(const GroupBuffers& group, const RowPlace& at, float* row) {
  const std::int64_t begin = at.keys.begin - FirstKey(group), end = begin + at.n();
  std::fill(row, row + begin, 0.0f);
  std::fill(row + end, row + group.panels * kPanel, 0.0f);
}

// Returns how many are not 0.
HWY_INLINE std::int64_t MarkRow(GroupBuffers& group, std::int64_t r, const float* weights) {
  std::int64_t count = 0;
  for (std::int64_t p = 0; p < group.panels; ++p) {
    const std::uint64_t bits = NonZeroBits(weights + p * kPanel);
    group.bits[r * group.panels + p] = bits;
    count += static_cast<std::int64_t>(hwy::PopCount(bits));
  }
  return count;
}

// Marks keys whose gradient of the score is not 0 although the weight is.
HWY_INLINE void MarkGradients(GroupBuffers& group, std::int64_t r, const float* ds) {
  for (std::int64_t p = 0; p < group.panels; ++p) {
    group.bits[r * group.panels + p] |= NonZeroBits(ds + p * kPanel);
  }
}

// Puts the sink's score behind those of a row's n > 0 keys; returns the entries of the map. Where
// nothing is visible the sink is as good as absent. x: [n + 1]
HWY_INLINE std::size_t WithSink(const AttentionParams& params, std::int64_t h, std::int64_t n,
                                float* x) {
  const auto keys = static_cast<std::size_t>(n);
  if (params.terms.sink == nullptr) return keys;
  const bool sees = RowMaximum(x, keys) != -kInfinityF;
  x[n] = sees ? static_cast<float>(params.terms.sink[h]) : -kInfinityF;
  return keys + 1;
}

// Queries times their factors, and their products with every key: rows 1, 2, ... of the scores.
HWY_INLINE void ScoreRows(const PanelCall& call, GroupBuffers& group, Thread& thread) {
  const AttentionParams& params = call.params;
  const dense::RowGroup& at = group.at;
  LoadRows(params.q, at, params.head_dim, group.q.get(), [&](std::int64_t q_row) {
    return static_cast<float>(RowFactor(params, at.sequence, at.h, q_row));
  });
  Products(call, group, group.q.get(), params.head_dim, thread.k_columns, thread.line.get(),
           group.scores.get() + group.pitch);
}

void DenseForward(const PanelCall& call, GroupBuffers& group, Thread& thread) {
  const AttentionParams& params = call.params;
  const AttentionOutputs& outputs = *call.outputs;
  const dense::RowGroup& at = group.at;
  const std::int64_t rows = RowsOf(group), pitch = group.pitch;
  float* scores = group.scores.get();
  ScoreRows(call, group, thread);
  const RowSpec spec = SpecOfHead(params, at.h);
  const bool describe = outputs.support_size != nullptr || outputs.entropy != nullptr;
  RowHint hint;
  for (std::int64_t r = 0; r < rows; ++r) {
    const RowPlace place = PlaceOf(call, group, r);
    const std::int64_t n = place.n(), skipped = place.keys.begin - FirstKey(group);
    float* x = scores + (r + 1) * pitch + skipped;
    float* weights = scores + r * pitch;
    RowResult result = {-INFINITY, 0, 0.0};
    double maximum = -INFINITY;
    if (n > 0) {
      FinishScores(call, place, x, thread.line.get(), nullptr);
      if (outputs.maximum != nullptr) maximum = MaximumScore(x, n);
      const std::size_t entries = WithSink(params, at.h, n, x);
      const bool sink = params.terms.sink != nullptr;
      result = ForwardRow(spec, x, entries, weights + skipped, describe && !sink, thread.row, hint);
      // Not of the sink, and not of a row of NaN.
      if (describe && sink && result.support_size >= 0) {
        Describe(weights + skipped, static_cast<std::size_t>(n), &result);
      }
    }
    CloseRow(group, place, weights);
    // Neighbours are alike.
    hint.dense = 8 * MarkRow(group, r, weights) > n;
    const std::int64_t index = RowIndex(params, at.sequence, at.h, place.q_row);
    if (call.receiver != nullptr) {
      thread.support.clear();
      thread.weights.clear();
      for (std::int64_t j = 0; j < n; ++j) {
        if (!(weights[skipped + j] > 0.0f)) continue;  // NaN is no entry
        thread.support.push_back(static_cast<std::uint32_t>(j));
        thread.weights.push_back(weights[skipped + j]);
      }
      call.receiver->Put(index, place.keys.begin, thread.support.data(), thread.weights.data(),
                         thread.support.size());
      continue;
    }
    if (outputs.tau != nullptr) outputs.tau[index] = result.tau;
    if (outputs.support_size != nullptr) outputs.support_size[index] = result.support_size;
    if (outputs.entropy != nullptr) outputs.entropy[index] = result.entropy;
    if (outputs.maximum != nullptr) outputs.maximum[index] = maximum;
  }
  if (call.receiver != nullptr) return;
  AddRows(group, scores, thread.v_rows, thread);
  const std::int64_t columns = Padded(params.value_dim);
  for (std::int64_t r = 0; r < rows; ++r) {
    StoreFloats(thread.total.get() + r * columns, outputs.out,
                Offset(outputs.out.strides, at.sequence.array_batch, at.h, at.q.begin + r),
                params.value_dim);
  }
}

// dq and the gradient of c from sum_j dx_j k_j in thread.total, where x = c scale <q, k>.
HWY_INLINE void StoreQueryGradients(const PanelCall& call, const GroupBuffers& group,
                                    Thread& thread) {
  const AttentionParams& params = call.params;
  const AttentionGradients& gradients = *call.gradients;
  const dense::RowGroup& at = group.at;
  const std::int64_t b = at.sequence.array_batch, d = params.head_dim;
  const double scale = ScaleOf(params);
  float* q = thread.line.get();
  for (std::int64_t r = 0; r < RowsOf(group); ++r) {
    const std::int64_t q_row = at.q.begin + r;
    float* sum = thread.total.get() + r * Padded(d);
    if (gradients.d_length_scale != nullptr) {
      LoadFloats(HeadRows::Of(params.q, b, at.h), q_row, d, q);
      double dot = 0.0;
      for (std::int64_t x = 0; x < d; ++x) {
        // A row that sees nothing has gradient 0 whatever its query is.
        if (sum[x] != 0.0f) dot += static_cast<double>(q[x]) * static_cast<double>(sum[x]);
      }
      gradients.d_length_scale[RowIndex(params, at.sequence, at.h, q_row)] = scale * dot;
    }
    if (gradients.dq.data == nullptr) continue;
    const auto factor = static_cast<float>(RowFactor(params, at.sequence, at.h, q_row));
    for (std::int64_t x = 0; x < d; ++x) sum[x] = sum[x] == 0.0f ? 0.0f : sum[x] * factor;
    StoreFloats(sum, gradients.dq, Offset(gradients.dq.strides, b, at.h, q_row), d);
  }
}

// From the gradient of a row's weights to that of its products, in place; adds what belongs to the
// row as a whole. x, p, ds: [entries], the keys' and perhaps a sink's; derivatives: as FinishScores
// returns them.
HWY_INLINE void BackwardScores(const PanelCall& call, const RowSpec& spec, const RowPlace& place,
                               const float* x, const float* p, std::size_t entries,
                               const float* HWY_RESTRICT derivatives, float* HWY_RESTRICT ds,
                               GroupBuffers& group, Thread& thread) {
  const AttentionGradients& gradients = *call.gradients;
  const auto n = static_cast<std::size_t>(place.n());
  if (entries > n) ds[n] = 0.0f;  // its value is 0
  double d_alpha = 0.0;
  BackwardRow(spec, x, p, ds, entries, ds, gradients.d_alpha != nullptr ? &d_alpha : nullptr,
              thread.row);
  group.sums.d_alpha += d_alpha;
  if (entries > n) group.sums.d_sink += static_cast<double>(ds[n]);
  if (std::isnan(p[0])) {
    // A row of NaN reaches the keys that it sees, not those of score -inf.
    for (std::size_t j = 0; j < n; ++j) ds[j] = x[j] == -kInfinityF ? 0.0f : ds[j];
  }
  if (gradients.d_slopes != nullptr) group.sums.d_slope -= SumOfDistances(place, ds);
  if (gradients.d_bias.data != nullptr) AddToBias(place, gradients.d_bias, ds);
  if (derivatives == nullptr) return;
  // A hidden key may be NaN, and so its derivative.
  for (std::size_t j = 0; j < n; ++j) ds[j] = ds[j] == 0.0f ? 0.0f : ds[j] * derivatives[j];
}

void DenseBackwardRows(const PanelCall& call, GroupBuffers& group, Thread& thread) {
  const AttentionParams& params = call.params;
  const AttentionGradients& gradients = *call.gradients;
  const dense::RowGroup& at = group.at;
  const std::int64_t rows = RowsOf(group), pitch = group.pitch;
  float* scores = group.scores.get();
  ScoreRows(call, group, thread);
  LoadRows(gradients.d_out, at, params.value_dim, group.d_out.get(),
           [](std::int64_t) { return 1.0f; });
  if (call.wants_ds) {
    Products(call, group, group.d_out.get(), params.value_dim, thread.v_columns, thread.line.get(),
             group.ds.get());
  }
  group.q_finite = AllFinite(group.q.get(), rows * Padded(params.head_dim));
  group.d_out_finite = AllFinite(group.d_out.get(), rows * Padded(params.value_dim));
  group.sums = {};
  const RowSpec spec = SpecOfHead(params, at.h);
  const bool everywhere = FindMap(spec.map).gradient_off_support;
  for (std::int64_t r = 0; r < rows; ++r) {
    const RowPlace place = PlaceOf(call, group, r);
    const std::int64_t skipped = place.keys.begin - FirstKey(group);
    float* x = scores + (r + 1) * pitch + skipped;
    float* weights = scores + r * pitch;
    float* ds = group.ds.get() + r * pitch;
    if (place.n() > 0) {
      const float* derivatives =
          FinishScores(call, place, x, thread.line.get(), thread.derivatives.get());
      const std::size_t entries = WithSink(params, at.h, place.n(), x);
      // These are the scores of the forward pass, to the bit if this kernel ran it.
      const RowHint hint = {.tau = gradients.tau[RowIndex(params, at.sequence, at.h, place.q_row)]};
      ForwardRow(spec, x, entries, weights + skipped, false, thread.row, hint);
      if (call.wants_ds) {
        BackwardScores(call, spec, place, x, weights + skipped, entries, derivatives, ds + skipped,
                       group, thread);
      }
      if (std::isnan(weights[skipped])) {  // reaches the values of keys that it sees alone
        for (std::int64_t j = 0; j < place.n(); ++j) {
          if (x[j] == -kInfinityF) weights[skipped + j] = 0.0f;
        }
      }
    }
    CloseRow(group, place, weights);
    MarkRow(group, r, weights);
    if (!call.wants_ds) continue;
    CloseRow(group, place, ds);
    if (everywhere) MarkGradients(group, r, ds);
  }
  if (gradients.dq.data == nullptr && gradients.d_length_scale == nullptr) return;
  AddRows(group, group.ds.get(), thread.k_rows, thread);
  StoreQueryGradients(call, group, thread);
}

void DenseBackwardKeys(const PanelCall& call, const std::vector<GroupBuffers*>& groups,
                       std::int64_t panel, const dense::KeySums& sums) {
  const AttentionParams& params = call.params;
  for (const GroupBuffers* group : groups) {
    const std::int64_t p = panel - group->first_panel;
    if (p < 0 || p >= group->panels) continue;
    const std::int64_t rows = RowsOf(*group), keys = group->at.sequence.k.size();
    const std::int64_t count = std::min(kPanel, keys - panel * kPanel);
    for (std::int64_t t = 0; t < count; t += kTileRows) {
      const std::int64_t tile = std::min<std::int64_t>(kTileRows, count - t);
      const std::int64_t key = panel * kPanel + t;
      std::uint64_t used = 0;
      for (std::int64_t r = 0; r < rows; ++r) {
        const std::uint64_t bits = group->bits[r * group->panels + p] >> t;
        used |= static_cast<std::uint64_t>((bits & ((1u << tile) - 1)) != 0) << r;
      }
      const auto add = [&](const float* left, const float* right, bool finite, std::int64_t columns,
                           float* to, std::ptrdiff_t to_pitch) {
        if (to == nullptr) return;
        AddProduct(static_cast<std::size_t>(tile), static_cast<std::size_t>(Padded(columns)),
                   static_cast<std::size_t>(rows), used, finite,
                   {left + p * kPanel + t, 1, group->pitch}, right, Padded(columns),
                   to + key * to_pitch, to_pitch);
      };
      add(group->scores.get(), group->d_out.get(), group->d_out_finite, params.value_dim, sums.dv,
          sums.dv_pitch);
      add(group->ds.get(), group->q.get(), group->q_finite, params.head_dim, sums.dk,
          sums.dk_pitch);
    }
  }
}

const char* DenseTarget() { return hwy::TargetName(HWY_TARGET); }

}  // namespace HWY_NAMESPACE
}  // namespace tsallis
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tsallis {

HWY_EXPORT(DenseForward);
HWY_EXPORT(DenseBackwardRows);
HWY_EXPORT(DenseBackwardKeys);
HWY_EXPORT(DenseTarget);

namespace dense {

VectorCode ChooseVectorCode() {
  return {HWY_DYNAMIC_DISPATCH(DenseTarget)(), HWY_DYNAMIC_DISPATCH(DenseForward),
          HWY_DYNAMIC_DISPATCH(DenseBackwardRows), HWY_DYNAMIC_DISPATCH(DenseBackwardKeys)};
}

}  // namespace dense
}  // namespace tsallis
#endif  // HWY_ONCE
