// The kernels of the maps without a threshold of a power: adaptive temperature, top-k softmax, the
// k-subset budget, sigmoid, softpick, stick-breaking. A block owns a row, in double.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "simplex/cuda/team.h"

namespace tsallis::cuda {
inline namespace TSALLIS_SIDE {

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
