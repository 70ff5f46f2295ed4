#include <cstring>

#include "attention/cuda/testing/emulation.h"
#include "core/cuda/runtime.h"
#include "instructions.h"

namespace tsallis::cuda {

void RunInstructionsEmulated(const std::uint32_t* inputs, bool truncated, std::uint32_t* outputs) {
  simt::machine.policy.sum = truncated ? simt::MatrixSum::kTruncated : simt::MatrixSum::kSequential;
  const Stream stream(Context{});
  auto* in = static_cast<std::uint32_t*>(stream.Allocate(kWarp * kInputs * 4));
  auto* out = static_cast<std::uint32_t*>(stream.Allocate(kWarp * kOutputs * 4));
  std::memcpy(in, inputs, kWarp * kInputs * 4);
  stream.Launch("InstructionsKernel", InstructionsKernel<>, {}, kWarp, kInstructionsSharedBytes,
                static_cast<const std::uint32_t*>(in), out);
  std::memcpy(outputs, out, kWarp * kOutputs * 4);
  stream.Free(in);
  stream.Free(out);
}

void ForwardEmulated(const Context& context, const AttentionParams& params,
                     const AttentionOutputs& outputs) {
  EmulatedForward(context, params, outputs);
}
void BackwardEmulated(const Context& context, const AttentionParams& params,
                      const AttentionGradients& gradients) {
  EmulatedBackward(context, params, gradients);
}
void OnPagesEmulated(const Context& context, const AttentionParams& params,
                     const AttentionPages& pages, const AttentionOutputs& outputs) {
  EmulatedOnPages(context, params, pages, outputs);
}
void WeightCountsEmulated(const AttentionParams& params, std::int64_t* counts) {
  EmulatedWeightCounts(params, counts);
}
void WeightsEmulated(const AttentionParams& params, const std::int64_t* row_offsets,
                     std::int64_t entries, std::int64_t* columns, float* values) {
  EmulatedWeights(params, row_offsets, entries, columns, values);
}

}  // namespace tsallis::cuda
