// Backward pass of the lane kernel: scores and weights again from tau, then products. Included once
// per instruction set.
#if defined(TSALLIS_ATTENTION_CPU_LANES_BACKWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TSALLIS_ATTENTION_CPU_LANES_BACKWARD_INL_H_
#undef TSALLIS_ATTENTION_CPU_LANES_BACKWARD_INL_H_
#else
#define TSALLIS_ATTENTION_CPU_LANES_BACKWARD_INL_H_
#endif

#include "attention/cpu/lanes/key_head-inl.h"

#if TSALLIS_VECTORS_HERE
HWY_BEFORE_NAMESPACE();
namespace tsallis {
namespace HWY_NAMESPACE {

// sum dp_j dp_j/dalpha of the block's queries. weights, slopes, gradients (dp): [keys][kLanes].
HWY_NOINLINE double AlphaGradient(const Block& block, double eps, const float* weights,
                                  const float* slopes, const float* gradients, VF centre,
                                  VF total) {
  const DF d;
  AlphaSums sums = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
  for (std::size_t j = block.begin; j < block.end; ++j) {
    const VF p = hn::Load(d, weights + j * kLanes), slope = hn::Load(d, slopes + j * kLanes);
    const auto positive = hn::Gt(p, hn::Zero(d));
    const VF safe =
        hn::IfThenElse(positive, hn::Max(p, hn::Set(d, 1.17549435e-38f)), hn::Set(d, 1.0f));
    const VF log_p = hn::Log(d, safe);
    const VF g = hn::IfThenElseZero(positive, hn::Sub(hn::Load(d, gradients + j * kLanes), centre));
    const VF r = hn::IfThenElseZero(positive, WeightedR(p, log_p, slope, static_cast<float>(eps)));
    const VF l = hn::Mul(p, log_p);
    sums.r = hn::Add(sums.r, r);
    sums.l = hn::Add(sums.l, l);
    sums.g = hn::MulAdd(p, g, sums.g);
    sums.gr = hn::MulAdd(r, g, sums.gr);
    sums.gl = hn::MulAdd(l, g, sums.gl);
  }
  HWY_ALIGN float lanes[6][kLanes];
  hn::Store(sums.r, d, lanes[0]);
  hn::Store(sums.l, d, lanes[1]);
  hn::Store(sums.g, d, lanes[2]);
  hn::Store(sums.gr, d, lanes[3]);
  hn::Store(sums.gl, d, lanes[4]);
  hn::Store(total, d, lanes[5]);
  double out = 0.0;
  for (std::size_t i = 0; i < block.count; ++i) {
    const double r = lanes[0][i], l = lanes[1][i], gr = lanes[3][i];
    if (lanes[5][i] == 0.0f) continue;
    out += (r * lanes[2][i] - gr - eps * (r * lanes[4][i] - l * gr)) / lanes[5][i];
  }
  return out;
}

// dq, dk, dv and dc of a block from its weights and ds, c scale included, which are overwritten.
// p, ds: [block keys][kLanes].
HWY_NOINLINE void TileGradients(const LanesKeyHead& key_head, const Block& block, std::int64_t h,
                                float* p, float* ds) {
  const LanesScratch& scratch = key_head.scratch;
  const AttentionGradients& gradients = *key_head.call.gradients;
  const std::size_t d_padded = key_head.d_padded, e_padded = key_head.e_padded;
  const std::size_t keys = block.end - block.begin;
  if (gradients.d_length_scale != nullptr) {
    // dc = sum_j ds_j a_j scale <q, k_j>.
    auto* columns = reinterpret_cast<std::uint32_t*>(scratch.columns);
    TransposePairs(reinterpret_cast<const std::uint32_t*>(scratch.q_rows), key_head.d_depth / 2,
                   key_head.d_depth / 2, columns, kLanes);
    float* products = scratch.slopes + block.begin * kLanes;
    key_head.call.tiles->products(scratch.k_rows + block.begin * key_head.d_depth, columns,
                                  key_head.d_depth, keys, products);
    const DF d;
    VF sum = hn::Zero(d);
    for (std::size_t j = 0; j < keys; ++j) {
      sum = hn::MulAdd(hn::Load(d, ds + j * kLanes), hn::Load(d, products + j * kLanes), sum);
    }
    HWY_ALIGN float lanes[kLanes];
    hn::Store(sum, d, lanes);
    const std::int64_t index = RowIndex(key_head.params, key_head.sequence, h, block.row);
    for (std::size_t i = 0; i < block.count; ++i) {
      gradients.d_length_scale[index + static_cast<std::int64_t>(i)] =
          static_cast<double>(lanes[i]) * key_head.scale / block.c_scale[i];
    }
  }
  if (gradients.dv.data != nullptr) {
    PairRows(scratch.d_out_rows, key_head.e_depth, kLanes, e_padded, scratch.lane_pairs);
    for (int part = 0; part < 2; ++part) {
      key_head.call.tiles->round(p, keys, scratch.weight_pairs, scratch.weight_rows, p);
      key_head.call.tiles->spread(scratch.weight_rows, scratch.lane_pairs, e_padded, keys,
                                  scratch.dv + block.begin * e_padded);
    }
  }
  const bool wants_dk = gradients.dk.data != nullptr;
  if (wants_dk) PairRows(scratch.q_rows, key_head.d_depth, kLanes, d_padded, scratch.lane_pairs);
  MixOnTiles(key_head, block, ds, ds, scratch.k_pairs, d_padded, scratch.weight_rows,
             [&](const std::uint16_t* rows) {
               if (!wants_dk) return;
               key_head.call.tiles->spread(rows, scratch.lane_pairs, d_padded, keys,
                                           scratch.dk + block.begin * d_padded);
             });
  if (gradients.dq.data != nullptr) {
    StoreRows(scratch.block, d_padded, nullptr, block.count, key_head.d, gradients.dq,
              key_head.sequence.array_batch, h, block.row, key_head.call.stream);
  }
}

template <class Map, bool kCareful>
HWY_NOINLINE void BackwardBlock(const LanesKeyHead& key_head, const Map& map, std::int64_t h,
                                const Block& block) {
  const DF d;
  const LanesScratch& scratch = key_head.scratch;
  const AttentionParams& params = key_head.params;
  const AttentionGradients& gradients = *key_head.call.gradients;
  const std::int64_t b = key_head.sequence.array_batch;
  const std::size_t d_padded = key_head.d_padded, e_padded = key_head.e_padded;
  const std::size_t keys = block.end - block.begin;
  const VF zero = hn::Zero(d);

  key_head.ahead->Step();
  float* derivatives = key_head.terms.needs_products() ? scratch.derivatives : nullptr;
  key_head.Scores(block, derivatives);
  key_head.ahead->Step();
  MF nan;
  MaskAndMaximum<kCareful>(block, scratch.scores, &nan);
  // dp: [keys][kLanes], in the place of the scores once those are weights.
  float* HWY_RESTRICT dp = scratch.weights;
  if (!kCareful && block.tiles) {
    auto* columns = reinterpret_cast<std::uint32_t*>(scratch.columns);
    TransposePairs(reinterpret_cast<const std::uint32_t*>(scratch.d_out_rows), key_head.e_depth / 2,
                   key_head.e_depth / 2, columns, kLanes);
    key_head.call.tiles->products(scratch.v_rows + block.begin * key_head.e_depth, columns,
                                  key_head.e_depth, keys, dp + block.begin * kLanes);
  } else {
    TransposeRows(scratch.d_out, e_padded, key_head.e, hn::Set(d, 1.0f), scratch.columns);
    Products(scratch.v + block.begin * e_padded, e_padded, scratch.columns, key_head.e, keys,
             dp + block.begin * kLanes);
  }
  key_head.ahead->Step();

  // tau in two floats; +inf, and with it weights of 0, for lanes without a query or without keys.
  HWY_ALIGN float high[kLanes], low[kLanes];
  const std::int64_t index = RowIndex(params, key_head.sequence, h, block.row);
  bool any_bad = false;
  for (std::size_t i = 0; i < kLanes; ++i) {
    const double tau =
        i < block.count ? gradients.tau[index + static_cast<std::int64_t>(i)] : -INFINITY;
    any_bad = any_bad || std::isnan(tau);
    high[i] = tau == -INFINITY ? kInfinityF : static_cast<float>(tau);
    low[i] = tau == -INFINITY ? 0.0f : static_cast<float>(tau - static_cast<double>(high[i]));
  }
  const VF tau_high = hn::Load(d, high), tau_low = hn::Load(d, low);
  const auto bad = hn::IsNaN(tau_high);

  VF total = zero, weighted = zero;
  for (std::size_t j = block.begin; j < block.end; ++j) {
    float* HWY_RESTRICT at = scratch.scores + j * kLanes;
    VF p, slope;
    map.Weigh(hn::Sub(hn::Sub(hn::Load(d, at), tau_high), tau_low), p, slope);
    hn::Store(p, d, at);
    hn::Store(slope, d, scratch.slopes + j * kLanes);
    VF g = hn::Load(d, dp + j * kLanes);
    if constexpr (kCareful) g = hn::IfThenElseZero(hn::Gt(slope, zero), g);
    total = hn::Add(total, slope);
    weighted = hn::MulAdd(slope, g, weighted);
  }
  const VF mean = hn::Div(weighted, hn::Max(total, hn::Set(d, 1e-30f)));
  const std::int64_t number = key_head.sequence.batch * params.heads + h;
  HeadSums& sums = key_head.call.heads[number];
  if (gradients.d_alpha != nullptr) {
    sums.d_alpha +=
        any_bad ? static_cast<double>(kNaNF)
                : AlphaGradient(block, map.Eps(), scratch.scores, scratch.slopes, dp, mean, total);
  }
  // On tiles, c scale goes into ds; without, into q and dq.
  const VF ds_factor = block.tiles ? hn::Load(d, block.c_scale) : hn::Set(d, 1.0f);
  VF d_slope = zero;
  const LaneTerms terms(key_head.terms, hn::Set(d, 1.0f));
  const bool with_terms = gradients.d_slopes != nullptr || terms.has_derivative();
  for (std::size_t j = block.begin; j < block.end; ++j) {
    float* HWY_RESTRICT at = dp + j * kLanes;
    const VF slope = hn::Load(d, scratch.slopes + j * kLanes);
    VF ds = hn::Mul(slope, hn::Sub(hn::Load(d, at), mean));
    if constexpr (kCareful) {
      const VF broken = hn::IfThenElseZero(Visible(block, j), hn::Set(d, kNaNF));
      ds = hn::IfThenElse(bad, broken, hn::IfThenElseZero(hn::Gt(slope, zero), ds));
      float* weight = scratch.scores + j * kLanes;
      hn::Store(hn::IfThenElse(bad, broken, hn::Load(d, weight)), d, weight);
    }
    if (with_terms) {
      const std::int64_t distance = block.distance - static_cast<std::int64_t>(j);
      d_slope = hn::NegMulAdd(ds, terms.Distances(distance), d_slope);
      if (derivatives != nullptr) {
        ds = ThroughTerms(ds, hn::Load(d, derivatives + j * kLanes));
      } else if (terms.has_derivative()) {
        ds = hn::Mul(ds, terms.Derivative(hn::Zero(d), distance));
      }
    }
    hn::Store(hn::Mul(ds, ds_factor), d, at);
  }
  if (gradients.d_slopes != nullptr) {
    HWY_ALIGN float lanes[kLanes];
    hn::Store(d_slope, d, lanes);
    for (std::size_t i = 0; i < block.count; ++i) sums.d_slope += lanes[i];
  }

  key_head.ahead->Step();
  float* p = scratch.scores + block.begin * kLanes;
  float* ds = dp + block.begin * kLanes;
  if (!kCareful && block.tiles) {
    TileGradients(key_head, block, h, p, ds);
    return;
  }
  if (gradients.dv.data != nullptr) {
    Spread<kCareful>(p, scratch.d_out, e_padded, keys, scratch.dv + block.begin * e_padded);
  }
  if (gradients.dk.data != nullptr) {
    for (std::size_t i = 0; i < kLanes; ++i) {
      const VF c_scale = hn::Set(d, block.c_scale[i]);
      for (std::size_t x = i * d_padded; x < (i + 1) * d_padded; x += kLanes) {
        hn::Store(hn::Mul(c_scale, hn::Load(d, scratch.q + x)), d, scratch.scaled_q + x);
      }
    }
    Spread<kCareful>(ds, scratch.scaled_q, d_padded, keys, scratch.dk + block.begin * d_padded);
  }
  if (gradients.dq.data == nullptr && gradients.d_length_scale == nullptr) return;
  Mix<kCareful>(ds, scratch.k + block.begin * d_padded, d_padded, keys, scratch.block);
  if (gradients.dq.data != nullptr) {
    StoreRows(scratch.block, d_padded, block.c_scale, block.count, key_head.d, gradients.dq, b, h,
              block.row, key_head.call.stream);
  }
  if (gradients.d_length_scale == nullptr) return;
  // dc = sum_j ds_j a_j scale <q, k_j> = scale <q, sum_j ds_j a_j k_j>.
  for (std::size_t i = 0; i < block.count; ++i) {
    VF sum = zero;
    for (std::size_t x = i * d_padded; x < (i + 1) * d_padded; x += kLanes) {
      const VF mixed = hn::Load(d, scratch.block + x);
      // A query that sees nothing may hold NaN.
      sum = hn::MulAdd(Seen<true>(mixed, hn::Load(d, scratch.q + x)), mixed, sum);
    }
    gradients.d_length_scale[index + static_cast<std::int64_t>(i)] =
        key_head.scale * static_cast<double>(hn::GetLane(hn::SumOfLanes(d, sum)));
  }
}

template <class Map>
HWY_INLINE void BackwardHead(LanesKeyHead& key_head, const Map& map, std::int64_t h) {
  const AttentionGradients& gradients = *key_head.call.gradients;
  const LanesScratch& scratch = key_head.scratch;
  const Span queries = key_head.sequence.q;
  const std::size_t e_padded = key_head.e_padded;
  key_head.Point(h, map.Unit());
  for (std::int64_t row = queries.begin; row < queries.end; row += kLanes) {
    Block block = key_head.Load(h, row, queries.end);
    const std::int64_t b = key_head.sequence.array_batch;
    double bound = 0.0;
    if (key_head.tiles) {
      bound = PackHalves(HeadRows::Of(gradients.d_out, b, h, row), block.count, key_head.e,
                         key_head.e_depth, scratch.d_out_rows);
      std::fill_n(scratch.d_out_rows + block.count * key_head.e_depth,
                  (kLanes - block.count) * key_head.e_depth, std::uint16_t{0});
    } else {
      bound = PackRows(HeadRows::Of(gradients.d_out, b, h, row), block.count, key_head.e, e_padded,
                       scratch.d_out);
    }
    if (!(bound * (1.0 + key_head.v_bound) * static_cast<double>(key_head.e) < kSafeScore)) {
      block.careful = true;
    }
    // Tiles work with c ds, which does not tell dc at c = 0.
    const bool divides =
        gradients.d_length_scale == nullptr ||
        std::find(block.c_scale, block.c_scale + kLanes, 0.0f) == block.c_scale + kLanes;
    block.tiles = block.tiles && !block.careful && divides;
    if (key_head.tiles && !block.tiles) {
      PackRows(HeadRows::Of(gradients.d_out, b, h, row), block.count, key_head.e, e_padded,
               scratch.d_out);
    }
    // Weights of lanes without a query are 0, but 0 times NaN is not.
    std::fill_n(scratch.d_out + block.count * e_padded, (kLanes - block.count) * e_padded, 0.0f);
    key_head.PrepareColumns(block, h);
    if (block.careful) {
      BackwardBlock<Map, true>(key_head, map, h, block);
    } else {
      BackwardBlock<Map, false>(key_head, map, h, block);
    }
  }
}

void LanesBackwardRange(const LanesCall& call, std::int64_t begin, std::int64_t end) {
  const AttentionParams& params = call.params;
  const AttentionGradients& gradients = *call.gradients;
  const std::int64_t group = params.heads / params.kv_heads;
  LanesScratch scratch(call);
#if defined(__x86_64__)
  const MatrixUnitSession session(kWithTiles && call.tiles != nullptr && call.tiles->real,
                                  TileShapes::kHalfDepth);
#endif
  for (std::int64_t i = begin; i < end; ++i) {
    LanesKeyHead key_head(call, (*call.key_heads)[i], scratch);
    Ahead ahead(call, key_head.sequence.q.size(), i + 1, end);
    key_head.ahead = &ahead;
    std::fill_n(scratch.dk, Padded(key_head.keys) * key_head.d_padded, 0.0f);
    std::fill_n(scratch.dv, Padded(key_head.keys) * key_head.e_padded, 0.0f);
    const std::int64_t b = key_head.sequence.array_batch;
    for (std::int64_t h = key_head.kv * group; h < (key_head.kv + 1) * group; ++h) {
      WithLanesMap(params.map, AlphaOf(params, h), key_head.keys,
                   [&](const auto& map) HWY_ATTR { BackwardHead(key_head, map, h); });
    }
    const auto store = [&](const MutableArray4& array, const float* from, std::size_t columns) {
      if (array.data == nullptr) return;
      StoreRows(from, Padded(columns), nullptr, key_head.keys, columns, array, b, key_head.kv,
                key_head.sequence.k.begin, call.stream);
    };
    store(gradients.dk, scratch.dk, key_head.d);
    store(gradients.dv, scratch.dv, key_head.e);
  }
  if (call.stream) hwy::FlushStream();
}

}  // namespace HWY_NAMESPACE
}  // namespace tsallis
HWY_AFTER_NAMESPACE();
#endif  // TSALLIS_VECTORS_HERE

#endif  // per-target include guard
