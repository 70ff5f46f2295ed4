// Gradients of float32 rows. Included once per instruction set.
#if defined(TSALLIS_SIMPLEX_BACKWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TSALLIS_SIMPLEX_BACKWARD_INL_H_
#undef TSALLIS_SIMPLEX_BACKWARD_INL_H_
#else
#define TSALLIS_SIMPLEX_BACKWARD_INL_H_
#endif

#include <hwy/contrib/math/math-inl.h>

#include "simplex/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tsallis {
namespace HWY_NAMESPACE {

// The weight u of the map's Jacobian diag(u) - u u^T / sum u, from p; p = 0 gives 0.
struct SelfWeight {  // softmax
  HWY_INLINE VF operator()(DF, VF p) const { return p; }
};
struct RootWeight {  // alpha = 1.5
  HWY_INLINE VF operator()(DF, VF p) const { return hn::Sqrt(p); }
};
struct SupportWeight {  // alpha = 2
  HWY_INLINE VF operator()(DF d, VF p) const {
    return hn::IfThenElseZero(hn::Gt(p, hn::Zero(d)), hn::Set(d, 1.0f));
  }
};
struct FourthRootWeight {  // alpha = 1.25: p^(3/4)
  HWY_INLINE VF operator()(DF, VF p) const {
    const VF root = hn::Sqrt(p);
    return hn::Mul(root, hn::Sqrt(root));
  }
};
struct InsideWeight {  // budget: strictly between its bounds
  HWY_INLINE VF operator()(DF d, VF p) const {
    const VF one = hn::Set(d, 1.0f);
    return hn::IfThenElseZero(hn::And(hn::Gt(p, hn::Zero(d)), hn::Lt(p, one)), one);
  }
};
struct PowerWeight {  // alpha < 2
  float power;        // 2 - alpha, in (0, 2)
  HWY_INLINE VF operator()(DF d, VF p) const {
    // Probabilities below the smallest normal float are beyond Log.
    const auto positive = hn::Ge(p, hn::Set(d, std::numeric_limits<float>::min()));
    const VF log_p = hn::Log(d, hn::IfThenElse(positive, p, hn::Set(d, 1.0f)));
    const VF log_u = hn::Min(hn::Mul(log_p, hn::Set(d, power)), hn::Zero(d));
    return hn::IfThenElseZero(positive, ExpNonPositive(log_u));
  }
};

// Calls `run` with the cheapest weight of entmax for alpha = 1 + eps, eps < 1 or eps = 1.
template <class Run>
HWY_INLINE void WithWeight(double eps, const Run& run) {
  if (eps == 0.0) return run(SelfWeight());
  if (eps == 0.25) return run(FourthRootWeight());
  if (eps == 0.5) return run(RootWeight());
  if (eps == 1.0) return run(SupportWeight());
  run(PowerWeight{static_cast<float>(1.0 - eps)});
}

// The gradient in alpha = 1 + eps, -1 < eps <= 1, of an entmax row. With u = p^{1 - eps}, L = ln p
// and d = dp - <u, dp>/sum u, so that <d, u> = 0, the formula of Correia et al. 2019 (prop. 1) is
//   <d, p>/eps^2 - <d, p L>/eps = sum d u L^2 g(eps L),  g(t) = (e^t (1 - t) - 1)/t^2,
// where nothing cancels for small eps, and g(0) = -1/2 is softmax's. From eps = 0.45 on the left
// side is the better one: u is larger than p by p^{-eps}. For eps < 0, u is smaller than p and may
// underflow where p does not: the same sum is -sum d p L^2 phi(-eps L), phi(x) = (e^x - 1 - x)/x^2.
// p, dp: [n]; mean: <u, dp>/sum u.
template <class Weight>
HWY_INLINE double AlphaGradient(const Weight& weight, double eps, const float* p, const float* dp,
                                std::size_t n, VF mean) {
  const DF d;
  const std::size_t lanes = hn::Lanes(d);
  const VF one = hn::Set(d, 1.0f), zero = hn::Zero(d), step = hn::Set(d, static_cast<float>(eps));
  const bool plain = eps >= 0.45;
  const VF inverse = hn::Set(d, static_cast<float>(plain ? 1.0 / eps : 0.0));
  VD total = hn::Zero(DD());
  const auto add = [&](VF vp, VF vdp, VF& sum) HWY_ATTR {
    const auto positive = hn::Ge(vp, hn::Set(d, std::numeric_limits<float>::min()));
    const VF log_p = hn::Log(d, hn::IfThenElse(positive, vp, one));
    if (plain) {
      const VF slope = hn::Mul(hn::Mul(vp, inverse), hn::Sub(inverse, log_p));
      sum = hn::Add(sum, hn::IfThenElseZero(positive, hn::Mul(slope, hn::Sub(vdp, mean))));
      return;
    }
    if (eps < 0.0) {
      const VF exponent = hn::Min(hn::Neg(hn::Mul(step, log_p)), zero);
      // sum_k x^{k - 2}/k! where e^x - 1 - x cancels.
      VF near = hn::Set(d, 1.0f / 362880.0f);
      near = hn::MulAdd(near, exponent, hn::Set(d, 1.0f / 40320.0f));
      near = hn::MulAdd(near, exponent, hn::Set(d, 1.0f / 5040.0f));
      near = hn::MulAdd(near, exponent, hn::Set(d, 1.0f / 720.0f));
      near = hn::MulAdd(near, exponent, hn::Set(d, 1.0f / 120.0f));
      near = hn::MulAdd(near, exponent, hn::Set(d, 1.0f / 24.0f));
      near = hn::MulAdd(near, exponent, hn::Set(d, 1.0f / 6.0f));
      near = hn::MulAdd(near, exponent, hn::Set(d, 0.5f));
      const auto is_far = hn::Lt(exponent, hn::Set(d, -1.0f));
      const VF safe = hn::IfThenElse(is_far, exponent, hn::Set(d, -1.0f));
      const VF far =
          hn::Div(hn::Sub(hn::Sub(ExpNonPositive(safe), one), safe), hn::Mul(safe, safe));
      const VF curve = hn::Mul(hn::Mul(log_p, log_p), hn::IfThenElse(is_far, far, near));
      sum = hn::Sub(sum,
                    hn::IfThenElseZero(positive, hn::Mul(hn::Mul(vp, hn::Sub(vdp, mean)), curve)));
      return;
    }
    const VF t = hn::Min(hn::Mul(step, log_p), zero);
    // -sum_k (k - 1) t^{k - 2}/k! where e^t (1 - t) is close to 1.
    VF near = hn::Set(d, -8.0f / 362880.0f);
    near = hn::MulAdd(near, t, hn::Set(d, -7.0f / 40320.0f));
    near = hn::MulAdd(near, t, hn::Set(d, -6.0f / 5040.0f));
    near = hn::MulAdd(near, t, hn::Set(d, -5.0f / 720.0f));
    near = hn::MulAdd(near, t, hn::Set(d, -4.0f / 120.0f));
    near = hn::MulAdd(near, t, hn::Set(d, -3.0f / 24.0f));
    near = hn::MulAdd(near, t, hn::Set(d, -2.0f / 6.0f));
    near = hn::MulAdd(near, t, hn::Set(d, -0.5f));
    const auto is_far = hn::Lt(t, hn::Set(d, -0.5f));
    const VF safe = hn::IfThenElse(is_far, t, hn::Set(d, -1.0f));
    const VF far = hn::Div(hn::Sub(hn::Mul(ExpNonPositive(safe), hn::Sub(one, safe)), one),
                           hn::Mul(safe, safe));
    const VF curve = hn::Mul(hn::Mul(log_p, log_p), hn::IfThenElse(is_far, far, near));
    const VF u = weight(d, vp);
    sum = hn::Add(sum, hn::IfThenElseZero(hn::And(positive, hn::Gt(u, zero)),
                                          hn::Mul(hn::Mul(u, hn::Sub(vdp, mean)), curve)));
  };
  std::size_t i = 0;
  while (i < n) {
    VF sum = zero;
    const std::size_t end = HWY_MIN(n, i + kBurst * lanes);
    for (; i < end; i += lanes) {
      const std::size_t count = HWY_MIN(lanes, end - i);
      const VF vp = count == lanes ? hn::LoadU(d, p + i) : LoadPart(d, p + i, count, 0.0f);
      if (hn::AllTrue(d, hn::Eq(vp, zero))) continue;
      add(vp, count == lanes ? hn::LoadU(d, dp + i) : LoadPart(d, dp + i, count, 0.0f), sum);
    }
    total = AddWidened(total, sum);
  }
  return Total(total);
}

// ds = u (dp - <u, dp>/sum u) * factor. Entries of dp where u = 0 are never looked at, so what they
// hold (NaN, infinities) does not matter. A row with NaN in p becomes NaN. p, dp, ds: [n]; ds may
// be dp. d_alpha: null or where the gradient in alpha = 1 + eps goes.
template <class Weight>
HWY_INLINE void BackwardRow(const Weight& weight, const float* p, const float* dp, std::size_t n,
                            float factor, float* ds, double eps = 0.0, double* d_alpha = nullptr) {
  const DF d;
  const std::size_t lanes = hn::Lanes(d);
  const VF zero = hn::Zero(d);
  if (n == 1 && std::isfinite(p[0]) && std::isfinite(dp[0])) {
    // One entry has weight 1 whatever its score is. The mean below would be off by a rounding.
    ds[0] = 0.0f;
    if (d_alpha != nullptr) *d_alpha = 0.0;
    return;
  }
  VD total_u = hn::Zero(DD()), total_dot = hn::Zero(DD());
  auto bad = hn::IsNaN(zero);
  const auto add = [&](VF vp, VF vdp, VF& u_sum, VF& dot) HWY_ATTR {
    const VF u = weight(d, vp);
    bad = hn::Or(bad, hn::IsNaN(vp));
    u_sum = hn::Add(u_sum, u);
    dot = hn::MulAdd(u, hn::IfThenElseZero(hn::Gt(u, zero), vdp), dot);
  };
  std::size_t i = 0;
  while (i < n) {
    VF u0 = zero, u1 = zero, dot0 = zero, dot1 = zero;
    const std::size_t end = HWY_MIN(n, i + 2 * kBurst * lanes);
    for (; i + 2 * lanes <= end; i += 2 * lanes) {
      const VF p0 = hn::LoadU(d, p + i), p1 = hn::LoadU(d, p + i + lanes);
      // Sparse rows: most pairs of vectors hold nothing. p is never negative, so != also sees NaN.
      if (hn::AllTrue(d, hn::Eq(hn::Max(p0, p1), zero)) && hn::AllTrue(d, hn::Eq(p0, zero))) {
        continue;
      }
      add(p0, hn::LoadU(d, dp + i), u0, dot0);
      add(p1, hn::LoadU(d, dp + i + lanes), u1, dot1);
    }
    for (; i < end; i += lanes) {
      const std::size_t count = HWY_MIN(lanes, end - i);
      add(LoadPart(d, p + i, count, 0.0f), LoadPart(d, dp + i, count, 0.0f), u0, dot0);
    }
    total_u = AddWidened(total_u, hn::Add(u0, u1));
    total_dot = AddWidened(total_dot, hn::Add(dot0, dot1));
  }
  if (!hn::AllFalse(d, bad)) {
    for (std::size_t j = 0; j < n; ++j) ds[j] = std::numeric_limits<float>::quiet_NaN();
    if (d_alpha != nullptr) *d_alpha = NAN;
    return;
  }
  const double sum_u = Total(total_u);
  const VF mean = hn::Set(d, static_cast<float>(sum_u > 0.0 ? Total(total_dot) / sum_u : 0.0));
  if (d_alpha != nullptr) *d_alpha = AlphaGradient(weight, eps, p, dp, n, mean);
  const VF scale = hn::Set(d, factor);
  const auto gradient = [&](VF vp, VF vdp) HWY_ATTR {
    const VF u = weight(d, vp);
    return hn::IfThenElseZero(hn::Gt(u, zero), hn::Mul(hn::Mul(u, scale), hn::Sub(vdp, mean)));
  };
  for (i = 0; i + lanes <= n; i += lanes) {
    const VF vp = hn::LoadU(d, p + i);
    const bool empty = hn::AllTrue(d, hn::Eq(vp, zero));
    hn::StoreU(empty ? zero : gradient(vp, hn::LoadU(d, dp + i)), d, ds + i);
  }
  if (i < n) {
    StorePart(d, gradient(LoadPart(d, p + i, n - i, 0.0f), LoadPart(d, dp + i, n - i, 0.0f)),
              ds + i, n - i);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tsallis
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
