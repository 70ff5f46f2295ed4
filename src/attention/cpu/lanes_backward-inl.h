// Backward pass of the lane kernel: scores and weights again from tau, then products. Included once per
// instruction set.
#if defined(TSALLIS_ATTENTION_LANES_BACKWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TSALLIS_ATTENTION_LANES_BACKWARD_INL_H_
#undef TSALLIS_ATTENTION_LANES_BACKWARD_INL_H_
#else
#define TSALLIS_ATTENTION_LANES_BACKWARD_INL_H_
#endif

#include "attention/cpu/lanes_problem-inl.h"

#if TSALLIS_LANES_HERE
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
HWY_NOINLINE void TileGradients(const LanesProblem& problem, const Block& block, std::int64_t h,
                                float* p, float* ds) {
  const LanesScratch& scratch = problem.scratch;
  const AttentionGradients& gradients = *problem.call.gradients;
  const std::size_t d_padded = problem.d_padded, e_padded = problem.e_padded;
  const std::size_t keys = block.end - block.begin;
  if (gradients.d_length_scale != nullptr) {
    // dc = sum_j ds_j a_j scale <q, k_j>.
    auto* columns = reinterpret_cast<std::uint32_t*>(scratch.columns);
    TransposePairs(reinterpret_cast<const std::uint32_t*>(scratch.q_rows), problem.d_depth / 2,
                   problem.d_depth / 2, columns, kLanes);
    float* products = scratch.slopes + block.begin * kLanes;
    problem.call.tiles->products(scratch.k_rows + block.begin * problem.d_depth, columns,
                                 problem.d_depth, keys, products);
    const DF d;
    VF sum = hn::Zero(d);
    for (std::size_t j = 0; j < keys; ++j) {
      sum = hn::MulAdd(hn::Load(d, ds + j * kLanes), hn::Load(d, products + j * kLanes), sum);
    }
    HWY_ALIGN float lanes[kLanes];
    hn::Store(sum, d, lanes);
    const std::int64_t index = RowIndex(problem.params, problem.sequence, h, block.row);
    for (std::size_t i = 0; i < block.count; ++i) {
      gradients.d_length_scale[index + static_cast<std::int64_t>(i)] =
          static_cast<double>(lanes[i]) * problem.scale / block.c_scale[i];
    }
  }
  if (gradients.dv.data != nullptr) {
    PairRows(scratch.d_out_rows, problem.e_depth, kLanes, e_padded, scratch.lane_pairs);
    for (int part = 0; part < 2; ++part) {
      problem.call.tiles->round(p, keys, scratch.weight_pairs, scratch.weight_rows, p);
      problem.call.tiles->spread(scratch.weight_rows, scratch.lane_pairs, e_padded, keys,
                                 scratch.dv + block.begin * e_padded);
    }
  }
  const bool wants_dk = gradients.dk.data != nullptr;
  if (wants_dk) PairRows(scratch.q_rows, problem.d_depth, kLanes, d_padded, scratch.lane_pairs);
  MixOnTiles(problem, block, ds, ds, scratch.k_pairs, d_padded, scratch.weight_rows,
             [&](const std::uint16_t* rows) {
               if (!wants_dk) return;
               problem.call.tiles->spread(rows, scratch.lane_pairs, d_padded, keys,
                                          scratch.dk + block.begin * d_padded);
             });
  if (gradients.dq.data != nullptr) {
    StoreRows(scratch.block, d_padded, nullptr, block.count, problem.d, gradients.dq,
              problem.sequence.array_batch, h, block.row, problem.call.stream);
  }
}

template <class Map, bool kCareful>
HWY_NOINLINE void BackwardBlock(const LanesProblem& problem, const Map& map, std::int64_t h,
                                const Block& block) {
  const DF d;
  const LanesScratch& scratch = problem.scratch;
  const AttentionParams& params = problem.params;
  const AttentionGradients& gradients = *problem.call.gradients;
  const std::int64_t b = problem.sequence.array_batch;
  const std::size_t d_padded = problem.d_padded, e_padded = problem.e_padded;
  const std::size_t keys = block.end - block.begin;
  const VF zero = hn::Zero(d);

  problem.ahead->Step();
  float* derivatives = problem.terms.softcap != 0.0 ? scratch.derivatives : nullptr;
  problem.Scores(block, derivatives);
  problem.ahead->Step();
  MF nan;
  MaskAndMaximum<kCareful>(block, scratch.scores, &nan);
  // dp: [keys][kLanes], in the place of the scores once those are weights.
  float* HWY_RESTRICT dp = scratch.weights;
  if (!kCareful && block.tiles) {
    auto* columns = reinterpret_cast<std::uint32_t*>(scratch.columns);
    TransposePairs(reinterpret_cast<const std::uint32_t*>(scratch.d_out_rows), problem.e_depth / 2,
                   problem.e_depth / 2, columns, kLanes);
    problem.call.tiles->products(scratch.v_rows + block.begin * problem.e_depth, columns,
                                 problem.e_depth, keys, dp + block.begin * kLanes);
  } else {
    TransposeRows(scratch.d_out, e_padded, problem.e, hn::Set(d, 1.0f), scratch.columns);
    Products(scratch.v + block.begin * e_padded, e_padded, scratch.columns, problem.e, keys,
             dp + block.begin * kLanes);
  }
  problem.ahead->Step();

  // tau in two floats; +inf, and with it weights of 0, for lanes without a query or without keys.
  HWY_ALIGN float high[kLanes], low[kLanes];
  const std::int64_t index = RowIndex(params, problem.sequence, h, block.row);
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
  const std::int64_t number = problem.sequence.batch * params.heads + h;
  HeadSums& sums = problem.call.heads[number];
  if (gradients.d_alpha != nullptr) {
    sums.d_alpha +=
        any_bad ? static_cast<double>(kNaNF)
                : AlphaGradient(block, map.Eps(), scratch.scores, scratch.slopes, dp, mean, total);
  }
  // On tiles, c scale goes into ds; without, into q and dq.
  const VF ds_factor = block.tiles ? hn::Load(d, block.c_scale) : hn::Set(d, 1.0f);
  VF d_slope = zero;
  const LaneTerms terms(problem.terms, hn::Set(d, 1.0f));
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

  problem.ahead->Step();
  float* p = scratch.scores + block.begin * kLanes;
  float* ds = dp + block.begin * kLanes;
  if (!kCareful && block.tiles) {
    TileGradients(problem, block, h, p, ds);
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
    StoreRows(scratch.block, d_padded, block.c_scale, block.count, problem.d, gradients.dq, b, h,
              block.row, problem.call.stream);
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
        problem.scale * static_cast<double>(hn::GetLane(hn::SumOfLanes(d, sum)));
  }
}

template <class Map>
HWY_INLINE void BackwardHead(LanesProblem& problem, const Map& map, std::int64_t h) {
  const AttentionGradients& gradients = *problem.call.gradients;
  const LanesScratch& scratch = problem.scratch;
  const Span queries = problem.sequence.q;
  const std::size_t e_padded = problem.e_padded;
  problem.Point(h, map.Unit());
  for (std::int64_t row = queries.begin; row < queries.end; row += kLanes) {
    Block block = problem.Load(h, row, queries.end);
    const std::int64_t b = problem.sequence.array_batch;
    double bound = 0.0;
    if (problem.tiles) {
      bound = PackHalves(gradients.d_out, b, h, row, block.count, problem.e, problem.e_depth,
                         scratch.d_out_rows);
      std::fill_n(scratch.d_out_rows + block.count * problem.e_depth,
                  (kLanes - block.count) * problem.e_depth, std::uint16_t{0});
    } else {
      bound = PackRows(gradients.d_out, b, h, row, block.count, problem.e, e_padded, scratch.d_out);
    }
    if (!(bound * (1.0 + problem.v_bound) * static_cast<double>(problem.e) < kSafeScore)) {
      block.careful = true;
    }
    // Tiles work with c ds, which does not tell dc at c = 0.
    const bool divides =
        gradients.d_length_scale == nullptr ||
        std::find(block.c_scale, block.c_scale + kLanes, 0.0f) == block.c_scale + kLanes;
    block.tiles = block.tiles && !block.careful && divides;
    if (problem.tiles && !block.tiles) {
      PackRows(gradients.d_out, b, h, row, block.count, problem.e, e_padded, scratch.d_out);
    }
    // Weights of lanes without a query are 0, but 0 times NaN is not.
    std::fill_n(scratch.d_out + block.count * e_padded, (kLanes - block.count) * e_padded, 0.0f);
    problem.PrepareColumns(block, h);
    if (block.careful) {
      BackwardBlock<Map, true>(problem, map, h, block);
    } else {
      BackwardBlock<Map, false>(problem, map, h, block);
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
    LanesProblem problem(call, (*call.problems)[i], scratch);
    Ahead ahead(call, problem.sequence.q.size(), i + 1, end);
    problem.ahead = &ahead;
    std::fill_n(scratch.dk, Padded(problem.keys) * problem.d_padded, 0.0f);
    std::fill_n(scratch.dv, Padded(problem.keys) * problem.e_padded, 0.0f);
    const std::int64_t b = problem.sequence.array_batch;
    for (std::int64_t h = problem.kv * group; h < (problem.kv + 1) * group; ++h) {
      WithLanesMap(params.map, AlphaOf(params, h), problem.keys,
                   [&](const auto& map) HWY_ATTR { BackwardHead(problem, map, h); });
    }
    const auto store = [&](const MutableArray4& array, const float* from, std::size_t columns) {
      if (array.data == nullptr) return;
      StoreRows(from, Padded(columns), nullptr, problem.keys, columns, array, b, problem.kv,
                problem.sequence.k.begin, call.stream);
    };
    store(gradients.dk, scratch.dk, problem.d);
    store(gradients.dv, scratch.dv, problem.e);
  }
  if (call.stream) hwy::FlushStream();
}

}  // namespace HWY_NAMESPACE
}  // namespace tsallis
HWY_AFTER_NAMESPACE();
#endif  // TSALLIS_LANES_HERE

#endif  // per-target include guard
