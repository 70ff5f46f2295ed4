// Argument checks of attention; everything here throws InvalidArgument.
#pragma once

#include <cstdint>

#include "tsallis/attention.h"

namespace tsallis {

void CheckSize(const char* name, std::int64_t size, std::int64_t least, std::int64_t most);
// kCuda: arrays are the device's, so the contents of ranges are not looked at.
void CheckAttention(const AttentionParams& params, DeviceKind device = DeviceKind::kCpu);
void CheckOutputs(const AttentionParams& params, const AttentionOutputs& outputs);
void CheckWeightCounts(const AttentionParams& params, const std::int64_t* counts);
// kCuda: of row_offsets, which are the device's, only that they are there.
void CheckWeights(const AttentionParams& params, const std::int64_t* row_offsets,
                  const std::int64_t* columns, const float* values,
                  DeviceKind device = DeviceKind::kCpu);
void CheckGradients(const AttentionParams& params, const AttentionGradients& gradients);

}  // namespace tsallis
