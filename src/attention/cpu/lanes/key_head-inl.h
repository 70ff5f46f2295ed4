// One key head of a sequence of the lane kernel: its keys and values, its blocks and their scores,
// and what the next key head needs in the meantime. Included once per instruction set.
#if defined(TSALLIS_ATTENTION_CPU_LANES_KEY_HEAD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TSALLIS_ATTENTION_CPU_LANES_KEY_HEAD_INL_H_
#undef TSALLIS_ATTENTION_CPU_LANES_KEY_HEAD_INL_H_
#else
#define TSALLIS_ATTENTION_CPU_LANES_KEY_HEAD_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cmath>

#include "attention/cpu/lanes/map-inl.h"
#include "attention/cpu/matrix_unit.h"
#include "attention/cpu/pairs-inl.h"
#include "attention/cpu/rows-inl.h"
#include "attention/cpu/terms-inl.h"
#include "attention/geometry.h"

#if TSALLIS_VECTORS_HERE
HWY_BEFORE_NAMESPACE();
namespace tsallis {
namespace HWY_NAMESPACE {

// Scores and their factors are finite beyond doubt up to here.
constexpr double kSafeScore = 1e30;

// Fetches what the next key head of this thread reads, in small shares between the parts of this
// one's blocks: a block's worth at once waits for the memory.
class Ahead {
 public:
  static constexpr std::int64_t kStepsPerBlock = 4;

  // queries: of the key head at hand. next: the key head to fetch, none if it is `end`.
  Ahead(const LanesCall& call, std::int64_t queries, std::int64_t next, std::int64_t end)
      : call_(call), params_(call.params) {
    const std::int64_t group = params_.heads / params_.kv_heads;
    constexpr auto lanes = static_cast<std::int64_t>(kLanes);
    steps_ = group * ((queries + lanes - 1) / lanes) * kStepsPerBlock;
    if (next >= end) return;
    const KeyHead& key_head = (*call_.key_heads)[next];
    sequence_ = Sequence::Of(params_, key_head.b);
    kv_ = key_head.kv;
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
    PrefetchRows(KeyRows(params_, sequence_, kv_, sequence_.k.begin + k_at_), k_end - k_at_, d);
    PrefetchRows(ValueRows(params_, sequence_, kv_, sequence_.k.begin + k_at_), k_end - k_at_, e);
    k_at_ = k_end;
    while (q_at_ < q_end) {
      const std::int64_t h = q_at_ / sequence_.q.size(), row = q_at_ % sequence_.q.size();
      const std::int64_t count = std::min(q_end - q_at_, sequence_.q.size() - row);
      const std::int64_t first = sequence_.q.begin + row;
      PrefetchRows(HeadRows::Of(params_.q, b, kv_ * group + h, first), count, d);
      if (call_.gradients != nullptr) {
        PrefetchRows(HeadRows::Of(call_.gradients->d_out, b, kv_ * group + h, first), count, e);
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

// One key head of a sequence: keys and values in float32, and what its blocks share.
struct LanesKeyHead {
  LanesKeyHead(const LanesCall& lanes_call, const KeyHead& key_head, LanesScratch& lanes_scratch)
      : call(lanes_call),
        params(lanes_call.params),
        scratch(lanes_scratch),
        sequence(Sequence::Of(params, key_head.b)),
        kv(key_head.kv),
        keys(static_cast<std::size_t>(sequence.k.size())),
        d(static_cast<std::size_t>(params.head_dim)),
        e(static_cast<std::size_t>(params.value_dim)),
        d_padded(Padded(d)),
        e_padded(Padded(e)),
        d_depth(PaddedDepth(d)),
        e_depth(PaddedDepth(e)),
        tiles(kWithTiles && call.tiles != nullptr),
        scale(ScaleOf(params)) {
    if (!tiles) {
      PackFloats();
      return;
    }
    const std::int64_t begin = sequence.k.begin;
    k_bound = PackHalves(KeyRows(params, sequence, kv, begin), keys, d, d_depth, scratch.k_rows);
    v_bound = PackHalves(ValueRows(params, sequence, kv, begin), keys, e, e_depth, scratch.v_rows);
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
    k_bound =
        PackRows(KeyRows(params, sequence, kv, sequence.k.begin), keys, d, d_padded, scratch.k);
    v_bound =
        PackRows(ValueRows(params, sequence, kv, sequence.k.begin), keys, e, e_padded, scratch.v);
    const std::size_t rest = Padded(keys) - keys;
    std::fill_n(scratch.k + keys * d_padded, rest * d_padded, 0.0f);
    std::fill_n(scratch.v + keys * e_padded, rest * e_padded, 0.0f);
    has_floats = true;
  }

  // From now on: this query head, and a map of this unit.
  void Point(std::int64_t h, double unit) {
    terms = HeadTerms::Of(params, sequence, h, call.distances, unit);
  }
  // The block from query `row` on, up to `rows_end`: its geometry, and q in scratch.
  Block Load(std::int64_t h, std::int64_t row, std::int64_t rows_end);
  // Prepares q for Scores.
  void PrepareColumns(const Block& block, std::int64_t h);
  // scratch.scores = z of the block, terms included, masks not. derivatives: if not null, those of
  // capped scores in their products, as the scores lie.
  void Scores(const Block& block, float* derivatives) const;

  const LanesCall& call;
  const AttentionParams& params;
  LanesScratch& scratch;
  Sequence sequence;
  std::int64_t kv;
  std::size_t keys, d, e, d_padded, e_padded, d_depth, e_depth;
  bool tiles;
  bool has_floats = false;
  double scale;
  float k_bound, v_bound;  // largest magnitudes
  Ahead* ahead = nullptr;
  HeadTerms terms;
};

HWY_INLINE Block LanesKeyHead::Load(std::int64_t h, std::int64_t row, std::int64_t rows_end) {
  Block block;
  const std::int64_t b = sequence.array_batch, first_key = sequence.k.begin;
  block.row = row;
  block.count = static_cast<std::size_t>(
      std::min<std::int64_t>(static_cast<std::int64_t>(kLanes), rows_end - row));
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
  double largest = scale;
  std::fill_n(block.c_scale, kLanes, static_cast<float>(scale));
  const bool has_length_scale = params.terms.length_scale.data != nullptr;
  for (std::size_t lane = 0; has_length_scale && lane < block.count; ++lane) {
    if (block.first[lane] == block.last[lane]) continue;  // c may hold anything there
    const double factor = RowFactor(params, sequence, h, row + static_cast<std::int64_t>(lane));
    block.c_scale[lane] = static_cast<float>(factor);
    RaiseBound(&largest, std::abs(factor));
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
    q_bound =
        PackHalves(HeadRows::Of(params.q, b, h, row), block.count, d, d_depth, scratch.q_rows);
    for (std::size_t lane = block.count; lane < kLanes; ++lane) {
      std::copy_n(scratch.q_rows, d_depth, scratch.q_rows + lane * d_depth);
    }
  } else {
    q_bound = PackRows(HeadRows::Of(params.q, b, h, row), block.count, d, d_padded, scratch.q);
  }
  // a_d of the scale-invariant term stays below 10 for any distance that memory holds.
  const double reach = std::abs(static_cast<double>(block.distance)) + static_cast<double>(keys);
  const double bound = 10.0 * q_bound * k_bound * static_cast<double>(d) * largest * terms.unit +
                       std::abs(terms.slope) * reach + q_bound + k_bound + v_bound;
  block.careful = !(bound < kSafeScore);
  block.tiles = tiles && !block.careful;
  return block;
}

HWY_INLINE void LanesKeyHead::PrepareColumns(const Block& block, std::int64_t h) {
  if (block.tiles) {
    auto* columns = reinterpret_cast<std::uint32_t*>(scratch.columns);
    TransposePairs(reinterpret_cast<const std::uint32_t*>(scratch.q_rows), d_depth / 2, d_depth / 2,
                   columns, kLanes);
    return;
  }
  if (tiles) {
    PackFloats();
    PackRows(HeadRows::Of(params.q, sequence.array_batch, h, block.row), block.count, d, d_padded,
             scratch.q);
  }
  for (std::size_t lane = block.count; lane < kLanes; ++lane) {
    std::copy_n(scratch.q + (block.count - 1) * d_padded, d_padded, scratch.q + lane * d_padded);
  }
  const DF df;
  TransposeRows(scratch.q, d_padded, d,
                hn::Mul(hn::Load(df, block.c_scale), hn::Set(df, static_cast<float>(terms.unit))),
                scratch.columns);
}

HWY_INLINE void LanesKeyHead::Scores(const Block& block, float* derivatives) const {
  if (block.tiles) {
    call.tiles->products(scratch.k_rows + block.begin * d_depth,
                         reinterpret_cast<const std::uint32_t*>(scratch.columns), d_depth,
                         block.end - block.begin, scratch.scores + block.begin * kLanes);
    const DF df;
    const VF factor =
        hn::Mul(hn::Load(df, block.c_scale), hn::Set(df, static_cast<float>(terms.unit)));
    for (std::size_t j = block.begin; j < block.end; ++j) {
      float* at = scratch.scores + j * kLanes;
      hn::Store(hn::Mul(hn::Load(df, at), factor), df, at);
    }
  } else {
    Products(scratch.k + block.begin * d_padded, d_padded, scratch.columns, d,
             block.end - block.begin, scratch.scores + block.begin * kLanes);
  }
  if (!terms.any()) return;
  const DF df;
  const LaneTerms lane_terms(terms, hn::Set(df, 1.0f));
  for (std::size_t j = block.begin; j < block.end; ++j) {
    const std::int64_t distance = block.distance - static_cast<std::int64_t>(j);
    float* at = scratch.scores + j * kLanes;
    const VF z = hn::Load(df, at);
    if (derivatives != nullptr) {
      hn::Store(lane_terms.Derivative(z, distance), df, derivatives + j * kLanes);
    }
    hn::Store(lane_terms.Score(z, distance), df, at);
  }
}

// scratch.block = sum_j weights[j][lane] pairs[j] on tiles. weights: [block.begin ...][kLanes];
// pairs: [keys depth / 2][width]. Weights are the sum of two bfloat16 numbers each, so that a
// product on tiles is as good as one in float32; rounded once, as dense implementations do, they
// would cost sums with cancellation all digits but two. rest: as weights, overwritten; may be
// weights. `each(rows)` is called with both parts, [keys][kLanes], if `rows` is not null.
template <class Each>
HWY_INLINE void MixOnTiles(const LanesKeyHead& key_head, const Block& block, const float* weights,
                           float* rest, const std::uint32_t* pairs, std::size_t width,
                           std::uint16_t* rows, const Each& each) {
  const LanesScratch& scratch = key_head.scratch;
  const std::size_t keys = block.end - block.begin, depth = PaddedDepth(keys);
  for (int part = 0; part < 2; ++part) {
    key_head.call.tiles->round(part == 0 ? weights : rest, keys, scratch.weight_pairs, rows,
                               part == 0 ? rest : nullptr);
    std::fill_n(scratch.weight_pairs + keys / 2 * kLanes, (depth - keys) / 2 * kLanes, 0u);
    for (std::size_t j = 0; j < depth / 2; j += kLanes) {
      TransposePairs(scratch.weight_pairs + j * kLanes, kLanes, kLanes, scratch.weight_columns + j,
                     depth / 2);
    }
    key_head.call.tiles->mix(reinterpret_cast<const std::uint16_t*>(scratch.weight_columns), depth,
                             pairs + block.begin / 2 * width, width, depth, part == 1,
                             scratch.block);
    if (rows != nullptr) each(rows);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tsallis
HWY_AFTER_NAMESPACE();
#endif  // TSALLIS_VECTORS_HERE

#endif  // per-target include guard
