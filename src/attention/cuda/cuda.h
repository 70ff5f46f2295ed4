// Attention on NVIDIA's GPUs: what attention.cc calls for a context of such a device.
// README.md has the design.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention/features.h"
#include "tsallis/attention.h"
#include "tsallis/pages.h"

namespace tsallis::cuda {

// At most: queries times heads of a group, whose lists' entries have places that are an int, and
// keys, of which a warp holds a number for every 64.
inline constexpr std::int64_t kMostRows = (std::int64_t{1} << 25) - 1;
inline constexpr std::int64_t kMostKeys = std::int64_t{1} << 20;

// The kernels serve these features; the rest is refused by name.
inline constexpr Serves kServes = {
    .features = {Feature::kFloat32,        Feature::kBFloat16,
                 Feature::kFloat16,        Feature::kSoftmax,
                 Feature::kEntmax,         Feature::kCausal,
                 Feature::kWindow,         Feature::kStartAlignment,
                 Feature::kBooleanMask,    Feature::kBlockMask,
                 Feature::kRanges,         Feature::kPacked,
                 Feature::kLengthScale,    Feature::kAlibi,
                 Feature::kScaleInvariant, Feature::kScaleInvariantShape,
                 Feature::kSoftcap,        Feature::kBias,
                 Feature::kSink,           Feature::kAlphaGradient,
                 Feature::kGradients},
    .most_alpha = 4.0,
    .most_columns = 256,
    .column_step = 8};

// The paged kernels serve these features; they process each query row separately.
inline constexpr Serves kServesOnPages = {
    .features = {Feature::kFloat32, Feature::kBFloat16, Feature::kFloat16, Feature::kSoftmax,
                 Feature::kEntmax, Feature::kCausal, Feature::kWindow, Feature::kStartAlignment,
                 Feature::kVastScale, Feature::kLengthScale, Feature::kAlibi,
                 Feature::kScaleInvariant, Feature::kScaleInvariantShape, Feature::kSoftcap,
                 Feature::kSink},
    .least_alpha = 1.1,
    .most_alpha = 2.0,
    .most_columns = 256,
    .column_step = 8};

// Throw InvalidArgument for what is not served, or if the library was built without the kernels,
// and DeviceError if CUDA's runtime fails.
void Forward(const Context& context, const AttentionParams& params,
             const AttentionOutputs& outputs);
void Backward(const Context& context, const AttentionParams& params,
              const AttentionGradients& gradients);
// Compute AttentionWeightCounts and AttentionWeights. Their memory is the stream's, or the
// context's.
void WeightCounts(const Context& context, const AttentionParams& params, std::int64_t* counts);
void Weights(const Context& context, const AttentionParams& params, const std::int64_t* row_offsets,
             std::int64_t* columns, float* values);
// Bytes that a pass allocates on the device.
std::size_t WorkspaceBytes(const AttentionParams& params, bool backward);
// Bytes of AttentionOutputs::saved that hold the lists of all rows.
std::size_t SavedBytes(const AttentionParams& params);
// On pages. params: with the pages' k and v, and k_len as what a table has room for; checked.
void ForwardOnPages(const Context& context, const AttentionParams& params,
                    const AttentionPages& pages, const AttentionOutputs& outputs);
std::size_t OnPagesWorkspaceBytes(const AttentionParams& params, const AttentionPages& pages);

}  // namespace tsallis::cuda
