#include "lab/config/recipe_checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <set>

#include "lab/base/suggest.h"
#include "lab/config/experiment_kind.h"
#include "lab/nn/maps.h"

namespace tsallis::lab {
namespace {

bool IsName(const std::string& name) {
  if (name.empty() || name.front() == '.' || name.front() == '-') return false;
  return std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '.' || c == '-' || c == '_';
  });
}

constexpr const char* kNameExpected =
    "a name of letters, digits, '.', '-' and '_' that begins with a letter or digit";

// `path`: "train", or "method.NAME.train" of a method that is trained in its own way.
void CheckTraining(const Recipe& recipe, const TrainConfig& train, const std::string& path,
                   TomlProblems& problems) {
  const auto given = [&](const std::string& key) {
    return problems.Given(path + key) || problems.Given("train" + key);
  };
  if (train.batch % train.accumulate != 0) {
    problems.Add(path + ".accumulate", fmt::format("batch {} cannot be worked on in {} equal parts",
                                                   train.batch, train.accumulate));
  }
  if (train.split != "batch" && recipe.model.name != "decoder") {
    problems.Add(path + ".split", fmt::format("expected \"batch\" with model \"{}\", got \"{}\"",
                                              recipe.model.name, train.split));
  }
  for (const OptimizerProblem& problem :
       CheckOptimizer(train, [&](const std::string& key) { return given("." + key); })) {
    problems.Add(path + "." + problem.key, problem.what);
  }
  if (train.schedule != "linear" && given(".cooldown") && train.cooldown != 1.0) {
    problems.Add(path + ".cooldown", "only has an effect with schedule = \"linear\"");
  }
}

std::string UnknownMethod(const Recipe& recipe, const std::string& name) {
  return "unknown method \"" + name + "\"" + Suggestion(name, MethodNames(recipe));
}

void CheckBorrowing(const Recipe& recipe, const MethodConfig& method, const std::string& path,
                    TomlProblems& problems) {
  if (!method.weights_of) return;
  const std::string key = path + ".weights_of";
  const MethodConfig* owner = FindMethod(recipe, *method.weights_of);
  if (owner == nullptr) {
    problems.Add(key, UnknownMethod(recipe, *method.weights_of));
  } else if (owner == &method) {
    problems.Add(key, "a method cannot borrow its own weights");
  } else if (owner->weights_of) {
    problems.Add(key, "\"" + owner->name + "\" borrows the weights of \"" + *owner->weights_of +
                          "\" itself; name that one");
  } else if (const std::string why = recipe.Kind().WhyNotBorrowed(recipe, *owner, method);
             !why.empty()) {
    problems.Add(key, why);
  }
}

void CheckMethod(const Recipe& recipe, const MethodConfig& method, TomlProblems& problems) {
  const std::string path = "method." + method.name;
  recipe.Kind().CheckMethod(recipe, method, path, problems);
  const auto belongs = [&](const std::string& key, const char* map) {
    if (method.map != map && problems.Given(path + "." + key)) {
      problems.Add(path + "." + key, "has no effect with map = \"" + method.map + "\"");
    }
  };
  belongs("alpha", "entmax");
  for (const MapNumber& number : MapNumbers()) belongs(number.key, number.map);
  if (method.length_scaling.kind != LengthScaling::Kind::kScalar) {
    for (const char* key : {".length_scaling.gamma", ".length_scaling.delta"}) {
      if (problems.Given(path + key)) {
        problems.Add(path + key, "only has an effect with kind = \"scalar\"");
      }
    }
  }
  if (method.paper.size() > recipe.task.eval_lengths.size()) {
    problems.Add(path + ".paper", "has " + std::to_string(method.paper.size()) +
                                      " figures, but task.eval_lengths only " +
                                      std::to_string(recipe.task.eval_lengths.size()) + " lengths");
  }
  CheckBorrowing(recipe, method, path, problems);
  if (method.steps && !method.train) {
    problems.Add(path + ".steps", "only has an effect beside the method's own `train`");
  }
  if (!method.train) return;
  CheckTraining(recipe, *method.train, path + ".train", problems);
  if (problems.Given(path + ".train.lr_grid")) {
    problems.Add(path + ".train.lr_grid",
                 "belongs into [train]: every method is tried at the same rates");
  }
  if (method.weights_of) problems.Add(path + ".train", "has no effect beside weights_of");
}

// Learning rates that are chosen, and the validation that chooses them.
void CheckRates(const Recipe& recipe, const std::string& scale, TomlProblems& problems) {
  const TrainConfig& train = recipe.train;
  for (const char* key : kGridKeys) {
    const std::string path = "scale." + scale + "." + key;
    if (train.lr_grid.empty() && problems.Given(path)) {
      problems.Add(path, "has no effect without train.lr_grid");
    }
  }
  const std::vector<double>& grid = train.lr_grid;
  const bool ascends =
      std::adjacent_find(grid.begin(), grid.end(), std::greater_equal()) == grid.end();
  if (!grid.empty() && recipe.Scale(scale).grid_widen > 0 && (grid.size() < 2 || !ascends)) {
    problems.Add("scale." + scale + ".grid_widen", "needs two ascending rates in train.lr_grid");
  }
  if (train.validate_every > 0) {
    if (train.best_length == 0) problems.Add("train.validate_every", "needs a best_length");
  } else {
    for (const char* key : {"best_floor", "best_length", "validate_samples"}) {
      const std::string path = std::string("train.") + key;
      if (problems.Given(path)) problems.Add(path, "has no effect without validate_every");
    }
  }
  if (!train.lr_grid.empty() && train.validate_every == 0) {
    problems.Add("train.lr_grid", "needs validate_every: rates are chosen by validation samples");
  }
}

// A scale that is like another one is complete when it is read, so only the name can be wrong.
void CheckLike(const Recipe& recipe, const ScaleConfig& scale, const std::string& path,
               TomlProblems& problems) {
  if (scale.like.empty()) return;
  const auto model = recipe.scales.find(scale.like);
  if (model == recipe.scales.end()) {
    problems.Add(path + ".like", "unknown scale \"" + scale.like + "\"" +
                                     Suggestion(scale.like, ScaleNames(recipe)));
  } else if (!model->second.like.empty()) {
    problems.Add(path + ".like", "\"" + scale.like + "\" is itself like \"" + model->second.like +
                                     "\"; name that one");
  }
}

}  // namespace

std::string CheckLengths(const std::vector<std::int64_t>& lengths) {
  constexpr const char* kExpected = "lengths > 0, each larger than the one before, at least one";
  if (lengths.empty()) return kExpected;
  std::int64_t before = 0;
  for (const std::int64_t length : lengths) {
    if (length <= before) return kExpected;
    before = length;
  }
  return "";
}

Check<std::int64_t> UpTo(std::int64_t most) {
  return Within<std::int64_t>(1, most, fmt::format("an integer from 1 to {}", most));
}

std::string CheckName(const std::string& name) { return IsName(name) ? "" : kNameExpected; }

std::vector<std::string> MethodNames(const Recipe& recipe) {
  std::vector<std::string> names;
  for (const MethodConfig& method : recipe.methods) names.push_back(method.name);
  return names;
}

std::vector<std::string> ScaleNames(const Recipe& recipe) {
  std::vector<std::string> names;
  for (const auto& [name, unused] : recipe.scales) names.push_back(name);
  return names;
}

const MethodConfig* FindMethod(const Recipe& recipe, const std::string& name) {
  for (const MethodConfig& method : recipe.methods) {
    if (method.name == name) return &method;
  }
  return nullptr;
}

void CheckAcross(const Recipe& recipe, const std::string& scale, TomlProblems& problems) {
  const ExperimentKind& kind = recipe.Kind();
  if (&kind != &KindOfTask(recipe.task.name) && !recipe.task.name.empty()) {
    problems.Add("model.name", fmt::format("\"{}\" does not fit the task \"{}\"", recipe.model.name,
                                           recipe.task.name));
  }
  kind.Check(recipe, scale, problems);
  CheckRates(recipe, scale, problems);
  CheckTraining(recipe, recipe.train, "train", problems);
  const auto check_method = [&](const std::string& key, const std::string& method) {
    if (FindMethod(recipe, method) == nullptr) problems.Add(key, UnknownMethod(recipe, method));
  };
  if (!recipe.baseline.empty()) check_method("study.baseline", recipe.baseline);
  for (const std::string& method : recipe.headline) check_method("study.headline", method);
  if (recipe.figure != "accuracy" && recipe.figure != "flow") {
    problems.Add("study.figure", "expected \"accuracy\" or \"flow\", got \"" + recipe.figure + '"');
  }
  const std::vector<std::int64_t>& lengths = recipe.task.eval_lengths;
  if (recipe.finding_length != 0 &&
      std::find(lengths.begin(), lengths.end(), recipe.finding_length) == lengths.end()) {
    problems.Add("study.finding_length",
                 "expected one of task.eval_lengths, got " + std::to_string(recipe.finding_length));
  }
  std::set<std::string> seen;
  for (const MethodConfig& method : recipe.methods) {
    if (method.name.empty()) continue;  // reported as missing
    if (!seen.insert(method.name).second) {
      problems.Add("method." + method.name, "a method of this name stands above already");
    }
    CheckMethod(recipe, method, problems);
  }
  for (const auto& [name, config] : recipe.scales) {
    const std::string path = "scale." + name;
    if (!IsName(name)) problems.Add(path, std::string("expected ") + kNameExpected);
    CheckLike(recipe, config, path, problems);
    for (const std::string& method : config.methods) check_method(path + ".methods", method);
  }
}

}  // namespace tsallis::lab
