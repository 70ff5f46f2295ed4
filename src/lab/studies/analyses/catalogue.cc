#include "lab/studies/analyses/catalogue.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "core/version.h"
#include "lab/base/suggest.h"
#include "lab/report/analysis_io.h"
#include "tsallis/cpu.h"

namespace tsallis::lab {
namespace {

namespace fs = std::filesystem;

AnalysisReport ReportOf(const Analysis& analysis, const AnalysisOptions& options) {
  AnalysisReport report;
  report.name = analysis.name;
  report.title = analysis.title;
  report.source = analysis.source;
  report.scale = options.context.quick ? "quick" : "full";
  report.seed = options.context.seed;
  const auto model = [&](const fs::path AnalysisContext::*which) {
    return analysis.reads == which ? (options.context.*which).string() : std::string();
  };
  report.checkpoint = model(&AnalysisContext::checkpoint);
  report.decoder = model(&AnalysisContext::decoder);
  report.commit = GitCommit();
  report.processor = QueryCpu().processor;
  report.command = options.command;
  return report;
}

// Whether the folder holds what would come out again.
bool IsThere(const AnalysisReport& report, const fs::path& folder) {
  const nlohmann::ordered_json there = ReadAnalysis(folder);
  const nlohmann::ordered_json wanted = ToJson(report);
  if (!there.is_object()) return false;
  for (const char* key : {"study", "commit", "scale", "seed", "checkpoint", "decoder"}) {
    if (there.value(key, nlohmann::ordered_json()) != wanted.at(key)) return false;
  }
  return true;
}

}  // namespace

const std::vector<Analysis>& Analyses() {
  static const std::vector<Analysis> analyses = {
      {"entmax-temperature", "When entries vanish: entmax against temperature and α",
       "asentmax, figure 2", 0.2, EntmaxTemperature},
      {"insertion", "What one more score takes away: nothing below the threshold",
       "asentmax, lemma 3.1", 2, Insertion},
      {"dispersion", "How attention spreads as keys are added, and what holds it together",
       "asentmax, proposition 3.2 and appendix D; softmax-is-not-enough, lemma 2.1", 30,
       Dispersion},
      {"score-range", "How the range of normal scores grows, and which scaling holds it",
       "asentmax, remark 4.1", 4, ScoreRange},
      {"collapse", "Representational collapse: what one more last token changes",
       "asentmax, figures 3 (left) and 6", 80, Collapse},
      {"positions", "Where positions and entmax meet: centroids, windows, frequencies",
       "asentmax, figure 8 and appendix E", 10, PositionLimits},
      {"scale-invariance", "Scale-invariant attention of normal scores: entropy and local weight",
       "scale-invariant-attention, figures 1, 2 and 6", 60, ScaleInvariance},
      {"depth", "How much of every token comes from the first one, layer by layer",
       "asentmax, proposition E.1", 10, Depth},
      {"softmax-entropy",
       "Entropy of softmax over spread and temperature, and adaptive temperature",
       "softmax-is-not-enough, figure 5", 1, SoftmaxEntropy},
      {"temperature-fit", "Adaptive temperature fitted anew to a trained model",
       "softmax-is-not-enough, figure 6 and appendix F", 60, TemperatureFit,
       &AnalysisContext::checkpoint},
      {"misreading", "The smallest set that a trained model misreads",
       "softmax-is-not-enough, corollary B.1", 30, Misreading, &AnalysisContext::checkpoint},
      {"dispersion-depth", "What dispersion in one layer does to the next ones",
       "softmax-is-not-enough, appendix C", 20, DispersionDepth},
      {"threshold-steps", "Passes over a row until entmax's threshold is found",
       "adasplash, steps of the solver", 30, ThresholdSteps},
      {"sparsity-time", "What zeros buy: time of attention against sparsity",
       "adasplash, time against sparsity", 5, SparsityTime},
      {"sparsefinder", "Keys with weight foretold from four numbers, against fixed patterns",
       "sparsefinder, recall against sparsity", 190, Sparsefinder, &AnalysisContext::decoder},
  };
  return analyses;
}

const std::vector<CatalogueEntry>& AnalysisEntries() {
  static const std::vector<CatalogueEntry> entries = [] {
    std::vector<CatalogueEntry> made;
    for (const Analysis& analysis : Analyses()) {
      made.push_back({analysis.name, fmt::format("{} ({})", analysis.title, analysis.source)});
    }
    return made;
  }();
  return entries;
}

const Analysis& FindAnalysis(const std::string& name) {
  for (const Analysis& analysis : Analyses()) {
    if (analysis.name == name) return analysis;
  }
  throw UsageError("unknown study \"" + name + "\"" + Suggestion(name, Names(AnalysisEntries())));
}

void RunAnalyses(const std::vector<const Analysis*>& analyses, const std::vector<fs::path>& folders,
                 const fs::path& models, const AnalysisOptions& options,
                 const std::atomic<bool>& stop) {
  // The work of a study is counted in hundredths of the seconds that it takes about.
  std::vector<JobStatus> statuses;
  for (const Analysis* analysis : analyses) {
    JobStatus status;
    status.name = analysis->name;
    status.steps = std::max<std::int64_t>(1, std::llround(analysis->seconds * 100.0));
    status.learns = false;
    statuses.push_back(status);
  }
  Progress progress(statuses, options.progress);
  for (std::size_t i = 0; i < analyses.size(); ++i) {
    JobStatus& status = statuses[i];
    const auto report = [&](JobStatus::State state, std::int64_t step) {
      status.state = state;
      status.step = step;
      progress.Update(i, status);
    };
    if (stop) throw Interrupted("stopped between two studies");
    AnalysisReport page = ReportOf(*analyses[i], options);
    if (options.resume && IsThere(page, folders[i])) {
      status.note = "was there";
      report(JobStatus::State::kDone, status.steps);
      continue;
    }
    AnalysisContext context = options.context;
    context.models = models;
    context.stop = &stop;
    context.progress = [&](double share) {
      report(JobStatus::State::kTraining, std::llround(std::clamp(share, 0.0, 1.0) * status.steps));
    };
    try {
      context.Done(0.0);
      const auto start = std::chrono::steady_clock::now();
      page.result = analyses[i]->run(context);
      page.seconds =
          std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      WriteAnalysis(page, folders[i]);
      report(JobStatus::State::kDone, status.steps);
    } catch (const Interrupted&) {
      report(JobStatus::State::kInterrupted, status.step);
      throw;
    } catch (const std::exception& error) {
      status.note = error.what();
      report(JobStatus::State::kFailed, status.step);
      throw;
    }
  }
}

}  // namespace tsallis::lab
