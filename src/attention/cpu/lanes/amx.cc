#include "attention/cpu/lanes/amx.h"

#include "attention/cpu/matrix_unit.h"
#include "core/elements.h"
#include "tsallis/cpu.h"

#if defined(__x86_64__) && defined(__linux__)
#if defined(__GNUC__) && !defined(__clang__)
// GCC 12 takes the undefined operand of its own AVX-512 intrinsics for a mistake (bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#define TSALLIS_HAS_TILES 1
#define TSALLIS_TILES __attribute__((target("amx-tile,amx-bf16")))
#define TSALLIS_BF16 __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16")))
#else
#define TSALLIS_HAS_TILES 0
#define TSALLIS_TILES
#endif

namespace tsallis {

namespace {

// Tiles 0-3 hold sums; 4 and 5 a full left and right side; 6 and 7 those of half the depth.

template <class Tiles>
TSALLIS_TILES void TileProducts(const std::uint16_t* rows, const std::uint32_t* columns,
                                std::size_t depth, std::size_t keys, float* to) {
  const std::size_t row_bytes = depth * sizeof(*rows);
  std::size_t j = 0;
  for (; j + 32 <= keys; j += 32) {
    Tiles::template Zero<0>();
    Tiles::template Zero<1>();
    for (std::size_t x = 0; x < depth; x += 32) {
      Tiles::template Load<5>(columns + x / 2 * 16, 64);
      Tiles::template Load<4>(rows + j * depth + x, row_bytes);
      Tiles::template Multiply<0, 4, 5>();
      Tiles::template Load<4>(rows + (j + 16) * depth + x, row_bytes);
      Tiles::template Multiply<1, 4, 5>();
    }
    Tiles::template Store<0>(to + j * 16, 64);
    Tiles::template Store<1>(to + (j + 16) * 16, 64);
  }
  if (j == keys) return;
  Tiles::template Zero<0>();
  for (std::size_t x = 0; x < depth; x += 32) {
    Tiles::template Load<5>(columns + x / 2 * 16, 64);
    Tiles::template Load<4>(rows + j * depth + x, row_bytes);
    Tiles::template Multiply<0, 4, 5>();
  }
  Tiles::template Store<0>(to + j * 16, 64);
}

template <class Tiles>
TSALLIS_TILES void TileMix(const std::uint16_t* weights, std::size_t weight_stride,
                           const std::uint32_t* pairs, std::size_t width, std::size_t keys,
                           bool add, float* to) {
  const std::size_t weight_bytes = weight_stride * sizeof(*weights);
  const std::size_t row_bytes = width * sizeof(*to);
  std::size_t x = 0;
  for (; x + 32 <= width; x += 32) {
    if (add) {
      Tiles::template Load<0>(to + x, row_bytes);
      Tiles::template Load<1>(to + x + 16, row_bytes);
    } else {
      Tiles::template Zero<0>();
      Tiles::template Zero<1>();
    }
    for (std::size_t j = 0; j < keys; j += 32) {
      Tiles::template Load<4>(weights + j, weight_bytes);
      Tiles::template Load<5>(pairs + j / 2 * width + x, row_bytes);
      Tiles::template Multiply<0, 4, 5>();
      Tiles::template Load<5>(pairs + j / 2 * width + x + 16, row_bytes);
      Tiles::template Multiply<1, 4, 5>();
    }
    Tiles::template Store<0>(to + x, row_bytes);
    Tiles::template Store<1>(to + x + 16, row_bytes);
  }
  if (x == width) return;
  if (add) {
    Tiles::template Load<0>(to + x, row_bytes);
  } else {
    Tiles::template Zero<0>();
  }
  for (std::size_t j = 0; j < keys; j += 32) {
    Tiles::template Load<4>(weights + j, weight_bytes);
    Tiles::template Load<5>(pairs + j / 2 * width + x, row_bytes);
    Tiles::template Multiply<0, 4, 5>();
  }
  Tiles::template Store<0>(to + x, row_bytes);
}

template <class Tiles>
TSALLIS_TILES void TileSpread(const std::uint16_t* weights, const std::uint32_t* pairs,
                              std::size_t width, std::size_t keys, float* to) {
  const std::size_t row_bytes = width * sizeof(*to);
  for (std::size_t x = 0; x < width; x += 16) {
    Tiles::template Load<7>(pairs + x, row_bytes);
    for (std::size_t j = 0; j < keys; j += 16) {
      Tiles::template Load<6>(weights + j * 16, 32);
      Tiles::template Load<0>(to + j * width + x, row_bytes);
      Tiles::template Multiply<0, 6, 7>();
      Tiles::template Store<0>(to + j * width + x, row_bytes);
    }
  }
}

#if TSALLIS_HAS_TILES
TSALLIS_BF16 void RoundWeights(const float* from, std::size_t keys, std::uint32_t* pairs,
                               std::uint16_t* rows, float* rest) {
  // Words 0-15 are the first key's, 16-31 the second's.
  alignas(64) static constexpr std::uint16_t kInterleave[32] = {
      0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
      8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const __m512i interleave = _mm512_load_si512(kInterleave);
  for (std::size_t j = 0; j < keys; j += 2) {
    const __m512 first = _mm512_loadu_ps(from + j * 16);
    const __m512 second = _mm512_loadu_ps(from + (j + 1) * 16);
    const __m512i words = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(second, first));
    if (rest != nullptr) {
      const __m512i low = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(words));
      const __m512i high = _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(words, 1));
      _mm512_storeu_ps(rest + j * 16,
                       _mm512_sub_ps(first, _mm512_castsi512_ps(_mm512_slli_epi32(low, 16))));
      _mm512_storeu_ps(rest + (j + 1) * 16,
                       _mm512_sub_ps(second, _mm512_castsi512_ps(_mm512_slli_epi32(high, 16))));
    }
    if (rows != nullptr) _mm512_storeu_si512(rows + j * 16, words);
    _mm512_storeu_si512(pairs + j / 2 * 16, _mm512_permutexvar_epi16(interleave, words));
  }
}
#endif

// TileShapes::kHalfDepth.
struct EmulatedHalves : EmulatedTiles {
  template <int kTile>
  static void Load(const void* data, std::size_t stride) {
    if constexpr (kTile < 6) {
      EmulatedTiles::Load<kTile>(data, stride);
    } else {
      Zero<kTile>();
      LoadPart(kTile, data, stride, kTile == 6 ? 16 : 8, kTile == 6 ? 32 : 64);
    }
  }
};

void RoundOneByOne(const float* from, std::size_t keys, std::uint32_t* pairs, std::uint16_t* rows,
                   float* rest) {
  for (std::size_t j = 0; j < keys; ++j) {
    for (std::size_t lane = 0; lane < 16; ++lane) {
      const float value = from[j * 16 + lane];
      const std::uint16_t word = BFloat16FromFloat(value);
      std::uint32_t& pair = pairs[j / 2 * 16 + lane];
      pair = j % 2 == 0 ? word : pair | static_cast<std::uint32_t>(word) << 16;
      if (rows != nullptr) rows[j * 16 + lane] = word;
      if (rest != nullptr) rest[j * 16 + lane] = value - FloatFromBFloat16(word);
    }
  }
}

}  // namespace

const TileFunctions* RealTileFunctions() {
#if TSALLIS_HAS_TILES
  static constexpr TileFunctions kReal = {true, TileProducts<RealTiles>, TileMix<RealTiles>,
                                          TileSpread<RealTiles>, RoundWeights};
  static const bool usable = MatrixUnitUsable() && QueryCpu().avx512_bf16;
  return usable ? &kReal : nullptr;
#else
  return nullptr;
#endif
}

const TileFunctions& EmulatedTileFunctions() {
  static constexpr TileFunctions kEmulated = {false, TileProducts<EmulatedHalves>,
                                              TileMix<EmulatedHalves>, TileSpread<EmulatedHalves>,
                                              RoundOneByOne};
  return kEmulated;
}

}  // namespace tsallis
