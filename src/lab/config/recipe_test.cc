#include "lab/config/recipe.h"

#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "lab/base/suggest.h"
#include "lab/testing/lab_test_support.h"

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
  Recipe Load(const std::string& text) {
    std::ofstream(path_) << text;
    return LoadRecipe(path_);
  }

  // The good recipe with one piece of text replaced, and the error that it gives.
  std::string ErrorOf(const std::string& from, const std::string& to,
                      const std::string& text = kGood) {
    return UsageErrorOf([&] { Load(Replaced(text, from, to)); });
  }

  const TemporaryFolder folder_;
  const std::filesystem::path path_ = folder_.Path() / "r.toml";
};

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
  ExpectContains(ErrorOf("alpha = 2", "alpha = 2\noutput_norm = \"batch-norm\""),
                 "method.ase.output_norm: expected \"none\" or \"layer-norm\", got the string "
                 "\"batch-norm\"");
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
  ExpectContains(ErrorOf("title = \"A study\"\n", "title = \"A study\"\nbaseline = \"sofmax\"\n"),
                 "study.baseline: unknown method \"sofmax\"; did you mean \"softmax\"?");
  ExpectContains(ErrorOf("title = \"A study\"\n", "title = \"A study\"\nheadline = [\"sofmax\"]\n"),
                 "study.headline: unknown method \"sofmax\"; did you mean \"softmax\"?");
  ExpectContains(ErrorOf("title = \"A study\"\n", "title = \"A study\"\nfinding_length = 17\n"),
                 "study.finding_length: expected one of task.eval_lengths, got 17");
  ExpectContains(ErrorOf("title = \"A study\"\n", "title = \"A study\"\nfigure = \"flaw\"\n"),
                 "study.figure: expected \"accuracy\" or \"flow\", got \"flaw\"");
  ExpectContains(ErrorOf("title = \"A study\"\n", "title = \"A study\"\nfigure = \"flow\"\n"),
                 "study.figure: \"flow\" is of a model of sequences");
  ExpectContains(ErrorOf("map = \"softmax\"", "map = \"softmax\"\nalpha = 1.5"),
                 "alpha: has no effect with map = \"softmax\"");
  ExpectContains(ErrorOf("map = \"softmax\"", "map = \"softmax\"\ncoefficients = [1.0]"),
                 "coefficients: has no effect with map = \"softmax\"");
  ExpectContains(ErrorOf("map = \"softmax\"", "map = \"adaptive-temperature\"\ncoefficients = []"),
                 "coefficients: expected 1 to 17 finite numbers");
  ExpectContains(ErrorOf("kind = \"scalar\"", "kind = \"ssmax\""),
                 "gamma: only has an effect with kind = \"scalar\"");
}

TEST_F(RecipeTest, BaselinesAreMapsOfSetsThatNeedNoOrder) {
  const std::string map = "map = \"softmax\"";
  ExpectContains(ErrorOf(map, "map = \"stick-breaking\""),
                 "method.softmax.map: \"stick-breaking\" needs an order of the keys");
  ExpectContains(ErrorOf(map, "map = \"top-k-softmax\""), "method.softmax.top_k: missing");
  ExpectContains(ErrorOf(map, "map = \"top-k-softmax\"\ntop_k = 0"), "top_k: expected 1 <= top_k");
  ExpectContains(ErrorOf(map, map + "\ntop_k = 3"),
                 "method.softmax.top_k: has no effect with map = \"softmax\"");
  ExpectContains(ErrorOf(map, map + "\nsigmoid_bias = 1.0"),
                 "method.softmax.sigmoid_bias: has no effect with map = \"softmax\"");
  ExpectContains(ErrorOf(map, map + "\nsink = \"zero\""), "method.softmax.sink: unknown key");
  const RowMapParams top =
      MapOf(Load(Replaced(kGood, map, "map = \"top-k-softmax\"\ntop_k = 3\ntop_k_fraction = 0.5"))
                .Method("softmax"));
  EXPECT_EQ(top.map, RowMap::kTopKSoftmax);
  EXPECT_EQ(top.top_k.k, 3);
  EXPECT_EQ(top.top_k.fraction, 0.5);
  const RowMapParams sigmoid =
      MapOf(Load(Replaced(kGood, map, "map = \"sigmoid\"\nsigmoid_bias = -1")).Method("softmax"));
  EXPECT_EQ(sigmoid.map, RowMap::kSigmoid);
  EXPECT_EQ(sigmoid.sigmoid_bias, -1.0);
}

// The scales that reports are committed of have the methods that they had.
TEST(Recipes, BaselinesHaveAScaleOfTheirOwn) {
  for (const char* name : {"copy", "sort", "max-retrieval"}) {
    const Recipe recipe = FindRecipe(name);
    std::size_t baselines = 0;
    for (const auto& [scale, config] : recipe.scales) {
      ASSERT_FALSE(config.methods.empty()) << name << " " << scale;
      for (const std::string& method : config.methods) {
        const MethodConfig& one = recipe.Method(method);
        const AttentionConfig head = recipe.Decoder(one).attention;
        const std::string& map = recipe.task.Sequences() ? head.map : one.map;
        const bool baseline =
            (map != "softmax" && map != "entmax" && map != "adaptive-temperature") ||
            head.sink != "none";
        EXPECT_TRUE(!baseline || scale == "baselines") << name << " " << scale << " " << method;
        baselines += baseline ? 1 : 0;
      }
    }
    EXPECT_EQ(baselines, recipe.task.Sequences() ? 8U : 4U) << name;
  }
  const Recipe copy = AtScale(FindRecipe("copy"), "baselines");
  EXPECT_EQ(copy.task.train_length_max, 32);  // as in the small scale
  EXPECT_EQ(copy.train.lr_grid, (std::vector<double>{1e-3, 2e-3}));
  const AttentionConfig top = copy.Decoder(copy.Method("top-k-nape")).attention;
  EXPECT_EQ(top.map, "top-k-softmax");
  EXPECT_EQ(top.top_k, 8);
  EXPECT_EQ(top.positions.kind, "nape");
  EXPECT_EQ(copy.Decoder(copy.Method("stick-breaking")).attention.positions.kind, "nope");
  EXPECT_EQ(copy.Decoder(copy.Method("entmax-sink-nape")).attention.sink, "learned");
}

TEST_F(RecipeTest, BorrowedWeightsMustHaveAnOwner) {
  const std::string map = "map = \"softmax\"\n";
  const auto borrow = [&](const std::string& text) { return ErrorOf(map, map + text + "\n"); };
  ExpectContains(borrow("weights_of = \"asse\""), "unknown method \"asse\"; did you mean \"ase\"?");
  ExpectContains(borrow("weights_of = \"softmax\""), "cannot borrow its own weights");
  ExpectContains(borrow("weights_of = \"ase\""),
                 "the length scaling of \"ase\" is of another kind");
  const std::string normed =
      Replaced(kGood, "alpha = 2", "alpha = 2\noutput_norm = \"layer-norm\"");
  const std::string kind = "length_scaling = { kind = \"scalar\", gamma = 1.0 }\n";
  const std::string owner = "weights_of = \"ase\"\n" + kind;
  ExpectContains(ErrorOf(map, map + owner, normed),
                 "method.softmax.weights_of: the output_norm of \"ase\" is \"layer-norm\"");
  ExpectContains(ErrorOf(map, map + owner + "output_norm = \"layer-norm\"\n", normed), "no error");
  ExpectContains(borrow("[[method]]\nname = \"b\"\nmap = \"softmax\"\nweights_of = \"softmax\"\n"
                        "[[method]]\nname = \"c\"\nmap = \"softmax\"\nweights_of = \"b\"\n"),
                 "\"b\" borrows the weights of \"softmax\" itself");
}

TEST(Recipes, DecodersBorrowWeightsOfTheSameTensors) {
  const Recipe recipe = FindRecipe("language");
  const auto alike = [&](const char* a, const char* b) {
    return LearnAlike(recipe.Decoder(recipe.Method(a)), recipe.Decoder(recipe.Method(b)));
  };
  EXPECT_TRUE(alike("rope", "rope-ntk"));
  EXPECT_TRUE(alike("rope", "entmax-nape"));  // a map and fixed slopes have no weights
  EXPECT_FALSE(alike("rope", "logn-rope"));
  EXPECT_FALSE(alike("logn-rope", "asentmax-nape"));
  const TemporaryFolder folder;
  std::string text = recipe.text;
  text = Replaced(text, "weights_of = \"logn-rope\"", "weights_of = \"rope\"");
  std::ofstream(folder.Path() / "language.toml") << text;
  ExpectContains(UsageErrorOf([&] { LoadRecipe(folder.Path() / "language.toml"); }),
                 "the heads of \"rope\" learn other tensors: expected the same length scaling");
}

TEST_F(RecipeTest, AMethodMayBeTrainedInItsOwnWay) {
  const std::string map = "map = \"softmax\"\n";
  const auto with = [&](const std::string& train) {
    std::string text = kGood;
    return text.replace(text.find(map), map.size(), map + "train = { " + train + " }\n");
  };
  const std::string own = "optimizer = \"adamw\", weight_decay = 0.1, l2 = 0.0";
  const Recipe recipe = Load(with(own));
  const TrainConfig train = recipe.TrainedBy(recipe.Method("softmax")).train;
  EXPECT_EQ(train.optimizer, "adamw");
  EXPECT_EQ(train.weight_decay, 0.1);
  EXPECT_EQ(train.lr, 1e-3);  // of [train]
  EXPECT_EQ(recipe.TrainedBy(recipe.Method("ase")).train.optimizer, "adam");
  // A setting of the command line changes all methods.
  const Recipe set =
      AtScale(recipe, "quick",
              {"train.weight_decay=0.5", "train.optimizer=adamw", "train.l2=0", "train.batch=7"});
  for (const char* method : {"softmax", "ase"}) {
    EXPECT_EQ(set.TrainedBy(set.Method(method)).train.weight_decay, 0.5) << method;
    EXPECT_EQ(set.TrainedBy(set.Method(method)).train.batch, 7) << method;
  }
  const Recipe shorter = Load(with(own + " }\nsteps = 500 #"));
  EXPECT_EQ(shorter.Steps(shorter.Method("softmax"), "quick"), 500);
  EXPECT_EQ(shorter.Steps(shorter.Method("ase"), "quick"), 10000);
  const Recipe told = AtScale(shorter, "quick", {"steps=70"});
  EXPECT_EQ(told.Steps(told.Method("softmax"), "quick"), 70);
  ExpectContains(RecipeTest::ErrorOf(map, map + "steps = 500\n"),
                 "method.softmax.steps: only has an effect beside");
  const auto error = [&](const std::string& keys) {
    return RecipeTest::ErrorOf(map, map + "train = { " + keys + " }\n");
  };
  ExpectContains(error("lrr = 1"), ".toml:19: method.softmax.train.lrr: unknown key");
  ExpectContains(error("weight_decay = 0.1"), "method.softmax.train.weight_decay: only has an");
  ExpectContains(error("optimizer = \"adamw\", l2 = 0.1"), "method.softmax.train.l2: only has an");
  ExpectContains(error("lr_grid = [1.0]"), "method.softmax.train.lr_grid: belongs into [train]");
}

TEST_F(RecipeTest, SeveralMistakesAreReportedAtOnceInTheOrderOfTheFile) {
  const std::string error = ErrorOf("title = \"A study\"", "titel = \"A study\"");
  ExpectContains(error, ":1: study.title: missing\n");
  EXPECT_LT(error.find("missing"), error.find("titel"));
}

TEST_F(RecipeTest, LooksUpMethodsAndScalesWithSuggestions) {
  const Recipe recipe = Load(kGood);
  EXPECT_EQ(recipe.Method("ase").map, "entmax");
  ExpectContains(UsageErrorOf([&] { recipe.Method("sofmax"); }),
                 "no method \"sofmax\"; did you mean \"softmax\"?");
  EXPECT_THROW(recipe.Scale("quik"), UsageError);
}

TEST_F(RecipeTest, FindsByNameOrPath) {
  Load(kGood);
  EXPECT_EQ(FindRecipe(path_.string()).name, "s");
  EXPECT_EQ(FindRecipe("max-retrieval").name, "max-retrieval");
  EXPECT_THROW(FindRecipe((folder_.Path() / "none.toml").string()), UsageError);
  ExpectContains(UsageErrorOf([] { FindRecipe("max-retreival"); }),
                 "did you mean \"max-retrieval\"?");
}

constexpr const char* kSequences = R"([study]
name = "s"
title = "A study"

[task]
name = "flip-flop"
write_probability = 0.2
train_length = [8, 16]
eval_lengths = [16, 32]

[model]
name = "decoder"
layers = 3
attention = { positions = { kind = "nape" } }

[train]
optimizer = "adamw"
weight_decay = 0.1
validate_every = 10
best_length = 32

[[method]]
name = "softmax"

[[method]]
name = "entmax"
attention = { map = "entmax", length_scaling = { kind = "adaptive" } }

[scale.paper]
steps = 100

[scale.quick]
steps = 10
compare = false
set = { task = { train_length = [4, 8] }, model = { layers = 1 } }
)";

class SequenceRecipeTest : public RecipeTest {
 protected:
  std::string ErrorOf(const std::string& from, const std::string& to) {
    return RecipeTest::ErrorOf(from, to, kSequences);
  }
};

TEST_F(SequenceRecipeTest, FewerSamplesAreReadAtLengthsWithTooManyTokens) {
  const TaskConfig all = Load(kSequences).task;
  EXPECT_EQ(all.Samples(1000, 1 << 20), 1000);
  const TaskConfig some = Load(Replaced(kSequences, "[task]", "[task]\neval_tokens = 64_000")).task;
  EXPECT_EQ(some.Samples(1000, 64), 1000);
  EXPECT_EQ(some.Samples(1000, 128), 500);
  EXPECT_EQ(some.Samples(300, 128), 300);
  EXPECT_EQ(some.Samples(1000, 1 << 20), 1);
  ExpectContains(ErrorOf("[task]", "[task]\neval_tokens = 0"), "task.eval_tokens");
  ExpectContains(ErrorOf("[task]", "[task]\neval_samples_lost = 0"), "task.eval_samples_lost");
  EXPECT_EQ(ErrorOf("[task]", "[task]\neval_samples_lost = 4"), "no error");
  ExpectContains(ErrorOf("name = \"flip-flop\"\nwrite_probability = 0.2",
                         "name = \"local-count\"\neval_samples_lost = 4"),
                 "\"local-count\" has no answers that are right or wrong as a whole");
}

TEST_F(SequenceRecipeTest, NamesTheDeviceThatItTrainsOn) {
  EXPECT_EQ(Load(kSequences).train.device, "cpu");
  const std::string given = "optimizer = \"adamw\"\ndevice = ";
  EXPECT_EQ(Load(Replaced(kSequences, "optimizer = \"adamw\"", given + "\"cuda:1\"")).train.device,
            "cuda:1");
  ExpectContains(ErrorOf("optimizer = \"adamw\"", given + "\"gpu\""),
                 "train.device: expected \"cpu\"");
  ExpectContains(RecipeTest::ErrorOf("[train]", "[train]\ndevice = \"cuda\"", kGood),
                 "train.device: expected \"cpu\" with model");
}

TEST_F(SequenceRecipeTest, SaysWhatSeveralProcessesShare) {
  EXPECT_EQ(Load(kSequences).train.split, "batch");
  const std::string split = "optimizer = \"adamw\"\nsplit = \"sequence\"";
  const std::string sequences = Replaced(kSequences, "optimizer = \"adamw\"", split);
  EXPECT_EQ(Load(sequences).train.split, "sequence");
  ExpectContains(ErrorOf("optimizer = \"adamw\"", "optimizer = \"adamw\"\nsplit = \"heads\""),
                 "train.split: expected \"batch\"");
  ExpectContains(RecipeTest::ErrorOf("[train]", "[train]\nsplit = \"sequence\"", kGood),
                 "train.split: expected \"batch\" with model \"set-attention\", got \"sequence\"");
}

TEST_F(SequenceRecipeTest, DescribesTaskModelAndMethods) {
  const Recipe recipe = Load(kSequences);
  ASSERT_TRUE(recipe.task.Sequences());
  EXPECT_EQ(recipe.task.Sequences()->Vocabulary(), 10);
  EXPECT_EQ(recipe.task.settings,
            (std::vector<std::pair<std::string, std::string>>{{"write_probability", "0.2"}}));
  const DecoderConfig softmax = recipe.Decoder(recipe.Method("softmax"));
  EXPECT_EQ(softmax.vocabulary, 10);
  EXPECT_EQ(softmax.attention.map, "softmax");
  const DecoderConfig entmax = recipe.Decoder(recipe.Method("entmax"));
  EXPECT_EQ(entmax.attention.map, "entmax");
  EXPECT_EQ(entmax.attention.length_scaling.kind, "adaptive");
  EXPECT_EQ(entmax.attention.positions.kind, "nape");  // of [model]
  EXPECT_TRUE(entmax.overrides.empty());
  // For some heads it is an override.
  std::string some = kSequences;
  const std::string map = "attention = { map = \"entmax\"";
  some.replace(some.find(map), map.size(), "attention = { heads = [0], map = \"entmax\"");
  const Recipe of_some = Load(some);
  const DecoderConfig one = of_some.Decoder(of_some.methods[1]);
  EXPECT_EQ(one.Head(2, 0).map, "entmax");
  EXPECT_EQ(one.Head(1, 1).map, "softmax");
}

TEST_F(SequenceRecipeTest, AScaleAndSettingsChangeOtherKeys) {
  const Recipe recipe = Load(kSequences);
  const Recipe quick = AtScale(recipe, "quick");
  EXPECT_EQ(quick.task.train_length_max, 8);
  EXPECT_EQ(quick.model.decoder.layers, 1);
  EXPECT_EQ(quick.model.decoder.attention.positions.kind, "nape");
  EXPECT_FALSE(quick.Scale("quick").compare);
  const Recipe paper = AtScale(recipe, "paper", {"train.lr=0.5", "model.attention.map=entmax"});
  EXPECT_EQ(paper.task.train_length_max, 16);
  EXPECT_EQ(paper.train.lr, 0.5);
  EXPECT_EQ(paper.model.decoder.attention.map, "entmax");
  // A method's own keys of length scaling stay, and the keys that it leaves out change.
  const Recipe set = AtScale(
      recipe, "paper",
      {"model.attention.length_scaling.kind=ssmax", "model.attention.length_scaling.init=0.5"});
  const DecoderConfig entmax = set.Decoder(set.Method("entmax"));
  EXPECT_EQ(entmax.attention.length_scaling.kind, "adaptive");
  EXPECT_EQ(entmax.attention.length_scaling.init, 0.5);
  EXPECT_EQ(set.Decoder(set.Method("softmax")).attention.length_scaling.kind, "ssmax");
  // Unless it is the one that is trained.
  const Recipe one =
      AtScale(recipe, "paper",
              {"model.attention.length_scaling.kind=scalar", "model.attention.positions.kind=rope"},
              "entmax");
  EXPECT_EQ(one.Decoder(one.Method("entmax")).attention.length_scaling.kind, "scalar");
  EXPECT_EQ(one.Decoder(one.Method("entmax")).attention.positions.kind, "rope");
  EXPECT_EQ(one.Decoder(one.Method("entmax")).attention.map, "entmax");
  const Recipe whole = AtScale(recipe, "paper", {"model.attention={map=\"softpick\"}"}, "entmax");
  EXPECT_EQ(whole.Decoder(whole.Method("entmax")).attention.map, "softpick");
  EXPECT_THROW(AtScale(recipe, "paper", {"train.lr"}), UsageError);
  ExpectContains(ErrorOf("layers = 1", "layer = 1"), ".toml:35: model.layer: unknown key");
  ExpectContains(ErrorOf("steps = 10\n", "steps = 10\neval_lengths = [3, 4]\n"),
                 "scale.quick.eval_lengths: length: expected 4 to");
  ExpectContains(ErrorOf("\"adaptive\" }", "\"adaptive\", gama = 1.0 }"), ".toml:27: ");
  // A setting of the command line stands in no line.
  ExpectContains(UsageErrorOf([&] { AtScale(recipe, "paper", {"train.lrr=1"}); }),
                 ".toml: train.lrr: unknown key; did you mean \"lr\"?");
  // A set that takes away the table that it stands in.
  ExpectContains(ErrorOf("set = { task", "set = { scale = 1, task"), ".toml:35: scale: expected");
}

TEST_F(SequenceRecipeTest, AScaleMayBeLikeAnotherOne) {
  const std::string like =
      "\n[scale.tiny]\nlike = \"quick\"\nsteps = 5\nset = { model = { width = 32 } }\n";
  const Recipe recipe = Load(kSequences + like);
  const ScaleConfig& scale = recipe.Scale("tiny");
  EXPECT_EQ(scale.steps, 5);
  EXPECT_FALSE(scale.compare);  // of quick
  const Recipe tiny = AtScale(recipe, "tiny");
  EXPECT_EQ(tiny.task.train_length_max, 8);
  EXPECT_EQ(tiny.model.decoder.layers, 1);
  EXPECT_EQ(tiny.model.decoder.width, 32);
  EXPECT_EQ(AtScale(recipe, "quick").model.decoder.width, recipe.model.decoder.width);
  // The keys that choose learning rates are not inherited.
  const std::string grid =
      "steps = 10\ngrid_seeds = 1\ngrid_seed = 11\ngrid_widen = 1\n"
      "set.train = { lr_grid = [0.1, 0.2], batch = 3 }\n";
  std::string text = kSequences;
  const std::string quick = text.substr(text.find("steps = 10\n"));
  text.replace(text.find(quick), quick.size(), grid + "\n[scale.tiny]\nlike = \"quick\"\n");
  const Recipe chosen = Load(text);
  EXPECT_EQ(AtScale(chosen, "quick").train.lr_grid.size(), 2U);
  EXPECT_TRUE(AtScale(chosen, "tiny").train.lr_grid.empty());
  EXPECT_FALSE(chosen.Scale("tiny").grid_seeds);
  EXPECT_FALSE(chosen.Scale("tiny").grid_seed);
  EXPECT_EQ(chosen.Scale("quick").grid_widen, 1);
  EXPECT_EQ(chosen.Scale("tiny").grid_widen, 0);
  EXPECT_EQ(AtScale(chosen, "tiny").train.batch, 3);
  const auto error = [&](const std::string& name) {
    return ErrorOf("[scale.quick]\n", "[scale.quick]\nlike = \"" + name + "\"\n");
  };
  ExpectContains(error("papr"), ".toml:33: scale.quick.like: unknown scale \"papr\"");
  ExpectContains(error("quick"), "scale.quick.like: \"quick\" is itself like \"quick\"");
}

TEST_F(SequenceRecipeTest, RopeIsScaledForTheLengthsOfTraining) {
  std::string text = kSequences;
  text +=
      "[[method]]\nname = \"rope\"\n"
      "attention = { positions = { kind = \"rope\", scaling.kind = \"llama3\" } }\n";
  const Recipe recipe = Load(text);
  const auto trained_at = [&](const Recipe& at) {
    return at.Decoder(at.Method("rope")).attention.positions.scaling.train_length;
  };
  EXPECT_EQ(trained_at(AtScale(recipe, "paper")), 16);
  EXPECT_EQ(trained_at(AtScale(recipe, "quick")), 8);
  const std::string key = "model.attention.positions.scaling.train_length=";
  EXPECT_EQ(trained_at(AtScale(recipe, "paper", {key + "34"})), 34);
  // Nothing is scaled under NAPE.
  const DecoderConfig softmax = recipe.Decoder(recipe.Method("softmax"));
  EXPECT_FALSE(softmax.attention.positions.scaling.train_length);
}

TEST_F(SequenceRecipeTest, WhatDoesNotFitIsRefused) {
  ExpectContains(ErrorOf("write_probability = 0.2", "max_run = 3"), "task.max_run: unknown key");
  ExpectContains(ErrorOf("\"decoder\"\nlayers = 3\nattention = { positions = { kind = \"nape\" } }",
                         "\"set-attention\""),
                 "model.name: \"set-attention\" does not fit the task \"flip-flop\"");
  ExpectContains(ErrorOf("[8, 16]", "[2, 16]"), "task.train_length: length: expected 4 to");
  ExpectContains(ErrorOf("name = \"softmax\"", "name = \"softmax\"\nmap = \"softmax\""),
                 "method.softmax.map: methods of a model of sequences say this in attention");
  ExpectContains(ErrorOf("name = \"softmax\"", "name = \"softmax\"\noutput_norm = \"none\""),
                 "method.softmax.output_norm: methods of a model of sequences say this in");
  ExpectContains(ErrorOf("kind = \"adaptive\"", "kind = \"adaptiv\""),
                 "method.entmax.attention.length_scaling.kind: expected");
  ExpectContains(ErrorOf("map = \"entmax\"", "learn_alpha = \"free\""), "learn_alpha: only has");
  ExpectContains(ErrorOf("best_length = 32", ""), "train.validate_every: needs a best_length");
  ExpectContains(ErrorOf("steps = 10\n", "steps = 10\ngrid_seeds = 1\n"),
                 "scale.quick.grid_seeds: has no effect without train.lr_grid");
  ExpectContains(ErrorOf("steps = 100\n",
                         "steps = 100\ngrid_widen = 1\nset.train = { lr_grid = [0.2, 0.1] }\n"),
                 "scale.paper.grid_widen: needs two ascending rates in train.lr_grid");
  ExpectContains(ErrorOf("weight_decay = 0.1", "l2 = 0.1"), "train.l2: only has an effect");
  ExpectContains(ErrorOf("\"adamw\"", "\"adam\""), "train.weight_decay: only has an effect");
  const Recipe recipe = Load(kSequences);
  EXPECT_EQ(AtScale(recipe, "paper", {"train.l2=0.0"}).train.weight_decay, 0.1);
  EXPECT_EQ(AtScale(recipe, "paper", {"train.optimizer=adam", "train.weight_decay=0"}).train.l2,
            recipe.train.l2);
  ExpectContains(ErrorOf("best_length = 32", "best_length = 32\naccumulate = 3"),
                 "batch 128 cannot be worked on in 3 equal parts");
  ExpectContains(ErrorOf("best_length = 32", "best_length = 32\nbest_floor = 0.98e3"),
                 "train.best_floor: expected an accuracy in %");
  ExpectContains(ErrorOf("validate_every = 10", "best_floor = 98.0"),
                 "train.best_floor: has no effect without validate_every");
  ExpectContains(ErrorOf("validate_every = 10", ""),
                 "train.best_length: has no effect without validate_every");
  ExpectContains(ErrorOf("layers = 3", "layers = 3\nvocabulary = 9"), "the task has 10 tokens");
}

// Whatever recipe is added, it is read here.
TEST(Recipes, AllThatAreCommittedAreFine) {
  ASSERT_FALSE(ListRecipes().empty());
  for (const auto& path : ListRecipes()) EXPECT_NO_THROW(LoadRecipe(path)) << path;
}

TEST(Recipes, MaxRetrievalHasEveryMethodOfTheTables) {
  const Recipe recipe = FindRecipe("max-retrieval");
  EXPECT_EQ(recipe.Scale("paper").methods.size(), 16U);
  EXPECT_EQ(recipe.Method("softmax").paper.size(), 11U);
  EXPECT_EQ(recipe.Method("asentmax-3").paper.back(), 62.7);
  EXPECT_EQ(recipe.Method("adaptive-temperature").weights_of, "softmax");
  EXPECT_EQ(recipe.Scale("paper").steps, 100000);
  EXPECT_EQ(recipe.Scale("paper").seeds, 3);
  // The papers' protocol, and ours.
  const TrainConfig paper = AtScale(recipe, "paper").train;
  EXPECT_EQ(paper.l2, 1e-3);
  EXPECT_EQ(paper.schedule, "constant");
  EXPECT_TRUE(paper.lr_grid.empty());
  const TrainConfig decayed = AtScale(recipe, "decayed").train;
  EXPECT_EQ(decayed.l2, 0.0);
  EXPECT_EQ(decayed.schedule, "cosine");
  EXPECT_EQ(decayed.lr_grid.size(), 2U);
  const TrainConfig decoupled = AtScale(recipe, "weight-decay").train;
  EXPECT_EQ(decoupled.optimizer, "adamw");
  EXPECT_EQ(decoupled.lr, 3e-3);
  EXPECT_EQ(decoupled.weight_decay, 0.03);
}

TEST(Recipes, SmallScalesReadSixteenTimesTheLengthOfTraining) {
  for (const char* name : {"copy", "flip-flop", "local-count", "nback", "reverse", "sort"}) {
    const Recipe recipe = AtScale(FindRecipe(name), "small");
    const ScaleConfig& small = recipe.Scale("small");
    ASSERT_TRUE(small.eval_lengths) << name;
    EXPECT_EQ(small.eval_lengths->front(), recipe.task.train_length_max);
    EXPECT_GE(small.eval_lengths->back(), 16 * recipe.task.train_length_max);
    EXPECT_EQ(small.seeds, 3);
    EXPECT_TRUE(small.methods.empty() || small.methods.size() >= 10);  // empty: all
  }
}

// A quick study shows in small what the committed report of the small scale shows.
TEST(Recipes, QuickScalesAreRunsOfTheSmallScale) {
  for (const char* name :
       {"copy", "flip-flop", "local-count", "mqmtar", "nback", "reverse", "sort"}) {
    const Recipe recipe = FindRecipe(name);
    const ScaleConfig& quick = recipe.Scale("quick");
    EXPECT_EQ(quick.like, "small") << name;
    EXPECT_EQ(quick.eval_lengths, recipe.Scale("small").eval_lengths) << name;
    EXPECT_EQ(quick.methods[0], "softmax-nape") << name;
    EXPECT_EQ(quick.methods[1], "asentmax-nape") << name;
    const TrainConfig train = AtScale(recipe, "quick").train;
    EXPECT_TRUE(train.lr_grid.empty()) << name;
    // Weights that are not right in distribution yet are not the best ones.
    EXPECT_EQ(train.best_floor, 98.0) << name;
  }
}

TEST(Recipes, TheSequenceStudiesHaveTheModelsOfThePaper) {
  const std::map<std::string, std::array<std::int64_t, 4>> sizes = {
      {"nback", {2, 256, 8, 512}},     {"local-count", {3, 128, 8, 512}},
      {"flip-flop", {4, 256, 8, 512}}, {"copy", {2, 256, 16, 1024}},
      {"reverse", {6, 256, 8, 1024}},  {"sort", {2, 256, 8, 1024}},
      {"mqmtar", {4, 512, 16, 1024}}};
  for (const auto& [name, size] : sizes) {
    const Recipe recipe = AtScale(FindRecipe(name), "paper");
    const DecoderConfig& model = recipe.model.decoder;
    EXPECT_EQ((std::array{model.layers, model.width, model.heads, model.feed_forward}), size);
    EXPECT_EQ(recipe.train.batch, 128);
    EXPECT_EQ(recipe.train.lr_grid.size(), 3U);
    EXPECT_GE(recipe.methods.size(), 10U) << name;
  }
  EXPECT_EQ(FindRecipe("mqmtar").Method("asentmax-nape").paper.back(), 76.7);
  EXPECT_EQ(FindRecipe("reverse").Method("asentmax-nape").paper.back(), 56.7);
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
