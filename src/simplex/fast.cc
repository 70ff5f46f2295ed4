#include "simplex/fast.h"

#include <algorithm>
#include <cmath>

#include "core/elements.h"
#include "core/parallel.h"
#include "simplex/check.h"
#include "simplex/scratch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "simplex/fast.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include "simplex/row-inl.h"
#include "simplex/short_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tsallis {
namespace HWY_NAMESPACE {

// A contiguous float32 view of a row: its own memory, or `buffer` filled from it.
HWY_INLINE const float* FloatRow(const ConstRows& rows, std::int64_t row, float* buffer) {
  const std::int64_t start = row * rows.row_stride;
  if (rows.dtype == DType::kFloat32 && rows.stride == 1) {
    return static_cast<const float*>(rows.data) + start;
  }
  ForDType(rows.dtype, [&](auto type) HWY_ATTR {
    for (std::int64_t j = 0; j < rows.length; ++j) {
      buffer[j] = LoadElement<float>(rows.data, type.value, start + j * rows.stride);
    }
  });
  return buffer;
}

HWY_INLINE bool IsPlain(const MutableRows& rows) {
  return rows.dtype == DType::kFloat32 && rows.stride == 1;
}

HWY_INLINE void StoreFloatRow(const float* values, std::int64_t row, const MutableRows& rows) {
  const std::int64_t start = row * rows.row_stride;
  ForDType(rows.dtype, [&](auto type) HWY_ATTR {
    for (std::int64_t j = 0; j < rows.length; ++j) {
      StoreElement(rows.data, type.value, start + j * rows.stride, values[j]);
    }
  });
}

void ForwardOne(const ForwardCall& call, const RowSpec& spec, std::int64_t row,
                RowScratch& scratch) {
  const std::size_t n = static_cast<std::size_t>(call.scores.length);
  const RowStats& stats = call.stats;
  const float* x = FloatRow(call.scores, row, scratch.a.get());
  float* y = scratch.b.get();
  const bool plain = IsPlain(call.probabilities);
  if (plain) {
    y = static_cast<float*>(call.probabilities.data) + row * call.probabilities.row_stride;
  }
  if (x == y && n > 0) x = static_cast<float*>(std::memcpy(scratch.a.get(), x, n * sizeof(float)));
  const bool describe = stats.support_size != nullptr || stats.entropy != nullptr;
  const RowResult result = ForwardRow(spec, x, n, y, describe, scratch);
  if (!plain) StoreFloatRow(y, row, call.probabilities);
  if (stats.tau != nullptr) stats.tau[row] = result.tau;
  if (stats.support_size != nullptr) stats.support_size[row] = result.support_size;
  if (stats.entropy != nullptr) stats.entropy[row] = result.entropy;
}

// Up to four short rows of one alpha, from `row` on; false, with nothing written: take another way.
bool ForwardGroup(const ForwardCall& call, const RowSpec& spec, std::int64_t row, std::size_t count,
                  RowScratch& scratch) {
  const std::size_t n = static_cast<std::size_t>(call.scores.length);
  const double eps = spec.alpha - 1.0, scale = eps / spec.temperature;
  if (!kGroupsRows || spec.map != RowMap::kEntmax || n == 0 || n > kShortRow ||
      eps < kNearSoftmax || eps > 1.0 || !(scale > 1e-30 && scale < 1e30)) {
    return false;
  }
  // A group that is not full repeats its last row and drops the copies.
  const float* x[4];
  float* y[4];
  const bool plain = IsPlain(call.probabilities);
  auto* out = static_cast<float*>(call.probabilities.data);
  for (std::size_t k = 0; k < 4; ++k) {
    const std::int64_t at = row + static_cast<std::int64_t>(HWY_MIN(k, count - 1));
    x[k] = FloatRow(call.scores, at, scratch.a.get() + k * n);
    y[k] = plain && k < count ? out + at * call.probabilities.row_stride : scratch.b.get() + k * n;
  }
  float maximum[4];
  double tau[4];
  if (!WithPower(eps, [&](const auto& power) HWY_ATTR {
        return EntmaxFourRows(power, x, n, scale, y, scratch.group.get(), maximum, tau);
      })) {
    return false;
  }
  const RowStats& stats = call.stats;
  for (std::size_t k = 0; k < count; ++k) {
    const std::int64_t at = row + static_cast<std::int64_t>(k);
    if (!plain) StoreFloatRow(y[k], at, call.probabilities);
    if (stats.tau != nullptr) stats.tau[at] = tau[k] + scale * static_cast<double>(maximum[k]);
    if (stats.support_size == nullptr && stats.entropy == nullptr) continue;
    RowResult result;
    Describe(y[k], n, &result);
    if (stats.support_size != nullptr) stats.support_size[at] = result.support_size;
    if (stats.entropy != nullptr) stats.entropy[at] = result.entropy;
  }
  return true;
}

void ForwardRange(const ForwardCall& call, std::int64_t begin, std::int64_t end) {
  const std::size_t n = static_cast<std::size_t>(call.scores.length);
  RowScratch scratch(n);
  const std::int64_t group = static_cast<std::int64_t>(RowsAtOnce(n));
  const double* alphas = call.params->alpha_per_row;
  RowSpecs specs(*call.params);
  for (std::int64_t row = begin; row < end;) {
    std::int64_t count = 1;
    while (count < HWY_MIN(group, end - row) &&
           (alphas == nullptr || alphas[row + count] == alphas[row])) {
      ++count;
    }
    const RowSpec& spec = specs[row];
    // A row with NaN fails its group; the others take the same way without it, so that no row's
    // result depends on its neighbours.
    if (!ForwardGroup(call, spec, row, static_cast<std::size_t>(count), scratch)) {
      for (std::int64_t k = 0; k < count; ++k) {
        if (count > 1 && ForwardGroup(call, spec, row + k, 1, scratch)) continue;
        ForwardOne(call, spec, row + k, scratch);
      }
    }
    row += count;
  }
}

void BackwardRange(const BackwardCall& call, std::int64_t begin, std::int64_t end) {
  const std::size_t n = static_cast<std::size_t>(call.scores.length);
  RowScratch scratch(n);
  RowSpecs specs(*call.params);
  std::unique_ptr<float[]> exact_p(new float[n + 1]);
  const bool plain = IsPlain(call.d_scores);
  const bool recompute =
      SizeOf(call.scores.dtype) == 2 && BackwardReadsScores(*call.params, call.scores.dtype);
  for (std::int64_t row = begin; row < end; ++row) {
    const RowSpec& spec = specs[row];
    const float* x = FloatRow(call.scores, row, scratch.a.get());
    const float* p = exact_p.get();
    if (recompute) {
      ForwardRow(spec, x, n, exact_p.get(), false, scratch);
    } else {
      p = FloatRow(call.probabilities, row, scratch.b.get());
    }
    const float* dp = FloatRow(call.d_probabilities, row, scratch.c.get());
    float* ds = scratch.c.get();
    if (plain) ds = static_cast<float*>(call.d_scores.data) + row * call.d_scores.row_stride;
    BackwardRow(spec, x, p, dp, n, ds, call.d_alpha != nullptr ? call.d_alpha + row : nullptr,
                scratch);
    if (!plain) StoreFloatRow(ds, row, call.d_scores);
  }
}

const char* TargetHere() { return hwy::TargetName(HWY_TARGET); }

}  // namespace HWY_NAMESPACE
}  // namespace tsallis
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tsallis {

HWY_EXPORT(ForwardRange);
HWY_EXPORT(BackwardRange);
HWY_EXPORT(TargetHere);

const char* FastTarget() { return HWY_DYNAMIC_DISPATCH(TargetHere)(); }

void FastForward(const Context& context, const ForwardCall& call) {
  const auto& range = HWY_DYNAMIC_DISPATCH(ForwardRange);
  const std::int64_t rows = call.scores.rows;
  const auto group =
      static_cast<std::int64_t>(RowsAtOnce(static_cast<std::size_t>(call.scores.length)));
  ParallelFor(context, (rows + group - 1) / group, RowGrain(call.scores.length * group),
              [&](std::int64_t begin, std::int64_t end) {
                range(call, begin * group, std::min(end * group, rows));
              });
}

void FastBackward(const Context& context, const BackwardCall& call) {
  const auto& range = HWY_DYNAMIC_DISPATCH(BackwardRange);
  ParallelFor(context, call.scores.rows, RowGrain(call.scores.length),
              [&](std::int64_t begin, std::int64_t end) { range(call, begin, end); });
}

}  // namespace tsallis
#endif  // HWY_ONCE
