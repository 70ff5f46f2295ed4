// For tests: the kernels whose products run on the tile unit, on emulated tiles, which any
// processor with AVX-512 can run. In a list of their own, so that what one leaves goes to the next
// one's emulation too.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "attention/cpu/lanes/lanes.h"
#include "attention/cpu/stream/stream.h"
#include "attention/cpu/sweep/sweep.h"
#include "attention/kernels.h"

namespace tsallis {

inline std::string EmulatedSet(bool runs) { return runs ? "AVX-512" : ""; }

inline AttentionKernel EmulatedLanes() {
  AttentionKernel kernel = kLanesAttention;
  kernel.name = "lanes, emulated tiles";
  kernel.forward = [](const Context& context, const AttentionParams& params,
                      const AttentionOutputs& outputs, const std::vector<RowBlock>& rows,
                      std::vector<RowBlock>*) {
    LanesForward(&EmulatedTileFunctions(), context, params, outputs, rows);
  };
  kernel.backward = [](const Context& context, const AttentionParams& params,
                       const AttentionGradients& gradients, const std::vector<KeyHead>& problems,
                       HeadSums* heads, std::vector<KeyHead>*) {
    LanesBackward(&EmulatedTileFunctions(), context, params, gradients, problems, heads);
  };
  return kernel;
}

inline AttentionKernel EmulatedSweep() {
  AttentionKernel kernel = kSweepAmx;
  kernel.name = "sweep-amx, emulated tiles";
  kernel.instruction_set = [] {
    return EmulatedSet(GetSweepFunctions(ScoreEngine::kAmx, true).forward != nullptr);
  };
  kernel.forward = [](const Context& context, const AttentionParams& params,
                      const AttentionOutputs& outputs, const std::vector<RowBlock>& rows,
                      std::vector<RowBlock>* remaining) {
    SweepForward(GetSweepFunctions(ScoreEngine::kAmx, true), true, context, params, outputs, rows,
                 remaining);
  };
  kernel.backward = [](const Context& context, const AttentionParams& params,
                       const AttentionGradients& gradients, const std::vector<KeyHead>& problems,
                       HeadSums* heads, std::vector<KeyHead>* remaining) {
    SweepBackward(GetSweepFunctions(ScoreEngine::kAmx, true), true, context, params, gradients,
                  problems, heads, remaining);
  };
  return kernel;
}

inline AttentionKernel EmulatedStream() {
  AttentionKernel kernel = kStreamAmx;
  kernel.name = "stream-amx, emulated tiles";
  kernel.instruction_set = [] {
    return EmulatedSet(stream::GetFunctions(stream::Engine::kEmulatedTiles).forward != nullptr);
  };
  kernel.forward = [](const Context& context, const AttentionParams& params,
                      const AttentionOutputs& outputs, const std::vector<RowBlock>& rows,
                      std::vector<RowBlock>* remaining) {
    stream::Forward(stream::Engine::kEmulatedTiles, context, params, outputs, rows, remaining);
  };
  kernel.backward = [](const Context& context, const AttentionParams& params,
                       const AttentionGradients& gradients, const std::vector<KeyHead>& problems,
                       HeadSums* heads, std::vector<KeyHead>* remaining) {
    stream::Backward(stream::Engine::kEmulatedTiles, context, params, gradients, problems, heads,
                     remaining);
  };
  return kernel;
}

inline const AttentionKernel kEmulatedLanes = EmulatedLanes();
inline const AttentionKernel kEmulatedSweep = EmulatedSweep();
inline const AttentionKernel kEmulatedStream = EmulatedStream();

// The list from `kernel` on: the program's, or the emulations, which end as the program's does.
inline KernelList TestedFrom(const AttentionKernel& kernel) {
  static const AttentionKernel* const emulations[] = {
      &kEmulatedLanes, &kEmulatedSweep, &kEmulatedStream, &kDenseAttention, &kReferenceAttention};
  const KernelList all = AllAttentionKernels();
  if (std::find(all.begin(), all.end(), &kernel) != all.end()) return KernelsFrom(kernel);
  const KernelList list = emulations;
  return list.subspan(
      static_cast<std::size_t>(std::find(list.begin(), list.end(), &kernel) - list.begin()));
}

}  // namespace tsallis
