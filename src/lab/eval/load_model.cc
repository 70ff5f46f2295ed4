#include "lab/eval/load_model.h"

#include <fmt/format.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "lab/errors.h"
#include "lab/train/run_folder.h"

namespace tsallis::lab {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

fs::path WeightsIn(const fs::path& folder) {
  const RunFolder run(folder);
  for (const fs::path& path :
       {run.BestPath(), run.FinalPath(), folder / "last" / "model.safetensors"}) {
    if (fs::exists(path)) return path;
  }
  throw UsageError(folder.string() + ": no weights in this folder (tsallis train makes them)");
}

// config.json of the run that a file of weights lies in: beside it, or above best/ and step-<n>/.
fs::path ConfigOf(const fs::path& weights) {
  const fs::path folder = fs::absolute(weights).parent_path();
  for (const fs::path& candidate : {folder, folder.parent_path()}) {
    if (fs::exists(candidate / "config.json")) return candidate / "config.json";
  }
  throw UsageError(weights.string() + ": no config.json beside it or above: not of a run");
}

}  // namespace

LoadedModel LoadModel(const fs::path& path) {
  if (!fs::exists(path)) throw UsageError(path.string() + ": no such file or folder");
  const fs::path weights = fs::is_directory(path) ? WeightsIn(path) : path;
  const fs::path config_path = ConfigOf(weights);
  std::ifstream in(config_path);
  const Json config = Json::parse(in, nullptr, false);
  if (!config.is_object() || !config.contains("task") || !config.contains("model")) {
    throw std::runtime_error(config_path.string() + ": damaged, or not of a run");
  }
  const std::string name = config["task"].value("name", "");
  if (FindSequenceTask(name) == nullptr) {
    throw UsageError(fmt::format("{}: expected a run on a sequence task, got one on \"{}\"",
                                 config_path.string(), name));
  }
  std::vector<std::string> settings;
  for (const auto& [key, value] : config["task"].items()) {
    if (key == "name" || key == "train_length") continue;
    settings.push_back(key + "=" + value.dump());
  }
  LoadedModel loaded{Decoder(DecoderFromJson(config["model"], config_path.string()), 1),
                     MakeSequenceTask(name, settings), name, weights};
  LoadParameters(weights, loaded.model.Parameters());
  return loaded;
}

}  // namespace tsallis::lab
