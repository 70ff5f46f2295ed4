// Measures the device's own ceilings, for the model of src/attention/cuda/README.md: matrix
// instructions without anything around them, and rows of values gathered from the second cache.
#include <cstdint>

#include "core/cuda/device.h"
#include "core/cuda/runtime.h"

namespace tsallis::cuda {
namespace {

constexpr int kThreads = 128, kSums = 8, kRowWords = 16;  // a row: 16 pieces of 16 bytes

// Eight sums a warp that do not wait for each other.
TSALLIS_KERNEL(kThreads) MultiplyKernel(int rounds, float* out) {
  float sums[kSums][4] = {};
  const std::uint32_t a[4] = {0x3F803F80u, 0x3F813F80u, 0x3F803F82u, 0x3F803F83u};
  const std::uint32_t b = 0x3F803F80u + static_cast<std::uint32_t>(Lane());
  TSALLIS_LOOP
  for (int i = 0; i < rounds; ++i) {
    TSALLIS_UNROLL
    for (int j = 0; j < kSums; ++j) MultiplyMatrices<BFloat16>(sums[j], a, b, b + 1);
  }
  float all = 0.0f;
  TSALLIS_UNROLL
  for (int j = 0; j < kSums; ++j) all += sums[j][0] + sums[j][1] + sums[j][2] + sums[j][3];
  if (all == 1.0f) StoreDevice(out, all);
}

// A warp reads two rows at once, four times without waiting, at places that a generator draws.
TSALLIS_KERNEL(kThreads)
GatherKernel(const Words4* rows, std::uint32_t mask, int rounds, float* out) {
  std::uint32_t state = static_cast<std::uint32_t>(BlockX()) * 7919u + WarpIndex() * 104729u +
                        static_cast<std::uint32_t>(Lane() / kRowWords) * 15485863u + 1u;
  std::uint32_t all = 0;
  TSALLIS_LOOP
  for (int i = 0; i < rounds; ++i) {
    Words4 words[4];
    TSALLIS_UNROLL
    for (int j = 0; j < 4; ++j) {
      state = state * 1664525u + 1013904223u;
      const std::uint32_t row = state >> 8 & mask;
      words[j] = LoadDevice(rows + static_cast<std::size_t>(row) * kRowWords + Lane() % kRowWords);
    }
    TSALLIS_UNROLL
    for (int j = 0; j < 4; ++j)
      all ^= words[j].w[0] ^ words[j].w[1] ^ words[j].w[2] ^ words[j].w[3];
  }
  if (all == 0x12345678u) StoreDevice(out, 1.0f);
}

}  // namespace
}  // namespace tsallis::cuda

extern "C" {

// Launches `blocks` blocks of four warps that execute 8 `rounds` products of 16 x 8 x 16 each.
__attribute__((visibility("default"))) void tsallis_multiply(std::int64_t blocks,
                                                             std::int64_t rounds, float* out,
                                                             void* stream) {
  using namespace tsallis::cuda;
  Stream(tsallis::Context{.device = tsallis::DeviceKind::kCuda, .stream = stream})
      .Launch("MultiplyKernel", MultiplyKernel, {static_cast<int>(blocks)}, kThreads, 0,
              static_cast<int>(rounds), out);
}

// Gathers 8 `rounds` rows of 256 bytes each, out of `rows`, a power of two.
__attribute__((visibility("default"))) void tsallis_gather(const void* from, std::int64_t rows,
                                                           std::int64_t blocks, std::int64_t rounds,
                                                           float* out, void* stream) {
  using namespace tsallis::cuda;
  Stream(tsallis::Context{.device = tsallis::DeviceKind::kCuda, .stream = stream})
      .Launch("GatherKernel", GatherKernel, {static_cast<int>(blocks)}, kThreads, 0,
              static_cast<const Words4*>(from), static_cast<std::uint32_t>(rows - 1),
              static_cast<int>(rounds), out);
}
}
