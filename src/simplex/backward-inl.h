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
struct InsideWeight {  // budget: strictly between its bounds
  HWY_INLINE VF operator()(DF d, VF p) const {
    const VF one = hn::Set(d, 1.0f);
    return hn::IfThenElseZero(hn::And(hn::Gt(p, hn::Zero(d)), hn::Lt(p, one)), one);
  }
};
struct PowerWeight {  // 1 < alpha <= 2
  float power;        // 2 - alpha, in [0, 1)
  HWY_INLINE VF operator()(DF d, VF p) const {
    // Probabilities below the smallest normal float are beyond Log.
    const auto positive = hn::Ge(p, hn::Set(d, std::numeric_limits<float>::min()));
    const VF log_p = hn::Log(d, hn::IfThenElse(positive, p, hn::Set(d, 1.0f)));
    const VF log_u = hn::Min(hn::Mul(log_p, hn::Set(d, power)), hn::Zero(d));
    return hn::IfThenElseZero(positive, ExpNonPositive(log_u));
  }
};

// ds = u (dp - <u, dp>/sum u) * factor. Entries of dp where u = 0 are never looked at, so what they
// hold (NaN, infinities) does not matter. A row with NaN in p becomes NaN. p, dp, ds: [n]; ds may be
// dp.
template <class Weight>
HWY_INLINE void BackwardRow(const Weight& weight, const float* p, const float* dp, std::size_t n,
                            float factor, float* ds) {
  const DF d;
  const std::size_t lanes = hn::Lanes(d);
  const VF zero = hn::Zero(d);
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
    return;
  }
  const double sum_u = Total(total_u);
  const VF mean = hn::Set(d, static_cast<float>(sum_u > 0.0 ? Total(total_dot) / sum_u : 0.0));
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
