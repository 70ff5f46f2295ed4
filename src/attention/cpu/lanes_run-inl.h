// Forward and backward of the lane kernel over a range of (sequence, key head) problems. Included
// once per instruction set.
#if defined(TSALLIS_ATTENTION_LANES_RUN_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TSALLIS_ATTENTION_LANES_RUN_INL_H_
#undef TSALLIS_ATTENTION_LANES_RUN_INL_H_
#else
#define TSALLIS_ATTENTION_LANES_RUN_INL_H_
#endif

#include <hwy/highway.h>

#include "attention/cpu/lanes.h"
#include "attention/geometry.h"

// Arrays of vectors need a known length, blocks of four lanes need four of them.
#if !HWY_HAVE_SCALABLE && HWY_TARGET != HWY_SCALAR
#include "attention/cpu/lanes_map-inl.h"
#include "attention/cpu/lanes_pairs-inl.h"
#include "attention/cpu/lanes_tiles-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tsallis {
namespace HWY_NAMESPACE {

// Scores and their factors are finite beyond doubt up to here.
constexpr double kSafeScore = 1e30;

double LoadTerm(const ConstArray4& array, std::int64_t b, std::int64_t h, std::int64_t row,
                double otherwise) {
  if (array.data == nullptr) return otherwise;
  return LoadElement<double>(array.data, array.dtype, Offset(array.strides, b, h, row));
}

// Fetches what the next problem of this thread reads, in small shares between the parts of this
// one's blocks: a block's worth at once waits for the memory.
class Ahead {
 public:
  static constexpr std::int64_t kStepsPerBlock = 4;

  // queries: of the problem at hand. next: the problem to fetch, none if it is `end`.
  Ahead(const LanesCall& call, std::int64_t queries, std::int64_t next, std::int64_t end)
      : call_(call), params_(call.params) {
    const std::int64_t group = params_.heads / params_.kv_heads;
    constexpr auto lanes = static_cast<std::int64_t>(kLanes);
    steps_ = group * ((queries + lanes - 1) / lanes) * kStepsPerBlock;
    if (next >= end) return;
    sequence_ = Sequence::Of(params_, next / params_.kv_heads);
    kv_ = next % params_.kv_heads;
    live_ = true;
  }

  void Step() {
    if (!live_) return;
    const std::int64_t b = sequence_.array_batch, group = params_.heads / params_.kv_heads;
    const auto share = [&](std::int64_t all) { return all * (step_ + 1) / steps_; };
    const auto d = static_cast<std::size_t>(params_.head_dim);
    const auto e = static_cast<std::size_t>(params_.value_dim);
    const std::int64_t keys = sequence_.k.size(), queries = sequence_.q.size() * group;
    const std::int64_t k_end = share(keys), q_end = share(queries);
    PrefetchRows(params_.k, b, kv_, sequence_.k.begin + k_at_, k_end - k_at_, d);
    PrefetchRows(params_.v, b, kv_, sequence_.k.begin + k_at_, k_end - k_at_, e);
    k_at_ = k_end;
    while (q_at_ < q_end) {
      const std::int64_t h = q_at_ / sequence_.q.size(), row = q_at_ % sequence_.q.size();
      const std::int64_t count = std::min(q_end - q_at_, sequence_.q.size() - row);
      const std::int64_t first = sequence_.q.begin + row;
      PrefetchRows(params_.q, b, kv_ * group + h, first, count, d);
      if (call_.gradients != nullptr) {
        PrefetchRows(call_.gradients->d_out, b, kv_ * group + h, first, count, e);
      }
      q_at_ += count;
    }
    ++step_;
  }

 private:
  const LanesCall& call_;
  const AttentionParams& params_;
  Sequence sequence_;
  std::int64_t kv_ = 0, steps_ = 0, step_ = 0, k_at_ = 0, q_at_ = 0;
  bool live_ = false;
};

// One (sequence, key head) problem: keys and values in float32, and what its blocks share.
struct LanesProblem {
  LanesProblem(const LanesCall& lanes_call, std::int64_t problem, LanesScratch& lanes_scratch)
      : call(lanes_call),
        params(lanes_call.params),
        scratch(lanes_scratch),
        sequence(Sequence::Of(params, problem / params.kv_heads)),
        kv(problem % params.kv_heads),
        keys(static_cast<std::size_t>(sequence.k.size())),
        d(static_cast<std::size_t>(params.head_dim)),
        e(static_cast<std::size_t>(params.value_dim)),
        d_padded(Padded(d)),
        e_padded(Padded(e)),
        d_depth(PaddedDepth(d)),
        e_depth(PaddedDepth(e)),
        tiles(kWithTiles && call.tiles),
        scale(ScaleOf(params)),
        has_length_scale(params.terms.length_scale.data != nullptr) {
    if (!tiles) {
      PackFloats();
      return;
    }
    const std::int64_t b = sequence.array_batch, begin = sequence.k.begin;
    k_bound = PackHalves(params.k, b, kv, begin, keys, d, d_depth, scratch.k_rows);
    v_bound = PackHalves(params.v, b, kv, begin, keys, e, e_depth, scratch.v_rows);
    const std::size_t depth = PaddedDepth(keys), rest = depth - keys;
    std::fill_n(scratch.k_rows + keys * d_depth, rest * d_depth, std::uint16_t{0});
    std::fill_n(scratch.v_rows + keys * e_depth, rest * e_depth, std::uint16_t{0});
    if (call.gradients == nullptr) {
      PairRows(scratch.v_rows, e_depth, depth, e_padded, scratch.v_pairs);
    } else {
      PairRows(scratch.k_rows, d_depth, depth, d_padded, scratch.k_pairs);
    }
  }

  // Keys and values as float32: what vectors work on, and careful blocks in any case.
  void PackFloats() {
    if (has_floats) return;
    const std::int64_t b = sequence.array_batch;
    k_bound = PackRows(params.k, b, kv, sequence.k.begin, keys, d, d_padded, scratch.k);
    v_bound = PackRows(params.v, b, kv, sequence.k.begin, keys, e, e_padded, scratch.v);
    const std::size_t rest = Padded(keys) - keys;
    std::fill_n(scratch.k + keys * d_padded, rest * d_padded, 0.0f);
    std::fill_n(scratch.v + keys * e_padded, rest * e_padded, 0.0f);
    has_floats = true;
  }

  // The block from query `row` on: its geometry, and q in scratch. `unit` is the map's.
  Block Load(std::int64_t h, std::int64_t row, double unit);
  // What Scores needs of q.
  void PrepareColumns(const Block& block, std::int64_t h, double unit);
  // scratch.scores = z of the block, terms included, masks not.
  void Scores(const Block& block, double unit) const;

  const LanesCall& call;
  const AttentionParams& params;
  LanesScratch& scratch;
  Sequence sequence;
  std::int64_t kv;
  std::size_t keys, d, e, d_padded, e_padded, d_depth, e_depth;
  bool tiles;
  bool has_floats = false;
  double scale;
  bool has_length_scale;
  float k_bound, v_bound;  // largest magnitudes
  Ahead* ahead = nullptr;
  // Of the head at hand.
  double slope = 0.0;
};

HWY_INLINE Block LanesProblem::Load(std::int64_t h, std::int64_t row, double unit) {
  Block block;
  const std::int64_t b = sequence.array_batch, first_key = sequence.k.begin;
  block.row = row;
  block.count = static_cast<std::size_t>(
      std::min<std::int64_t>(static_cast<std::int64_t>(kLanes), sequence.q.end - row));
  block.distance = sequence.Distance(row, first_key);
  std::size_t begin = keys, end = 0, seen_begin = 0, seen_end = keys;
  for (std::size_t lane = 0; lane < block.count; ++lane) {
    const Span span = sequence.VisibleKeys(params.mask, row + static_cast<std::int64_t>(lane));
    // A row that sees nothing may name any empty span.
    const auto size = static_cast<std::size_t>(span.size());
    const std::size_t first = size == 0 ? 0 : static_cast<std::size_t>(span.begin - first_key);
    block.first[lane] = static_cast<std::int32_t>(first);
    block.last[lane] = static_cast<std::int32_t>(first + size);
    begin = std::min(begin, size == 0 ? keys : first);
    end = std::max(end, first + size);
    seen_begin = std::max(seen_begin, first);
    seen_end = std::min(seen_end, first + size);
  }
  double largest_c = 1.0;
  std::fill_n(block.c_scale, kLanes, static_cast<float>(scale));
  for (std::size_t lane = 0; has_length_scale && lane < block.count; ++lane) {
    const double c =
        LoadTerm(params.terms.length_scale, b, h, row + static_cast<std::int64_t>(lane), 1.0);
    block.c_scale[lane] = static_cast<float>(c * scale);
    // NaN wins.
    if (!(std::abs(c) <= largest_c)) largest_c = std::abs(c);
  }
  for (std::size_t lane = block.count; lane < kLanes; ++lane) {
    block.first[lane] = block.first[block.count - 1];
    block.last[lane] = block.last[block.count - 1];
    block.c_scale[lane] = block.c_scale[block.count - 1];
  }
  if (begin < end) {
    const std::size_t step = tiles ? PaddedDepth(1) : kPadding;
    block.begin = begin / step * step;
    block.end = Padded(end);
  }
  seen_begin = Padded(seen_begin);
  seen_end = seen_end / kPadding * kPadding;
  const bool common = seen_begin < seen_end;
  block.seen_begin = common ? seen_begin : block.end;
  block.seen_end = common ? seen_end : block.end;

  double q_bound;
  if (tiles) {
    q_bound = PackHalves(params.q, b, h, row, block.count, d, d_depth, scratch.q_rows);
    for (std::size_t lane = block.count; lane < kLanes; ++lane) {
      std::copy_n(scratch.q_rows, d_depth, scratch.q_rows + lane * d_depth);
    }
  } else {
    q_bound = PackRows(params.q, b, h, row, block.count, d, d_padded, scratch.q);
  }
  // a_d of the scale-invariant term stays below 10 for any distance that memory holds.
  const double reach = std::abs(static_cast<double>(block.distance)) + static_cast<double>(keys);
  const double bound =
      10.0 * q_bound * k_bound * static_cast<double>(d) * largest_c * scale * unit +
      std::abs(slope) * unit * reach + q_bound + k_bound + v_bound;
  block.careful = !(bound < kSafeScore);
  block.tiles = tiles && !block.careful;
  return block;
}

HWY_INLINE void LanesProblem::PrepareColumns(const Block& block, std::int64_t h, double unit) {
  if (block.tiles) {
    auto* columns = reinterpret_cast<std::uint32_t*>(scratch.columns);
    TransposePairs(reinterpret_cast<const std::uint32_t*>(scratch.q_rows), d_depth / 2, d_depth / 2,
                   columns, kLanes);
    return;
  }
  if (tiles) {
    PackFloats();
    PackRows(params.q, sequence.array_batch, h, block.row, block.count, d, d_padded, scratch.q);
  }
  for (std::size_t lane = block.count; lane < kLanes; ++lane) {
    std::copy_n(scratch.q + (block.count - 1) * d_padded, d_padded, scratch.q + lane * d_padded);
  }
  const DF df;
  TransposeRows(scratch.q, d_padded, d,
                hn::Mul(hn::Load(df, block.c_scale), hn::Set(df, static_cast<float>(unit))),
                scratch.columns);
}

HWY_INLINE void LanesProblem::Scores(const Block& block, double unit) const {
  if (block.tiles) {
    TileProducts(scratch.k_rows + block.begin * d_depth,
                 reinterpret_cast<const std::uint32_t*>(scratch.columns), d_depth,
                 block.end - block.begin, scratch.scores + block.begin * kLanes);
    const DF df;
    const VF factor = hn::Mul(hn::Load(df, block.c_scale), hn::Set(df, static_cast<float>(unit)));
    for (std::size_t j = block.begin; j < block.end; ++j) {
      float* at = scratch.scores + j * kLanes;
      hn::Store(hn::Mul(hn::Load(df, at), factor), df, at);
    }
  } else {
    Products(scratch.k + block.begin * d_padded, d_padded, scratch.columns, d,
             block.end - block.begin, scratch.scores + block.begin * kLanes);
  }
  if (slope == 0.0 && call.distances.empty()) return;
  const DF df;
  const VF minus_slope = hn::Set(df, static_cast<float>(-slope * unit));
  const VF unit_all = hn::Set(df, static_cast<float>(unit));
  const VF lane = hn::Iota(df, 0.0f);
  for (std::size_t j = block.begin; j < block.end; ++j) {
    const std::int64_t distance = block.distance - static_cast<std::int64_t>(j);
    VF z = hn::Load(df, scratch.scores + j * kLanes);
    if (!call.distances.empty()) {
      const auto at = static_cast<std::size_t>(distance - call.distances.least);
      z = hn::MulAdd(z, hn::LoadU(df, call.distances.a.data() + at),
                     hn::Mul(unit_all, hn::LoadU(df, call.distances.m.data() + at)));
    }
    const VF apart = hn::Abs(hn::Add(lane, hn::Set(df, static_cast<float>(distance))));
    z = hn::MulAdd(minus_slope, apart, z);
    hn::Store(z, df, scratch.scores + j * kLanes);
  }
}

// scratch.block = sum_j weights[j][lane] pairs[j] on tiles. weights: [block.begin ...][kLanes];
// pairs: [keys depth / 2][width]. Rounded rows of the weights go to `rows` unless null.
HWY_INLINE void MixOnTiles(const LanesProblem& problem, const Block& block, const float* weights,
                           const std::uint32_t* pairs, std::size_t width, std::uint16_t* rows) {
  const LanesScratch& scratch = problem.scratch;
  const std::size_t keys = block.end - block.begin, depth = PaddedDepth(keys);
  RoundWeights(weights, keys, scratch.weight_pairs, rows);
  std::fill_n(scratch.weight_pairs + keys / 2 * kLanes, (depth - keys) / 2 * kLanes, 0u);
  for (std::size_t j = 0; j < depth / 2; j += kLanes) {
    TransposePairs(scratch.weight_pairs + j * kLanes, kLanes, kLanes, scratch.weight_columns + j,
                   depth / 2);
  }
  TileMix(reinterpret_cast<const std::uint16_t*>(scratch.weight_columns), depth,
          pairs + block.begin / 2 * width, width, depth, scratch.block);
}

// ---- forward ------------------------------------------------------------------------------------

template <class Map, bool kCareful>
HWY_NOINLINE void ForwardBlock(const LanesProblem& problem, const Map& map, std::int64_t h,
                               const Block& block) {
  const DF d;
  const LanesScratch& scratch = problem.scratch;
  const AttentionParams& params = problem.params;
  const AttentionOutputs& outputs = *problem.call.outputs;
  const double unit = map.Unit();
  problem.ahead->Step();
  problem.Scores(block, unit);
  problem.ahead->Step();
  MF nan;
  const Maxima maxima = MaskAndMaximum<kCareful>(block, scratch.scores, &nan);
  const VF top = maxima.Top(), infinity = hn::Set(d, kInfinityF);
  const auto bad = hn::Or(nan, hn::Eq(top, infinity));
  const auto active = hn::AndNot(bad, hn::Gt(top, hn::Neg(infinity)));
  // -inf less -inf would be NaN.
  Solution solution = map.Solve(block, maxima, hn::IfThenElseZero(active, top), active,
                                scratch.scores, scratch.weights);
  if constexpr (kCareful) {
    for (std::size_t j = block.begin; j < block.end; ++j) {
      const VF broken = hn::IfThenElseZero(Visible(block, j), hn::Set(d, kNaNF));
      float* at = scratch.weights + j * kLanes;
      hn::Store(hn::IfThenElse(bad, broken, hn::Load(d, at)), d, at);
    }
    solution.factor = hn::IfThenElse(bad, hn::Set(d, 1.0f), solution.factor);
  }
  problem.ahead->Step();
  if (!kCareful && block.tiles) {
    MixOnTiles(problem, block, scratch.weights + block.begin * kLanes, scratch.v_pairs,
               problem.e_padded, nullptr);
  } else {
    Mix<kCareful>(scratch.weights + block.begin * kLanes,
                  scratch.v + block.begin * problem.e_padded, problem.e_padded,
                  block.end - block.begin, scratch.block);
  }
  problem.ahead->Step();
  HWY_ALIGN float factor[kLanes];
  hn::Store(solution.factor, d, factor);
  const std::int64_t b = problem.sequence.array_batch;
  StoreRows(scratch.block, problem.e_padded, factor, block.count, problem.e, outputs.out, b, h,
            block.row, problem.call.stream);

  const std::int64_t index = RowIndex(params, problem.sequence, h, block.row);
  HWY_ALIGN float lanes[4][kLanes];
  hn::Store(hn::IfThenElse(nan, hn::Set(d, kNaNF), top), d, lanes[0]);
  if (outputs.maximum != nullptr) {
    for (std::size_t i = 0; i < block.count; ++i) {
      outputs.maximum[index + static_cast<std::int64_t>(i)] =
          static_cast<double>(lanes[0][i]) / unit;
    }
  }
  // Infinite maxima are tau of empty rows; a row with +inf is as bad as one with NaN.
  hn::Store(hn::IfThenElse(bad, hn::Set(d, kNaNF), top), d, lanes[0]);
  if (outputs.tau != nullptr) {
    hn::Store(solution.high, d, lanes[1]);
    hn::Store(solution.low, d, lanes[2]);
    for (std::size_t i = 0; i < block.count; ++i) {
      const double maximum = lanes[0][i];
      const double tau = maximum + static_cast<double>(lanes[1][i]) + lanes[2][i];
      outputs.tau[index + static_cast<std::int64_t>(i)] = std::isfinite(maximum) ? tau : maximum;
    }
  }
  if (outputs.support_size == nullptr && outputs.entropy == nullptr) return;
  VF support, entropy;
  Describe(block, scratch.weights, solution.factor, &support, &entropy);
  hn::Store(hn::IfThenElse(bad, hn::Set(d, -1.0f), support), d, lanes[1]);
  hn::Store(hn::IfThenElse(bad, hn::Set(d, kNaNF), entropy), d, lanes[2]);
  for (std::size_t i = 0; i < block.count; ++i) {
    const std::int64_t at = index + static_cast<std::int64_t>(i);
    if (outputs.support_size != nullptr) {
      outputs.support_size[at] = static_cast<std::int64_t>(lanes[1][i]);
    }
    if (outputs.entropy != nullptr) outputs.entropy[at] = lanes[2][i];
  }
}

// Rows of no sequence.
void ForwardOutside(const LanesProblem& problem, std::int64_t h, const Span& rows) {
  const AttentionOutputs& outputs = *problem.call.outputs;
  std::fill_n(problem.scratch.block, problem.e_padded, 0.0f);
  for (std::int64_t row = rows.begin; row < rows.end; ++row) {
    StoreRows(problem.scratch.block, problem.e_padded, nullptr, 1, problem.e, outputs.out,
              problem.sequence.array_batch, h, row, false);
    const std::int64_t index = RowIndex(problem.params, problem.sequence, h, row);
    if (outputs.tau != nullptr) outputs.tau[index] = -INFINITY;
    if (outputs.support_size != nullptr) outputs.support_size[index] = 0;
    if (outputs.entropy != nullptr) outputs.entropy[index] = 0.0;
    if (outputs.maximum != nullptr) outputs.maximum[index] = -INFINITY;
  }
}

void LanesForwardRange(const LanesCall& call, std::int64_t begin, std::int64_t end) {
  const AttentionParams& params = call.params;
  const std::int64_t group = params.heads / params.kv_heads;
  LanesScratch scratch(call);
  const TileSession session(kWithTiles && call.tiles);
  for (std::int64_t i = begin; i < end; ++i) {
    LanesProblem problem(call, i, scratch);
    Ahead ahead(call, problem.sequence.q.size(), i + 1, end);
    problem.ahead = &ahead;
    const Span queries = problem.sequence.q;
    for (std::int64_t h = problem.kv * group; h < (problem.kv + 1) * group; ++h) {
      problem.slope = LoadTerm(params.terms.alibi_slopes, problem.sequence.array_batch, h, 0, 0.0);
      WithLanesMap(params.map, AlphaOf(params, h), problem.keys, [&](const auto& map) HWY_ATTR {
        using Map = std::decay_t<decltype(map)>;
        for (std::int64_t row = queries.begin; row < queries.end; row += kLanes) {
          const Block block = problem.Load(h, row, map.Unit());
          problem.PrepareColumns(block, h, map.Unit());
          if (block.careful) {
            ForwardBlock<Map, true>(problem, map, h, block);
          } else {
            ForwardBlock<Map, false>(problem, map, h, block);
          }
        }
      });
      if (params.ranges.packed) continue;
      ForwardOutside(problem, h, {0, queries.begin});
      ForwardOutside(problem, h, {std::max(queries.begin, queries.end), params.q_len});
    }
  }
  if (call.stream) hwy::FlushStream();
}

// ---- backward -----------------------------------------------------------------------------------

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

// dq, dk, dv and dc of a block from its weights and ds, c scale included. p, ds: [block keys][kLanes].
HWY_NOINLINE void TileGradients(const LanesProblem& problem, const Block& block, std::int64_t h,
                                const float* p, const float* ds) {
  const LanesScratch& scratch = problem.scratch;
  const AttentionGradients& gradients = *problem.call.gradients;
  const std::size_t d_padded = problem.d_padded, e_padded = problem.e_padded;
  const std::size_t keys = block.end - block.begin;
  if (gradients.dv.data != nullptr) {
    RoundWeights(p, keys, scratch.weight_pairs, scratch.weight_rows);
    PairRows(scratch.d_out_rows, problem.e_depth, kLanes, e_padded, scratch.lane_pairs);
    TileSpread(scratch.weight_rows, scratch.lane_pairs, e_padded, keys,
               scratch.dv + block.begin * e_padded);
  }
  MixOnTiles(problem, block, ds, scratch.k_pairs, d_padded, scratch.weight_rows);
  if (gradients.dk.data != nullptr) {
    PairRows(scratch.q_rows, problem.d_depth, kLanes, d_padded, scratch.lane_pairs);
    TileSpread(scratch.weight_rows, scratch.lane_pairs, d_padded, keys,
               scratch.dk + block.begin * d_padded);
  }
  if (gradients.dq.data != nullptr) {
    StoreRows(scratch.block, d_padded, nullptr, block.count, problem.d, gradients.dq,
              problem.sequence.array_batch, h, block.row, problem.call.stream);
  }
  if (gradients.d_length_scale == nullptr) return;
  // dc = sum_j ds_j a_j scale <q, k_j>, once more from the products: from dq, whose ds were rounded to
  // bfloat16, it would have lost digits to cancellation.
  auto* columns = reinterpret_cast<std::uint32_t*>(scratch.columns);
  TransposePairs(reinterpret_cast<const std::uint32_t*>(scratch.q_rows), problem.d_depth / 2,
                 problem.d_depth / 2, columns, kLanes);
  float* products = scratch.slopes + block.begin * kLanes;
  TileProducts(scratch.k_rows + block.begin * problem.d_depth, columns, problem.d_depth, keys,
               products);
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
  problem.Scores(block, map.Unit());
  problem.ahead->Step();
  MF nan;
  MaskAndMaximum<kCareful>(block, scratch.scores, &nan);
  // dp: [keys][kLanes], in the place of the scores once those are weights.
  float* HWY_RESTRICT dp = scratch.weights;
  if (!kCareful && block.tiles) {
    auto* columns = reinterpret_cast<std::uint32_t*>(scratch.columns);
    TransposePairs(reinterpret_cast<const std::uint32_t*>(scratch.d_out_rows), problem.e_depth / 2,
                   problem.e_depth / 2, columns, kLanes);
    TileProducts(scratch.v_rows + block.begin * problem.e_depth, columns, problem.e_depth, keys,
                 dp + block.begin * kLanes);
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
  if (problem.call.d_alpha != nullptr) {
    problem.call.d_alpha[number] +=
        any_bad ? static_cast<double>(kNaNF)
                : AlphaGradient(block, map.Eps(), scratch.scores, scratch.slopes, dp, mean, total);
  }
  // On tiles, c scale goes into ds; without, into q and dq.
  const VF ds_factor = block.tiles ? hn::Load(d, block.c_scale) : hn::Set(d, 1.0f);
  VF d_slope = zero;
  const VF lane = hn::Iota(d, 0.0f);
  const bool with_distances = problem.call.d_slopes != nullptr || !problem.call.distances.empty();
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
    if (with_distances) {
      const std::int64_t distance = block.distance - static_cast<std::int64_t>(j);
      const VF apart = hn::Abs(hn::Add(lane, hn::Set(d, static_cast<float>(distance))));
      d_slope = hn::NegMulAdd(ds, apart, d_slope);
      if (!problem.call.distances.empty()) {
        const auto place = static_cast<std::size_t>(distance - problem.call.distances.least);
        ds = hn::Mul(ds, hn::LoadU(d, problem.call.distances.a.data() + place));
      }
    }
    hn::Store(hn::Mul(ds, ds_factor), d, at);
  }
  if (problem.call.d_slopes != nullptr) {
    HWY_ALIGN float lanes[kLanes];
    hn::Store(d_slope, d, lanes);
    for (std::size_t i = 0; i < block.count; ++i) problem.call.d_slopes[number] += lanes[i];
  }

  problem.ahead->Step();
  const float* p = scratch.scores + block.begin * kLanes;
  const float* ds = dp + block.begin * kLanes;
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

void StoreZeroRows(const LanesProblem& problem, const MutableArray4& array, std::int64_t h,
                   const Span& rows, std::size_t columns) {
  if (array.data == nullptr) return;
  std::fill_n(problem.scratch.block, Padded(columns), 0.0f);
  for (std::int64_t row = rows.begin; row < rows.end; ++row) {
    StoreRows(problem.scratch.block, Padded(columns), nullptr, 1, columns, array,
              problem.sequence.array_batch, h, row, false);
  }
}

template <class Map>
HWY_INLINE void BackwardHead(LanesProblem& problem, const Map& map, std::int64_t h) {
  const AttentionGradients& gradients = *problem.call.gradients;
  const LanesScratch& scratch = problem.scratch;
  const Span queries = problem.sequence.q;
  const std::size_t e_padded = problem.e_padded;
  for (std::int64_t row = queries.begin; row < queries.end; row += kLanes) {
    Block block = problem.Load(h, row, map.Unit());
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
    problem.PrepareColumns(block, h, map.Unit());
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
  const TileSession session(kWithTiles && call.tiles);
  for (std::int64_t i = begin; i < end; ++i) {
    LanesProblem problem(call, i, scratch);
    Ahead ahead(call, problem.sequence.q.size(), i + 1, end);
    problem.ahead = &ahead;
    const Span queries = problem.sequence.q, keys = problem.sequence.k;
    std::fill_n(scratch.dk, Padded(problem.keys) * problem.d_padded, 0.0f);
    std::fill_n(scratch.dv, Padded(problem.keys) * problem.e_padded, 0.0f);
    const std::int64_t b = problem.sequence.array_batch;
    for (std::int64_t h = problem.kv * group; h < (problem.kv + 1) * group; ++h) {
      problem.slope = LoadTerm(params.terms.alibi_slopes, b, h, 0, 0.0);
      WithLanesMap(params.map, AlphaOf(params, h), problem.keys,
                   [&](const auto& map) HWY_ATTR { BackwardHead(problem, map, h); });
      if (params.ranges.packed) continue;
      for (const Span& rest :
           {Span{0, queries.begin}, Span{std::max(queries.begin, queries.end), params.q_len}}) {
        StoreZeroRows(problem, gradients.dq, h, rest, problem.d);
        for (std::int64_t row = rest.begin; gradients.d_length_scale != nullptr && row < rest.end;
             ++row) {
          gradients.d_length_scale[RowIndex(params, problem.sequence, h, row)] = 0.0;
        }
      }
    }
    const auto store = [&](const MutableArray4& array, const float* from, std::size_t columns) {
      if (array.data == nullptr) return;
      StoreRows(from, Padded(columns), nullptr, problem.keys, columns, array, b, problem.kv,
                keys.begin, call.stream);
      if (params.ranges.packed) return;
      StoreZeroRows(problem, array, problem.kv, {0, keys.begin}, columns);
      StoreZeroRows(problem, array, problem.kv, {std::max(keys.begin, keys.end), params.k_len},
                    columns);
    };
    store(gradients.dk, scratch.dk, problem.d);
    store(gradients.dv, scratch.dv, problem.e);
  }
  if (call.stream) hwy::FlushStream();
}

const char* LanesTargetHere() { return hwy::TargetName(HWY_TARGET); }

}  // namespace HWY_NAMESPACE
}  // namespace tsallis
HWY_AFTER_NAMESPACE();

#else

HWY_BEFORE_NAMESPACE();
namespace tsallis {
namespace HWY_NAMESPACE {

inline void LanesForwardRange(const LanesCall&, std::int64_t, std::int64_t) {}
inline void LanesBackwardRange(const LanesCall&, std::int64_t, std::int64_t) {}
inline const char* LanesTargetHere() { return ""; }

}  // namespace HWY_NAMESPACE
}  // namespace tsallis
HWY_AFTER_NAMESPACE();

#endif

#endif  // per-target include guard
