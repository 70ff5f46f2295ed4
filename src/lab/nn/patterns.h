// Fixed patterns of a decoder's heads (docs/definitions.md, A2): which of the tokens so far a query
// sees at all.
#pragma once

#include <string>
#include <vector>

#include "lab/base/catalogue.h"
#include "lab/nn/decoder_config.h"
#include "tsallis/patterns.h"

namespace tsallis::lab {

const std::vector<CatalogueEntry>& Patterns();

// A mistake in the numbers of a pattern: the key, and what was expected; empty if they fit.
struct PatternProblem {
  std::string key, expected;
};
PatternProblem CheckPattern(const PatternConfig& config);

// The pattern of a configuration that has passed the check and is of another kind than "none".
AttentionPattern PatternOf(const PatternConfig& config);

}  // namespace tsallis::lab
