// The products of the lane kernel on bfloat16 tiles (AMX): 512 multiplications a cycle where
// vectors do 32. Plain functions with target attributes, since Highway has no such instructions.
// Everything here counts bfloat16 in pairs: two that are multiplied with the same pair of the other
// side share 32 bits.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tsallis {

struct TileFunctions {
  // Whether they want a MatrixUnitSession with TileShapes::kHalfDepth.
  bool real;

  // to[j][lane] = sum_x rows[j][x] columns[x][lane]. rows: [keys][depth]; columns: [depth / 2][16]
  // pairs; to: [keys][16]. keys: a multiple of 16, depth: of 32.
  void (*products)(const std::uint16_t* rows, const std::uint32_t* columns, std::size_t depth,
                   std::size_t keys, float* to);

  // to[lane][x] = sum_j weights[lane][j] pairs[j][x], or that much more if `add`.
  // weights: [16][weight_stride]; pairs: [keys / 2][width] pairs; to: [16][width]. keys: a multiple
  // of 32, width: of 16.
  void (*mix)(const std::uint16_t* weights, std::size_t weight_stride, const std::uint32_t* pairs,
              std::size_t width, std::size_t keys, bool add, float* to);

  // to[j][x] += sum_lane weights[j][lane] pairs[lane][x]. weights: [keys][16]; pairs: [8][width]
  // pairs; to: [keys][width]. keys, width: multiples of 16.
  void (*spread)(const std::uint16_t* weights, const std::uint32_t* pairs, std::size_t width,
                 std::size_t keys, float* to);

  // Rounds to nearest even. from: [keys][16].
  // pairs: [keys / 2][16] pairs of neighbouring keys; rows: [keys][16], or null; rest: [keys][16],
  // what rounding took away, or null. rest may be from.
  void (*round)(const float* from, std::size_t keys, std::uint32_t* pairs, std::uint16_t* rows,
                float* rest);
};

// Null unless this machine has AMX for bfloat16 and the system lets this process use it.
const TileFunctions* RealTileFunctions();
// For tests where there is none.
const TileFunctions& EmulatedTileFunctions();

}  // namespace tsallis
