// The kernels of the row maps (rows.h) and their losses. A team of threads owns a row: a warp where
// rows are short, else a block. Short rows are read once and stay in registers.
//
// Sums over a row are in double and in one order, so a row has the same bits in every launch. The
// kernels for softmax and for entmax of alpha 1.5 and 2 look for the threshold in float32 and place
// it in double; every other map is double throughout. The definitions are those of the reference
// (simplex/*.cc), which the tests compare with.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "core/cuda/device.h"
#include "simplex/cuda/cuda.h"
#include "tsallis/rows.h"

namespace tsallis::cuda {

inline namespace TSALLIS_SIDE {

struct Float64 {
  using Element = double;
  static TSALLIS_DEVICE double ToFloat(double value) { return value; }
  static TSALLIS_DEVICE double FromFloat(double value) { return value; }
};
template <class Type>
using RealOf = decltype(Type::ToFloat(typename Type::Element()));

// A matrix on the device.
template <class T>
struct Strided {
  T* data = nullptr;
  std::int64_t row_stride = 0, stride = 1;

  TSALLIS_DEVICE Strided Row(std::int64_t row) const {
    return {data + row * row_stride, 0, stride};
  }
  TSALLIS_DEVICE T* At(int j) const { return data + j * stride; }
};

// What all rows of a launch share: RowMapParams in plain data.
struct MapNumbers {
  RowMap map = RowMap::kEntmax;
  double alpha = 1.5;
  double temperature = 1.0;
  double budget = 2.0;
  double coefficients[kMostCoefficients] = {};
  int coefficient_count = 0;
  double entropy_threshold = 0.5;
  std::int64_t top_k = 0;
  double top_fraction = 0.0;
  double bias = 0.0, bias_of_log = 0.0;   // of sigmoid: b = bias + bias_of_log ln n
  const double* alpha_per_row = nullptr;  // on the device

  // NaN where a row's own is out of range; 1 for softmax.
  TSALLIS_DEVICE double AlphaOf(std::int64_t row) const {
    if (map == RowMap::kSoftmax) return 1.0;
    if (alpha_per_row == nullptr) return alpha;
    const double own = LoadDevice(alpha_per_row + row);
    return own > (map == RowMap::kNormmax ? 1.0 : 0.0) && own < HUGE_VAL ? own : nan("");
  }
};

// Of one launch; what it does not need is null.
template <class Type>
struct RowsCall {
  using Element = typename Type::Element;
  MapNumbers numbers;
  std::int64_t rows = 0;
  int length = 0;
  Strided<const Element> scores, probabilities, d_probabilities;
  Strided<Element> out;    // probabilities of the forward pass, d_scores of the backward pass
  bool recompute = false;  // backward: probabilities follow from the scores
  double* tau = nullptr;
  std::int64_t* support_size = nullptr;
  double* entropy = nullptr;
  double* d_alpha = nullptr;
};

template <class Type>
struct LossCall {
  using Element = typename Type::Element;
  MapNumbers numbers;
  std::int64_t rows = 0;
  int length = 0;
  Strided<const Element> scores;
  const std::int64_t* targets = nullptr;
  std::int64_t ignore_index = 0;
  double* losses = nullptr;
  Strided<RealOf<Type>> d_scores;  // data null: not wanted
};

// ---- a team -------------------------------------------------------------------------------------

inline constexpr int kMostWarps = 32, kMostSums = 4;
// Two rooms of numbers of each warp: while one is read, the next sum is written to the other.
inline constexpr int kRoom = kMostWarps * kMostSums;
inline constexpr std::size_t kTeamBytes = 2 * kRoom * sizeof(double);

template <int kThreads>
struct Team {
  static constexpr bool kIsWarp = kThreads == kWarp;
  static constexpr int kWarps = kThreads / kWarp;
  int rooms = 0;  // used so far

  TSALLIS_DEVICE static int Rank() { return kIsWarp ? Lane() : ThreadIndex(); }

  // Joins each of the numbers over the team. join: commutative, so that all threads have one
  // result.
  template <int kCount, class Join>
  TSALLIS_DEVICE void Reduce(double (&x)[kCount], const Join& join) {
    static_assert(kCount <= kMostSums);
    TSALLIS_UNROLL
    for (int bits = kWarp / 2; bits > 0; bits /= 2) {
      TSALLIS_UNROLL
      for (int i = 0; i < kCount; ++i) x[i] = join(x[i], ShuffleXor(x[i], bits));
    }
    if constexpr (!kIsWarp) {
      const Shared<double> room = NextRoom();
      if (Lane() == 0) {
        TSALLIS_UNROLL
        for (int i = 0; i < kCount; ++i) room.Store(i * kMostWarps + WarpIndex(), x[i]);
      }
      SyncBlock();
      TSALLIS_UNROLL
      for (int i = 0; i < kCount; ++i) {
        x[i] = room.Load(i * kMostWarps);
        TSALLIS_LOOP
        for (int w = 1; w < kWarps; ++w) x[i] = join(x[i], room.Load(i * kMostWarps + w));
      }
    }
  }
  template <int kCount>
  TSALLIS_DEVICE void Sum(double (&x)[kCount]) {
    Reduce(x, [](double a, double b) { return a + b; });
  }
  TSALLIS_DEVICE double Sum(double x) {
    double sum[1] = {x};
    Sum(sum);
    return sum[0];
  }
  // NaN if one of them is.
  TSALLIS_DEVICE double Max(double x) {
    double most[1] = {x};
    Reduce(most, [](double a, double b) { return a != a || a > b ? a : b; });
    return most[0];
  }
  TSALLIS_DEVICE double Min(double x) { return -Max(-x); }

  // The sum over the threads before this one; adds the whole team's to `total`. A block calls it.
  TSALLIS_DEVICE double Before(double x, double* total) {
    static_assert(!kIsWarp);
    double sum = x;
    TSALLIS_UNROLL
    for (int by = 1; by < kWarp; by *= 2) {
      const double below = ShuffleUp(sum, by, kWarp);
      if (Lane() >= by) sum += below;
    }
    const Shared<double> room = NextRoom();
    if (Lane() == kWarp - 1) room.Store(WarpIndex(), sum);
    const double of_lanes = ShuffleUp(sum, 1, kWarp);
    SyncBlock();
    double before = *total;
    TSALLIS_LOOP
    for (int w = 0; w < kWarps; ++w) {
      if (w == WarpIndex()) before = *total;
      *total += room.Load(w);
    }
    return Lane() > 0 ? before + of_lanes : before;
  }

 private:
  TSALLIS_DEVICE Shared<double> NextRoom() { return Shared<double>(0).From(rooms++ % 2 * kRoom); }
};

// The numbers of a row as its team sees them: thread t has those at t, t + kThreads, ... kHeld: how
// many of them it keeps in registers; 0: it reads them again each time.
template <class Type, int kThreads, int kHeld>
class RowNumbers {
 public:
  using Element = typename Type::Element;
  using Real = RealOf<Type>;

  TSALLIS_DEVICE RowNumbers(const Strided<const Element>& row, int length) : row_(row) {
    if constexpr (kHeld > 0) {
      TSALLIS_UNROLL
      for (int i = 0; i < kHeld; ++i) {
        const int j = i * kThreads + Team<kThreads>::Rank();
        held_[i] = j < length ? Type::ToFloat(LoadDevice(row.At(j))) : Real(0);
      }
    }
  }
  // The number at j = i kThreads + rank.
  TSALLIS_DEVICE Real At(int i, int j) const {
    if constexpr (kHeld > 0) {
      return held_[i];
    } else {
      return Type::ToFloat(LoadDevice(row_.At(j)));
    }
  }

 private:
  Strided<const Element> row_;
  Real held_[kHeld > 0 ? kHeld : 1];
};

// visit(i, j) for each number that a thread has of a row.
template <int kThreads, int kHeld, class Visit>
TSALLIS_DEVICE void Each(int length, const Visit& visit) {
  if constexpr (kHeld > 0) {
    TSALLIS_UNROLL
    for (int i = 0; i < kHeld; ++i) {
      const int j = i * kThreads + Team<kThreads>::Rank();
      if (j < length) visit(i, j);
    }
  } else {
    TSALLIS_LOOP
    for (int j = Team<kThreads>::Rank(); j < length; j += kThreads) visit(0, j);
  }
}

// How teams go through rows.
template <int kTeamThreads, int kInRegisters>
struct Shape {
  static constexpr int kThreads = kTeamThreads, kHeld = kInRegisters;
  // Of a block.
  static constexpr int kBlockThreads = kThreads == kWarp ? 4 * kWarp : kThreads;
  static constexpr int kRowsOfBlock = kBlockThreads / kThreads;
  using RowTeam = Team<kThreads>;
  template <class Type>
  using Numbers = RowNumbers<Type, kThreads, kHeld>;

  TSALLIS_DEVICE static std::int64_t Row() {
    return static_cast<std::int64_t>(BlockX()) * kRowsOfBlock +
           (kThreads == kWarp ? WarpIndex() : 0);
  }
  template <class Visit>
  TSALLIS_DEVICE static void Each(int length, const Visit& visit) {
    cuda::Each<kThreads, kHeld>(length, visit);
  }
};
using WarpRows = Shape<kWarp, 16>;
using BlockRows = Shape<256, 16>;
using LongRows = Shape<256, 0>;
// In double, where sixteen numbers side by side are too much code.
using WarpPasses = Shape<kWarp, 0>;

// The largest score; NaN if a score is NaN or +inf; -inf if there is none.
template <class Way, class Numbers>
TSALLIS_DEVICE double MaximumOf(typename Way::RowTeam& team, const Numbers& scores, int length) {
  double most = -HUGE_VAL;
  Way::Each(length, [&](int i, int j) {
    const double s = scores.At(i, j);
    most = most != most || most > s ? most : s;
  });
  most = team.Max(most);
  return most == HUGE_VAL ? nan("") : most;
}

// ---- softmax and entmax with alpha 1.5 and 2
// ------------------------------------------------------

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

// ---- entmax of any alpha, normmax: double
// ---------------------------------------------------------

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

// ---- forward ------------------------------------------------------------------------------------

// Writes a row without weights to speak of: NaN, or 0 for a row of -inf only.
template <class Way, class Type>
TSALLIS_DEVICE void WriteEmpty(const RowsCall<Type>& call, std::int64_t row, bool broken) {
  const auto out = call.out.Row(row);
  const auto fill = Type::FromFloat(broken ? static_cast<RealOf<Type>>(nan("")) : RealOf<Type>(0));
  Way::Each(call.length, [&](int, int j) { StoreDevice(out.At(j), fill); });
  if (Way::RowTeam::Rank() != 0) return;
  if (call.tau != nullptr) StoreDevice(call.tau + row, broken ? nan("") : -HUGE_VAL);
  if (call.support_size != nullptr) {
    StoreDevice(call.support_size + row, static_cast<std::int64_t>(broken ? -1 : 0));
  }
  if (call.entropy != nullptr) StoreDevice(call.entropy + row, broken ? nan("") : 0.0);
}

// Writes weight_of(i, j) and the statistics.
template <class Way, class Type, class Weight>
TSALLIS_DEVICE void WriteRow(const RowsCall<Type>& call, std::int64_t row,
                             typename Way::RowTeam& team, double tau, const Weight& weight_of) {
  using Real = RealOf<Type>;
  const auto out = call.out.Row(row);
  const bool describe = call.support_size != nullptr || call.entropy != nullptr;
  double sums[2] = {0.0, 0.0};
  Way::Each(call.length, [&](int i, int j) {
    const Real p = static_cast<Real>(weight_of(i, j));
    StoreDevice(out.At(j), Type::FromFloat(p));
    if (!describe || !(p > 0)) return;
    sums[0] += 1.0;
    if constexpr (sizeof(Real) == 8) {
      sums[1] -= p * log(p);
    } else {
      sums[1] -= static_cast<double>(p) * static_cast<double>(logf(p));
    }
  });
  if (describe) team.Sum(sums);
  if (team.Rank() != 0) return;
  if (call.tau != nullptr) StoreDevice(call.tau + row, tau);
  if (call.support_size != nullptr) {
    StoreDevice(call.support_size + row, static_cast<std::int64_t>(sums[0]));
  }
  if (call.entropy != nullptr) StoreDevice(call.entropy + row, sums[1]);
}

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

// ---- backward -----------------------------------------------------------------------------------

template <class Way, class Type, class Gradient>
TSALLIS_DEVICE void WriteGradient(const RowsCall<Type>& call, std::int64_t row,
                                  const Gradient& gradient_of) {
  using Real = RealOf<Type>;
  const auto out = call.out.Row(row);
  const double inverse = 1.0 / call.numbers.temperature;
  Way::Each(call.length, [&](int i, int j) {
    StoreDevice(out.At(j), Type::FromFloat(static_cast<Real>(gradient_of(i, j) * inverse)));
  });
}

// Writes a gradient that is 0, or NaN, throughout.
template <class Way, class Type>
TSALLIS_DEVICE void WriteNoGradient(const RowsCall<Type>& call, std::int64_t row, bool broken) {
  const double fill = broken ? nan("") : 0.0;
  WriteGradient<Way>(call, row, [&](int, int) { return fill; });
  if (call.d_alpha != nullptr && Way::RowTeam::Rank() == 0) StoreDevice(call.d_alpha + row, fill);
}

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

// ---- the other maps
// -------------------------------------------------------------------------------

// A row's scores, tempered: depth below the largest one, infinite if the entry is absent.
template <class Numbers>
struct TemperedRow {
  const Numbers& scores;
  double maximum, temperature, offset;

  TSALLIS_DEVICE TemperedRow(const Numbers& numbers, double most, double t)
      : scores(numbers), maximum(most), temperature(t), offset(most / t) {}
  TSALLIS_DEVICE double Depth(int i, int j) const {
    return (maximum - static_cast<double>(scores.At(i, j))) / temperature;
  }
  TSALLIS_DEVICE static bool Is(double depth) { return depth < HUGE_VAL; }
};

// beta(H) of adaptive temperature and its derivative.
TSALLIS_DEVICE double BetaOf(const MapNumbers& numbers, double entropy, double* derivative) {
  *derivative = 0.0;
  if (!(entropy > numbers.entropy_threshold)) return 1.0;
  double value = 0.0, slope = 0.0;
  TSALLIS_LOOP
  for (int i = numbers.coefficient_count - 1; i >= 0; --i) {
    slope = slope * entropy + value;
    value = value * entropy + numbers.coefficients[i];
  }
  if (!(value > 1.0)) return 1.0;
  *derivative = slope;
  return value;
}

struct Beta {
  double entropy, log_sum, beta, derivative;
};
template <class Way, class Row>
TSALLIS_DEVICE Beta FindBeta(const MapNumbers& numbers, typename Way::RowTeam& team, const Row& row,
                             int length) {
  double sums[2] = {0.0, 0.0};
  Way::Each(length, [&](int i, int j) {
    const double depth = row.Depth(i, j);
    if (!row.Is(depth)) return;
    const double e = exp(-depth);
    sums[0] += e;
    sums[1] += e * depth;
  });
  team.Sum(sums);
  Beta out{log(sums[0]) + sums[1] / sums[0], log(sums[0]), 1.0, 0.0};
  out.beta = BetaOf(numbers, out.entropy, &out.derivative);
  return out;
}

TSALLIS_DEVICE double SigmoidOf(double x) {
  const double e = exp(-fabs(x));
  return (x >= 0.0 ? 1.0 : e) / (1.0 + e);
}
// ln(1 + e^x)
TSALLIS_DEVICE double SoftplusOf(double x) { return fmax(x, 0.0) + log1p(exp(-fabs(x))); }
// (e^s - 1) e^{-top} for s <= top, top >= 0.
TSALLIS_DEVICE double SoftpickTerm(double s, double top) {
  return s < 1.0 ? expm1(s) * exp(-top) : exp(s - top) - exp(-top);
}
template <class Way, class Row>
TSALLIS_DEVICE double SoftpickSum(typename Way::RowTeam& team, const Row& row, int length,
                                  double top) {
  double sum = 0.0;
  Way::Each(length, [&](int i, int j) {
    const double depth = row.Depth(i, j);
    if (row.Is(depth)) sum += fabs(SoftpickTerm(row.offset - depth, top));
  });
  return team.Sum(sum) + kSoftpickEpsilon * exp(-top);
}

// A number's bits in the order of the numbers; both zeros are one.
TSALLIS_DEVICE std::uint64_t OrderOf(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x + 0.0f);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}
TSALLIS_DEVICE std::uint64_t OrderOf(double x) {
  const auto bits = std::bit_cast<std::uint64_t>(x + 0.0);
  constexpr std::uint64_t kSign = std::uint64_t{1} << 63;
  return (bits & kSign) != 0 ? ~bits : bits | kSign;
}

// max - tau of a budget that is less than the number of entries (budget.cc).
template <class Way, class Row>
TSALLIS_DEVICE double SolveBudget(typename Way::RowTeam& team, const Row& row, int length,
                                  double budget, double deepest) {
  double low = 0.0, high = deepest + 1.0, t = fmin(1.0, budget);
  for (;;) {
    double sums[2] = {0.0, 0.0};
    Way::Each(length, [&](int i, int j) {
      const double u = fmin(fmax(t - row.Depth(i, j), 0.0), 1.0);
      sums[0] += u;
      sums[1] += u > 0.0 && u < 1.0 ? 1.0 : 0.0;
    });
    team.Sum(sums);
    if (fabs(sums[0] - budget) <= 2e-15 * budget) return t;
    if (sums[0] < budget) {
      low = fmax(low, t);
    } else {
      high = fmin(high, t);
    }
    const double middle = low + 0.5 * (high - low);
    if (!(middle > low && middle < high)) return t;
    const double next = sums[1] > 0.0 ? t - (sums[0] - budget) / sums[1] : middle;
    if (next == t) return t;
    t = next > low && next < high ? next : middle;
  }
}

template <class Type>
TSALLIS_KERNEL(LongRows::kBlockThreads)
OtherMapsKernel(const RowsCall<Type> call) {
  using Way = LongRows;
  const std::int64_t r = Way::Row();
  const int length = call.length;
  const MapNumbers& numbers = call.numbers;
  Way::RowTeam team;
  const Way::Numbers<Type> scores(call.scores.Row(r), length);
  const double maximum = MaximumOf<Way>(team, scores, length);
  if (!(maximum > -HUGE_VAL)) return WriteEmpty<Way>(call, r, maximum != maximum);
  const TemperedRow row(scores, maximum, numbers.temperature);
  double entries[1] = {0.0}, deepest = 0.0;
  Way::Each(length, [&](int i, int j) {
    const double depth = row.Depth(i, j);
    if (!row.Is(depth)) return;
    entries[0] += 1.0;
    deepest = fmax(deepest, depth);
  });
  team.Sum(entries);
  const double n = entries[0];
  // weight(depth) of entries that are there.
  const auto write = [&](double tau, const auto& weight) {
    WriteRow<Way>(call, r, team, tau, [&](int i, int j) {
      const double depth = row.Depth(i, j);
      return row.Is(depth) ? weight(depth) : 0.0;
    });
  };
  switch (numbers.map) {
    case RowMap::kAdaptiveTemperature: {
      const Beta beta = FindBeta<Way>(numbers, team, row, length);
      double sum = 0.0;
      Way::Each(length, [&](int i, int j) { sum += exp(-beta.beta * row.Depth(i, j)); });
      const double inverse = 1.0 / team.Sum(sum);
      return write(row.offset + beta.log_sum,
                   [&](double depth) { return exp(-beta.beta * depth) * inverse; });
    }
    case RowMap::kTopKSoftmax: {
      const double share = floor(numbers.top_fraction * n);
      const double kept = fmin(n, fmax(static_cast<double>(numbers.top_k), share));
      // The order of the last score that is kept, bit by bit.
      std::uint64_t reach = 0;
      TSALLIS_LOOP
      for (int bit = 8 * static_cast<int>(sizeof(RealOf<Type>)) - 1; bit >= 0; --bit) {
        const std::uint64_t next = reach | std::uint64_t{1} << bit;
        double count = 0.0;
        Way::Each(length, [&](int i, int j) {
          count += row.Is(row.Depth(i, j)) && OrderOf(scores.At(i, j)) >= next ? 1.0 : 0.0;
        });
        if (team.Sum(count) >= kept) reach = next;
      }
      const auto term = [&](int i, int j) {
        const double depth = row.Depth(i, j);
        return row.Is(depth) && OrderOf(scores.At(i, j)) >= reach ? exp(-depth) : 0.0;
      };
      double sum = 0.0;
      Way::Each(length, [&](int i, int j) { sum += term(i, j); });
      sum = team.Sum(sum);
      return WriteRow<Way>(call, r, team, row.offset + log(sum),
                           [&](int i, int j) { return term(i, j) / sum; });
    }
    case RowMap::kBudget: {
      deepest = team.Max(deepest);
      if (numbers.budget >= n) {
        return write(row.offset - (deepest + 1.0), [](double) { return 1.0; });
      }
      const double t = SolveBudget<Way>(team, row, length, numbers.budget, deepest);
      return write(row.offset - t, [&](double depth) { return fmin(fmax(t - depth, 0.0), 1.0); });
    }
    case RowMap::kSigmoid: {
      const double bias = numbers.bias + numbers.bias_of_log * log(n);
      return write(-bias, [&](double depth) { return SigmoidOf((row.offset - depth) + bias); });
    }
    case RowMap::kSoftpick: {
      const double top = fmax(row.offset, 0.0), sum = SoftpickSum<Way>(team, row, length, top);
      return write(top + log(sum), [&](double depth) {
        return fmax(SoftpickTerm(row.offset - depth, top), 0.0) / sum;
      });
    }
    default: break;
  }
  // Stick-breaking, from the last entry to the first: what is left is exp(-used).
  const auto out = call.out.Row(r);
  double used = 0.0, sums[2] = {0.0, 0.0};
  TSALLIS_LOOP
  for (int end = length; end > 0; end -= Way::kThreads) {
    const int j = end - 1 - team.Rank();
    const double depth = j >= 0 ? row.Depth(0, j) : HUGE_VAL;
    const bool here = row.Is(depth);
    const double s = row.offset - depth;
    const double before = team.Before(here ? SoftplusOf(s) : 0.0, &used);
    if (j < 0) continue;
    const double p = here ? exp(-before - SoftplusOf(-s)) : 0.0;
    StoreDevice(out.At(j), Type::FromFloat(static_cast<RealOf<Type>>(p)));
    if (!(static_cast<RealOf<Type>>(p) > 0)) continue;
    sums[0] += 1.0;
    sums[1] -= p * log(p);
  }
  team.Sum(sums);
  if (team.Rank() != 0) return;
  if (call.tau != nullptr) StoreDevice(call.tau + r, -used);
  if (call.support_size != nullptr) {
    StoreDevice(call.support_size + r, static_cast<std::int64_t>(sums[0]));
  }
  if (call.entropy != nullptr) StoreDevice(call.entropy + r, sums[1]);
}

template <class Type>
TSALLIS_KERNEL(LongRows::kBlockThreads)
OtherGradientsKernel(const RowsCall<Type> call) {
  using Way = LongRows;
  using Real = RealOf<Type>;
  const std::int64_t r = Way::Row();
  const int length = call.length;
  const MapNumbers& numbers = call.numbers;
  Way::RowTeam team;
  const Way::Numbers<Type> scores(call.scores.Row(r), length),
      weights(call.probabilities.Row(r), length), upstream(call.d_probabilities.Row(r), length);
  double maximum = 0.0;
  // Sums of p and p dp, where p > 0; the first one is NaN if a weight is.
  const auto p_of = [&](int i, int j) { return static_cast<double>(weights.At(i, j)); };
  const auto dp_of = [&](int i, int j) {
    return weights.At(i, j) > Real(0) ? static_cast<double>(upstream.At(i, j)) : 0.0;
  };
  double sums[2] = {0.0, 0.0};
  Way::Each(length, [&](int i, int j) {
    const double p = p_of(i, j);
    sums[0] += p;
    if (p > 0.0) sums[1] += p * dp_of(i, j);
  });
  team.Sum(sums);
  if (sums[0] != sums[0]) return WriteNoGradient<Way>(call, r, true);
  const double mean = sums[1];
  switch (numbers.map) {
    case RowMap::kTopKSoftmax: {
      // Stored weights sum to 1 but for their rounding.
      const double kept_mean = mean / sums[0];
      return WriteGradient<Way>(call, r, [&](int i, int j) {
        const double p = p_of(i, j);
        return p > 0.0 ? p * (dp_of(i, j) - kept_mean) : 0.0;
      });
    }
    case RowMap::kBudget: {
      double inside[2] = {0.0, 0.0};
      Way::Each(length, [&](int i, int j) {
        const double p = p_of(i, j);
        if (!(p > 0.0 && p < 1.0)) return;
        inside[0] += dp_of(i, j);
        inside[1] += 1.0;
      });
      team.Sum(inside);
      const double middle = inside[1] > 0.0 ? inside[0] / inside[1] : 0.0;
      return WriteGradient<Way>(call, r, [&](int i, int j) {
        const double p = p_of(i, j);
        return p > 0.0 && p < 1.0 ? dp_of(i, j) - middle : 0.0;
      });
    }
    default: break;
  }
  maximum = MaximumOf<Way>(team, scores, length);
  if (!(maximum > -HUGE_VAL)) return WriteNoGradient<Way>(call, r, maximum != maximum);
  const TemperedRow row(scores, maximum, numbers.temperature);
  // gradient(i, j, depth) of entries that are there.
  const auto write = [&](const auto& gradient) {
    WriteGradient<Way>(call, r, [&](int i, int j) {
      const double depth = row.Depth(i, j);
      return row.Is(depth) ? gradient(i, j, depth) : 0.0;
    });
  };
  switch (numbers.map) {
    case RowMap::kSigmoid: {
      double n = 0.0;
      Way::Each(length, [&](int i, int j) { n += row.Is(row.Depth(i, j)) ? 1.0 : 0.0; });
      n = team.Sum(n);
      const double bias = numbers.bias + numbers.bias_of_log * log(n);
      return write([&](int i, int j, double depth) {
        // From the scores where 16 bits of a weight near 1 have lost 1 - p.
        const double p = call.recompute ? SigmoidOf((row.offset - depth) + bias) : p_of(i, j);
        return p > 0.0 ? p * (1.0 - p) * static_cast<double>(upstream.At(i, j)) : 0.0;
      });
    }
    case RowMap::kSoftpick: {
      const double top = fmax(row.offset, 0.0), sum = SoftpickSum<Way>(team, row, length, top);
      return write([&](int i, int j, double depth) {
        const double s = row.offset - depth, slope = exp(s - top) / sum;
        return s > 0.0 ? slope * (dp_of(i, j) - mean) : s < 0.0 ? slope * mean : 0.0;
      });
    }
    case RowMap::kAdaptiveTemperature: {
      const Beta beta = FindBeta<Way>(numbers, team, row, length);
      double mean_depth = 0.0;
      Way::Each(length, [&](int i, int j) {
        const double depth = row.Depth(i, j);
        if (row.Is(depth)) mean_depth += p_of(i, j) * depth;
      });
      mean_depth = team.Sum(mean_depth);
      const auto of_softmax = [&](int i, int j) {
        const double p = p_of(i, j);
        return p > 0.0 ? p * (dp_of(i, j) - mean) : 0.0;
      };
      double d_beta = 0.0;
      Way::Each(length, [&](int i, int j) {
        const double depth = row.Depth(i, j);
        if (row.Is(depth)) d_beta -= of_softmax(i, j) * (depth - mean_depth);
      });
      const double d_entropy = team.Sum(d_beta) * beta.derivative;
      return write([&](int i, int j, double depth) {
        const double own = beta.beta * of_softmax(i, j);
        if (d_entropy == 0.0) return own;
        const double log_q = -depth - beta.log_sum;
        return own - d_entropy * exp(log_q) * (log_q + beta.entropy);
      });
    }
    default: break;
  }
  // Stick-breaking, from the first entry to the last.
  const auto out = call.out.Row(r);
  double shares = 0.0;
  TSALLIS_LOOP
  for (int begin = 0; begin < length; begin += Way::kThreads) {
    const int j = begin + team.Rank();
    const double depth = j < length ? row.Depth(0, j) : HUGE_VAL;
    const bool here = row.Is(depth);
    const double share = here && p_of(0, j) > 0.0 ? p_of(0, j) * dp_of(0, j) : 0.0;
    const double before = team.Before(share, &shares);
    if (j >= length) continue;
    const double s = row.offset - depth;
    const double gradient = here ? SigmoidOf(-s) * share - SigmoidOf(s) * before : 0.0;
    StoreDevice(out.At(j), Type::FromFloat(static_cast<Real>(gradient / numbers.temperature)));
  }
}

}  // namespace TSALLIS_SIDE
}  // namespace tsallis::cuda
