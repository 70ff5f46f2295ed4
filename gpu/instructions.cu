#include "instructions.h"

#include "core/cuda/runtime.h"

namespace tsallis::cuda {

void RunInstructionsOnDevice(const std::uint32_t* inputs, std::uint32_t* outputs) {
  const Stream stream(Context{.device = DeviceKind::kCuda});
  auto* in = static_cast<std::uint32_t*>(stream.Allocate(kWarp * kInputs * 4));
  auto* out = static_cast<std::uint32_t*>(stream.Allocate(kWarp * kOutputs * 4));
  Check(cudaMemcpy(in, inputs, kWarp * kInputs * 4, cudaMemcpyHostToDevice), "cudaMemcpy");
  stream.Launch("InstructionsKernel", InstructionsKernel<>, {}, kWarp, kInstructionsSharedBytes,
                static_cast<const std::uint32_t*>(in), out);
  Check(cudaMemcpy(outputs, out, kWarp * kOutputs * 4, cudaMemcpyDeviceToHost), "cudaMemcpy");
  stream.Free(in);
  stream.Free(out);
}

}  // namespace tsallis::cuda
