// Parallel text as documents of a corpus (prepare.h).
#pragma once

#include <vector>

#include "lab/text/inputs.h"
#include "lab/text/prepare.h"

namespace tsallis::lab {

// The documents of files that end as one of the two that options.pairs has, by their names.
// UsageError for a file without its translation.
std::vector<Document> ParallelOf(const PrepareOptions& options, const std::vector<Input>& files);

// The pairs of sentences of one. UsageError where its files do not fit each other.
DocumentText PairsOf(const Document& document);

}  // namespace tsallis::lab
