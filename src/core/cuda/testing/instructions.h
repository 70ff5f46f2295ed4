// The instructions of a warp, emulated: shuffles, votes, ldmatrix, mma.sync m16n8k16.
//
// Layouts of fragments: PTX ISA 8.5, sections 9.7.14.5.8 (mma.m16n8k16) and 9.7.14.5.15 (ldmatrix).
// Lane l has group g = l / 4 and place t = l % 4.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "core/cuda/testing/shared_memory.h"
#include "core/cuda/testing/simt.h"

namespace tsallis::simt {

template <typename T>
T ShuffleFrom(T value, unsigned from, const char* name, int line) {
  struct Argument {
    T in, out;
    unsigned from;
  } argument{value, value, from % kWarpSize};
  Meet(argument, name, line, [](Argument** lanes) {
    for (unsigned i = 0; i < kWarpSize; ++i) lanes[i]->out = lanes[lanes[i]->from]->in;
  });
  return argument.out;
}

inline std::uint32_t Ballot(bool vote, const char* name, int line) {
  struct Argument {
    bool in;
    std::uint32_t out;
  } argument{vote, 0};
  Meet(argument, name, line, [](Argument** lanes) {
    std::uint32_t bits = 0;
    for (unsigned i = 0; i < kWarpSize; ++i) bits |= static_cast<std::uint32_t>(lanes[i]->in) << i;
    for (unsigned i = 0; i < kWarpSize; ++i) lanes[i]->out = bits;
  });
  return argument.out;
}

inline std::uint32_t OrOfWarp(std::uint32_t bits, int line) {
  std::uint32_t argument = bits;
  Meet(argument, "__reduce_or_sync", line, [](std::uint32_t** lanes) {
    std::uint32_t all = 0;
    for (unsigned i = 0; i < kWarpSize; ++i) all |= *lanes[i];
    for (unsigned i = 0; i < kWarpSize; ++i) *lanes[i] = all;
  });
  return argument;
}

// The lanes with the same value.
inline std::uint32_t MatchAny(std::uint32_t value, int line) {
  struct Argument {
    std::uint32_t in, out;
  } argument{value, 0};
  Meet(argument, "__match_any_sync", line, [](Argument** lanes) {
    for (unsigned i = 0; i < kWarpSize; ++i) {
      for (unsigned j = 0; j < kWarpSize; ++j) {
        lanes[i]->out |= static_cast<std::uint32_t>(lanes[i]->in == lanes[j]->in) << j;
      }
    }
  });
  return argument.out;
}

// Four matrices of 8 x 8 elements of 16 bits: lane 8 m + r gives the address of row r of matrix m,
// 16 bytes; words[m] becomes elements 2t and 2t + 1 of row g, or transposed rows 2t and 2t + 1 of
// column g.
inline void LoadMatrices(std::size_t row, bool transposed, std::uint32_t (&words)[4], int line) {
  struct Argument {
    std::size_t row;
    bool transposed;
    std::uint16_t in[8];
    std::uint32_t* out;
  } argument{row, transposed, {}, words};
  CheckShared(row, 16, 16, "a matrix load");
  ReadShared(row, 4);
  std::memcpy(argument.in, machine.shared.data() + row / 4, 16);
  Meet(argument, transposed ? "ldmatrix.trans" : "ldmatrix", line, [](Argument** lanes) {
    ++machine.counters.matrix_loads;
    for (unsigned m = 0; m < 4; ++m) {
      unsigned banks = 0;
      for (unsigned r = 0; r < 8; ++r) {
        const unsigned bank = 1u << (lanes[8 * m + r]->row / 16 % 8);
        machine.counters.bank_conflicts += (banks & bank) != 0 ? 1 : 0;
        banks |= bank;
      }
      for (unsigned l = 0; l < kWarpSize; ++l) {
        const unsigned g = l / 4, t = l % 4;
        const auto element = [&](unsigned i) -> std::uint32_t {
          return lanes[l]->transposed ? lanes[8 * m + 2 * t + i]->in[g]
                                      : lanes[8 * m + g]->in[2 * t + i];
        };
        lanes[l]->out[m] = element(0) | element(1) << 16;
      }
    }
  });
}

// sum + a_0 b_0 + ... + a_15 b_15 as tensor cores have been found to add (Fasi et al., PeerJ
// Computer Science 7:e330, 2021, and later work on newer chips): all terms are aligned to the
// largest, what is smaller than two bits below float32's last place is cut off, and so is the sum.
inline float TruncatedSum(const float* a, const float* b, unsigned b_step, float sum) {
  double terms[17];
  int top = -2000;
  bool finite = true;
  for (unsigned i = 0; i < 17; ++i) {
    terms[i] = i < 16 ? static_cast<double>(a[i]) * static_cast<double>(b[i * b_step])
                      : static_cast<double>(sum);
    finite = finite && std::isfinite(terms[i]);
    const auto exponent =
        static_cast<int>(std::bit_cast<std::uint64_t>(terms[i]) >> 52 & 2047) - 1023;
    if (terms[i] != 0.0) top = std::max(top, exponent);
  }
  if (!finite) {
    float result = sum;
    for (unsigned i = 0; i < 16; ++i) result += a[i] * b[i * b_step];
    return result;
  }
  if (top < -900) return 0.0f;
  // Whole numbers of the unit 2^(top - 25).
  const double unit = std::bit_cast<double>(static_cast<std::uint64_t>(25 - top + 1023) << 52);
  std::int64_t total = 0;
  for (const double term : terms) total += static_cast<std::int64_t>(term * unit);
  double result = static_cast<double>(total) / unit;  // at most 30 bits: exact
  auto narrow = static_cast<float>(result);
  if (std::abs(static_cast<double>(narrow)) > std::abs(result)) {
    narrow = std::nextafter(narrow, 0.0f);
  }
  return narrow;
}

// d += a b for A [16, 16], B [16, 8]. Registers of a lane, two elements each:
//   a: rows g, g + 8, g, g + 8 at columns 2t, 2t, 2t + 8, 2t + 8
//   b: rows 2t and 2t + 8 at column g
//   d: columns 2t and 2t + 1 of row g, then of row g + 8
// Type::ToFloat(bits) gives the value of an element.
template <class Type>
void MultiplyMatrices(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                      std::uint32_t b1, int line) {
  struct Argument {
    float* d;
    const std::uint32_t* a;
    std::uint32_t b[2];
  } argument{d, a, {b0, b1}};
  Meet(argument, "mma.sync", line, [](Argument** lanes) {
    ++machine.counters.products;
    float left[16][16], right[16][8], sums[16][8];
    const auto unpack = [](std::uint32_t pair, float* first, float* second) {
      *first = Type::ToFloat(static_cast<std::uint16_t>(pair));
      *second = Type::ToFloat(static_cast<std::uint16_t>(pair >> 16));
    };
    for (unsigned l = 0; l < kWarpSize; ++l) {
      const unsigned g = l / 4, t = l % 4;
      const Argument& lane = *lanes[l];
      for (unsigned i = 0; i < 4; ++i) {
        float* at = &left[g + i % 2 * 8][2 * t + i / 2 * 8];
        unpack(lane.a[i], at, at + 1);
        sums[g + i / 2 * 8][2 * t + i % 2] = lane.d[i];
      }
      for (unsigned i = 0; i < 2; ++i) {
        unpack(lane.b[i], &right[2 * t + 8 * i][g], &right[2 * t + 8 * i + 1][g]);
      }
    }
    if (machine.policy.sum == MatrixSum::kSequential) {
      for (unsigned i = 0; i < 16; ++i) {
        for (unsigned x = 0; x < 16; ++x) {
          for (unsigned j = 0; j < 8; ++j) sums[i][j] += left[i][x] * right[x][j];
        }
      }
    } else {
      for (unsigned i = 0; i < 16; ++i) {
        for (unsigned j = 0; j < 8; ++j) {
          sums[i][j] = TruncatedSum(left[i], &right[0][j], 8, sums[i][j]);
        }
      }
    }
    for (unsigned l = 0; l < kWarpSize; ++l) {
      const unsigned g = l / 4, t = l % 4;
      for (unsigned i = 0; i < 4; ++i) {
        lanes[l]->d[i] = sums[g + i / 2 * 8][2 * t + i % 2];
      }
    }
  });
}

}  // namespace tsallis::simt
