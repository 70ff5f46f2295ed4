// Whether a kernel's results are right: against the reference in double, with a tolerance for every
// element that follows from the arithmetic instead of from a number somebody liked.
//
// An element x of an array may be wrong by
//   2 (largest error of the plain float32 implementation in x's row)  +  b(x)
//   +  half a unit in the last place of the dtype that holds it  +  1e-28,
// where b(x) is the running error bound of that implementation (bounded.h): what float32 may do to
// x. A row's own plain error is one draw of a random quantity, so b is needed as a floor; and it is
// the worst case, a hundred times what happens on average. So that a kernel cannot use that room
// up, a second rule holds for averages: the mean of error / b(x) over an array is at most twice the
// plain implementation's, plus kMeanFloor; over many problems without that (ErrorShares). NaN must
// be where it is in both references.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "attention/testing/plain.h"
#include "attention/testing/problem.h"

namespace tsallis {

// Sums of error / bound by array, over many problems: a kernel's and the plain implementation's.
struct ErrorShares {
  struct Sums {
    double kernel = 0.0, plain = 0.0, count = 0.0;
  };
  std::map<std::string, Sums> arrays;
};

class Expectation {
 public:
  // One problem's plain error may be well below the usual; a random rounding of every
  // operation, 1.4 times as wrong, stays below this on 1 500 problems.
  static constexpr double kMeanFloor = 0.012;
  // The floor for the rarest of 50 000.
  static constexpr double kRareMeanFloor = 0.03;
  // Kernels may carry bfloat16 problems' weights with 16 significant bits instead of 24 through a
  // product (two bfloat16 numbers each); a row whose sum cancels to 0 keeps 2^-17 of its terms.
  static constexpr double kSplitWeights = 16.0;
  // Where a kernel computes the slope p^(2 - alpha) from the weight p, a weight that float32
  // flushes to 0 loses its slope too: 1e-31 at alpha = 1.2, where a threshold has digits enough for
  // such a weight. The product of this slope with other numbers is then missing from the result.
  static constexpr double kUnderflow = 1e-28;
  // Adaptive temperature: a sharpened weight p^beta that is flushed to 0 loses the gradient of the
  // entropy through p. This p may be 1e-38^(1/beta), with beta up to 2.4 (the paper's polynomial).
  static constexpr double kAdaptiveUnderflow = 1e-15;
  static constexpr std::int64_t kMeanRows = 32;  // whose elements share few errors
  // |sum p - 1| of rows, alpha <= 2: of rows.h, and what the product with v adds.
  static constexpr double kSumError = 2e-6;

  explicit Expectation(const Problem& problem, double mean_floor = kMeanFloor)
      : problem_(problem),
        mean_floor_(mean_floor),
        exact_(problem.Run(nullptr)),
        plain_(RunPlain<float>(problem)),
        bound_(RunPlain<Bounded>(problem)) {}

  const Results& exact() const { return exact_; }

  // Empty, or what is wrong first. Arrays that `results` does not have are not looked at. `shares`
  // (may be null) collects.
  std::string Check(const Results& results, ErrorShares* shares = nullptr) const {
    const ProblemSpec& s = problem_.spec();
    const std::int64_t d = s.head_dim, e = s.value_dim, k = problem_.params().k_len;
    std::string wrong;
    const auto look = [&](const char* name, const auto& member_got, const auto& member_exact,
                          const auto& plain, const auto& bound, std::int64_t columns, DType dtype) {
      if (wrong.empty() && !member_got.empty()) {
        wrong = Array(name, member_got, member_exact, plain, bound, columns, dtype, shares);
      }
    };
    if (results.overrun) return "wrote outside of its rows";
    const DType narrow = s.dtype, wide = DType::kFloat32;
    look("out", results.out, exact_.out, plain_.out, bound_.out, e, narrow);
    look("tau", results.tau, exact_.tau, plain_.tau, bound_.tau, 1, wide);
    look("entropy", results.entropy, exact_.entropy, plain_.entropy, bound_.entropy, 1, wide);
    look("maximum", results.maximum, exact_.maximum, plain_.maximum, bound_.maximum, 1, wide);
    look("dq", results.dq, exact_.dq, plain_.dq, bound_.dq, d, narrow);
    look("dk", results.dk, exact_.dk, plain_.dk, bound_.dk, d, narrow);
    look("dv", results.dv, exact_.dv, plain_.dv, bound_.dv, e, narrow);
    look("d_length_scale", results.d_length_scale, exact_.d_length_scale, plain_.d_length_scale,
         bound_.d_length_scale, 1, wide);
    look("d_alpha", results.d_alpha, exact_.d_alpha, plain_.d_alpha, bound_.d_alpha, 1, wide);
    look("d_slopes", results.d_slopes, exact_.d_slopes, plain_.d_slopes, bound_.d_slopes, 1, wide);
    look("d_sink", results.d_sink, exact_.d_sink, plain_.d_sink, bound_.d_sink, 1, wide);
    look("d_bias", results.d_bias, exact_.d_bias, plain_.d_bias, bound_.d_bias, k, wide);
    if (wrong.empty()) wrong = Supports(results);
    if (wrong.empty() && s.ones && SumsToOne(s.map) && !s.sink) wrong = Sums(results);
    return wrong;
  }

  // Share of the exact results' elements on which rounding leaves no statement at all.
  double Vacuous() const {
    std::size_t open = 0, all = 0;
    for (const auto* array : {&bound_.out, &bound_.dq, &bound_.dk, &bound_.dv}) {
      all += array->size();
      for (const Bounded& b : *array) open += std::isnan(b.value) || b.error < INFINITY ? 0 : 1;
    }
    return all > 0 ? static_cast<double>(open) / static_cast<double>(all) : 0.0;
  }

 private:
  static double HalfUnit(DType dtype, double value) {
    const double size = std::abs(value);
    switch (dtype) {
      case DType::kBFloat16: return size * 0x1p-8;
      case DType::kFloat16: return std::max(size * 0x1p-11, 0x1p-25);
      case DType::kFloat32: return size * 0x1p-24;
      case DType::kFloat64: return size * 0x1p-53;
    }
    return 0.0;
  }

  static double Round(DType dtype, double value) {
    double memory = 0.0;
    StoreElement(&memory, dtype, 0, value);
    return LoadElement<double>(&memory, dtype, 0);
  }

  static std::string At(const char* name, std::size_t i, std::int64_t columns, double got,
                        double exact, double tolerance) {
    std::ostringstream text;
    text.precision(9);
    text << name << "[" << i / columns << ", " << i % columns << "] is " << got << ", not " << exact
         << " (tolerance " << tolerance << ")";
    return text.str();
  }

  std::string Array(const char* name, const std::vector<double>& got,
                    const std::vector<double>& exact, const std::vector<float>& plain,
                    const std::vector<Bounded>& bound, std::int64_t columns, DType dtype,
                    ErrorShares* shares) const {
    if (got.size() != exact.size() || plain.size() != exact.size()) {
      return std::string(name) + " has another size";
    }
    const double underflow =
        problem_.spec().map == RowMap::kAdaptiveTemperature ? kAdaptiveUnderflow : kUnderflow;
    double ours = 0.0, theirs = 0.0;
    std::size_t counted = 0, right = 0;  // right: in plain float32 too, as rows of one key are
    for (std::size_t begin = 0; begin < exact.size(); begin += columns) {
      double row = 0.0;
      for (std::size_t i = begin; i < begin + columns; ++i) {
        const double error = std::abs(Round(dtype, plain[i]) - exact[i]);
        if (std::isfinite(error)) row = std::max(row, error);
      }
      for (std::size_t i = begin; i < begin + columns; ++i) {
        const bool sure = std::isnan(exact[i]), also = std::isnan(bound[i].value);
        if (sure || also) {
          // Where the two differ (a masked key of a row with NaN), both are right.
          if (sure && also && !std::isnan(got[i])) return At(name, i, columns, got[i], exact[i], 0);
          continue;
        }
        if (got[i] == exact[i]) {
          ++counted;  // also infinities
          right += Round(dtype, plain[i]) == exact[i] ? 1 : 0;
          continue;
        }
        const double limit = dtype == DType::kFloat16 ? 65504.0 : 3.38e38;
        if (std::abs(exact[i]) + bound[i].error >= limit) continue;
        const double slack = problem_.spec().dtype == DType::kBFloat16 ? kSplitWeights : 1.0;
        const double floor = slack * bound[i].error + std::abs(bound[i].value - exact[i]) +
                             HalfUnit(dtype, std::abs(exact[i]) + bound[i].error) + underflow;
        const double error = std::abs(got[i] - exact[i]), tolerance = 2.0 * row + floor;
        // NaN fails.
        if (!(error <= tolerance)) return At(name, i, columns, got[i], exact[i], tolerance);
        if (!(floor < INFINITY)) continue;
        ours += error / floor;
        theirs += std::abs(Round(dtype, plain[i]) - exact[i]) / floor;
        ++counted;
      }
    }
    if (shares != nullptr) {
      ErrorShares::Sums& sums = shares->arrays[name];
      sums.kernel += ours;
      sums.plain += theirs;
      sums.count += static_cast<double>(counted);
    }
    // Where all elements share one error, or a power of 63 decides, a mean says nothing.
    const ProblemSpec& s = problem_.spec();
    const bool random = s.values == ProblemSpec::Values::kNormal && columns > 1 &&
                        !(s.map == RowMap::kEntmax && s.alpha > 2.0);
    if (static_cast<std::int64_t>(counted - right) < kMeanRows * columns || !random) return {};
    const auto count = static_cast<double>(counted);
    if (ours / count <= 2.0 * theirs / count + mean_floor_) return {};
    std::ostringstream text;
    text << name << ": mean error " << ours / count << " of its bound, plain float32 has "
         << theirs / count;
    return text.str();
  }

  std::string Supports(const Results& results) const {
    for (std::size_t i = 0; i < results.support_size.size(); ++i) {
      const std::int64_t got = results.support_size[i], exact = exact_.support_size[i];
      const auto low = std::min({exact, bound_.support_low[i], plain_.support_low[i]});
      const auto high = std::max({exact, bound_.support_high[i], plain_.support_high[i]});
      if (got < low || got > high) {
        return At("support_size", i, 1, static_cast<double>(got), static_cast<double>(exact),
                  static_cast<double>(high - low));
      }
    }
    return {};
  }

  // The first column of v is 1.
  std::string Sums(const Results& results) const {
    const std::int64_t e = problem_.spec().value_dim;
    for (std::size_t i = 0; i < exact_.tau.size(); ++i) {
      const double exact = exact_.out[i * e], got = results.out[i * e];
      const std::int64_t h =
          static_cast<std::int64_t>(i) / problem_.params().q_len % problem_.params().heads;
      if (!(exact_.support_size[i] > 0) || AlphaOf(problem_.params(), h) > 2.0) continue;
      if (exact == Problem::kMark) continue;
      // Values are added up key by key; weights that are all alike round the same way.
      const double drift = 0x1p-26 * static_cast<double>(exact_.support_size[i]);
      const double tolerance = kSumError + drift + HalfUnit(problem_.spec().dtype, 1.0);
      if (!(std::abs(got - 1.0) <= tolerance)) return At("sum of p", i, 1, got, 1.0, tolerance);
    }
    return {};
  }

  const Problem& problem_;
  const double mean_floor_;
  Results exact_;
  PlainResults<float> plain_;
  PlainResults<Bounded> bound_;
};

// The name of the first array that differs in a bit; empty if none. NaN equals NaN. Arrays that
// only one of them has are not compared.
inline std::string FirstDifference(const Results& a, const Results& b) {
  std::string name;
  const auto compare = [&](const char* what, const auto& x, const auto& y) {
    if (!name.empty() || x.empty() || y.empty()) return;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const bool both_nan = x[i] != x[i] && y[i] != y[i];
      if (both_nan || std::memcmp(&x[i], &y[i], sizeof(x[i])) == 0) continue;
      std::ostringstream text;
      text.precision(17);
      text << what << "[" << i << "]: " << x[i] << " and " << y[i];
      name = text.str();
      return;
    }
  };
  compare("out", a.out, b.out);
  compare("tau", a.tau, b.tau);
  compare("support_size", a.support_size, b.support_size);
  compare("entropy", a.entropy, b.entropy);
  compare("maximum", a.maximum, b.maximum);
  compare("dq", a.dq, b.dq);
  compare("dk", a.dk, b.dk);
  compare("dv", a.dv, b.dv);
  compare("d_length_scale", a.d_length_scale, b.d_length_scale);
  compare("d_alpha", a.d_alpha, b.d_alpha);
  compare("d_slopes", a.d_slopes, b.d_slopes);
  compare("d_sink", a.d_sink, b.d_sink);
  compare("d_bias", a.d_bias, b.d_bias);
  return name;
}

}  // namespace tsallis
