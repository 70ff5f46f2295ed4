// Making a corpus of parallel text (prepare.h).
#pragma once

#include <functional>
#include <vector>

#include "lab/text/inputs.h"
#include "lab/text/prepare.h"

namespace tsallis::lab {

// Does what PrepareCorpus() does, for options.pairs, which are given, and files that end as one of
// them.
Prepared PreparePairs(const PrepareOptions& options, const std::vector<Input>& files,
                      const std::function<bool(std::int64_t, std::int64_t)>& progress);

}  // namespace tsallis::lab
