// Backward pass of what streams: weights again from tau, their gradients, and what queries and keys
// give each other. Included once per instruction set.
#if defined(TSALLIS_ATTENTION_CPU_STREAM_BACKWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TSALLIS_ATTENTION_CPU_STREAM_BACKWARD_INL_H_
#undef TSALLIS_ATTENTION_CPU_STREAM_BACKWARD_INL_H_
#else
#define TSALLIS_ATTENTION_CPU_STREAM_BACKWARD_INL_H_
#endif

#include "attention/cpu/stream/block-inl.h"

#if TSALLIS_STREAM_HERE
HWY_BEFORE_NAMESPACE();
namespace tsallis {
namespace HWY_NAMESPACE {

// to[key][x] += sum over queries of weights[key][query] x[query], of both parts, for `keys` keys.
// weights: as Scratch::rows; pairs: [16][padded] pairs of queries; to: [keys][padded].
template <class Tiles>
TSALLIS_STREAM_TILES void StreamSpread(const std::uint16_t* weights, const std::uint32_t* pairs,
                                       std::int64_t padded, std::int64_t keys, float* to) {
  const auto row_bytes = static_cast<std::size_t>(padded) * sizeof(float);
  for (std::int64_t j = 0; j < keys; j += 16, to += 16 * padded) {
    Tiles::template Load<4>(weights + j / 16 * kTileWords, 64);
    Tiles::template Load<5>(weights + kPartRows + j / 16 * kTileWords, 64);
    std::int64_t x = 0;
    for (; x + 32 <= padded; x += 32) {
      Tiles::template Load<0>(to + x, row_bytes);
      Tiles::template Load<6>(pairs + x, row_bytes);
      Tiles::template Multiply<0, 4, 6>();
      Tiles::template Load<1>(to + x + 16, row_bytes);
      Tiles::template Load<7>(pairs + x + 16, row_bytes);
      Tiles::template Multiply<1, 4, 7>();
      Tiles::template Multiply<0, 5, 6>();
      Tiles::template Multiply<1, 5, 7>();
      Tiles::template Store<0>(to + x, row_bytes);
      Tiles::template Store<1>(to + x + 16, row_bytes);
    }
    if (x == padded) continue;
    Tiles::template Load<0>(to + x, row_bytes);
    Tiles::template Load<6>(pairs + x, row_bytes);
    Tiles::template Multiply<0, 4, 6>();
    Tiles::template Multiply<0, 5, 6>();
    Tiles::template Store<0>(to + x, row_bytes);
  }
}

// Products of a strip with queries and with d_out, the former turned into z or left to `factors`.
template <class Tiles>
HWY_INLINE bool StreamStrip(const StreamBlock& block, std::int64_t at, std::int64_t keys,
                            const stream::Scratch& scratch, const stream::WaveBlock& wave) {
  const stream::Widths widths(block.params);
  const std::int64_t e_chunks = widths.e_depth / kDepth;
  RunSteps(StreamProducts<Tiles>(block, wave.q_columns, at, keys, scratch.scores));
  RunSteps(ProductSteps<Tiles>(block.head.v_rows + at / 16 * e_chunks * kTileWords,
                               wave.d_out_columns, e_chunks, keys, scratch.gradients));
  const bool plain = block.IsPlain(at, keys);
  if (!plain) block.Adjust(at, keys, scratch.scores);
  return plain;
}

// wave.mean of a block whose operands stand in `wave`.
template <class Tiles, class Map>
void StreamMeans(const StreamBlock& block, const Map& map, const stream::Scratch& scratch,
                 const stream::WaveBlock& wave) {
  const DF d;
  const VF zero = hn::Zero(d);
  StripSum total[kGroups], weighted[kGroups];
  for (std::int64_t at = block.begin; at < block.end; at += kStrip) {
    const std::int64_t keys = std::min(kStrip, block.end - at);
    const bool plain = StreamStrip<Tiles>(block, at, keys, scratch, wave);
    for (std::int64_t group = 0; group < kGroups; ++group) {
      const StreamWeight<Map> weight(block, map, wave.tau, plain, group);
      const float* HWY_RESTRICT scores = scratch.scores + group * kGroupScores;
      const float* HWY_RESTRICT dp = scratch.gradients + group * kGroupScores;
      VF sum[2] = {zero, zero}, product[2] = {zero, zero};
      for (std::int64_t j = 0; j < keys; j += 2) {
        HWY_UNROLL(2)
        for (std::int64_t i = 0; i < 2; ++i) {
          const VF above = weight.Above(hn::Load(d, scores + (j + i) * stream::kLanes));
          const VF u = map.Slope(above, map.Weight(above));
          sum[i] = hn::Add(sum[i], u);
          product[i] = hn::MulAdd(u, hn::Load(d, dp + (j + i) * stream::kLanes), product[i]);
        }
      }
      total[group].Add(hn::Add(sum[0], sum[1]));
      weighted[group].Add(hn::Add(product[0], product[1]));
    }
  }
  for (std::int64_t group = 0; group < kGroups; ++group) {
    hn::Store(hn::Div(weighted[group].sum, hn::Max(total[group].sum, hn::Set(d, 1e-30f))), d,
              wave.mean + group * stream::kLanes);
  }
}

template <class Tiles>
bool StreamPrepare(const stream::StreamCall& call, const stream::PackedKv& head, std::int64_t h,
                   std::int64_t q_begin, std::int64_t count, stream::Scratch& scratch,
                   const stream::WaveBlock& wave) {
  const AttentionParams& params = call.params;
  const AttentionGradients& gradients = *call.gradients;
  const stream::Widths widths(params);
  const std::int64_t b = head.sequence.array_batch;
  const StreamBlock block(call, head, h, q_begin, count);
  const float q_bound = StreamLoad(HeadRows::Of(params.q, b, h, q_begin), count, params.head_dim,
                                   widths.d_depth, scratch.halves);
  if (!block.IsSafe(q_bound)) return false;
  StreamColumns(scratch.halves, widths.d_depth, wave.q_columns);
  PairRows(scratch.halves, static_cast<std::size_t>(widths.d_depth), stream::kRows,
           static_cast<std::size_t>(widths.d_padded), wave.q_pairs);
  const float d_out_bound = StreamLoad(HeadRows::Of(gradients.d_out, b, h, q_begin), count,
                                       params.value_dim, widths.e_depth, scratch.halves);
  if (!(d_out_bound * (1.0 + head.v_bound) * (1.0 + head.k_bound + q_bound) *
            static_cast<double>(params.value_dim) <
        1e30)) {
    return false;
  }
  StreamColumns(scratch.halves, widths.e_depth, wave.d_out_columns);
  PairRows(scratch.halves, static_cast<std::size_t>(widths.e_depth), stream::kRows,
           static_cast<std::size_t>(widths.e_padded), wave.d_out_pairs);
  const std::int64_t index = RowIndex(params, head.sequence, h, q_begin);
  // Softmax's tau is one of s.
  const double tau_unit = params.map == RowMap::kEntmax ? 1.0 : kLog2E;
  for (std::int64_t i = 0; i < stream::kRows; ++i) {
    const double tau = i < count ? gradients.tau[index + i] * tau_unit : -INFINITY;
    if (std::isnan(tau)) return false;
    wave.tau[i] = tau == -INFINITY ? kInfinityF : static_cast<float>(tau);
    wave.tau[stream::kRows + i] =
        tau == -INFINITY ? 0.0f : static_cast<float>(tau - static_cast<double>(wave.tau[i]));
  }
  std::fill_n(wave.mean, stream::kRows, 0.0f);
  if (call.wants_scores) {
    WithStreamMap(params, h,
                  [&](const auto& map) HWY_ATTR { StreamMeans<Tiles>(block, map, scratch, wave); });
  }
  return true;
}

// Weights of a strip and gradients of its scores, as operands. d_slope, d_c: what they add to the
// gradients of the slope and of c / scale, by lane. scratch.products holds the strip's products if
// d_c or a cap needs them.
template <class Map>
HWY_INLINE void StreamOperands(const StreamBlock& block, const Map& map, std::int64_t at,
                               std::int64_t keys, bool plain, const stream::Scratch& scratch,
                               const stream::WaveBlock& wave, VF* d_slope, VF* d_c) {
  const DF d;
  const hn::Rebind<std::uint16_t, DF> d16;
  const AttentionGradients& gradients = *block.call.gradients;
  const bool with_c = gradients.d_length_scale != nullptr;
  // Words of a query's lane, in the row of its key.
  const auto store_row = [&](const SplitWords& words, std::uint16_t* to) HWY_ATTR {
    hn::Store(hn::TruncateTo(d16, hn::ShiftRight<16>(words.high)), d16, to);
    hn::Store(hn::TruncateTo(d16, hn::ShiftRight<16>(words.low)), d16, to + kPartRows);
  };
  for (std::int64_t group = 0; group < kGroups; ++group) {
    const StreamWeight<Map> weight(block, map, wave.tau, plain, group);
    const VF mean = hn::Load(d, wave.mean + group * stream::kLanes);
    const VF c_scale = hn::Load(d, block.c_scale + group * stream::kLanes);
    const LaneTerms terms = block.LaneTermsOf(group);
    const bool with_terms = gradients.d_slopes != nullptr || terms.has_derivative();
    const VF factor = hn::Load(d, block.factors + group * stream::kLanes);
    const float* HWY_RESTRICT products = scratch.products + group * kGroupScores;
    const float* HWY_RESTRICT scores = scratch.scores + group * kGroupScores;
    const float* HWY_RESTRICT dp = scratch.gradients + group * kGroupScores;
    for (std::int64_t j = 0; j < keys; j += 2) {
      VF ds[2];
      for (std::int64_t i = 0; i < 2; ++i) {
        const std::int64_t key = j + i, place = key * 32 + group * stream::kLanes;
        const VF above = weight.Above(hn::Load(d, scores + key * stream::kLanes));
        const VF p = map.Weight(above);
        ds[i] = hn::Mul(map.Slope(above, p), hn::Sub(hn::Load(d, dp + key * stream::kLanes), mean));
        if (with_terms) {
          const std::int64_t distance = block.DistanceOf(group, at + key);
          *d_slope = hn::NegMulAdd(ds[i], terms.Distances(distance), *d_slope);
          if (terms.has_derivative()) {
            const VF z = terms.capped()
                             ? hn::Mul(hn::Load(d, products + key * stream::kLanes), factor)
                             : hn::Zero(d);
            ds[i] = ThroughTerms(ds[i], terms.Derivative(z, distance));
          }
        }
        if (with_c) {
          d_c[group] = hn::MulAdd(ds[i], hn::Load(d, products + key * stream::kLanes), d_c[group]);
        }
        ds[i] = hn::Mul(ds[i], c_scale);
        store_row(SplitWords(p), scratch.rows + place);
      }
      const SplitWords first(ds[0]), second(ds[1]);
      StorePairs(first, second, scratch.pairs + PairOffset(j, group));
      std::uint16_t* to = scratch.rows + 2 * kPartRows + j * 32 + group * stream::kLanes;
      store_row(first, to);
      store_row(second, to + 32);
    }
  }
}

template <class Tiles, class Map>
double StreamRangeGradients(const StreamBlock& block, const Map& map, std::int64_t begin,
                            std::int64_t end, stream::Scratch& scratch,
                            const stream::WaveBlock& wave, float* dk, float* dv, float* dq,
                            float* dc) {
  const DF d;
  const stream::PackedKv& head = block.head;
  const stream::Widths widths(block.params);
  const VF zero = hn::Zero(d);
  VF d_slope = zero, d_c[kGroups] = {zero, zero};
  begin = std::max(begin, block.begin);
  end = std::min(end, block.end);
  for (std::int64_t at = begin; at < end; at += kStrip) {
    const std::int64_t keys = std::min(kStrip, end - at);
    const bool plain = StreamStrip<Tiles>(block, at, keys, scratch, wave);
    if (dc != nullptr || block.terms.needs_products()) {
      RunSteps(StreamProducts<Tiles>(block, wave.q_columns, at, keys, scratch.products));
    }
    StreamOperands(block, map, at, keys, plain, scratch, wave, &d_slope, d_c);
    if (dv != nullptr) {
      StreamSpread<Tiles>(scratch.rows, wave.d_out_pairs, widths.e_padded, keys,
                          dv + at * widths.e_padded);
    }
    if (dk != nullptr) {
      StreamSpread<Tiles>(scratch.rows + 2 * kPartRows, wave.q_pairs, widths.d_padded, keys,
                          dk + at * widths.d_padded);
    }
    if (dq != nullptr) {
      const std::int64_t tiles = widths.d_padded / 16;
      RunSteps(MixSteps<Tiles>(head.k_columns + at / kDepth * tiles * kTileWords, tiles,
                               scratch.pairs, keys, dq));
    }
  }
  for (std::int64_t group = 0; dc != nullptr && group < kGroups; ++group) {
    hn::StoreU(d_c[group], d, dc + group * stream::kLanes);
  }
  HWY_ALIGN float lanes[stream::kLanes];
  hn::Store(d_slope, d, lanes);
  double sum = 0.0;
  for (const float lane : lanes) sum += static_cast<double>(lane);
  return sum;
}

template <class Tiles>
double StreamGradients(const stream::StreamCall& call, const stream::PackedKv& head, std::int64_t h,
                       std::int64_t q_begin, std::int64_t count, std::int64_t begin,
                       std::int64_t end, stream::Scratch& scratch, const stream::WaveBlock& wave,
                       float* dk, float* dv, float* dq, float* dc) {
  const StreamBlock block(call, head, h, q_begin, count);
  return WithStreamMap(call.params, h, [&](const auto& map) HWY_ATTR {
    return StreamRangeGradients<Tiles>(block, map, begin, end, scratch, wave, dk, dv, dq, dc);
  });
}

void StreamFinish(const stream::StreamCall& call, const stream::PackedKv& head, std::int64_t h,
                  std::int64_t q_begin, std::int64_t count, stream::Scratch& scratch,
                  const float* dq, std::int64_t parts, std::int64_t stride) {
  const DF d;
  const AttentionParams& params = call.params;
  const AttentionGradients& gradients = *call.gradients;
  const stream::Widths widths(params);
  const std::int64_t b = head.sequence.array_batch, tiles = widths.d_padded / 16;
  for (std::int64_t x = 0; x < tiles * kGroups * kTileFloats; x += stream::kLanes) {
    VF sum = hn::Zero(d);
    for (std::int64_t part = 0; part < parts; ++part) {
      sum = hn::Add(sum, hn::Load(d, dq + part * stride + x));
    }
    hn::Store(sum, d, scratch.sums + x);
  }
  for (std::int64_t group = 0; group * stream::kLanes < count; ++group) {
    const std::int64_t lane0 = group * stream::kLanes;
    const std::int64_t rows = std::min<std::int64_t>(count - lane0, stream::kLanes);
    StreamRowsOut(scratch.sums, tiles, group, scratch.block);
    if (gradients.dq.data != nullptr) {
      StoreRows(scratch.block, static_cast<std::size_t>(widths.d_padded), nullptr,
                static_cast<std::size_t>(rows), static_cast<std::size_t>(params.head_dim),
                gradients.dq, b, h, q_begin + lane0, false);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tsallis
HWY_AFTER_NAMESPACE();
#endif  // TSALLIS_STREAM_HERE

#endif  // per-target include guard
