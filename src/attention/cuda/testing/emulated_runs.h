// For tests: the passes of the CUDA kernels on the emulation. They are compiled once for all tests,
// in emulated_TYPE.cc.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention/cuda/pages_run.h"
#include "attention/cuda/run.h"

// EXTERN: `extern` where the passes for a type are declared, nothing where they are compiled.
#define TSALLIS_EMULATED_RUNS(EXTERN, TYPE)                                              \
  EXTERN template void RunForward<TYPE>(const Context&, const AttentionParams&,          \
                                        const AttentionOutputs&);                        \
  EXTERN template void RunBackward<TYPE>(const Context&, const AttentionParams&,         \
                                         const AttentionGradients&);                     \
  EXTERN template void RunWeightCounts<TYPE>(const Context&, const AttentionParams&,     \
                                             std::int64_t*);                             \
  EXTERN template void RunWeights<TYPE>(const Context&, const AttentionParams&,          \
                                        const std::int64_t*, std::int64_t*, float*);     \
  EXTERN template std::size_t RunWorkspaceBytes<TYPE>(const AttentionParams&, bool);     \
  EXTERN template std::size_t RunSavedBytes<TYPE>(const AttentionParams&);               \
  EXTERN template void RunOnPages<TYPE>(const Context&, const AttentionParams&,          \
                                        const AttentionPages&, const AttentionOutputs&); \
  EXTERN template std::size_t RunOnPagesWorkspaceBytes<TYPE>(const AttentionParams&,     \
                                                             const AttentionPages&);

namespace tsallis::cuda {

TSALLIS_EMULATED_RUNS(extern, BFloat16)
TSALLIS_EMULATED_RUNS(extern, Float16)
TSALLIS_EMULATED_RUNS(extern, Float32)

}  // namespace tsallis::cuda
