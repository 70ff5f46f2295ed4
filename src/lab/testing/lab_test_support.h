// Shared by several lab tests: a folder that goes away, texts, and a small study.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "lab/base/errors.h"
#include "lab/config/recipe.h"
#include "lab/progress/progress.h"
#include "lab/tasks/sequence_tasks.h"

namespace tsallis::lab {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "tsallis-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary folder");
    path_ = name;
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::filesystem::path& Path() const { return path_; }

 private:
  std::filesystem::path path_;
};

inline void ExpectContains(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << text << "\ndoes not contain\n" << part;
}

// The text with the first `from` replaced, which must be there.
inline std::string Replaced(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  if (at == std::string::npos) {
    ADD_FAILURE() << text << "\ndoes not contain\n" << from;
    return text;
  }
  return text.replace(at, from.size(), to);
}

// The text of the error of this kind that `act` throws; any other exception passes.
template <class Error = std::exception>
std::string ErrorTextOf(const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}
inline std::string UsageErrorOf(const std::function<void()>& act) {
  return ErrorTextOf<UsageError>(act);
}

// For what may be stopped, and shown, and is not.
inline const std::atomic<bool> never{false};
inline void Silent(const JobStatus&) {}

// The lines of a run's metrics, without the times.
inline std::vector<std::string> MetricsOf(const std::filesystem::path& run) {
  std::vector<std::string> found;
  std::ifstream in(run / "metrics.jsonl");
  for (std::string line; std::getline(in, line);) {
    found.push_back(line.substr(0, line.find("\"seconds\"")));
  }
  return found;
}

// A decoder of these sizes, in float32.
inline DecoderConfig Sized(std::int64_t vocabulary, std::int64_t layers, std::int64_t width,
                           std::int64_t heads, std::int64_t feed_forward) {
  DecoderConfig config;
  config.vocabulary = vocabulary;
  config.layers = layers;
  config.width = width;
  config.heads = heads;
  config.feed_forward = feed_forward;
  config.compute = "float32";
  return config;
}

// Two methods at a size that trains in a moment.
inline Recipe SmallRecipe() {
  Recipe recipe;
  recipe.name = "small";
  recipe.task.name = "max-retrieval";
  recipe.task.eval_lengths = {16, 64};
  recipe.task.eval_items = 4096;
  recipe.task.eval_sets_min = 16;
  recipe.task.eval_sets_max = 64;
  recipe.task.generator = std::make_shared<MaxRetrieval>(recipe.task);
  recipe.model.name = "set-attention";
  recipe.model.width = 32;
  recipe.train.batch = 16;
  recipe.train.log_every = 10;
  recipe.train.checkpoint_every = 20;
  MethodConfig softmax;
  softmax.name = softmax.label = softmax.map = "softmax";
  softmax.paper = {90.0};
  MethodConfig adaptive;
  adaptive.name = adaptive.label = adaptive.map = "adaptive-temperature";
  adaptive.weights_of = "softmax";
  MethodConfig scaled;
  scaled.name = scaled.label = "asentmax-3";
  scaled.map = "entmax";
  scaled.length_scaling = {LengthScaling::Kind::kScalar, 3.0, 1.0};
  recipe.methods = {softmax, adaptive, scaled};
  recipe.scales["quick"].steps = 100;
  recipe.scales["quick"].seeds = 2;
  return recipe;
}

// A decoder that trains in a moment on copying one to three of two symbols.
inline Recipe SmallSequences() {
  Recipe recipe;
  recipe.name = "small";
  recipe.task.name = "copy";
  recipe.task.generator = MakeSequenceTask("copy", {"symbols=2"});
  recipe.task.settings = {{"symbols", "2"}};
  recipe.task.train_length_min = 1;
  recipe.task.train_length_max = 3;
  recipe.task.eval_lengths = {3, 5};
  recipe.task.eval_samples = 20;
  recipe.model.name = "decoder";
  recipe.model.decoder = Sized(0, 2, 32, 2, 32);
  recipe.model.decoder.attention.positions.kind = "nape";
  TrainConfig& train = recipe.train;
  train.optimizer = "adamw";
  train.lr = 3e-3;
  train.weight_decay = 1e-3;
  train.clip = 1.0;
  train.schedule = "cosine";
  train.warmup = 5;
  train.batch = 16;
  train.log_every = 4;
  train.checkpoint_every = 7;
  train.validate_every = 5;
  train.best_length = 4;
  train.validate_samples = 10;
  MethodConfig softmax;
  softmax.name = softmax.label = "softmax";
  MethodConfig entmax;
  entmax.name = entmax.label = "entmax";
  entmax.attention.emplace().given = {"map"};
  entmax.attention->attention.map = "entmax";
  recipe.methods = {softmax, entmax};
  recipe.scales["quick"].steps = 20;
  recipe.scales["quick"].seeds = 2;
  return recipe;
}

}  // namespace tsallis::lab
