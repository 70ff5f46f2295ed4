// Argument checks of attention; everything here throws InvalidArgument.
#pragma once

#include "tsallis/attention.h"

namespace tsallis {

void CheckAttention(const AttentionParams& params);
void CheckOutputs(const AttentionParams& params, const AttentionOutputs& outputs);
void CheckGradients(const AttentionParams& params, const AttentionGradients& gradients);

}  // namespace tsallis
