#include "lab/config/optimizers.h"

#include <algorithm>

namespace tsallis::lab {

const std::vector<OptimizerKind>& OptimizerKinds() {
  static const std::vector<OptimizerKind> kinds = {
      {{"adam", "Adam, L2 added to the gradient"}, {"l2"}},
      {{"adamw", "Adam, decoupled weight decay"}, {"weight_decay"}},
      {{"muon", "hidden matrices by their orthogonalised momentum, the rest by Adam"},
       {"weight_decay", "adam_lr", "embedding_lr", "momentum"}}};
  return kinds;
}

void DescribeOptimizer(TableReader& table, OptimizerConfig& config) {
  const Check<double> decay = [](const double& beta) {
    return beta >= 0.0 && beta < 1.0 ? "" : "0 <= beta < 1";
  };
  std::vector<std::string> names;
  for (const OptimizerKind& kind : OptimizerKinds()) names.emplace_back(kind.entry.name);
  table.Optional("optimizer", config.optimizer, OneOf(names));
  table.Optional("lr", config.lr, Positive<double>());
  table.Optional("adam_lr", config.adam_lr, Positive<double>());
  table.Optional("embedding_lr", config.embedding_lr, IfGiven(Positive<double>()));
  table.Optional("momentum", config.momentum, decay);
  table.Optional("l2", config.l2, Within(0.0, 1e6, "a value >= 0"));
  table.Optional("weight_decay", config.weight_decay, Within(0.0, 1e6, "a value >= 0"));
  table.Optional("beta1", config.beta1, decay);
  table.Optional("beta2", config.beta2, decay);
  table.Optional("epsilon", config.epsilon, Positive<double>());
}

std::vector<OptimizerProblem> CheckOptimizer(const OptimizerConfig& config,
                                             const std::function<bool(const std::string&)>& given) {
  const auto has = [](const OptimizerKind& kind, const std::string& key) {
    return std::find(kind.keys.begin(), kind.keys.end(), key) != kind.keys.end();
  };
  std::vector<std::string> keys;
  for (const OptimizerKind& kind : OptimizerKinds()) {
    for (const std::string& key : kind.keys) {
      const bool known = std::find(keys.begin(), keys.end(), key) != keys.end();
      if (!known) keys.push_back(key);
    }
  }
  std::vector<OptimizerProblem> problems;
  for (const std::string& key : keys) {
    // 0 takes away what the recipe says at another scale.
    const bool none =
        (key == "l2" && config.l2 == 0.0) || (key == "weight_decay" && config.weight_decay == 0.0);
    bool fine = none || !given(key);
    std::string with;
    for (const OptimizerKind& kind : OptimizerKinds()) {
      if (!has(kind, key)) continue;
      fine = fine || config.optimizer == kind.entry.name;
      with += fmt::format("{}\"{}\"", with.empty() ? "" : " or ", kind.entry.name);
    }
    if (!fine) problems.push_back({key, "only has an effect with optimizer = " + with});
  }
  return problems;
}

void AddOptimizer(nlohmann::ordered_json& json, const OptimizerConfig& config, bool late) {
  if (!late) {
    json["optimizer"] = config.optimizer;
    json["lr"] = config.lr;
    if (config.optimizer == "adam") json["l2"] = config.l2;
    json["beta1"] = config.beta1;
    json["beta2"] = config.beta2;
    json["epsilon"] = config.epsilon;
    return;
  }
  if (config.weight_decay != OptimizerConfig().weight_decay) {
    json["weight_decay"] = config.weight_decay;
  }
  if (config.optimizer == "muon") {
    json["adam_lr"] = config.adam_lr;
    json["embedding_lr"] = config.embedding_lr.value_or(config.adam_lr);
    json["momentum"] = config.momentum;
  }
}

}  // namespace tsallis::lab
