// Describes an attention problem of the tests by a few numbers, which fit into one line, and draws
// such problems from the whole space of attention.h.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <optional>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "tsallis/attention.h"

namespace tsallis {

struct ProblemSpec {
  std::uint64_t seed = 1;  // of the values
  DType dtype = DType::kFloat32;
  std::int64_t batch = 1, kv_heads = 1, group = 1;  // heads = kv_heads * group
  std::int64_t q_len = 8, k_len = 8, head_dim = 16, value_dim = 16;
  double spread = 1.0;  // of q; k and v are standard normal
  RowMap map = RowMap::kEntmax;
  double alpha = 1.5;
  bool alpha_per_head = false;  // drawn from [0.5, 2.5]
  bool own_adaptive = false;    // not the paper's polynomial
  TopK top_k = {.k = 3, .fraction = 0.0};
  std::optional<double> sigmoid_bias = {};
  bool sink = false;    // normal scores
  bool causal = false;  // always so for stick-breaking
  Alignment alignment = Alignment::kEnd;
  std::int64_t left = -1, right = -1;
  double visible = 1.0;      // share of keys that a boolean mask leaves; 1: no mask
  int mask_broadcast = 2;    // of that mask; bits as in bias_broadcast
  std::int64_t block = 0;    // rows of a random block mask's blocks; 0: none
  std::int64_t block_k = 0;  // columns; 0: as many as rows
  enum class Ragged { kNone, kRight, kLeft, kMiddle, kPacked } ragged = Ragged::kNone;
  bool gaps = false;  // packed: rows between the sequences that belong to none
  bool length_scale = false, slopes = false, bias = false;
  bool any_length_scale = false;  // also in (0, 1), 0 and below 0; else from 1 on
  bool negative_slopes = false;
  bool zero_slopes = false;  // some are 0, as half of NAPE's
  // The dtypes of length_scale and slopes, and of the bias; they need not be q's.
  DType term_dtype = DType::kFloat32, bias_dtype = DType::kFloat32;
  int bias_broadcast = 0;            // bits: 1 batch, 2 heads, 4 queries have stride 0
  double bias_minus_infinity = 0.0;  // share
  double scale_invariant = 0.0, scale_invariant_alpha = 0.0, scale_invariant_beta = 0.0;
  double softcap = 0.0;
  double scale = 0.0;
  // Values that are not plain normal.
  enum class Values {
    kNormal,
    kFlat,      // all keys equal
    kTies,      // small integers
    kDominant,  // the first key 300 times as large
    kHuge,      // all keys
    kTiny,      // 1e-20
    kZero,      // q and k
    kVast,      // q and k 1e8 times as large (float16: 100): one key wins, and no threshold is near
    kNaN,       // one key and its value
    kInfinity,  // one key: scores of +inf and -inf, by the sign of q
    kMiddle,    // as kDominant, but the key in the middle
  } values = Values::kNormal;
  static constexpr int kLastFinite = static_cast<int>(Values::kVast);
  // Rows of q and d_out that belong to no sequence, and of k and v that no query sees, hold NaN.
  bool garbage = false;
  bool ones = false;         // the first column of v is 1, so that of the output is the sum of p
  bool strided = false;      // all arrays: padded rows, heads and rows exchanged
  std::int64_t padding = 2;  // elements between the rows of strided inputs
  // Inputs, if not strided: columns apart; rows backwards; k and v of the first head for every
  // head.
  enum class Odd { kNone, kTransposed, kReversed, kRepeated } odd = Odd::kNone;

  std::string Describe() const;
};

inline std::string ProblemSpec::Describe() const {
  std::ostringstream text;
  const char* raggeds[] = {"none", "right", "left", "middle", "packed"};
  const char* valueses[] = {"normal", "flat", "ties", "dominant", "huge",  "tiny",
                            "zero",   "vast", "nan",  "infinity", "middle"};
  const char* odds[] = {"", " transposed", " reversed", " repeated"};
  text << Name(dtype) << " " << Name(map) << (own_adaptive ? " (own polynomial)" : "") << " alpha "
       << alpha << (alpha_per_head ? " per head" : "") << ", batch " << batch << " kv_heads "
       << kv_heads << " group " << group << " q " << q_len << " k " << k_len << " d " << head_dim
       << " e " << value_dim << ", spread " << spread << " values "
       << valueses[static_cast<int>(values)];
  if (map == RowMap::kTopKSoftmax) text << " top " << top_k.k << " or " << top_k.fraction;
  if (sigmoid_bias) text << " sigmoid bias " << *sigmoid_bias;
  if (sink) text << " sink";
  if (ones) text << " ones";
  if (causal) text << " causal";
  if (alignment == Alignment::kStart) text << " from-start";
  if (left >= 0 || right >= 0) text << " window " << left << ":" << right;
  if (visible < 1.0) text << " mask(" << mask_broadcast << ", " << visible << ")";
  if (block > 0) text << " blocks " << block << "x" << (block_k > 0 ? block_k : block);
  if (ragged != Ragged::kNone) text << " ragged " << raggeds[static_cast<int>(ragged)];
  if (gaps) text << " gaps";
  if (garbage) text << " garbage";
  if (length_scale) {
    text << (any_length_scale ? " any" : "") << " length_scale " << Name(term_dtype);
  }
  if (slopes)
    text << (negative_slopes ? " negative" : "") << (zero_slopes ? " some zero" : "") << " slopes "
         << Name(term_dtype);
  if (bias) {
    text << " bias(" << bias_broadcast << ", " << bias_minus_infinity << ") " << Name(bias_dtype);
  }
  if (scale_invariant != 0.0) {
    text << " scale_invariant " << scale_invariant << " " << scale_invariant_alpha << " "
         << scale_invariant_beta;
  }
  if (softcap != 0.0) text << " softcap " << softcap;
  if (scale != 0.0) text << " scale " << scale;
  if (strided) text << " strided";
  text << odds[static_cast<int>(odd)];
  text << ", seed " << seed;
  return text.str();
}

// A and B of scale-invariant scores, 0 for e^0.5: from a_0 = 0 on, and shifts above 0 and below.
inline const std::array<std::array<double, 2>, 4> kScaleInvariantShapes = {
    {{0.5, 0.0}, {1.0, 3.0}, {2.0, 2.0 * std::log(2.0)}, {0.05, 0.2}}};

// Those of scale-invariant scores of every shape, with what else `spec` has.
inline std::vector<ProblemSpec> OfEachShape(ProblemSpec spec) {
  std::vector<ProblemSpec> specs;
  spec.scale_invariant = 10.0;
  for (const auto& [a, b] : kScaleInvariantShapes) {
    spec.scale_invariant_alpha = a;
    spec.scale_invariant_beta = b;
    specs.push_back(spec);
  }
  return specs;
}

// Draws a spec from the whole space of finite inputs and, if `broken`, of others too; `most` bounds
// q_len and k_len.
inline ProblemSpec DrawSpec(std::uint64_t seed, std::int64_t most, bool broken = false) {
  std::mt19937_64 engine(seed);
  const auto chance = [&](double p) {
    return std::uniform_real_distribution<double>()(engine) < p;
  };
  const auto pick = [&](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(engine);
  };
  // Short lengths and those beside a tile's edge are as likely as any.
  const auto length = [&] {
    const std::int64_t edges[] = {1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129};
    return std::min(most, chance(0.5) ? edges[pick(0, 13)] : pick(1, most));
  };
  ProblemSpec spec;
  spec.seed = seed;
  const DType dtypes[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kFloat64};
  spec.dtype = dtypes[pick(0, 2)];
  spec.batch = chance(0.01) ? 0 : pick(1, 3);
  spec.kv_heads = pick(1, 3);
  spec.group = chance(0.6) ? 1 : pick(2, 4);
  spec.k_len = chance(0.02) ? 0 : length();
  spec.q_len = chance(0.6) ? std::max<std::int64_t>(spec.k_len, 1) : chance(0.02) ? 0 : length();
  const std::int64_t sizes[] = {1, 3, 8, 16, 17, 32, 40, 64, 80, 128};
  spec.head_dim = sizes[pick(0, 9)];
  spec.value_dim = chance(0.6) ? spec.head_dim : sizes[pick(0, 9)];
  const double spreads[] = {0.25, 1.0, 4.0};
  spec.spread = spreads[pick(0, 2)];
  const std::vector<RowMap>& maps = AttentionMaps();
  const auto others = static_cast<std::int64_t>(maps.size()) - 1;
  spec.map = chance(0.55)  ? RowMap::kEntmax
             : chance(0.3) ? RowMap::kSoftmax
                           : maps[static_cast<std::size_t>(pick(0, others))];
  const double alphas[] = {1.0, 1.0001, 1.01, 1.25, 1.333, 1.5, 1.5,
                           1.5, 1.7,    2.0,  2.0,  2.5,   4.0, 16.0};
  spec.alpha = alphas[pick(0, 13)];
  spec.alpha_per_head = chance(0.15);
  spec.own_adaptive = chance(0.3);
  spec.top_k = {.k = pick(1, 9), .fraction = chance(0.4) ? 0.5 : 0.0};
  if (spec.map == RowMap::kSigmoid && chance(0.4)) spec.sigmoid_bias = chance(0.5) ? 0.0 : -1.5;
  spec.sink = TakesSink(spec.map) && chance(0.12);
  spec.causal = chance(0.5) || spec.map == RowMap::kStickBreaking;
  if (chance(0.2)) spec.alignment = Alignment::kStart;
  if (chance(0.2)) spec.left = chance(0.05) ? INT64_MAX : pick(0, most / 2);
  if (chance(0.1)) spec.right = chance(0.05) ? INT64_MAX : pick(0, most / 2);
  if (chance(0.15)) spec.visible = chance(0.1) ? 0.0 : 0.7;
  spec.mask_broadcast = static_cast<int>(pick(0, 7));
  if (chance(0.15)) spec.block = pick(1, 32);
  if (chance(0.5)) spec.block_k = pick(1, 32);
  if (chance(0.35)) spec.ragged = static_cast<ProblemSpec::Ragged>(pick(1, 4));
  spec.gaps = spec.ragged == ProblemSpec::Ragged::kPacked && chance(0.5);
  spec.garbage = chance(0.3);
  spec.length_scale = chance(0.25);
  spec.slopes = chance(0.25);
  spec.negative_slopes = chance(0.1);
  spec.term_dtype = chance(0.7) ? DType::kFloat32 : dtypes[pick(0, 3)];
  if (chance(0.2)) {
    spec.bias = true;
    spec.bias_broadcast = static_cast<int>(pick(0, 7));
    if (chance(0.3)) spec.bias_minus_infinity = 0.3;
  }
  spec.bias_dtype = chance(0.7) ? spec.dtype : dtypes[pick(0, 3)];
  if (chance(0.15)) spec.scale_invariant = 10.0;
  if (chance(0.2)) spec.scale = 0.3;
  using Values = ProblemSpec::Values;
  if (chance(0.3)) spec.values = static_cast<Values>(pick(1, ProblemSpec::kLastFinite));
  if (broken && chance(0.08)) spec.values = chance(0.5) ? Values::kNaN : Values::kInfinity;
  spec.ones = chance(0.2);
  spec.strided = chance(0.3);
  if (!spec.strided && chance(0.2)) spec.odd = static_cast<ProblemSpec::Odd>(pick(1, 3));
  spec.zero_slopes = chance(0.5);
  const double below[] = {0.05, 0.3, 0.5, 0.9, 0.9999};
  if (chance(0.25)) spec.alpha = below[pick(0, 4)];
  const double caps[] = {0.7, 5.0, 50.0};
  if (chance(0.15)) spec.softcap = caps[pick(0, 2)];
  // Scores at their cap tie in float32: which of them are the largest is rounding's.
  if (spec.map == RowMap::kTopKSoftmax && spec.softcap != 0.0) spec.softcap = 50.0;
  // Softpick jumps where all scores are 0.
  spec.any_length_scale = chance(0.4) && spec.map != RowMap::kSoftpick;
  if (spec.scale_invariant != 0.0 && chance(0.5)) {
    const auto [a, b] = kScaleInvariantShapes[static_cast<std::size_t>(pick(0, 3))];
    spec.scale_invariant_alpha = a;
    spec.scale_invariant_beta = b;
  }
  return spec;
}

}  // namespace tsallis
