#include "lab/nn/set_kernels.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "lab/nn/decoder_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "lab/nn/set_kernels.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include <hwy/contrib/math/math-inl.h>

#include "lab/base/sweep-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tsallis::lab::HWY_NAMESPACE {
constexpr float kGelu = 2.0f * 0.7978845608028654f;  // 2 sqrt(2 / pi)
constexpr float kCubic = 0.044715f;

// sigmoid(2 sqrt(2/pi) (x + 0.044715 x^3)): gelu(x) = x sigmoid(..), since (1 + tanh y) / 2 =
// sigmoid(2 y).
HWY_INLINE V Gate(D d, V x, V x2) {
  const V y =
      hn::Mul(hn::Mul(hn::Set(d, kGelu), x), hn::MulAdd(hn::Set(d, kCubic), x2, hn::Set(d, 1.0f)));
  const V e = hn::Exp(d, hn::Min(hn::Neg(y), hn::Set(d, 88.0f)));
  return hn::Div(hn::Set(d, 1.0f), hn::Add(hn::Set(d, 1.0f), e));
}

void BiasGeluImpl(const float* z, const float* bias, float* a, float* slope, std::int64_t rows,
                  std::int64_t width) {
  const D d;
  const V one = hn::Set(d, 1.0f);
  for (std::int64_t r = 0; r < rows; ++r) {
    const float* from = z + r * width;
    float* to = a + r * width;
    float* slope_to = slope == nullptr ? nullptr : slope + r * width;
    Sweep(width, [&](const auto& load, const auto& store) HWY_ATTR {
      const V x = hn::Add(load(from), load(bias));
      const V x2 = hn::Mul(x, x);
      const V gate = Gate(d, x, x2);
      const V y = hn::Mul(x, gate);
      store(y, to);
      if (slope_to != nullptr) {
        // gelu'(x) = g + x g (1 - g) y'(x), y' = 2 sqrt(2/pi) (1 + 3 * 0.044715 x^2).
        const V inner = hn::Mul(hn::Set(d, kGelu), hn::MulAdd(hn::Set(d, 3.0f * kCubic), x2, one));
        store(hn::MulAdd(hn::Mul(y, hn::Sub(one, gate)), inner, gate), slope_to);
      }
    });
  }
}

void AddBiasImpl(float* x, const float* bias, std::int64_t rows, std::int64_t width) {
  for (std::int64_t r = 0; r < rows; ++r, x += width) {
    Sweep(width, [&](const auto& load, const auto& store)
                     HWY_ATTR { store(hn::Add(load(x), load(bias)), x); });
  }
}

void ColumnSumsImpl(const float* x, float* sums, std::int64_t rows, std::int64_t width) {
  std::fill(sums, sums + width, 0.0f);
  for (std::int64_t r = 0; r < rows; ++r, x += width) {
    Sweep(width, [&](const auto& load, const auto& store)
                     HWY_ATTR { store(hn::Add(load(sums), load(x)), sums); });
  }
}

// A row's numbers lie in the first-level cache, so it is read once for the mean, once for the
// variance about it, and once for the result: a single pass would cancel digits.
void LayerNormImpl(const float* x, const float* w, const float* bias, std::int64_t rows,
                   std::int64_t width, float* normal, float* scale, float* y) {
  const D d;
  const V one = hn::Set(d, 1.0f);
  const float count = static_cast<float>(width);
  for (std::int64_t r = 0; r < rows; ++r, x += width, normal += width, y += width) {
    V sum = hn::Zero(d);
    Sweep(width, [&](const auto& load, const auto&) HWY_ATTR { sum = hn::Add(sum, load(x)); });
    const V mean = hn::Set(d, hn::GetLane(hn::SumOfLanes(d, sum)) / count);
    Sweep(width, [&](const auto& load, const auto& store)
                     HWY_ATTR { store(hn::Sub(load(x), mean), normal); });
    // What the partial vector of a row lacks reads 0 here, where x - mean would not.
    V squares = hn::Zero(d);
    Sweep(width, [&](const auto& load, const auto&)
                     HWY_ATTR { squares = hn::MulAdd(load(normal), load(normal), squares); });
    scale[r] = 1.0f / std::sqrt(hn::GetLane(hn::SumOfLanes(d, squares)) / count + kNormEpsilon);
    const V factor = hn::Set(d, scale[r]);
    Sweep(width, [&](const auto& load, const auto& store) HWY_ATTR {
      const V value = hn::Mul(load(normal), factor);
      store(value, normal);
      store(hn::MulAdd(value, hn::Add(load(w), one), load(bias)), y);
    });
  }
}

// With g = dy (1 + w): dx = scale (g - mean g - normal mean(g normal)), d_w = sum dy normal, d_bias
// = sum dy over rows.
void LayerNormBackwardImpl(const float* normal, const float* scale, const float* w, const float* dy,
                           std::int64_t rows, std::int64_t width, float* dx, float* d_w,
                           float* d_bias) {
  const D d;
  const V one = hn::Set(d, 1.0f);
  const float count = static_cast<float>(width);
  std::fill(d_w, d_w + width, 0.0f);
  std::fill(d_bias, d_bias + width, 0.0f);
  for (std::int64_t r = 0; r < rows; ++r, normal += width, dy += width, dx += width) {
    V sum = hn::Zero(d);
    V along = hn::Zero(d);
    Sweep(width, [&](const auto& load, const auto& store) HWY_ATTR {
      const V gradient = load(dy);
      const V value = load(normal);
      const V g = hn::Mul(gradient, hn::Add(load(w), one));
      sum = hn::Add(sum, g);
      along = hn::MulAdd(g, value, along);
      store(hn::MulAdd(gradient, value, load(d_w)), d_w);
      store(hn::Add(load(d_bias), gradient), d_bias);
    });
    const V mean = hn::Set(d, hn::GetLane(hn::SumOfLanes(d, sum)) / count);
    const V slope = hn::Set(d, hn::GetLane(hn::SumOfLanes(d, along)) / count);
    const V factor = hn::Set(d, scale[r]);
    Sweep(width, [&](const auto& load, const auto& store) HWY_ATTR {
      const V g = hn::Mul(load(dy), hn::Add(load(w), one));
      store(hn::Mul(factor, hn::NegMulAdd(load(normal), slope, hn::Sub(g, mean))), dx);
    });
  }
}

void MultiplyImpl(float* x, const float* y, std::int64_t count) {
  Sweep(count,
        [&](const auto& load, const auto& store) HWY_ATTR { store(hn::Mul(load(x), load(y)), x); });
}

// Four items at a time hide the latency of the multiply-adds; u stays in the first-level cache.
void SetScoresImpl(const float* h, const float* u, float* s, std::int64_t sets, std::int64_t n,
                   std::int64_t width) {
  const D d;
  for (std::int64_t b = 0; b < sets; ++b) {
    const float* ub = u + b * width;
    for (std::int64_t j = 0; j < n; j += 4) {
      const float* rows[4];
      for (std::int64_t r = 0; r < 4; ++r) rows[r] = h + (b * n + std::min(j + r, n - 1)) * width;
      V sums[4] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
      Sweep(width, [&](const auto& load, const auto&) HWY_ATTR {
        const V query = load(ub);
        for (int r = 0; r < 4; ++r) sums[r] = hn::MulAdd(query, load(rows[r]), sums[r]);
      });
      for (std::int64_t r = 0; r < 4 && j + r < n; ++r) {
        s[b * n + j + r] = hn::GetLane(hn::SumOfLanes(d, sums[r]));
      }
    }
  }
}

void SetPoolImpl(const float* p, const float* h, float* z, std::int64_t sets, std::int64_t n,
                 std::int64_t width) {
  const D d;
  for (std::int64_t b = 0; b < sets; ++b) {
    float* zb = z + b * width;
    std::fill(zb, zb + width, 0.0f);
    for (std::int64_t j = 0; j < n; ++j) {
      const float weight = p[b * n + j];
      if (weight == 0.0f) continue;
      const float* row = h + (b * n + j) * width;
      Sweep(width, [&](const auto& load, const auto& store) HWY_ATTR {
        store(hn::MulAdd(hn::Set(d, weight), load(row), load(zb)), zb);
      });
    }
  }
}

void SupportGradientImpl(const std::int64_t* rows, std::int64_t count, std::int64_t n,
                         std::int64_t width, const float* p, const float* ds, const float* dpooled,
                         const float* u, const float* slope, float* dz) {
  const D d;
  for (std::int64_t m = 0; m < count; ++m) {
    const std::int64_t row = rows[m];
    const std::int64_t b = row / n;
    const V weight = hn::Set(d, p[row]);
    const V score = hn::Set(d, ds[row]);
    const float* sr = slope + row * width;
    const float* db = dpooled + b * width;
    const float* ub = u + b * width;
    float* out = dz + m * width;
    Sweep(width, [&](const auto& load, const auto& store) HWY_ATTR {
      const V da = hn::MulAdd(weight, load(db), hn::Mul(score, load(ub)));
      store(hn::Mul(da, load(sr)), out);
    });
  }
}

void MultiplyRowsImpl(const std::int64_t* rows, std::int64_t count, std::int64_t width,
                      const float* y, float* x) {
  for (std::int64_t m = 0; m < count; ++m) MultiplyImpl(x + m * width, y + rows[m] * width, width);
}

const SetKernelTable* SetKernelsHere() {
  static constexpr SetKernelTable table = {
      .bias_gelu = BiasGeluImpl,
      .add_bias = AddBiasImpl,
      .column_sums = ColumnSumsImpl,
      .layer_norm = LayerNormImpl,
      .layer_norm_backward = LayerNormBackwardImpl,
      .multiply = MultiplyImpl,
      .scores = SetScoresImpl,
      .pool = SetPoolImpl,
      .support_gradient = SupportGradientImpl,
      .multiply_rows = MultiplyRowsImpl,
  };
  return &table;
}

}  // namespace tsallis::lab::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tsallis::lab {

HWY_EXPORT(SetKernelsHere);

const SetKernelTable& SetKernels() { return *HWY_DYNAMIC_DISPATCH(SetKernelsHere)(); }

}  // namespace tsallis::lab
#endif  // HWY_ONCE
