// The folder of one training run: config.json (what decides the weights), metrics.jsonl, last/ (a
// link to the newest checkpoint), best/ (where checkpoints are chosen by accuracy) and, when
// training is over, model.safetensors. At every moment each of them is complete or not there.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "lab/base/safetensors.h"
#include "lab/train/event_file.h"

namespace tsallis::lab {

struct Checkpoint {
  std::int64_t step = 0;
  TensorFile model, state;  // state's metadata: what the trainer keeps beside tensors
};

class RunFolder {
 public:
  explicit RunFolder(std::filesystem::path path) : path_(std::move(path)) {}

  const std::filesystem::path& Path() const { return path_; }
  std::filesystem::path FinalPath() const { return path_ / "model.safetensors"; }
  std::filesystem::path BestPath() const { return path_ / "best" / "model.safetensors"; }
  // Whether there is a checkpoint to go on from.
  bool Begun() const { return std::filesystem::exists(path_ / "last"); }
  bool Finished() const { return std::filesystem::exists(FinalPath()); }

  // Reads config.json; null if there is none, or one that is damaged.
  nlohmann::ordered_json Settings() const;

  // Calls `visit` with the lines of metrics.jsonl that are JSON objects, in order: a killed run may
  // leave half a line.
  void ForEachMetrics(const std::function<void(const nlohmann::json&)>& visit) const;

  // Seconds of training over all sessions, by metrics.jsonl, whose lines count earlier sessions
  // too.
  double Seconds() const;

  // Makes the folder and writes config.json. UsageError if it belongs to other settings,
  // std::runtime_error if it cannot be made.
  void Claim(const nlohmann::ordered_json& settings) const;

  // Checkpoints are folders step-<n>; `last` is a link to the newest, replaced by a rename. Older
  // ones are removed. std::runtime_error, with the former checkpoint in place, if writing fails.
  void Save(const Checkpoint& checkpoint) const;
  // The newest checkpoint, or nothing. std::runtime_error naming the file if it is damaged.
  std::optional<Checkpoint> Load() const;

  // The best weights so far, and the last ones, with which the run is over and needs no
  // checkpoints.
  void SaveBest(const TensorFile& model) const;
  void Finish(const TensorFile& model) const;

 private:
  std::filesystem::path path_;
};

// Keeps other processes, on this machine or on others that share the file system, from working in
// the folder of a run. Goes with the process, however it ends.
class FolderLock {
 public:
  // Makes the folder. std::runtime_error if another process, or another lock of this one, holds it.
  // Where the file system has no locks there is no protection.
  explicit FolderLock(const std::filesystem::path& folder);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int file_ = -1;
};

// Copies stored parameters into a model's. std::runtime_error naming the file if one is missing or
// of another shape or type.
void LoadParameters(const std::filesystem::path& path,
                    const std::vector<std::pair<std::string, at::Tensor>>& parameters);
void CopyParameters(const TensorFile& file, const std::filesystem::path& path,
                    const std::vector<std::pair<std::string, at::Tensor>>& parameters);

// metrics.jsonl, cut back to the checkpoint: lines of steps that will run again, or half a line at
// the end, are dropped. Damaged lines are moved to metrics.damaged beside it.
class Metrics {
 public:
  // `tensorboard`: numbers go to an event file beside it as well; if it is the first, those of the
  // lines that are kept too.
  Metrics(const std::filesystem::path& path, std::int64_t step, bool tensorboard = false);

  // How many lines were moved to metrics.damaged.
  std::int64_t Damaged() const { return damaged_; }

  // One JSON object a line, with its "step". std::runtime_error if writing fails.
  void Add(const std::string& line);

 private:
  // Every number of the line by its name, those of objects as object/name.
  void AddEvents(const std::string& line);

  std::ofstream out_;
  std::int64_t damaged_ = 0;
  std::optional<EventFile> events_;
};

}  // namespace tsallis::lab
