// The options of commands that work with a trained sequence model.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lab/nn/decoder.h"
#include "lab/train/load_model.h"

namespace tsallis::cli {

struct TrainedModelOptions {
  std::string path, task;  // no task: the one that it was trained on
  std::vector<std::string> settings;
  std::optional<int> threads;
  std::string device = "cpu";

  // CHECKPOINT, SETTING, --task with this help, --threads and --device.
  CLI::Option* Declare(CLI::App& app, const std::string& task_help);
  // CHECKPOINT, --threads and --device alone.
  void DeclareModel(CLI::App& app);

  // UsageError for settings without the task that they are for.
  void Check() const;
  // The model with its task, or with the one that was asked for. Sets the number of threads, and
  // says on stderr what people should know of how the model computes.
  lab::LoadedSequenceModel Load() const;
};

// Says on stderr what people should know of how a model computes, if there is something.
void PrintNote(const std::string& note);

// UsageError, which begins with `option`, unless the task has the model's tokens. `kind`: "task" or
// "text".
void CheckVocabulary(const lab::LoadedSequenceModel& loaded, const std::string& option,
                     const std::string& kind);

// The model as a decoder; UsageError, which begins with `option`, if it is another.
lab::Decoder& DecoderOf(const lab::LoadedSequenceModel& loaded, const std::string& option);

}  // namespace tsallis::cli
