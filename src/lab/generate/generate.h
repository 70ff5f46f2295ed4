// Writes texts with a model, token by token; the model keeps its state between them.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "lab/generate/sampler.h"
#include "lab/nn/sequence_model.h"

namespace tsallis::lab {

struct Prompt {
  std::vector<std::int64_t> tokens;  // one or more
  // Forced tokens, one per step; kFree: the model chooses. Steps beyond are free.
  std::vector<std::int64_t> given;
  std::int64_t steps = 0;  // as GenerateOptions::steps, where this prompt has fewer; 0: those
};
inline constexpr std::int64_t kFree = -1;

struct GenerateOptions {
  SamplerOptions sampler;
  std::int64_t steps = 0;           // tokens to write behind a prompt, at most
  std::optional<std::int64_t> end;  // ends a text when the model says it, and is its last token
  std::int64_t beams = 1;           // above 1: sampler is not asked
  std::int64_t max_bytes = 0;       // of the cache; 0: no limit
  const std::atomic<bool>* stop = nullptr;  // true: what is written so far is given back
  // Called for every token that a prompt's text grows by; not with beams.
  std::function<void(std::size_t prompt, std::int64_t token)> each;
};

struct Written {
  std::vector<std::int64_t> tokens;  // behind the prompt
  double log_likelihood = 0.0;       // of those that were the model's to say; nats
  std::int64_t said = 0;             // how many
};

// One text for each prompt. Equal prompts are read once; the texts grow together, without padding,
// and share the pages of what they have in common. The text of prompt i depends on its tokens, the
// sampler's seed and i, not on what else is written beside it (an encoder-decoder's: up to
// rounding). With beams, the text of the largest log-likelihood a token among those that a search
// of so many beams finds. Throws UsageError, and CacheFull if max_bytes are too few.
std::vector<Written> Generate(SequenceModel& model, const std::vector<Prompt>& prompts,
                              const GenerateOptions& options);

}  // namespace tsallis::lab
