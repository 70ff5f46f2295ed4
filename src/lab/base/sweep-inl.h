// Vectors of float32 over contiguous memory of any length, for kernels that Highway compiles for
// several instruction sets. No include guard of the usual kind: it is read once for each of them.
#if defined(TSALLIS_LAB_BASE_SWEEP_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TSALLIS_LAB_BASE_SWEEP_INL_H
#undef TSALLIS_LAB_BASE_SWEEP_INL_H
#else
#define TSALLIS_LAB_BASE_SWEEP_INL_H
#endif

#include <hwy/highway.h>

#include <cstdint>
#include <cstring>

HWY_BEFORE_NAMESPACE();
namespace tsallis::lab::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;

// Calls body(load, store) for every vector of [0, count). The last, partial one goes through a
// buffer: before AVX-512 a masked load or store may touch memory beyond the end.
template <class Body>
HWY_INLINE void Sweep(std::int64_t count, const Body& body) {
  const D d;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    body([&](const float* from) HWY_ATTR { return hn::LoadU(d, from + i); },
         [&](V value, float* to) HWY_ATTR { hn::StoreU(value, d, to + i); });
  }
  if (i < count) {
    const std::size_t bytes = static_cast<std::size_t>(count - i) * sizeof(float);
    body(
        [&](const float* from) HWY_ATTR {
          HWY_ALIGN float buffer[HWY_MAX_BYTES / sizeof(float)] = {};
          std::memcpy(buffer, from + i, bytes);
          return hn::Load(d, buffer);
        },
        [&](V value, float* to) HWY_ATTR {
          HWY_ALIGN float buffer[HWY_MAX_BYTES / sizeof(float)];
          hn::Store(value, d, buffer);
          std::memcpy(to + i, buffer, bytes);
        });
  }
}

}  // namespace tsallis::lab::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
