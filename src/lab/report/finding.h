// Words the finding of a study in one sentence.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lab/report/results.h"

namespace tsallis::lab {

struct Found {
  std::string sentence;              // empty: nothing can be said
  std::vector<std::string> methods;  // that it names
};

// The length at which a method differs most surely from results.baseline, and the scores there: of
// every method if there are at most four, else of these two and, where they differ both in how they
// attend and in positions or training, of those between them, which differ in one. A difference is
// as sure as its size minus two standard errors; if no method has several seeds, as its size. A
// method that is ahead is preferred to one that is behind. Says so where nothing differs by
// metric.notable or more. Empty without a baseline or another method. `train_length` is the longest
// length of training. `at` is the only length to speak of, if the baseline and another method were
// measured there; 0: any.
Found Finding(const StudyResults& results, std::int64_t train_length, std::int64_t at = 0);

// The method and the layer whose gradient differs most from that of results.baseline by its factor,
// after the first step of results.flows, and the keys with weight there. Looks at methods of the
// baseline's variant: other positions change gradients, too. Empty without the baseline or another
// such method.
Found FlowFinding(const StudyResults& results);

}  // namespace tsallis::lab
