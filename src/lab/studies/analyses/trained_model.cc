#include "lab/studies/analyses/trained_model.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "lab/config/recipe.h"
#include "lab/train/load_model.h"
#include "lab/train/set_experiment.h"

namespace tsallis::lab {
namespace {

constexpr std::int64_t kSteps = 10000;
constexpr std::int64_t kQuickSteps = 500;

}  // namespace

TrainedModel SoftmaxModel(const AnalysisContext& context, double share) {
  if (!context.checkpoint.empty()) {
    LoadedSetModel loaded = LoadSetModel(context.checkpoint);
    if (loaded.config.map != "softmax") {
      throw UsageError(fmt::format("--checkpoint {}: expected a model with softmax, got {}",
                                   context.checkpoint.string(), loaded.config.map));
    }
    return {std::move(loaded.model), MaxRetrieval(loaded.task), loaded.config,
            fmt::format("the weights of {}", loaded.weights.string())};
  }
  const Recipe recipe = FindRecipe("max-retrieval");
  const MethodConfig& method = recipe.Method("softmax");
  TrainingJob job;
  job.recipe = &recipe;
  job.method = &method;
  job.seed = context.seed;
  job.steps = context.quick ? kQuickSteps : kSteps;
  job.folder = context.models / fmt::format("softmax-{}-seed-{}", job.steps, job.seed);
  SetExperiment experiment(job);
  Train(
      experiment, job,
      [&](const JobStatus& status) {
        if (context.progress) {
          context.progress(share * status.step / job.steps);
        }
      },
      context.Stop());
  return {
      std::move(experiment.Model()), MaxRetrieval(recipe.task), method,
      fmt::format("the recipe max-retrieval's softmax, trained for {} of its 100 000 steps, seed "
                  "{}",
                  job.steps, job.seed)};
}

at::Tensor ScoresOf(const at::Tensor& weights) { return weights.to(at::kDouble).log(); }

}  // namespace tsallis::lab
