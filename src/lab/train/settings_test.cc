// Every key of every recipe under bad values: a mistake that names the key, or a run.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "lab/base/errors.h"
#include "lab/base/toml_reader.h"
#include "lab/config/recipe.h"
#include "lab/nn/decoder_config.h"
#include "lab/testing/lab_test_support.h"
#include "lab/train/experiment.h"
#include "lab/train/memory.h"

namespace tsallis::lab {
namespace {

constexpr const char* kScale = "quick";

// Sets the value of a dotted key; of [[method]] that of the first, whose name is no part of `key`.
void Set(toml::table& root, const std::string& key, const toml::node& value) {
  toml::table* table = &root;
  std::string rest = key;
  for (std::size_t dot = rest.find('.'); dot != std::string::npos; dot = rest.find('.')) {
    const std::string name = rest.substr(0, dot);
    rest = rest.substr(dot + 1);
    const bool listed = name == "method" || name == "override";
    if (listed && !table->contains(name)) table->insert(name, toml::array{toml::table{}});
    if (!table->contains(name)) table->insert(name, toml::table{});
    toml::node* node = table->get(name);
    table = listed ? node->as_array()->get(0)->as_table() : node->as_table();
    ASSERT_NE(table, nullptr) << key;
  }
  table->insert_or_assign(rest, value);
}

// The dotted keys of a recipe, but for the tables that it reads elsewhere.
std::set<std::string> Keys(const toml::table& root) {
  TomlProblems problems("recipe");
  TableReader reader(root, "", problems);
  Recipe recipe;
  Describe(reader, recipe);
  const std::string first = "method." + recipe.methods.front().name + ".";
  const std::string scale = std::string("scale.") + kScale + ".";
  std::set<std::string> keys;
  for (const std::string& key : problems.Asked()) {
    if (key.starts_with(first)) {
      keys.insert("method." + key.substr(first.size()));
    } else if (!key.starts_with("method.") &&
               (!key.starts_with("scale.") || key.starts_with(scale))) {
      keys.insert(key);
    }
  }
  if (recipe.task.Sequences() != nullptr) {
    // An override has attention's keys; they are tried once, as a method's.
    const std::string change = "override.";
    for (const DecoderKey& key : DecoderKeys()) {
      const std::string name =
          key.name.starts_with(change) ? key.name.substr(change.size()) : std::string();
      const bool of_attention = !name.empty() && name != "layers" && name != "heads";
      keys.insert(of_attention ? "method.attention." + name : "model." + key.name);
    }
  }
  return keys;
}

toml::table TableOf(const Recipe& recipe) { return toml::parse(recipe.text); }

Recipe WithTable(Recipe recipe, const toml::table& table) {
  std::ostringstream text;
  text << table;
  recipe.text = text.str();
  return AtScale(recipe, kScale);
}

// A model and a batch that train in a moment.
void MakeSmall(toml::table& root, bool of_sequences) {
  const auto set = [&](const char* key, std::int64_t value) {
    Set(root, key, toml::value<std::int64_t>(value));
  };
  if (of_sequences) {
    for (const char* key : {"model.heads", "model.layers"}) set(key, 2);
    for (const char* key : {"model.width", "model.feed_forward"}) set(key, 32);
  } else {
    set("model.width", 16);
  }
  set("train.batch", 1);
  // Samples that nothing validates are refused.
  if (root.at_path("train.validate_every")) set("train.validate_samples", 1);
}

// Takes one step of the first method, and asks for the samples of an evaluation.
void RunOnce(const Recipe& recipe) {
  for (const std::int64_t n : recipe.task.eval_lengths) {
    EXPECT_GE(recipe.Kind().TestSamples(recipe.task, n), 1);
  }
  const MethodConfig& method = recipe.methods.front();
  const Recipe trained = recipe.TrainedBy(method);
  const TemporaryFolder folder;
  const TrainingJob job{&trained, &method, 1, 1, folder.Path() / "run"};
  EXPECT_GT(trained.Steps(method, kScale), 0);
  CheckMemory(job);
  try {
    Train(*MakeExperiment(job), job, Silent, never);
  } catch (const UsageError&) {
    throw;
  } catch (const std::runtime_error& error) {
    ExpectContains(error.what(), "training diverged");
  }
}

bool NeedsNoCorpus(const SequenceTask& task) {
  try {
    return task.CorpusChecksum().empty();
  } catch (const UsageError&) {
    return false;
  }
}

std::string LastPart(const std::string& key) { return key.substr(key.rfind('.') + 1); }

TEST(SettingsTest, BadValuesAreRefusedByTheirKeysNameOrRun) {
  toml::array values;
  values.push_back(-1);
  values.push_back(0);
  values.push_back(std::int64_t{1} << 31);
  values.push_back(std::numeric_limits<std::int64_t>::max());
  values.push_back(std::numeric_limits<double>::quiet_NaN());
  values.push_back("a string");
  // A key is tried once for every kind of model, and those of a task once for every task.
  std::set<std::string> tried;
  for (const std::filesystem::path& path : ListRecipes()) {
    const Recipe recipe = LoadRecipe(path);
    const bool of_sequences = recipe.task.Sequences() != nullptr;
    const bool drawn = !of_sequences || NeedsNoCorpus(*recipe.task.Sequences());
    toml::table whole = TableOf(recipe);
    MakeSmall(whole, of_sequences);
    for (const std::string& key : Keys(whole)) {
      const bool of_task = key.starts_with("task.");
      const std::string kind = of_task ? recipe.task.name : recipe.model.name;
      if (!tried.insert(kind + " " + key).second) continue;
      for (const toml::node& value : values) {
        const std::string which = path.stem().string() + ": " + key + " = " + DescribeNode(value);
        SCOPED_TRACE(which);
        toml::table changed = whole;
        Set(changed, key, value);
        try {
          const Recipe read = WithTable(recipe, changed);
          if (drawn) RunOnce(read);
        } catch (const UsageError& error) {
          // Some models take no override at all.
          const bool whole_table =
              std::string(error.what()).find("override: ") != std::string::npos;
          ExpectContains(error.what(), whole_table ? "override" : LastPart(key));
        } catch (const std::exception& error) {
          ADD_FAILURE() << which << ": " << error.what();
        }
      }
    }
  }
}

}  // namespace
}  // namespace tsallis::lab
