// Argument checks of attention; everything here throws InvalidArgument.
#pragma once

#include "tsallis/attention.h"

namespace tsallis {

// kCuda: arrays are the device's, so the contents of ranges are not looked at.
void CheckAttention(const AttentionParams& params, DeviceKind device = DeviceKind::kCpu);
void CheckOutputs(const AttentionParams& params, const AttentionOutputs& outputs);
void CheckGradients(const AttentionParams& params, const AttentionGradients& gradients);

}  // namespace tsallis
