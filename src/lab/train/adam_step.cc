#include "lab/train/adam_step.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "lab/train/adam_step.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include "lab/base/sweep-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tsallis::lab::HWY_NAMESPACE {

void AdamStepImpl(const AdamConstants& c, std::int64_t count, const float* g, float* w, float* m,
                  float* v) {
  const D d;
  const V beta1 = hn::Set(d, c.beta1), rest1 = hn::Set(d, 1.0f - c.beta1);
  const V beta2 = hn::Set(d, c.beta2), rest2 = hn::Set(d, 1.0f - c.beta2);
  const V step = hn::Set(d, c.lr / c.correction1);
  const V root = hn::Set(d, 1.0f / c.correction2);
  Sweep(count, [&](const auto& load, const auto& store) HWY_ATTR {
    const V weight = load(w);
    const V gradient = hn::MulAdd(hn::Set(d, c.l2), weight, load(g));
    // Not v + (1 - beta2)(g^2 - v): a square beyond float would make that NaN instead of infinity,
    // at which a parameter merely stands still.
    const V first = hn::MulAdd(beta1, load(m), hn::Mul(rest1, gradient));
    const V second = hn::MulAdd(beta2, load(v), hn::Mul(rest2, hn::Mul(gradient, gradient)));
    const V denominator = hn::Add(hn::Sqrt(hn::Mul(second, root)), hn::Set(d, c.epsilon));
    store(first, m);
    store(second, v);
    store(hn::NegMulAdd(step, hn::Div(first, denominator), weight), w);
  });
}

}  // namespace tsallis::lab::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tsallis::lab {

HWY_EXPORT(AdamStepImpl);

void AdamStep(const AdamConstants& constants, std::int64_t count, const float* g, float* w,
              float* m, float* v) {
  HWY_DYNAMIC_DISPATCH(AdamStepImpl)(constants, count, g, w, m, v);
}

}  // namespace tsallis::lab
#endif  // HWY_ONCE
