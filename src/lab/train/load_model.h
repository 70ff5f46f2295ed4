// A trained model and its task from the folder of its run.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "lab/nn/sequence_model.h"
#include "lab/nn/set_attention.h"
#include "lab/tasks/max_retrieval.h"
#include "lab/tasks/sequence_tasks.h"

namespace tsallis::lab {

struct LoadedSequenceModel {
  std::unique_ptr<SequenceModel> model;
  TaskPointer task;  // as in training
  std::string task_name;
  std::int64_t train_length;      // the longest of training
  std::filesystem::path weights;  // the file they come from
};

// `path`: the folder of a run, of which the best weights are taken, else the last, else the newest
// checkpoint; or a file of weights in it. The run's config.json says what model they belong to.
// UsageError if there is no such thing, std::runtime_error if it is damaged.
LoadedSequenceModel LoadSequenceModel(const std::filesystem::path& path,
                                      const c10::Device& device = c10::kCPU);

struct LoadedSetModel {
  SetAttention model;
  SetAttentionConfig config;
  MaxRetrievalConfig task;
  std::filesystem::path weights;
};

// Loads the model of a run on max retrieval.
LoadedSetModel LoadSetModel(const std::filesystem::path& path);

// The weights that a run begins with, where they are not those of its seed: those of `path`, as
// above, which must be of the same shapes. UsageError if there are none or they do not fit.
void StartFrom(const std::filesystem::path& path, SequenceModel& model);

}  // namespace tsallis::lab
