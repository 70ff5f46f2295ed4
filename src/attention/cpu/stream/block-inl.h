// A block of queries over strips of keys: scores, weights, what they add up to. Included once per
// instruction set.
#if defined(TSALLIS_ATTENTION_CPU_STREAM_BLOCK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TSALLIS_ATTENTION_CPU_STREAM_BLOCK_INL_H_
#undef TSALLIS_ATTENTION_CPU_STREAM_BLOCK_INL_H_
#else
#define TSALLIS_ATTENTION_CPU_STREAM_BLOCK_INL_H_
#endif

#include <algorithm>
#include <cmath>

#include "attention/cpu/stream/maps-inl.h"
#include "attention/cpu/terms-inl.h"

#if TSALLIS_VECTORS_HERE
HWY_BEFORE_NAMESPACE();
namespace tsallis {
namespace HWY_NAMESPACE {

// ---- a block of queries -------------------------------------------------------------------------

// Scores are z, in units of StreamUnit().
template <class Engine>
struct StreamBlock {
  static constexpr std::int64_t kRows = Engine::kShape.rows, kGroups = Engine::kGroups;

  StreamBlock(const stream::StreamCall& stream_call, const stream::PackedKv& packed,
              std::int64_t query_head, std::int64_t q_begin, std::int64_t rows)
      : call(stream_call),
        params(call.params),
        head(packed),
        h(query_head),
        row(q_begin),
        count(rows),
        terms(HeadTerms::Of(params, head.sequence, h, call.distances,
                            StreamUnit(params, query_head))) {
    const Sequence& sequence = head.sequence;
    const std::int64_t first_key = sequence.k.begin;
    distance = sequence.Distance(row, first_key);
    begin = head.keys;
    seen_end = head.keys;
    const double scale = ScaleOf(params);
    double largest = scale;
    for (std::int64_t i = 0; i < kRows; ++i) {
      const Span span = i < count ? sequence.VisibleKeys(params.mask, row + i) : Span();
      // A row that sees nothing may name any empty span.
      const std::int64_t from = span.size() == 0 ? 0 : span.begin - first_key;
      const std::int64_t to = from + span.size();
      first[i] = static_cast<std::int32_t>(from);
      last[i] = static_cast<std::int32_t>(to);
      double factor = scale;
      if (i < count) {
        if (span.size() > 0) begin = std::min(begin, from);
        end = std::max(end, to);
        seen_begin = std::max(seen_begin, from);
        seen_end = std::min(seen_end, to);
        if (span.size() > 0) factor = RowFactor(params, sequence, h, row + i);
      }
      c_scale[i] = static_cast<float>(factor);
      factors[i] = static_cast<float>(factor * terms.unit);
      betas[i] = 1.0f;
      RaiseBound(&largest, std::abs(factor));
    }
    begin = begin / kDepth * kDepth;
    end = begin < end ? RoundUp(end, kDepth) : begin;
    // a_d of the usual scale-invariant term stays below 10 for any distance that memory holds.
    const double most = std::max(10.0, terms.distances.largest);
    reach = most * head.k_bound * static_cast<double>(params.head_dim) * largest;
    rest = std::abs(terms.slope) *
               (std::abs(static_cast<double>(distance)) + static_cast<double>(end)) +
           head.k_bound + head.v_bound;
  }

  // Scores, and their sums with values of this size, are finite beyond doubt; and no z exceeds 2^24
  // (reach has room for distances that count tenfold, and log2(e) is 1.44): beyond, it is rounded
  // by more than 1, and a multiply-add that rounds later puts the maximum's weight anywhere.
  bool IsSafe(double q_bound) const {
    return reach * q_bound + rest + q_bound < 1e30 && 0.15 * reach * q_bound < 0x1p24;
  }

  // Multiplies the scores of row i.
  void Sharpen(std::int64_t i, double beta) {
    factors[i] = static_cast<float>(factors[i] * beta);
    betas[i] = static_cast<float>(beta);
  }

  // Scores of keys [at, at + keys) are factors times products; else Adjust() has more to do.
  bool IsPlain(std::int64_t at, std::int64_t keys) const {
    return !terms.any() && at >= seen_begin && at + keys <= seen_end;
  }

  // Whether every kSampleStride-th strip of keys tells enough to spare passes over all of them.
  bool HasSample() const {
    constexpr std::int64_t kManyStrips = 32;
    return (end - begin + Engine::kShape.strip - 1) / Engine::kShape.strip >= kManyStrips;
  }

  LaneTerms LaneTermsOf(std::int64_t group) const {
    return LaneTerms(terms, hn::Load(DF(), betas + group * kStreamLanes));
  }
  // Distance of a group's first query from key j.
  std::int64_t DistanceOf(std::int64_t group, std::int64_t j) const {
    return distance + group * kStreamLanes - j;
  }

  // Products to z: factors, terms and masks. scores: a strip.
  void Adjust(std::int64_t at, std::int64_t keys, float* scores) const {
    const DF d;
    const DI di;
    const VF none = hn::Set(d, -kInfinityF);
    for (std::int64_t group = 0; group < kGroups; ++group) {
      const LaneTerms lane_terms = LaneTermsOf(group);
      const VF factor = hn::Load(d, factors + group * kStreamLanes);
      const VI from = hn::Load(di, first + group * kStreamLanes);
      const VI to = hn::Load(di, last + group * kStreamLanes);
      float* HWY_RESTRICT z_at = scores + group * Engine::kGroupStride;
      for (std::int64_t j = at; j < at + keys; ++j, z_at += Engine::kKeyStride) {
        VF z = hn::Mul(hn::Load(d, z_at), factor);
        z = lane_terms.Score(z, DistanceOf(group, j));
        const VI key = hn::Set(di, static_cast<std::int32_t>(j));
        const auto seen = hn::AndNot(hn::Gt(from, key), hn::Gt(to, key));
        hn::Store(hn::IfThenElse(hn::RebindMask(d, seen), z, none), d, z_at);
      }
    }
  }

  const stream::StreamCall& call;
  const AttentionParams& params;
  const stream::PackedKv& head;
  std::int64_t h, row, count;
  HeadTerms terms;                            // in units of z
  std::int64_t distance = 0;                  // of the first query from key 0
  std::int64_t begin = 0, end = 0;            // whole tiles of keys that some query sees
  std::int64_t seen_begin = 0, seen_end = 0;  // keys that all of them see
  double reach = 0.0, rest = 0.0;
  HWY_ALIGN std::int32_t first[kRows];
  HWY_ALIGN std::int32_t last[kRows];  // one behind
  HWY_ALIGN float c_scale[kRows];      // c scale
  HWY_ALIGN float factors[kRows];      // the same in units of z, times beta
  HWY_ALIGN float betas[kRows];        // of adaptive temperature; else 1
};

constexpr std::int64_t kSampleStride = 8;

// A row's tau in two parts, [2][kRows].
template <class Engine>
HWY_INLINE void StoreTau(double tau, float* to) {
  to[0] = static_cast<float>(tau);
  to[Engine::kShape.rows] = static_cast<float>(tau - static_cast<double>(to[0]));
}

// z less tau from the score: z or, if plain, a product. tau in two parts: [2][kRows].
template <class Map>
struct StreamWeight {
  template <class Engine>
  HWY_INLINE StreamWeight(const StreamBlock<Engine>& block, const Map& row_map, const float* tau,
                          bool is_plain, std::int64_t group)
      : map(row_map),
        factor(is_plain ? hn::Load(DF(), block.factors + group * kStreamLanes)
                        : hn::Set(DF(), 1.0f)),
        high(hn::Load(DF(), tau + group * kStreamLanes)),
        low(hn::Load(DF(), tau + Engine::kShape.rows + group * kStreamLanes)) {}
  HWY_INLINE VF Above(VF score) const { return hn::Sub(hn::MulSub(score, factor, high), low); }
  HWY_INLINE VF operator()(VF score) const { return map.Weight(Above(score)); }
  Map map;
  VF factor, high, low;
};

// The products of the block's queries, which stand in `columns`, with keys [at, at + keys).
template <class Engine>
HWY_INLINE void StreamProducts(const StreamBlock<Engine>& block, const std::byte* columns,
                               std::int64_t at, std::int64_t keys, float* scores) {
  Engine::MultiplyKeys(block.head, block.params, columns, at, keys, scores);
}

// Weights of a strip and their sums. kMixes: `strips` keeps the weights for its sums of values.
// tau.At(plain, group) makes weights from scores, and tau.Take(group, …) learns what it saw.
template <class Engine, bool kMixes, class Tau, class Work>
TSALLIS_STREAM_TILES void StreamWeights(std::int64_t keys, const float* scores, bool plain,
                                        Tau& tau, StripSum* sum, typename Engine::Strips& strips,
                                        Work work) {
  const DF d;
  const VF zero = hn::Zero(d);
  for (std::int64_t group = 0; group < Engine::kGroups; ++group) {
    const float* at = scores + group * Engine::kGroupStride;
    auto weight = tau.At(plain, group);
    VF s[4] = {zero, zero, zero, zero};
    for (std::int64_t slot = 0; slot < keys; slot += kSlotKeys) {
      work.Slot();
      for (std::int64_t j = slot; j < slot + kSlotKeys; j += 4) {
        VF p[4];
        HWY_UNROLL(4)
        for (std::int64_t i = 0; i < 4; ++i) {
          p[i] = weight(hn::Load(d, at + (j + i) * Engine::kKeyStride));
          s[i] = hn::Add(s[i], p[i]);
        }
        if constexpr (kMixes) strips.Store(j, group, p);
      }
    }
    sum[group].Add(hn::Add(hn::Add(s[0], s[1]), hn::Add(s[2], s[3])));
    tau.Take(group, weight);
  }
}

// Entries with a weight > 0 and -sum p ln p of each lane. tau: [2][kRows]; support, entropy:
// [kRows].
template <class Engine, class Map>
void StreamDescribe(const StreamBlock<Engine>& block, const stream::Scratch& scratch,
                    const Map& map, const float* tau, float* support, float* entropy) {
  const DF d;
  const VF zero = hn::Zero(d), one = hn::Set(d, 1.0f);
  std::fill_n(support, Engine::kShape.rows, 0.0f);
  std::fill_n(entropy, Engine::kShape.rows, 0.0f);
  for (std::int64_t at = block.begin; at < block.end; at += Engine::kShape.strip) {
    const std::int64_t keys = std::min(Engine::kShape.strip, block.end - at);
    StreamProducts(block, scratch.columns, at, keys, scratch.scores);
    block.Adjust(at, keys, scratch.scores);
    for (std::int64_t group = 0; group < Engine::kGroups; ++group) {
      const StreamWeight<Map> weight(block, map, tau, /*is_plain=*/false, group);
      const float* scores = scratch.scores + group * Engine::kGroupStride;
      VF count = zero, sum = zero;
      for (std::int64_t j = 0; j < keys; ++j) {
        const VF above = weight.Above(hn::Load(d, scores + j * Engine::kKeyStride));
        const VF p = map.Weight(above);
        const auto positive = hn::Gt(p, zero);
        count = hn::Add(count, hn::IfThenElseZero(positive, one));
        sum = hn::NegMulAdd(p, hn::IfThenElseZero(positive, map.Log(above, p)), sum);
      }
      const auto add = [&](VF part, float* to)
                           HWY_ATTR { hn::StoreU(hn::Add(hn::LoadU(d, to), part), d, to); };
      add(count, support + group * kStreamLanes);
      add(sum, entropy + group * kStreamLanes);
    }
  }
}

// The weights' sums over every `stride`th strip of keys; kMixes: scratch.sums = sum of weight times
// value, too. The block's queries stand in `columns`.
template <bool kMixes, class Engine, class Tau>
void StreamOver(const StreamBlock<Engine>& block, const std::byte* columns, std::int64_t stride,
                const stream::Scratch& scratch, Tau& tau, StripSum* sum) {
  const std::int64_t padded = Padded(block.params.value_dim);
  if constexpr (kMixes) std::fill_n(scratch.sums, padded * Engine::kShape.rows, 0.0f);
  typename Engine::Strips strips(block.head, block.params, scratch, columns, block.begin, block.end,
                                 stride, kMixes);
  for (std::int64_t at = block.begin; at < block.end; at += stride * Engine::kShape.strip) {
    const std::int64_t keys = std::min(Engine::kShape.strip, block.end - at);
    float* scores = strips.Scores(at);
    const bool plain = block.IsPlain(at, keys);
    if (!plain) block.Adjust(at, keys, scores);
    const bool moved = tau.Move(plain, keys, scores, sum);
    StreamWeights<Engine, kMixes>(keys, scores, plain, tau, sum, strips,
                                  strips.Work(at, Engine::kGroups * keys / kSlotKeys));
    if (kMixes && moved) Engine::Shrink(tau.shrink(), padded, scratch.sums);
    strips.Next(at);
  }
  if constexpr (kMixes) strips.End();
}

// Weights, their sums and their sums of values, over all keys.
template <class Engine, class Tau>
void StreamMix(const StreamBlock<Engine>& block, const std::byte* columns,
               const stream::Scratch& scratch, Tau& tau, StripSum* sum) {
  StreamOver<true>(block, columns, /*stride=*/1, scratch, tau, sum);
}

// scratch.block = scratch.sums over the masses of a group's rows.
template <class Engine>
HWY_INLINE void MixedRows(const stream::Scratch& scratch, std::int64_t padded, VF mass,
                          std::int64_t group) {
  const DF d;
  HWY_ALIGN float factors[kLanes];
  hn::Store(hn::IfThenElseZero(hn::Gt(mass, hn::Zero(d)), hn::Div(hn::Set(d, 1.0f), mass)), d,
            factors);
  Engine::RowsOut(scratch.sums, padded, group, scratch.block);
  for (std::int64_t i = 0; i < kStreamLanes; ++i) {
    const VF factor = hn::Set(d, factors[i]);
    for (std::int64_t x = 0; x < padded; x += kStreamLanes) {
      float* at = scratch.block + i * padded + x;
      hn::Store(hn::Mul(hn::Load(d, at), factor), d, at);
    }
  }
}

// The results of a block, by row. tau: in units of z, two parts.
template <class Engine>
struct StreamRows {
  static constexpr std::int64_t kRows = Engine::kShape.rows;
  HWY_ALIGN float tau[2 * kRows], mass[kRows], top[kRows];
  bool saves = true;  // whether the backward pass has a use for the outputs
};

// scratch.sums over the rows' masses to the output; tau, maximum and what `map` says of the
// weights.
template <class Engine, class Map>
void StreamStore(const StreamBlock<Engine>& block, const stream::Scratch& scratch, const Map& map,
                 const StreamRows<Engine>& rows) {
  const DF d;
  constexpr std::int64_t kRows = Engine::kShape.rows;
  const AttentionParams& params = block.params;
  const AttentionOutputs& outputs = *block.call.outputs;
  const std::int64_t b = block.head.sequence.array_batch, padded = Padded(params.value_dim);
  const std::int64_t index = RowIndex(params, block.head.sequence, block.h, block.row);
  for (std::int64_t group = 0; group * kStreamLanes < block.count; ++group) {
    const std::int64_t lane0 = group * kStreamLanes;
    const std::int64_t count = std::min(block.count - lane0, kStreamLanes);
    MixedRows<Engine>(scratch, padded, hn::Load(d, rows.mass + lane0), group);
    StoreRows(scratch.block, static_cast<std::size_t>(padded), nullptr,
              static_cast<std::size_t>(count), static_cast<std::size_t>(params.value_dim),
              outputs.out, b, block.h, block.row + lane0, false);
    if (rows.saves && block.call.saved.any()) {
      std::copy_n(scratch.block, count * padded, block.call.saved.Row(index + lane0));
    }
  }
  HWY_ALIGN float support[kRows], entropy[kRows];
  if (outputs.support_size != nullptr || outputs.entropy != nullptr) {
    StreamDescribe(block, scratch, map, rows.tau, support, entropy);
  }
  for (std::int64_t i = 0; i < block.count; ++i) {
    if (outputs.maximum != nullptr) {
      outputs.maximum[index + i] = static_cast<double>(rows.top[i]) / block.terms.unit;
    }
    if (outputs.support_size != nullptr) {
      outputs.support_size[index + i] = static_cast<std::int64_t>(support[i]);
    }
    if (outputs.entropy != nullptr) outputs.entropy[index + i] = entropy[i];
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tsallis
HWY_AFTER_NAMESPACE();
#endif  // TSALLIS_VECTORS_HERE

#endif  // per-target include guard
