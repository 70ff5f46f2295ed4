// A kind of experiment as recipes know it: what its task and its model may say, and what a machine
// needs for it. What it does when it runs is an Experiment (lab/train/experiment.h).
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lab/base/catalogue.h"
#include "lab/base/toml_reader.h"
#include "lab/config/recipe.h"

namespace tsallis::lab {

class ExperimentKind {
 public:
  virtual ~ExperimentKind() = default;

  // What a recipe may name.
  virtual std::vector<CatalogueEntry> Tasks() const = 0;
  virtual std::vector<CatalogueEntry> Models() const = 0;

  // Read the keys of [task] and [model] that only this kind has, and check each by itself. The
  // former makes the task's generator.
  virtual void Read(TableReader& table, TaskConfig& task) const = 0;
  virtual void Read(TableReader& table, ModelConfig& model) const = 0;

  // Add what is wrong with a recipe whose model is of this kind, and with one of its methods.
  virtual void Check(const Recipe& recipe, const std::string& scale,
                     TomlProblems& problems) const = 0;
  virtual void CheckMethod(const Recipe& recipe, const MethodConfig& method,
                           const std::string& path, TomlProblems& problems) const = 0;
  // Says why `method` cannot read the weights of `owner`; empty: it can.
  virtual std::string WhyNotBorrowed(const Recipe& recipe, const MethodConfig& owner,
                                     const MethodConfig& method) const = 0;

  // How a method attends: as the folder of a run keeps it, and as reports read it.
  virtual nlohmann::ordered_json Attention(const Recipe& recipe,
                                           const MethodConfig& method) const = 0;
  virtual nlohmann::ordered_json ReportedAttention(const Recipe& recipe,
                                                   const MethodConfig& method) const {
    return Attention(recipe, method);
  }
  // The sizes of the model that reports name; null: none.
  virtual nlohmann::ordered_json ReportedModel(const Recipe&) const { return nullptr; }

  // Samples that a model is tested on at length n.
  virtual std::int64_t TestSamples(const TaskConfig& task, std::int64_t n) const = 0;

  // Bytes that a step needs at least which works on so many tokens or items at a time, and the keys
  // of the model that decide it ("model.width").
  virtual double LeastMemory(const ModelConfig& model, double tokens) const = 0;
  virtual std::string SizeKeys() const = 0;

  // Whether one training is work for several threads.
  virtual bool UsesThreads() const = 0;
  // Whether it may begin with the weights of another run.
  virtual bool TakesWeights() const = 0;
  // Whether heads are observed when it is trained.
  virtual bool HasHeads() const = 0;
  // The study that maps of attention are drawn in, where that is not this one's: "a study of
  // decoders, got ..."; empty: it is.
  virtual std::string WhyNoMaps(const Recipe& recipe) const = 0;

 protected:
  static constexpr double kWeightBytes = 16.0;  // a weight, its gradient, two moments, in float32
};

// A line for each kind in experiment_kind.cc.
const ExperimentKind& SetKind();       // set_kind.cc
const ExperimentKind& SequenceKind();  // sequence_kind.cc
const std::vector<const ExperimentKind*>& ExperimentKinds();

// All of them.
const std::vector<CatalogueEntry>& Tasks();
const std::vector<CatalogueEntry>& Models();

// The kind that has a task or a model of this name. For another name, which is a mistake of the
// recipe that is named elsewhere, the first kind.
const ExperimentKind& KindOfTask(const std::string& name);
const ExperimentKind& KindOfModel(const std::string& name);

}  // namespace tsallis::lab
