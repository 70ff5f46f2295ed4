// The tile unit of AMX behind a small interface, and a plain emulation of it, so that the code
// around the tiles is tested on machines without one.
//
// Eight tiles of 16 rows of 64 bytes. Multiply<c, a, b>: c[m][n] += sum_k a[m][k] b[k / 2][n][k %
// 2] for 16 x 16 float32 c, 16 x 32 bf16 a (row-major) and 32 x 16 bf16 b (pairs of rows
// interleaved).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "core/elements.h"

namespace tsallis {

// Whether the processor has AMX with bf16 and the system lets this process use it. Asks once.
bool MatrixUnitUsable();

#if defined(__x86_64__)
// Shapes of the eight tiles: whole, or with a left side (tile 6) and a right side (tile 7) of half
// the depth for sums over 16 rows, which are 8 pairs.
enum class TileShapes : std::uint8_t { kWhole, kHalfDepth };

// A thread that is going to use tiles holds one of these.
class MatrixUnitSession {
 public:
  explicit MatrixUnitSession(bool real, TileShapes shapes = TileShapes::kWhole);
  ~MatrixUnitSession();
  MatrixUnitSession(const MatrixUnitSession&) = delete;
  MatrixUnitSession& operator=(const MatrixUnitSession&) = delete;

 private:
  bool real_;
};

#define TSALLIS_TILE_FUNCTION \
  __attribute__((always_inline, target("amx-tile,amx-bf16"))) static inline void
// Assembly, because GCC's intrinsics are macros that take a tile's number as it is spelt.
struct RealTiles {
  template <int kTile>
  TSALLIS_TILE_FUNCTION Zero() {
    asm volatile("tilezero %%tmm%c0" ::"i"(kTile));
  }
  template <int kTile>
  TSALLIS_TILE_FUNCTION Load(const void* data, std::size_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(data), "r"(stride), "i"(kTile) : "memory");
  }
  template <int kTile>
  TSALLIS_TILE_FUNCTION Store(void* data, std::size_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(data), "r"(stride), "i"(kTile) : "memory");
  }
  template <int kC, int kA, int kB>
  TSALLIS_TILE_FUNCTION Multiply() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kC), "i"(kA), "i"(kB));
  }
};
#undef TSALLIS_TILE_FUNCTION
#endif

struct EmulatedTiles {
  struct Tile {
    alignas(64) std::byte bytes[1024];
  };
  static Tile& At(int tile) {
    static thread_local Tile tiles[8];
    return tiles[tile];
  }
  template <int kTile>
  static void Zero() {
    std::memset(&At(kTile), 0, sizeof(Tile));
  }
  template <int kTile>
  static void Load(const void* data, std::size_t stride) {
    LoadPart(kTile, data, stride, 16, 64);
  }
  // The first `bytes` of the first `rows`; the rest of the tile stays.
  static void LoadPart(int tile, const void* data, std::size_t stride, std::size_t rows,
                       std::size_t bytes) {
    for (std::size_t row = 0; row < rows; ++row) {
      std::memcpy(At(tile).bytes + row * 64, static_cast<const std::byte*>(data) + row * stride,
                  bytes);
    }
  }
  template <int kTile>
  static void Store(void* data, std::size_t stride) {
    for (std::size_t row = 0; row < 16; ++row) {
      std::memcpy(static_cast<std::byte*>(data) + row * stride, At(kTile).bytes + row * 64, 64);
    }
  }
  template <int kC, int kA, int kB>
  static void Multiply() {
    const auto* a = reinterpret_cast<const std::uint16_t*>(At(kA).bytes);
    const auto* b = reinterpret_cast<const std::uint16_t*>(At(kB).bytes);
    auto* c = reinterpret_cast<float*>(At(kC).bytes);
    for (int m = 0; m < 16; ++m) {
      for (int n = 0; n < 16; ++n) {
        for (int k = 0; k < 32; ++k) {
          c[m * 16 + n] +=
              FloatFromBFloat16(a[m * 32 + k]) * FloatFromBFloat16(b[k / 2 * 32 + n * 2 + k % 2]);
        }
      }
    }
  }
};

}  // namespace tsallis
