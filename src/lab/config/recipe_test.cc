#include "lab/config/recipe.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "lab/config/suggest.h"

namespace tsallis::lab {
namespace {

constexpr const char* kGood = R"([study]
name = "s"
title = "A study"

[task]
name = "max-retrieval"
train_length = [5, 16]
eval_lengths = [16, 32]

[model]
name = "set-attention"

[train]
lr = 1e-3

[[method]]
name = "softmax"
map = "softmax"
paper = [98.6, 97]

[[method]]
name = "ase"
label = "ASEntmax"
map = "entmax"
alpha = 2
length_scaling = { kind = "scalar", gamma = 3.0 }

[scale.quick]
steps = 10_000
methods = ["ase"]
eval_lengths = [16]
)";

class RecipeTest : public testing::Test {
 protected:
  void SetUp() override {
    dir_ = std::filesystem::temp_directory_path() /
           ("tsallis-recipe-" + std::to_string(getpid()) + "-" +
            testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::create_directories(dir_);
    path_ = dir_ / "r.toml";
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }

  Recipe Load(const std::string& text) {
    std::ofstream(path_) << text;
    return LoadRecipe(path_);
  }

  // The good recipe with one piece of text replaced, and the error that it gives.
  std::string ErrorOf(const std::string& from, const std::string& to) {
    std::string text = kGood;
    const std::size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
    try {
      Load(text);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "no error";
  }

  std::filesystem::path dir_;
  std::filesystem::path path_;
};

void ExpectContains(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << text << "\ndoes not contain\n" << part;
}

TEST_F(RecipeTest, ReadsEveryKindOfValueAndKeepsDefaults) {
  const Recipe recipe = Load(kGood);
  EXPECT_EQ(recipe.path, path_);
  EXPECT_EQ(recipe.name, "s");
  EXPECT_EQ(recipe.task.train_length_min, 5);
  EXPECT_EQ(recipe.task.train_length_max, 16);
  EXPECT_EQ(recipe.task.eval_lengths, (std::vector<std::int64_t>{16, 32}));
  EXPECT_EQ(recipe.model.width, 128);
  EXPECT_EQ(recipe.train.lr, 1e-3);
  EXPECT_EQ(recipe.train.beta2, 0.999);
  ASSERT_EQ(recipe.methods.size(), 2U);
  EXPECT_EQ(recipe.methods[0].label, "softmax");  // the name unless given
  EXPECT_FALSE(recipe.methods[0].theta);
  EXPECT_EQ(recipe.methods[0].paper, (std::vector<double>{98.6, 97.0}));
  EXPECT_EQ(recipe.methods[1].label, "ASEntmax");
  EXPECT_EQ(recipe.methods[1].alpha, 2.0);  // an integer where a number is meant
  EXPECT_EQ(recipe.methods[1].length_scaling.kind, LengthScaling::Kind::kScalar);
  EXPECT_EQ(recipe.methods[1].length_scaling.gamma, 3.0);
  const ScaleConfig& scale = recipe.Scale("quick");
  EXPECT_EQ(scale.steps, 10000);
  EXPECT_EQ(scale.seeds, 1);
  EXPECT_EQ(scale.methods, (std::vector<std::string>{"ase"}));
  ASSERT_TRUE(scale.eval_lengths);
  EXPECT_EQ(*scale.eval_lengths, (std::vector<std::int64_t>{16}));
  EXPECT_FALSE(scale.eval_items);
}

TEST_F(RecipeTest, UnknownKeysNameFileLinePathAndTheNearestKey) {
  EXPECT_EQ(ErrorOf("lr = 1e-3", "lrr = 1e-3"),
            path_.string() + ":14: train.lrr: unknown key; did you mean \"lr\"?");
  ExpectContains(ErrorOf("label =", "lable ="),
                 ":23: method.ase.lable: unknown key; did you mean \"label\"?");
  ExpectContains(ErrorOf("gamma =", "gama ="), "method.ase.length_scaling.gama: unknown key");
  ExpectContains(ErrorOf("steps = 10_000", "steps = 1\nstep = 2"),
                 "scale.quick.step: unknown key; did you mean \"steps\"?");
  ExpectContains(ErrorOf("[train]", "[trian]"), "trian: unknown key; did you mean \"train\"?");
  ExpectContains(ErrorOf("[train]", "[zebra]\n[train]"), "zebra: unknown key; known: \"study\"");
}

TEST_F(RecipeTest, WrongTypesSayWhatWasExpectedAndWhatCame) {
  ExpectContains(ErrorOf("lr = 1e-3", "lr = \"fast\""),
                 ":14: train.lr: expected a finite number, got the string \"fast\"");
  ExpectContains(ErrorOf("steps = 10_000", "steps = 1e4"), "expected an integer, got 10000");
  ExpectContains(ErrorOf("eval_lengths = [16, 32]", "eval_lengths = 16"), "expected an array");
  ExpectContains(ErrorOf("eval_lengths = [16, 32]", "eval_lengths = [16, 3.5]"),
                 "expected an array, each entry an integer, got [16, 3.5]");
  ExpectContains(ErrorOf("[train]\nlr = 1e-3", ""), "no error");  // all of it has defaults
  ExpectContains(ErrorOf("lr = 1e-3", "lr = nan"), "train.lr: expected a finite number");
  ExpectContains(ErrorOf("name = \"s\"", "name = 3"), "study.name: expected a string, got 3");
  ExpectContains(
      ErrorOf("length_scaling = { kind = \"scalar\", gamma = 3.0 }", "length_scaling = \"scalar\""),
      "method.ase.length_scaling: expected a table");
  ExpectContains(ErrorOf("lr = 1e-3", "lr = = 2"), ":14: ");  // not TOML at all
}

TEST_F(RecipeTest, MissingKeysAreNamed) {
  ExpectContains(ErrorOf("steps = 10_000\n", ""), "scale.quick.steps: missing");
  ExpectContains(ErrorOf("title = \"A study\"\n", ""), "study.title: missing");
  ExpectContains(ErrorOf("map = \"entmax\"\n", ""), "method.ase.map: missing");
  ExpectContains(ErrorOf("kind = \"scalar\", ", ""), "method.ase.length_scaling.kind: missing");
}

TEST_F(RecipeTest, BadValuesAreRefused) {
  ExpectContains(ErrorOf("alpha = 2", "alpha = 0.99"), "method.ase.alpha: expected 1 <= alpha");
  ExpectContains(ErrorOf("[16, 32]", "[0, 32]"), "task.eval_lengths: expected lengths > 0");
  ExpectContains(ErrorOf("[16, 32]", "[32, 16]"), "each larger than the one before");
  ExpectContains(ErrorOf("[16, 32]", "[]"), "at least one");
  ExpectContains(ErrorOf("[5, 16]", "[16, 5]"), "[min, max] with 1 <= min <= max");
  ExpectContains(ErrorOf("\"max-retrieval\"", "\"min-retrieval\""),
                 "task.name: expected \"max-retrieval\"");
  ExpectContains(ErrorOf("kind = \"scalar\"", "kind = \"linear\""),
                 "expected \"none\" or \"ssmax\" or \"scalar\"");
  ExpectContains(ErrorOf("lr = 1e-3", "lr = 0"), "train.lr: expected a value > 0");
  ExpectContains(ErrorOf("lr = 1e-3", "beta1 = 1.0"), "0 <= beta < 1");
  ExpectContains(ErrorOf("98.6, 97", "98.6, 970"), "accuracies in %");
  ExpectContains(ErrorOf("name = \"ase\"", "name = \"../ase\""), "expected a name of letters");
}

TEST_F(RecipeTest, ChecksAcrossKeys) {
  ExpectContains(ErrorOf("name = \"ase\"", "name = \"softmax\""),
                 "a method of this name stands above already");
  ExpectContains(ErrorOf("98.6, 97", "98.6, 97, 94"), "has 3 figures");
  ExpectContains(ErrorOf("methods = [\"ase\"]", "methods = [\"asse\"]"),
                 "scale.quick.methods: unknown method \"asse\"; did you mean \"ase\"?");
  ExpectContains(ErrorOf("map = \"softmax\"", "map = \"softmax\"\nalpha = 1.5"),
                 "alpha: has no effect with map = \"softmax\"");
  ExpectContains(ErrorOf("kind = \"scalar\"", "kind = \"ssmax\""),
                 "gamma: only has an effect with kind = \"scalar\"");
}

TEST_F(RecipeTest, BorrowedWeightsMustHaveAnOwner) {
  const std::string map = "map = \"softmax\"\n";
  const auto borrow = [&](const std::string& text) { return ErrorOf(map, map + text + "\n"); };
  ExpectContains(borrow("weights_of = \"asse\""), "unknown method \"asse\"; did you mean \"ase\"?");
  ExpectContains(borrow("weights_of = \"softmax\""), "cannot borrow its own weights");
  ExpectContains(borrow("weights_of = \"ase\""),
                 "the length scaling of \"ase\" is of another kind");
  ExpectContains(borrow("[[method]]\nname = \"b\"\nmap = \"softmax\"\nweights_of = \"softmax\"\n"
                        "[[method]]\nname = \"c\"\nmap = \"softmax\"\nweights_of = \"b\"\n"),
                 "\"b\" borrows the weights of \"softmax\" itself");
}

TEST_F(RecipeTest, SeveralMistakesAreReportedAtOnceInTheOrderOfTheFile) {
  const std::string error = ErrorOf("title = \"A study\"", "titel = \"A study\"");
  ExpectContains(error, ":1: study.title: missing\n");
  EXPECT_LT(error.find("missing"), error.find("titel"));
}

TEST_F(RecipeTest, LooksUpMethodsAndScalesWithSuggestions) {
  const Recipe recipe = Load(kGood);
  EXPECT_EQ(recipe.Method("ase").map, "entmax");
  try {
    recipe.Method("sofmax");
    FAIL();
  } catch (const UsageError& error) {
    ExpectContains(error.what(), "no method \"sofmax\"; did you mean \"softmax\"?");
  }
  EXPECT_THROW(recipe.Scale("quik"), UsageError);
}

TEST_F(RecipeTest, FindsByNameOrPath) {
  Load(kGood);
  EXPECT_EQ(FindRecipe(path_.string()).name, "s");
  EXPECT_EQ(FindRecipe("max-retrieval").name, "max-retrieval");
  EXPECT_THROW(FindRecipe((dir_ / "none.toml").string()), UsageError);
  try {
    FindRecipe("max-retreival");
    FAIL();
  } catch (const UsageError& error) {
    ExpectContains(error.what(), "did you mean \"max-retrieval\"?");
  }
}

// Whatever recipe is added, it is read here.
TEST(Recipes, AllThatAreCommittedAreFine) {
  ASSERT_FALSE(ListRecipes().empty());
  for (const auto& path : ListRecipes()) EXPECT_NO_THROW(LoadRecipe(path)) << path;
}

TEST(Recipes, MaxRetrievalHasEveryMethodOfTheTables) {
  const Recipe recipe = FindRecipe("max-retrieval");
  EXPECT_EQ(recipe.methods.size(), 16U);
  EXPECT_EQ(recipe.Method("softmax").paper.size(), 11U);
  EXPECT_EQ(recipe.Method("asentmax-3").paper.back(), 62.7);
  EXPECT_EQ(recipe.Method("adaptive-temperature").weights_of, "softmax");
  EXPECT_EQ(recipe.Scale("paper").steps, 100000);
  EXPECT_EQ(recipe.Scale("paper").seeds, 3);
}

TEST(Suggest, NearestWord) {
  EXPECT_EQ(EditDistance("", "abc"), 3U);
  EXPECT_EQ(EditDistance("kitten", "sitting"), 3U);
  EXPECT_EQ(EditDistance("ab", "ba"), 1U);  // a swap
  EXPECT_EQ(Nearest("reprodcue", {"report", "reproduce"}), "reproduce");
  EXPECT_EQ(Nearest("repro", {"list", "reproduce"}), "reproduce");  // cut short
  EXPECT_EQ(Nearest("zebra", {"list", "info"}), "");
  EXPECT_EQ(Suggestion("x", {}), "");
}

}  // namespace
}  // namespace tsallis::lab
