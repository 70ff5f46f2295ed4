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

// Adds weight[i] rows[index[i]][x] to pairs[0][x] for even i and to pairs[1][x] for odd ones, or
// with `first` to 0. pairs: [2][columns]. A list may come in parts that begin at even entries.
template <DType kType>
HWY_INLINE void GatherPairsTyped(const HeadRows& rows, const std::uint32_t* HWY_RESTRICT index,
                                 const float* HWY_RESTRICT weight, std::size_t n,
                                 std::int64_t columns, bool first, float* HWY_RESTRICT pairs) {
  const DF d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  float* HWY_RESTRICT even = pairs;
  float* HWY_RESTRICT odd = pairs + columns;
  const auto so_far = [&](const float* sum)
                          HWY_ATTR { return first ? hn::Zero(d) : hn::LoadU(d, sum); };
  std::int64_t x = 0;
  // Four vectors of columns and two entries at a time: eight sums hide the latency of one.
  for (; x + 4 * lanes <= columns; x += 4 * lanes) {
    VF a0 = so_far(even + x), a1 = so_far(even + x + lanes), a2 = so_far(even + x + 2 * lanes),
       a3 = so_far(even + x + 3 * lanes);
    VF b0 = so_far(odd + x), b1 = so_far(odd + x + lanes), b2 = so_far(odd + x + 2 * lanes),
       b3 = so_far(odd + x + 3 * lanes);
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
    hn::StoreU(a0, d, even + x);
    hn::StoreU(a1, d, even + x + lanes);
    hn::StoreU(a2, d, even + x + 2 * lanes);
    hn::StoreU(a3, d, even + x + 3 * lanes);
    hn::StoreU(b0, d, odd + x);
    hn::StoreU(b1, d, odd + x + lanes);
    hn::StoreU(b2, d, odd + x + 2 * lanes);
    hn::StoreU(b3, d, odd + x + 3 * lanes);
  }
  // The last columns have one sum.
  for (; x + lanes <= columns; x += lanes) {
    VF a = so_far(even + x);
    for (std::size_t i = 0; i < n; ++i) {
      a = hn::MulAdd(hn::Set(d, weight[i]), LoadAs<kType>(d, rows.At(index[i]), x), a);
    }
    hn::StoreU(a, d, even + x);
    hn::StoreU(hn::Zero(d), d, odd + x);
  }
  for (; x < columns; ++x) {
    float a = first ? 0.0f : even[x];
    for (std::size_t i = 0; i < n; ++i) {
      a += weight[i] * LoadElement<float>(rows.At(index[i]), kType, x);
    }
    even[x] = a;
    odd[x] = 0.0f;
  }
}

HWY_INLINE void GatherPairs(const HeadRows& rows, const std::uint32_t* HWY_RESTRICT index,
                            const float* HWY_RESTRICT weight, std::size_t n, std::int64_t columns,
                            bool first, float* HWY_RESTRICT pairs) {
  ForDType(rows.dtype, [&](auto type) HWY_ATTR {
    GatherPairsTyped<type.value>(rows, index, weight, n, columns, first, pairs);
  });
}

// sum[x] = pairs[0][x] + pairs[1][x].
HWY_INLINE void SumPairs(const float* HWY_RESTRICT pairs, std::int64_t columns,
                         float* HWY_RESTRICT sum) {
  for (std::int64_t x = 0; x < columns; ++x) sum[x] = pairs[x] + pairs[columns + x];
}

// sum[x] = sum_i weight[i] rows[index[i]][x]. sum: [columns], at most 512.
HWY_INLINE void GatherSum(const HeadRows& rows, const std::uint32_t* HWY_RESTRICT index,
                          const float* HWY_RESTRICT weight, std::size_t n, std::int64_t columns,
                          float* HWY_RESTRICT sum) {
  HWY_ALIGN float pairs[2 * 512];
  GatherPairs(rows, index, weight, n, columns, /*first=*/true, pairs);
  SumPairs(pairs, columns, sum);
}

#if HWY_HAVE_SCALABLE || HWY_TARGET == HWY_SCALAR
// to: [4], the sums of the lanes of four vectors, each in the same order.
HWY_INLINE void StoreSumsOfFour(DF d, VF v0, VF v1, VF v2, VF v3, float* HWY_RESTRICT to) {
  to[0] = hn::GetLane(hn::SumOfLanes(d, v0));
  to[1] = hn::GetLane(hn::SumOfLanes(d, v1));
  to[2] = hn::GetLane(hn::SumOfLanes(d, v2));
  to[3] = hn::GetLane(hn::SumOfLanes(d, v3));
}
#else
// to: [4], the sum of a vector's blocks of four lanes.
template <class D>
HWY_INLINE void StoreSumOfBlocks(D d, hn::VFromD<D> v, float* HWY_RESTRICT to) {
  if constexpr (hn::MaxLanes(D()) > 4) {
    const hn::Half<D> half;
    StoreSumOfBlocks(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)), to);
  } else {
    hn::StoreU(v, d, to);
  }
}

// to: [4], the sums of the lanes of four vectors, each in the same order.
HWY_INLINE void StoreSumsOfFour(DF d, VF v0, VF v1, VF v2, VF v3, float* HWY_RESTRICT to) {
  const hn::RepartitionToWide<DF> wide;
  const auto pairs = [&](VF a, VF b) HWY_ATTR {
    return hn::BitCast(wide, hn::Add(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b)));
  };
  const auto low = pairs(v0, v1), high = pairs(v2, v3);
  // Every block of four lanes has a part of each sum.
  const VF blocks = hn::Add(hn::BitCast(d, hn::InterleaveLower(wide, low, high)),
                            hn::BitCast(d, hn::InterleaveUpper(wide, low, high)));
  StoreSumOfBlocks(d, blocks, to);
}
#endif

// dot[i] = <rows[index[i]], x>, whatever else is in the list. x: [columns] float32.
template <DType kType>
HWY_INLINE void GatherDotTyped(const HeadRows& rows, const std::uint32_t* HWY_RESTRICT index,
                               std::size_t n, const float* HWY_RESTRICT x, std::int64_t columns,
                               float* HWY_RESTRICT dot) {
  const DF d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const std::int64_t bytes = columns * (kType == DType::kFloat32 ? 4 : 2);
  // The lanes of four entries are summed up together, with a third of the instructions. The next
  // four are on their way; more ahead, the requests cost more than they save.
  constexpr std::size_t kFew = 4;
  for (std::size_t i = 0; i < n; i += kFew) {
    const std::size_t here = HWY_MIN(kFew, n - i);
    const auto row = [&](std::size_t k) { return rows.At(index[i + HWY_MIN(k, here - 1)]); };
    const void *r0 = row(0), *r1 = row(1), *r2 = row(2), *r3 = row(3);
    if (i + 2 * kFew <= n) {
      for (std::size_t k = kFew; k < 2 * kFew; ++k) PrefetchRow(rows.At(index[i + k]), bytes);
    }
    VF a0 = hn::Zero(d), a1 = a0, a2 = a0, a3 = a0, b0 = a0, b1 = a0, b2 = a0, b3 = a0;
    std::int64_t c = 0;
    for (; c + 2 * lanes <= columns; c += 2 * lanes) {
      const VF u = hn::LoadU(d, x + c), v = hn::LoadU(d, x + c + lanes);
      a0 = hn::MulAdd(u, LoadAs<kType>(d, r0, c), a0);
      a1 = hn::MulAdd(u, LoadAs<kType>(d, r1, c), a1);
      a2 = hn::MulAdd(u, LoadAs<kType>(d, r2, c), a2);
      a3 = hn::MulAdd(u, LoadAs<kType>(d, r3, c), a3);
      b0 = hn::MulAdd(v, LoadAs<kType>(d, r0, c + lanes), b0);
      b1 = hn::MulAdd(v, LoadAs<kType>(d, r1, c + lanes), b1);
      b2 = hn::MulAdd(v, LoadAs<kType>(d, r2, c + lanes), b2);
      b3 = hn::MulAdd(v, LoadAs<kType>(d, r3, c + lanes), b3);
    }
    for (; c + lanes <= columns; c += lanes) {
      const VF u = hn::LoadU(d, x + c);
      a0 = hn::MulAdd(u, LoadAs<kType>(d, r0, c), a0);
      a1 = hn::MulAdd(u, LoadAs<kType>(d, r1, c), a1);
      a2 = hn::MulAdd(u, LoadAs<kType>(d, r2, c), a2);
      a3 = hn::MulAdd(u, LoadAs<kType>(d, r3, c), a3);
    }
    a0 = hn::Add(a0, b0), a1 = hn::Add(a1, b1), a2 = hn::Add(a2, b2), a3 = hn::Add(a3, b3);
    if (c == columns && here == kFew) {
      StoreSumsOfFour(d, a0, a1, a2, a3, dot + i);
      continue;
    }
    float few[kFew];
    StoreSumsOfFour(d, a0, a1, a2, a3, few);
    for (std::size_t k = 0; k < here; ++k) {
      for (std::int64_t y = c; y < columns; ++y) {
        few[k] += x[y] * LoadElement<float>(row(k), kType, y);
      }
      dot[i + k] = few[k];
    }
  }
}

HWY_INLINE void GatherDot(const HeadRows& rows, const std::uint32_t* HWY_RESTRICT index,
                          std::size_t n, const float* HWY_RESTRICT x, std::int64_t columns,
                          float* HWY_RESTRICT dot) {
  ForDType(rows.dtype, [&](auto type) HWY_ATTR {
    if (columns == 64) {  // the compiler unrolls it
      GatherDotTyped<type.value>(rows, index, n, x, 64, dot);
    } else {
      GatherDotTyped<type.value>(rows, index, n, x, columns, dot);
    }
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
