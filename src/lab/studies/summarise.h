// From finished jobs to a study's results.
#pragma once

#include <vector>

#include "lab/config/recipe.h"
#include "lab/report/results.h"
#include "lab/studies/jobs.h"

namespace tsallis::lab {

// Adds methods, rows, entropies, heat maps, heads and drawn samples of these jobs, at the lengths
// of `task`. `compare`: the papers' figures are put beside ours.
void Summarise(const Recipe& recipe, const TaskConfig& task, bool compare,
               const std::vector<const MethodConfig*>& methods, const std::vector<Job>& jobs,
               StudyResults& results);

}  // namespace tsallis::lab
