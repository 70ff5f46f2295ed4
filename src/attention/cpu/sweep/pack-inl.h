// Packing of keys and queries for the score engines, and the moments of a head's keys. Included
// once per instruction set.
#if defined(TSALLIS_ATTENTION_CPU_SWEEP_PACK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TSALLIS_ATTENTION_CPU_SWEEP_PACK_INL_H_
#undef TSALLIS_ATTENTION_CPU_SWEEP_PACK_INL_H_
#else
#define TSALLIS_ATTENTION_CPU_SWEEP_PACK_INL_H_
#endif

#include "attention/cpu/load-inl.h"
#include "attention/cpu/sweep/int7-inl.h"
#include "attention/cpu/sweep/int8-inl.h"
#include "attention/cpu/sweep/sweep.h"

HWY_BEFORE_NAMESPACE();
namespace tsallis {
namespace HWY_NAMESPACE {

// A norm times a norm above this might overflow where sums of products do.
constexpr float kLargestNorm = 1e15f;

// <a, b> in float32. a, b: [n].
HWY_INLINE float DotFloats(const float* HWY_RESTRICT a, const float* HWY_RESTRICT b,
                           std::size_t n) {
  const DF d;
  const std::size_t lanes = hn::Lanes(d);
  VF s0 = hn::Zero(d), s1 = hn::Zero(d);
  std::size_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    s0 = hn::MulAdd(hn::LoadU(d, a + i), hn::LoadU(d, b + i), s0);
    s1 = hn::MulAdd(hn::LoadU(d, a + i + lanes), hn::LoadU(d, b + i + lanes), s1);
  }
  for (; i + lanes <= n; i += lanes) {
    s0 = hn::MulAdd(hn::LoadU(d, a + i), hn::LoadU(d, b + i), s0);
  }
  float sum = hn::GetLane(hn::SumOfLanes(d, hn::Add(s0, s1)));
  for (; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

// Rounds values to bf16 (two in a word, the first in its low half) and returns the squared norm of
// what that takes away. values: [dim] with dim even, words: [dim / 2] at `step` words from each
// other.
HWY_INLINE float RoundToBf16(const float* HWY_RESTRICT values, std::int64_t dim,
                             std::uint32_t* HWY_RESTRICT words, std::int64_t step) {
  const DF d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  HWY_ALIGN std::uint16_t halves[512 + 32];
  VF lost = hn::Zero(d);
  std::int64_t x = 0;
  for (; x + lanes <= dim; x += lanes) {
    const VF v = hn::LoadU(d, values + x);
    StoreAs16(d, DType::kBFloat16, v, halves + x);
    const VF rest = hn::Sub(v, FloatsOf(d, DType::kBFloat16, halves + x));
    lost = hn::MulAdd(rest, rest, lost);
  }
  float sum = hn::GetLane(hn::SumOfLanes(d, lost));
  for (; x < dim; ++x) {
    halves[x] = BFloat16FromFloat(values[x]);
    const float rest = values[x] - FloatFromBFloat16(halves[x]);
    sum += rest * rest;
  }
  for (std::int64_t pair = 0; pair < dim / 2; ++pair) {
    std::memcpy(words + pair * step, halves + 2 * pair, 4);
  }
  return sum;
}

// Writes key `key` of a packed run of tiles, not in bytes. values: [dim], zero from head_dim on.
// Returns the squared norm of what rounding took away.
HWY_INLINE float PackKey(ScoreEngine engine, const float* HWY_RESTRICT values, std::int64_t dim,
                         std::int64_t key, std::byte* packed) {
  std::byte* group = packed + key / 16 * 16 * dim * PackedElementBytes(engine);
  if (engine == ScoreEngine::kFloat) {
    auto* out = reinterpret_cast<float*>(group) + key % 16;
    for (std::int64_t x = 0; x < dim; ++x) out[x * 16] = values[x];
    return 0.0f;
  }
  return RoundToBf16(values, dim, reinterpret_cast<std::uint32_t*>(group) + key % 16, 16);
}

// Writes row `row` of a packed unit of queries. values: [dim], zero from head_dim on; scale:
// PackedKeys's.
HWY_INLINE PackedQuery PackQuery(ScoreEngine engine, const float* HWY_RESTRICT values,
                                 const float* HWY_RESTRICT scale, std::int64_t dim,
                                 std::int64_t row, std::byte* unit) {
  if (IsByteEngine(engine)) return PackByteQuery(engine, values, scale, dim, row, unit);
  const float norm = std::sqrt(DotFloats(values, values, static_cast<std::size_t>(dim)));
  if (engine == ScoreEngine::kFloat) {
    auto* out = reinterpret_cast<float*>(unit) + row;
    for (std::int64_t x = 0; x < dim; ++x) out[x * 16] = values[x];
    return {norm};
  }
  float lost = 0.0f;
  for (std::int64_t chunk = 0; chunk < dim / 32; ++chunk) {
    lost += RoundToBf16(values + chunk * 32, 32,
                        reinterpret_cast<std::uint32_t*>(unit + chunk * 1024 + row * 64), 1);
  }
  return {norm, std::sqrt(lost)};
}

// What bytes of keys are taken from and divided by: the mean of a sample, and for each dimension
// the root of its deviation over the size of queries there, so that keys and queries share what a
// large dimension costs. Any finite centre and positive scale give correct bounds. On keys of a
// real model both together halve the bounds' distance from the scores (docs/log.md).
void ComputeScale(const AttentionParams& params, const Sequence& sequence, std::int64_t kv,
                  const PackedKeys& keys) {
  const std::int64_t d = params.head_dim, dim = PackedDim(ScoreEngine::kInt8, d);
  HWY_ALIGN float values[512 + 32], mean[512 + 32] = {}, key[512 + 32] = {}, query[512 + 32] = {};
  const std::int64_t samples = HWY_MIN(keys.count, std::int64_t{256});
  const HeadRows rows = KeyRows(params, sequence, kv, keys.first);
  const float share = 1.0f / static_cast<float>(HWY_MAX(samples, std::int64_t{1}));
  for (std::int64_t i = 0; i < samples; ++i) {
    LoadFloats(rows, i * keys.count / samples, d, values);
    for (std::int64_t x = 0; x < d; ++x) {
      mean[x] += share * values[x];
      key[x] += share * values[x] * values[x];
    }
  }
  const std::int64_t group = params.heads / params.kv_heads;
  const std::int64_t each = HWY_MIN(sequence.q.size(), HWY_MAX(128 / group, std::int64_t{1}));
  for (std::int64_t h = kv * group; h < (kv + 1) * group; ++h) {
    const HeadRows queries = HeadRows::Of(params.q, sequence.array_batch, h);
    for (std::int64_t i = 0; i < each; ++i) {
      LoadFloats(queries, sequence.q.begin + i * sequence.q.size() / each, d, values);
      for (std::int64_t x = 0; x < d; ++x) query[x] += values[x] * values[x];
    }
  }
  const auto within = [](float x) { return x > 1e-30f && x < kLargestNorm * kLargestNorm; };
  const float most_query = *std::max_element(query, query + d);
  float most = 0.0f;
  for (std::int64_t x = 0; x < d; ++x) {
    // Squared: of the deviation over the query's size.
    const float spread = key[x] - mean[x] * mean[x];
    const float size = within(most_query) ? HWY_MAX(query[x] / most_query, 1e-8f) : 1.0f;
    key[x] = within(spread) ? spread / size : 0.0f;
    most = HWY_MAX(most, key[x]);
  }
  for (std::int64_t x = 0; x < dim; ++x) {
    const bool known = x < d && within(most);
    keys.scale[x] = known ? std::sqrt(std::sqrt(HWY_MAX(key[x] / most, 1e-8f))) : 1.0f;
    keys.centre[x] = x < d && std::abs(mean[x]) < kLargestNorm ? mean[x] : 0.0f;  // NaN: 0
  }
}

// Packs tiles [begin, end) of a head's keys; bounds over these tiles only.
void PackTiles(ScoreEngine engine, const AttentionParams& params, const Sequence& sequence,
               std::int64_t kv, std::int64_t begin, std::int64_t end, const PackedKeys& keys,
               PackedBounds* bounds) {
  const std::int64_t dim = PackedDim(engine, params.head_dim);
  const HeadRows rows = KeyRows(params, sequence, kv, keys.first);
  const auto load = [&](std::int64_t key, float* HWY_RESTRICT values) HWY_ATTR {
    std::fill_n(values, dim, 0.0f);
    if (key >= keys.count) return;
    LoadFloats(rows, key, params.head_dim, values);
  };
  HWY_ALIGN float values[512 + 32], inverse[512 + 32];
  if (IsByteEngine(engine)) {
    for (std::int64_t x = 0; x < dim; ++x) inverse[x] = 1.0f / keys.scale[x];
  }
  *bounds = {};
  float norm = 0.0f, error = 0.0f;  // squared
  const auto look = [&](const float* v) HWY_ATTR {
    const float squared = DotFloats(v, v, static_cast<std::size_t>(dim));
    bounds->usable = bounds->usable && squared < kLargestNorm * kLargestNorm;  // false for NaN too
    norm = HWY_MAX(norm, squared);
  };
  for (std::int64_t tile = begin; tile < end; ++tile) {
    const std::int64_t key0 = tile * kTileKeys;
    if (IsByteEngine(engine)) {
      const PackedBounds of_tile = PackByteTile(
          engine, dim, keys.data + static_cast<std::size_t>(tile) * TileBytes(engine, dim),
          [&](std::int64_t key, float* HWY_RESTRICT v) HWY_ATTR {
            load(key0 + key, v);
            look(v);
            if (key0 + key >= keys.count) return;
            for (std::int64_t x = 0; x < dim; ++x) v[x] = (v[x] - keys.centre[x]) * inverse[x];
          });
      bounds->packed_norm = HWY_MAX(bounds->packed_norm, of_tile.packed_norm);
      bounds->error = HWY_MAX(bounds->error, of_tile.error);
      bounds->step = HWY_MAX(bounds->step, of_tile.step);
      continue;
    }
    for (std::int64_t key = key0; key < key0 + kTileKeys; ++key) {
      load(key, values);
      look(values);
      error = HWY_MAX(error, PackKey(engine, values, dim, key, keys.data));
    }
  }
  bounds->norm = std::sqrt(norm);
  if (IsByteEngine(engine)) return;
  bounds->packed_norm = bounds->norm;
  bounds->error = std::sqrt(error);
}

// to[x ... x + 3][y ... y + 4 lanes) = share sum_i rows[i][x] rows[i][y], in vectors that begin
// below `dim`. rows: [samples][dim], with a vector more to read; to: [dim + 3][pitch].
HWY_INLINE void CovariancePanel(const float* HWY_RESTRICT rows, std::int64_t samples,
                                std::int64_t dim, std::int64_t x, std::int64_t y, float share,
                                float* HWY_RESTRICT to, std::int64_t pitch) {
  const DF d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto vectors = static_cast<int>(HWY_MIN(4, (dim - y + lanes - 1) / lanes));
  VF sum[kCovarianceRows][4];
  for (auto& row : sum) {
    for (VF& v : row) v = hn::Zero(d);
  }
  const auto run = [&](auto count) HWY_ATTR {
    constexpr int kCount = decltype(count)::value;
    for (std::int64_t i = 0; i < samples; ++i, rows += dim) {
      VF v[kCount];
      HWY_UNROLL(4)
      for (int c = 0; c < kCount; ++c) v[c] = hn::LoadU(d, rows + y + c * lanes);
      HWY_UNROLL(4)
      for (std::int64_t r = 0; r < kCovarianceRows; ++r) {
        const VF factor = hn::Set(d, rows[x + r]);
        HWY_UNROLL(4)
        for (int c = 0; c < kCount; ++c) sum[r][c] = hn::MulAdd(factor, v[c], sum[r][c]);
      }
    }
    for (std::int64_t r = 0; r < kCovarianceRows; ++r) {
      for (int c = 0; c < kCount; ++c) {
        hn::StoreU(hn::Mul(sum[r][c], hn::Set(d, share)), d, to + (x + r) * pitch + y + c * lanes);
      }
    }
  };
  switch (vectors) {
    case 1: return run(std::integral_constant<int, 1>());
    case 2: return run(std::integral_constant<int, 2>());
    case 3: return run(std::integral_constant<int, 3>());
    default: return run(std::integral_constant<int, 4>());
  }
}

// Mean and covariance of a sample of keys, evenly spread.
void ComputeMoments(ScoreEngine engine, const AttentionParams& params, const Sequence& sequence,
                    std::int64_t kv, const PackedKeys& keys, SweepScratch& scratch) {
  const std::int64_t d = params.head_dim, dim = PackedDim(engine, d);
  const std::int64_t samples = MomentSamples(keys.count);
  float* HWY_RESTRICT rows = scratch.moments.get();
  const std::int64_t pitch = CovariancePitch(dim);
  float* HWY_RESTRICT covariance = rows + kMomentSamples * dim + kCovarianceSpare;
  float* HWY_RESTRICT mean = keys.mean;
  const DF df;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(df));
  // y[x] += factor * v[x]
  const auto add = [&](float factor, const float* HWY_RESTRICT v, float* HWY_RESTRICT y) HWY_ATTR {
    const VF f = hn::Set(df, factor);
    std::int64_t x = 0;
    for (; x + lanes <= d; x += lanes) {
      hn::StoreU(hn::MulAdd(f, hn::LoadU(df, v + x), hn::LoadU(df, y + x)), df, y + x);
    }
    for (; x < d; ++x) y[x] += factor * v[x];
  };
  std::memset(mean, 0, sizeof(float) * static_cast<std::size_t>(dim));
  const HeadRows source = KeyRows(params, sequence, kv, keys.first);
  const float share = 1.0f / static_cast<float>(HWY_MAX(samples, 1));
  for (std::int64_t i = 0; i < samples; ++i) {
    LoadFloats(source, MomentRow(i, keys.count), d, rows + i * dim);
    std::fill(rows + i * dim + d, rows + (i + 1) * dim, 0.0f);
    add(share, rows + i * dim, mean);
  }
  for (std::int64_t i = 0; i < samples; ++i) add(-1.0f, mean, rows + i * dim);
  for (std::int64_t x = 0; x < d; x += kCovarianceRows) {
    // From the vector that holds the diagonal on; what lies before it is mirrored.
    for (std::int64_t y = x / lanes * lanes; y < dim; y += 4 * lanes) {
      CovariancePanel(rows, samples, dim, x, y, share, covariance, pitch);
    }
  }
  for (std::int64_t x = 0; x < d; ++x) {
    for (std::int64_t y = 0; y < x; ++y) covariance[x * pitch + y] = covariance[y * pitch + x];
  }
  for (std::int64_t x = 0; x < d; ++x) {
    std::fill(covariance + x * pitch + d, covariance + x * pitch + dim, 0.0f);
  }
  if (IsByteEngine(engine)) {
    for (std::int64_t tile = 0; tile < Tiles(d); ++tile) {
      std::byte* to = keys.covariance + static_cast<std::size_t>(tile) * TileBytes(engine, d);
      PackByteTile(engine, dim, to, [&](std::int64_t key, float* HWY_RESTRICT v) HWY_ATTR {
        const std::int64_t x = tile * kTileKeys + key;
        for (std::int64_t y = 0; y < dim; ++y) {
          v[y] = x < d ? covariance[x * pitch + y] / keys.scale[y] : 0.0f;
        }
      });
      // An estimate, not a bound.
      auto* tail = reinterpret_cast<ByteTileTail*>(to + kTileKeys * dim);
      tail->lost = tail->norm = 0.0f;
    }
    return;
  }
  std::memset(keys.covariance, 0, static_cast<std::size_t>(Tiles(d)) * TileBytes(engine, d));
  for (std::int64_t x = 0; x < d; ++x) {
    PackKey(engine, covariance + x * pitch, dim, x, keys.covariance);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tsallis
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
