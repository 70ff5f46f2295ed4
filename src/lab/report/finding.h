// What a study found, in one sentence.
#pragma once

#include <cstdint>
#include <string>

#include "lab/report/results.h"

namespace tsallis::lab {

// The length at which a method differs most surely from results.baseline, and who is right how
// often there: every method if there are at most four, else the two. Sure is what is left of a
// difference after two standard errors; with one seed the difference itself. A method that is ahead
// counts before one that is behind. Says so where nothing differs by metric.notable or more. Empty
// without a baseline or another method. `train_length` is the longest length of training. `at` is
// the only length to speak of, if the baseline and another method were measured there; 0: any.
std::string Finding(const StudyResults& results, std::int64_t train_length, std::int64_t at = 0);

}  // namespace tsallis::lab
