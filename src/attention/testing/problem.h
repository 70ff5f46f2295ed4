// Attention problems for tests: described by a few numbers, built in any dtype with their memory,
// and run on any kernel. The same values are built in double for the reference.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "attention/geometry.h"
#include "attention/kernels.h"
#include "attention/reference.h"
#include "attention/testing/problem_spec.h"
#include "core/elements.h"
#include "tsallis/attention.h"

#if !defined(TSALLIS_REFERENCE_ONLY)
#include "attention/testing/emulated_kernels.h"
#endif

namespace tsallis {

#if defined(TSALLIS_REFERENCE_ONLY)
// In a program without the kernels for CPUs.
inline KernelList TestedFrom(const AttentionKernel& kernel) { return KernelsFrom(kernel); }
#endif

struct Results {
  // Contiguous, in the order of the arrays' axes; empty if not asked for.
  std::vector<double> out, tau, entropy, maximum;
  std::vector<std::int64_t> support_size;
  std::vector<double> dq, dk, dv, d_length_scale, d_alpha, d_slopes, d_sink, d_bias;
  // Bytes around or between the rows of an output were written.
  bool overrun = false;
};

// Which optional results Problem::Run asks for.
enum Wanted : unsigned {
  kWantStatistics = 1,  // but tau, which the backward pass needs
  kWantDq = 2,
  kWantDk = 4,
  kWantDv = 8,
  kWantTerms = 16,  // gradients of length_scale, slopes, sink and bias
  kWantDAlpha = 32,
  kWantAll = 63,
};

class Problem {
 public:
  explicit Problem(const ProblemSpec& spec) : spec_(spec), engine_(spec.seed * 2 + 1) {
    const ProblemSpec& s = spec_;
    const std::int64_t heads = s.kv_heads * s.group;
    const bool packed = s.ragged == ProblemSpec::Ragged::kPacked;
    DrawRanges();
    for (AttentionParams* params : {&wide_, &typed_}) {
      params->batch = s.batch;
      params->heads = heads;
      params->kv_heads = s.kv_heads;
      params->q_len = q_len_;
      params->k_len = k_len_;
      params->head_dim = s.head_dim;
      params->value_dim = s.value_dim;
      params->map = s.map;
      params->alpha = s.alpha;
      if (s.own_adaptive) params->adaptive = {.coefficients = {0.9, 0.6}, .threshold = 0.1};
      params->top_k = s.top_k;
      params->sigmoid_bias = s.sigmoid_bias;
      params->mask.causal = s.causal;
      params->mask.alignment = s.alignment;
      params->mask.left = s.left;
      params->mask.right = s.right;
      params->terms.scale = s.scale;
      params->terms.softcap = s.softcap;
      params->terms.scale_invariant = s.scale_invariant;
      params->terms.scale_invariant_alpha = s.scale_invariant_alpha;
      params->terms.scale_invariant_beta = s.scale_invariant_beta;
      params->ranges.packed = packed;
      if (s.ragged != ProblemSpec::Ragged::kNone) {
        params->ranges.q_begin = q_begin_.data();
        params->ranges.q_end = q_end_.data();
        params->ranges.k_begin = k_begin_.data();
        params->ranges.k_end = k_end_.data();
      }
    }
    const std::int64_t batch = packed ? std::min<std::int64_t>(s.batch, 1) : s.batch;
    DrawMasks(batch, heads);
    const std::int64_t q_sizes[4] = {batch, heads, q_len_, s.head_dim};
    const std::int64_t k_sizes[4] = {batch, s.kv_heads, k_len_, s.head_dim};
    const std::int64_t v_sizes[4] = {batch, s.kv_heads, k_len_, s.value_dim};
    const std::int64_t o_sizes[4] = {batch, heads, q_len_, s.value_dim};
    std::vector<double> q = Values(q_sizes, s.spread), k = KeyValues(k_sizes);
    std::vector<double> v = Values(v_sizes, 1.0), d_out = Values(o_sizes, 1.0);
    Adjust(k, v, d_out, q);
    Place(q_, q, q_sizes, &wide_.q, &typed_.q, s.dtype, 0);
    Place(k_, k, k_sizes, &wide_.k, &typed_.k, s.dtype, 0);
    Place(v_, v, v_sizes, &wide_.v, &typed_.v, s.dtype, 0);
    Place(d_out_, d_out, o_sizes, &wide_d_out_, &typed_d_out_, s.dtype, 0);
    if (s.length_scale) {
      const std::int64_t sizes[4] = {batch, heads, q_len_, 1};
      std::vector<double> c = Values(sizes, s.any_length_scale ? 1.0 : 0.3);
      for (double& value : c) {
        if (!s.any_length_scale) value = 1.0 + std::abs(value);
        if (std::abs(value) < 0.1) value = 0.0;
      }
      Place(length_scale_, c, sizes, &wide_.terms.length_scale, &typed_.terms.length_scale,
            s.term_dtype, 0);
    }
    if (s.slopes) {
      const std::int64_t sizes[4] = {batch, heads, 1, 1};
      std::vector<double> m = Values(sizes, 0.3);
      for (double& value : m) {
        value = (s.negative_slopes ? -0.1 : 1.0) * std::abs(value);
        if (s.zero_slopes && std::abs(value) < 0.2) value = 0.0;
      }
      Place(slopes_, m, sizes, &wide_.terms.alibi_slopes, &typed_.terms.alibi_slopes, s.term_dtype,
            0);
    }
    if (s.bias) {
      const std::int64_t sizes[4] = {
          s.bias_broadcast & 1 ? std::min<std::int64_t>(batch, 1) : batch,
          s.bias_broadcast & 2 ? 1 : heads,
          s.bias_broadcast & 4 ? std::min<std::int64_t>(q_len_, 1) : q_len_, k_len_};
      std::vector<double> values = Values(sizes, 1.0);
      for (double& value : values) {
        if (Uniform() < s.bias_minus_infinity) value = -std::numeric_limits<double>::infinity();
      }
      Place(bias_, values, sizes, &wide_.terms.bias, &typed_.terms.bias, s.bias_dtype,
            s.bias_broadcast);
    }
    if (s.sink) {
      std::normal_distribution<double> normal;
      for (std::int64_t h = 0; h < heads; ++h) sinks_.push_back(normal(engine_));
      wide_.terms.sink = typed_.terms.sink = sinks_.data();
    }
    if (s.alpha_per_head) {
      for (std::int64_t h = 0; h < heads; ++h) alphas_.push_back(0.5 + 2.0 * Uniform());
      wide_.alpha_per_head = typed_.alpha_per_head = alphas_.data();
    }
  }
  Problem(const Problem&) = delete;
  Problem& operator=(const Problem&) = delete;

  const ProblemSpec& spec() const { return spec_; }
  const AttentionParams& params() const { return typed_; }  // in spec.dtype
  AttentionParams& params() { return typed_; }
  const AttentionParams& wide() const { return wide_; }  // the same values in float64
  AttentionParams& wide() { return wide_; }
  const ConstArray4& wide_d_out() const { return wide_d_out_; }

  // Results hold this number before a kernel runs. Rows of packed arrays that belong to no sequence
  // must keep it.
  static constexpr double kMark = 7.25;

  // On `kernel`, and those behind it for what it leaves, in spec.dtype; null: the reference in
  // double. Forward, and backward with every gradient that the problem has; `saved_bytes` for the
  // support's lists; `wanted`: bits of Wanted.
  Results Run(const AttentionKernel* kernel, int threads = 1, std::size_t saved_bytes = 0,
              bool backward = true, unsigned wanted = kWantAll) const {
    const KernelList kernels = TestedFrom(kernel == nullptr ? kReferenceAttention : *kernel);
    return RunWith(
        /*in_double=*/kernel == nullptr, threads, saved_bytes, backward, wanted,
        [&](const auto&... arguments) { RunForward(kernels, arguments...); },
        [&](const auto&... arguments) { RunBackward(kernels, arguments...); });
  }
  // By functions with the parameters of AttentionForward and AttentionBackward.
  template <class Forward, class Backward>
  Results RunBy(const Forward& forward, const Backward& backward, bool wants_backward,
                unsigned wanted, std::size_t saved_bytes = 0) const {
    return RunWith(false, 1, saved_bytes, wants_backward, wanted, forward, backward);
  }
  // Runs as a user does: through the checks, on the kernels that are chosen.
  Results RunAsUser(int threads) const {
    return RunWith(false, threads, 0, true, kWantAll, AttentionForward, AttentionBackward);
  }

  // Inputs in double, contiguous or not, that finite differences may change: "q", "k", "v", "c",
  // "slopes", "sink", "bias", "alpha" (per head); those of wide().
  std::vector<double>& Wide(const std::string& name) {
    if (name == "q") return q_.wide;
    if (name == "k") return k_.wide;
    if (name == "v") return v_.wide;
    if (name == "c") return length_scale_.wide;
    if (name == "slopes") return slopes_.wide;
    if (name == "bias") return bias_.wide;
    if (name == "sink") return sinks_;
    return alphas_;
  }
  // d_out in double, in the order of Results::out (for unstrided problems).
  const std::vector<double>& d_out() const { return d_out_.wide; }

 private:
  template <class Forward, class Backward>
  Results RunWith(bool in_double, int threads, std::size_t saved_bytes, bool wants_backward,
                  unsigned wanted, const Forward& forward, const Backward& backward) const {
    const AttentionParams& params = in_double ? wide_ : typed_;
    const DType dtype = in_double ? DType::kFloat64 : spec_.dtype;
    const Context context{.threads = threads};
    const std::int64_t batch = ArrayBatch(params), heads = params.heads;
    const std::int64_t rows = batch * heads * params.q_len;
    Results results;
    Buffer out(dtype, batch, heads, params.q_len, params.value_dim, spec_.strided);
    results.tau.assign(rows, kMark);
    std::vector<std::byte> saved(saved_bytes + 64);
    void* aligned =
        reinterpret_cast<void*>((reinterpret_cast<std::uintptr_t>(saved.data()) + 63) / 64 * 64);
    AttentionOutputs outputs{.out = out.array,
                             .tau = results.tau.data(),
                             .saved = saved_bytes > 0 ? aligned : nullptr,
                             .saved_bytes = saved_bytes};
    if (wanted & kWantStatistics) {
      results.entropy.assign(rows, kMark);
      results.maximum.assign(rows, kMark);
      results.support_size.assign(rows, static_cast<std::int64_t>(kMark));
      outputs.support_size = results.support_size.data();
      outputs.entropy = results.entropy.data();
      outputs.maximum = results.maximum.data();
    }
    forward(context, params, outputs);
    out.Read(results.out, results.overrun);
    if (!wants_backward) return results;
    Buffer dq(dtype, batch, heads, params.q_len, params.head_dim, spec_.strided);
    Buffer dk(dtype, batch, params.kv_heads, params.k_len, params.head_dim, spec_.strided);
    Buffer dv(dtype, batch, params.kv_heads, params.k_len, params.value_dim, spec_.strided);
    AttentionGradients gradients;
    gradients.d_out = in_double ? wide_d_out_ : typed_d_out_;
    gradients.tau = results.tau.data();
    gradients.saved = outputs.saved;
    gradients.saved_bytes = saved_bytes;
    if (wanted & kWantDq) gradients.dq = dq.array;
    if (wanted & kWantDk) gradients.dk = dk.array;
    if (wanted & kWantDv) gradients.dv = dv.array;
    if (spec_.length_scale && (wanted & kWantTerms)) {
      results.d_length_scale.assign(rows, kMark);
      gradients.d_length_scale = results.d_length_scale.data();
    }
    if (spec_.map == RowMap::kEntmax && (wanted & kWantDAlpha)) {
      results.d_alpha.assign(heads, kMark);
      gradients.d_alpha = results.d_alpha.data();
    }
    if (spec_.slopes && (wanted & kWantTerms)) {
      results.d_slopes.assign(batch * heads, kMark);
      gradients.d_slopes = results.d_slopes.data();
    }
    if (spec_.sink && (wanted & kWantTerms)) {
      results.d_sink.assign(heads, kMark);
      gradients.d_sink = results.d_sink.data();
    }
    const int broadcast = spec_.bias_broadcast;
    Buffer d_bias(in_double ? DType::kFloat64 : DType::kFloat32,
                  broadcast & 1 ? std::min<std::int64_t>(batch, 1) : batch,
                  broadcast & 2 ? 1 : heads,
                  broadcast & 4 ? std::min<std::int64_t>(params.q_len, 1) : params.q_len,
                  params.k_len, false);
    const bool wants_bias = spec_.bias && (wanted & kWantTerms);
    if (wants_bias) {
      gradients.d_bias = d_bias.array;
      for (int axis = 0; axis < 3; ++axis) {
        if (broadcast >> axis & 1) gradients.d_bias.strides[axis] = 0;
      }
    }
    backward(context, params, gradients);
    if (wanted & kWantDq) dq.Read(results.dq, results.overrun);
    if (wanted & kWantDk) dk.Read(results.dk, results.overrun);
    if (wanted & kWantDv) dv.Read(results.dv, results.overrun);
    if (wants_bias) d_bias.Read(results.d_bias, results.overrun);
    return results;
  }

  struct Input {
    std::vector<double> wide;
    std::vector<std::byte> typed;
  };
  // A result with marks around it and, if strided, between its rows.
  struct Buffer {
    static constexpr std::int64_t kGuard = 32;
    Buffer(DType dtype, std::int64_t batch, std::int64_t heads, std::int64_t rows,
           std::int64_t columns, bool strided)
        : sizes{batch, heads, rows, columns} {
      const std::int64_t row = columns + (strided ? 3 : 0);
      const std::int64_t count = 2 * kGuard + batch * heads * rows * row;
      memory.resize(static_cast<std::size_t>(count) * SizeOf(dtype));
      for (std::int64_t i = 0; i < count; ++i) StoreElement(memory.data(), dtype, i, kMark);
      array = {
          memory.data() + kGuard * SizeOf(dtype), dtype, {heads * rows * row, rows * row, row, 1}};
      if (strided) {
        array.strides[1] = row;
        array.strides[2] = heads * row;
      }
    }
    // Takes what was written out of the memory; what is left must be marks.
    void Read(std::vector<double>& values, bool& overrun) {
      values.clear();
      for (std::int64_t b = 0; b < sizes[0]; ++b) {
        for (std::int64_t h = 0; h < sizes[1]; ++h) {
          for (std::int64_t r = 0; r < sizes[2]; ++r) {
            for (std::int64_t c = 0; c < sizes[3]; ++c) {
              const std::int64_t at = Offset(array.strides, b, h, r, c);
              values.push_back(LoadElement<double>(array.data, array.dtype, at));
              StoreElement(array.data, array.dtype, at, kMark);
            }
          }
        }
      }
      const auto count = static_cast<std::int64_t>(memory.size() / SizeOf(array.dtype));
      for (std::int64_t i = 0; i < count; ++i) {
        overrun |= LoadElement<double>(memory.data(), array.dtype, i) != kMark;
      }
    }
    std::int64_t sizes[4];
    std::vector<std::byte> memory;
    MutableArray4 array;
  };

  double Uniform() { return std::uniform_real_distribution<double>()(engine_); }

  std::vector<double> Values(const std::int64_t (&sizes)[4], double spread) {
    std::vector<double> values(static_cast<std::size_t>(sizes[0] * sizes[1] * sizes[2] * sizes[3]));
    std::normal_distribution<double> normal;
    for (double& value : values) value = spread * normal(engine_);
    using V = ProblemSpec::Values;
    for (double& value : values) {
      if (spec_.values == V::kTies) value = std::round(value);
      if (spec_.values == V::kTiny) value *= 1e-20;
    }
    return values;
  }

  std::vector<double> KeyValues(const std::int64_t (&sizes)[4]) {
    std::vector<double> values = Values(sizes, 1.0);
    using V = ProblemSpec::Values;
    const std::int64_t row = sizes[3], rows = sizes[0] * sizes[1] * sizes[2];
    for (std::int64_t i = 0; i < rows; ++i) {
      double* key = values.data() + i * row;
      if (spec_.values == V::kFlat) std::copy_n(values.data(), row, key);
      const std::int64_t of_head = i % std::max<std::int64_t>(sizes[2], 1);
      const bool big = spec_.values == V::kHuge || (spec_.values == V::kDominant && of_head == 0) ||
                       (spec_.values == V::kMiddle && of_head == sizes[2] / 2);
      for (std::int64_t x = 0; big && x < row; ++x) key[x] *= 300.0;
      if (spec_.values == V::kZero) std::fill_n(key, row, 0.0);
      if (spec_.values == V::kNaN && i == rows / 2) key[0] = kNaN;
      if (spec_.values == V::kInfinity && i == rows / 2) {
        key[0] = std::numeric_limits<double>::infinity();
      }
    }
    return values;
  }

  // Adjusts what depends on the ranges and masks, or on more than one array.
  void Adjust(std::vector<double>& k, std::vector<double>& v, std::vector<double>& d_out,
              std::vector<double>& q) {
    const std::int64_t d = spec_.head_dim, e = spec_.value_dim, heads = typed_.heads;
    const std::int64_t batch = ArrayBatch(typed_), keys = batch * spec_.kv_heads * k_len_;
    using V = ProblemSpec::Values;
    if (spec_.values == V::kZero) std::fill(q.begin(), q.end(), 0.0);
    if (spec_.values == V::kVast) {
      const double factor = spec_.dtype == DType::kFloat16 ? 100.0 : 1e8;
      for (double& value : q) value *= factor;
      for (double& value : k) value *= factor;
    }
    for (std::int64_t i = 0; spec_.ones && i < keys; ++i) v[i * e] = 1.0;
    if (spec_.values == V::kNaN && keys > 0) std::fill_n(v.begin() + keys / 2 * e, e, kNaN);
    const bool repeats = spec_.odd == ProblemSpec::Odd::kRepeated;
    for (std::int64_t b = 0; repeats && b < batch; ++b) {
      for (std::int64_t h = 1; h < spec_.kv_heads; ++h) {
        const std::int64_t first = b * spec_.kv_heads * k_len_, here = first + h * k_len_;
        std::copy_n(k.begin() + first * d, k_len_ * d, k.begin() + here * d);
        std::copy_n(v.begin() + first * e, k_len_ * e, v.begin() + here * e);
      }
    }
    if (!spec_.garbage || repeats) return;
    std::vector<char> q_used(batch * heads * q_len_, 0), k_used(keys, 0);
    for (std::int64_t b = 0; b < spec_.batch; ++b) {
      const Sequence sequence = Sequence::Of(typed_, b);
      for (std::int64_t h = 0; h < heads; ++h) {
        for (std::int64_t i = sequence.q.begin; i < sequence.q.end; ++i) {
          q_used[RowIndex(typed_, sequence, h, i)] = 1;
          const Span span = sequence.VisibleKeys(typed_.mask, i);
          const std::int64_t array = sequence.array_batch;
          for (std::int64_t j = span.begin; j < span.end; ++j) {
            if (IsMasked(typed_.mask, array, h, i, j)) continue;
            k_used[(array * spec_.kv_heads + KvHead(typed_, h)) * k_len_ + j] = 1;
          }
        }
      }
    }
    for (std::size_t i = 0; i < q_used.size(); ++i) {
      if (q_used[i]) continue;
      std::fill_n(q.begin() + i * d, d, kNaN);
      std::fill_n(d_out.begin() + i * e, e, kNaN);
    }
    for (std::int64_t i = 0; i < keys; ++i) {
      if (k_used[i]) continue;
      std::fill_n(k.begin() + i * d, d, kNaN);
      std::fill_n(v.begin() + i * e, e, kNaN);
    }
  }

  void DrawRanges() {
    using R = ProblemSpec::Ragged;
    q_len_ = spec_.q_len;
    k_len_ = spec_.k_len;
    if (spec_.ragged == R::kNone) return;
    const auto below = [&](std::int64_t n) {
      return std::uniform_int_distribution<std::int64_t>(0, n)(engine_);
    };
    if (spec_.ragged == R::kPacked) q_len_ = k_len_ = 0;
    for (std::int64_t b = 0; b < spec_.batch; ++b) {
      // Sequences of equal lengths on both sides are the usual case.
      std::int64_t k = below(spec_.k_len);
      std::int64_t q = spec_.q_len == spec_.k_len ? k : below(spec_.q_len);
      std::int64_t q_at = 0, k_at = 0;
      if (spec_.ragged == R::kLeft) {
        q_at = q_len_ - q;
        k_at = k_len_ - k;
      } else if (spec_.ragged == R::kMiddle) {
        q_at = below(q_len_ - q);
        k_at = below(k_len_ - k);
      } else if (spec_.ragged == R::kPacked) {
        if (spec_.gaps) q_len_ += below(3);
        if (spec_.gaps) k_len_ += below(3);
        q_at = q_len_;
        k_at = k_len_;
        q_len_ += q;
        k_len_ += k;
      }
      q_begin_.push_back(q_at);
      q_end_.push_back(q_at + q);
      k_begin_.push_back(k_at);
      k_end_.push_back(k_at + k);
    }
  }

  void DrawMasks(std::int64_t batch, std::int64_t heads) {
    if (spec_.visible < 1.0) {
      const int broadcast = spec_.mask_broadcast;
      visible_.resize(static_cast<std::size_t>(batch * heads * q_len_ * k_len_) + 1);
      // Any nonzero byte means visible.
      for (std::uint8_t& keep : visible_)
        keep = Uniform() < spec_.visible ? (Uniform() < 0.5 ? 1 : 128) : 0;
      const std::int64_t strides[4] = {broadcast & 1 ? 0 : heads * q_len_ * k_len_,
                                       broadcast & 2 ? 0 : q_len_ * k_len_,
                                       broadcast & 4 ? 0 : k_len_, 1};
      for (AttentionParams* params : {&wide_, &typed_}) {
        params->mask.visible = visible_.data();
        std::copy_n(strides, 4, params->mask.visible_strides);
      }
    }
    if (spec_.block > 0) {
      const std::int64_t block_q = spec_.block;
      const std::int64_t block_k = spec_.block_k > 0 ? spec_.block_k : spec_.block;
      const std::int64_t rows = (q_len_ + block_q - 1) / block_q;
      const std::int64_t columns = (k_len_ + block_k - 1) / block_k;
      blocks_.resize(static_cast<std::size_t>(heads * rows * columns) + 1);
      for (std::uint8_t& keep : blocks_) keep = Uniform() < 0.6 ? 1 : 0;
      for (AttentionParams* params : {&wide_, &typed_}) {
        params->mask.blocks = blocks_.data();
        params->mask.block_q = block_q;
        params->mask.block_k = block_k;
        const std::int64_t strides[4] = {0, rows * columns, columns, 1};
        std::copy_n(strides, 4, params->mask.block_strides);
      }
    }
  }

  // Puts [batch, heads, rows, columns] contiguous values into memory, rounded to `dtype` in both
  // versions. Strided: rows before heads, unused columns between rows. Memory that no axis reaches
  // is NaN, so that reading it shows.
  void Place(Input& input, const std::vector<double>& values, const std::int64_t (&sizes)[4],
             ConstArray4* wide, ConstArray4* typed, DType dtype, int broadcast) {
    const std::int64_t columns = sizes[3] + (spec_.strided ? spec_.padding : 0);
    std::int64_t strides[4] = {sizes[1] * sizes[2] * columns, sizes[2] * columns, columns, 1};
    if (spec_.strided) {
      strides[1] = columns;
      strides[2] = sizes[1] * columns;
    }
    std::int64_t start = 0;
    if (spec_.odd == ProblemSpec::Odd::kTransposed) {
      strides[2] = 1;
      strides[3] = sizes[2];
    } else if (spec_.odd == ProblemSpec::Odd::kReversed && sizes[2] > 0) {
      start = (sizes[2] - 1) * columns;
      strides[2] = -columns;
    }
    const auto count = static_cast<std::size_t>(sizes[0] * sizes[1] * sizes[2] * columns) + 1;
    input.wide.assign(count, kNaN);
    input.typed.resize(count * SizeOf(dtype));
    for (std::size_t i = 0; i < count; ++i) StoreElement(input.typed.data(), dtype, i, kNaN);
    std::size_t from = 0;
    for (std::int64_t b = 0; b < sizes[0]; ++b) {
      for (std::int64_t h = 0; h < sizes[1]; ++h) {
        for (std::int64_t r = 0; r < sizes[2]; ++r) {
          for (std::int64_t c = 0; c < sizes[3]; ++c, ++from) {
            const std::int64_t at = start + Offset(strides, b, h, r, c);
            StoreElement(input.typed.data(), dtype, at, values[from]);
            input.wide[at] = LoadElement<double>(input.typed.data(), dtype, at);
          }
        }
      }
    }
    for (int axis = 0; axis < 3; ++axis) {
      if (broadcast >> axis & 1) strides[axis] = 0;
    }
    if (spec_.odd == ProblemSpec::Odd::kRepeated && (wide == &wide_.k || wide == &wide_.v)) {
      strides[1] = 0;
    }
    const std::byte* typed_start = input.typed.data() + start * SizeOf(dtype);
    *wide = {input.wide.data() + start,
             DType::kFloat64,
             {strides[0], strides[1], strides[2], strides[3]}};
    *typed = {typed_start, dtype, {strides[0], strides[1], strides[2], strides[3]}};
  }

  static constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

  ProblemSpec spec_;
  std::mt19937_64 engine_;
  std::int64_t q_len_ = 0, k_len_ = 0;
  Input q_, k_, v_, d_out_, bias_, length_scale_, slopes_;
  ConstArray4 wide_d_out_, typed_d_out_;
  std::vector<double> alphas_, sinks_;
  std::vector<std::uint8_t> visible_, blocks_;
  std::vector<std::int64_t> q_begin_, q_end_, k_begin_, k_end_;
  AttentionParams wide_, typed_;
};

// Why `kernel` does not take the problem, forward; empty: it does.
inline std::string RefusalOf(const AttentionKernel& kernel, const Problem& problem,
                             Pass pass = Pass::kForward) {
  return Refusal(kernel.serves, problem.params(), FeaturesOf(problem.params()), pass);
}

}  // namespace tsallis
