// The settings of optimisers. One more is a line in OptimizerKinds(), with keys of its own if it
// has any, and a class in lab/train/optimizer.cc.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lab/base/catalogue.h"
#include "lab/base/toml_reader.h"

namespace tsallis::lab {

struct OptimizerConfig {
  std::string optimizer = "adam";
  double lr = 1e-3;  // muon: of hidden matrices
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  // adam: added to the gradient of every parameter: l2 * w, the gradient of (l2/2) ||w||^2
  double l2 = 1e-3;
  // adamw: every update first takes away lr * weight_decay * w; muon: of hidden matrices alone.
  double weight_decay = 0.0;
  // muon: learning rates of the other parameters, which Adam trains; of embeddings, if not adam_lr.
  double adam_lr = 2e-3;
  std::optional<double> embedding_lr;
  double momentum = 0.95;  // muon
};

struct OptimizerKind {
  CatalogueEntry entry;
  std::vector<std::string> keys;  // of those that not all optimisers have
};
const std::vector<OptimizerKind>& OptimizerKinds();

// Reads the keys above.
void DescribeOptimizer(TableReader& table, OptimizerConfig& config);

// A key of `keys` above that this optimiser does not have, and how to say which do. `given`: those
// that a recipe names; one that takes nothing away at its value may stand.
struct OptimizerProblem {
  std::string key, what;
};
std::vector<OptimizerProblem> CheckOptimizer(const OptimizerConfig& config,
                                             const std::function<bool(const std::string&)>& given);

// The settings of config.json, in the order of older folders. `late`: those behind train.log_every.
void AddOptimizer(nlohmann::ordered_json& json, const OptimizerConfig& config, bool late);

}  // namespace tsallis::lab
