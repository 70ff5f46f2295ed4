#include "lab/train/load_model.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "lab/base/errors.h"
#include "lab/train/run_folder.h"

namespace tsallis::lab {
namespace {

namespace fs = std::filesystem;

fs::path WeightsIn(const fs::path& folder) {
  const RunFolder run(folder);
  for (const fs::path& path :
       {run.BestPath(), run.FinalPath(), folder / "last" / "model.safetensors"}) {
    if (fs::exists(path)) return path;
  }
  throw UsageError(folder.string() + ": no weights in this folder (tsallis train makes them)");
}

// Folder of the run that a file of weights lies in: its own, or the one above best/ and step-<n>/.
fs::path RunOf(const fs::path& weights) {
  const fs::path folder = fs::absolute(weights).parent_path();
  for (const fs::path& candidate : {folder, folder.parent_path()}) {
    if (fs::exists(candidate / "config.json")) return candidate;
  }
  throw UsageError(weights.string() + ": no config.json beside it or above: not of a run");
}

}  // namespace

void StartFrom(const fs::path& path, Decoder& model) {
  const fs::path weights = fs::is_directory(path) ? WeightsIn(path) : path;
  try {
    LoadParameters(weights, model.Parameters());
  } catch (const std::runtime_error& error) {
    throw UsageError(std::string("to start from: ") + error.what());
  }
}

LoadedModel LoadModel(const fs::path& path) {
  if (!fs::exists(path)) throw UsageError(path.string() + ": no such file or folder");
  const fs::path weights = fs::is_directory(path) ? WeightsIn(path) : path;
  const fs::path run = RunOf(weights);
  const std::string config_path = (run / "config.json").string();
  const nlohmann::ordered_json config = RunFolder(run).Settings();
  const auto task = config.find("task"), model = config.find("model");
  if (task == config.end() || !task->is_object() || model == config.end()) {
    throw std::runtime_error(config_path + ": damaged, or not of a run");
  }
  const auto named = task->find("name");
  const std::string name =
      named != task->end() && named->is_string() ? named->get<std::string>() : "";
  if (FindSequenceTask(name) == nullptr) {
    throw UsageError(
        fmt::format("{}: expected a run on a sequence task, got one on \"{}\"", config_path, name));
  }
  std::vector<std::string> settings;
  for (const auto& [key, value] : task->items()) {
    if (key == "name" || key == "train_length") continue;
    settings.push_back(key + "=" + value.dump());
  }
  LoadedModel loaded{Decoder(DecoderFromJson(*model, config_path), 1),
                     MakeSequenceTask(name, settings), name, weights};
  LoadParameters(weights, loaded.model.Parameters());
  return loaded;
}

}  // namespace tsallis::lab
