// Training the set model of max retrieval: one method, one seed, one core.
#pragma once

#include <atomic>
#include <functional>
#include <nlohmann/json.hpp>

#include "lab/nn/set_attention.h"
#include "lab/train/trainer.h"

namespace tsallis::lab {

// Makes the job's folder and writes its config.json; throws UsageError if the folder belongs to
// other settings.
void ClaimSetFolder(const TrainingJob& job);

// Trains the job, or goes on from its last checkpoint; returns the model with the best weights
// where there is validation, else with the last. Throws as Train.
SetAttention TrainSet(const TrainingJob& job, const std::function<void(const JobStatus&)>& report,
                      const std::atomic<bool>& stop);

}  // namespace tsallis::lab
