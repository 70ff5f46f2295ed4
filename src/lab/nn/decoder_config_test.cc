#include "lab/nn/decoder_config.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "lab/base/errors.h"
#include "lab/nn/decoder_describe.h"
#include "lab/testing/lab_test_support.h"

namespace tsallis::lab {
namespace {

using Json = nlohmann::ordered_json;

DecoderConfig Config(const std::string& changes) {
  Json json = {{"vocabulary", 37}};
  json.merge_patch(Json::parse(changes));
  return DecoderFromJson(json, "config.json");
}

std::string ErrorOf(const std::string& changes) {
  return UsageErrorOf([&] { Config(changes); });
}

TEST(DecoderConfig, GoesThroughJsonUnchanged) {
  DecoderConfig config;
  config.vocabulary = 265;
  config.layers = 3;
  config.compute = "float32";
  config.attention.map = "entmax";
  config.attention.alpha = 1.7;
  config.attention.positions.kind = "rope";
  config.attention.positions.kept_base = 1024.0;
  config.attention.positions.scaling.kind = "llama3";
  config.attention.positions.scaling.train_length = 48;
  config.attention.scale_invariant = 10.0;
  AttentionOverride change;
  change.layers = {0, 2};
  change.heads = {1};
  change.given = {"learn_alpha", "alpha_spread", "length_scaling", "scale_invariant"};
  change.attention.learn_alpha = "sigmoid";
  change.attention.alpha_spread = 0.5;
  change.attention.length_scaling = {.kind = "table", .positions = 128};
  change.attention.scale_invariant = 0.0;
  AttentionOverride other;
  other.layers = {1};
  other.heads = {3};
  other.given = {"map", "top_k", "top_k_fraction", "sink", "pattern", "scale_invariant_alpha"};
  other.attention.map = "top-k-softmax";
  other.attention.top_k = 7;
  other.attention.top_k_fraction = 0.25;
  other.attention.pattern = {.kind = "window", .window = 9};
  other.attention.scale_invariant_alpha = 0.7;
  config.overrides.push_back(change);
  config.overrides.emplace_back();
  config.overrides.push_back(other);
  const Json json = ToJson(config);
  EXPECT_EQ(DecoderFromJson(Json::parse(json.dump()), "x"), config);
  EXPECT_EQ(ToJson(DecoderFromJson(json, "x")), json);
  EXPECT_FALSE(json["attention"]["positions"].contains("given"));  // has no value
}

// A configuration without a later key is written as it was before the key existed.
TEST(DecoderConfig, LeavesLaterKeysOutAtTheirDefaults) {
  DecoderConfig config;
  const Json json = ToJson(config);
  for (const char* key : {"block", "norm_gain", "activation", "qk_norm", "embedding"}) {
    EXPECT_FALSE(json.contains(key)) << key;
  }
  for (const char* key : {"top_k", "top_k_fraction", "sigmoid_bias", "coefficients", "sink",
                          "pattern", "scale_invariant_alpha", "scale_invariant_beta"}) {
    EXPECT_FALSE(json["attention"].contains(key)) << key;
  }
  EXPECT_FALSE(json["attention"]["length_scaling"].contains("learn_delta"));
  config.attention.sink = "zero";
  config.attention.length_scaling = {.kind = "scalar", .learn_delta = true};
  config.attention.pattern = {.kind = "strided", .stride = 8};
  config.attention.sigmoid_bias = 0.0;
  const Json given = ToJson(config);
  EXPECT_EQ(given["attention"]["sink"], "zero");
  EXPECT_EQ(given["attention"]["length_scaling"]["learn_delta"], true);
  EXPECT_EQ(given["attention"]["pattern"]["stride"], 8);
  EXPECT_EQ(given["attention"]["sigmoid_bias"], 0.0);
}

TEST(DecoderConfig, ReadsTomlByTheSameDeclaration) {
  const toml::table table = toml::parse(R"(
    vocabulary = 37
    heads = 16
    [attention]
    map = "entmax"
    positions = { kind = "nape", share = 0.25 }
    [[override]]
    layers = [1]
    map = "softmax"
  )");
  TomlProblems problems("recipe.toml");
  TableReader reader(table, "model", problems);
  DecoderConfig config;
  Describe(reader, config);
  reader.Finish();
  problems.ThrowIfAny();
  EXPECT_EQ(config.heads, 16);
  EXPECT_EQ(config.layers, 2);  // not given
  EXPECT_EQ(config.attention.positions.share, 0.25);
  EXPECT_EQ(config.Head(0, 3).map, "entmax");
  EXPECT_EQ(config.Head(1, 3).map, "softmax");
  EXPECT_EQ(config.Head(1, 3).positions.kind, "nape");
}

TEST(DecoderConfig, LaterOverridesWinAndLeaveTheRest) {
  const DecoderConfig config = Config(R"({"attention": {"scale_invariant": 10}, "override": [
      {"heads": [0, 1], "alpha": 2.0}, {"layers": [1], "heads": [1], "alpha": 1.25, "map": "entmax"},
      {"layers": [0], "scale_invariant": 0}]})");
  EXPECT_EQ(config.Head(0, 1).alpha, 2.0);
  EXPECT_EQ(config.Head(1, 1).alpha, 1.25);
  EXPECT_EQ(config.Head(1, 0).map, "softmax");
  EXPECT_EQ(config.Head(0, 5).alpha, 1.5);
  EXPECT_FALSE(config.Head(0, 5).scale_invariant);
  EXPECT_EQ(config.Head(1, 5).scale_invariant, 10.0);
}

// Numbers of a map go with it.
TEST(DecoderConfig, AnotherMapTakesNothingOfTheOneBefore) {
  const DecoderConfig config = Config(R"({"attention": {"map": "top-k-softmax", "top_k": 4,
      "top_k_fraction": 0.5}, "override": [{"heads": [0], "map": "sigmoid", "sigmoid_bias": -1},
      {"heads": [3], "map": "adaptive-temperature", "coefficients": [1.5]},
      {"heads": [0, 1], "map": "softmax"}, {"heads": [2], "top_k": 6},
      {"heads": [3], "layers": [1], "map": "softmax"}]})");
  EXPECT_EQ(config.Head(0, 0).top_k, 0);
  EXPECT_FALSE(config.Head(0, 0).sigmoid_bias);
  EXPECT_EQ(config.Head(0, 1).top_k_fraction, 0.0);
  EXPECT_EQ(config.Head(0, 2).top_k, 6);
  EXPECT_EQ(config.Head(0, 2).top_k_fraction, 0.5);
  EXPECT_EQ(config.Head(0, 3).coefficients, std::vector<double>{1.5});
  EXPECT_FALSE(config.Head(1, 3).coefficients);
  EXPECT_EQ(config.Head(0, 4).top_k, 4);
}

TEST(DecoderConfig, MistakesNameTheKey) {
  ExpectContains(ErrorOf(R"({"laiers": 2})"), "laiers: unknown key; did you mean \"layers\"?");
  ExpectContains(ErrorOf(R"({"layers": 0})"), "layers: expected 1 to 1024, got 0");
  ExpectContains(ErrorOf(R"({"layers": 2.5})"), "layers: expected an integer, got 2.5");
  ExpectContains(ErrorOf(R"({"vocabulary": 0})"), "vocabulary: expected at least 1 token");
  ExpectContains(ErrorOf(R"({"heads": 7})"), "head_dim: has to be given: width 256");
  ExpectContains(ErrorOf(R"({"compute": "float16"})"), "compute: expected \"auto\" or \"float32\"");
  ExpectContains(ErrorOf(R"({"attention": {"map": "sofmax"}})"), "attention.map: expected ");
  ExpectContains(ErrorOf(R"({"attention": {"alpha": 0.5}})"), "attention.alpha: expected 1 <= ");
  ExpectContains(ErrorOf(R"({"attention": {"learn_alpha": "free"}})"),
                 "attention.learn_alpha: only has an effect with map = \"entmax\"");
  ExpectContains(
      ErrorOf(R"({"attention": {"map": "entmax", "alpha": 2, "learn_alpha": "sigmoid"}})"),
      "attention.alpha: expected 1 < alpha < 2");
  ExpectContains(ErrorOf(R"({"attention": {"map": "entmax", "alpha_spread": 1}})"),
                 "attention.alpha_spread: only has an effect with a learned alpha");
  ExpectContains(ErrorOf(R"({"attention": {"length_scaling": {"kind": "table"}}})"),
                 "attention.length_scaling.positions: expected the number");
  ExpectContains(ErrorOf(R"({"attention": {"positions": {"kind": "nap"}}})"),
                 "attention.positions.kind: expected \"nope\"");
  ExpectContains(
      ErrorOf(R"({"attention": {"positions": {"kind": "rope", "scaling": {"kind": "yarn"}}}})"),
      "attention.positions.scaling.train_length: has to be given with kind = \"yarn\"");
  ExpectContains(
      ErrorOf(R"({"attention": {"scale_invariant": 10, "positions": {"kind": "alibi"}}})"),
      "attention.scale_invariant: expected positions \"nope\" or \"rope\", got \"alibi\"");
  ExpectContains(
      ErrorOf(R"({"attention": {"positions": {"kind": "nape", "slopes": "given", "given": [1]}}})"),
      "attention.positions.given: expected 4 slopes");
  ExpectContains(ErrorOf(R"({"width": 24, "attention": {"positions": {"kind": "rope"}}})"),
                 "attention.positions.kind: \"rope\" turns pairs: expected an even head_dim");
  ExpectContains(ErrorOf(R"({"override": [{"layers": [2]}]})"),
                 "override.#1.layers: expected 0 to 1, got 2");
  ExpectContains(ErrorOf(R"({"override": [{}, {"heads": [-1]}]})"),
                 "override.#2.heads: expected 0 to 7, got -1");
  ExpectContains(ErrorOf(R"({"override": [{"positions": {"kind": "sinusoidal"}}]})"),
                 "override.#1.positions.kind: \"sinusoidal\" is added to the embeddings");
  const auto attention = [](const std::string& keys) {
    return ErrorOf(R"({"attention": {)" + keys + "}}");
  };
  ExpectContains(attention(R"("map": "top-k-softmax")"),
                 "attention.top_k: expected a number of keys >= 1 with map = \"top-k-softmax\"");
  ExpectContains(attention(R"("map": "top-k-softmax", "top_k": 0)"), "top_k: expected 1 <= top_k");
  ExpectContains(attention(R"("top_k": 4)"),
                 "attention.top_k: only has an effect with map = \"top-k-softmax\"");
  ExpectContains(attention(R"("sigmoid_bias": 1)"),
                 "attention.sigmoid_bias: only has an effect with map = \"sigmoid\"");
  ExpectContains(attention(R"("coefficients": [1])"),
                 "attention.coefficients: only has an effect with map = \"adaptive-temperature\"");
  ExpectContains(attention(R"("map": "adaptive-temperature", "coefficients": [])"),
                 "attention.coefficients: expected 1 to 17 finite numbers, lowest degree first");
  ExpectContains(attention(R"("map": "softpick", "sink": "zero")"),
                 "attention.sink: expected map \"softmax\" or \"entmax\", got \"softpick\"");
  ExpectContains(attention(R"("sink": "some")"), "attention.sink: expected \"none\" or \"zero\"");
  ExpectContains(attention(R"("scale_invariant_beta": 2)"),
                 "attention.scale_invariant_beta: only has an effect beside scale_invariant");
  ExpectContains(attention(R"("scale_invariant": 10, "scale_invariant_alpha": 3)"),
                 "attention.scale_invariant_beta: expected alpha ln alpha = 3.29584 to 100 alpha");
  ExpectContains(attention(R"("length_scaling": {"kind": "ssmax", "learn_delta": true})"),
                 "attention.length_scaling.learn_delta: only has an effect with kind = \"scalar\"");
  ExpectContains(attention(R"("pattern": {"kind": "bigbrid"})"), "pattern.kind: expected \"none\"");
  ExpectContains(attention(R"("pattern": {"kind": "window"})"),
                 "attention.pattern.window: expected a number of at least 1 with kind = "
                 "\"window\", got 0");
  ExpectContains(attention(R"("pattern": {"kind": "strided", "stride": 4, "window": 4})"),
                 "attention.pattern.window: only has an effect with kind = \"window\" or "
                 "\"longformer\" or \"bigbird\"");
  ExpectContains(attention(R"("pattern": {"kind": "fixed", "segment": 4, "summary": 5})"),
                 "attention.pattern.summary: expected at most segment = 4, got 5");
  ExpectContains(attention(R"("pattern": {"kind": "random", "random_block": 0})"),
                 "attention.pattern.random_block: expected a number of at least 1");
  // A head that only the second override of its layer spoils.
  ExpectContains(ErrorOf(R"({"override": [{"layers": [1], "scale_invariant": 10},
                             {"heads": [3], "positions": {"kind": "alibi"}}]})"),
                 "scale_invariant: expected positions");
}

TEST(DecoderConfig, ListsEveryKeyWithItsDefaultAndMeaning) {
  const std::vector<DecoderKey> keys = DecoderKeys();
  const auto find = [&](const std::string& name) {
    const auto found =
        std::find_if(keys.begin(), keys.end(), [&](const auto& key) { return key.name == name; });
    EXPECT_NE(found, keys.end()) << name;
    return found == keys.end() ? DecoderKey{} : *found;
  };
  EXPECT_EQ(find("width").fallback, "256");
  EXPECT_EQ(find("attention.positions.scaling.kind").fallback, "\"none\"");
  EXPECT_EQ(find("attention.scale_invariant").fallback, "");
  EXPECT_EQ(find("override.layers").fallback, "");
  for (const DecoderKey& key : keys) EXPECT_FALSE(key.help.empty()) << key.name;
}

}  // namespace
}  // namespace tsallis::lab
