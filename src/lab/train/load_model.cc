#include "lab/train/load_model.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "lab/base/errors.h"
#include "lab/nn/models.h"
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

// Weights with what the config.json of their run says.
struct Found {
  fs::path weights;
  std::string config_path;
  nlohmann::ordered_json config;
  std::string task_name;  // empty where config.json names none
};

Found Find(const fs::path& path) {
  if (!fs::exists(path)) throw UsageError(path.string() + ": no such file or folder");
  Found found;
  found.weights = fs::is_directory(path) ? WeightsIn(path) : path;
  const fs::path run = RunOf(found.weights);
  found.config_path = (run / "config.json").string();
  found.config = RunFolder(run).Settings();
  const auto task = found.config.find("task");
  if (task == found.config.end() || !task->is_object() || !found.config.contains("model")) {
    throw std::runtime_error(found.config_path + ": damaged, or not of a run");
  }
  const auto named = task->find("name");
  if (named != task->end() && named->is_string()) found.task_name = named->get<std::string>();
  return found;
}

}  // namespace

void StartFrom(const fs::path& path, SequenceModel& model) {
  const fs::path weights = fs::is_directory(path) ? WeightsIn(path) : path;
  try {
    LoadParameters(weights, model.Parameters());
  } catch (const std::runtime_error& error) {
    throw UsageError(std::string("to start from: ") + error.what());
  }
}

LoadedSequenceModel LoadSequenceModel(const fs::path& path, const c10::Device& device) {
  const Found found = Find(path);
  if (FindSequenceTask(found.task_name) == nullptr) {
    throw UsageError(fmt::format("{}: expected a run on a sequence task, got one on \"{}\"",
                                 found.config_path, found.task_name));
  }
  std::vector<std::string> settings;
  for (const auto& [key, value] : found.config.at("task").items()) {
    if (key == "name" || key == "train_length") continue;
    settings.push_back(key + "=" + value.dump());
  }
  const nlohmann::json lengths = found.config.at("task").value("train_length", nlohmann::json());
  if (!lengths.is_array() || lengths.size() != 2 || !lengths[1].is_number_integer()) {
    throw std::runtime_error(found.config_path + ": damaged: no task.train_length");
  }
  nlohmann::ordered_json config = found.config.at("model");
  std::string architecture = "decoder";
  if (const auto name = config.find("name"); name != config.end()) {
    if (!name->is_string() || !IsSequenceModel(*name)) {
      throw std::runtime_error(found.config_path +
                               ": damaged: model.name is no model of sequences");
    }
    architecture = *name;
    config.erase("name");
  }
  LoadedSequenceModel loaded{
      MakeSequenceModel(architecture, DecoderFromJson(config, found.config_path), 1, device),
      MakeSequenceTask(found.task_name, settings), found.task_name, lengths[1].get<std::int64_t>(),
      found.weights};
  LoadParameters(found.weights, loaded.model->Parameters());
  return loaded;
}

LoadedSetModel LoadSetModel(const fs::path& path) {
  const Found found = Find(path);
  if (found.task_name != "max-retrieval") {
    throw UsageError(fmt::format("{}: expected a run on max-retrieval, got one on \"{}\"",
                                 found.config_path, found.task_name));
  }
  try {
    const auto& config = found.config;
    const SetAttentionConfig attention = SetAttentionFromJson(config);
    MaxRetrievalConfig task;
    task.classes = config.at("task").at("classes").get<std::int64_t>();
    task.train_length_min = config.at("task").at("train_length").at(0).get<std::int64_t>();
    task.train_length_max = config.at("task").at("train_length").at(1).get<std::int64_t>();
    const auto width = config.at("model").at("width").get<std::int64_t>();
    SetAttention model(width, MaxRetrieval(task).Features(), task.classes, attention, 1);
    LoadParameters(found.weights, model.Parameters());
    return {std::move(model), attention, task, found.weights};
  } catch (const nlohmann::json::exception& error) {
    throw std::runtime_error(found.config_path + ": damaged: " + error.what());
  }
}

}  // namespace tsallis::lab
