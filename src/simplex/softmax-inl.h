// Softmax rows. Included once per instruction set.
#if defined(TSALLIS_SIMPLEX_SOFTMAX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TSALLIS_SIMPLEX_SOFTMAX_INL_H_
#undef TSALLIS_SIMPLEX_SOFTMAX_INL_H_
#else
#define TSALLIS_SIMPLEX_SOFTMAX_INL_H_
#endif

#include "simplex/map.h"
#include "simplex/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tsallis {
namespace HWY_NAMESPACE {

// y *= factor. y: [n].
HWY_INLINE void ScaleRow(float* y, std::size_t n, float factor) {
  const DF d;
  const VF share = hn::Set(d, factor);
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  for (; i + lanes <= n; i += lanes) hn::StoreU(hn::Mul(hn::LoadU(d, y + i), share), d, y + i);
  for (; i < n; ++i) y[i] *= factor;
}

// y = softmax(scale (x - maximum)); returns ln sum exp(scale (x - maximum)). x, y: [n].
HWY_INLINE double SoftmaxRow(const float* x, std::size_t n, float maximum, double scale, float* y) {
  const DF d;
  const VF top = hn::Set(d, maximum), factor = hn::Set(d, static_cast<float>(scale));
  double sum, unused;
  MapSumTwo(x, n, -kInfinityF, y, &sum, &unused, [&](VF v, VF& a, VF&) HWY_ATTR {
    const VF e = ExpNonPositive(hn::Mul(hn::Sub(v, top), factor));
    a = hn::Add(a, e);
    return e;
  });
  ScaleRow(y, n, static_cast<float>(1.0 / sum));
  return std::log(sum);
}

// Entropy of softmax(scale (x - maximum)) and the logarithm of its sum, in one pass.
HWY_INLINE double SoftmaxEntropy(const float* x, std::size_t n, float maximum, double scale,
                                 double* log_sum) {
  const DF d;
  const VF top = hn::Set(d, maximum), factor = hn::Set(d, static_cast<float>(scale));
  double sum, weighted;
  SumTwo(x, n, -kInfinityF, &sum, &weighted, [&](VF v, VF& a, VF& b) HWY_ATTR {
    const VF z = hn::Mul(hn::Sub(v, top), factor);
    const VF e = ExpNonPositive(z);
    a = hn::Add(a, e);
    b = hn::Add(b, hn::IfThenElseZero(hn::Gt(e, hn::Zero(d)), hn::Mul(e, z)));  // 0 * -inf
  });
  *log_sum = std::log(sum);
  return *log_sum - weighted / sum;
}

}  // namespace HWY_NAMESPACE
}  // namespace tsallis
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
