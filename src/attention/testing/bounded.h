// Two arithmetics that plain.h computes in: float, and Bounded, which carries beside a double how
// far float32 arithmetic may lead from it (running error analysis). What an algorithm amplifies,
// and what its inputs leave open (an entry whose score lies within rounding of the threshold), ends
// up in the bound without anybody deriving it.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

namespace tsallis {

struct Bounded {
  static constexpr double kRoundoff = 0x1p-24;
  // Results below float32's normal range may be flushed to 0.
  static constexpr double kTiniest = 0x1p-126;

  double value = 0.0;
  double error = 0.0;

  // A result of one operation; functions of libraries are good to two units in the last place.
  static Bounded Rounded(double value, double error, double operations = 1.0) {
    return {value, error + operations * kRoundoff * std::abs(value) + kTiniest};
  }
  // `value` where the argument's error lets the result lie anywhere in [low, high].
  static Bounded Between(double value, double low, double high) {
    return Rounded(value, std::max(value - low, high - value), 4.0);
  }
};

inline Bounded operator+(Bounded a, Bounded b) {
  return Bounded::Rounded(a.value + b.value, a.error + b.error);
}
inline Bounded operator-(Bounded a, Bounded b) {
  return Bounded::Rounded(a.value - b.value, a.error + b.error);
}
inline Bounded operator*(Bounded a, Bounded b) {
  // An exact 0 times an unbounded error is 0.
  const auto product = [](double x, double y) { return x == 0.0 || y == 0.0 ? 0.0 : x * y; };
  return Bounded::Rounded(a.value * b.value, product(std::abs(a.value), b.error) +
                                                 product(std::abs(b.value), a.error) +
                                                 product(a.error, b.error));
}
inline Bounded operator/(Bounded a, Bounded b) {
  const double room = std::abs(b.value) - b.error, ratio = a.value / b.value;
  if (!(room > 0.0)) return {ratio, std::numeric_limits<double>::infinity()};
  return Bounded::Rounded(ratio, (a.error + std::abs(ratio) * b.error) / room);
}

// The functions that maps need. Value: what decides comparisons. Error: 0 for float.
template <typename T>
struct Arithmetic;

template <>
struct Arithmetic<float> {
  static float Of(double x) { return static_cast<float>(x); }
  static double Value(float x) { return x; }
  static double Error(float) { return 0.0; }
  static float WithError(double x, double) { return static_cast<float>(x); }
  static float Exp(float x) { return std::exp(x); }
  static float Log(float x) { return std::log(x); }
  // [1 - r]_+^k; 1 for r < 1 and 0 otherwise if k = 0.
  static float PowerOneMinus(float r, double k) {
    return r < 1.0f ? std::exp(static_cast<float>(k) * std::log1p(-r)) : 0.0f;
  }
  static float Expm1(float x) { return std::expm1(x); }
  static float Tanh(float x) { return std::tanh(x); }
  static float Sigmoid(float x) {
    const float e = std::exp(-std::abs(x));
    return (x >= 0.0f ? 1.0f : e) / (1.0f + e);
  }
  // ln(1 + e^x)
  static float Softplus(float x) { return std::max(x, 0.0f) + std::log1p(std::exp(-std::abs(x))); }
  // (e^x - 1 - x) / x^2
  static float Phi(float x) {
    if (std::abs(x) < 0.1f) return 0.5f + x * (1.0f / 6 + x * (1.0f / 24 + x / 120));
    return (std::expm1(x) - x) / (x * x);
  }
};

template <>
struct Arithmetic<Bounded> {
  static Bounded Of(double x) {
    const bool exact = static_cast<double>(static_cast<float>(x)) == x || std::isnan(x);
    return {x, exact ? 0.0 : std::abs(x) * Bounded::kRoundoff};
  }
  static double Value(Bounded x) { return x.value; }
  static double Error(Bounded x) { return x.error; }
  static Bounded WithError(double x, double error) { return Bounded::Rounded(x, error); }
  static Bounded Exp(Bounded x) {
    const double value = std::exp(x.value);
    const double error = value > 0.0 ? value * std::expm1(x.error) : std::exp(x.value + x.error);
    // Range reduction costs a relative error that grows with the argument.
    return Bounded::Rounded(value, error, 4.0 + std::abs(x.value));
  }
  // Arguments of 0 and near it come as weights; they are multiplied by those afterwards, so that
  // any finite number serves.
  static Bounded Log(Bounded x) {
    const double high = x.value + x.error;
    if (!(high > 0.0)) return {0.0, 0.0};
    if (x.value - x.error <= 0.5 * high) return {std::log(0.5 * high), 2.0};
    return Bounded::Rounded(std::log(x.value), x.error / (x.value - x.error), 4.0);
  }
  static Bounded PowerOneMinus(Bounded r, double k) {
    const auto power = [k](double x) { return x < 1.0 ? std::exp(k * std::log1p(-x)) : 0.0; };
    const double value = power(r.value);
    if (r.value - r.error >= 1.0) return {0.0, 0.0};
    const bool open = r.value + r.error >= 1.0;  // on the support or not
    const double inner = power(r.value - r.error);
    double outer = power(r.value + r.error);
    if (open && k < 0.0) outer = std::numeric_limits<double>::infinity();
    const double low = open ? 0.0 : std::min({value, inner, outer});
    return Bounded::Between(value, low, std::max({value, inner, outer}));
  }
  static Bounded Expm1(Bounded x) {
    return Bounded::Between(std::expm1(x.value), std::expm1(x.value - x.error),
                            std::expm1(x.value + x.error));
  }
  static Bounded Tanh(Bounded x) {
    if (std::isinf(x.value)) return {x.value > 0.0 ? 1.0 : -1.0, 0.0};
    return Bounded::Between(std::tanh(x.value), std::tanh(x.value - x.error),
                            std::tanh(x.value + x.error));
  }
  static Bounded Sigmoid(Bounded x) {
    const auto sigmoid = [](double y) {
      const double e = std::exp(-std::abs(y));
      return (y >= 0.0 ? 1.0 : e) / (1.0 + e);
    };
    const double value = sigmoid(x.value);
    const double error =
        std::max(value - sigmoid(x.value - x.error), sigmoid(x.value + x.error) - value);
    // As for Exp, of which little is left where the result is near 1.
    return Bounded::Rounded(value, error, 4.0 + std::max(0.0, -x.value));
  }
  static Bounded Softplus(Bounded x) {
    const auto softplus = [](double y) {
      return std::max(y, 0.0) + std::log1p(std::exp(-std::abs(y)));
    };
    const double value = softplus(x.value);
    const double error =
        std::max(value - softplus(x.value - x.error), softplus(x.value + x.error) - value);
    return Bounded::Rounded(value, error, 4.0 + std::max(0.0, -x.value));
  }
  static Bounded Phi(Bounded x) {
    const auto phi = [](double y) {
      if (std::abs(y) < 1e-3) return 0.5 + y * (1.0 / 6 + y / 24);
      return (std::expm1(y) - y) / (y * y);
    };
    return Bounded::Between(phi(x.value), phi(x.value - x.error), phi(x.value + x.error));
  }
};

}  // namespace tsallis
