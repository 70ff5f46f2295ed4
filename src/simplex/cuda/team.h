// What the kernels of the row maps share: a call in plain data, the team of threads that owns a
// row, its sums, and how it writes a row.
#pragma once

#include <cmath>
#include <cstdint>

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

// What every launch has.
template <class Type>
struct ScoresCall {
  using Element = typename Type::Element;
  MapNumbers numbers;
  std::int64_t rows = 0;
  int length = 0;
  Strided<const Element> scores;
};

// Of one launch; what it does not need is null.
template <class Type>
struct RowsCall : ScoresCall<Type> {
  using Element = typename Type::Element;
  Strided<const Element> probabilities, d_probabilities;
  Strided<Element> out;    // probabilities of the forward pass, d_scores of the backward pass
  bool recompute = false;  // backward: probabilities follow from the scores
  double* tau = nullptr;
  std::int64_t* support_size = nullptr;
  double* entropy = nullptr;
  double* d_alpha = nullptr;
};

template <class Type>
struct LossCall : ScoresCall<Type> {
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

// ---- results ----

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

}  // namespace TSALLIS_SIDE
}  // namespace tsallis::cuda
