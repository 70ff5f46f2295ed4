// Refuses a run that the machine has no memory for, before the system ends it without a word.
#pragma once

#include "lab/train/trainer.h"

namespace tsallis::lab {

// Bytes that this process may use: the machine's memory, or its control group's limit.
double MemoryLimit();

// Bytes that a training step needs at least; it really needs several times as many. Counted are the
// weights, their gradient and both moments of the optimiser in float32, and what every layer keeps
// of this process's share of one part of a batch at the shortest length of training: two bytes for
// each token and component.
double LeastMemory(const TrainingJob& job);

// UsageError, naming the keys that decide the sizes, if the job needs more than `limit` bytes.
void CheckMemory(const TrainingJob& job, double limit = MemoryLimit());

}  // namespace tsallis::lab
