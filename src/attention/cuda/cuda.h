// Attention on NVIDIA's GPUs: what attention.cc calls for a context of such a device. docs/cuda.md
// has the design.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention/features.h"
#include "tsallis/attention.h"

namespace tsallis::cuda {

// What the kernels serve; the rest is refused by name.
inline constexpr Serves kServes = {
    .features = {Feature::kFloat32, Feature::kBFloat16, Feature::kFloat16, Feature::kSoftmax,
                 Feature::kEntmax, Feature::kCausal, Feature::kWindow, Feature::kStartAlignment,
                 Feature::kBooleanMask, Feature::kBlockMask, Feature::kRanges, Feature::kPacked,
                 Feature::kLengthScale, Feature::kAlibi, Feature::kScaleInvariant,
                 Feature::kSoftcap, Feature::kBias, Feature::kSink, Feature::kAlphaGradient},
    .most_alpha = 4.0,
    .most_columns = 256,
    .column_step = 8};

// Throw InvalidArgument for what is not served, or if the library was built without the kernels,
// and DeviceError if CUDA's runtime fails.
void Forward(const Context& context, const AttentionParams& params,
             const AttentionOutputs& outputs);
void Backward(const Context& context, const AttentionParams& params,
              const AttentionGradients& gradients);
// As AttentionWeightCounts and AttentionWeights. Their memory is the stream's, or the context's.
void WeightCounts(const Context& context, const AttentionParams& params, std::int64_t* counts);
void Weights(const Context& context, const AttentionParams& params, const std::int64_t* row_offsets,
             std::int64_t* columns, float* values);
// Bytes that a pass allocates on the device.
std::size_t WorkspaceBytes(const AttentionParams& params, bool backward);

}  // namespace tsallis::cuda
