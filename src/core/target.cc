#include "core/target.h"

#include <cstdint>

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

}  // namespace

// Highway numbers better instruction sets with lower bits, those of other processors than x86 above
// them all.
bool RunsAvx2() { return HWY_DYNAMIC_DISPATCH(ThisTarget)() <= HWY_AVX2; }

bool RunsAvx3() { return HWY_DYNAMIC_DISPATCH(ThisTarget)() <= HWY_AVX3; }

const char* TargetInUse() { return hwy::TargetName(HWY_DYNAMIC_DISPATCH(ThisTarget)()); }

}  // namespace tsallis
#endif  // HWY_ONCE
