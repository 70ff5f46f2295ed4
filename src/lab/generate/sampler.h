// Which token comes next, from a model's logits.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace tsallis::lab {

struct SamplerOptions {
  double temperature = 1.0;  // 0: the largest logit
  // These cut tokens off before one is drawn, in this order; each looks at the tokens that the ones
  // before kept, as in Hugging Face's transformers.
  std::int64_t top_k = 0;  // all but the k largest; 0: nothing
  double top_p = 1.0;      // all but the fewest tokens that weigh top_p together (Holtzman 2020)
  double min_p = 0.0;      // tokens that weigh less than min_p times the heaviest
  // In place of softmax and of every cut: entmax of this alpha, whose zeros are the cut (Martins,
  // Marinho and Martins 2020).
  std::optional<double> entmax = std::nullopt;
  std::uint64_t seed = 1;
};

// UsageError that names the option of the command line.
void CheckSampler(const SamplerOptions& options);

// Refuses logits that are not numbers, and +inf, with std::runtime_error.
void CheckLogits(const float* logits, std::int64_t vocabulary);

// Weights of all tokens: [vocabulary], they sum to 1. temperature 0: one token's is 1. Logits as
// CheckLogits() wants them.
std::vector<double> TokenWeights(const float* logits, std::int64_t vocabulary,
                                 const SamplerOptions& options);

// The token of a number u in [0, 1).
std::int64_t TokenAt(const std::vector<double>& weights, double u);

// A number in [0, 1) that depends on these three alone. sequence < 2^20, step < 2^36.
double SampleNumber(std::uint64_t seed, std::int64_t sequence, std::int64_t step);

}  // namespace tsallis::lab
