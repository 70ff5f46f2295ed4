#include <cmath>

#include "attention/cpu/decode/decode.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attention/cpu/decode/kernel.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include "attention/cpu/gather-inl.h"
#include "attention/cpu/terms-inl.h"
#include "simplex/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tsallis {
namespace HWY_NAMESPACE {

// The last columns of a row, as many as are left, then zeros.
template <DType kType>
HWY_INLINE VF LoadRest(DF d, const void* row, std::int64_t x, std::int64_t columns) {
  HWY_ALIGN float rest[hn::MaxLanes(DF())];
  hn::Store(hn::Zero(d), d, rest);
  for (std::int64_t i = x; i < columns; ++i) rest[i - x] = LoadElement<float>(row, kType, i);
  return hn::Load(d, rest);
}

// Products of one key with some queries. Whatever kQueries is, each has the same order of sums.
template <DType kType, int kQueries>
HWY_INLINE void KeyDots(const void* row, const float* HWY_RESTRICT q, std::int64_t q_pitch,
                        std::int64_t columns, float* HWY_RESTRICT dot, std::int64_t pitch) {
  const DF d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  VF even[kQueries], odd[kQueries];
  for (int r = 0; r < kQueries; ++r) even[r] = odd[r] = hn::Zero(d);
  std::int64_t x = 0;
  for (; x + 2 * lanes <= columns; x += 2 * lanes) {
    const VF k0 = LoadAs<kType>(d, row, x), k1 = LoadAs<kType>(d, row, x + lanes);
    for (int r = 0; r < kQueries; ++r) {
      even[r] = hn::MulAdd(hn::LoadU(d, q + r * q_pitch + x), k0, even[r]);
      odd[r] = hn::MulAdd(hn::LoadU(d, q + r * q_pitch + x + lanes), k1, odd[r]);
    }
  }
  for (; x < columns; x += lanes) {
    const VF k0 =
        x + lanes <= columns ? LoadAs<kType>(d, row, x) : LoadRest<kType>(d, row, x, columns);
    for (int r = 0; r < kQueries; ++r) {
      even[r] = hn::MulAdd(hn::LoadU(d, q + r * q_pitch + x), k0, even[r]);
    }
  }
  for (int r = 0; r < kQueries; ++r) {
    dot[r * pitch] = hn::GetLane(hn::SumOfLanes(d, hn::Add(even[r], odd[r])));
  }
}

// How far ahead rows are asked for, in keys.
constexpr std::int64_t kAhead = 12;

template <DType kType, int kQueries>
HWY_INLINE void RunDots(const HeadRows& keys, std::int64_t begin, std::int64_t count,
                        const float* HWY_RESTRICT q, std::int64_t columns, float* HWY_RESTRICT dot,
                        std::int64_t pitch) {
  const std::int64_t q_pitch = decode::Padded(columns);
  const auto bytes = columns * static_cast<std::int64_t>(SizeOf(kType));
  for (std::int64_t j = 0; j < count; ++j) {
    if (j + kAhead < count) PrefetchRow(keys.At(begin + j + kAhead), bytes);
    KeyDots<kType, kQueries>(keys.At(begin + j), q, q_pitch, columns, dot + j, pitch);
  }
}

template <DType kType>
HWY_INLINE void DotsOf(const HeadRows& keys, std::int64_t begin, std::int64_t count, const float* q,
                       std::int64_t rows, std::int64_t columns, float* dot, std::int64_t pitch) {
  const std::int64_t q_pitch = decode::Padded(columns);
  const auto run = [&](auto queries, std::int64_t first) HWY_ATTR {
    RunDots<kType, decltype(queries)::value>(keys, begin, count, q + first * q_pitch, columns,
                                             dot + first * pitch, pitch);
  };
  std::int64_t r = 0;
  for (; r + 4 <= rows; r += 4) run(std::integral_constant<int, 4>(), r);
  if (r + 2 <= rows) {
    run(std::integral_constant<int, 2>(), r);
    r += 2;
  }
  if (r < rows) run(std::integral_constant<int, 1>(), r);
}

void DecodeDots(const HeadRows& keys, std::int64_t begin, std::int64_t count, const float* q,
                std::int64_t rows, std::int64_t columns, float* dot, std::int64_t pitch) {
  switch (keys.dtype) {
    case DType::kFloat32:
      return DotsOf<DType::kFloat32>(keys, begin, count, q, rows, columns, dot, pitch);
    case DType::kBFloat16:
      return DotsOf<DType::kBFloat16>(keys, begin, count, q, rows, columns, dot, pitch);
    default: return DotsOf<DType::kFloat16>(keys, begin, count, q, rows, columns, dot, pitch);
  }
}

template <DType kType>
HWY_INLINE void GatherDotsOf(const HeadRows& keys, const std::uint32_t* index, std::size_t n,
                             const float* q, std::int64_t columns, float* dot) {
  const auto bytes = columns * static_cast<std::int64_t>(SizeOf(kType));
  constexpr std::size_t kSoon = 8;
  for (std::size_t i = 0; i < n; ++i) {
    if (i + kSoon < n) PrefetchRow(keys.At(index[i + kSoon]), bytes);
    KeyDots<kType, 1>(keys.At(index[i]), q, 0, columns, dot + i, 0);
  }
}

void DecodeGatherDots(const HeadRows& keys, const std::uint32_t* index, std::size_t n,
                      const float* q, std::int64_t columns, float* dot) {
  switch (keys.dtype) {
    case DType::kFloat32: return GatherDotsOf<DType::kFloat32>(keys, index, n, q, columns, dot);
    case DType::kBFloat16: return GatherDotsOf<DType::kBFloat16>(keys, index, n, q, columns, dot);
    default: return GatherDotsOf<DType::kFloat16>(keys, index, n, q, columns, dot);
  }
}

float DecodeScores(const HeadTerms& terms, double factor, std::int64_t distance, std::int64_t n,
                   float* HWY_RESTRICT x) {
  const DF d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const VF by = hn::Set(d, static_cast<float>(factor));
  VF largest = hn::Zero(d);
  std::int64_t j = 0;
  for (; j + lanes <= n; j += lanes) {
    const VF v = hn::Mul(hn::LoadU(d, x + j), by);
    largest = hn::Max(largest, hn::Abs(v));
    hn::StoreU(v, d, x + j);
  }
  float most = hn::GetLane(hn::MaxOfLanes(d, largest));
  for (; j < n; ++j) {
    x[j] *= static_cast<float>(factor);
    most = HWY_MAX(most, std::abs(x[j]));
  }
  if (terms.any()) RowTerms(terms, distance, n, x, nullptr);
  return most;
}

float DecodeMaximum(const float* x, std::size_t n) { return RowMaximum(x, n); }

std::size_t DecodeAtLeast(const float* HWY_RESTRICT x, std::size_t n, float bar,
                          std::uint32_t first, std::uint32_t* HWY_RESTRICT index) {
  const DF d;
  const std::size_t lanes = hn::Lanes(d);
  const VF least = hn::Set(d, bar);
  std::size_t count = 0, i = 0;
  for (; i + lanes <= n; i += lanes) {
    if (hn::AllFalse(d, hn::Ge(hn::LoadU(d, x + i), least))) continue;
    for (std::size_t k = i; k < i + lanes; ++k) {
      index[count] = first + static_cast<std::uint32_t>(k);
      count += x[k] >= bar ? 1 : 0;
    }
  }
  for (; i < n; ++i) {
    index[count] = first + static_cast<std::uint32_t>(i);
    count += x[i] >= bar ? 1 : 0;
  }
  return count;
}

double DecodeExponentials(float* HWY_RESTRICT x, std::size_t n, float top) {
  const DF d;
  const VF most = hn::Set(d, top);
  double sum, unused;
  MapSumTwo(x, n, -kInfinityF, x, &sum, &unused, [&](VF v, VF& a, VF&) HWY_ATTR {
    const VF p = ExpNonPositive(hn::Sub(v, most));
    a = hn::Add(a, p);
    return p;
  });
  return sum;
}

void DecodeGatherSum(const HeadRows& values, const std::uint32_t* index, const float* weight,
                     std::size_t n, std::int64_t columns, float* sum) {
  GatherSum(values, index, weight, n, columns, sum);
}

void DecodeLoad(const HeadRows& rows, std::int64_t row, std::int64_t columns, float* out) {
  LoadFloats(rows, row, columns, out);
}

void BindDecode(decode::Functions* functions) {
  *functions = {.dots = DecodeDots,
                .gather_dots = DecodeGatherDots,
                .scores = DecodeScores,
                .maximum = DecodeMaximum,
                .at_least = DecodeAtLeast,
                .exponentials = DecodeExponentials,
                .gather_sum = DecodeGatherSum,
                .load = DecodeLoad,
                .store = StoreFloats};
}

}  // namespace HWY_NAMESPACE
}  // namespace tsallis
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tsallis::decode {

HWY_EXPORT(BindDecode);

Functions GetFunctions() {
  Functions functions;
  HWY_DYNAMIC_DISPATCH(BindDecode)(&functions);
  return functions;
}

}  // namespace tsallis::decode
#endif  // HWY_ONCE
