#include "lab/nn/decoder_kernels.h"

#include <cmath>
#include <cstring>
#include <type_traits>

#include "tsallis/attention.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "lab/nn/decoder_kernels.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include <hwy/contrib/math/math-inl.h>

#include "attention/cpu/load-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tsallis::HWY_NAMESPACE {

// ---- rows of any width --------------------------------------------------------------------------

using Half = std::uint16_t;  // bfloat16

// A whole vector at `at`, or the last, partial one, whose missing lanes read 0.
struct WholeVector {
  std::int64_t at;

  HWY_INLINE VF Load(const float* from) const { return hn::LoadU(DF(), from + at); }
  HWY_INLINE VF Load(const Half* from) const { return FloatsOf(DF(), DType::kBFloat16, from + at); }
  HWY_INLINE void Store(VF v, float* to) const { hn::StoreU(v, DF(), to + at); }
  HWY_INLINE void Store(VF v, Half* to) const { StoreAs16(DF(), DType::kBFloat16, v, to + at); }
};

struct PartVector {
  std::int64_t at;
  std::size_t count;

  template <class T>
  HWY_INLINE VF Load(const T* from) const {
    HWY_ALIGN T lanes[HWY_MAX_BYTES / sizeof(float)] = {};
    std::memcpy(lanes, from + at, count * sizeof(T));
    return WholeVector{0}.Load(lanes);
  }
  template <class T>
  HWY_INLINE void Store(VF v, T* to) const {
    HWY_ALIGN T lanes[HWY_MAX_BYTES / sizeof(float)];
    WholeVector{0}.Store(v, lanes);
    std::memcpy(to + at, lanes, count * sizeof(T));
  }
};

template <class Body>
HWY_INLINE void ForRow(std::int64_t width, const Body& body) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(DF()));
  std::int64_t i = 0;
  for (; i + lanes <= width; i += lanes) body(WholeVector{i});
  if (i < width) body(PartVector{i, static_cast<std::size_t>(width - i)});
}

// Calls body with the pointer that the cells are.
template <class Body>
HWY_INLINE void WithCells(lab::Cells cells, const Body& body) {
  if (cells.half) {
    body(static_cast<Half*>(cells.data));
  } else {
    body(static_cast<float*>(cells.data));
  }
}

HWY_INLINE float Sum(VF v) { return hn::GetLane(hn::SumOfLanes(DF(), v)); }

// ---- norms --------------------------------------------------------------------------------------

template <class T>
HWY_INLINE float NormScale(const T* row, std::int64_t width) {
  const DF d;
  VF squares = hn::Zero(d);
  ForRow(width, [&](const auto& part) HWY_ATTR {
    const VF v = part.Load(row);
    squares = hn::MulAdd(v, v, squares);
  });
  return 1.0f / std::sqrt(Sum(squares) / static_cast<float>(width) + lab::kNormEpsilon);
}

void RmsNormImpl(const float* x, const float* w, std::int64_t rows, std::int64_t width,
                 lab::Cells y, float* scale) {
  const DF d;
  const VF one = hn::Set(d, 1.0f);
  WithCells(y, [&](auto* to) HWY_ATTR {
    for (std::int64_t r = 0; r < rows; ++r, x += width, to += width) {
      const float factor = NormScale(x, width);
      scale[r] = factor;
      ForRow(width, [&](const auto& part) HWY_ATTR {
        const VF gain = hn::Add(part.Load(w), one);
        part.Store(hn::Mul(hn::Mul(part.Load(x), hn::Set(d, factor)), gain), to);
      });
    }
  });
}

void AddRmsNormImpl(const float* x, lab::Cells branch, const float* w, std::int64_t rows,
                    std::int64_t width, float* x_out, float* scale) {
  const DF d;
  const VF one = hn::Set(d, 1.0f);
  WithCells(branch, [&](auto* from) HWY_ATTR {
    for (std::int64_t r = 0; r < rows; ++r, x += width, x_out += width, from += width) {
      const float factor = NormScale(from, width);
      scale[r] = factor;
      ForRow(width, [&](const auto& part) HWY_ATTR {
        const VF gain = hn::Add(part.Load(w), one);
        const VF normal = hn::Mul(part.Load(from), hn::Set(d, factor));
        part.Store(hn::MulAdd(normal, gain, part.Load(x)), x_out);
      });
    }
  });
}

// With n = x scale and g = dy (1 + w): dx = scale (g - n mean(g n)), dw = dy n.
void RmsNormBackwardImpl(const float* x, const float* scale, const float* w, lab::Cells dy,
                         std::int64_t rows, std::int64_t width, float* dx, float* dw,
                         lab::Cells y) {
  const DF d;
  const VF one = hn::Set(d, 1.0f);
  WithCells(dy, [&](auto* from) HWY_ATTR {
    auto* again = static_cast<decltype(from)>(y.data);
    for (std::int64_t r = 0; r < rows; ++r, x += width, from += width, dx += width) {
      const VF factor = hn::Set(d, scale[r]);
      VF sum = hn::Zero(d);
      ForRow(width, [&](const auto& part) HWY_ATTR {
        const VF n = hn::Mul(part.Load(x), factor);
        const VF gradient = part.Load(from);
        const VF gain = hn::Add(part.Load(w), one);
        const VF along = hn::Mul(gradient, n);
        sum = hn::MulAdd(along, gain, sum);
        part.Store(hn::Add(part.Load(dw), along), dw);
        if (again != nullptr) part.Store(hn::Mul(n, gain), again);
      });
      const VF mean = hn::Set(d, Sum(sum) / static_cast<float>(width));
      ForRow(width, [&](const auto& part) HWY_ATTR {
        const VF n = hn::Mul(part.Load(x), factor);
        const VF g = hn::Mul(part.Load(from), hn::Add(part.Load(w), one));
        part.Store(hn::MulAdd(factor, hn::NegMulAdd(n, mean, g), part.Load(dx)), dx);
      });
      if (again != nullptr) again += width;
    }
  });
}

void AddRmsNormBackwardImpl(lab::Cells branch, const float* scale, const float* w, const float* dx,
                            std::int64_t rows, std::int64_t width, lab::Cells d_branch, float* dw) {
  const DF d;
  const VF one = hn::Set(d, 1.0f);
  WithCells(branch, [&](auto* from) HWY_ATTR {
    auto* to = static_cast<decltype(from)>(d_branch.data);
    for (std::int64_t r = 0; r < rows; ++r, from += width, dx += width, to += width) {
      const VF factor = hn::Set(d, scale[r]);
      VF sum = hn::Zero(d);
      ForRow(width, [&](const auto& part) HWY_ATTR {
        const VF along = hn::Mul(part.Load(dx), hn::Mul(part.Load(from), factor));
        sum = hn::MulAdd(along, hn::Add(part.Load(w), one), sum);
        part.Store(hn::Add(part.Load(dw), along), dw);
      });
      const VF mean = hn::Set(d, Sum(sum) / static_cast<float>(width));
      ForRow(width, [&](const auto& part) HWY_ATTR {
        const VF n = hn::Mul(part.Load(from), factor);
        const VF g = hn::Mul(part.Load(dx), hn::Add(part.Load(w), one));
        part.Store(hn::Mul(factor, hn::NegMulAdd(n, mean, g)), to);
      });
    }
  });
}

// ---- norms of heads -----------------------------------------------------------------------------

void NormHeadsImpl(lab::Cells x, std::int64_t row_stride, std::int64_t rows, std::int64_t heads,
                   std::int64_t head_dim, float* scale) {
  WithCells(x, [&](auto* row) HWY_ATTR {
    for (std::int64_t r = 0; r < rows; ++r, row += row_stride) {
      for (std::int64_t h = 0; h < heads; ++h) {
        auto* head = row + h * head_dim;
        const float factor = NormScale(head, head_dim);
        *scale++ = factor;
        ForRow(head_dim, [&](const auto& part) HWY_ATTR {
          part.Store(hn::Mul(part.Load(head), hn::Set(DF(), factor)), head);
        });
      }
    }
  });
}

// dx = scale (dy - y mean(dy y))
void NormHeadsBackwardImpl(lab::Cells y, std::int64_t row_stride, const float* scale,
                           std::int64_t rows, std::int64_t heads, std::int64_t head_dim,
                           lab::Cells dx) {
  const DF d;
  WithCells(y, [&](auto* row) HWY_ATTR {
    auto* d_row = static_cast<decltype(row)>(dx.data);
    for (std::int64_t r = 0; r < rows; ++r, row += row_stride, d_row += row_stride) {
      for (std::int64_t h = 0; h < heads; ++h) {
        const auto* head = row + h * head_dim;
        auto* d_head = d_row + h * head_dim;
        VF sum = hn::Zero(d);
        ForRow(head_dim, [&](const auto& part) HWY_ATTR {
          sum = hn::MulAdd(part.Load(head), part.Load(d_head), sum);
        });
        const VF mean = hn::Set(d, Sum(sum) / static_cast<float>(head_dim));
        const VF factor = hn::Set(d, *scale++);
        ForRow(head_dim, [&](const auto& part) HWY_ATTR {
          const VF along = hn::NegMulAdd(part.Load(head), mean, part.Load(d_head));
          part.Store(hn::Mul(factor, along), d_head);
        });
      }
    }
  });
}

// ---- feed-forward layers ------------------------------------------------------------------------

// 1 / (1 + e^-x), without overflow.
HWY_INLINE VF Sigmoid(VF x) {
  const DF d;
  const VF one = hn::Set(d, 1.0f);
  const VF e = ExpNonPositive(hn::Neg(hn::Abs(x)));
  const VF numerator = hn::IfThenElse(hn::Lt(x, hn::Zero(d)), e, one);
  return hn::Div(numerator, hn::Add(one, e));
}

// A gate's nonlinearity f(x) = x sigmoid(t(x)), and t'(x).
struct Gelu {
  // t = 2 sqrt(2 / pi) (x + 0.044715 x^3), since (1 + tanh y) / 2 = sigmoid(2y).
  static constexpr float kFactor = 2.0f * 0.7978845608028654f;
  static constexpr float kCubic = 0.044715f;

  static HWY_INLINE VF Share(VF x, VF x2) {
    const DF d;
    const VF inner = hn::MulAdd(hn::Set(d, kCubic), x2, hn::Set(d, 1.0f));
    return Sigmoid(hn::Mul(hn::Mul(hn::Set(d, kFactor), x), inner));
  }
  static HWY_INLINE VF InnerSlope(VF x2) {
    const DF d;
    return hn::Mul(hn::Set(d, kFactor),
                   hn::MulAdd(hn::Set(d, 3.0f * kCubic), x2, hn::Set(d, 1.0f)));
  }
};

struct Silu {  // t = x
  static HWY_INLINE VF Share(VF x, VF) { return Sigmoid(x); }
  static HWY_INLINE VF InnerSlope(VF) { return hn::Set(DF(), 1.0f); }
};

template <class Gate>
void Gated(lab::Cells gate_up, std::int64_t rows, std::int64_t width, lab::Cells h) {
  WithCells(gate_up, [&](auto* from) HWY_ATTR {
    auto* to = static_cast<decltype(from)>(h.data);
    for (std::int64_t r = 0; r < rows; ++r, from += 2 * width, to += width) {
      ForRow(width, [&](const auto& part) HWY_ATTR {
        const VF x = part.Load(from);
        const VF gate = hn::Mul(x, Gate::Share(x, hn::Mul(x, x)));
        part.Store(hn::Mul(gate, part.Load(from + width)), to);
      });
    }
  });
}

template <class Gate>
void GatedBackward(lab::Cells gate_up, lab::Cells dh, std::int64_t rows, std::int64_t width,
                   lab::Cells d_gate_up, lab::Cells h) {
  WithCells(gate_up, [&](auto* from) HWY_ATTR {
    using Pointer = decltype(from);
    const auto* gradient = static_cast<Pointer>(dh.data);
    auto* d_from = static_cast<Pointer>(d_gate_up.data);
    auto* out = static_cast<Pointer>(h.data);
    for (std::int64_t r = 0; r < rows; ++r) {
      ForRow(width, [&](const auto& part) HWY_ATTR {
        const VF x = part.Load(from), up = part.Load(from + width);
        const VF x2 = hn::Mul(x, x);
        const VF share = Gate::Share(x, x2);
        const VF gate = hn::Mul(x, share);
        // f'(x) = s + x s (1 - s) t'(x)
        const VF slope = hn::MulAdd(hn::NegMulAdd(gate, share, gate), Gate::InnerSlope(x2), share);
        const VF g = part.Load(gradient);
        part.Store(hn::Mul(gate, up), out);
        part.Store(hn::Mul(hn::Mul(g, up), slope), d_from);
        part.Store(hn::Mul(g, gate), d_from + width);
      });
      from += 2 * width, d_from += 2 * width, gradient += width, out += width;
    }
  });
}

void SquaredReluImpl(lab::Cells up, std::int64_t rows, std::int64_t width, lab::Cells h) {
  WithCells(up, [&](auto* from) HWY_ATTR {
    auto* to = static_cast<decltype(from)>(h.data);
    ForRow(rows * width, [&](const auto& part) HWY_ATTR {
      const VF x = hn::ZeroIfNegative(part.Load(from));
      part.Store(hn::Mul(x, x), to);
    });
  });
}

void SquaredReluBackwardImpl(lab::Cells up, lab::Cells dh, std::int64_t rows, std::int64_t width,
                             lab::Cells d_up, lab::Cells h) {
  WithCells(up, [&](auto* from) HWY_ATTR {
    using Pointer = decltype(from);
    const auto* gradient = static_cast<Pointer>(dh.data);
    auto* d_from = static_cast<Pointer>(d_up.data);
    auto* out = static_cast<Pointer>(h.data);
    ForRow(rows * width, [&](const auto& part) HWY_ATTR {
      const VF x = hn::ZeroIfNegative(part.Load(from));
      part.Store(hn::Mul(hn::Add(x, x), part.Load(gradient)), d_from);
      part.Store(hn::Mul(x, x), out);
    });
  });
}

// ---- rotations ----------------------------------------------------------------------------------

void RotateImpl(lab::Cells x, std::int64_t row_stride, std::int64_t rows, std::int64_t heads,
                std::int64_t head_dim, const float* cosine, const float* sine,
                const std::int32_t* position, float turn) {
  const DF d;
  const std::int64_t half = head_dim / 2;
  WithCells(x, [&](auto* row) HWY_ATTR {
    for (std::int64_t r = 0; r < rows; ++r, row += row_stride) {
      const float* cos_row = cosine + position[r] * half;
      const float* sin_row = sine + position[r] * half;
      for (std::int64_t h = 0; h < heads; ++h) {
        auto* low = row + h * head_dim;
        auto* high = low + half;
        ForRow(half, [&](const auto& part) HWY_ATTR {
          const VF a = part.Load(low), b = part.Load(high);
          const VF c = part.Load(cos_row), s = hn::Mul(part.Load(sin_row), hn::Set(d, turn));
          part.Store(hn::NegMulAdd(b, s, hn::Mul(a, c)), low);
          part.Store(hn::MulAdd(a, s, hn::Mul(b, c)), high);
        });
      }
    }
  });
}

// ---- adaptive length scaling --------------------------------------------------------------------

// Shared by forward and backward: numbers of one vector of heads.
struct AdaptiveTerms {
  VF sigmoid, softplus, tanh, tanh_slope, power;
};

template <class Part, class T>
HWY_INLINE AdaptiveTerms TermsOf(const Part& part, const lab::AdaptiveScale& scale, const T* beta,
                                 const T* gamma, float log_log) {
  const DF d;
  VF b = part.Load(beta), g = part.Load(gamma);
  if (scale.beta_bias != nullptr) b = hn::Add(b, part.Load(scale.beta_bias));
  if (scale.gamma_bias != nullptr) g = hn::Add(g, part.Load(scale.gamma_bias));
  AdaptiveTerms t;
  const VF e = ExpNonPositive(hn::Neg(hn::Abs(b)));
  t.softplus = hn::Add(hn::Max(b, hn::Zero(d)), hn::Log1p(d, e));
  t.sigmoid = Sigmoid(b);
  // With s = sigmoid(2g): tanh g = s - (1 - s), tanh' g = 4 s (1 - s), 1 - s without cancellation.
  const VF up = Sigmoid(hn::Add(g, g)), down = Sigmoid(hn::Neg(hn::Add(g, g)));
  t.tanh = hn::Sub(up, down);
  t.tanh_slope = hn::Mul(hn::Set(d, 4.0f), hn::Mul(up, down));
  t.power = hn::Exp(d, hn::Mul(t.tanh, hn::Set(d, scale.range * log_log)));
  return t;
}

void AdaptiveForwardImpl(const lab::AdaptiveScale& scale, lab::Cells beta, lab::Cells gamma,
                         std::int64_t row_stride, const float* log_log, std::int64_t rows, float* c,
                         std::int64_t c_stride) {
  WithCells(beta, [&](auto* b) HWY_ATTR {
    auto* g = static_cast<decltype(b)>(gamma.data);
    for (std::int64_t r = 0; r < rows; ++r, b += row_stride, g += row_stride, c += c_stride) {
      ForRow(scale.heads, [&](const auto& part) HWY_ATTR {
        const AdaptiveTerms t = TermsOf(part, scale, b, g, log_log[r]);
        part.Store(hn::MulAdd(t.softplus, t.power, part.Load(scale.delta)), c);
      });
    }
  });
}

void AdaptiveBackwardImpl(const lab::AdaptiveScale& scale, lab::Cells beta, lab::Cells gamma,
                          std::int64_t row_stride, const float* log_log, std::int64_t rows,
                          const float* dc, std::int64_t c_stride, lab::Cells d_beta,
                          lab::Cells d_gamma, float* d_beta_bias, float* d_gamma_bias) {
  const DF d;
  WithCells(beta, [&](auto* b) HWY_ATTR {
    using Pointer = decltype(b);
    auto* g = static_cast<Pointer>(gamma.data);
    auto* db = static_cast<Pointer>(d_beta.data);
    auto* dg = static_cast<Pointer>(d_gamma.data);
    for (std::int64_t r = 0; r < rows; ++r) {
      ForRow(scale.heads, [&](const auto& part) HWY_ATTR {
        const AdaptiveTerms t = TermsOf(part, scale, b, g, log_log[r]);
        const VF gradient = hn::Mul(part.Load(dc), t.power);
        const VF to_beta = hn::Mul(gradient, t.sigmoid);
        const VF slope = hn::Mul(hn::Set(d, scale.range * log_log[r]), t.tanh_slope);
        const VF to_gamma = hn::Mul(hn::Mul(gradient, t.softplus), slope);
        part.Store(to_beta, db);
        part.Store(to_gamma, dg);
        if (d_beta_bias != nullptr) {
          part.Store(hn::Add(part.Load(d_beta_bias), to_beta), d_beta_bias);
          part.Store(hn::Add(part.Load(d_gamma_bias), to_gamma), d_gamma_bias);
        }
      });
      b += row_stride, g += row_stride, db += row_stride, dg += row_stride, dc += c_stride;
    }
  });
}

// ---- loss ---------------------------------------------------------------------------------------

void CrossEntropyImpl(float* logits, std::int64_t rows, std::int64_t columns,
                      const std::int64_t* label, float weight, float* loss, std::int64_t* best) {
  const DF d;
  for (std::int64_t r = 0; r < rows; ++r, logits += columns) {
    std::int64_t top = 0;
    for (std::int64_t k = 1; k < columns; ++k) {
      if (logits[k] > logits[top]) top = k;
    }
    const float largest = logits[top];
    const float target = logits[label[r]] - largest;
    const VF shift = hn::Set(d, largest);
    VF sum = hn::Zero(d);
    ForRow(columns, [&](const auto& part) HWY_ATTR {
      const VF e = ExpNonPositive(hn::Sub(part.Load(logits), shift));
      if constexpr (std::is_same_v<std::decay_t<decltype(part)>, PartVector>) {
        sum = hn::Add(sum, hn::IfThenElseZero(hn::FirstN(d, part.count), e));
      } else {
        sum = hn::Add(sum, e);
      }
      if (weight > 0.0f) part.Store(e, logits);
    });
    const float total = Sum(sum);
    loss[r] = std::log(total) - target;
    best[r] = top;
    if (weight > 0.0f) {
      const VF factor = hn::Set(d, weight / total);
      ForRow(columns, [&](const auto& part)
                          HWY_ATTR { part.Store(hn::Mul(part.Load(logits), factor), logits); });
      logits[label[r]] -= weight;
    }
  }
}

// ---- transposition ------------------------------------------------------------------------------

#if HWY_TARGET != HWY_SCALAR
// Eight by eight: pairs of rows interleaved by numbers of 16, 32 and 64 bits.
HWY_INLINE void TransposeEight(const Half* in, std::int64_t in_stride, Half* out,
                               std::int64_t out_stride) {
  const hn::Full128<Half> d;
  const hn::Full128<std::uint32_t> d2;
  const hn::Full128<std::uint64_t> d4;
  hn::Vec<decltype(d2)> pairs[8];  // rows 2i and 2i + 1: columns 0-3, columns 4-7
  for (int i = 0; i < 4; ++i) {
    const auto a = hn::LoadU(d, in + 2 * i * in_stride);
    const auto b = hn::LoadU(d, in + (2 * i + 1) * in_stride);
    pairs[2 * i] = hn::BitCast(d2, hn::InterleaveLower(d, a, b));
    pairs[2 * i + 1] = hn::BitCast(d2, hn::InterleaveUpper(d, a, b));
  }
  for (int half = 0; half < 2; ++half) {  // columns 4 half ... 4 half + 3
    const auto low = [&](int i) HWY_ATTR {
      return hn::BitCast(d4, hn::InterleaveLower(d2, pairs[4 * i + half], pairs[4 * i + 2 + half]));
    };
    const auto high = [&](int i) HWY_ATTR {
      return hn::BitCast(d4, hn::InterleaveUpper(d2, pairs[4 * i + half], pairs[4 * i + 2 + half]));
    };
    Half* to = out + 4 * half * out_stride;
    hn::StoreU(hn::BitCast(d, hn::InterleaveLower(d4, low(0), low(1))), d, to);
    hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(d4, low(0), low(1))), d, to + out_stride);
    hn::StoreU(hn::BitCast(d, hn::InterleaveLower(d4, high(0), high(1))), d, to + 2 * out_stride);
    hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(d4, high(0), high(1))), d, to + 3 * out_stride);
  }
}
#endif

void TransposeImpl(const Half* in, std::int64_t rows, std::int64_t columns, Half* out,
                   std::int64_t out_stride) {
  const auto one_by_one = [&](std::int64_t r_begin, std::int64_t r_end, std::int64_t c_begin,
                              std::int64_t c_end) {
    for (std::int64_t c = c_begin; c < c_end; ++c) {
      for (std::int64_t r = r_begin; r < r_end; ++r) out[c * out_stride + r] = in[r * columns + c];
    }
  };
#if HWY_TARGET == HWY_SCALAR
  one_by_one(0, rows, 0, columns);
#else
  const std::int64_t whole_rows = rows / 8 * 8, whole_columns = columns / 8 * 8;
  // Down strips as wide as a cache line, so that a line is read once.
  constexpr std::int64_t kStrip = 32;
  for (std::int64_t strip = 0; strip < whole_columns; strip += kStrip) {
    for (std::int64_t r = 0; r < whole_rows; r += 8) {
      for (std::int64_t c = strip; c < HWY_MIN(whole_columns, strip + kStrip); c += 8) {
        TransposeEight(in + r * columns + c, columns, out + c * out_stride + r, out_stride);
      }
    }
  }
  one_by_one(whole_rows, rows, 0, whole_columns);
  one_by_one(0, rows, whole_columns, columns);
#endif
}

const lab::RowKernelTable* RowKernelsHere() {
  static constexpr lab::RowKernelTable table = {
      .rms_norm = RmsNormImpl,
      .add_rms_norm = AddRmsNormImpl,
      .rms_norm_backward = RmsNormBackwardImpl,
      .add_rms_norm_backward = AddRmsNormBackwardImpl,
      .gated_gelu = Gated<Gelu>,
      .gated_gelu_backward = GatedBackward<Gelu>,
      .gated_silu = Gated<Silu>,
      .gated_silu_backward = GatedBackward<Silu>,
      .squared_relu = SquaredReluImpl,
      .squared_relu_backward = SquaredReluBackwardImpl,
      .norm_heads = NormHeadsImpl,
      .norm_heads_backward = NormHeadsBackwardImpl,
      .rotate = RotateImpl,
      .adaptive_scale = AdaptiveForwardImpl,
      .adaptive_scale_backward = AdaptiveBackwardImpl,
      .cross_entropy = CrossEntropyImpl,
      .transpose_halves = TransposeImpl,
  };
  return &table;
}

}  // namespace tsallis::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tsallis {

HWY_EXPORT(RowKernelsHere);

const lab::RowKernelTable& lab::RowKernels() { return *HWY_DYNAMIC_DISPATCH(RowKernelsHere)(); }

}  // namespace tsallis
#endif  // HWY_ONCE
