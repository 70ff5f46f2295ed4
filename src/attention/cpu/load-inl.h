// Rows of any storage type to float32 and back. Included once per instruction set.
#if defined(TSALLIS_ATTENTION_CPU_LOAD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TSALLIS_ATTENTION_CPU_LOAD_INL_H_
#undef TSALLIS_ATTENTION_CPU_LOAD_INL_H_
#else
#define TSALLIS_ATTENTION_CPU_LOAD_INL_H_
#endif

#include "attention/geometry.h"
#include "core/elements.h"
#include "simplex/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tsallis {
namespace HWY_NAMESPACE {

// Asks memory for the lines of `bytes` bytes, into the cache of the second level: for what is
// needed some hundred nanoseconds from now. Requests into the first level fill its few buffers, and
// a processor then reads pages that lie apart at half the speed of its memory (docs/log.md). Always
// inlined: GCC takes a function that does nothing else for one without effect and drops its calls.
HWY_INLINE void PrefetchFar(const void* row, std::int64_t bytes) {
  for (std::int64_t x = 0; x < bytes; x += 64) {
    __builtin_prefetch(static_cast<const std::byte*>(row) + x, 0, 2);
  }
}

// Where Highway 1.0.3 emulates float16 it cuts digits off and knows no infinity: there, one by one.
constexpr bool kConvertsFloat16 = HWY_TARGET <= HWY_AVX2 || HWY_ARCH_ARM_A64;

// Lanes() elements of 16 bits as float32.
HWY_INLINE VF FloatsOf(DF d, DType dtype, const std::uint16_t* HWY_RESTRICT p) {
  const hn::Rebind<std::uint16_t, DF> d16;
  if (dtype == DType::kBFloat16) {
    const hn::RebindToUnsigned<DF> du;
    return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du, hn::LoadU(d16, p))));
  }
  if constexpr (kConvertsFloat16) {
    const hn::Rebind<hwy::float16_t, DF> dh;
    return hn::PromoteTo(d, hn::BitCast(dh, hn::LoadU(d16, p)));
  }
  HWY_ALIGN float lanes[hn::MaxLanes(d)];
  for (std::size_t i = 0; i < hn::Lanes(d); ++i) lanes[i] = FloatFromFloat16(p[i]);
  return hn::Load(d, lanes);
}

// Bits of 16-bit elements, rounded to nearest even; NaN stays NaN.
HWY_INLINE hn::Vec<hn::Rebind<std::uint16_t, DF>> Rounded16(DF d, DType dtype, VF v) {
  const hn::Rebind<std::uint16_t, DF> d16;
  if (dtype == DType::kBFloat16) {
    const hn::RebindToUnsigned<DF> du;
    const auto bits = hn::BitCast(du, v);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
    const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7FFFu)));
    const auto nan = hn::Or(bits, hn::Set(du, 0x400000u));
    const auto chosen = hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(v)), nan, rounded);
    return hn::TruncateTo(d16, hn::ShiftRight<16>(chosen));
  }
  if constexpr (kConvertsFloat16) {
    const hn::Rebind<hwy::float16_t, DF> dh;
    return hn::BitCast(d16, hn::DemoteTo(dh, v));
  }
  HWY_ALIGN float lanes[hn::MaxLanes(d)];
  HWY_ALIGN std::uint16_t halves[hn::MaxLanes(d)];
  hn::Store(v, d, lanes);
  for (std::size_t i = 0; i < hn::Lanes(d); ++i) halves[i] = Float16FromFloat(lanes[i]);
  return hn::Load(d16, halves);
}
HWY_INLINE void StoreAs16(DF d, DType dtype, VF v, std::uint16_t* HWY_RESTRICT p) {
  hn::StoreU(Rounded16(d, dtype, v), hn::Rebind<std::uint16_t, DF>(), p);
}

// A row as floats. out: [columns].
HWY_INLINE void LoadFloats(const HeadRows& rows, std::int64_t row, std::int64_t columns,
                           float* HWY_RESTRICT out) {
  const void* from = rows.At(row);
  const DF d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t x = 0;
  if (rows.step == 1 && rows.dtype != DType::kFloat64) {
    if (rows.dtype == DType::kFloat32) {
      std::memcpy(out, from, sizeof(float) * static_cast<std::size_t>(columns));
      return;
    }
    const auto* p = static_cast<const std::uint16_t*>(from);
    for (; x + lanes <= columns; x += lanes) {
      hn::StoreU(FloatsOf(d, rows.dtype, p + x), d, out + x);
    }
  }
  for (; x < columns; ++x) out[x] = LoadElement<float>(from, rows.dtype, x * rows.step);
}

// The reverse, for what is not float64. values: [columns].
HWY_INLINE void StoreFloats(const float* HWY_RESTRICT values, const MutableArray4& array,
                            std::int64_t start, std::int64_t columns) {
  const DF d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t x = 0;
  if (array.strides[3] == 1) {
    if (array.dtype == DType::kFloat32) {
      std::memcpy(static_cast<float*>(array.data) + start, values, sizeof(float) * columns);
      return;
    }
    auto* p = static_cast<std::uint16_t*>(array.data) + start;
    for (; x + lanes <= columns; x += lanes) {
      StoreAs16(d, array.dtype, hn::LoadU(d, values + x), p + x);
    }
  }
  for (; x < columns; ++x) {
    StoreElement(array.data, array.dtype, start + x * array.strides[3], values[x]);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tsallis
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
