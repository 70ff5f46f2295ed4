// The kernels of softmax, entmax, normmax (rows.h) and their losses. A team of threads owns a row:
// a warp where rows are short, else a block. Short rows are read once and stay in registers.
//
// Sums over a row are in double and in one order, so a row has the same bits in every launch. The
// kernels for softmax and for entmax of alpha 1.5 and 2 look for the threshold in float32 and place
// it in double; everything else is double throughout. The definitions are those of the reference
// (simplex/*.cc), which the tests compare with.
#pragma once

#include <cmath>
#include <cstdint>

#include "simplex/cuda/team.h"

namespace tsallis::cuda {
inline namespace TSALLIS_SIDE {

// ---- softmax and entmax with alpha 1.5 and 2 ----

// The weights of a row by the distances of its scores from the largest one, in float32. z = scale
// s.
struct PlainWeights {
  int power;  // 1 / (alpha - 1); 0: softmax
  double maximum, scale;
  double top;            // max z - tau; softmax: ln sum e^{z - max z}
  float inverse = 1.0f;  // softmax: 1 / sum

  static TSALLIS_DEVICE int PowerOf(double alpha) {
    return alpha == 1.0 ? 0 : alpha == 2.0 ? 1 : 2;
  }
  static TSALLIS_DEVICE double ScaleOf(double alpha, double temperature) {
    return (alpha == 1.0 ? 1.0 : alpha - 1.0) / temperature;
  }

  template <class Way, class Numbers>
  TSALLIS_DEVICE void Solve(typename Way::RowTeam& team, const Numbers& scores, int length) {
    const float m = static_cast<float>(maximum), c = static_cast<float>(scale);
    if (power == 0) {
      double sum = 0.0;
      Way::Each(length, [&](int i, int j) { sum += expf(-c * (m - scores.At(i, j))); });
      sum = team.Sum(sum);
      top = log(sum);
      inverse = static_cast<float>(1.0 / sum);
      return;
    }
    // Newton's method from above never passes the solution.
    float rough = 1;
    for (bool moves = true; moves;) {
      float sum = 0, slope = 0;
      Way::Each(length, [&](int i, int j) {
        const float x = rough - c * (m - scores.At(i, j));
        if (!(x > 0)) return;
        sum += power == 2 ? x * x : x;
        slope += power == 2 ? 2 * x : 1.0f;
      });
      double sums[2] = {sum, slope};
      team.Sum(sums);
      const float next = rough - static_cast<float>((sums[0] - 1.0) / sums[1]);
      // What is left to go is less than what float32 tells of sums.
      moves = next < rough - 1e-6f * rough;
      if (next < rough) rough = next;
    }
    top = rough;
    for (bool moves = true; moves;) {
      double sums[2] = {0.0, 0.0};
      Way::Each(length, [&](int i, int j) {
        const double x = Distance(scores.At(i, j));
        if (!(x > 0.0)) return;
        sums[0] += power == 2 ? x * x : x;
        sums[1] += power == 2 ? 2.0 * x : 1.0;
      });
      team.Sum(sums);
      const double step = (sums[0] - 1.0) / sums[1];
      top -= step;
      moves = fabs(step) > 1e-9 * top;
    }
  }
  // z - tau
  TSALLIS_DEVICE double Distance(float score) const {
    return top - scale * (maximum - static_cast<double>(score));
  }
  TSALLIS_DEVICE float Of(float score) const {
    if (power == 0) {
      const float c = static_cast<float>(scale);
      return expf(-c * (static_cast<float>(maximum) - score)) * inverse;
    }
    const float x = static_cast<float>(Distance(score));
    return x > 0 ? (power == 2 ? x * x : x) : 0.0f;
  }
  TSALLIS_DEVICE double Tau() const {
    return power == 0 ? scale * maximum + top : scale * maximum - top;
  }
  // p^{2 - alpha}; NaN stays.
  TSALLIS_DEVICE static float Slope(int power, float p) {
    if (!(p > 0)) return p;
    return power == 0 ? p : power == 1 ? 1.0f : sqrtf(p);
  }
  // What a weight adds to H of the Fenchel-Young loss.
  TSALLIS_DEVICE double Entropy(float p) const {
    if (power == 0) return -p * logf(p);
    return power == 1 ? p * (1 - p) / 2 : p * (1 - sqrtf(p)) / 0.75f;
  }
};

// ---- entmax of any alpha, normmax: double ----

// SolveLogTerms (solve.h) by a team, and the weights of its solution.
struct ExactWeights {
  double alpha;
  bool normmax;
  double maximum, temperature;
  double gamma, scale;            // of the equation
  double low, high, share = 0.0;  // the terms at both, mixed; share 0: those at low
  double low_shrink, high_shrink;
  double inverse = 1.0;  // normmax: 1 / sum q

  TSALLIS_DEVICE ExactWeights(const MapNumbers& numbers, double alpha_of_row, double most)
      : alpha(alpha_of_row),
        normmax(numbers.map == RowMap::kNormmax),
        maximum(most),
        temperature(numbers.temperature) {
    gamma = normmax ? (alpha - 1.0) / alpha : alpha - 1.0;
    scale = normmax || alpha == 1.0 ? 1.0 : alpha - 1.0;
  }

  TSALLIS_DEVICE double Depth(double score) const { return (maximum - score) / temperature; }
  TSALLIS_DEVICE double Shrink(double w) const { return gamma == 0.0 ? 1.0 : exp(-gamma * w); }
  // ln of a term at w, -inf off the support; ratio: 1 - depth scale e^{-gamma w}.
  TSALLIS_DEVICE double LogTerm(double depth, double w, double shrink, double* ratio) const {
    *ratio = 1.0;
    if (!(depth < HUGE_VAL)) return -HUGE_VAL;  // an absent entry
    if (depth == 0.0) return w;
    if (gamma == 0.0) return w - scale * depth;
    const double r = depth * scale * shrink;
    if (!(r < 1.0)) return -HUGE_VAL;
    *ratio = 1.0 - r;
    return w + log1p(-r) / gamma;
  }

  // ln sum of the terms and its derivative in w; `rough` ones are float32's.
  template <class Way, class Numbers>
  TSALLIS_DEVICE void Evaluate(typename Way::RowTeam& team, const Numbers& scores, int length,
                               double w, bool rough, double* log_sum, double* slope) const {
    const double shrink = Shrink(w);
    double sums[2] = {0.0, 0.0};
    const float factor = static_cast<float>(scale * shrink),
                power = static_cast<float>(1.0 / gamma);
    Way::Each(length, [&](int i, int j) {
      const double depth = Depth(scores.At(i, j));
      if (rough) {
        const float rest = 1.0f - static_cast<float>(depth) * factor;
        if (!(rest > 0.0f)) return;
        const float term = Exp2(power * log2f(rest));
        sums[0] += term;
        sums[1] += term / rest;
        return;
      }
      double ratio;
      const double log_term = LogTerm(depth, w, shrink, &ratio);
      if (log_term == -HUGE_VAL) return;
      const double term = exp(log_term);
      sums[0] += term;
      sums[1] += term / ratio;
    });
    team.Sum(sums);
    *log_sum = log(sums[0]) + (rough ? w : 0.0);
    *slope = sums[1] / sums[0];
  }

  template <class Way, class Numbers>
  TSALLIS_DEVICE void Solve(typename Way::RowTeam& team, const Numbers& scores, int length) {
    using Real = typename Numbers::Real;
    // What sums of so many terms tell.
    constexpr double kSolved = sizeof(Real) == 8 ? 2e-15 : 1e-12;
    const double least = -log(static_cast<double>(length)) * (1.0 + 1e-15) - 1e-15;
    double w = least, log_sum, slope;
    // float32 goes most of the way where its powers tell enough.
    if (sizeof(Real) < 8 && gamma >= 0.02 && gamma <= 1.0) {
      for (int step = 0; step < 30; ++step) {
        Evaluate<Way>(team, scores, length, w, true, &log_sum, &slope);
        const double next = w - log_sum / slope;
        if (!(next > least && next < 0.0)) break;
        w = next;
        if (fabs(log_sum) < 1e-4) break;
      }
    }
    low = least;
    high = 0.0;
    double before = HUGE_VAL;
    for (;;) {
      Evaluate<Way>(team, scores, length, w, false, &log_sum, &slope);
      if (fabs(log_sum) <= kSolved * fmax(1.0, fabs(w))) {
        low = high = w;
        break;
      }
      if (log_sum < 0.0) {
        low = fmax(low, w);
      } else {
        high = fmin(high, w);
      }
      const double width = high - low, middle = low + 0.5 * width;
      if (!(middle > low && middle < high)) break;
      double next = w - log_sum / slope;
      // Newton where it stays inside and the bracket keeps shrinking, else bisection.
      if (!(next > low && next < high) || width > 0.5 * before) next = middle;
      before = width;
      w = next;
    }
    low_shrink = Shrink(low);
    high_shrink = Shrink(high);
    if (low < high) {
      double high_sum;
      Evaluate<Way>(team, scores, length, low, false, &log_sum, &slope);
      Evaluate<Way>(team, scores, length, high, false, &high_sum, &slope);
      const double below = exp(log_sum), above = exp(high_sum);
      share = above > below ? fmin(fmax((1.0 - below) / (above - below), 0.0), 1.0) : 0.0;
    }
    if (!normmax) return;
    double sum = 0.0;
    Way::Each(length, [&](int i, int j) { sum += Of(scores.At(i, j)); });
    inverse = 1.0 / team.Sum(sum);
  }
  TSALLIS_DEVICE double W() const { return share < 0.5 ? low : high; }
  TSALLIS_DEVICE double Of(double score) const {
    const double depth = Depth(score);
    double ratio;
    double log_term = LogTerm(depth, low, low_shrink, &ratio);
    if (share > 0.0) {
      const double above = LogTerm(depth, high, high_shrink, &ratio);
      if (above != log_term) log_term = log((1.0 - share) * exp(log_term) + share * exp(above));
    }
    return normmax ? exp((log_term - W()) / alpha) * inverse : exp(log_term);
  }
  TSALLIS_DEVICE double Tau() const {
    const double offset = maximum / temperature;
    if (normmax) return offset - exp(gamma * W());
    return alpha == 1.0 ? offset - W() : gamma * offset - exp(gamma * W());
  }
};

// ---- forward ---------------------------------------------------------------------------------

// Calls found(weights) with those of a row that has some; else empty(broken).
template <class Way, bool kPlain, class Numbers, class Found, class Empty>
TSALLIS_DEVICE void SolveRow(const MapNumbers& numbers, std::int64_t row, int length,
                             typename Way::RowTeam& team, const Numbers& scores, const Found& found,
                             const Empty& empty) {
  const double maximum = MaximumOf<Way>(team, scores, length);
  if (!(maximum > -HUGE_VAL)) return empty(maximum != maximum);
  const double alpha = numbers.AlphaOf(row);
  if constexpr (kPlain) {
    PlainWeights weights{PlainWeights::PowerOf(alpha), maximum,
                         PlainWeights::ScaleOf(alpha, numbers.temperature), 0.0};
    weights.Solve<Way>(team, scores, length);
    found(weights);
  } else {
    if (alpha != alpha) return empty(true);
    ExactWeights weights(numbers, alpha, maximum);
    weights.Solve<Way>(team, scores, length);
    found(weights);
  }
}

template <class Type, class Way, bool kPlain>
TSALLIS_KERNEL(Way::kBlockThreads)
RowsKernel(const RowsCall<Type> call) {
  const std::int64_t row = Way::Row();
  if (row >= call.rows) return;
  typename Way::RowTeam team;
  const typename Way::template Numbers<Type> scores(call.scores.Row(row), call.length);
  SolveRow<Way, kPlain>(
      call.numbers, row, call.length, team, scores,
      [&](const auto& weights) {
        WriteRow<Way>(call, row, team, weights.Tau(),
                      [&](int i, int j) { return weights.Of(scores.At(i, j)); });
      },
      [&](bool broken) { WriteEmpty<Way>(call, row, broken); });
}

// ---- backward --------------------------------------------------------------------------------

// Softmax, and entmax with alpha 1.5 and 2: ds = u (dp - <u, dp> / sum u), u = p^{2 - alpha}.
template <class Type, class Way>
TSALLIS_KERNEL(Way::kBlockThreads)
PlainGradientKernel(const RowsCall<Type> call) {
  const std::int64_t row = Way::Row();
  if (row >= call.rows) return;
  typename Way::RowTeam team;
  const typename Way::template Numbers<Type> p(call.probabilities.Row(row), call.length),
      dp(call.d_probabilities.Row(row), call.length);
  const int power = PlainWeights::PowerOf(call.numbers.AlphaOf(row));
  double sums[2] = {0.0, 0.0};
  Way::Each(call.length, [&](int i, int j) {
    const double u = PlainWeights::Slope(power, p.At(i, j));
    sums[0] += u;
    // Off the support a gradient of NaN means nothing.
    if (u > 0.0) sums[1] += u * static_cast<double>(dp.At(i, j));
  });
  team.Sum(sums);
  if (!(sums[0] > 0.0)) return WriteNoGradient<Way>(call, row, sums[0] != sums[0]);
  const double mean = sums[1] / sums[0];
  WriteGradient<Way>(call, row, [&](int i, int j) {
    const double u = PlainWeights::Slope(power, p.At(i, j));
    return u > 0.0 ? u * (static_cast<double>(dp.At(i, j)) - mean) : 0.0;
  });
}

// value e^{log_factor} without a factor that overflows on the way; NaN stays NaN.
TSALLIS_DEVICE double ScaledBy(double value, double log_factor) {
  constexpr double kLogLargest = 709.0;
  if (fabs(log_factor) < kLogLargest) return value * exp(log_factor);
  if (value == 0.0 || value != value) return value;
  return copysign(exp(fmin(log(fabs(value)) + log_factor, kLogLargest)), value);
}

// (e^x - 1 - x) / x^2, without cancellation.
TSALLIS_DEVICE double Phi(double x) {
  if (fabs(x) > 0.5) return (expm1(x) - x) / (x * x);
  double term = 0.5, sum = 0.5;
  for (int i = 3; i < 16; ++i) {
    term *= x / i;
    sum += term;
  }
  return sum;
}

// The gradient in alpha of entmax (entmax.cc has both forms). p_of, dp_of: (i, j).
template <class Way, class P, class Dp>
TSALLIS_DEVICE double AlphaGradient(typename Way::RowTeam& team, double alpha, int length,
                                    const P& p_of, const Dp& dp_of) {
  const double eps = alpha - 1.0, power = 2.0 - alpha;
  if (eps <= 0.5) {
    double sums[3] = {0.0, 0.0, 0.0};  // <p, R>, <p, L>, sum p e^{-eps L}
    Way::Each(length, [&](int i, int j) {
      const double p = p_of(i, j);
      if (!(p > 0.0)) return;
      const double l = log(p);
      sums[0] += p * l * l * Phi(-eps * l);
      sums[1] += p * l;
      sums[2] += p * exp(-eps * l);
    });
    team.Sum(sums);
    double out = 0.0;
    Way::Each(length, [&](int i, int j) {
      const double p = p_of(i, j);
      if (!(p > 0.0)) return;
      const double l = log(p), r = l * l * Phi(-eps * l);
      out += dp_of(i, j) * p * ((sums[0] - r) - eps * (l * sums[0] - sums[1] * r));
    });
    out = team.Sum(out);
    return sums[2] == 0.0 ? 0.0 : out / sums[2];
  }
  double largest = -HUGE_VAL;
  Way::Each(length, [&](int i, int j) {
    const double p = p_of(i, j);
    if (p > 0.0) largest = fmax(largest, power * log(p));
  });
  largest = team.Max(largest);
  double sums[2] = {0.0, 0.0};  // <p, L>, sum u
  Way::Each(length, [&](int i, int j) {
    const double p = p_of(i, j);
    if (!(p > 0.0)) return;
    sums[0] += p * log(p);
    sums[1] += exp(power * log(p) - largest);
  });
  team.Sum(sums);
  double out = 0.0;
  Way::Each(length, [&](int i, int j) {
    const double p = p_of(i, j);
    if (!(p > 0.0)) return;
    const double l = log(p), u = exp(power * l - largest) / sums[1];
    out += dp_of(i, j) * ((p - u) / eps - (p * l - u * sums[0])) / eps;
  });
  return team.Sum(out);
}

// Writes the gradient of entmax of any alpha. Where alpha > 2, u = p^{2 - alpha} explodes as p ->
// 0: so dp is measured from that of the entry with the largest u, whose own gradient is minus the
// sum of the others' (entmax.cc).
template <class Way, class Type, class P, class Dp>
TSALLIS_DEVICE void EntmaxGradient(const RowsCall<Type>& call, std::int64_t row,
                                   typename Way::RowTeam& team, double alpha, const P& p_of,
                                   const Dp& dp_of) {
  const double power = 2.0 - alpha;
  // The entry with the largest u: its weight, then its place.
  double most = -HUGE_VAL;
  Way::Each(call.length, [&](int i, int j) {
    const double p = p_of(i, j);
    if (p != p) {
      most = p;
    } else if (p > 0.0 && most == most) {
      most = fmax(most, power < 0.0 ? -p : p);
    }
  });
  most = team.Max(most);
  if (!(most > -HUGE_VAL)) return WriteNoGradient<Way>(call, row, most != most);
  const double p_top = fabs(most), log_top = power * log(p_top);
  double place = HUGE_VAL;
  Way::Each(call.length, [&](int i, int j) {
    if (p_of(i, j) == p_top) place = fmin(place, static_cast<double>(j));
  });
  const int top = static_cast<int>(team.Min(place));
  double dp_top = 0.0;
  Way::Each(call.length, [&](int i, int j) {
    if (j == top) dp_top = dp_of(i, j);
  });
  dp_top = team.Sum(dp_top);
  double sums[2] = {0.0, 0.0};
  Way::Each(call.length, [&](int i, int j) {
    const double p = p_of(i, j);
    if (j == top || !(p > 0.0)) return;
    const double u = exp(power * log(p) - log_top);
    sums[0] += u;
    sums[1] += u * (dp_of(i, j) - dp_top);
  });
  team.Sum(sums);
  const double mean = sums[1] / (1.0 + sums[0]);
  const auto gradient = [&](int i, int j) {
    const double p = p_of(i, j);
    return p > 0.0 ? ScaledBy((dp_of(i, j) - dp_top) - mean, power * log(p)) : 0.0;
  };
  double others = 0.0;
  Way::Each(call.length, [&](int i, int j) {
    if (j != top) others += gradient(i, j);
  });
  // dp_top - dp_top is NaN exactly if dp_top is NaN or infinite: then the whole support is.
  const double of_top = -team.Sum(others) + (dp_top - dp_top);
  if (call.d_alpha != nullptr) {
    const double d_alpha = AlphaGradient<Way>(team, alpha, call.length, p_of, dp_of);
    if (team.Rank() == 0) StoreDevice(call.d_alpha + row, d_alpha);
  }
  WriteGradient<Way>(call, row, [&](int i, int j) { return j == top ? of_top : gradient(i, j); });
}

// Writes the gradient of normmax (normmax.cc has the formula).
template <class Way, class Type, class P, class Dp>
TSALLIS_DEVICE void NormmaxGradient(const RowsCall<Type>& call, std::int64_t row,
                                    typename Way::RowTeam& team, double alpha, const P& p_of,
                                    const Dp& dp_of) {
  const double power = 2.0 - alpha;
  double largest = 0.0, mean = 0.0;
  Way::Each(call.length, [&](int i, int j) {
    const double p = p_of(i, j);
    largest = largest != largest || largest > p ? largest : p;
    if (p > 0.0) mean += p * dp_of(i, j);
  });
  largest = team.Max(largest);
  mean = team.Sum(mean);
  if (!(largest > 0.0)) return WriteNoGradient<Way>(call, row, largest != largest);
  double sums[2] = {0.0, 0.0};  // norm, dot
  Way::Each(call.length, [&](int i, int j) {
    const double p = p_of(i, j);
    if (!(p > 0.0)) return;
    sums[0] += pow(p / largest, alpha);
    sums[1] += pow(p / largest, power) * (dp_of(i, j) - mean);
  });
  team.Sum(sums);
  const double scale = pow(sums[0], (alpha - 1.0) / alpha) * largest / (alpha - 1.0);
  WriteGradient<Way>(call, row, [&](int i, int j) {
    const double p = p_of(i, j);
    if (!(p > 0.0)) return 0.0;
    return scale * (pow(p / largest, power) * (dp_of(i, j) - mean) - p * sums[1]);
  });
}

template <class Type, class Way>
TSALLIS_KERNEL(Way::kBlockThreads)
ExactGradientKernel(const RowsCall<Type> call) {
  const std::int64_t row = Way::Row();
  if (row >= call.rows) return;
  typename Way::RowTeam team;
  const typename Way::template Numbers<Type> dp(call.d_probabilities.Row(row), call.length);
  const auto dp_of = [&](int i, int j) { return static_cast<double>(dp.At(i, j)); };
  const double alpha = call.numbers.AlphaOf(row);
  const auto write = [&](const auto& p_of) {
    if (call.numbers.map == RowMap::kNormmax) {
      NormmaxGradient<Way>(call, row, team, alpha, p_of, dp_of);
    } else {
      EntmaxGradient<Way>(call, row, team, alpha, p_of, dp_of);
    }
  };
  if (call.recompute) {
    const typename Way::template Numbers<Type> scores(call.scores.Row(row), call.length);
    SolveRow<Way, false>(
        call.numbers, row, call.length, team, scores,
        [&](const auto& weights) {
          write([&](int i, int j) { return weights.Of(scores.At(i, j)); });
        },
        [&](bool broken) { WriteNoGradient<Way>(call, row, broken); });
    return;
  }
  const typename Way::template Numbers<Type> p(call.probabilities.Row(row), call.length);
  write([&](int i, int j) { return static_cast<double>(p.At(i, j)); });
}

// ---- losses -------------------------------------------------------------------------------------

// What a weight of entmax adds to H: (p - p^alpha) / (alpha eps), Shannon's at alpha = 1.
TSALLIS_DEVICE double EntropyOf(double alpha, double p) {
  const double eps = alpha - 1.0, l = log(p);
  if (eps == 0.0) return -p * l;
  // Far from there p^eps may overflow for eps < 0, and p^alpha may not.
  return -(eps * l > 1.0 ? exp(alpha * l) - p : p * expm1(eps * l)) / (alpha * eps);
}

template <class Type, bool kPlain>
TSALLIS_KERNEL(LongRows::kBlockThreads)
LossKernel(const LossCall<Type> call) {
  using Way = LongRows;
  using Real = RealOf<Type>;
  const std::int64_t row = Way::Row();
  Way::RowTeam team;
  const MapNumbers& numbers = call.numbers;
  const Way::Numbers<Type> scores(call.scores.Row(row), call.length);
  const std::int64_t target = LoadDevice(call.targets + row);
  const auto finish = [&](double loss, const auto& gradient_of) {
    if (team.Rank() == 0) StoreDevice(call.losses + row, loss);
    if (call.d_scores.data == nullptr) return;
    const auto out = call.d_scores.Row(row);
    Way::Each(call.length,
              [&](int i, int j) { StoreDevice(out.At(j), static_cast<Real>(gradient_of(i, j))); });
  };
  const auto constant = [&](double loss, double gradient) {
    finish(loss, [&](int, int) { return gradient; });
  };
  if (target == call.ignore_index) return constant(0.0, 0.0);
  // The host cannot see it without waiting.
  if (target < 0 || target >= call.length) return constant(nan(""), nan(""));
  const double of_target =
      Type::ToFloat(LoadDevice(call.scores.Row(row).At(static_cast<int>(target))));
  SolveRow<Way, kPlain>(
      numbers, row, call.length, team, scores,
      [&](const auto& weights) {
        const bool absent = of_target == -HUGE_VAL;
        double sums[2] = {0.0, 0.0}, largest = 0.0;  // H, <p, s - s_target>
        Way::Each(call.length, [&](int i, int j) {
          const Real s = scores.At(i, j);
          const auto p = weights.Of(s);
          if (!(p > 0)) return;
          largest = fmax(largest, static_cast<double>(p));
          sums[1] += p * (static_cast<double>(s) - of_target);
          if constexpr (kPlain) {
            sums[0] += weights.Entropy(p);
          } else if (!weights.normmax) {
            sums[0] += EntropyOf(weights.alpha, p);
          }
        });
        team.Sum(sums);
        if constexpr (!kPlain) {
          if (weights.normmax) {  // 1 - ||p||_alpha
            largest = team.Max(largest);
            double norm = 0.0;
            Way::Each(call.length, [&](int i, int j) {
              norm += pow(weights.Of(scores.At(i, j)) / largest, weights.alpha);
            });
            sums[0] = 1.0 - largest * pow(team.Sum(norm), 1.0 / weights.alpha);
          }
        }
        const double loss = sums[0] + sums[1] / numbers.temperature;
        // A target of -inf is absent: nothing can be done about its score.
        finish(absent                       ? HUGE_VAL
               : loss > 0.0 || loss != loss ? loss
                                            : 0.0,
               [&](int i, int j) {
                 const double p = weights.Of(scores.At(i, j));
                 return (p - (j == target && !absent ? 1.0 : 0.0)) / numbers.temperature;
               });
      },
      [&](bool broken) { constant(broken ? nan("") : HUGE_VAL, broken ? nan("") : 0.0); });
}

}  // namespace TSALLIS_SIDE
}  // namespace tsallis::cuda
