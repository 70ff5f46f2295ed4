// The analyses that there are, and running them.
#pragma once

#include <atomic>
#include <filesystem>
#include <string>
#include <vector>

#include "lab/base/catalogue.h"
#include "lab/progress/progress.h"
#include "lab/studies/analyses/analysis.h"

namespace tsallis::lab {

// In the order of the papers: a reader of the page of all of them meets the map first.
const std::vector<Analysis>& Analyses();
// Name, title and source of each.
const std::vector<CatalogueEntry>& AnalysisEntries();
// UsageError, with the nearest name, if there is none.
const Analysis& FindAnalysis(const std::string& name);

struct AnalysisOptions {
  AnalysisContext context;  // but for what RunAnalyses() has as arguments, and the progress
  // Leaves out what the folder of an analysis already has by the same commit, scale, seed and
  // checkpoint.
  bool resume = false;
  ProgressOptions progress;
  std::string command;  // recorded
};

// Runs one after the other; each is written to its folder, of the same index, as soon as it is
// there. Throws Interrupted; then those before are complete.
void RunAnalyses(const std::vector<const Analysis*>& analyses,
                 const std::vector<std::filesystem::path>& folders,
                 const std::filesystem::path& models, const AnalysisOptions& options,
                 const std::atomic<bool>& stop);

}  // namespace tsallis::lab
