// Packing of keys and queries for the score engines, and the moments of a head's keys. Included once
// per instruction set.
#if defined(TSALLIS_ATTENTION_CPU_SWEEP_PACK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TSALLIS_ATTENTION_CPU_SWEEP_PACK_INL_H_
#undef TSALLIS_ATTENTION_CPU_SWEEP_PACK_INL_H_
#else
#define TSALLIS_ATTENTION_CPU_SWEEP_PACK_INL_H_
#endif

#include "attention/cpu/load-inl.h"
#include "attention/cpu/sweep.h"

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

// Rounds values to bf16 (two in a word, the first in its low half) and returns the squared norm of what
// that takes away. values: [dim] with dim even, words: [dim / 2] at `step` words from each other.
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

// Writes key `key` of a packed run of tiles. values: [dim], zero from head_dim on. Returns the squared
// norm of what rounding took away.
HWY_INLINE float PackKey(ScoreEngine engine, const float* HWY_RESTRICT values, std::int64_t dim,
                         std::int64_t key, std::byte* packed) {
  std::byte* group =
      packed + static_cast<std::size_t>(key / 16 * 16 * dim) * PackedElementBytes(engine);
  if (engine == ScoreEngine::kFloat) {
    auto* out = reinterpret_cast<float*>(group) + key % 16;
    for (std::int64_t x = 0; x < dim; ++x) out[x * 16] = values[x];
    return 0.0f;
  }
  return RoundToBf16(values, dim, reinterpret_cast<std::uint32_t*>(group) + key % 16, 16);
}

// Writes row `row` of a packed unit of queries; as above.
HWY_INLINE float PackQuery(ScoreEngine engine, const float* HWY_RESTRICT values, std::int64_t dim,
                           std::int64_t row, std::byte* unit) {
  if (engine == ScoreEngine::kFloat) {
    auto* out = reinterpret_cast<float*>(unit) + row;
    for (std::int64_t x = 0; x < dim; ++x) out[x * 16] = values[x];
    return 0.0f;
  }
  float lost = 0.0f;
  for (std::int64_t chunk = 0; chunk < dim / 32; ++chunk) {
    lost += RoundToBf16(values + chunk * 32, 32,
                        reinterpret_cast<std::uint32_t*>(unit + chunk * 1024 + row * 64), 1);
  }
  return lost;
}

// Packs tiles [begin, end) of a head's keys; bounds over these tiles only.
void PackTiles(ScoreEngine engine, const AttentionParams& params, const Sequence& sequence,
               std::int64_t kv, std::int64_t begin, std::int64_t end, const PackedKeys& keys,
               PackedBounds* bounds) {
  const std::int64_t dim = PackedDim(engine, params.head_dim);
  HWY_ALIGN float values[512 + 32];
  std::memset(values, 0, sizeof(values));
  float norm = 0.0f, error = 0.0f;
  bool usable = true;
  for (std::int64_t key = begin * kTileKeys; key < end * kTileKeys; ++key) {
    if (key < keys.count) {
      LoadFloats(params.k, Offset(params.k.strides, sequence.array_batch, kv, keys.first + key),
                 params.head_dim, values);
    } else {
      std::memset(values, 0, sizeof(float) * static_cast<std::size_t>(dim));
    }
    const float squared = DotFloats(values, values, static_cast<std::size_t>(dim));
    usable = usable && squared < kLargestNorm * kLargestNorm;  // false for NaN too
    norm = HWY_MAX(norm, squared);
    error = HWY_MAX(error, PackKey(engine, values, dim, key, keys.data));
  }
  *bounds = {std::sqrt(norm), std::sqrt(error), usable};
}

// to[x ... x + 3][y ... y + 4 lanes) = share sum_i rows[i][x] rows[i][y], in vectors that begin below `dim`.
// rows: [samples][dim], with a vector more to read; to: [dim + 3][pitch].
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
  const std::int64_t samples = HWY_MIN(HWY_MAX(keys.count / 4, 512), kMomentSamples);
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
  const float share = 1.0f / static_cast<float>(HWY_MAX(samples, 1));
  for (std::int64_t i = 0; i < samples; ++i) {
    const std::int64_t key = keys.first + i * keys.count / samples;
    LoadFloats(params.k, Offset(params.k.strides, sequence.array_batch, kv, key), d,
               rows + i * dim);
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
  std::memset(keys.covariance, 0, static_cast<std::size_t>(Tiles(d)) * TileBytes(engine, d));
  for (std::int64_t x = 0; x < d; ++x) {
    std::fill(covariance + x * pitch + d, covariance + x * pitch + dim, 0.0f);
    PackKey(engine, covariance + x * pitch, dim, x, keys.covariance);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tsallis
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
