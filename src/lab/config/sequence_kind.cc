// Experiments on sequences: the tasks of sequence_tasks.h and the models of nn/models.h.
#include <fmt/format.h>

#include <memory>

#include "lab/config/experiment_kind.h"
#include "lab/config/recipe_checks.h"
#include "lab/nn/decoder_describe.h"
#include "lab/nn/maps.h"
#include "lab/tasks/sequence_tasks.h"

namespace tsallis::lab {
namespace {

// Says what is wrong with the model of a method; empty: nothing.
std::string ModelProblem(const Recipe& recipe, const MethodConfig& method) {
  try {
    CheckSequenceModel(recipe.model.name, recipe.Decoder(method));
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

// Lengths that the task does not have.
void RequireLengths(const Recipe& recipe, const std::string& scale, TomlProblems& problems) {
  const auto exists = [&](const std::string& key, std::int64_t length) {
    try {
      recipe.task.generator->CheckLength(length);
    } catch (const UsageError& error) {
      problems.Add(key, error.what());
    }
  };
  exists("task.train_length", recipe.task.train_length_min);
  exists("task.train_length", recipe.task.train_length_max);
  // A scale may change the task so that not all lengths of the recipe exist, and read others.
  const auto found = recipe.scales.find(scale);
  if (found != recipe.scales.end() && found->second.eval_lengths) {
    for (const std::int64_t length : *found->second.eval_lengths) {
      exists("scale." + scale + ".eval_lengths", length);
    }
  } else {
    for (const std::int64_t length : recipe.task.eval_lengths) exists("task.eval_lengths", length);
  }
  if (recipe.train.validate_every > 0) exists("train.best_length", recipe.train.best_length);
}

class Sequences : public ExperimentKind {
 public:
  std::vector<CatalogueEntry> Tasks() const override {
    std::vector<CatalogueEntry> tasks;
    for (const SequenceTaskEntry& task : SequenceTasks()) {
      tasks.push_back({task.name, task.description});
    }
    return tasks;
  }
  std::vector<CatalogueEntry> Models() const override { return SequenceModels(); }

  void Read(TableReader& table, TaskConfig& task) const override {
    table.Required("eval_lengths", task.eval_lengths, CheckLengths);
    table.Optional("eval_samples", task.eval_samples, UpTo(kMostSamples));
    table.Optional("eval_tokens", task.eval_tokens, IfGiven(Positive<std::int64_t>()));
    table.Optional("eval_samples_lost", task.eval_samples_lost, IfGiven(Positive<std::int64_t>()));
    const std::size_t shared = table.Scalars().size();
    task.generator = FindSequenceTask(task.name)->make(table);
    task.settings.assign(table.Scalars().begin() + static_cast<std::ptrdiff_t>(shared),
                         table.Scalars().end());
  }
  void Read(TableReader& table, ModelConfig& model) const override {
    lab::Describe<TableReader>(table, model.decoder);
  }

  void Check(const Recipe& recipe, const std::string& scale,
             TomlProblems& problems) const override {
    const SequenceTask* task = recipe.task.Sequences();
    if (task != nullptr) {
      const Scoring scoring = task->GetScoring();
      const bool answers = scoring == Scoring::kExact || scoring == Scoring::kWritten;
      if (recipe.model.name == "encoder-decoder" && !answers) {
        problems.Add("model.name",
                     fmt::format("\"encoder-decoder\" takes a task with a question and an answer "
                                 "to write, \"{}\" has none",
                                 recipe.task.name));
      }
      if (recipe.task.eval_samples_lost && scoring != Scoring::kExact) {
        problems.Add("task.eval_samples_lost",
                     fmt::format("\"{}\" has no answers that are right or wrong as a whole",
                                 recipe.task.name));
      }
      RequireLengths(recipe, scale, problems);
      const std::int64_t vocabulary = recipe.model.decoder.vocabulary;
      if (vocabulary != 0 && vocabulary != task->Vocabulary()) {
        problems.Add("model.vocabulary",
                     fmt::format("the task has {} tokens; leave this key out", task->Vocabulary()));
      }
    }
    const std::string problem = ModelProblem(recipe, MethodConfig());
    if (!problem.empty()) problems.Add("model", problem);
  }

  void CheckMethod(const Recipe& recipe, const MethodConfig& method, const std::string& path,
                   TomlProblems& problems) const override {
    std::vector<std::string> keys = {"map", "alpha", "theta", "length_scaling", "output_norm"};
    for (const MapNumber& number : MapNumbers()) keys.emplace_back(number.key);
    for (const std::string& key : keys) {
      if (!problems.Given(path + "." + key)) continue;
      problems.Add(path + "." + key,
                   "methods of a model of sequences say this in attention = { ... }");
    }
    if (const std::string problem = ModelProblem(recipe, method); !problem.empty()) {
      // A mistake that is there without the method's attention too is the model's, and reported
      // once.
      if (problem != ModelProblem(recipe, MethodConfig())) problems.Add(path, problem);
    }
  }

  std::string WhyNotBorrowed(const Recipe& recipe, const MethodConfig& owner,
                             const MethodConfig& method) const override {
    if (LearnAlike(recipe.Decoder(owner), recipe.Decoder(method))) return "";
    return "the heads of \"" + owner.name +
           "\" learn other tensors: expected the same length scaling, learned alpha and learned "
           "slopes";
  }

  nlohmann::ordered_json Attention(const Recipe& recipe,
                                   const MethodConfig& method) const override {
    return ToJson(recipe.Decoder(method));
  }
  nlohmann::ordered_json ReportedModel(const Recipe& recipe) const override {
    const DecoderConfig& decoder = recipe.model.decoder;
    return {{"name", recipe.model.name},
            {"layers", decoder.layers},
            {"width", decoder.width},
            {"heads", decoder.heads}};
  }

  std::int64_t TestSamples(const TaskConfig& task, std::int64_t n) const override {
    return task.Samples(task.eval_samples, n);
  }

  double LeastMemory(const ModelConfig& of, double tokens) const override {
    const DecoderConfig& model = of.decoder;
    const auto layers = static_cast<double>(model.layers);
    const auto width = static_cast<double>(model.width);
    const double attention = 2.0 * static_cast<double>(model.heads * model.HeadDim());
    const double feed_forward = 2.0 * static_cast<double>(model.feed_forward);
    return kWeightBytes * layers * width * (attention + feed_forward) +
           2.0 * tokens * layers * width;
  }
  std::string SizeKeys() const override { return "model.layers, model.width"; }

  bool UsesThreads() const override { return true; }
  bool TakesWeights() const override { return true; }
  bool HasHeads() const override { return true; }
  // A map of another model would be one of a target against a source: `tsallis translate --show`.
  std::string WhyNoMaps(const Recipe& recipe) const override {
    return recipe.model.name == "decoder"
               ? ""
               : "a study of decoders, got one of an " + recipe.model.name;
  }
};

}  // namespace

const ExperimentKind& SequenceKind() {
  static const Sequences kind;
  return kind;
}

}  // namespace tsallis::lab
