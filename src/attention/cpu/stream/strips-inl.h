// What both engines of the streaming kernel share. Included once per instruction set.
#if defined(TSALLIS_ATTENTION_CPU_STREAM_STRIPS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TSALLIS_ATTENTION_CPU_STREAM_STRIPS_INL_H_
#undef TSALLIS_ATTENTION_CPU_STREAM_STRIPS_INL_H_
#else
#define TSALLIS_ATTENTION_CPU_STREAM_STRIPS_INL_H_
#endif

#include "attention/cpu/rows-inl.h"
#include "attention/cpu/stream/stream.h"

// Functions into which work of the tile unit is inlined.
#undef TSALLIS_STREAM_TILES
#if HWY_TARGET <= HWY_AVX3
#define TSALLIS_STREAM_TILES __attribute__((target(HWY_TARGET_STR ",amx-tile,amx-bf16")))
#else
#define TSALLIS_STREAM_TILES
#endif

#if TSALLIS_VECTORS_HERE
HWY_BEFORE_NAMESPACE();
namespace tsallis {
namespace HWY_NAMESPACE {

using stream::kDepth;
using stream::kTileWords;

constexpr auto kStreamLanes = static_cast<std::int64_t>(kLanes);
constexpr std::int64_t kSlotKeys = 16;  // between two steps of the tile unit
constexpr double kLog2E = 1.4426950408889634;
constexpr double kLn2 = 0.6931471805599453;

}  // namespace HWY_NAMESPACE
}  // namespace tsallis
HWY_AFTER_NAMESPACE();
#endif  // TSALLIS_VECTORS_HERE

#endif  // per-target include guard
