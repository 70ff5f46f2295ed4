// The page of a trained model's weights (`tsallis eval --heads`).
#pragma once

#include "lab/eval/weight_statistics.h"
#include "lab/report/analysis.h"

namespace tsallis::lab {

// Tables "heads" (density by layer and head), "density" (means of a layer, of weights and of
// blocks), "divergence", and, where heads have an alpha that differs, "alpha" and "histogram"
// (heads of a layer by alpha, in bins of 0.1). Layers and heads count from 1, as people do on every
// page.
AnalysisResult WeightPage(const WeightStatistics& statistics);

}  // namespace tsallis::lab
