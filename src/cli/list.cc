// tsallis list: what there is to run and to name in a recipe.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/terminal.h"
#include "lab/config/experiment_kind.h"
#include "lab/config/recipe.h"
#include "lab/nn/decoder_config.h"
#include "lab/nn/maps.h"
#include "lab/nn/patterns.h"
#include "lab/studies/analyses/catalogue.h"

namespace tsallis::cli {

namespace {

struct Section {
  const char* key;    // in JSON
  const char* title;  // for people
  const std::vector<lab::CatalogueEntry>& (*entries)();
};

constexpr Section kSections[] = {
    {"studies", "Studies without training (tsallis study NAME)", lab::AnalysisEntries},
    {"tasks", "Tasks", lab::Tasks},
    {"models", "Models", lab::Models},
    {"maps", "Maps from scores to probabilities", lab::Maps},
    {"length_scalings", "Length scalings of the set model", lab::SetLengthScalings},
    {"output_norms", "Norms of the set model's attention output", lab::SetOutputNorms},
    {"query_scalings", "Length scalings of the decoder", lab::QueryScalings},
    {"positions", "Positions of the decoder", lab::PositionKinds},
    {"patterns", "Patterns of the tokens that the decoder's queries see", lab::Patterns}};

class ListCommand : public Command {
 public:
  std::string Name() const override { return "list"; }
  std::string Summary() const override { return "Show recipes, studies, tasks, models and maps"; }
  std::string Example() const override { return "  tsallis list --json"; }

  void Declare(CLI::App& app) override {
    app.add_flag("--json", json_, "Print one JSON document");
    app.add_flag("--quiet", quiet_, "Print the names of the recipes only");
  }

  int Run(const Invocation&) override {
    std::vector<lab::Recipe> recipes;
    std::vector<std::string> names;  // by which `reproduce` knows them: the stem of the file
    for (const std::filesystem::path& path : lab::ListRecipes()) {
      try {
        recipes.push_back(lab::LoadRecipe(path));
        names.push_back(path.stem().string());
      } catch (const lab::UsageError& error) {  // one that is broken must not hide the others
        fmt::print(stderr, "{}\n", error.what());
      }
    }
    if (json_) {
      PrintLists(recipes, names);
    } else if (quiet_) {
      for (const std::string& name : names) fmt::print("{}\n", name);
    } else {
      PrintText(recipes, names);
    }
    return 0;
  }

 private:
  static void PrintLists(const std::vector<lab::Recipe>& recipes,
                         const std::vector<std::string>& names) {
    nlohmann::ordered_json document;
    document["recipes"] = nlohmann::ordered_json::array();
    for (std::size_t i = 0; i < recipes.size(); ++i) {
      const lab::Recipe& recipe = recipes[i];
      nlohmann::ordered_json entry = {{"name", names[i]},
                                      {"study", recipe.name},
                                      {"title", recipe.title},
                                      {"source", recipe.source},
                                      {"path", recipe.path.string()}};
      entry["scales"] = nlohmann::ordered_json::object();
      for (const auto& [name, scale] : recipe.scales) {
        entry["scales"][name] = {{"steps", scale.steps}, {"seeds", scale.seeds}};
      }
      entry["methods"] = nlohmann::ordered_json::array();
      for (const lab::MethodConfig& method : recipe.methods) {
        entry["methods"].push_back({{"name", method.name}, {"label", method.label}});
      }
      document["recipes"].push_back(entry);
    }
    for (const Section& section : kSections) {
      document[section.key] = nlohmann::ordered_json::array();
      for (const lab::CatalogueEntry& entry : section.entries()) {
        document[section.key].push_back({{"name", entry.name}, {"description", entry.description}});
      }
    }
    PrintJson(document);
  }

  static void PrintText(const std::vector<lab::Recipe>& recipes,
                        const std::vector<std::string>& names) {
    fmt::print("Recipes (tsallis reproduce NAME)\n");
    for (std::size_t i = 0; i < recipes.size(); ++i) {
      fmt::print("  {:<22}{}\n", names[i], recipes[i].title);
      for (const auto& [name, scale] : recipes[i].scales) {
        const std::size_t methods =
            scale.methods.empty() ? recipes[i].methods.size() : scale.methods.size();
        fmt::print("  {:<22}  --scale {}: {} methods, {} steps, {} seed{}\n", "", name, methods,
                   scale.steps, scale.seeds, scale.seeds == 1 ? "" : "s");
      }
    }
    for (const Section& section : kSections) {
      if (section.entries().empty()) continue;
      fmt::print("\n{}\n", section.title);
      for (const lab::CatalogueEntry& entry : section.entries()) {
        fmt::print("  {:<22}{}\n", entry.name, entry.description);
      }
    }
  }

  bool json_ = false;
  bool quiet_ = false;
};

}  // namespace

std::unique_ptr<Command> MakeList() { return std::make_unique<ListCommand>(); }

}  // namespace tsallis::cli
