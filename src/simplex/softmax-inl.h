// Softmax rows. Included once per instruction set.
#if defined(TSALLIS_SIMPLEX_SOFTMAX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TSALLIS_SIMPLEX_SOFTMAX_INL_H_
#undef TSALLIS_SIMPLEX_SOFTMAX_INL_H_
#else
#define TSALLIS_SIMPLEX_SOFTMAX_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <limits>

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

// The gradient of p = softmax(beta s), where s = scale x, beta = beta(H) and H is the entropy of
// q = softmax(s):
//   dp_j/dbeta = p_j (s_j - <p, s>),  dH/ds_j = -q_j (ln q_j + H) = -q_j (s_j - <q, s>).
// Entries of dp where p = 0 are never looked at. A row with NaN in p becomes NaN. x, p, dp, ds:
// [n]; ds may be dp.
HWY_INLINE void AdaptiveBackwardRow(const AdaptiveTemperature& adaptive, const float* x,
                                    const float* p, const float* dp, std::size_t n, double scale,
                                    float* ds) {
  const DF d;
  const VF zero = hn::Zero(d), factor = hn::Set(d, static_cast<float>(scale));
  const float maximum = RowMaximum(x, n);
  if (!(maximum > -kInfinityF)) {
    std::fill(ds, ds + n, maximum == -kInfinityF ? 0.0f : std::numeric_limits<float>::quiet_NaN());
    return;
  }
  double log_sum, derivative;
  const double entropy = SoftmaxEntropy(x, n, maximum, scale, &log_sum);
  const double beta = BetaOfEntropy(adaptive, entropy, &derivative);
  const VF top = hn::Set(d, maximum);
  const auto z_of = [&](VF vx) HWY_ATTR { return hn::Mul(hn::Sub(vx, top), factor); };
  // Calls use(x, p, dp) with the vectors at i; entries behind the last have no weight.
  const auto with = [&](std::size_t i, std::size_t count, const auto& use) HWY_ATTR {
    return use(LoadUpTo(d, x + i, count, -kInfinityF), LoadUpTo(d, p + i, count, 0.0f),
               LoadUpTo(d, dp + i, count, 0.0f));
  };
  double mean_dp, mean_z;
  auto bad = hn::IsNaN(zero);
  SumTwoAt(n, &mean_dp, &mean_z, [&](std::size_t i, std::size_t count, VF& a, VF& b) HWY_ATTR {
    with(i, count, [&](VF vx, VF vp, VF vdp) HWY_ATTR {
      const auto some = hn::Gt(vp, zero);
      bad = hn::Or(bad, hn::IsNaN(vp));
      a = hn::MulAdd(vp, hn::IfThenElseZero(some, vdp), a);
      b = hn::MulAdd(vp, hn::IfThenElseZero(some, z_of(vx)), b);
    });
  });
  if (!hn::AllFalse(d, bad)) {
    std::fill(ds, ds + n, std::numeric_limits<float>::quiet_NaN());
    return;
  }
  const VF dp_mean = hn::Set(d, static_cast<float>(mean_dp));
  double d_beta = 0.0, unused;
  if (derivative != 0.0) {
    const VF z_mean = hn::Set(d, static_cast<float>(mean_z));
    SumTwoAt(n, &d_beta, &unused, [&](std::size_t i, std::size_t count, VF& a, VF&) HWY_ATTR {
      with(i, count, [&](VF vx, VF vp, VF vdp) HWY_ATTR {
        const VF g = hn::Mul(vp, hn::Sub(vdp, dp_mean));
        a = hn::Add(a, hn::IfThenElseZero(hn::Gt(vp, zero), hn::Mul(g, hn::Sub(z_of(vx), z_mean))));
      });
    });
  }
  const double d_entropy = d_beta * derivative;
  const VF through_p = hn::Set(d, static_cast<float>(beta * scale)),
           through_q = hn::Set(d, static_cast<float>(-d_entropy * scale)),
           normalizer = hn::Set(d, static_cast<float>(log_sum)),
           q_mean = hn::Set(d, static_cast<float>(log_sum - entropy));
  const auto gradient = [&](VF vx, VF vp, VF vdp) HWY_ATTR {
    const VF direct = hn::IfThenElseZero(hn::Gt(vp, zero),
                                         hn::Mul(hn::Mul(vp, through_p), hn::Sub(vdp, dp_mean)));
    if (d_entropy == 0.0) return direct;
    const VF z = z_of(vx), q = ExpNonPositive(hn::Sub(z, normalizer));
    const VF change = hn::Mul(hn::Mul(q, through_q), hn::Sub(z, q_mean));
    return hn::Add(direct, hn::IfThenElseZero(hn::Gt(q, zero), change));
  };
  const std::size_t lanes = hn::Lanes(d);
  for (std::size_t i = 0; i < n; i += lanes) {
    const std::size_t count = HWY_MIN(lanes, n - i);
    const VF change = with(i, count, gradient);
    if (count == lanes) {
      hn::StoreU(change, d, ds + i);
    } else {
      StorePart(d, change, ds + i, count);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tsallis
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
