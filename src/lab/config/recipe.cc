#include "lab/config/recipe.h"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <set>
#include <utility>

#include "lab/base/device.h"
#include "lab/base/files.h"
#include "lab/base/key_value.h"
#include "lab/base/paths.h"
#include "lab/base/suggest.h"
#include "lab/base/toml_reader.h"
#include "lab/config/experiment_kind.h"
#include "lab/config/recipe_checks.h"
#include "lab/nn/decoder_describe.h"

namespace tsallis::lab {

namespace {

// ---- what a key may hold ------------------------------------------------------------------------

std::string CheckPaper(const std::vector<double>& values) {
  const bool fine = std::all_of(values.begin(), values.end(),
                                [](double value) { return value >= 0.0 && value <= 100.0; });
  return fine ? "" : "figures of the metric: accuracies in %, losses in nats (0 to 100)";
}

std::string CheckRates(const std::vector<double>& rates) {
  const std::set<double> distinct(rates.begin(), rates.end());
  const bool fine = !rates.empty() && distinct.size() == rates.size() && *distinct.begin() > 0.0;
  return fine ? "" : "different learning rates > 0";
}

// train_length = [min, max]: one key, two fields.
struct LengthRange {
  std::int64_t& min;
  std::int64_t& max;
};

std::string Convert(const toml::node& node, LengthRange& range) {
  std::vector<std::int64_t> ends;
  const bool integers = tsallis::lab::Convert(node, ends).empty();
  if (!integers || ends.size() != 2 || ends[0] < 1 || ends[1] < ends[0]) {
    return "[min, max] with 1 <= min <= max";
  }
  range.min = ends[0];
  range.max = ends[1];
  return "";
}

// ---- the keys, once each ------------------------------------------------------------------------

struct StudySection {
  Recipe& recipe;
};

void Describe(TableReader& table, StudySection& study) {
  table.Required("name", study.recipe.name, CheckName);
  table.Required("title", study.recipe.title);
  table.Optional("source", study.recipe.source);
  table.Optional("baseline", study.recipe.baseline);
  table.Optional("finding_length", study.recipe.finding_length);
  table.Optional("figure", study.recipe.figure);
  table.Optional("headline", study.recipe.headline);
}

}  // namespace

// In the namespace of the structs, so that the reader finds them.

std::string Convert(const toml::node& node, LengthScaling::Kind& kind) {
  std::string word;
  if (std::string expected = tsallis::lab::Convert(node, word); !expected.empty()) return expected;
  const std::vector<std::string> names = Names(SetLengthScalings());
  const auto found = std::find(names.begin(), names.end(), word);
  if (found == names.end()) return OneOf(names)(word);
  kind = static_cast<LengthScaling::Kind>(found - names.begin());
  return "";
}

void Describe(TableReader& table, LengthScaling& scaling) {
  table.Required("kind", scaling.kind);
  table.Optional("gamma", scaling.gamma);
  table.Optional("delta", scaling.delta);
}

void Describe(TableReader& table, MethodConfig& method) {
  table.Required("name", method.name, CheckName);
  table.Optional("label", method.label);
  table.Optional("variant", method.variant);
  table.Optional("map", method.map, OneOf(Names(Maps())));
  // From 64 on the papers' own figures fall; far above, 1/(alpha - 1) leaves float32 nothing to
  // work with.
  table.Optional("alpha", method.alpha, Within(1.0, 1e4, "1 <= alpha <= 10000"));
  DescribeNumbers(table, method);
  table.Optional("theta", method.theta, IfGiven(Positive<double>()));
  table.Optional("length_scaling", method.length_scaling);
  table.Optional("output_norm", method.output_norm, OneOf(Names(SetOutputNorms())));
  table.Optional("attention", method.attention);
  table.Optional("weights_of", method.weights_of);
  table.Optional("train", AnyTable{});  // read once [train] is known
  table.Optional("steps", method.steps, IfGiven(UpTo(kMostSteps)));
  table.Optional("paper", method.paper, CheckPaper);
}

void Describe(TableReader& table, TaskConfig& task) {
  table.Required("name", task.name, OneOf(Names(Tasks())));
  table.Optional("train_length", LengthRange{task.train_length_min, task.train_length_max});
  KindOfTask(task.name).Read(table, task);
}

void Describe(TableReader& table, ModelConfig& model) {
  table.Required("name", model.name, OneOf(Names(Models())));
  KindOfModel(model.name).Read(table, model);
}

void Describe(TableReader& table, TrainConfig& train) {
  DescribeOptimizer(table, train);
  table.Optional("device", train.device, Check<std::string>(CheckDeviceName));
  table.Optional("split", train.split, OneOf({"batch", "sequence"}));
  table.Optional("lr_grid", train.lr_grid, CheckRates);
  table.Optional("clip", train.clip, Within(0.0, 1e12, "a norm > 0, or 0 for any"));
  table.Optional("schedule", train.schedule, OneOf({"constant", "cosine", "linear"}));
  table.Optional("cooldown", train.cooldown, Within(0.0, 1.0, "a share of the updates, 0 to 1"));
  table.Optional("warmup", train.warmup, Within<std::int64_t>(0, 1LL << 40, "steps >= 0"));
  table.Optional("start", train.start);
  table.Optional("batch", train.batch, UpTo(kMostSamples));
  table.Optional("accumulate", train.accumulate, UpTo(kMostSamples));
  table.Optional("log_every", train.log_every, UpTo(kMostSteps));
  table.Optional("checkpoint_every", train.checkpoint_every, UpTo(kMostSteps));
  table.Optional("validate_every", train.validate_every,
                 Within<std::int64_t>(0, 1LL << 40, "steps > 0, or 0 for never"));
  table.Optional("best_length", train.best_length, Positive<std::int64_t>());
  table.Optional("best_floor", train.best_floor, Within(0.0, 100.0, "an accuracy in %"));
  table.Optional("validate_samples", train.validate_samples, UpTo(kMostSamples));
}

void Describe(TableReader& table, ScaleConfig& scale) {
  table.Optional("like", scale.like);
  table.Required("steps", scale.steps, UpTo(kMostSteps));
  table.Optional("seeds", scale.seeds, Within(1, kMostSeeds, "1 to 100000 seeds"));
  table.Optional("grid_steps", scale.grid_steps, IfGiven(Positive<std::int64_t>()));
  table.Optional("grid_seeds", scale.grid_seeds, IfGiven(Positive<int>()));
  table.Optional("grid_seed", scale.grid_seed, IfGiven(Positive<std::int64_t>()));
  table.Optional("grid_widen", scale.grid_widen, Within<std::int64_t>(0, 8, "0 to 8 rates"));
  table.Optional("methods", scale.methods);
  table.Optional("eval_lengths", scale.eval_lengths,
                 IfGiven<std::vector<std::int64_t>>(CheckLengths));
  table.Optional("eval_items", scale.eval_items, IfGiven(Positive<std::int64_t>()));
  table.Optional("compare", scale.compare);
  table.Optional("set", AnyTable{});
}

void Describe(TableReader& table, Recipe& recipe) {
  table.Required("study", StudySection{recipe});
  table.Required("task", recipe.task);
  table.Required("model", recipe.model);
  table.Optional("train", recipe.train);
  table.Required("method", recipe.methods);
  table.Required("scale", recipe.scales);
}

const ExperimentKind& Recipe::Kind() const { return KindOfModel(model.name); }

const MethodConfig& Recipe::Method(const std::string& method) const {
  if (const MethodConfig* found = FindMethod(*this, method)) return *found;
  throw UsageError("recipe \"" + name + "\" has no method \"" + method + "\"" +
                   Suggestion(method, MethodNames(*this)));
}

const ScaleConfig& Recipe::Scale(const std::string& scale) const {
  if (const auto found = scales.find(scale); found != scales.end()) return found->second;
  throw UsageError("recipe \"" + name + "\" has no scale \"" + scale + "\"" +
                   Suggestion(scale, ScaleNames(*this)));
}

namespace {

// RoPE's frequencies that are scaled reach further than what the task trains on, if nothing else is
// said.
void TrainedAt(std::int64_t length, Positions& positions) {
  RopeScaling& scaling = positions.scaling;
  if (scaling.kind != "none" && !scaling.train_length) scaling.train_length = length;
}

}  // namespace

DecoderConfig Recipe::Decoder(const MethodConfig& method) const {
  DecoderConfig config = model.decoder;
  if (const SequenceTask* sequences = task.Sequences()) {
    config.vocabulary = sequences->Vocabulary();
  }
  if (method.attention && method.attention->layers.empty() && method.attention->heads.empty()) {
    config.overrides = {*method.attention};
    config.attention = config.Head(0, 0);
    config.overrides = model.decoder.overrides;
  } else if (method.attention) {
    config.overrides.push_back(*method.attention);  // goes before the model's
  }
  TrainedAt(task.train_length_max, config.attention.positions);
  for (AttentionOverride& change : config.overrides) {
    TrainedAt(task.train_length_max, change.attention.positions);
  }
  return config;
}

Recipe Recipe::TrainedBy(const MethodConfig& method) const {
  Recipe recipe = *this;
  if (method.train) recipe.train = *method.train;
  return recipe;
}

std::int64_t Recipe::Steps(const MethodConfig& method, const std::string& scale) const {
  return method.steps.value_or(Scale(scale).steps);
}

namespace {

toml::table ParseToml(const std::string& text, const std::filesystem::path& path) {
  try {
    return toml::parse(text, path.string());
  } catch (const toml::parse_error& error) {
    TomlProblems problems(path.string());
    problems.Add(static_cast<int>(error.source().begin.line), "", std::string(error.description()));
    problems.ThrowIfAny();
    throw;
  }
}

// A recipe's tables. Keys that a scale leaves out are as in the scale that it is like, but for what
// chooses learning rates.
toml::table Parse(const std::string& text, const std::filesystem::path& path) {
  toml::table root = ParseToml(text, path);
  toml::table* scales = root["scale"].as_table();
  if (scales == nullptr) return root;
  for (auto&& [name, node] : *scales) {
    toml::table* scale = node.as_table();
    const auto like = scale == nullptr ? std::nullopt : (*scale)["like"].value<std::string>();
    if (!like) continue;
    toml::table again = ParseToml(text, path);  // tables that move keep their lines, copies do not
    toml::table* model = again["scale"][*like].as_table();
    if (model == nullptr) continue;  // CheckAcross says so
    for (const char* key : kGridKeys) model->erase(key);
    if (toml::table* train = (*model)["set"]["train"].as_table()) train->erase("lr_grid");
    toml::table own = std::move(*scale);
    *scale = std::move(*model);
    Merge(*scale, std::move(own));
  }
  return root;
}

// Calls act(table, index) for every [[method]].
template <class Act>
void ForMethods(toml::table& root, const Act& act) {
  toml::array* methods = root["method"].as_array();
  for (std::size_t i = 0; methods != nullptr && i < methods->size(); ++i) {
    if (toml::table* table = methods->get(i)->as_table()) act(*table, i);
  }
}

// Tables of a method's attention (positions, length_scaling) inherit the keys that they leave out
// from the model's.
void Inherit(toml::table& root) {
  const toml::table* model = root["model"]["attention"].as_table();
  if (model == nullptr) return;
  ForMethods(root, [&](toml::table& method, std::size_t) {
    toml::table* attention = method["attention"].as_table();
    if (attention == nullptr) return;
    for (const auto& [key, value] : *model) {
      toml::node* own = attention->get(key.str());
      if (own == nullptr || !own->is_table() || !value.is_table()) continue;
      toml::table whole = *value.as_table();
      Merge(whole, std::move(*own->as_table()));
      attention->insert_or_assign(key.str(), std::move(whole));
    }
  });
}

// Methods with a `train` of their own: [train] with its keys.
void ReadOwnTraining(toml::table& root, Recipe& recipe, TomlProblems& problems) {
  ForMethods(root, [&](toml::table& given, std::size_t i) {
    const toml::table* table = given["train"].as_table();
    if (table == nullptr || i >= recipe.methods.size()) return;
    MethodConfig& method = recipe.methods[i];
    TableReader reader(*table, "method." + method.name + ".train", problems);
    Describe(reader, method.train.emplace(recipe.train));
    reader.Finish();
  });
}

Recipe ReadRecipe(toml::table root, const std::filesystem::path& path, const std::string& text,
                  const std::string& scale) {
  Inherit(root);
  Recipe recipe;
  recipe.path = path;
  recipe.text = text;
  TomlProblems problems(path.string());
  TableReader reader(root, "", problems);
  Describe(reader, recipe);
  reader.Finish();
  ReadOwnTraining(root, recipe, problems);
  problems.ThrowIfAny();  // checks across keys count with values that are fine by themselves
  CheckAcross(recipe, scale, problems);
  problems.ThrowIfAny();
  for (MethodConfig& method : recipe.methods) {
    if (method.label.empty()) method.label = method.name;
  }
  return recipe;
}

}  // namespace

Recipe LoadRecipe(const std::filesystem::path& path) {
  const std::optional<std::string> text = ReadFile(path);
  if (!text) throw UsageError(path.string() + ": cannot be read");
  Recipe recipe = ReadRecipe(Parse(*text, path), path, *text, "");
  for (const auto& [name, unused] : recipe.scales) AtScale(recipe, name);  // mistakes in `set`
  return recipe;
}

Recipe AtScale(const Recipe& recipe, const std::string& scale,
               const std::vector<std::string>& settings, const std::string& trained) {
  recipe.Scale(scale);
  toml::table root = Parse(recipe.text, recipe.path);
  if (toml::table* set = root["scale"][scale]["set"].as_table()) {
    toml::table changes = std::move(*set);  // Merge may change the table that it stands in
    Merge(root, std::move(changes));
  }
  RefuseRepeated(settings);
  for (std::string setting : settings) {
    // The steps are the scale's.
    for (const char* key : {"steps=", "train.steps="}) {
      if (setting.starts_with(key)) {
        setting = "scale." + scale + ".steps=" + setting.substr(std::string(key).size());
        ForMethods(root, [](toml::table& method, std::size_t) { method.erase("steps"); });
      }
    }
    SetKeyValue(root, setting);
    // It goes before what a method says of its own training, and the method that is trained of its
    // own attention.
    const bool of_training = setting.starts_with("train.");
    const bool of_attention = setting.starts_with("model.attention");
    const std::string own = setting.substr(setting.find('.') + 1);  // as a method names it
    ForMethods(root, [&](toml::table& method, std::size_t) {
      if (of_training && method["train"].is_table()) SetKeyValue(method, setting);
      if (of_attention && method["name"] == trained &&
          method.at_path(own.substr(0, own.find('=')))) {
        SetKeyValue(method, own);
      }
    });
  }
  return ReadRecipe(std::move(root), recipe.path, recipe.text, scale);
}

std::vector<std::filesystem::path> ListRecipes() {
  std::vector<std::filesystem::path> recipes;
  const std::filesystem::path folder = SourceDir() / "experiments";
  const char* named = std::getenv("TSALLIS_SOURCE_DIR");
  if (named != nullptr && *named != '\0' && !std::filesystem::is_directory(folder)) {
    throw UsageError(fmt::format(
        "TSALLIS_SOURCE_DIR: expected a folder that holds experiments/, got {}", named));
  }
  std::error_code
      missing;  // a program taken away from its sources has no recipes; that is no error here
  for (const auto& entry : std::filesystem::directory_iterator(folder, missing)) {
    if (entry.path().extension() == ".toml") recipes.push_back(entry.path());
  }
  std::sort(recipes.begin(), recipes.end());
  return recipes;
}

Recipe FindRecipe(const std::string& name) {
  const bool is_path = name.find('/') != std::string::npos || name.ends_with(".toml");
  if (is_path) {
    if (!std::filesystem::is_regular_file(name)) {
      throw UsageError("no recipe file \"" + name + "\"");
    }
    return LoadRecipe(name);
  }
  std::vector<std::string> names;
  for (const std::filesystem::path& path : ListRecipes()) {
    if (path.stem() == name) return LoadRecipe(path);
    names.push_back(path.stem().string());
  }
  throw UsageError("unknown recipe \"" + name + "\"" + Suggestion(name, names) +
                   " (tsallis list shows them; a path to a file works too)");
}

}  // namespace tsallis::lab
