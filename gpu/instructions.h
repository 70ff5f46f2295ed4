// Every instruction that the kernels have a name for (device.h), executed once by each lane of a
// warp on drawn numbers. One source for nvcc and for the emulation, whose results must be the same:
// this is what tells whether the strings of PTX say what the emulation does.
#pragma once

#include <cstdint>

#include "attention/cuda/call.h"
#include "core/cuda/device.h"
#include "tsallis/pages.h"

namespace tsallis::cuda {
inline namespace TSALLIS_SIDE {

// Sizes of the inputs and outputs of lanes: [kWarp, kInputs] and [kWarp, kOutputs].
inline constexpr int kInputs = 16, kOutputs = 64;
// Outputs from here on are sums of matrix products as bits of float32: bfloat16's, then float16's.
inline constexpr int kFirstSum = 48;

template <int kOnly = 0>
TSALLIS_KERNEL(kWarp)
InstructionsKernel(const std::uint32_t* inputs, std::uint32_t* outputs) {
  const int lane = Lane();
  std::uint32_t in[kInputs], out[kOutputs] = {};
  for (int i = 0; i < kInputs; ++i) in[i] = LoadDevice(inputs + lane * kInputs + i);
  int at = 0;
  out[at++] = Shuffle(in[0], static_cast<int>(in[1] % 32));
  out[at++] = ShuffleXor(in[0], 5);
  out[at++] = ShuffleUp(in[0], 3, 8);
  out[at++] = Any(in[0] % 64 == 0) ? 1 : 0;
  out[at++] = Ballot(in[0] % 3 == 0);
  out[at++] = MatchAny(in[0] % 5);
  out[at++] = OrOfWarp(in[0] & in[1] & in[2]);
  out[at++] = static_cast<std::uint32_t>(SyncBlockCount(in[0] % 4 == 1));
  out[at++] = static_cast<std::uint32_t>(CountBits(in[2]));
  out[at++] = static_cast<std::uint32_t>(LowestBit(in[2] | 1u << 31));
  const float nan = kInfinity - kInfinity;
  const float x = FloatOf(in[3] & 0xBFFFFFFFu), y = FloatOf(in[4] & 0xBFFFFFFFu);
  out[at++] = BitsOf(MaxOrNaN(x, y));
  out[at++] = MaxOrNaN(nan, y) != MaxOrNaN(nan, y) ? 1 : 0;
  out[at++] = MaxOrNaN(x, nan) != MaxOrNaN(x, nan) ? 1 : 0;
  std::uint32_t less = in[2];
  const float pairs[][2] = {{x, y}, {y, x}, {x, x}, {nan, x}, {x, -nan}, {-kInfinity, x}};
  for (const auto& [a, b] : pairs) less = PushLess(less, a, b);
  for (const auto& [a, b] : pairs) less = PushLess(less, -a, b);
  out[at++] = PushLess(PushLess(less, kInfinity, kInfinity), -kInfinity, kInfinity);
  // Powers have an error: to the nearest 2^-10, of whole numbers.
  out[at++] =
      static_cast<std::uint32_t>(Exp2(static_cast<float>(in[3] % 16) - 6.0f) * 1024.0f + 0.5f);
  out[at++] = BitsOf(Exp2(y < 0.0f ? -kInfinity : -150.0f));
  out[at++] = Exp2(nan) != Exp2(nan) ? 1 : 0;
  out[at++] = BFloat16::FromFloat(x);
  out[at++] = PairOf<BFloat16>(x, y);
  out[at++] = PairOf<Float16>(FloatOf((in[3] & 0x807FFFFFu) | (100 + in[3] % 48) << 23),
                              FloatOf((in[4] & 0x807FFFFFu) | (100 + in[4] % 48) << 23));
  out[at++] = BitsOf(BFloat16::ToFloat(static_cast<std::uint16_t>(in[5])));
  out[at++] = Float16::FromFloat(FloatOf((in[3] & 0x807FFFFFu) | (100 + in[3] % 48) << 23));
  out[at++] = BitsOf(Float16::ToFloat(static_cast<std::uint16_t>(in[5] & 0xBFFFu)));

  // Words by asynchronous copies, one of them zeros, and back through both ways of loading
  // matrices. Copies of two groups: the first is waited for alone.
  const Shared<Words4> tile(0);
  const Shared<std::uint32_t> words(0);
  CopyAsync(tile, lane, inputs + lane * kInputs, lane != 7);
  CommitCopies();
  CopyAsync(tile, kWarp + lane, inputs + lane * kInputs + 4, true);
  CommitCopies();
  WaitForCopies<1>();
  SyncWarp();
  out[at++] = words.Load((lane + 1) % kWarp * 4 + 3);
  WaitForCopies<0>();
  SyncWarp();
  out[at++] = words.Load(4 * kWarp + (lane + 9) % kWarp * 4);
  std::uint32_t matrices[4];
  LoadMatrices(matrices, tile, kWarp + (lane * 5 + 3) % kWarp);
  for (int i = 0; i < 4; ++i) out[at++] = matrices[i];
  LoadTransposed(matrices, tile, kWarp + (lane * 3 + 1) % kWarp);
  for (int i = 0; i < 4; ++i) out[at++] = matrices[i];
  SyncWarp();
  tile.Store(lane, Words4{{in[6], in[7], in[8], in[9]}});
  SyncWarp();
  out[at++] = words.Load((lane * 7 + 2) % (4 * kWarp));

  // Elements between 2^-3 and 2^4, of both signs, in both types.
  const auto element = [&](std::uint32_t bits, bool is_float16) {
    const std::uint32_t halves[2] = {bits & 0xFFFFu, bits >> 16};
    std::uint32_t pair = 0;
    for (int i = 0; i < 2; ++i) {
      const std::uint32_t power = 124 + halves[i] % 7;
      const float value =
          FloatOf((halves[i] & 0x8000u) << 16 | power << 23 | (halves[i] & 0x7F0u) << 12);
      const std::uint16_t narrow =
          is_float16 ? Float16::FromFloat(value) : BFloat16::FromFloat(value);
      pair |= static_cast<std::uint32_t>(narrow) << 16 * i;
    }
    return pair;
  };
  for (int type = 0; type < 2; ++type) {
    std::uint32_t a[4];
    for (int i = 0; i < 4; ++i) a[i] = element(in[10 + i], type == 1);
    const std::uint32_t b0 = element(in[14], type == 1), b1 = element(in[15], type == 1);
    float sums[4] = {0.5f, -1.0f, 3.0f, 0.0f};
    if (type == 0) {
      MultiplyMatrices<BFloat16>(sums, a, b0, b1);
      MultiplyMatrices<BFloat16>(sums, a, b1, b0);
    } else {
      MultiplyMatrices<Float16>(sums, a, b0, b1);
      MultiplyMatrices<Float16>(sums, a, b1, b0);
    }
    for (int i = 0; i < 4; ++i) out[kFirstSum + 4 * type + i] = BitsOf(sums[i]);
  }
  for (int i = 0; i < kOutputs; ++i) StoreDevice(outputs + lane * kOutputs + i, out[i]);
}

// Bytes of shared memory that the kernel takes.
inline constexpr std::size_t kInstructionsSharedBytes = 2 * kWarp * sizeof(Words4);

}  // namespace TSALLIS_SIDE
}  // namespace tsallis::cuda

namespace tsallis::cuda {

// The kernel on a device, and on the emulation: [kWarp, kInputs] to [kWarp, kOutputs].
void RunInstructionsOnDevice(const std::uint32_t* inputs, std::uint32_t* outputs);
// truncated: how matrix products add (testing/simt.h).
void RunInstructionsEmulated(const std::uint32_t* inputs, bool truncated, std::uint32_t* outputs);

// The kernels of attention on the emulation, for `device_test --emulated`: as AttentionForward and
// the like, with arrays of the host.
void ForwardEmulated(const Context& context, const AttentionParams& params,
                     const AttentionOutputs& outputs);
void BackwardEmulated(const Context& context, const AttentionParams& params,
                      const AttentionGradients& gradients);
void OnPagesEmulated(const Context& context, const AttentionParams& params,
                     const AttentionPages& pages, const AttentionOutputs& outputs);
void WeightCountsEmulated(const AttentionParams& params, std::int64_t* counts);
void WeightsEmulated(const AttentionParams& params, const std::int64_t* row_offsets,
                     std::int64_t entries, std::int64_t* columns, float* values);

}  // namespace tsallis::cuda
