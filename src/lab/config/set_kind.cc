// Experiments on sets: max retrieval and the model of set_attention.h.
#include <algorithm>
#include <memory>

#include "lab/config/experiment_kind.h"
#include "lab/config/recipe_checks.h"

namespace tsallis::lab {
namespace {

class Sets : public ExperimentKind {
 public:
  std::vector<CatalogueEntry> Tasks() const override {
    return {{"max-retrieval", "class of the item with the largest priority in a set of n"}};
  }
  std::vector<CatalogueEntry> Models() const override {
    return {{"set-attention", "two-layer GeLU MLPs around one attention head"}};
  }

  void Read(TableReader& table, TaskConfig& task) const override {
    table.Optional("classes", task.classes,
                   Within<std::int64_t>(2, 1 << 20, "at least two classes (and at most 2^20)"));
    table.Required("eval_lengths", task.eval_lengths, CheckLengths);
    table.Optional("eval_items", task.eval_items, UpTo(kMostSteps));
    table.Optional("eval_sets_min", task.eval_sets_min, UpTo(kMostSamples));
    table.Optional("eval_sets_max", task.eval_sets_max, UpTo(kMostSamples));
    task.generator = std::make_shared<MaxRetrieval>(task);
  }
  void Read(TableReader& table, ModelConfig& model) const override {
    table.Optional("width", model.width, UpTo(1 << 16));
  }

  void Check(const Recipe& recipe, const std::string&, TomlProblems& problems) const override {
    const TrainConfig& train = recipe.train;
    if (train.device != "cpu") {
      problems.Add("train.device", "expected \"cpu\" with model \"" + recipe.model.name +
                                       "\", got \"" + train.device + "\"");
    }
    if (!train.start.empty()) problems.Add("train.start", "has no effect with this model");
    if (train.accumulate > 1) problems.Add("train.accumulate", "has no effect with this model");
    if (recipe.task.eval_sets_min > recipe.task.eval_sets_max) {
      problems.Add("task.eval_sets_min", "larger than task.eval_sets_max");
    }
    if (recipe.figure == "flow") {
      problems.Add("study.figure", "\"flow\" is of a model of sequences");
    }
  }

  void CheckMethod(const Recipe&, const MethodConfig& method, const std::string& path,
                   TomlProblems& problems) const override {
    if (!problems.Given(path + ".map")) problems.AddMissing(path, "map");
    if (method.attention) {
      problems.Add(path + ".attention", "only has an effect with a model of sequences");
    }
    if (method.map == "stick-breaking") {
      problems.Add(path + ".map",
                   "\"stick-breaking\" needs an order of the keys, and a set has none");
    }
    if (method.map == "top-k-softmax" && method.top_k < 1) problems.AddMissing(path, "top_k");
  }

  std::string WhyNotBorrowed(const Recipe&, const MethodConfig& owner,
                             const MethodConfig& method) const override {
    // The learned scale and the norm are among the weights: the borrower would miss them, or carry
    // some that were never trained.
    if (owner.length_scaling.kind != method.length_scaling.kind) {
      return "the length scaling of \"" + owner.name + "\" is of another kind";
    }
    if (owner.output_norm != method.output_norm) {
      return "the output_norm of \"" + owner.name + "\" is \"" + owner.output_norm + "\"";
    }
    return "";
  }

  nlohmann::ordered_json Attention(const Recipe&, const MethodConfig& method) const override {
    const SetAttentionConfig& attention = method;
    return ToJson(attention);
  }
  nlohmann::ordered_json ReportedAttention(const Recipe& recipe,
                                           const MethodConfig& method) const override {
    nlohmann::ordered_json attention = Attention(recipe, method);
    const auto kind = static_cast<std::size_t>(method.length_scaling.kind);
    attention["length_scaling"]["kind"] = SetLengthScalings()[kind].name;
    return attention;
  }

  std::int64_t TestSamples(const TaskConfig& task, std::int64_t n) const override {
    return std::clamp(task.eval_items / n, task.eval_sets_min, task.eval_sets_max);
  }

  double LeastMemory(const ModelConfig& model, double items) const override {
    const auto width = static_cast<double>(model.width);
    return kWeightBytes * 2.0 * width * width + 2.0 * items * width;
  }
  std::string SizeKeys() const override { return "model.width"; }

  bool UsesThreads() const override { return false; }
  bool TakesWeights() const override { return false; }
  bool HasHeads() const override { return false; }
  std::string WhyNoMaps(const Recipe& recipe) const override {
    return "a study of sequences, got \"" + recipe.name + "\"";
  }
};

}  // namespace

const ExperimentKind& SetKind() {
  static const Sets kind;
  return kind;
}

}  // namespace tsallis::lab
