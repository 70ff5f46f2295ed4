// The code that nvcc compiles, as the host calls it: the passes for one dtype. Arguments are
// checked.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tsallis/attention.h"
#include "tsallis/pages.h"

namespace tsallis::cuda {

struct Launches {
  void (*forward)(const Context& context, const AttentionParams& params,
                  const AttentionOutputs& outputs);
  void (*backward)(const Context& context, const AttentionParams& params,
                   const AttentionGradients& gradients);
  std::size_t (*workspace_bytes)(const AttentionParams& params, bool backward);
  std::size_t (*saved_bytes)(const AttentionParams& params);
  void (*on_pages)(const Context& context, const AttentionParams& params,
                   const AttentionPages& pages, const AttentionOutputs& outputs);
  std::size_t (*on_pages_workspace_bytes)(const AttentionParams& params,
                                          const AttentionPages& pages);
  void (*weight_counts)(const Context& context, const AttentionParams& params,
                        std::int64_t* counts);
  void (*weights)(const Context& context, const AttentionParams& params,
                  const std::int64_t* row_offsets, std::int64_t* columns, float* values);
};

// Defined where TSALLIS_HAS_CUDA is.
extern const Launches kBFloat16Launches;  // launch_bfloat16.cu
extern const Launches kFloat16Launches;   // launch_float16.cu
extern const Launches kFloat32Launches;   // launch_float32.cu

}  // namespace tsallis::cuda
