// The loops over heads and rows of plain.h.
#pragma once

#include "attention/testing/plain.h"

namespace tsallis {

template <typename T>
PlainResults<T> RunPlain(const Problem& problem) {
  using A = Arithmetic<T>;
  const AttentionParams& params = problem.wide();
  const AttentionTerms& terms = params.terms;
  const ProblemSpec& spec = problem.spec();
  const std::int64_t batch = ArrayBatch(params), heads = params.heads, d = params.head_dim,
                     e = params.value_dim, rows = batch * heads * params.q_len,
                     keys = batch * params.kv_heads * params.k_len;
  const T mark = A::Of(Problem::kMark), zero = A::Of(0.0);
  // Unless packed, rows outside of every sequence get zeros.
  const T outside = params.ranges.packed ? mark : zero;
  PlainResults<T> results;
  results.out.assign(rows * e, outside);
  results.tau.assign(rows, params.ranges.packed ? mark : A::Of(-INFINITY));
  results.maximum = results.tau;
  results.entropy.assign(rows, outside);
  results.support_low.assign(rows, static_cast<std::int64_t>(A::Value(outside)));
  results.support_high = results.support_low;
  results.dq.assign(rows * d, outside);
  results.dk.assign(keys * d, outside);
  results.dv.assign(keys * e, outside);
  if (spec.length_scale) results.d_length_scale.assign(rows, outside);
  if (params.map == RowMap::kEntmax) results.d_alpha.assign(heads, zero);
  if (spec.slopes) results.d_slopes.assign(batch * heads, zero);
  std::int64_t bias_strides[4] = {0, 0, 0, 1};
  if (spec.sink) results.d_sink.assign(heads, zero);
  if (spec.bias) {
    const int shared = spec.bias_broadcast;
    const std::int64_t sizes[3] = {
        shared & 1 ? std::min<std::int64_t>(batch, 1) : batch, shared & 2 ? 1 : heads,
        shared & 4 ? std::min<std::int64_t>(params.q_len, 1) : params.q_len};
    std::int64_t stride = params.k_len;
    for (int axis = 2; axis >= 0; --axis) {
      bias_strides[axis] = shared >> axis & 1 ? 0 : stride;
      stride *= sizes[axis];
    }
    results.d_bias.assign(stride, zero);
  }

  const auto load = [](const ConstArray4& array, std::int64_t at) {
    return A::Of(LoadElement<double>(array.data, array.dtype, at));
  };
  const auto dot = [&](const ConstArray4& x, std::int64_t x0, const ConstArray4& y, std::int64_t y0,
                       std::int64_t n) {
    T sum = zero;
    for (std::int64_t i = 0; i < n; ++i) {
      sum = sum + load(x, x0 + i * x.strides[3]) * load(y, y0 + i * y.strides[3]);
    }
    return sum;
  };
  const ConstArray4& d_out = problem.wide_d_out();
  PlainRow<T> row;
  std::vector<T> ds, derivatives;  // of scores in c scale <q, k>
  for (std::int64_t s = 0; s < params.batch; ++s) {
    const Sequence sequence = Sequence::Of(params, s);
    const std::int64_t b = sequence.array_batch;
    for (std::int64_t kv = 0; kv < params.kv_heads; ++kv) {
      const std::int64_t first = (b * params.kv_heads + kv) * params.k_len;
      std::fill(results.dk.begin() + (first + sequence.k.begin) * d,
                results.dk.begin() + (first + sequence.k.end) * d, zero);
      std::fill(results.dv.begin() + (first + sequence.k.begin) * e,
                results.dv.begin() + (first + sequence.k.end) * e, zero);
    }
    for (std::int64_t h = 0; h < heads; ++h) {
      const std::int64_t kv = KvHead(params, h);
      const std::int64_t key0 = (b * params.kv_heads + kv) * params.k_len;
      const RowSpec map = SpecOfHead(params, h);
      const T scale = A::Of(ScaleOf(params));
      const T slope = terms.alibi_slopes.data != nullptr
                          ? load(terms.alibi_slopes, Offset(terms.alibi_slopes.strides, b, h, 0))
                          : zero;
      for (std::int64_t i = sequence.q.begin; i < sequence.q.end; ++i) {
        const std::int64_t index = RowIndex(params, sequence, h, i);
        const std::int64_t q0 = Offset(params.q.strides, b, h, i);
        const T c = terms.length_scale.data != nullptr
                        ? load(terms.length_scale, Offset(terms.length_scale.strides, b, h, i))
                        : A::Of(1.0);
        row.keys.clear();
        row.product.clear();
        row.scores.clear();
        derivatives.clear();
        const Span span = sequence.VisibleKeys(params.mask, i);
        for (std::int64_t j = span.begin; j < span.end; ++j) {
          if (IsMasked(params.mask, b, h, i, j)) continue;
          T bias = zero;
          if (terms.bias.data != nullptr) {
            bias = load(terms.bias, Offset(terms.bias.strides, b, h, i, j));
            if (A::Value(bias) == -INFINITY) continue;
          }
          const std::int64_t distance = std::abs(sequence.Distance(i, j));
          const DistanceFactor factor = DistanceFactor::At(DistanceLaw::Of(terms), distance);
          const T product =
              scale * dot(params.q, q0, params.k, Offset(params.k.strides, b, kv, j), d);
          T score = product;
          if (terms.length_scale.data != nullptr) score = c * score;
          T derivative = A::Of(factor.a);
          if (terms.softcap != 0.0) {
            const T cap = A::Of(terms.softcap), t = A::Tanh(score / cap);
            score = cap * t;
            derivative = derivative * (A::Of(1.0) - t * t);
          }
          if (terms.scale_invariant != 0.0) score = A::Of(factor.m) + A::Of(factor.a) * score;
          if (terms.alibi_slopes.data != nullptr) {
            score = score - slope * A::Of(static_cast<double>(distance));
          }
          if (terms.bias.data != nullptr) score = score + bias;
          row.keys.push_back(j);
          row.product.push_back(product);
          row.scores.push_back(score);
          derivatives.push_back(derivative);
        }
        row.Map(map, terms.sink != nullptr ? terms.sink + h : nullptr);
        const std::size_t n = row.keys.size();
        results.tau[index] = row.tau;
        results.entropy[index] = row.entropy;
        results.maximum[index] = row.maximum;
        results.support_low[index] = row.support_low;
        results.support_high[index] = row.support_high;
        std::fill_n(results.out.begin() + index * e, e, zero);
        ds.assign(row.scores.size(), zero);
        const std::int64_t o0 = Offset(d_out.strides, b, h, i);
        for (std::size_t j = 0; j < n; ++j) {
          const double most = A::Value(row.p[j]) + A::Error(row.p[j]);
          if (most == 0.0) continue;
          const std::int64_t v0 = Offset(params.v.strides, b, kv, row.keys[j]);
          for (std::int64_t x = 0; x < e; ++x) {
            T& out = results.out[index * e + x];
            out = out + row.p[j] * load(params.v, v0 + x * params.v.strides[3]);
            T& dv = results.dv[(key0 + row.keys[j]) * e + x];
            dv = dv + row.p[j] * load(d_out, o0 + x * d_out.strides[3]);
          }
          ds[j] = dot(d_out, o0, params.v, v0, e);
        }
        T d_alpha = row.Backward(map, ds);
        if (ds.size() > n) results.d_sink[h] = results.d_sink[h] + ds[n];
        if (!results.d_alpha.empty()) results.d_alpha[h] = results.d_alpha[h] + d_alpha;
        std::fill_n(results.dq.begin() + index * d, d, zero);
        T d_c = zero;
        for (std::size_t j = 0; j < n; ++j) {
          if (A::Value(ds[j]) == 0.0 && A::Error(ds[j]) == 0.0) continue;
          if (A::Value(row.scores[j]) == -INFINITY) continue;
          const std::int64_t key = row.keys[j], k0 = Offset(params.k.strides, b, kv, key);
          T base = ds[j];
          if (terms.scale_invariant != 0.0 || terms.softcap != 0.0) base = base * derivatives[j];
          if (A::Value(base) != 0.0 || A::Error(base) != 0.0) {
            d_c = d_c + base * row.product[j];
            const T factor = base * (terms.length_scale.data != nullptr ? c * scale : scale);
            for (std::int64_t x = 0; x < d; ++x) {
              T& dq = results.dq[index * d + x];
              dq = dq + factor * load(params.k, k0 + x * params.k.strides[3]);
              T& dk = results.dk[(key0 + key) * d + x];
              dk = dk + factor * load(params.q, q0 + x * params.q.strides[3]);
            }
          }
          if (spec.slopes) {
            T& sum = results.d_slopes[b * heads + h];
            const std::int64_t distance = std::abs(sequence.Distance(i, key));
            sum = sum - ds[j] * A::Of(static_cast<double>(distance));
          }
          if (spec.bias) {
            T& sum = results.d_bias[Offset(bias_strides, b, h, i, key)];
            sum = sum + ds[j];
          }
        }
        if (spec.length_scale) results.d_length_scale[index] = d_c;
      }
    }
  }
  return results;
}

}  // namespace tsallis
