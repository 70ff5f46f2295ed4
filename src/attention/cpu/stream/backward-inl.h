// Backward pass of what streams: weights again from tau, their gradients, and what queries and keys
// give each other. Included once per instruction set.
#if defined(TSALLIS_ATTENTION_CPU_STREAM_BACKWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TSALLIS_ATTENTION_CPU_STREAM_BACKWARD_INL_H_
#undef TSALLIS_ATTENTION_CPU_STREAM_BACKWARD_INL_H_
#else
#define TSALLIS_ATTENTION_CPU_STREAM_BACKWARD_INL_H_
#endif

#include <cmath>
#include <type_traits>

#include "attention/cpu/stream/softmax-inl.h"

#if TSALLIS_VECTORS_HERE
HWY_BEFORE_NAMESPACE();
namespace tsallis {
namespace HWY_NAMESPACE {

// Products of a strip with queries and with d_out, the former turned into z or left to `factors`.
template <class Engine>
HWY_INLINE bool StreamStrip(const StreamBlock<Engine>& block, std::int64_t at, std::int64_t keys,
                            const stream::Scratch& scratch, const stream::WaveBlock& wave) {
  StreamProducts(block, wave.q_columns, at, keys, scratch.scores);
  Engine::MultiplyValues(block.head, block.params, wave.d_out_columns, at, keys, scratch.gradients);
  const bool plain = block.IsPlain(at, keys);
  if (!plain) block.Adjust(at, keys, scratch.scores);
  return plain;
}

// beta z less tau from the score: the block is not sharpened.
template <class Engine>
HWY_INLINE StreamWeight<StreamAdaptive> SharpWeight(const StreamBlock<Engine>& block,
                                                    const stream::WaveBlock& wave, bool plain,
                                                    std::int64_t group) {
  StreamWeight<StreamAdaptive> weight(block, StreamAdaptive(), wave.tau, plain, group);
  weight.factor = hn::Mul(weight.factor, hn::Load(DF(), wave.beta + group * kStreamLanes));
  return weight;
}

// The weight of a key, and the gradient of its score from that of the weight.
template <class Map>
struct StreamGradient {
  template <class Engine>
  HWY_INLINE StreamGradient(const StreamBlock<Engine>& block, const Map& map,
                            const stream::WaveBlock& wave, bool plain, std::int64_t group)
      : weight(block, map, wave.tau, plain, group),
        mean(hn::Load(DF(), wave.mean + group * kStreamLanes)) {}
  HWY_INLINE VF operator()(VF score, VF dp, VF* p) const {
    const VF above = weight.Above(score);
    *p = weight.map.Weight(above);
    return hn::Mul(weight.map.Slope(above, *p), hn::Sub(dp, mean));
  }
  StreamWeight<Map> weight;
  VF mean;
};

// Through the weight, and through beta: AdaptiveBackwardRow (simplex/softmax-inl.h) has the
// formula.
template <>
struct StreamGradient<StreamAdaptive> {
  template <class Engine>
  HWY_INLINE StreamGradient(const StreamBlock<Engine>& block, const StreamAdaptive& map,
                            const stream::WaveBlock& wave, bool plain, std::int64_t group)
      : weight(SharpWeight(block, wave, plain, group)),
        soft(block, map, wave.soft_tau, plain, group),
        beta(hn::Load(DF(), wave.beta + group * kStreamLanes)),
        mean(hn::Load(DF(), wave.mean + group * kStreamLanes)),
        soft_mean(hn::Load(DF(), wave.soft_mean + group * kStreamLanes)),
        through(hn::Load(DF(), wave.through_entropy + group * kStreamLanes)),
        moves(!hn::AllTrue(DF(), hn::Eq(through, hn::Zero(DF())))) {}
  HWY_INLINE VF operator()(VF score, VF dp, VF* p) const {
    *p = Exp2(weight.Above(score));
    const VF direct = hn::Mul(hn::Mul(*p, beta), hn::Sub(dp, mean));
    if (!moves) return direct;
    const VF above = soft.Above(score), q = Exp2(above);
    const VF change = hn::Mul(hn::Mul(q, through), hn::Sub(above, soft_mean));
    return hn::Add(direct, hn::IfThenElseZero(hn::Gt(q, hn::Zero(DF())), change));
  }
  StreamWeight<StreamAdaptive> weight, soft;
  VF beta, mean, soft_mean, through;
  bool moves;  // whether the beta of any of the rows depends on its scores
};

// wave.mean of a block whose operands stand in `wave`.
template <class Engine, class Map>
void StreamMeans(const StreamBlock<Engine>& block, const Map& map, const stream::Scratch& scratch,
                 const stream::WaveBlock& wave) {
  const DF d;
  const VF zero = hn::Zero(d);
  StripSum total[Engine::kGroups], weighted[Engine::kGroups];
  for (std::int64_t at = block.begin; at < block.end; at += Engine::kShape.strip) {
    const std::int64_t keys = std::min(Engine::kShape.strip, block.end - at);
    const bool plain = StreamStrip(block, at, keys, scratch, wave);
    for (std::int64_t group = 0; group < Engine::kGroups; ++group) {
      const StreamWeight<Map> weight(block, map, wave.tau, plain, group);
      const float* scores = scratch.scores + group * Engine::kGroupStride;
      const float* dp = scratch.gradients + group * Engine::kGroupStride;
      VF sum[2] = {zero, zero}, product[2] = {zero, zero};
      for (std::int64_t j = 0; j < keys; j += 2) {
        HWY_UNROLL(2)
        for (std::int64_t i = 0; i < 2; ++i) {
          const VF above = weight.Above(hn::Load(d, scores + (j + i) * Engine::kKeyStride));
          const VF u = map.Slope(above, map.Weight(above));
          sum[i] = hn::Add(sum[i], u);
          product[i] = hn::MulAdd(u, hn::Load(d, dp + (j + i) * Engine::kKeyStride), product[i]);
        }
      }
      total[group].Add(hn::Add(sum[0], sum[1]));
      weighted[group].Add(hn::Add(product[0], product[1]));
    }
  }
  for (std::int64_t group = 0; group < Engine::kGroups; ++group) {
    hn::Store(hn::Div(weighted[group].sum, hn::Max(total[group].sum, hn::Set(d, 1e-30f))), d,
              wave.mean + group * kStreamLanes);
  }
}

// The same from the outputs of softmax's weights, which StreamMix left: <d_out, out>.
template <class Engine>
void MixedMeans(const StreamBlock<Engine>& block, const typename Engine::Loaded& d_out,
                const stream::Scratch& scratch, const StripSum* sum,
                const stream::WaveBlock& wave) {
  const std::int64_t padded = Padded(block.params.value_dim);
  for (std::int64_t group = 0; group * kStreamLanes < block.count; ++group) {
    MixedRows<Engine>(scratch, padded, sum[group].sum, group);
    const std::int64_t lane0 = group * kStreamLanes;
    for (std::int64_t i = 0; i < std::min(block.count - lane0, kStreamLanes); ++i) {
      wave.mean[lane0 + i] = d_out.Dot(lane0 + i, scratch.block + i * padded);
    }
  }
}

// The same from saved outputs. False: not all of the block's are.
template <class Engine>
bool SavedMeans(const StreamBlock<Engine>& block, const typename Engine::Loaded& d_out,
                const stream::WaveBlock& wave) {
  const SavedValues& saved = block.call.saved;
  const std::int64_t index = RowIndex(block.params, block.head.sequence, block.h, block.row);
  for (std::int64_t i = 0; i < block.count; ++i) {
    if (!saved.Has(index + i)) return false;
  }
  for (std::int64_t i = 0; i < block.count; ++i) {
    wave.mean[i] = d_out.Dot(i, saved.Row(index + i));
  }
  return true;
}

// wave.mean of softmax. Outputs that were not saved are computed again.
template <class Engine>
void StreamSoftmaxMeans(const StreamBlock<Engine>& block, const typename Engine::Loaded& d_out,
                        const stream::Scratch& scratch, const stream::WaveBlock& wave) {
  if (SavedMeans(block, d_out, wave)) return;
  RunningTops<Engine> tops(block);
  StripSum sum[Engine::kGroups];
  StreamMix(block, wave.q_columns, scratch, tops, sum);
  MixedMeans(block, d_out, scratch, sum, wave);
}

// The same of adaptive temperature, whose backward pass is that of `AdaptiveBackwardRow`
// (simplex/softmax-inl.h): a pass for the entropies, one for the sums of the sharpened weights.
// Where every beta is 1 it is softmax's. False: scores might not be finite.
template <class Engine>
bool StreamAdaptiveMeans(const StreamBlock<Engine>& block, const typename Engine::Loaded& d_out,
                         double q_bound, const stream::Scratch& scratch,
                         const stream::WaveBlock& wave) {
  constexpr std::int64_t kRows = Engine::kShape.rows;
  const DF d;
  const VF zero = hn::Zero(d);
  std::fill_n(wave.beta, kRows, 1.0f);
  std::fill_n(wave.soft_tau, kRows, kInfinityF);
  for (float* numbers : {wave.soft_tau + kRows, wave.soft_mean, wave.through_entropy}) {
    std::fill_n(numbers, kRows, 0.0f);
  }
  if (SavedMeans(block, d_out, wave)) return true;
  StreamSoft<Engine> soft;
  {
    DeepTops<Engine> tops(block);
    StripSum sum[Engine::kGroups];
    if (StreamBlunt(block, wave.q_columns, scratch, tops, sum, &soft)) {
      MixedMeans(block, d_out, scratch, sum, wave);
      return true;
    }
  }
  if (!soft.whole) StreamEntropies(block, wave.q_columns, 1, scratch, &soft);
  double slope_of_beta[kRows] = {}, largest = 1.0;
  for (std::int64_t i = 0; i < kRows; ++i) {
    if (wave.tau[i] == kInfinityF || soft.log_sum[i] == -INFINITY) continue;
    const double beta = BetaOfEntropy(block.params.adaptive, soft.entropy[i], &slope_of_beta[i]);
    wave.beta[i] = static_cast<float>(beta);
    StoreTau<Engine>(static_cast<double>(soft.top[i]) + soft.log_sum[i], wave.soft_tau + i);
    wave.soft_mean[i] = static_cast<float>(-soft.entropy[i] * kLog2E);  // of z less tau
    // The largest sharpened z, until the sum of the weights is known.
    StoreTau<Engine>(static_cast<double>(wave.beta[i]) * static_cast<double>(soft.top[i]),
                     wave.tau + i);
    largest = std::max(largest, beta);
  }
  if (!block.IsSafe(largest * q_bound)) return false;
  // Of p, p dp, p (z - top) and p (z - top) dp.
  StripSum sums[4][Engine::kGroups];
  for (std::int64_t at = block.begin; at < block.end; at += Engine::kShape.strip) {
    const std::int64_t keys = std::min(Engine::kShape.strip, block.end - at);
    const bool plain = StreamStrip(block, at, keys, scratch, wave);
    for (std::int64_t group = 0; group < Engine::kGroups; ++group) {
      const StreamWeight<StreamAdaptive> weight = SharpWeight(block, wave, plain, group);
      const float* scores = scratch.scores + group * Engine::kGroupStride;
      const float* gradients = scratch.gradients + group * Engine::kGroupStride;
      VF mass[2] = {zero, zero}, mean[2] = {zero, zero};
      VF depth[2] = {zero, zero}, both[2] = {zero, zero};
      for (std::int64_t j = 0; j < keys; j += 2) {
        HWY_UNROLL(2)
        for (std::int64_t i = 0; i < 2; ++i) {
          const VF dp = hn::Load(d, gradients + (j + i) * Engine::kKeyStride);
          const VF above = weight.Above(hn::Load(d, scores + (j + i) * Engine::kKeyStride));
          const VF p = Exp2(above);
          const VF fall = hn::IfThenElseZero(hn::Gt(p, zero), hn::Mul(p, above));
          mass[i] = hn::Add(mass[i], p);
          mean[i] = hn::MulAdd(p, dp, mean[i]);
          depth[i] = hn::Add(depth[i], fall);
          both[i] = hn::MulAdd(fall, dp, both[i]);
        }
      }
      const VF* const of_strip[4] = {mass, mean, depth, both};
      for (std::int64_t i = 0; i < 4; ++i) {
        sums[i][group].Add(hn::Add(of_strip[i][0], of_strip[i][1]));
      }
    }
  }
  HWY_ALIGN float of_rows[4][kRows];
  for (std::int64_t i = 0; i < 4; ++i) {
    for (std::int64_t group = 0; group < Engine::kGroups; ++group) {
      hn::Store(sums[i][group].sum, d, of_rows[i] + group * kStreamLanes);
    }
  }
  for (std::int64_t i = 0; i < kRows; ++i) {
    const double mass = of_rows[0][i];
    if (!(mass > 0.0)) continue;
    const double mean = of_rows[1][i] / mass, depth = of_rows[2][i] / mass;
    wave.mean[i] = static_cast<float>(mean);
    StoreTau<Engine>(
        static_cast<double>(wave.beta[i]) * static_cast<double>(soft.top[i]) + std::log2(mass),
        wave.tau + i);
    // Depths are beta (z - top).
    const double d_beta = kLn2 * (of_rows[3][i] / mass - mean * depth) / wave.beta[i];
    wave.through_entropy[i] = static_cast<float>(-d_beta * slope_of_beta[i] * kLn2);
  }
  return true;
}

template <class Engine>
bool StreamPrepare(const stream::StreamCall& call, const stream::PackedKv& head, std::int64_t h,
                   std::int64_t q_begin, std::int64_t count, stream::Scratch& scratch,
                   const stream::WaveBlock& wave) {
  const AttentionParams& params = call.params;
  const AttentionGradients& gradients = *call.gradients;
  const std::int64_t b = head.sequence.array_batch;
  const StreamBlock<Engine> block(call, head, h, q_begin, count);
  const auto q =
      Engine::Load(HeadRows::Of(params.q, b, h, q_begin), count, params.head_dim, scratch);
  if (!block.IsSafe(q.bound)) return false;
  q.Columns(wave.q_columns);
  q.Rows(wave.q_rows);
  const auto d_out =
      Engine::Load(HeadRows::Of(gradients.d_out, b, h, q_begin), count, params.value_dim, scratch);
  if (!(d_out.bound * (1.0 + head.v_bound) * (1.0 + head.k_bound + q.bound) *
            static_cast<double>(params.value_dim) <
        1e30)) {
    return false;
  }
  d_out.Columns(wave.d_out_columns);
  d_out.Rows(wave.d_out_rows);
  const std::int64_t index = RowIndex(params, head.sequence, h, q_begin);
  // Softmax's tau is one of s.
  const double tau_unit = params.map == RowMap::kEntmax ? 1.0 : kLog2E;
  for (std::int64_t i = 0; i < Engine::kShape.rows; ++i) {
    const double tau = i < count ? gradients.tau[index + i] * tau_unit : -INFINITY;
    if (std::isnan(tau)) return false;
    if (tau == -INFINITY) {
      wave.tau[i] = kInfinityF;
      wave.tau[Engine::kShape.rows + i] = 0.0f;
    } else {
      StoreTau<Engine>(tau, wave.tau + i);
    }
  }
  std::fill_n(wave.mean, Engine::kShape.rows, 0.0f);
  return WithStreamMap(params, h, [&](const auto& map) HWY_ATTR {
    using Map = std::decay_t<decltype(map)>;
    // Its weights too follow from these sums.
    if constexpr (std::is_same_v<Map, StreamAdaptive>) {
      return StreamAdaptiveMeans(block, d_out, q.bound, scratch, wave);
    } else if (call.wants_scores) {
      if constexpr (Map::kSums) {
        StreamMeans(block, map, scratch, wave);
      } else {
        StreamSoftmaxMeans(block, d_out, scratch, wave);
      }
    }
    return true;
  });
}

// Weights of a strip and gradients of its scores, as operands. d_slope, d_c: what they add to the
// gradients of the slope and of c / scale, by lane. scratch.products holds the strip's products if
// d_c or a cap needs them.
template <class Engine, class Map>
HWY_INLINE void StreamOperands(const StreamBlock<Engine>& block, const Map& map, std::int64_t at,
                               std::int64_t keys, bool plain, const stream::Scratch& scratch,
                               const stream::WaveBlock& wave, VF* d_slope, VF* d_c) {
  const DF d;
  const AttentionGradients& gradients = *block.call.gradients;
  const bool with_c = gradients.d_length_scale != nullptr;
  for (std::int64_t group = 0; group < Engine::kGroups; ++group) {
    const StreamGradient<Map> gradient(block, map, wave, plain, group);
    const VF c_scale = hn::Load(d, block.c_scale + group * kStreamLanes);
    const LaneTerms terms = block.LaneTermsOf(group);
    const bool with_terms = gradients.d_slopes != nullptr || terms.has_derivative();
    const VF factor = hn::Load(d, block.factors + group * kStreamLanes);
    const float* HWY_RESTRICT products = scratch.products + group * Engine::kGroupStride;
    const float* scores = scratch.scores + group * Engine::kGroupStride;
    const float* dp = scratch.gradients + group * Engine::kGroupStride;
    for (std::int64_t j = 0; j < keys; j += 2) {
      VF p[2], ds[2];
      HWY_UNROLL(2)
      for (std::int64_t i = 0; i < 2; ++i) {
        const std::int64_t key = j + i;
        ds[i] = gradient(hn::Load(d, scores + key * Engine::kKeyStride),
                         hn::Load(d, dp + key * Engine::kKeyStride), &p[i]);
        if (with_terms) {
          const std::int64_t distance = block.DistanceOf(group, at + key);
          *d_slope = hn::NegMulAdd(ds[i], terms.Distances(distance), *d_slope);
          if (terms.has_derivative()) {
            const VF z = terms.capped()
                             ? hn::Mul(hn::Load(d, products + key * Engine::kKeyStride), factor)
                             : hn::Zero(d);
            ds[i] = ThroughTerms(ds[i], terms.Derivative(z, distance));
          }
        }
        if (with_c) {
          d_c[group] =
              hn::MulAdd(ds[i], hn::Load(d, products + key * Engine::kKeyStride), d_c[group]);
        }
        ds[i] = hn::Mul(ds[i], c_scale);
      }
      Engine::StoreWeights(scratch, j, group, p);
      Engine::StoreGradients(scratch, j, group, ds);
    }
  }
}

template <class Engine, class Map>
double StreamRangeGradients(const StreamBlock<Engine>& block, const Map& map, std::int64_t begin,
                            std::int64_t end, stream::Scratch& scratch,
                            const stream::WaveBlock& wave, float* dk, float* dv, float* dq,
                            float* dc) {
  const DF d;
  const stream::PackedKv& head = block.head;
  const stream::Widths widths(block.params);
  const VF zero = hn::Zero(d);
  VF d_slope = zero, d_c[Engine::kGroups];
  std::fill_n(d_c, Engine::kGroups, zero);
  begin = std::max(begin, block.begin);
  end = std::min(end, block.end);
  for (std::int64_t at = begin; at < end; at += Engine::kShape.strip) {
    const std::int64_t keys = std::min(Engine::kShape.strip, end - at);
    const bool plain = StreamStrip(block, at, keys, scratch, wave);
    if (dc != nullptr || block.terms.needs_products()) {
      StreamProducts(block, wave.q_columns, at, keys, scratch.products);
    }
    StreamOperands(block, map, at, keys, plain, scratch, wave, &d_slope, d_c);
    if (dv != nullptr) {
      Engine::SpreadWeights(scratch, wave.d_out_rows, widths.e_padded, keys,
                            dv + at * widths.e_padded);
    }
    if (dk != nullptr) {
      Engine::SpreadGradients(scratch, wave.q_rows, widths.d_padded, keys,
                              dk + at * widths.d_padded);
    }
    if (dq != nullptr) Engine::AddKeys(head, widths.d_padded, scratch, at, keys, dq);
  }
  for (std::int64_t group = 0; dc != nullptr && group < Engine::kGroups; ++group) {
    hn::StoreU(d_c[group], d, dc + group * kStreamLanes);
  }
  return Total(AddWidened(hn::Zero(DD()), d_slope));
}

template <class Engine>
double StreamGradients(const stream::StreamCall& call, const stream::PackedKv& head, std::int64_t h,
                       std::int64_t q_begin, std::int64_t count, std::int64_t begin,
                       std::int64_t end, stream::Scratch& scratch, const stream::WaveBlock& wave,
                       float* dk, float* dv, float* dq, float* dc) {
  const StreamBlock<Engine> block(call, head, h, q_begin, count);
  return WithStreamMap(call.params, h, [&](const auto& map) HWY_ATTR {
    return StreamRangeGradients(block, map, begin, end, scratch, wave, dk, dv, dq, dc);
  });
}

template <class Engine>
void StreamFinish(const stream::StreamCall& call, const stream::PackedKv& head, std::int64_t h,
                  std::int64_t q_begin, std::int64_t count, stream::Scratch& scratch,
                  const float* dq, std::int64_t parts, std::int64_t stride) {
  const DF d;
  const AttentionGradients& gradients = *call.gradients;
  if (gradients.dq.data == nullptr) return;
  const std::int64_t padded = Padded(call.params.head_dim);
  for (std::int64_t x = 0; x < padded * Engine::kShape.rows; x += kStreamLanes) {
    VF sum = hn::Zero(d);
    for (std::int64_t part = 0; part < parts; ++part) {
      sum = hn::Add(sum, hn::Load(d, dq + part * stride + x));
    }
    hn::Store(sum, d, scratch.sums + x);
  }
  for (std::int64_t group = 0; group * kStreamLanes < count; ++group) {
    const std::int64_t lane0 = group * kStreamLanes;
    Engine::RowsOut(scratch.sums, padded, group, scratch.block);
    StoreRows(scratch.block, static_cast<std::size_t>(padded), nullptr,
              static_cast<std::size_t>(std::min(count - lane0, kStreamLanes)),
              static_cast<std::size_t>(call.params.head_dim), gradients.dq,
              head.sequence.array_batch, h, q_begin + lane0, false);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tsallis
HWY_AFTER_NAMESPACE();
#endif  // TSALLIS_VECTORS_HERE

#endif  // per-target include guard
