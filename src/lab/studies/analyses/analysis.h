// An analysis: a study of the papers that needs no queue of trainings (`tsallis study NAME`). One
// file in this folder each, and a line in catalogue.cc.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "lab/base/errors.h"
#include "lab/report/analysis.h"
#include "tsallis/types.h"

namespace tsallis::lab {

// Every analysis gets these.
struct AnalysisContext {
  bool quick = false;  // smaller sizes and fewer draws: seconds at most
  std::uint64_t seed = 1;
  Context kernels;  // threads; results do not depend on them
  // Those that look at a trained model of max retrieval: the folder of a run, or a file of weights
  // in one; empty: they train one in `models`.
  std::filesystem::path checkpoint;
  // Those that look at a trained sequence model: the same; empty: one of models.
  std::filesystem::path decoder;
  std::filesystem::path models;
  std::function<void(double share)> progress;  // done so far, in [0, 1]
  const std::atomic<bool>* stop = nullptr;

  // Reports what is done; throws Interrupted on Ctrl-C. Called a few times a second.
  void Done(double share) const {
    if (Stop()) throw Interrupted("stopped within a study");
    if (progress) progress(share);
  }
  const std::atomic<bool>& Stop() const {
    static const std::atomic<bool> never{false};
    return stop != nullptr ? *stop : never;
  }
};

struct Analysis {
  std::string name;
  std::string title;     // one sentence: what it shows
  std::string source;    // the paper and its figure, as recipes cite them
  double seconds = 1.0;  // that it takes on two cores, about: for the time left
  AnalysisResult (*run)(const AnalysisContext& context) = nullptr;
  // The trained model that it reads, as the context names it.
  std::filesystem::path AnalysisContext::*reads = nullptr;
};

// Each is described in catalogue.cc.
AnalysisResult EntmaxTemperature(const AnalysisContext& context);
AnalysisResult Dispersion(const AnalysisContext& context);
AnalysisResult Insertion(const AnalysisContext& context);
AnalysisResult ScoreRange(const AnalysisContext& context);
AnalysisResult Collapse(const AnalysisContext& context);
AnalysisResult PositionLimits(const AnalysisContext& context);
AnalysisResult ScaleInvariance(const AnalysisContext& context);
AnalysisResult Depth(const AnalysisContext& context);
AnalysisResult SoftmaxEntropy(const AnalysisContext& context);
AnalysisResult TemperatureFit(const AnalysisContext& context);
AnalysisResult Misreading(const AnalysisContext& context);
AnalysisResult DispersionDepth(const AnalysisContext& context);
AnalysisResult ThresholdSteps(const AnalysisContext& context);
AnalysisResult Sparsefinder(const AnalysisContext& context);
AnalysisResult SparsityTime(const AnalysisContext& context);

}  // namespace tsallis::lab
