#include "core/target.h"

#include <cstdint>

#include "tsallis/cpu.h"

// Highway's dispatch itself says which target it chose: it asks the processor once. Asking with
// hwy::SupportedTargets() takes some 20 microseconds in a virtual machine, where every CPUID
// instruction traps.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/target.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace tsallis {
namespace HWY_NAMESPACE {

std::int64_t ThisTarget() { return HWY_TARGET; }

}  // namespace HWY_NAMESPACE
}  // namespace tsallis
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tsallis {
namespace {

HWY_EXPORT(ThisTarget);

std::int64_t InUse() { return HWY_DYNAMIC_DISPATCH(ThisTarget)(); }

}  // namespace

// Code for one of Highway's targets runs on every later one of its processors, and later ones have
// lower bits; those of ARM lie above those of x86. So targets are compared and never named.
bool HasVectorsOf16Floats() { return InUse() <= HWY_AVX3; }

bool MultipliesPairsOfBytes() { return InUse() <= HWY_AVX2 && !HasVectorsOf16Floats(); }

const char* ByteDots() {
  static const CpuInfo info = QueryCpu();
  const std::int64_t target = InUse();
  if (target <= HWY_AVX3) return info.avx512_vnni ? "AVX-512 VNNI" : "";
  if (target <= HWY_AVX2) return info.avx_vnni ? "AVX-VNNI" : "";
#if HWY_ARCH_ARM_A64
  if (target <= HWY_NEON) return info.arm_dotprod ? "NEON dotprod" : "";
#endif
  return "";
}

const char* PairDots() {
  static const CpuInfo info = QueryCpu();
  const bool fast = info.avx512_bf16 && FastBfloat16(info);
  return fast && HasVectorsOf16Floats() ? "AVX-512 BF16" : "";
}

const char* TargetInUse() { return hwy::TargetName(InUse()); }

}  // namespace tsallis
#endif  // HWY_ONCE
