#include "cli/trained_model.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <cstdint>
#include <cstdio>

#include "cli/options.h"
#include "lab/base/denormals.h"
#include "lab/base/device.h"
#include "lab/base/errors.h"

namespace tsallis::cli {

CLI::Option* TrainedModelOptions::Declare(CLI::App& app, const std::string& task_help) {
  DeclareModel(app);
  app.add_option("SETTING", settings, "Settings of --task, key=value");
  return app.add_option("--task", task, task_help);
}

void TrainedModelOptions::DeclareModel(CLI::App& app) {
  app.add_option("CHECKPOINT", path, "Folder of a run, or a file of weights in one")->required();
  app.add_option("--threads", threads, "Threads; default: one per core. The result is the same")
      ->check(IntegerFrom(1, 4096));
  app.add_option("--device", device, "Where the model computes: cpu, cuda or cuda:N")
      ->capture_default_str();
}

void TrainedModelOptions::Check() const {
  if (task.empty() && !settings.empty()) {
    throw lab::UsageError("settings need the --task that they are for");
  }
}

lab::LoadedSequenceModel TrainedModelOptions::Load() const {
  if (threads) at::set_num_threads(*threads);
  lab::FlushDenormals();  // as where it was trained
  lab::LoadedSequenceModel loaded = lab::LoadSequenceModel(path, lab::DeviceNamed(device));
  PrintNote(loaded.model->Note());
  if (!task.empty()) {
    loaded.task = lab::MakeSequenceTask(task, settings);
    loaded.task_name = task;
  }
  return loaded;
}

void PrintNote(const std::string& note) {
  if (!note.empty()) fmt::print(stderr, "{}\n", note);
}

void CheckVocabulary(const lab::LoadedSequenceModel& loaded, const std::string& option,
                     const std::string& kind) {
  const std::int64_t vocabulary = loaded.model->Config().vocabulary;
  if (loaded.task->Vocabulary() == vocabulary) return;
  throw lab::UsageError(fmt::format("{} {}: expected a {} of the model's {} tokens, it has {}",
                                    option, loaded.task_name, kind, vocabulary,
                                    loaded.task->Vocabulary()));
}

lab::Decoder& DecoderOf(const lab::LoadedSequenceModel& loaded, const std::string& option) {
  if (!loaded.model->FlatParameters().is_cpu()) {
    throw lab::UsageError(option + ": expected a model on the CPU, without --device");
  }
  if (auto* decoder = dynamic_cast<lab::Decoder*>(loaded.model.get())) return *decoder;
  throw lab::UsageError(fmt::format("{}: expected a decoder, {} is of an {}", option,
                                    loaded.weights.string(), loaded.model->Architecture()));
}

}  // namespace tsallis::cli
