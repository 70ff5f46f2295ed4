// Products of bytes by vpdpbusd. Included once per instruction set; for those that have it.
#if defined(TSALLIS_ATTENTION_CPU_BYTES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TSALLIS_ATTENTION_CPU_BYTES_INL_H_
#undef TSALLIS_ATTENTION_CPU_BYTES_INL_H_
#else
#define TSALLIS_ATTENTION_CPU_BYTES_INL_H_
#endif

#include "simplex/vector-inl.h"

#if HWY_TARGET <= HWY_AVX2 && HWY_ARCH_X86
HWY_BEFORE_NAMESPACE();
namespace tsallis {
namespace HWY_NAMESPACE {

using VBytes = hn::Vec<hn::RebindToSigned<DF>>;

// Adds four products of unsigned and signed bytes to a lane. In assembly: GCC 12 moves arrays of
// sums to memory and back around the intrinsics.
HWY_INLINE void AddByteDots(VBytes& sum, VBytes keys, VBytes query) {
#if HWY_TARGET <= HWY_AVX3
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
