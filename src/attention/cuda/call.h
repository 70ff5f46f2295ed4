// The arguments of a call as kernels for GPUs receive them: plain data, passed by value, with the
// description of a head and a row. All pointers point to the device's memory.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "attention/geometry.h"
#include "attention/terms.h"
#include "core/cuda/device.h"
#include "core/elements.h"
#include "tsallis/attention.h"

namespace tsallis::cuda {
inline namespace TSALLIS_SIDE {

// Entries of a row's list. With 32 keys at a time there is room for those of a list that has just
// been solved and all that come next.
inline constexpr int kList = 64;
// In place of a count: the row is the dense kernels'.
inline constexpr int kDenseRow = -1;
// Threads of the kernels on tiles.
inline constexpr int kThreads = 128, kWarps = kThreads / kWarp;

#if defined(__CUDACC__)
using DeviceFactors = DistanceFactors;
#else
// The factors of distances, read so that the emulation sees it.
struct DeviceFactors : DistanceFactors {
  float a_at(std::int64_t distance) const { return LoadDevice(a(distance)); }
  float m_at(std::int64_t distance) const { return LoadDevice(m(distance)); }
};
#endif
using DeviceTerms = BasicTerms<float, DeviceFactors>;

inline constexpr float kMostFloat = 3.4028234e38f;
inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct DeviceCall {
  int batch = 0, heads = 0, kv_heads = 0, q_len = 0, k_len = 0, head_dim = 0, value_dim = 0;
  ConstArray4 q, k, v;
  AttentionMask mask;
  AttentionRanges ranges;  // within the axes: CutRangesKernel
  AttentionTerms terms;
  double scale = 1.0;
  double alpha = 1.5;              // 1: softmax
  const double* alphas = nullptr;  // [heads] or null
  DeviceFactors distances;

  TSALLIS_HOST_DEVICE int group() const { return heads / kv_heads; }
  TSALLIS_HOST_DEVICE int array_batch() const { return ranges.packed && batch > 1 ? 1 : batch; }
};

// Rows of one head of an array.
template <class Type>
struct ArrayRows {
  using Element = typename Type::Element;
  const Element* data = nullptr;
  std::int64_t stride = 0;

  TSALLIS_DEVICE static ArrayRows Of(const ConstArray4& array, std::int64_t b, std::int64_t h) {
    return {static_cast<const Element*>(array.data) + Offset(array.strides, b, h, 0),
            array.strides[2]};
  }
  TSALLIS_DEVICE const Element* At(std::int64_t row) const { return data + row * stride; }
};

// [x]^(1 / (alpha - 1)) and its slope times alpha - 1, x > 0.
struct Weight {
  float p = 0.0f, u = 0.0f;

  TSALLIS_DEVICE static Weight Of(float x, float alpha, float power) {
    if (alpha == 1.5f) return {x * x, x};
    if (alpha == 2.0f) return {x, 1.0f};
    const float u = powf(x, power - 1.0f);
    return {u * x, u};
  }
  // Below alpha = 1 a slope is smaller than its weight, elsewhere no slope is.
  TSALLIS_DEVICE bool IsZero(bool any_alpha) const {
    return u == 0.0f && (!any_alpha || p == 0.0f);
  }
  // u from p.
  TSALLIS_DEVICE static float Slope(float p, float alpha) {
    if (alpha == 1.5f) return sqrtf(p);
    if (alpha == 2.0f || !(p > 0.0f)) return p > 0.0f ? 1.0f : p;
    return powf(p, 2.0f - alpha);
  }
};

// Element `at` of a bias, of any dtype.
TSALLIS_DEVICE float LoadBias(const ConstArray4& bias, std::int64_t at) {
  const auto half = [&] { return LoadDevice(static_cast<const std::uint16_t*>(bias.data) + at); };
  switch (bias.dtype) {
    case DType::kBFloat16: return BFloat16::ToFloat(half());
    case DType::kFloat16: return Float16::ToFloat(half());
    case DType::kFloat32: return LoadDevice(static_cast<const float*>(bias.data) + at);
    case DType::kFloat64: break;
  }
  return static_cast<float>(LoadDevice(static_cast<const double*>(bias.data) + at));
}

// Whether the masks of a tile show any, and all, of its pairs of a row and a key.
struct TileMasks {
  bool any = true, all = true;
};

// A query head of a sequence.
struct Head {
  Sequence sequence;
  int h = 0, kv = 0;
  float alpha = 1.5f;
  float power = 2.0f;  // 1 / (alpha - 1)
  float unit = 0.5f;   // z = unit s: alpha - 1, for softmax and wide heads 1
  // Whether thresholds need more digits than float32 has: of these alphas they are found in double,
  // as the logarithm of the largest weight (simplex/solve.h).
  bool wide = false;
  double eps = 0.5;         // alpha - 1; of a wide head
  float sink = -kInfinity;  // its z; -inf: none
  DeviceTerms terms;

  TSALLIS_DEVICE bool softmax() const { return !wide && alpha == 1.0f; }

  TSALLIS_DEVICE static Span Clip(Span span, std::int64_t most) {
    if (span.begin < 0) span.begin = 0;
    if (span.begin > most) span.begin = most;
    if (span.end > most) span.end = most;
    if (span.end < span.begin) span.end = span.begin;
    return span;
  }
  TSALLIS_DEVICE static Sequence SequenceOf(const DeviceCall& call, std::int64_t b) {
    const Span all_q = {0, call.q_len}, all_k = {0, call.k_len};
    return Sequence::Of(call.ranges, call.mask, RowMap::kEntmax, all_q, all_k, b);
  }
  TSALLIS_HOST_DEVICE static bool IsWide(double alpha) {
    return alpha != 1.0 && (alpha < kLeastFloatAlpha || alpha > kMostFloatAlpha);
  }
  TSALLIS_DEVICE static double AlphaOf(const DeviceCall& call, int h) {
    return call.alphas != nullptr ? call.alphas[h] : call.alpha;
  }
  // Whether rows of the head may have lists.
  TSALLIS_DEVICE static bool IsSparse(const DeviceCall& call, int h) {
    const double alpha = AlphaOf(call, h);
    return alpha != 1.0 && !IsWide(alpha);
  }
  // kGeneral: sets `wide`. Without it, no head is wide or the caller does not need to know.
  template <bool kGeneral = false>
  TSALLIS_DEVICE static Head Of(const DeviceCall& call, std::int64_t b, int h) {
    Head head;
    head.sequence = SequenceOf(call, b);
    head.h = h;
    head.kv = h / call.group();
    const double alpha = AlphaOf(call, h);
    head.alpha = static_cast<float>(alpha);
    head.wide = kGeneral && IsWide(alpha);
    head.eps = alpha - 1.0;
    head.unit = head.wide || head.softmax() ? 1.0f : head.alpha - 1.0f;
    head.power = 1.0f / head.unit;
    if (call.terms.sink != nullptr) head.sink = head.unit * static_cast<float>(call.terms.sink[h]);
    const ConstArray4& slopes = call.terms.alibi_slopes;
    head.terms.SetNumbers(call.terms, head.unit);
    head.terms.distances = call.distances;
    if (slopes.data != nullptr) {
      head.terms.slope =
          head.unit * LoadElement<float>(slopes.data, slopes.dtype,
                                         Offset(slopes.strides, head.sequence.array_batch, h, 0));
    }
    return head;
  }
  // Keys that any of the rows from `first` to `last` sees: both ends rise with the row. The end of
  // a row that sees none may lie beyond the sequence.
  TSALLIS_DEVICE Span KeysOf(const AttentionMask& mask, std::int64_t first,
                             std::int64_t last) const {
    Span keys = {sequence.VisibleKeys(mask, first).begin, sequence.VisibleKeys(mask, last).end};
    if (keys.end > sequence.k.end) keys.end = sequence.k.end;
    return keys;
  }
  // The block mask of rows from `first` to `last` and keys from `key` to before `end`: at least one
  // pair. The warp calls it, for the same rows and keys.
  TSALLIS_DEVICE TileMasks MasksOf(const AttentionMask& mask, int first, int last, int key,
                                   int end) const {
    TileMasks masks;
    if (mask.blocks == nullptr) return masks;
    // Runner keeps block sizes within an int.
    const int block_q = static_cast<int>(mask.block_q), block_k = static_cast<int>(mask.block_k);
    const int row = first / block_q, column = key / block_k;
    const int columns = (end - 1) / block_k - column + 1;
    const std::int64_t blocks = static_cast<std::int64_t>(last / block_q - row + 1) * columns;
    // So many take longer than the tile that they might spare.
    constexpr int kMost = 1024;
    if (blocks > kMost) return {true, false};
    masks.any = false;
    for (int i = 0; i < blocks && (masks.all || !masks.any); i += kWarp) {
      const int at = i + Lane();
      const bool in = at < blocks;
      const bool visible =
          in && LoadDevice(mask.blocks + Offset(mask.block_strides, sequence.array_batch, h,
                                                row + at / columns, column + at % columns)) != 0;
      masks.any = Any(visible) || masks.any;
      masks.all = !Any(in && !visible) && masks.all;
    }
    return masks;
  }
  // Whether the masks show the key to the query, beside the causal rule and the window. blocks:
  // whether to look at the block mask.
  TSALLIS_DEVICE bool Sees(const AttentionMask& mask, bool blocks, int row, int key) const {
    const std::int64_t b = sequence.array_batch;
    if (blocks && mask.blocks != nullptr &&
        LoadDevice(mask.blocks + Offset(mask.block_strides, b, h,
                                        row / static_cast<int>(mask.block_q),
                                        key / static_cast<int>(mask.block_k))) == 0) {
      return false;
    }
    return mask.visible == nullptr ||
           LoadDevice(mask.visible + Offset(mask.visible_strides, b, h, row, key)) != 0;
  }
  // Whether the query sees the key by masks and bias. Sets *bias to unit times the pair's bias.
  // tile: the masks of the tile that holds the pair.
  TSALLIS_DEVICE bool IsVisible(const DeviceCall& call, const TileMasks& tile, int row, int key,
                                float* bias) const {
    *bias = 0.0f;
    if (!Sees(call.mask, !tile.all, row, key)) return false;
    const ConstArray4& biases = call.terms.bias;
    if (biases.data == nullptr) return true;
    *bias = unit * LoadBias(biases, Offset(biases.strides, sequence.array_batch, h, row, key));
    return *bias != -kInfinity;
  }
  // Multiplies a product to give unit x.
  TSALLIS_DEVICE float Factor(const DeviceCall& call, std::int64_t q_row) const {
    const ConstArray4& c = call.terms.length_scale;
    double factor = static_cast<double>(unit) * call.scale;
    if (c.data != nullptr) {
      factor *=
          LoadElement<double>(c.data, c.dtype, Offset(c.strides, sequence.array_batch, h, q_row));
    }
    return static_cast<float>(factor);
  }
  TSALLIS_DEVICE float Score(float factor, float product, std::int64_t distance) const {
    const float x = factor * product;
    return terms.any() ? terms.Score(x, distance) : x;
  }
  // Index of a query row in the statistics.
  TSALLIS_DEVICE std::int64_t Index(const DeviceCall& call, std::int64_t q_row) const {
    return (sequence.array_batch * call.heads + h) * call.q_len + q_row;
  }
};

// Rows that the dense kernels take: those of sequence b and head h are the first counts[b heads +
// h] of rows + Index(first row of the sequence). rows null: all.
struct DenseRows {
  const int* rows = nullptr;
  const int* counts = nullptr;

  TSALLIS_DEVICE int Count(const DeviceCall& call, const Head& head) const {
    if (rows == nullptr) return static_cast<int>(head.sequence.q.size());
    return LoadDevice(counts + head.sequence.batch * call.heads + head.h);
  }
  // i: below Count.
  TSALLIS_DEVICE int At(const DeviceCall& call, const Head& head, int i) const {
    const std::int64_t begin = head.sequence.q.begin;
    if (rows == nullptr) return static_cast<int>(begin) + i;
    return LoadDevice(rows + head.Index(call, begin) + i);
  }
};

// Blocks of `rows` rows of every sequence along an axis, as numbers from 0 on: which sequence, and
// which row. Sequences of a packed batch lie behind each other, so that one with a row at r has
// blocks from r / rows + its own number on.
struct BlockPlace {
  std::int64_t b = 0, first = 0;
  bool any = false;

  static int Count(bool packed, std::int64_t length, std::int64_t batch, int rows) {
    return static_cast<int>(packed ? length / rows + batch : (length + rows - 1) / rows);
  }
  // block: below Count(); b: of a batch that is not packed. begins: [batch], the axis's.
  TSALLIS_DEVICE static BlockPlace Of(const DeviceCall& call, const std::int64_t* begins,
                                      bool of_keys, int block, int b, int rows) {
    std::int64_t low = b, first_block = 0;
    if (call.ranges.packed) {
      std::int64_t high = call.batch;
      low = 0;
      while (high - low > 1) {
        const std::int64_t middle = (low + high) / 2;
        const bool after = begins[middle] / rows + middle <= block;
        low = after ? middle : low;
        high = after ? high : middle;
      }
      first_block = begins[low] / rows + low;
    }
    const Sequence sequence = Head::SequenceOf(call, low);
    const Span& span = of_keys ? sequence.k : sequence.q;
    BlockPlace place;
    place.b = low;
    place.first = span.begin + (block - first_block) * rows;
    place.any = place.first >= span.begin && place.first < span.end;
    return place;
  }
};

// Writes an even number of elements.
template <class Type>
TSALLIS_DEVICE void StoreColumns(const MutableArray4& array, std::int64_t start, int column,
                                 const float* values, int count) {
  auto* to = static_cast<typename Type::Element*>(array.data) + start + column * array.strides[3];
  if constexpr (kIsFloat32<Type>) {
    for (int i = 0; i < count; ++i) StoreDevice(to + i * array.strides[3], values[i]);
    return;
  } else {
    const bool pairs = array.strides[3] == 1 && reinterpret_cast<std::uintptr_t>(to) % 4 == 0;
    for (int i = 0; i < count; i += 2) {
      const std::uint16_t low = Type::FromFloat(values[i]), high = Type::FromFloat(values[i + 1]);
      if (pairs) {
        StoreDevice(reinterpret_cast<std::uint32_t*>(to + i),
                    static_cast<std::uint32_t>(low) | static_cast<std::uint32_t>(high) << 16);
      } else {
        StoreDevice(to + i * array.strides[3], low);
        StoreDevice(to + (i + 1) * array.strides[3], high);
      }
    }
  }
}

// Eight elements side by side, as they lie in memory.
template <class Type>
struct Columns {
  static constexpr int kPieces = kIsFloat32<Type> ? 2 : 1;

  TSALLIS_DEVICE void Load(const typename Type::Element* from) {
    TSALLIS_UNROLL
    for (int i = 0; i < kPieces; ++i) {
      pieces[i] = LoadDevice(reinterpret_cast<const Words4*>(from) + i);
    }
  }
  TSALLIS_DEVICE void ToFloats(float (&values)[8]) const {
    TSALLIS_UNROLL
    for (int i = 0; i < 4; ++i) {
      if constexpr (kIsFloat32<Type>) {
        values[i] = FloatOf(pieces[0].w[i]);
        values[4 + i] = FloatOf(pieces[1].w[i]);
      } else {
        values[2 * i] = Type::ToFloat(static_cast<std::uint16_t>(pieces[0].w[i]));
        values[2 * i + 1] = Type::ToFloat(static_cast<std::uint16_t>(pieces[0].w[i] >> 16));
      }
    }
  }

  Words4 pieces[kPieces] = {};
};
template <class Type>
TSALLIS_DEVICE void LoadColumns(const typename Type::Element* from, float (&values)[8]) {
  Columns<Type> columns;
  columns.Load(from);
  columns.ToFloats(values);
}

}  // namespace TSALLIS_SIDE
}  // namespace tsallis::cuda
