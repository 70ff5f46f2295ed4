#include "attention/cpu/stream/stream.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attention/cpu/stream/stream.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include "attention/cpu/stream/backward-inl.h"
#include "attention/cpu/stream/floats-inl.h"
#include "attention/cpu/stream/forward-inl.h"
#include "attention/cpu/stream/tiles-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tsallis {
namespace HWY_NAMESPACE {

#if TSALLIS_VECTORS_HERE
template <class Engine>
void Bind(stream::Functions* functions) {
  functions->pack = Engine::Pack;
  functions->forward = StreamForward<Engine>;
  functions->looks_blunt = StreamLooksBlunt<Engine>;
  functions->prepare = StreamPrepare<Engine>;
  functions->gradients = StreamGradients<Engine>;
  functions->finish = StreamFinish<Engine>;
  functions->store = [](const float* values, std::int64_t padded, std::int64_t count,
                        std::int64_t columns, const MutableArray4& array, std::int64_t b,
                        std::int64_t h, std::int64_t row) {
    StoreRows(values, static_cast<std::size_t>(padded), nullptr, static_cast<std::size_t>(count),
              static_cast<std::size_t>(columns), array, b, h, row, false);
  };
}
#endif

void BindStream(stream::Engine engine, stream::Functions* functions) {
  (void)engine;
  (void)functions;
#if TSALLIS_VECTORS_HERE
  switch (engine) {
    case stream::Engine::kFloats: Bind<FloatEngine<false>>(functions); break;
#if TSALLIS_TILES_HERE
    case stream::Engine::kPairs: Bind<FloatEngine<true>>(functions); break;
    case stream::Engine::kTiles: Bind<TileEngine<RealTiles>>(functions); break;
    case stream::Engine::kEmulatedTiles: Bind<TileEngine<EmulatedTiles>>(functions); break;
#else
    default: break;
#endif
  }
#endif
}

}  // namespace HWY_NAMESPACE
}  // namespace tsallis
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tsallis::stream {

HWY_EXPORT(BindStream);

Functions GetFunctions(Engine engine) {
  Functions functions;
  HWY_DYNAMIC_DISPATCH(BindStream)(engine, &functions);
  return functions;
}

}  // namespace tsallis::stream
#endif  // HWY_ONCE
