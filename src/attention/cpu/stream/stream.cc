#include "attention/cpu/stream/stream.h"

#include "attention/cpu/matrix_unit.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attention/cpu/stream/stream.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include "attention/cpu/stream/backward-inl.h"
#include "attention/cpu/stream/forward-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tsallis {
namespace HWY_NAMESPACE {

void BindStream(bool emulated, stream::Functions* functions) {
  (void)emulated;
  (void)functions;
#if TSALLIS_STREAM_HERE
  const auto bind = [&](auto tiles) {
    using Tiles = decltype(tiles);
    functions->pack = StreamPack;
    functions->forward = StreamForward<Tiles>;
    functions->prepare = StreamPrepare<Tiles>;
    functions->gradients = StreamGradients<Tiles>;
    functions->finish = StreamFinish;
    functions->store = [](const float* values, std::int64_t padded, std::int64_t count,
                          std::int64_t columns, const MutableArray4& array, std::int64_t b,
                          std::int64_t h, std::int64_t row) {
      StoreRows(values, static_cast<std::size_t>(padded), nullptr, static_cast<std::size_t>(count),
                static_cast<std::size_t>(columns), array, b, h, row, false);
    };
  };
  if (emulated) {
    bind(EmulatedTiles());
  } else {
    bind(RealTiles());
  }
#endif
}

}  // namespace HWY_NAMESPACE
}  // namespace tsallis
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tsallis::stream {

HWY_EXPORT(BindStream);

Functions GetFunctions(bool emulated) {
  Functions functions;
  HWY_DYNAMIC_DISPATCH(BindStream)(emulated, &functions);
  return functions;
}

}  // namespace tsallis::stream
#endif  // HWY_ONCE
