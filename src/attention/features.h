// A call asks features of a kernel, and a kernel serves features. Both are sets of the same
// features. Their difference is the reason why a kernel cannot run: no list says what a kernel
// lacks.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <string>

#include "tsallis/attention.h"

namespace tsallis {

enum class Feature : std::uint8_t {
  // dtype of q, k and v
  kFloat32,
  kBFloat16,
  kFloat16,
  kFloat64,
  // map
  kSoftmax,
  kEntmax,
  kAdaptiveTemperature,
  kTopKSoftmax,
  kSigmoid,
  kSoftpick,
  kStickBreaking,
  // keys that a query sees
  kCausal,
  kWindow,
  kStartAlignment,
  kBooleanMask,
  kBlockMask,
  kRanges,
  kPacked,
  // scores
  kVastScale,  // one that products in float32 may not survive
  kLengthScale,
  kAlibi,
  kScaleInvariant,
  kScaleInvariantShape,  // its A or B
  kSoftcap,
  kBias,
  kSink,
  // memory
  kStridedColumns,   // the elements of a row of q, k or v do not lie side by side
  kUnalignedRows,    // rows of q, k, v or d_out that do not begin at multiples of 16 bytes
  kPages,            // keys and values in pages
  kStridedGradient,  // the elements of a row of d_out do not lie side by side
  // results
  kAlphaGradient,
  kGradients,  // scores that round as those of the backward pass
  kFeatures    // their number
};

class Features {
 public:
  constexpr Features() = default;
  constexpr Features(std::initializer_list<Feature> features) {
    for (const Feature feature : features) Add(feature);
  }
  static constexpr Features All() {
    return Features((std::uint64_t{1} << static_cast<int>(Feature::kFeatures)) - 1);
  }
  constexpr void Add(Feature feature, bool asked = true) {
    if (asked) bits_ |= std::uint64_t{1} << static_cast<int>(feature);
  }
  constexpr bool Has(Feature feature) const { return (bits_ >> static_cast<int>(feature)) & 1U; }
  constexpr Features operator|(Features other) const { return Features(bits_ | other.bits_); }
  constexpr Features Without(Features other) const { return Features(bits_ & ~other.bits_); }
  constexpr bool empty() const { return bits_ == 0; }

 private:
  constexpr explicit Features(std::uint64_t bits) : bits_(bits) {}
  std::uint64_t bits_ = 0;
};
static_assert(static_cast<int>(Feature::kFeatures) <= 64);

// In words, as in "not lanes: a bias".
const char* Name(Feature feature);

// The features that these params ask for. Sizes and alphas are limits of a kernel (Serves) and not
// features.
Features FeaturesOf(const AttentionParams& params);
// The features that a backward pass asks for.
Features FeaturesOf(const AttentionParams& params, const AttentionGradients& gradients);

// Every kernel here serves these features: they differ in the rest.
inline constexpr Features kCommonFeatures = {
    Feature::kCausal,          Feature::kWindow,         Feature::kStartAlignment,
    Feature::kRanges,          Feature::kPacked,         Feature::kLengthScale,
    Feature::kAlibi,           Feature::kScaleInvariant, Feature::kScaleInvariantShape,
    Feature::kSoftcap,         Feature::kUnalignedRows,  Feature::kPages,
    Feature::kStridedGradient, Feature::kGradients};

struct Serves {
  Features features;
  // Those of them that it lacks in the backward pass.
  Features forward_only = {};
  // Those that it lacks in the forward pass.
  Features backward_only = {};
  // Serves alphas of entmax from `least_alpha` to `most_alpha`, and 1 if `alpha_one`.
  double least_alpha = 0.0, most_alpha = std::numeric_limits<double>::infinity();
  bool alpha_one = true;
  // Whether it leaves heads with other alphas to later kernels; else it serves all heads or none.
  bool some_heads = false;
  // Limits of head_dim and value_dim, and of a sequence's keys.
  std::int64_t most_columns = std::numeric_limits<std::int64_t>::max();
  std::int64_t column_step = 1;  // sizes are multiples of it
  std::int64_t most_keys = std::numeric_limits<std::int64_t>::max();

  bool ServesAlpha(double alpha) const {
    return (alpha >= least_alpha && alpha <= most_alpha) || (alpha_one && alpha == 1.0);
  }
};

enum class Pass : std::uint8_t { kForward, kBackward };

// Why a kernel that serves `serves` cannot run what is asked, in a few words; empty: it can.
std::string Refusal(const Serves& serves, const AttentionParams& params, const Features& asked,
                    Pass pass);

}  // namespace tsallis
