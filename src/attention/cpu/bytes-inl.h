// Products of bytes by vpdpbusd on x86 and sdot on ARM. Included once per instruction set; for
// those beside which processors have it.
#if defined(TSALLIS_ATTENTION_CPU_BYTES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TSALLIS_ATTENTION_CPU_BYTES_INL_H_
#undef TSALLIS_ATTENTION_CPU_BYTES_INL_H_
#else
#define TSALLIS_ATTENTION_CPU_BYTES_INL_H_
#endif

#include "simplex/vector-inl.h"

#undef TSALLIS_BYTES_HERE
#if HWY_TARGET <= HWY_AVX2 || (HWY_ARCH_ARM_A64 && HWY_TARGET <= HWY_NEON)
#define TSALLIS_BYTES_HERE 1
#else
#define TSALLIS_BYTES_HERE 0
#endif

#if TSALLIS_BYTES_HERE
HWY_BEFORE_NAMESPACE();
namespace tsallis {
namespace HWY_NAMESPACE {

using VBytes = hn::Vec<hn::RebindToSigned<DF>>;

// Functions with products of bytes: TSALLIS_BYTES those that others call, TSALLIS_BYTES_INLINE
// those that they are made of. sdot is part of no target of Highway's, so on ARM they are compiled
// for it by themselves and the others call them only where ByteDots() names it.
#undef TSALLIS_BYTES
#undef TSALLIS_BYTES_INLINE
#if HWY_ARCH_ARM_A64
#define TSALLIS_BYTES __attribute__((target("arch=armv8.2-a+crypto+dotprod")))
#define TSALLIS_BYTES_INLINE TSALLIS_BYTES HWY_INLINE
#else
#define TSALLIS_BYTES HWY_INLINE
#define TSALLIS_BYTES_INLINE HWY_INLINE
#endif

// Adds four products of a key's and a query's bytes to a lane. vpdpbusd takes a key's bytes
// unsigned, sdot signed. On x86 in assembly: GCC 12 moves arrays of sums to memory and back around
// the intrinsics.
TSALLIS_BYTES_INLINE void AddByteDots(VBytes& sum, VBytes keys, VBytes query) {
#if HWY_ARCH_ARM_A64
  sum.raw = vdotq_s32(sum.raw, vreinterpretq_s8_s32(keys.raw), vreinterpretq_s8_s32(query.raw));
#elif HWY_TARGET <= HWY_AVX3
  __asm__("vpdpbusd %2, %1, %0" : "+v"(sum.raw) : "v"(keys.raw), "v"(query.raw));
#else
  __asm__("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum.raw) : "x"(keys.raw), "x"(query.raw));
#endif
}

}  // namespace HWY_NAMESPACE
}  // namespace tsallis
HWY_AFTER_NAMESPACE();
#endif

#endif  // per-target include guard
