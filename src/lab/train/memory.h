// Refuses a run that the machine has no memory for, before the system ends it without a word.
#pragma once

#include "lab/train/trainer.h"

namespace tsallis::lab {

// Bytes that this process may use: the machine's memory, or its control group's limit.
double MemoryLimit();

// Bytes that a training step needs for certain; what it needs in truth is several times that. Of
// float32 weights their gradient and both moments of the optimiser; of one part of a batch, at the
// shortest length of training, what every layer keeps: two bytes a token and component.
double LeastMemory(const TrainingJob& job);

// UsageError, naming the keys that decide the sizes, if the job needs more than `limit` bytes.
void CheckMemory(const TrainingJob& job, double limit = MemoryLimit());

}  // namespace tsallis::lab
