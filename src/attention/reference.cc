#include "attention/reference.h"

#include "attention/kernels.h"
#include "attention/terms.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/elements.h"
#include "core/parallel.h"

namespace tsallis {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// A row of an array as doubles. values: [columns].
void LoadColumns(const HeadRows& rows, std::int64_t row, std::int64_t columns, double* values) {
  const void* from = rows.At(row);
  for (std::int64_t x = 0; x < columns; ++x) {
    values[x] = LoadElement<double>(from, rows.dtype, x * rows.step);
  }
}

void StoreColumns(const double* values, const MutableArray4& array, std::int64_t start,
                  std::int64_t columns) {
  for (std::int64_t x = 0; x < columns; ++x) {
    StoreElement(array.data, array.dtype, start + x * array.strides[3], values[x]);
  }
}

double Dot(const double* a, const double* b, std::int64_t n) {
  double sum = 0.0;
  for (std::int64_t x = 0; x < n; ++x) sum += a[x] * b[x];
  return sum;
}

// Everything of one query head in the backward pass.
struct HeadBackward {
  const AttentionParams& params;
  const AttentionGradients& gradients;
  const Sequence& sequence;
  std::int64_t h;
  // Sums over the group's queries. dk: [k_len, head_dim], dv: [k_len, value_dim].
  std::vector<double>& dk;
  std::vector<double>& dv;
  HeadSums& sums;

  void Row(std::int64_t q_row, ReferenceRow& row);

  std::vector<double> q = {}, d_out = {}, k = {}, v = {}, dp = {}, dq = {};
};

void HeadBackward::Row(std::int64_t q_row, ReferenceRow& row) {
  const std::int64_t b = sequence.array_batch, kv = KvHead(params, h);
  const std::int64_t d = params.head_dim, e = params.value_dim;
  row.Compute(params, sequence, h, q_row);
  const std::int64_t n = row.keys.size();
  q.resize(d);
  dq.assign(d, 0.0);
  k.resize(d);
  v.resize(e);
  d_out.resize(e);
  dp.assign(row.scores.size(), 0.0);  // a sink's is 0
  const HeadRows keys = KeyRows(params, sequence, kv), values = ValueRows(params, sequence, kv);
  LoadColumns(HeadRows::Of(params.q, b, h), q_row, d, q.data());
  LoadColumns(HeadRows::Of(gradients.d_out, b, h), q_row, e, d_out.data());
  for (std::int64_t j = 0; j < n; ++j) {
    // A row of NaN reaches the values of keys that it sees alone.
    if (row.p[j] == 0.0 || row.scores[j] == -kInfinity) continue;
    const std::int64_t k_row = row.keys.begin + j;
    LoadColumns(values, k_row, e, v.data());
    dp[j] = Dot(d_out.data(), v.data(), e);
    for (std::int64_t x = 0; x < e; ++x) dv[k_row * e + x] += row.p[j] * d_out[x];
  }
  double alpha_here = 0.0;
  ReferenceBackward(SpecOfHead(params, h), row.scores.data(), row.p.data(), dp.data(),
                    static_cast<std::int64_t>(dp.size()), dp.data(),
                    params.map == RowMap::kEntmax ? &alpha_here : nullptr, row.scratch);
  sums.d_alpha += alpha_here;
  if (params.terms.sink != nullptr) sums.d_sink += dp.back();
  double d_c = 0.0, d_slope = 0.0;
  const double scale = ScaleOf(params);
  const DistanceLaw law = DistanceLaw::Of(params.terms);
  for (std::int64_t j = 0; j < n; ++j) {
    const double ds = dp[j];
    // A score of -inf has no influence, whatever its product is.
    if (ds == 0.0 || row.scores[j] == -kInfinity) continue;
    const std::int64_t k_row = row.keys.begin + j, distance = sequence.Distance(q_row, k_row);
    double dx = ds * DistanceFactor::At(law, distance).a;
    if (params.terms.softcap != 0.0) {
      const double t = std::tanh(row.c * row.product[j] / params.terms.softcap);
      dx *= 1.0 - t * t;
    }
    // An infinite product at its cap has no influence either.
    if (dx != 0.0) {
      LoadColumns(keys, k_row, d, k.data());
      const double factor = dx * row.c * scale;
      for (std::int64_t x = 0; x < d; ++x) {
        dq[x] += factor * k[x];
        dk[k_row * d + x] += factor * q[x];
      }
      d_c += dx * row.product[j];
    }
    d_slope -= ds * static_cast<double>(std::abs(distance));
    if (gradients.d_bias.data != nullptr) {
      const MutableArray4& array = gradients.d_bias;
      const std::int64_t at = Offset(array.strides, b, h, q_row) + k_row * array.strides[3];
      StoreElement(array.data, array.dtype, at,
                   LoadElement<double>(array.data, array.dtype, at) + ds);
    }
  }
  if (gradients.dq.data != nullptr) {
    StoreColumns(dq.data(), gradients.dq, Offset(gradients.dq.strides, b, h, q_row), d);
  }
  if (gradients.d_length_scale != nullptr) {
    gradients.d_length_scale[RowIndex(params, sequence, h, q_row)] = d_c;
  }
  sums.d_slope += d_slope;
}

}  // namespace

RowSpec SpecOfHead(const AttentionParams& params, std::int64_t h) {
  RowSpec spec{params.setting()};
  spec.alpha = AlphaOf(params, h);
  return spec;
}

void ReferenceRow::Compute(const AttentionParams& params, const Sequence& sequence, std::int64_t h,
                           std::int64_t q_row) {
  const AttentionTerms& terms = params.terms;
  const std::int64_t b = sequence.array_batch, kv = KvHead(params, h);
  keys = sequence.VisibleKeys(params.mask, q_row);
  const auto n = static_cast<std::size_t>(keys.size());
  const std::size_t entries = n + (terms.sink != nullptr ? 1 : 0);
  product.resize(n);
  scores.resize(entries);
  p.resize(entries);
  const auto load = [&](const ConstArray4& array, std::int64_t row, std::int64_t column,
                        double otherwise) {
    if (array.data == nullptr) return otherwise;
    return LoadElement<double>(array.data, array.dtype, Offset(array.strides, b, h, row, column));
  };
  c = load(terms.length_scale, q_row, 0, 1.0);
  slope = load(terms.alibi_slopes, 0, 0, 0.0);
  const double scale = ScaleOf(params);
  const HeadRows query_rows = HeadRows::Of(params.q, b, h),
                 key_rows = KeyRows(params, sequence, kv);
  const void* query = query_rows.At(q_row);
  maximum = -kInfinity;
  const DistanceLaw law = DistanceLaw::Of(terms);
  for (std::int64_t j = 0; j < keys.size(); ++j) {
    const std::int64_t k_row = keys.begin + j, distance = sequence.Distance(q_row, k_row);
    product[j] = 0.0;
    scores[j] = -kInfinity;
    if (IsMasked(params.mask, b, h, q_row, k_row)) continue;
    const double bias = load(terms.bias, q_row, k_row, 0.0);
    if (bias == -kInfinity) continue;
    const void* key = key_rows.At(k_row);
    double sum = 0.0;
    for (std::int64_t x = 0; x < params.head_dim; ++x) {
      sum += LoadElement<double>(query, query_rows.dtype, x * query_rows.step) *
             LoadElement<double>(key, key_rows.dtype, x * key_rows.step);
    }
    product[j] = scale * sum;
    const DistanceFactor factor = DistanceFactor::At(law, distance);
    double x = c * product[j];
    if (terms.softcap != 0.0) x = terms.softcap * std::tanh(x / terms.softcap);
    scores[j] = factor.m + factor.a * x - slope * static_cast<double>(std::abs(distance)) + bias;
    // NaN wins: std::max would drop it.
    if (!(scores[j] <= maximum)) maximum = std::isnan(maximum) ? maximum : scores[j];
  }
  // Where nothing is visible the sink is as good as absent.
  if (entries > n) scores[n] = maximum == -kInfinity ? -kInfinity : terms.sink[h];
  result = ReferenceForward(SpecOfHead(params, h), scores.data(),
                            static_cast<std::int64_t>(entries), p.data(), scratch);
  if (terms.sink != nullptr && p.back() > 0.0) {
    --result.support_size;
    result.entropy += p.back() * std::log(p.back());
  }
}

namespace {

void Forward(const Context& context, const AttentionParams& params, const AttentionOutputs& outputs,
             const std::vector<RowBlock>& rows, std::vector<RowBlock>*) {
  const std::int64_t e = params.value_dim;
  ParallelFor(context, static_cast<std::int64_t>(rows.size()), 1,
              [&](std::int64_t begin, std::int64_t end) {
                ReferenceRow row;
                std::vector<double> v(e), out(e);
                for (std::int64_t i = begin; i < end; ++i) {
                  const auto& [number, h, q] = rows[static_cast<std::size_t>(i)];
                  const Sequence sequence = Sequence::Of(params, number);
                  const std::int64_t b = sequence.array_batch, kv = KvHead(params, h);
                  const HeadRows values = ValueRows(params, sequence, kv);
                  for (std::int64_t q_row = q.begin; q_row < q.end; ++q_row) {
                    row.Compute(params, sequence, h, q_row);
                    std::fill(out.begin(), out.end(), 0.0);
                    for (std::int64_t j = 0; j < row.keys.size(); ++j) {
                      if (row.p[j] == 0.0) continue;
                      LoadColumns(values, row.keys.begin + j, e, v.data());
                      for (std::int64_t x = 0; x < e; ++x) out[x] += row.p[j] * v[x];
                    }
                    StoreColumns(out.data(), outputs.out, Offset(outputs.out.strides, b, h, q_row),
                                 e);
                    const std::int64_t index = RowIndex(params, sequence, h, q_row);
                    if (outputs.tau != nullptr) outputs.tau[index] = row.result.tau;
                    if (outputs.support_size != nullptr) {
                      outputs.support_size[index] = row.result.support_size;
                    }
                    if (outputs.entropy != nullptr) outputs.entropy[index] = row.result.entropy;
                    if (outputs.maximum != nullptr) outputs.maximum[index] = row.maximum;
                  }
                }
              });
}

void Backward(const Context& context, const AttentionParams& params,
              const AttentionGradients& gradients, const std::vector<KeyHead>& key_heads,
              HeadSums* heads, std::vector<KeyHead>*) {
  const MutableArray4& bias = gradients.d_bias;
  // Sequences or heads that share a bias add to it one after the other.
  const bool shares = bias.data != nullptr && (bias.strides[0] == 0 || bias.strides[1] == 0);
  const Context here = shares ? Context{.threads = 1} : context;
  ParallelFor(here, static_cast<std::int64_t>(key_heads.size()), 1,
              [&](std::int64_t begin, std::int64_t end) {
                ReferenceRow row;
                std::vector<double> dk, dv;
                for (std::int64_t i = begin; i < end; ++i) {
                  const auto& [number, kv] = key_heads[static_cast<std::size_t>(i)];
                  const Sequence sequence = Sequence::Of(params, number);
                  const std::int64_t group = params.heads / params.kv_heads,
                                     b = sequence.array_batch;
                  dk.assign(static_cast<std::size_t>(params.k_len * params.head_dim), 0.0);
                  dv.assign(static_cast<std::size_t>(params.k_len * params.value_dim), 0.0);
                  for (std::int64_t h = kv * group; h < (kv + 1) * group; ++h) {
                    HeadBackward head{.params = params,
                                      .gradients = gradients,
                                      .sequence = sequence,
                                      .h = h,
                                      .dk = dk,
                                      .dv = dv,
                                      .sums = heads[number * params.heads + h]};
                    for (std::int64_t q_row = sequence.q.begin; q_row < sequence.q.end; ++q_row) {
                      head.Row(q_row, row);
                    }
                  }
                  for (std::int64_t row_k = sequence.k.begin; row_k < sequence.k.end; ++row_k) {
                    if (gradients.dk.data != nullptr) {
                      StoreColumns(&dk[row_k * params.head_dim], gradients.dk,
                                   Offset(gradients.dk.strides, b, kv, row_k), params.head_dim);
                    }
                    if (gradients.dv.data != nullptr) {
                      StoreColumns(&dv[row_k * params.value_dim], gradients.dv,
                                   Offset(gradients.dv.strides, b, kv, row_k), params.value_dim);
                    }
                  }
                }
              });
}

void Weights(const Context& context, const AttentionParams& params, const WeightReceiver& receiver,
             const std::vector<RowBlock>& rows, std::vector<RowBlock>*) {
  ParallelFor(context, static_cast<std::int64_t>(rows.size()), 1,
              [&](std::int64_t begin, std::int64_t end) {
                ReferenceRow row;
                std::vector<std::uint32_t> keys;
                std::vector<float> p;
                for (std::int64_t i = begin; i < end; ++i) {
                  const auto& [number, h, q] = rows[static_cast<std::size_t>(i)];
                  const Sequence sequence = Sequence::Of(params, number);
                  for (std::int64_t q_row = q.begin; q_row < q.end; ++q_row) {
                    row.Compute(params, sequence, h, q_row);
                    keys.clear();
                    p.clear();
                    // A row of NaN has no support to list.
                    for (std::int64_t j = 0; row.result.support_size > 0 && j < row.keys.size();
                         ++j) {
                      if (!(row.p[j] > 0.0)) continue;
                      keys.push_back(static_cast<std::uint32_t>(j));
                      p.push_back(static_cast<float>(row.p[j]));
                    }
                    receiver.Put(RowIndex(params, sequence, h, q_row), row.keys.begin, keys.data(),
                                 p.data(), keys.size());
                  }
                }
              });
}

}  // namespace

constinit const AttentionKernel kReferenceAttention = {
    .name = "reference",
    .summary = "everything, in double precision one row at a time; float64",
    .instruction_set = [] { return std::string("portable"); },
    .serves = {.features = Features::All()},
    .declines = nullptr,
    .leaves = nullptr,
    .forward = Forward,
    .backward = Backward,
    .weights = Weights,
    .saved_bytes = nullptr,
    .workspace_bytes =
        [](const Context& context, const AttentionParams& params, bool backward) {
          const auto threads = static_cast<std::size_t>(Threads(context));
          const auto row = static_cast<std::size_t>(params.k_len + 1) * 7 * sizeof(double);
          const auto sums = static_cast<std::size_t>(params.k_len) *
                            static_cast<std::size_t>(params.head_dim + params.value_dim) *
                            sizeof(double);
          return threads * (row + (backward ? sums : 0));
        }};

}  // namespace tsallis
