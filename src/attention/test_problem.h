// Attention problems for tests: described by a few numbers, built in any dtype with their memory,
// and run on any kernel. The same values are built in double for the reference.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "attention/geometry.h"
#include "attention/kernels.h"
#include "attention/reference.h"
#include "simplex/elements.h"
#include "tsallis/attention.h"

namespace tsallis {

// What a problem looks like. Describe() names everything that differs from the defaults.
struct ProblemSpec {
  std::uint64_t seed = 1;  // of the values
  DType dtype = DType::kFloat32;
  std::int64_t batch = 1, kv_heads = 1, group = 1;  // heads = kv_heads * group
  std::int64_t q_len = 8, k_len = 8, head_dim = 16, value_dim = 16;
  double spread = 1.0;  // of q; k and v are standard normal
  RowMap map = RowMap::kEntmax;
  double alpha = 1.5;
  bool alpha_per_head = false;  // drawn from [1, 2.5]
  bool causal = false;
  Alignment alignment = Alignment::kEnd;
  std::int64_t left = -1, right = -1;
  double visible = 1.0;    // share of keys that a boolean mask leaves; 1: no mask
  std::int64_t block = 0;  // size of a random block mask's blocks; 0: none
  enum class Ragged { kNone, kRight, kLeft, kMiddle, kPacked } ragged = Ragged::kNone;
  bool length_scale = false, slopes = false, bias = false;
  int bias_broadcast = 0;            // bits: 1 batch, 2 heads, 4 queries have stride 0
  double bias_minus_infinity = 0.0;  // share
  double scale_invariant = 0.0;
  double scale = 0.0;
  // Values that are not plain normal.
  enum class Values {
    kNormal,
    kFlat,
    kTies,
    kDominant,
    kHuge,
    kTiny,
    kNaN
  } values = Values::kNormal;
  bool strided = false;  // padded rows, heads and rows exchanged

  std::string Describe() const;
};

// Draws a spec from the whole space; `most` bounds q_len and k_len.
ProblemSpec DrawSpec(std::uint64_t seed, std::int64_t most);

inline std::string ProblemSpec::Describe() const {
  const ProblemSpec plain;
  std::ostringstream text;
  const char* maps[] = {"softmax", "entmax", "normmax", "budget", "adaptive_temperature"};
  const char* raggeds[] = {"none", "right", "left", "middle", "packed"};
  const char* valueses[] = {"normal", "flat", "ties", "dominant", "huge", "tiny", "nan"};
  text << Name(dtype) << " " << maps[static_cast<int>(map)] << " alpha " << alpha
       << (alpha_per_head ? " per head" : "") << ", batch " << batch << " kv_heads " << kv_heads
       << " group " << group << " q " << q_len << " k " << k_len << " d " << head_dim << " e "
       << value_dim << ", spread " << spread << " values " << valueses[static_cast<int>(values)];
  if (causal) text << " causal";
  if (alignment == Alignment::kStart) text << " from-start";
  if (left >= 0 || right >= 0) text << " window " << left << ":" << right;
  if (visible < 1.0) text << " mask " << visible;
  if (block > 0) text << " blocks " << block;
  if (ragged != Ragged::kNone) text << " ragged " << raggeds[static_cast<int>(ragged)];
  if (length_scale) text << " length_scale";
  if (slopes) text << " slopes";
  if (bias) text << " bias(" << bias_broadcast << ", " << bias_minus_infinity << ")";
  if (scale_invariant != plain.scale_invariant) text << " scale_invariant " << scale_invariant;
  if (scale != plain.scale) text << " scale " << scale;
  if (strided) text << " strided";
  text << ", seed " << seed;
  return text.str();
}

// Draws a spec from the whole space; `most` bounds q_len and k_len.
inline ProblemSpec DrawSpec(std::uint64_t seed, std::int64_t most) {
  std::mt19937_64 engine(seed);
  const auto chance = [&](double p) {
    return std::uniform_real_distribution<double>()(engine) < p;
  };
  const auto pick = [&](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(engine);
  };
  // Short lengths and those beside a tile's edge are as likely as any.
  const auto length = [&] {
    const std::int64_t edges[] = {1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129};
    return std::min(most, chance(0.5) ? edges[pick(0, 13)] : pick(1, most));
  };
  ProblemSpec spec;
  spec.seed = seed;
  const DType dtypes[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};
  spec.dtype = dtypes[pick(0, 2)];
  spec.batch = pick(1, 3);
  spec.kv_heads = pick(1, 3);
  spec.group = chance(0.6) ? 1 : pick(2, 4);
  spec.k_len = chance(0.02) ? 0 : length();
  spec.q_len = chance(0.6) ? std::max<std::int64_t>(spec.k_len, 1) : length();
  const std::int64_t sizes[] = {1, 3, 8, 16, 17, 32, 40, 64, 80, 128};
  spec.head_dim = sizes[pick(0, 9)];
  spec.value_dim = chance(0.6) ? spec.head_dim : sizes[pick(0, 9)];
  const double spreads[] = {0.25, 1.0, 4.0};
  spec.spread = spreads[pick(0, 2)];
  spec.map = chance(0.7)   ? RowMap::kEntmax
             : chance(0.6) ? RowMap::kSoftmax
                           : RowMap::kAdaptiveTemperature;
  const double alphas[] = {1.0, 1.01, 1.25, 1.333, 1.5, 1.5, 1.5, 1.7, 2.0, 2.0, 2.5, 4.0};
  spec.alpha = alphas[pick(0, 11)];
  spec.alpha_per_head = chance(0.15);
  spec.causal = chance(0.5);
  if (chance(0.2)) spec.alignment = Alignment::kStart;
  if (chance(0.2)) spec.left = pick(0, most / 2);
  if (chance(0.1)) spec.right = pick(0, most / 2);
  if (chance(0.15)) spec.visible = chance(0.1) ? 0.0 : 0.7;
  if (chance(0.15)) spec.block = pick(1, 32);
  if (chance(0.35)) spec.ragged = static_cast<ProblemSpec::Ragged>(pick(1, 4));
  spec.length_scale = chance(0.25);
  spec.slopes = chance(0.25);
  if (chance(0.2)) {
    spec.bias = true;
    spec.bias_broadcast = static_cast<int>(pick(0, 7));
    if (chance(0.3)) spec.bias_minus_infinity = 0.3;
  }
  if (chance(0.15)) spec.scale_invariant = 10.0;
  if (chance(0.2)) spec.scale = 0.3;
  if (chance(0.3)) spec.values = static_cast<ProblemSpec::Values>(pick(1, 5));
  spec.strided = chance(0.3);
  return spec;
}

struct Results {
  // Contiguous, in the order of the arrays' axes; empty if not asked for.
  std::vector<double> out, tau, entropy, maximum;
  std::vector<std::int64_t> support_size;
  std::vector<double> dq, dk, dv, d_length_scale, d_alpha, d_slopes, d_bias;
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
      params->mask.causal = s.causal;
      params->mask.alignment = s.alignment;
      params->mask.left = s.left;
      params->mask.right = s.right;
      params->terms.scale = s.scale;
      params->terms.scale_invariant = s.scale_invariant;
      params->ranges.packed = packed;
      if (s.ragged != ProblemSpec::Ragged::kNone) {
        params->ranges.q_begin = q_begin_.data();
        params->ranges.q_end = q_end_.data();
        params->ranges.k_begin = k_begin_.data();
        params->ranges.k_end = k_end_.data();
      }
    }
    const std::int64_t batch = packed ? 1 : s.batch;
    const std::int64_t q_sizes[4] = {batch, heads, q_len_, s.head_dim};
    const std::int64_t k_sizes[4] = {batch, s.kv_heads, k_len_, s.head_dim};
    const std::int64_t v_sizes[4] = {batch, s.kv_heads, k_len_, s.value_dim};
    const std::int64_t o_sizes[4] = {batch, heads, q_len_, s.value_dim};
    Place(q_, Values(q_sizes, s.spread), q_sizes, &wide_.q, &typed_.q, s.dtype, 0);
    Place(k_, KeyValues(k_sizes), k_sizes, &wide_.k, &typed_.k, s.dtype, 0);
    Place(v_, Values(v_sizes, 1.0), v_sizes, &wide_.v, &typed_.v, s.dtype, 0);
    Place(d_out_, Values(o_sizes, 1.0), o_sizes, &wide_d_out_, &typed_d_out_, s.dtype, 0);
    if (s.length_scale) {
      const std::int64_t sizes[4] = {batch, heads, q_len_, 1};
      std::vector<double> c = Values(sizes, 0.3);
      for (double& value : c) value = 1.0 + std::abs(value);
      Place(length_scale_, c, sizes, &wide_.terms.length_scale, &typed_.terms.length_scale,
            DType::kFloat32, 0);
    }
    if (s.slopes) {
      const std::int64_t sizes[4] = {batch, heads, 1, 1};
      std::vector<double> m = Values(sizes, 0.3);
      for (double& value : m) value = std::abs(value);
      Place(slopes_, m, sizes, &wide_.terms.alibi_slopes, &typed_.terms.alibi_slopes,
            DType::kFloat32, 0);
    }
    if (s.bias) {
      const std::int64_t sizes[4] = {s.bias_broadcast & 1 ? 1 : batch,
                                     s.bias_broadcast & 2 ? 1 : heads,
                                     s.bias_broadcast & 4 ? 1 : q_len_, k_len_};
      std::vector<double> values = Values(sizes, 1.0);
      for (double& value : values) {
        if (Uniform() < s.bias_minus_infinity) value = -std::numeric_limits<double>::infinity();
      }
      Place(bias_, values, sizes, &wide_.terms.bias, &typed_.terms.bias, s.dtype, s.bias_broadcast);
    }
    if (s.alpha_per_head) {
      for (std::int64_t h = 0; h < heads; ++h) alphas_.push_back(1.0 + 1.5 * Uniform());
      wide_.alpha_per_head = typed_.alpha_per_head = alphas_.data();
    }
    DrawMasks(batch, heads);
  }
  Problem(const Problem&) = delete;
  Problem& operator=(const Problem&) = delete;

  const ProblemSpec& spec() const { return spec_; }
  const AttentionParams& params() const { return typed_; }  // in spec.dtype
  AttentionParams& params() { return typed_; }
  const AttentionParams& wide() const { return wide_; }  // the same values in float64
  AttentionParams& wide() { return wide_; }

  // On `kernel` in spec.dtype; null: the reference in double. Forward, and backward with every
  // gradient that the problem has; `saved_bytes` for the support's lists.
  Results Run(const AttentionKernel* kernel, int threads = 1, std::size_t saved_bytes = 0,
              bool backward = true) const {
    const bool in_double = kernel == nullptr;
    const AttentionParams& params = in_double ? wide_ : typed_;
    const AttentionKernel& runs = in_double ? kReferenceAttention : *kernel;
    const DType dtype = in_double ? DType::kFloat64 : spec_.dtype;
    const Context context{.threads = threads};
    const std::int64_t batch = ArrayBatch(params), heads = params.heads;
    const std::int64_t rows = batch * heads * params.q_len;
    Results results;
    // Rows outside of packed sequences keep this mark; everything else must be written.
    const double mark = params.ranges.packed ? 0.0 : 7.25;
    Buffer out(dtype, batch, heads, params.q_len, params.value_dim, mark);
    results.tau.assign(rows, mark);
    results.entropy.assign(rows, mark);
    results.maximum.assign(rows, mark);
    results.support_size.assign(rows, static_cast<std::int64_t>(mark));
    std::vector<std::byte> saved(saved_bytes + 64);
    void* aligned =
        reinterpret_cast<void*>((reinterpret_cast<std::uintptr_t>(saved.data()) + 63) / 64 * 64);
    runs.forward(context, params,
                 {.out = out.array,
                  .tau = results.tau.data(),
                  .support_size = results.support_size.data(),
                  .entropy = results.entropy.data(),
                  .maximum = results.maximum.data(),
                  .saved = saved_bytes > 0 ? aligned : nullptr,
                  .saved_bytes = saved_bytes});
    results.out = out.Read();
    if (!backward) return results;
    Buffer dq(dtype, batch, heads, params.q_len, params.head_dim, mark);
    Buffer dk(dtype, batch, params.kv_heads, params.k_len, params.head_dim, mark);
    Buffer dv(dtype, batch, params.kv_heads, params.k_len, params.value_dim, mark);
    AttentionGradients gradients;
    gradients.d_out = in_double ? wide_d_out_ : typed_d_out_;
    gradients.tau = results.tau.data();
    gradients.saved = saved_bytes > 0 ? aligned : nullptr;
    gradients.saved_bytes = saved_bytes;
    gradients.dq = dq.array;
    gradients.dk = dk.array;
    gradients.dv = dv.array;
    if (spec_.length_scale) {
      results.d_length_scale.assign(rows, mark);
      gradients.d_length_scale = results.d_length_scale.data();
    }
    if (spec_.map == RowMap::kEntmax) {
      results.d_alpha.assign(heads, 7.25);
      gradients.d_alpha = results.d_alpha.data();
    }
    if (spec_.slopes) {
      results.d_slopes.assign(batch * heads, 7.25);
      gradients.d_slopes = results.d_slopes.data();
    }
    const int broadcast = spec_.bias_broadcast;
    Buffer d_bias(in_double ? DType::kFloat64 : DType::kFloat32,
                  spec_.bias ? (broadcast & 1 ? 1 : batch) : 0, broadcast & 2 ? 1 : heads,
                  broadcast & 4 ? 1 : params.q_len, params.k_len, 7.25);
    if (spec_.bias) {
      gradients.d_bias = d_bias.array;
      for (int axis = 0; axis < 3; ++axis) {
        if (broadcast >> axis & 1) gradients.d_bias.strides[axis] = 0;
      }
    }
    runs.backward(context, params, gradients);
    results.dq = dq.Read();
    results.dk = dk.Read();
    results.dv = dv.Read();
    results.d_bias = d_bias.Read();
    return results;
  }

  // Inputs in double, contiguous or not, that finite differences may change: "q", "k", "v", "c",
  // "slopes", "bias", "alpha" (per head); those of wide().
  std::vector<double>& Wide(const std::string& name) {
    if (name == "q") return q_.wide;
    if (name == "k") return k_.wide;
    if (name == "v") return v_.wide;
    if (name == "c") return length_scale_.wide;
    if (name == "slopes") return slopes_.wide;
    if (name == "bias") return bias_.wide;
    return alphas_;
  }
  // d_out in double, in the order of Results::out (for unstrided problems).
  const std::vector<double>& d_out() const { return d_out_.wide; }

 private:
  struct Input {
    std::vector<double> wide;
    std::vector<std::byte> typed;
  };
  struct Buffer {
    Buffer(DType dtype, std::int64_t b, std::int64_t h, std::int64_t r, std::int64_t c, double mark)
        : size(b * h * r * c), memory(static_cast<std::size_t>(size) * SizeOf(dtype) + 1) {
      array = {memory.data(), dtype, {h * r * c, r * c, c, 1}};
      for (std::int64_t i = 0; i < size; ++i) StoreElement(array.data, dtype, i, mark);
    }
    std::vector<double> Read() const {
      std::vector<double> values(static_cast<std::size_t>(size));
      for (std::int64_t i = 0; i < size; ++i) {
        values[i] = LoadElement<double>(array.data, array.dtype, i);
      }
      return values;
    }
    std::int64_t size;
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
      const bool big = spec_.values == V::kHuge || (spec_.values == V::kDominant &&
                                                    i % std::max<std::int64_t>(sizes[2], 1) == 0);
      for (std::int64_t x = 0; big && x < row; ++x) key[x] *= 300.0;
      if (spec_.values == V::kNaN && i == rows / 2) {
        key[0] = std::numeric_limits<double>::quiet_NaN();
      }
    }
    return values;
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
      visible_.resize(static_cast<std::size_t>(batch * q_len_ * k_len_) + 1);
      for (std::uint8_t& keep : visible_) keep = Uniform() < spec_.visible ? 1 : 0;
      for (AttentionParams* params : {&wide_, &typed_}) {
        params->mask.visible = visible_.data();
        const std::int64_t strides[4] = {q_len_ * k_len_, 0, k_len_, 1};
        std::copy_n(strides, 4, params->mask.visible_strides);
      }
    }
    if (spec_.block > 0) {
      const std::int64_t rows = (q_len_ + spec_.block - 1) / spec_.block;
      const std::int64_t columns = (k_len_ + spec_.block - 1) / spec_.block;
      blocks_.resize(static_cast<std::size_t>(heads * rows * columns) + 1);
      for (std::uint8_t& keep : blocks_) keep = Uniform() < 0.6 ? 1 : 0;
      for (AttentionParams* params : {&wide_, &typed_}) {
        params->mask.blocks = blocks_.data();
        params->mask.block_q = params->mask.block_k = spec_.block;
        const std::int64_t strides[4] = {0, rows * columns, columns, 1};
        std::copy_n(strides, 4, params->mask.block_strides);
      }
    }
  }

  // Puts [batch, heads, rows, columns] contiguous values into memory, rounded to `dtype` in both
  // versions. Strided: rows before heads, two unused columns between rows.
  void Place(Input& input, const std::vector<double>& values, const std::int64_t (&sizes)[4],
             ConstArray4* wide, ConstArray4* typed, DType dtype, int broadcast) {
    const std::int64_t columns = sizes[3] + (spec_.strided ? 2 : 0);
    std::int64_t strides[4] = {sizes[1] * sizes[2] * columns, sizes[2] * columns, columns, 1};
    if (spec_.strided) {
      strides[1] = columns;
      strides[2] = sizes[1] * columns;
    }
    const auto count = static_cast<std::size_t>(sizes[0] * sizes[1] * sizes[2] * columns) + 1;
    input.wide.assign(count, 0.0);
    input.typed.resize(count * SizeOf(dtype));
    std::size_t from = 0;
    for (std::int64_t b = 0; b < sizes[0]; ++b) {
      for (std::int64_t h = 0; h < sizes[1]; ++h) {
        for (std::int64_t r = 0; r < sizes[2]; ++r) {
          for (std::int64_t c = 0; c < sizes[3]; ++c, ++from) {
            const std::int64_t at = Offset(strides, b, h, r, c);
            StoreElement(input.typed.data(), dtype, at, values[from]);
            input.wide[at] = LoadElement<double>(input.typed.data(), dtype, at);
          }
        }
      }
    }
    for (int axis = 0; axis < 3; ++axis) {
      if (broadcast >> axis & 1) strides[axis] = 0;
    }
    *wide = {input.wide.data(), DType::kFloat64, {strides[0], strides[1], strides[2], strides[3]}};
    *typed = {input.typed.data(), dtype, {strides[0], strides[1], strides[2], strides[3]}};
  }

  ProblemSpec spec_;
  std::mt19937_64 engine_;
  std::int64_t q_len_ = 0, k_len_ = 0;
  Input q_, k_, v_, d_out_, bias_, length_scale_, slopes_;
  ConstArray4 wide_d_out_, typed_d_out_;
  std::vector<double> alphas_;
  std::vector<std::uint8_t> visible_, blocks_;
  std::vector<std::int64_t> q_begin_, q_end_, k_begin_, k_end_;
  AttentionParams wide_, typed_;
};

}  // namespace tsallis
