// Forward pass of the lane kernel. Included once per instruction set.
#if defined(TSALLIS_ATTENTION_CPU_LANES_FORWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TSALLIS_ATTENTION_CPU_LANES_FORWARD_INL_H_
#undef TSALLIS_ATTENTION_CPU_LANES_FORWARD_INL_H_
#else
#define TSALLIS_ATTENTION_CPU_LANES_FORWARD_INL_H_
#endif

#include "attention/cpu/lanes/key_head-inl.h"

#if TSALLIS_VECTORS_HERE
HWY_BEFORE_NAMESPACE();
namespace tsallis {
namespace HWY_NAMESPACE {

template <class Map, bool kCareful>
HWY_NOINLINE void ForwardBlock(const LanesKeyHead& key_head, const Map& map, std::int64_t h,
                               const Block& block) {
  const DF d;
  const LanesScratch& scratch = key_head.scratch;
  const AttentionParams& params = key_head.params;
  const AttentionOutputs& outputs = *key_head.call.outputs;
  const double unit = map.Unit();
  key_head.ahead->Step();
  key_head.Scores(block, nullptr);
  key_head.ahead->Step();
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
  key_head.ahead->Step();
  if (!kCareful && block.tiles) {
    MixOnTiles(key_head, block, scratch.weights + block.begin * kLanes,
               scratch.scores + block.begin * kLanes, scratch.v_pairs, key_head.e_padded, nullptr,
               [](const std::uint16_t*) {});
  } else {
    Mix<kCareful>(scratch.weights + block.begin * kLanes,
                  scratch.v + block.begin * key_head.e_padded, key_head.e_padded,
                  block.end - block.begin, scratch.block);
  }
  key_head.ahead->Step();
  HWY_ALIGN float factor[kLanes];
  hn::Store(solution.factor, d, factor);
  const std::int64_t b = key_head.sequence.array_batch;
  StoreRows(scratch.block, key_head.e_padded, factor, block.count, key_head.e, outputs.out, b, h,
            block.row, key_head.call.stream);

  const std::int64_t index = RowIndex(params, key_head.sequence, h, block.row);
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

template <class Map>
HWY_INLINE void ForwardHead(LanesKeyHead& key_head, const Map& map, std::int64_t h,
                            const Span& queries) {
  key_head.Point(h, map.Unit());
  for (std::int64_t row = queries.begin; row < queries.end; row += kLanes) {
    const Block block = key_head.Load(h, row, queries.end);
    key_head.PrepareColumns(block, h);
    if (block.careful) {
      ForwardBlock<Map, true>(key_head, map, h, block);
    } else {
      ForwardBlock<Map, false>(key_head, map, h, block);
    }
  }
}

void LanesForwardRange(const LanesCall& call, std::int64_t begin, std::int64_t end) {
  const AttentionParams& params = call.params;
  LanesScratch scratch(call);
#if defined(__x86_64__)
  const MatrixUnitSession session(kWithTiles && call.tiles != nullptr && call.tiles->real,
                                  TileShapes::kHalfDepth);
#endif
  for (std::int64_t i = begin; i < end; ++i) {
    LanesKeyHead key_head(call, (*call.key_heads)[i], scratch);
    Ahead ahead(call, key_head.sequence.q.size(), i + 1, end);
    key_head.ahead = &ahead;
    for (std::size_t r = call.first_row[i]; r < call.first_row[i + 1]; ++r) {
      const auto& at = (*call.rows)[r];
      WithLanesMap(params.map, AlphaOf(params, at.h), key_head.keys,
                   [&](const auto& map) HWY_ATTR { ForwardHead(key_head, map, at.h, at.q); });
    }
  }
  if (call.stream) hwy::FlushStream();
}

}  // namespace HWY_NAMESPACE
}  // namespace tsallis
HWY_AFTER_NAMESPACE();
#endif  // TSALLIS_VECTORS_HERE

#endif  // per-target include guard
