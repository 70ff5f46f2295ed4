// One training job: one method, one seed, one core. Its folder holds config.json, metrics.jsonl,
// last/ (a link to the newest checkpoint) and, when training is over, model.safetensors.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>

#include "lab/config/recipe.h"
#include "lab/nn/set_attention.h"
#include "lab/progress/progress.h"

namespace tsallis::lab {

struct TrainingJob {
  const Recipe* recipe = nullptr;
  const MethodConfig* method = nullptr;  // trains its own weights
  std::uint64_t seed = 1;
  std::int64_t steps = 0;
  std::filesystem::path folder;
};

// Makes the job's folder and writes its config.json; throws UsageError if the folder belongs to
// other settings.
void ClaimFolder(const TrainingJob& job);

// Trains the job, or goes on from its last checkpoint; returns the trained model. A finished job is
// only loaded. The result depends on recipe, method, seed and steps alone: killed and resumed runs
// end with the same bits. `report` is called every few hundred milliseconds. Throws UsageError if
// the folder belongs to other settings, Interrupted after a checkpoint when `stop` becomes true,
// std::runtime_error (also when the loss is not finite).
SetAttention Train(const TrainingJob& job, const std::function<void(const JobStatus&)>& report,
                   const std::atomic<bool>& stop);

}  // namespace tsallis::lab
