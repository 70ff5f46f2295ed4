// The score of a query and a key from their product, for every kernel:
//
//   s = m_d + a_d cap(x) - slope d + bias,    x = c scale <q, k>,    d = |i - j|
//
// cap(x) = softcap tanh(x / softcap) (Gemma 2, 2024); a_d and m_d are those of scale-invariant
// scores; slope is ALiBi's (Press, Smith and Lewis 2022). Without a term its part is absent.
// Kernels work in z = unit s. The reference (reference.cc) writes the same out for itself: it is
// the definition.
//
// terms-inl.h has the same for vectors. Kernels for GPUs compile this file (host_device.h).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <memory>

#include "attention/geometry.h"
#include "core/elements.h"
#include "core/host_device.h"
#include "tsallis/attention.h"
#include "tsallis/distance_law.h"
#include "tsallis/error.h"

namespace tsallis {

// a_d and m_d of the scale-invariant term; (1, 0) without it.
struct DistanceFactor {
  double a = 1.0;
  double m = 0.0;

  static TSALLIS_HOST_DEVICE DistanceFactor At(const DistanceLaw& law, std::int64_t distance) {
    if (law.length == 0.0) return {};
    const double a2 =
        2.0 *
            std::log(static_cast<double>(distance < 0 ? -distance : distance) / law.length + 1.0) +
        law.nearest;
    return {std::sqrt(a2), law.sum - a2};
  }
};

// Holds a_d and m_d of a call as float32, for every distance that occurs and its negative: queries
// and keys that ascend find theirs side by side.
struct DistanceFactors {
  const float* a_of_0 = nullptr;  // null: no scale-invariant scores
  const float* m_of_0 = nullptr;
  double sum = 1.0;      // a_d^2 + m_d
  double largest = 1.0;  // a_d

  TSALLIS_HOST_DEVICE bool any() const { return a_of_0 != nullptr; }
  TSALLIS_HOST_DEVICE const float* a(std::int64_t distance) const { return a_of_0 + distance; }
  TSALLIS_HOST_DEVICE const float* m(std::int64_t distance) const { return m_of_0 + distance; }
  TSALLIS_HOST_DEVICE float a_at(std::int64_t distance) const { return *a(distance); }
  TSALLIS_HOST_DEVICE float m_at(std::int64_t distance) const { return *m(distance); }
};

// The factors of a call's distances. Tables are kept between calls: up to four, of up to 32 MB.
class DistanceTable {
 public:
  // Blocks of queries and tiles of keys may reach that far beyond what is visible.
  static constexpr std::int64_t kBeyond = 160;
  struct Entries;

  DistanceTable() = default;
  explicit DistanceTable(const AttentionParams& params);
  // At most.
  static std::size_t Bytes(const AttentionParams& params);

  // While the table lives.
  DistanceFactors factors() const { return factors_; }

 private:
  std::shared_ptr<const Entries> entries_;
  DistanceFactors factors_;
};

// The ranges of the terms that are numbers. Throws InvalidArgument.
inline void CheckNumbers(const AttentionTerms& terms) {
  const auto check = [](const char* name, double number, bool right, const char* expected) {
    if (right) return;
    char text[32];
    std::snprintf(text, sizeof(text), "%g", number);
    throw InvalidArgument(name, expected, text);
  };
  check("terms.scale", terms.scale, std::isfinite(terms.scale) && terms.scale >= 0.0,
        "a finite number > 0, or 0 for 1 / sqrt(head_dim)");
  check("terms.softcap", terms.softcap,
        terms.softcap == 0.0 || (terms.softcap >= 1e-6 && terms.softcap <= 1e6),
        "a number from 1e-6 to 1e6, or 0 for none");
  check("terms.scale_invariant", terms.scale_invariant,
        std::isfinite(terms.scale_invariant) && terms.scale_invariant >= 0.0,
        "a finite number > 0, or 0 for none");
  const auto check_shape = [&](const char* name, double number, bool right, const char* expected) {
    if (number == 0.0) return;
    check(name, number, terms.scale_invariant != 0.0, "none without scale_invariant");
    check(name, number, right, expected);
  };
  const double alpha = terms.scale_invariant_alpha, beta = terms.scale_invariant_beta;
  check_shape("terms.scale_invariant_alpha", alpha, alpha >= 1e-6 && alpha <= 1e6,
              "a number from 1e-6 to 1e6, or 0 for e^(1/2)");
  check_shape("terms.scale_invariant_beta", beta, beta > 0.0 && std::isfinite(beta),
              "a finite number > 0, or 0 for e^(1/2)");
  if (alpha == 0.0 && beta == 0.0) return;
  const double usual = std::exp(0.5), a = alpha > 0.0 ? alpha : usual;
  const double b = beta > 0.0 ? beta : usual;
  // Rounding: a caller may compute the bound itself.
  check("terms.scale_invariant_beta", b, b >= a * std::log(a) * (1.0 - 1e-12) && b <= 100.0 * a,
        "a number from A ln A to 100 A, where A is terms.scale_invariant_alpha");
}

// Whether the derivative of a score depends on its product, which a backward pass needs then.
inline bool NeedsProducts(const AttentionTerms& terms) { return terms.softcap != 0.0; }

// c scale of a query row.
inline double RowFactor(const AttentionParams& params, const Sequence& sequence, std::int64_t h,
                        std::int64_t q_row) {
  const ConstArray4& c = params.terms.length_scale;
  if (c.data == nullptr) return ScaleOf(params);
  return ScaleOf(params) *
         LoadElement<double>(c.data, c.dtype, Offset(c.strides, sequence.array_batch, h, q_row));
}

// The terms of one query head of one sequence, in units of z. T: double, on GPUs float. Factors:
// what reads a_d and m_d.
template <typename T, class Factors = DistanceFactors>
struct BasicTerms {
  // `table` outlives it.
  static BasicTerms Of(const AttentionParams& params, const Sequence& sequence, std::int64_t h,
                       const DistanceTable& table, double unit) {
    const ConstArray4& slopes = params.terms.alibi_slopes;
    BasicTerms terms;
    terms.SetNumbers(params.terms, unit);
    terms.distances = table.factors();
    if (slopes.data != nullptr) {
      terms.slope = unit * LoadElement<double>(slopes.data, slopes.dtype,
                                               Offset(slopes.strides, sequence.array_batch, h, 0));
    }
    return terms;
  }

  // The terms that are one number for all heads.
  TSALLIS_HOST_DEVICE void SetNumbers(const AttentionTerms& terms, T z_unit) {
    unit = z_unit;
    softcap = unit * static_cast<T>(terms.softcap);
  }

  // Whether a score is more than a product times a factor. Under NAPE it is not in half of the
  // heads: their slope is 0.
  TSALLIS_HOST_DEVICE bool any() const {
    return slope != T(0) || softcap != T(0) || distances.any();
  }

  // As NeedsProducts().
  TSALLIS_HOST_DEVICE bool needs_products() const { return softcap != T(0); }
  // Whether a product of -inf has a finite score.
  TSALLIS_HOST_DEVICE bool bounded() const { return softcap != T(0); }

  // The score z of a key at this distance. The argument z is unit x.
  TSALLIS_HOST_DEVICE T Score(T z, std::int64_t distance) const {
    if (softcap != T(0)) z = softcap * std::tanh(z / softcap);
    if (distances.any()) {
      z = static_cast<T>(distances.a_at(distance)) * z +
          unit * static_cast<T>(distances.m_at(distance));
    }
    return z - slope * static_cast<T>(distance < 0 ? -distance : distance);
  }
  // ds / dx at unit x.
  TSALLIS_HOST_DEVICE T Derivative(T z, std::int64_t distance) const {
    T derivative = 1;
    if (softcap != T(0)) {
      const T t = std::tanh(z / softcap);
      derivative = T(1) - t * t;
    }
    return distances.any() ? derivative * static_cast<T>(distances.a_at(distance)) : derivative;
  }
  // The largest score of a key at a distance in [nearest, farthest], 0 <= nearest, whose unit x is
  // `x` at most.
  double Ceiling(double x, std::int64_t nearest, std::int64_t farthest) const {
    if (softcap != 0.0) x = softcap * std::tanh(x / softcap);
    if (distances.any()) {
      // a x + unit (sum - a^2) rises until a = x / (2 unit).
      const double a = std::clamp(x / (2.0 * unit), static_cast<double>(distances.a_at(nearest)),
                                  static_cast<double>(distances.a_at(farthest)));
      x = a * x + unit * (distances.sum - a * a);
    }
    return x - slope * static_cast<double>(slope >= 0.0 ? nearest : farthest);
  }
  // Bound of |d score / d x| at distances up to `farthest`.
  TSALLIS_HOST_DEVICE T Lipschitz(std::int64_t farthest) const {
    return distances.any() ? static_cast<T>(distances.a_at(farthest)) : T(1);
  }
  // For |x| <= product, a bound of the magnitude of a score's terms at distances up to `farthest`,
  // ALiBi's excepted.
  double Size(double product, std::int64_t farthest) const {
    const double lipschitz = Lipschitz(farthest);
    // The bound of m_d where a_d is small.
    const double shift = distances.any() ? 1.0 + unit * std::max(0.0, distances.sum - 1.0) : 1.0;
    return lipschitz * product + std::max(lipschitz * lipschitz, shift);
  }
  // A bound of a tile: below this unit x no key at a distance in [nearest, farthest], 0 <= nearest,
  // has a z of `z` or more. slack: relative, for rounding. -inf: any may; inf: none.
  TSALLIS_HOST_DEVICE T LeastProduct(T z, std::int64_t nearest, std::int64_t farthest,
                                     T slack) const {
    const T best = -slope * static_cast<T>(slope >= T(0) ? nearest : farthest);
    // a_d rises with d, and m_d falls.
    const T m = distances.any() ? unit * static_cast<T>(distances.m_at(nearest)) : T(0);
    const T rest = z - best - m;
    const T size = std::abs(z) + std::abs(best) + std::abs(m) + T(1);
    constexpr T kInfinity = std::numeric_limits<T>::infinity();
    const T least = rest - slack * size;
    const T lipschitz = Lipschitz(rest >= T(0) ? farthest : nearest);
    // a_0 may be 0.
    const T product =
        lipschitz > T(0) ? least / lipschitz : (least > T(0) ? kInfinity : -kInfinity);
    if (softcap == T(0)) return product;
    const T capped = product / softcap;
    if (capped >= T(1)) return kInfinity;
    return capped <= T(-1) ? -kInfinity : softcap * std::atanh(capped);
  }

  T unit = 1;
  T slope = 0;    // unit times ALiBi's
  T softcap = 0;  // unit times its own; 0: none
  Factors distances;
};
using HeadTerms = BasicTerms<double>;

}  // namespace tsallis
