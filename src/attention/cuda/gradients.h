// Shared by the kernels of the backward pass: their arguments, and sums over a row.
//
// With weights p, u = p^(2 - alpha) and dp = <d_out, v>:
//   ds = u (dp - mean),  mean = sum u dp / sum u         (Peters, Niculae and Martins 2019, eq. 13)
// and ds is the gradient of the score. Softmax has u = p. Through the terms (terms.h) ds becomes
// the gradient w of the product <q, k>: dq = sum w k, dk = sum w q, dv = sum p d_out.
#pragma once

#include <cstdint>

#include "attention/cuda/call.h"
#include "attention/cuda/dense.h"
#include "attention/cuda/sweep.h"

namespace tsallis::cuda {
inline namespace TSALLIS_SIDE {

// Rows add these to the gradients of their head: [rows] each, null: not wanted.
struct RowSums {
  double* d_alpha = nullptr;
  double* d_slope = nullptr;
  double* d_sink = nullptr;
};

struct BackwardCall {
  DeviceCall call;
  ConstArray4 d_out;
  const double* tau = nullptr;  // [rows]
  MutableArray4 dq, dk, dv;     // data may be null
  double* d_length_scale = nullptr;
  RowSums sums;
  Lists lists;
  float* w = nullptr;      // [rows, kList], beside the lists' weights
  float* means = nullptr;  // [rows]: of dense rows
  // [rows]: of dense rows, what DenseKeysKernel must know (QueryView)
  Words4* views = nullptr;
  DenseRows dense;
  // Dense rows add these to dk and dv: [array batch, kv_heads, k_len, head_dim or value_dim]
  float* dense_dk = nullptr;
  float* dense_dv = nullptr;
};

// The sums of which the gradient in alpha is made. With l = ln p and R = p l^2 phi(-eps l), eps =
// alpha - 1, phi(x) = (e^x - 1 - x) / x^2, so that R = (u - p + eps p l) / eps^2:
//   d alpha = sum dp p ((sum R - r) - eps (l sum R - r sum p l)) / sum u,  r = R / p
// which is simplex/entmax.cc's form without 1 / eps; R is p l^2 / 2 at alpha = 1.
struct AlphaSums {
  double r = 0.0, l = 0.0, dp_p = 0.0, dp_r = 0.0, dp_l = 0.0;

  // (e^x - 1 - x) / x^2, without cancellation.
  TSALLIS_DEVICE static double Phi(double x) {
    if (fabs(x) > 0.5) return (exp(x) - 1.0 - x) / (x * x);
    double term = 0.5, sum = 0.5;
    TSALLIS_LOOP
    for (int i = 3; i < 16; ++i) {
      term *= x / static_cast<double>(i);
      sum += term;
    }
    return sum;
  }
  template <bool kGeneral>
  TSALLIS_DEVICE void Add(const Head& head, float p, double dp) {
    if (!(p > 0.0f)) {
      if (p != p) r = static_cast<double>(p);
      return;
    }
    const double wide = static_cast<double>(p), log_p = log(wide);
    const double eps = static_cast<double>(head.alpha) - 1.0;
    double here = 0.5 * wide * log_p * log_p;
    if (kGeneral && head.wide) {
      here = wide * log_p * log_p * Phi(-head.eps * log_p);
    } else if (!head.softmax()) {
      here = (exp((1.0 - eps) * log_p) - wide + eps * wide * log_p) / (eps * eps);
    }
    r += here;
    l += wide * log_p;
    dp_p += dp * wide;
    dp_r += dp * here;
    dp_l += dp * wide * log_p;
  }
  // Over the lanes that differ in `bit`, 2 bit, ... below `end`.
  TSALLIS_DEVICE void Reduce(int bit, int end) {
    for (; bit < end; bit *= 2) {
      r += ShuffleXor(r, bit);
      l += ShuffleXor(l, bit);
      dp_p += ShuffleXor(dp_p, bit);
      dp_r += ShuffleXor(dp_r, bit);
      dp_l += ShuffleXor(dp_l, bit);
    }
  }
  TSALLIS_DEVICE double Gradient(const Head& head, double sum_u) const {
    const double eps = head.wide ? head.eps : static_cast<double>(head.alpha) - 1.0;
    return (r * dp_p - dp_r - eps * (r * dp_l - l * dp_r)) / sum_u;
  }
};

// A threshold in two parts: (z - high) - low is exact near it.
struct SplitTau {
  float high = 0.0f, low = 0.0f;

  TSALLIS_DEVICE static SplitTau Of(double tau) {
    const auto high = static_cast<float>(tau);
    return {high, static_cast<float>(tau - static_cast<double>(high))};
  }
  // NaN if z or tau is.
  template <bool kGeneral>
  TSALLIS_DEVICE Weight WeightOf(const Head& head, float z) const {
    if (kGeneral && head.wide) {
      const double tau = static_cast<double>(high) + static_cast<double>(low);
      const double above = head.eps * static_cast<double>(z) - tau;
      if (above <= 0.0) return {};
      // Where a score's unit in the last place is no longer small, one may seem to exceed 1.
      double log_p = log(above) / head.eps;
      if (log_p > 0.0) log_p = 0.0;
      return {static_cast<float>(exp(log_p)), static_cast<float>(exp((1.0 - head.eps) * log_p))};
    }
    const float x = (z - high) - low;
    if (head.softmax()) {
      const float p = expf(x);
      return {p, p};
    }
    if (x > 0.0f) return Weight::Of(x, head.alpha, head.power);
    return x != x ? Weight{x, x} : Weight();
  }
};

// The gradient of the product, of unit x, from that of the score. A weight of 0 has none, whatever
// else is NaN.
TSALLIS_DEVICE float ThroughTerms(const Head& head, float ds, float x, std::int64_t distance) {
  return ds == 0.0f || !head.terms.any() ? ds : ds * head.terms.Derivative(x, distance);
}

// The part of a row's sink: its u, the gradient of its score, and its part of the sums for alpha.
struct SinkPart {
  float p = 0.0f, u = 0.0f;

  template <bool kGeneral>
  TSALLIS_DEVICE static SinkPart Of(const Head& head, double tau) {
    // A row without keys has no sink.
    if (head.sink == -kInfinity || tau == -static_cast<double>(kInfinity)) return {};
    const Weight weight = SplitTau::Of(tau).WeightOf<kGeneral>(head, head.sink);
    return {weight.p, weight.u};
  }
};

// Sums over the rows of one head of a sequence, or of all sequences: one block for each, in one
// order. from: [rows]
struct SumCall {
  DeviceCall call;
  bool over_batch = false;  // to: [heads], else [array batch, heads]
  const double* from = nullptr;
  double* to = nullptr;
};

template <int kOnly = 0>
TSALLIS_KERNEL(kThreads)
SumKernel(const SumCall sum) {
  const DeviceCall& call = sum.call;
  const Shared<double> parts(0);
  double total = 0.0;
  for (int b = 0; b < call.batch; ++b) {
    const Sequence sequence = Head::SequenceOf(call, b);
    if (!sum.over_batch && sequence.array_batch != BlockZ()) continue;
    const double* rows = sum.from + (sequence.array_batch * call.heads + BlockY()) * call.q_len;
    for (std::int64_t i = sequence.q.begin + ThreadIndex(); i < sequence.q.end; i += kThreads) {
      total += LoadDevice(rows + i);
    }
  }
  parts.Store(ThreadIndex(), total);
  for (int half = kThreads / 2; half > 0; half /= 2) {
    SyncBlock();
    // Parts are written below those that are read.
    if (ThreadIndex() < half) {
      total += parts.Load(ThreadIndex() + half);
      parts.Store(ThreadIndex(), total);
    }
  }
  if (ThreadIndex() == 0) StoreDevice(sum.to + BlockZ() * call.heads + BlockY(), total);
}

}  // namespace TSALLIS_SIDE
}  // namespace tsallis::cuda
