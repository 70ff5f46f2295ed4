// Turns products into scores: distance terms, bias, masks. Included once per instruction set; the
// plain loops vectorize.
#if defined(TSALLIS_ATTENTION_CPU_DENSE_SCORES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TSALLIS_ATTENTION_CPU_DENSE_SCORES_INL_H_
#undef TSALLIS_ATTENTION_CPU_DENSE_SCORES_INL_H_
#else
#define TSALLIS_ATTENTION_CPU_DENSE_SCORES_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "attention/cpu/dense/dense.h"
#include "attention/cpu/dense/panels-inl.h"
#include "attention/cpu/terms-inl.h"
#include "simplex/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tsallis {
namespace HWY_NAMESPACE {

// One query row and the keys it may see.
struct RowPlace {
  const Sequence& sequence;
  std::int64_t h, q_row;
  Span keys;

  std::int64_t n() const { return keys.size(); }
  std::int64_t b() const { return sequence.array_batch; }
  // Distance i - j of keys.begin; it falls by one a key.
  std::int64_t Distance() const { return sequence.Distance(q_row, keys.begin); }
};

// Whether block masks hide all of `keys` from all of `rows`.
HWY_INLINE bool HiddenByBlocks(const AttentionMask& mask, std::int64_t b, std::int64_t h,
                               const Span& rows, const Span& keys) {
  if (mask.blocks == nullptr) return false;
  const std::int64_t* s = mask.block_strides;
  for (std::int64_t i = rows.begin / mask.block_q; i * mask.block_q < rows.end; ++i) {
    for (std::int64_t j = keys.begin / mask.block_k; j * mask.block_k < keys.end; ++j) {
      if (mask.blocks[b * s[0] + h * s[1] + i * s[2] + j * s[3]] != 0) return false;
    }
  }
  return true;
}

// From c scale <q, k_j> to scores. x: [n]; bias, derivatives: [n] to work in. Returns what RowTerms
// does.
HWY_INLINE const float* FinishScores(const dense::PanelCall& call, const RowPlace& at,
                                     float* HWY_RESTRICT x, float* HWY_RESTRICT bias,
                                     float* HWY_RESTRICT derivatives) {
  const AttentionTerms& terms = call.params.terms;
  const AttentionMask& mask = call.params.mask;
  const std::int64_t n = at.n(), b = at.b(), h = at.h;
  const float* derivative =
      RowTerms(HeadTerms::Of(call.params, at.sequence, h, call.distances, /*unit=*/1.0),
               at.Distance(), n, x, derivatives);
  if (terms.bias.data != nullptr) {
    LoadFloats(HeadRows::Of(terms.bias, b, h, 0, at.keys.begin), at.q_row, n, bias);
    // -inf hides the key, whatever its product is.
    for (std::int64_t j = 0; j < n; ++j) {
      x[j] = bias[j] == -kInfinityF ? -kInfinityF : x[j] + bias[j];
    }
  }
  if (mask.visible != nullptr) {
    const std::int64_t* s = mask.visible_strides;
    const std::uint8_t* HWY_RESTRICT visible =
        mask.visible + Offset(mask.visible_strides, b, h, at.q_row, at.keys.begin);
    if (s[3] == 1) {
      for (std::int64_t j = 0; j < n; ++j) x[j] = visible[j] != 0 ? x[j] : -kInfinityF;
    } else {
      for (std::int64_t j = 0; j < n; ++j) x[j] = visible[j * s[3]] != 0 ? x[j] : -kInfinityF;
    }
  }
  if (mask.blocks != nullptr) {
    const std::int64_t* s = mask.block_strides;
    const std::uint8_t* row = mask.blocks + b * s[0] + h * s[1] + at.q_row / mask.block_q * s[2];
    for (std::int64_t j = at.keys.begin; j < at.keys.end;) {
      const std::int64_t block = j / mask.block_k;
      // The last block may end beyond what fits the type.
      const std::int64_t end = std::min(at.keys.end - j, mask.block_k - j % mask.block_k) + j;
      if (row[block * s[3]] == 0) {
        std::fill(x + (j - at.keys.begin), x + (end - at.keys.begin), -kInfinityF);
      }
      j = end;
    }
  }
  return derivative;
}

// The largest score as AttentionOutputs::maximum says it. x: [n].
HWY_INLINE double MaximumScore(const float* x, std::int64_t n) {
  const float maximum = RowMaximum(x, static_cast<std::size_t>(n));
  if (!std::isnan(maximum)) return static_cast<double>(maximum);
  // RowMaximum also says NaN for +inf.
  for (std::int64_t j = 0; j < n; ++j) {
    if (std::isnan(x[j])) return NAN;
  }
  return INFINITY;
}

// sum_j ds_j |i - j|. ds: [n].
HWY_INLINE double SumOfDistances(const RowPlace& at, const float* ds) {
  const DF d;
  VF distance = hn::Sub(hn::Set(d, static_cast<float>(at.Distance())), hn::Iota(d, 0.0f));
  const VF step = hn::Set(d, static_cast<float>(hn::Lanes(d)));
  double sum, unused;
  SumTwo(ds, static_cast<std::size_t>(at.n()), 0.0f, &sum, &unused, [&](VF v, VF& a, VF&) HWY_ATTR {
    a = hn::MulAdd(v, hn::Abs(distance), a);
    distance = hn::Sub(distance, step);
  });
  return sum;
}

// Adds a row to the gradient of the bias. ds: [n].
HWY_INLINE void AddToBias(const RowPlace& at, const MutableArray4& bias, const float* ds) {
  const std::int64_t start = Offset(bias.strides, at.b(), at.h, at.q_row, at.keys.begin);
  const std::int64_t stride = bias.strides[3], n = at.n();
  if (bias.dtype == DType::kFloat64) {
    double* to = static_cast<double*>(bias.data) + start;
    for (std::int64_t j = 0; j < n; ++j) to[j * stride] += static_cast<double>(ds[j]);
    return;
  }
  float* to = static_cast<float*>(bias.data) + start;
  for (std::int64_t j = 0; j < n; ++j) to[j * stride] += ds[j];
}

}  // namespace HWY_NAMESPACE
}  // namespace tsallis
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
