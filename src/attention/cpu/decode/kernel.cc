#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "attention/cpu/decode/decode.h"
#include "core/target.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attention/cpu/decode/kernel.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include "attention/cpu/bytes-inl.h"
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

// Rows of a page, or of an array: side by side but for `pitch`.
struct Block {
  const std::byte* at = nullptr;
  std::int64_t count = 0, pitch = 0;
  const std::byte* ahead = nullptr;  // those of the next block, or null

  const std::byte* Row(std::int64_t j) const { return at + j * pitch; }
  // Asks for columns of a row of the next block.
  HWY_INLINE void Ask(std::int64_t j, std::int64_t from, std::int64_t bytes) const {
    if (ahead != nullptr) PrefetchFar(ahead + j * pitch + from, bytes);
  }
};

// Calls body(block, first) for the rows [begin, begin + count), page by page; first counts from
// `begin`.
template <class Body>
HWY_INLINE void ForBlocks(const HeadRows& rows, std::int64_t begin, std::int64_t count,
                          const Body& body) {
  const std::int64_t end = begin + count;
  for (std::int64_t at = begin; at < end;) {
    const std::int64_t next = HWY_MIN(rows.PageEnd(at), end);
    const auto* ahead = next < end ? static_cast<const std::byte*>(rows.At(next)) : nullptr;
    body(Block{static_cast<const std::byte*>(rows.At(at)), next - at, rows.row_bytes, ahead},
         at - begin);
    at = next;
  }
}

template <DType kType, int kQueries>
HWY_INLINE void RunDots(const HeadRows& keys, std::int64_t begin, std::int64_t count,
                        const float* HWY_RESTRICT q, std::int64_t columns, float* HWY_RESTRICT dot,
                        std::int64_t pitch) {
  const std::int64_t q_pitch = decode::Padded(columns);
  const auto bytes = columns * static_cast<std::int64_t>(SizeOf(kType));
  ForBlocks(keys, begin, count, [&](const Block& block, std::int64_t first) HWY_ATTR {
    for (std::int64_t j = 0; j < block.count; ++j) {
      block.Ask(j, 0, bytes);
      KeyDots<kType, kQueries>(block.Row(j), q, q_pitch, columns, dot + first + j, pitch);
    }
  });
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
  ForDType(keys.dtype, [&](auto type) HWY_ATTR {
    DotsOf<type.value>(keys, begin, count, q, rows, columns, dot, pitch);
  });
}

// Adds kVectors vectors of columns from x on. Whatever kRows is, each has the same order of sums.
template <DType kType, int kRows, int kVectors>
HWY_INLINE void BlockSums(const Block& values, const float* const* weight, std::int64_t first,
                          std::int64_t x, float* const* sum) {
  const DF d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto size = static_cast<std::int64_t>(SizeOf(kType));
  VF total[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int p = 0; p < kVectors; ++p) total[r][p] = hn::LoadU(d, sum[r] + x + p * lanes);
  }
  for (std::int64_t j = 0; j < values.count; ++j) {
    const std::byte* row = values.Row(j);
    values.Ask(j, x * size, kVectors * lanes * size);
    VF value[kVectors];
    for (int p = 0; p < kVectors; ++p) value[p] = LoadAs<kType>(d, row, x + p * lanes);
    for (int r = 0; r < kRows; ++r) {
      const VF w = hn::Set(d, weight[r][first + j]);
      for (int p = 0; p < kVectors; ++p) total[r][p] = hn::MulAdd(w, value[p], total[r][p]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int p = 0; p < kVectors; ++p) hn::StoreU(total[r][p], d, sum[r] + x + p * lanes);
  }
}

// Sums the last columns, which do not fill a vector.
template <DType kType>
HWY_INLINE void RestSums(const Block& values, const float* weight, std::int64_t x,
                         std::int64_t columns, float* sum) {
  const DF d;
  VF total = hn::LoadU(d, sum + x);
  for (std::int64_t j = 0; j < values.count; ++j) {
    total = hn::MulAdd(hn::Set(d, weight[j]), LoadRest<kType>(d, values.Row(j), x, columns), total);
  }
  hn::StoreU(total, d, sum + x);
}

// Vectors of columns that are summed at a time: four rows of them fit the registers.
constexpr int kSumVectors = kManyRegisters ? 4 : 2;

template <DType kType, int kRows>
HWY_INLINE void RowsSums(const HeadRows& values, std::int64_t begin, std::int64_t count,
                         const float* const* weight, std::int64_t columns, float* const* sum) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(DF()));
  ForBlocks(values, begin, count, [&](const Block& block, std::int64_t first) HWY_ATTR {
    std::int64_t x = 0;
    for (; x + kSumVectors * lanes <= columns; x += kSumVectors * lanes) {
      BlockSums<kType, kRows, kSumVectors>(block, weight, first, x, sum);
    }
    for (; x + lanes <= columns; x += lanes) {
      BlockSums<kType, kRows, 1>(block, weight, first, x, sum);
    }
    if (x == columns) return;
    for (int r = 0; r < kRows; ++r) {
      RestSums<kType>(block, weight[r] + first, x, columns, sum[r]);
    }
  });
}

template <DType kType>
HWY_INLINE void SumsOf(const HeadRows& values, std::int64_t begin, std::int64_t count,
                       const float* const* weight, std::int64_t rows, std::int64_t columns,
                       float* const* sum) {
  std::int64_t r = 0;
  for (; r + 4 <= rows; r += 4) {
    RowsSums<kType, 4>(values, begin, count, weight + r, columns, sum + r);
  }
  for (; r < rows; ++r) RowsSums<kType, 1>(values, begin, count, weight + r, columns, sum + r);
}

void DecodeSums(const HeadRows& values, std::int64_t begin, std::int64_t count,
                const float* const* weight, std::int64_t rows, std::int64_t columns,
                float* const* sum) {
  ForDType(values.dtype, [&](auto type) HWY_ATTR {
    SumsOf<type.value>(values, begin, count, weight, rows, columns, sum);
  });
}

template <DType kType>
HWY_INLINE void GatherDotsOf(const HeadRows& keys, const std::uint32_t* index, std::size_t n,
                             const float* q, std::int64_t columns, float* dot) {
  const auto bytes = columns * static_cast<std::int64_t>(SizeOf(kType));
  constexpr std::size_t kSoon = 16;
  for (std::size_t i = 0; i < HWY_MIN(n, kSoon); ++i) PrefetchFar(keys.At(index[i]), bytes);
  for (std::size_t i = 0; i < n; ++i) {
    if (i + kSoon < n) PrefetchFar(keys.At(index[i + kSoon]), bytes);
    KeyDots<kType, 1>(keys.At(index[i]), q, 0, columns, dot + i, 0);
  }
}

void DecodeGatherDots(const HeadRows& keys, const std::uint32_t* index, std::size_t n,
                      const float* q, std::int64_t columns, float* dot) {
  ForDType(keys.dtype,
           [&](auto type) HWY_ATTR { GatherDotsOf<type.value>(keys, index, n, q, columns, dot); });
}

#if TSALLIS_BYTES_HERE
// sum[r * 16 + j] of a group of 16 keys. Asks for as many bytes from `ahead` on, unless it is null.
template <int kQueries>
TSALLIS_BYTES void GroupDots(const std::byte* HWY_RESTRICT keys, const std::byte* ahead,
                             std::int64_t columns, const decode::ByteQuery* queries,
                             std::int32_t* HWY_RESTRICT sum) {
  const hn::RebindToSigned<DF> di;
  constexpr std::size_t kVector = hn::MaxLanes(DF()), kParts = 16 / kVector;
  VBytes total[kQueries][kParts];
  for (int r = 0; r < kQueries; ++r) {
    for (VBytes& part : total[r]) part = hn::Set(di, HWY_ARCH_ARM_A64 ? 128 * queries[r].sum : 0);
  }
  const auto* words = reinterpret_cast<const std::int32_t*>(keys);
  for (std::int64_t x = 0; x < columns / 4; ++x) {
    if (ahead != nullptr) PrefetchFar(ahead + x * 64, 64);
    VBytes key[kParts];
    for (std::size_t p = 0; p < kParts; ++p) {
      key[p] = hn::LoadU(di, words + x * 16 + static_cast<std::int64_t>(p * kVector));
#if HWY_ARCH_ARM_A64
      key[p] = hn::Xor(key[p], hn::Set(di, -0x7F7F7F80));  // bytes less 128; sums start at the rest
#endif
    }
    for (int r = 0; r < kQueries; ++r) {
      std::int32_t word;
      std::memcpy(&word, queries[r].bytes + 4 * x, sizeof word);
      const VBytes query = hn::Set(di, word);
      for (std::size_t p = 0; p < kParts; ++p) AddByteDots(total[r][p], key[p], query);
    }
  }
  for (int r = 0; r < kQueries; ++r) {
    for (std::size_t p = 0; p < kParts; ++p) {
      hn::StoreU(total[r][p], di, sum + r * 16 + static_cast<std::int64_t>(p * kVector));
    }
  }
}

#endif
#if HWY_TARGET <= HWY_AVX2
// The same where products of bytes are no instruction: bytes become 16 bits, and pairs of their
// products one sum.
template <int kQueries>
HWY_INLINE void GroupDotsWide(const std::byte* HWY_RESTRICT keys, const std::byte* ahead,
                              std::int64_t width, const decode::ByteQuery* queries,
                              std::int32_t* HWY_RESTRICT sum) {
  const hn::RebindToSigned<DF> di;
  const hn::Repartition<std::uint8_t, DF> du8;
  const hn::Repartition<std::int16_t, DF> d16;
  const hn::Repartition<std::int64_t, DF> d64;
  constexpr std::size_t kVector = hn::MaxLanes(DF()), kParts = 16 / kVector;
  // Of a part's keys 4 b and 4 b + 1 stand in block b of the first vector, the next two in the
  // second.
  VBytes total[kQueries][kParts][2];
  for (auto& row : total) {
    for (auto& part : row) part[0] = part[1] = hn::Zero(di);
  }
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(keys);
  VBytes unused = hn::Zero(di);
  for (std::int64_t x = 0; x < width; x += 4) {
    if (ahead != nullptr) PrefetchFar(ahead + x * 16, 64);
    hn::Vec<decltype(d16)> key[kParts][2];
    for (std::size_t p = 0; p < kParts; ++p) {
      const auto v = hn::LoadU(du8, bytes + x * 16 + static_cast<std::int64_t>(p * 4 * kVector));
      key[p][0] = hn::BitCast(d16, hn::InterleaveLower(du8, v, hn::Zero(du8)));
      key[p][1] = hn::BitCast(d16, hn::InterleaveUpper(du8, v, hn::Zero(du8)));
    }
    for (int r = 0; r < kQueries; ++r) {
      std::int64_t word;
      std::memcpy(&word, queries[r].wide + x, sizeof word);
      const auto query = hn::BitCast(d16, hn::Set(d64, word));
      for (std::size_t p = 0; p < kParts; ++p) {
        for (int half = 0; half < 2; ++half) {
          // vpmaddwd: the sum of two neighbouring products, in their place.
          total[r][p][half] =
              hn::ReorderWidenMulAccumulate(di, key[p][half], query, total[r][p][half], unused);
        }
      }
    }
  }
  // Both sums of a key lie side by side: the first key of a block in lanes 0 and 1.
  alignas(64) std::int32_t order[kVector];
  for (std::size_t b = 0; b < kVector; b += 4) {
    order[b] = static_cast<std::int32_t>(b);          // key 4 b, from the first vector
    order[b + 1] = static_cast<std::int32_t>(b + 2);  // key 4 b + 1
    order[b + 2] = static_cast<std::int32_t>(b + 1);  // key 4 b + 2, from the second
    order[b + 3] = static_cast<std::int32_t>(b + 3);
  }
  const auto indices = hn::SetTableIndices(di, order);
  for (int r = 0; r < kQueries; ++r) {
    for (std::size_t p = 0; p < kParts; ++p) {
      const auto whole = [&](VBytes v) HWY_ATTR { return hn::Add(v, hn::Shuffle2301(v)); };
      const VBytes both = hn::OddEven(whole(total[r][p][1]), whole(total[r][p][0]));
      hn::StoreU(hn::TableLookupLanes(both, indices), di,
                 sum + r * 16 + static_cast<std::int64_t>(p * kVector));
    }
  }
}
#endif

// Computes the same without instructions for it.
HWY_INLINE void GroupDotsPlain(const std::byte* HWY_RESTRICT keys, std::int64_t columns,
                               const decode::ByteQuery& query, std::int32_t* HWY_RESTRICT sum) {
  std::fill_n(sum, 16, 0);
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(keys);
  for (std::int64_t x = 0; x < columns; x += 4) {
    for (std::int64_t j = 0; j < 16; ++j) {
      for (std::int64_t i = 0; i < 4; ++i) {
        sum[j] += static_cast<std::int32_t>(bytes[x * 16 + j * 4 + i]) *
                  static_cast<std::int32_t>(query.bytes[x + i]);
      }
    }
  }
}

template <bool kByteDots>
void DecodeByteBounds(const std::byte* page, const std::byte* ahead, std::int64_t columns,
                      const decode::ByteQuery* queries, std::int64_t rows, float* bound,
                      std::int64_t pitch) {
  const DF d;
  const hn::RebindToSigned<DF> di;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const std::int64_t width = decode::ByteColumns(columns);
  const auto* tail = reinterpret_cast<const float*>(page + decode::ByteTailAt(columns));
  for (std::int64_t group = 0; group < 4; ++group) {
    const std::byte* keys = page + group * 16 * width;
    const std::byte* group_ahead = ahead == nullptr ? nullptr : ahead + group * 16 * width;
    HWY_ALIGN std::int32_t sums[decode::kRows * 16];
    std::int64_t r = 0;
#if TSALLIS_BYTES_HERE
    if constexpr (kByteDots) {
      for (; r + 4 <= rows; r += 4) {
        GroupDots<4>(keys, r == 0 ? group_ahead : nullptr, width, queries + r, sums + r * 16);
      }
      for (; r < rows; ++r) {
        GroupDots<1>(keys, r == 0 ? group_ahead : nullptr, width, queries + r, sums + r * 16);
      }
    }
#endif
#if HWY_TARGET <= HWY_AVX2
    if constexpr (!kByteDots) {
      const auto part = [&](auto count) HWY_ATTR {
        GroupDotsWide<decltype(count)::value>(keys, r == 0 ? group_ahead : nullptr, width,
                                              queries + r, sums + r * 16);
        r += decltype(count)::value;
      };
      while (r + 3 <= rows) part(std::integral_constant<int, 3>());
      while (r < rows) part(std::integral_constant<int, 1>());
    }
#endif
    if (r == 0 && ahead != nullptr) PrefetchFar(group_ahead, 16 * width);
    for (; r < rows; ++r) GroupDotsPlain(keys, width, queries[r], sums + r * 16);
    if (ahead != nullptr) {
      const std::byte* tail_ahead = ahead + decode::ByteTailAt(columns) + group * 16 * 4;
      for (int part = 0; part < 3; ++part) PrefetchFar(tail_ahead + part * decode::kPage * 4, 64);
    }
    const float* step = tail + group * 16;
    const float* lost = step + decode::kPage;
    const float* norm = lost + decode::kPage;
    for (r = 0; r < rows; ++r) {
      const decode::ByteQuery& query = queries[r];
      const auto offset = hn::Set(di, 128 * query.sum);
      // Roundings of float32 here are less than 1e-6 of the product of the norms.
      const VF s = hn::Set(d, query.step), q_norm = hn::Set(d, query.norm * 1.00001f),
               q_lost = hn::Set(d, query.lost + query.norm * 4e-6f);
      float* out = bound + r * pitch + group * 16;
      for (std::int64_t j = 0; j < 16; j += lanes) {
        const VF dot = hn::ConvertTo(d, hn::Sub(hn::LoadU(di, sums + r * 16 + j), offset));
        const VF product = hn::Mul(hn::Mul(dot, hn::LoadU(d, step + j)), s);
        const VF rest =
            hn::MulAdd(q_norm, hn::LoadU(d, lost + j), hn::Mul(q_lost, hn::LoadU(d, norm + j)));
        hn::StoreU(hn::Add(product, rest), d, out + j);
      }
    }
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
    if (hn::AllTrue(d, hn::Lt(hn::LoadU(d, x + i), least))) continue;
    for (std::size_t k = i; k < i + lanes; ++k) {
      index[count] = first + static_cast<std::uint32_t>(k);
      count += x[k] < bar ? 0 : 1;
    }
  }
  for (; i < n; ++i) {
    index[count] = first + static_cast<std::uint32_t>(i);
    count += x[i] < bar ? 0 : 1;
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
  // Few rows, as a support mostly is, are all on their way before the first is added.
  constexpr std::size_t kFew = 64;
  const auto bytes = columns * static_cast<std::int64_t>(SizeOf(values.dtype));
  for (std::size_t i = 0; i < HWY_MIN(n, kFew); ++i) PrefetchFar(values.At(index[i]), bytes);
  GatherSum(values, index, weight, n, columns, sum);
}

void DecodeLoad(const HeadRows& rows, std::int64_t row, std::int64_t columns, float* out) {
  LoadFloats(rows, row, columns, out);
}

void BindDecode(bool byte_dots, decode::Functions* functions) {
  *functions = {.dots = DecodeDots,
                .gather_dots = DecodeGatherDots,
                .fast_bounds = byte_dots || HWY_TARGET <= HWY_AVX2,
                .byte_bounds = byte_dots ? DecodeByteBounds<true> : DecodeByteBounds<false>,
                .scores = DecodeScores,
                .maximum = DecodeMaximum,
                .at_least = DecodeAtLeast,
                .exponentials = DecodeExponentials,
                .sums = DecodeSums,
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
  HWY_DYNAMIC_DISPATCH(BindDecode)(*ByteDots() != '\0', &functions);
  return functions;
}

}  // namespace tsallis::decode
#endif  // HWY_ONCE
