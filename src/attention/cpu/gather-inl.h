// Sums over a row's support: out = sum p v, gathered rows. Included once per instruction set.
#if defined(TSALLIS_ATTENTION_CPU_GATHER_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TSALLIS_ATTENTION_CPU_GATHER_INL_H_
#undef TSALLIS_ATTENTION_CPU_GATHER_INL_H_
#else
#define TSALLIS_ATTENTION_CPU_GATHER_INL_H_
#endif

#include <hwy/contrib/math/math-inl.h>

#include "attention/cpu/load-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tsallis {
namespace HWY_NAMESPACE {

template <DType kType>
HWY_INLINE VF LoadAs(DF d, const void* row, std::int64_t x) {
  if constexpr (kType == DType::kFloat32) return hn::LoadU(d, static_cast<const float*>(row) + x);
  return FloatsOf(d, kType, static_cast<const std::uint16_t*>(row) + x);
}

HWY_INLINE void PrefetchRow(const void* row, std::int64_t bytes) {
  for (std::int64_t x = 0; x < bytes; x += 64) {
    __builtin_prefetch(static_cast<const std::byte*>(row) + x);
  }
}

// sum[x] = sum_i weight[i] rows[index[i]][x]. sum: [columns].
template <DType kType>
HWY_INLINE void GatherSumTyped(const HeadRows& rows, const std::uint32_t* HWY_RESTRICT index,
                               const float* HWY_RESTRICT weight, std::size_t n,
                               std::int64_t columns, float* HWY_RESTRICT sum) {
  const DF d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t x = 0;
  // Four vectors of columns and two entries at a time: eight sums hide the latency of one.
  for (; x + 4 * lanes <= columns; x += 4 * lanes) {
    VF a0 = hn::Zero(d), a1 = a0, a2 = a0, a3 = a0, b0 = a0, b1 = a0, b2 = a0, b3 = a0;
    std::size_t i = 0;
    for (; i + 2 <= n; i += 2) {
      const void* p = rows.At(index[i]);
      const void* q = rows.At(index[i + 1]);
      const VF u = hn::Set(d, weight[i]), v = hn::Set(d, weight[i + 1]);
      a0 = hn::MulAdd(u, LoadAs<kType>(d, p, x), a0);
      a1 = hn::MulAdd(u, LoadAs<kType>(d, p, x + lanes), a1);
      a2 = hn::MulAdd(u, LoadAs<kType>(d, p, x + 2 * lanes), a2);
      a3 = hn::MulAdd(u, LoadAs<kType>(d, p, x + 3 * lanes), a3);
      b0 = hn::MulAdd(v, LoadAs<kType>(d, q, x), b0);
      b1 = hn::MulAdd(v, LoadAs<kType>(d, q, x + lanes), b1);
      b2 = hn::MulAdd(v, LoadAs<kType>(d, q, x + 2 * lanes), b2);
      b3 = hn::MulAdd(v, LoadAs<kType>(d, q, x + 3 * lanes), b3);
    }
    if (i < n) {
      const void* p = rows.At(index[i]);
      const VF u = hn::Set(d, weight[i]);
      a0 = hn::MulAdd(u, LoadAs<kType>(d, p, x), a0);
      a1 = hn::MulAdd(u, LoadAs<kType>(d, p, x + lanes), a1);
      a2 = hn::MulAdd(u, LoadAs<kType>(d, p, x + 2 * lanes), a2);
      a3 = hn::MulAdd(u, LoadAs<kType>(d, p, x + 3 * lanes), a3);
    }
    hn::StoreU(hn::Add(a0, b0), d, sum + x);
    hn::StoreU(hn::Add(a1, b1), d, sum + x + lanes);
    hn::StoreU(hn::Add(a2, b2), d, sum + x + 2 * lanes);
    hn::StoreU(hn::Add(a3, b3), d, sum + x + 3 * lanes);
  }
  for (; x + lanes <= columns; x += lanes) {
    VF a = hn::Zero(d);
    for (std::size_t i = 0; i < n; ++i) {
      a = hn::MulAdd(hn::Set(d, weight[i]), LoadAs<kType>(d, rows.At(index[i]), x), a);
    }
    hn::StoreU(a, d, sum + x);
  }
  for (; x < columns; ++x) {
    float a = 0.0f;
    for (std::size_t i = 0; i < n; ++i) {
      a += weight[i] * LoadElement<float>(rows.At(index[i]), kType, x);
    }
    sum[x] = a;
  }
}

HWY_INLINE void GatherSum(const HeadRows& rows, const std::uint32_t* HWY_RESTRICT index,
                          const float* HWY_RESTRICT weight, std::size_t n, std::int64_t columns,
                          float* HWY_RESTRICT sum) {
  ForDType(rows.dtype, [&](auto type) HWY_ATTR {
    GatherSumTyped<type.value>(rows, index, weight, n, columns, sum);
  });
}

// dot[i] = <rows[index[i]], x>. x: [columns] float32.
template <DType kType>
HWY_INLINE void GatherDotTyped(const HeadRows& rows, const std::uint32_t* HWY_RESTRICT index,
                               std::size_t n, const float* HWY_RESTRICT x, std::int64_t columns,
                               float* HWY_RESTRICT dot) {
  const DF d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  constexpr std::int64_t kBytes = kType == DType::kFloat32 ? 4 : 2;
  constexpr std::size_t kAhead = 8;
  for (std::size_t i = 0; i < HWY_MIN(n, kAhead); ++i) {
    PrefetchRow(rows.At(index[i]), columns * kBytes);
  }
  for (std::size_t i = 0; i < n; ++i) {
    if (i + kAhead < n) PrefetchRow(rows.At(index[i + kAhead]), columns * kBytes);
    const void* row = rows.At(index[i]);
    VF a = hn::Zero(d), b = a;
    std::int64_t c = 0;
    for (; c + 2 * lanes <= columns; c += 2 * lanes) {
      a = hn::MulAdd(hn::LoadU(d, x + c), LoadAs<kType>(d, row, c), a);
      b = hn::MulAdd(hn::LoadU(d, x + c + lanes), LoadAs<kType>(d, row, c + lanes), b);
    }
    for (; c + lanes <= columns; c += lanes) {
      a = hn::MulAdd(hn::LoadU(d, x + c), LoadAs<kType>(d, row, c), a);
    }
    float sum = hn::GetLane(hn::SumOfLanes(d, hn::Add(a, b)));
    for (; c < columns; ++c) sum += x[c] * LoadElement<float>(row, kType, c);
    dot[i] = sum;
  }
}

HWY_INLINE void GatherDot(const HeadRows& rows, const std::uint32_t* HWY_RESTRICT index,
                          std::size_t n, const float* HWY_RESTRICT x, std::int64_t columns,
                          float* HWY_RESTRICT dot) {
  ForDType(rows.dtype, [&](auto type) HWY_ATTR {
    GatherDotTyped<type.value>(rows, index, n, x, columns, dot);
  });
}

// Starts fetching rows that a Gather will read.
HWY_INLINE void PrefetchRows(const HeadRows& rows, const std::uint32_t* HWY_RESTRICT index,
                             std::size_t n, std::int64_t columns) {
  const std::int64_t bytes = columns * static_cast<std::int64_t>(SizeOf(rows.dtype));
  for (std::size_t i = 0; i < n; ++i) PrefetchRow(rows.At(index[i]), bytes);
}

// Keeps the entries whose value `wanted` (a vector to a mask) takes: `index` shrinks in place,
// their values go to `kept_value`, which may be `value`. Returns how many there are. All have room
// for a vector more.
template <class Wanted>
HWY_INLINE std::size_t KeepEntries(std::uint32_t* index, const float* value, float* kept_value,
                                   std::size_t n, const Wanted& wanted) {
  const DF d;
  const hn::RebindToUnsigned<DF> du;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t kept = 0;
  for (std::size_t i = 0; i < n; i += lanes) {
    const VF v = hn::LoadU(d, value + i);
    auto keep = wanted(v);
    if (n - i < lanes) keep = hn::And(keep, hn::FirstN(d, n - i));
    const auto k = hn::LoadU(du, index + i);
    kept += StoreTaken(keep, v, kept_value + kept, k, index + kept);
  }
  return kept;
}

// -sum p ln p. p: [n] > 0.
HWY_INLINE double EntropyOf(const float* HWY_RESTRICT p, std::size_t n) {
  double a, b;
  SumTwo(p, n, 1.0f, &a, &b, [](VF v, VF& sum, VF&) HWY_ATTR {
    const DF d;
    sum = hn::NegMulAdd(v, hn::Log(d, hn::Max(v, hn::Set(d, 1.17549435e-38f))), sum);
  });
  return a;
}

}  // namespace HWY_NAMESPACE
}  // namespace tsallis
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
