// Small decoders of every kind, for tests.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lab/base/device.h"
#include "lab/base/random.h"
#include "lab/base/sequential_products.h"
#include "lab/nn/decoder.h"
#include "lab/nn/maps.h"
#include "lab/nn/parameters.h"
#include "lab/nn/row_stages.h"
#include "lab/tasks/token_batch.h"
#include "lab/testing/lab_test_support.h"

namespace tsallis::lab {

inline DecoderConfig Tiny() {
  DecoderConfig config = Sized(11, 2, 24, 4, 40);
  config.head_dim = 8;
  return config;
}

// Half of the heads with slopes, the others with a length scaling.
inline DecoderConfig Asentmax(DecoderConfig config = Tiny()) {
  config.attention.map = "entmax";
  config.attention.length_scaling.kind = "adaptive";
  config.attention.positions.kind = "nape";
  return config;
}

// Sequences of these lengths, padded to n tokens (0: to the longest), with labels where
// scored(sequence, position) says so. Lengths are given where they differ from n.
inline TokenBatch DrawnBatch(const std::vector<std::int64_t>& lengths, std::int64_t n,
                             std::int64_t vocabulary,
                             const std::function<bool(std::int64_t, std::int64_t)>& scored) {
  const auto count = static_cast<std::int64_t>(lengths.size());
  if (n == 0) n = *std::max_element(lengths.begin(), lengths.end());
  RandomStream random(7, Purpose::kEval, static_cast<std::uint64_t>(n));
  TokenBatch batch{
      at::empty({count, n}, at::kLong), at::full({count, n}, kNotScored, at::kLong), {}};
  for (std::int64_t b = 0; b < count; ++b) {
    const std::int64_t length = lengths[static_cast<std::size_t>(b)];
    for (std::int64_t i = 0; i < n; ++i) {
      batch.tokens[b][i] = random.Below(vocabulary);
      const std::int64_t label = random.Below(vocabulary);
      if (i < length && scored(b, i)) batch.labels[b][i] = label;
    }
    if (length < n) batch.lengths = at::tensor(lengths, at::kLong);
  }
  return batch;
}

// The same, of whose sequences the second halves are scored.
inline TokenBatch HalfScored(const std::vector<std::int64_t>& lengths, std::int64_t vocabulary) {
  return DrawnBatch(lengths, 0, vocabulary, [&](std::int64_t b, std::int64_t i) {
    return i >= lengths[static_cast<std::size_t>(b)] / 2;
  });
}

// Weights far from their first values, where every term shows.
inline void Shake(SequenceModel& model) {
  RandomStream random(11, Purpose::kInit, 3);
  for (const auto& [name, value] : model.Parameters()) {
    const double by = name.find("slopes") != std::string::npos ? 0.02 : 0.2;
    float* values = value.mutable_data_ptr<float>();
    for (std::int64_t i = 0; i < value.numel(); ++i) values[i] += Normal(random, by);
    MarkChanged(value);
  }
}

template <class Model = Decoder>
struct Shaken : Model {
  Shaken(const DecoderConfig& config, std::uint64_t seed) : Model(config, seed) { Shake(*this); }
};

// With the weights of another model, on a device.
template <class Model = Decoder>
struct Copied : Model {
  Copied(const Model& model, const char* device) : Model(model.Config(), 1, DeviceNamed(device)) {
    at::Tensor(this->FlatParameters()).copy_(model.FlatParameters());
  }
};

struct Variant {
  std::string name;
  std::string json;  // merged into that of Tiny()
};

// Thousands of tiny operations: faster on one thread.
using OneThread = SequentialProducts;

inline DecoderConfig ConfigOf(const Variant& variant) {
  nlohmann::ordered_json json = ToJson(Tiny());
  json.merge_patch(nlohmann::ordered_json::parse(variant.json));
  return DecoderFromJson(json, variant.name);
}

class EveryVariant : public testing::TestWithParam<Variant> {
 private:
  OneThread one_thread_;
};

// What no list of the lab holds: numbers of single kinds, and heads and layers that differ.
inline const std::vector<Variant> kCombined = {
    {"Entmax", R"({"attention": {"map": "entmax", "alpha": 1.5}})"},
    {"AlphaOfEveryHead", R"({"attention": {"map": "entmax", "learn_alpha": "sigmoid"}})"},
    {"FreeAlpha", R"({"attention": {"map": "entmax", "alpha": 1.7, "learn_alpha": "free"}})"},
    {"TopHalf", R"({"attention": {"map": "top-k-softmax", "top_k": 2, "top_k_fraction": 0.5,
                    "positions": {"kind": "rope"}}})"},
    {"SigmoidBias", R"({"attention": {"map": "sigmoid", "sigmoid_bias": -1.5}})"},
    {"RefittedTemperature", R"({"attention": {"map": "adaptive-temperature",
                                "coefficients": [0.5, 0.8], "positions": {"kind": "rope"}}})"},
    {"StickBreakingAdaptive", R"({"attention": {"map": "stick-breaking",
                                  "length_scaling": {"kind": "adaptive", "init": 0.2}}})"},
    {"ZeroSink", R"({"attention": {"sink": "zero"}})"},
    {"LearnedSink", R"({"attention": {"map": "entmax", "sink": "learned",
                        "positions": {"kind": "nape"}}})"},
    {"SinksOfSomeHeads", R"({"override": [{"heads": [1], "sink": "learned"},
                                          {"layers": [1], "heads": [2], "sink": "zero"},
                                          {"heads": [3], "map": "entmax", "sink": "learned"}]})"},
    {"BaselinesOfHeads", R"({"attention": {"map": "top-k-softmax", "top_k": 3,
                             "positions": {"kind": "rope"}},
                             "override": [{"heads": [1], "map": "sigmoid"},
                                          {"heads": [2], "map": "stick-breaking"},
                                          {"layers": [1], "heads": [3], "map": "softpick"},
                                          {"layers": [0], "heads": [3], "top_k": 5}]})"},
    {"AdaptiveWithoutBias",
     R"({"attention": {"length_scaling": {"kind": "adaptive", "bias": false, "delta": 0.5}}})"},
    {"ScalarLearnedDelta", R"({"attention": {"length_scaling": {"kind": "scalar", "delta": 0.5,
                               "learn_delta": true}}})"},
    {"AdaptiveLearnedDelta", R"({"attention": {"map": "entmax", "positions": {"kind": "nape"},
                                 "length_scaling": {"kind": "adaptive", "learn_delta": true}}})"},
    {"RopeLinear",
     R"({"attention": {"positions": {"kind": "rope", "scaling": {"kind": "linear"}}}})"},
    {"RopeNtk",
     R"({"attention": {"positions": {"kind": "rope", "scaling": {"kind": "ntk", "train_length": 5}}}})"},
    {"RopeYarn",
     R"({"attention": {"positions": {"kind": "rope", "scaling": {"kind": "yarn", "train_length": 64}}}})"},
    {"RopeLlama3", R"({"attention": {"positions": {"kind": "rope",)"
                   R"( "scaling": {"kind": "llama3", "train_length": 64}}}})"},
    {"PRope", R"({"attention": {"positions": {"kind": "rope", "kept": 0.5, "kept_base": 1024}}})"},
    {"Alibi", R"({"attention": {"positions": {"kind": "alibi", "slopes": "geometric"}}})"},
    {"LearnedSlopes",
     R"({"attention": {"positions": {"kind": "nape", "learn_slopes": true, "share": 0.75}}})"},
    {"GivenSlopes",
     R"({"attention": {"positions": {"kind": "nape", "slopes": "given", "given": [0.5, 0.1]}}})"},
    {"AsentmaxNape", R"({"attention": {"map": "entmax", "length_scaling": {"kind": "adaptive"},
                         "positions": {"kind": "nape"}}})"},
    {"NapeAllScaled", R"({"attention": {"length_scaling": {"kind": "ssmax", "heads": "all"},
                          "positions": {"kind": "nape"}}})"},
    {"ScaleInvariant", R"({"attention": {"scale_invariant": 10}})"},
    {"ScaleInvariantShape", R"({"attention": {"scale_invariant": 3, "scale_invariant_alpha": 2,
                                "scale_invariant_beta": 3, "map": "entmax"},
                                "override": [{"heads": [1], "scale_invariant_beta": 1.5},
                                             {"heads": [2], "scale_invariant": 0}]})"},
    {"ScaleInvariantPRope", R"({"attention": {"scale_invariant": 3,
                                "positions": {"kind": "rope", "kept": 0.5}}})"},
    {"Window", R"({"attention": {"pattern": {"kind": "window", "window": 4},
                   "length_scaling": {"kind": "ssmax"}}})"},
    {"GlobalTokens", R"({"attention": {"map": "entmax", "sink": "learned",
                         "pattern": {"kind": "global", "global_tokens": 3}}})"},
    {"RandomBlocks", R"({"attention": {"map": "sigmoid",
                         "pattern": {"kind": "random", "random": 2, "random_block": 3}}})"},
    {"Longformer", R"({"attention": {"positions": {"kind": "alibi", "learn_slopes": true},
                       "pattern": {"kind": "longformer", "window": 3, "global_tokens": 1}}})"},
    {"BigBird", R"({"attention": {"map": "entmax", "learn_alpha": "sigmoid",
                    "length_scaling": {"kind": "adaptive", "init": 0.2},
                    "pattern": {"kind": "bigbird", "window": 3, "global_tokens": 1, "random": 1,
                                "random_block": 2, "seed": 4}}})"},
    {"StridedOfSomeHeads", R"({"override": [{"heads": [0, 2], "pattern": {"kind": "strided",
                                             "stride": 4}},
                                            {"heads": [3], "pattern": {"kind": "fixed",
                                             "segment": 5, "summary": 1}}]})"},
    {"MixedLayers", R"({"override": [{"layers": [1], "map": "entmax",
                                      "positions": {"kind": "rope"}}]})"},
    {"MixedHeads", R"({"override": [{"heads": [0, 2], "map": "entmax", "alpha": 1.25},
                                    {"heads": [3], "map": "entmax", "alpha": 2.0,
                                     "length_scaling": {"kind": "scalar"},
                                     "positions": {"kind": "rope"}},
                                    {"layers": [0], "heads": [1], "scale_invariant": 4}]})"},
    {"PreNorm", R"({"block": "pre"})"},
    {"NormsWithoutGain", R"({"norm_gain": false})"},
    {"QkNorm", R"({"qk_norm": true})"},
    {"OutputGate", R"({"output_gate": true})"},
    {"QkNormRopeOfSomeHeads", R"({"qk_norm": true,
        "override": [{"heads": [1, 2], "positions": {"kind": "rope"}}]})"},
    {"NormedEmbedding", R"({"embedding": "normed"})"},
    {"NormedEmbeddingAndSinusoids", R"({"embedding": "normed",
        "attention": {"positions": {"kind": "sinusoidal"}}})"},
    {"ModdedGpt2", R"({"block": "pre", "norm_gain": false, "activation": "relu2", "qk_norm": true,
        "embedding": "normed", "attention": {"scale_invariant": 10,
        "positions": {"kind": "rope", "kept": 0.5, "kept_base": 16}}})"}};

// A variant for every map, length scaling, kind of position, activation, and those above: what is
// added to a list is compared wherever variants are.
inline std::vector<Variant> Variants() {
  using Json = nlohmann::ordered_json;
  std::vector<Variant> all;
  const auto add = [&](const char* kind, const CatalogueEntry& entry, const Json& json) {
    std::string name = kind + entry.name;
    std::replace(name.begin(), name.end(), '-', '_');
    all.push_back({name, json.dump()});
  };
  for (const CatalogueEntry& entry : Maps()) {
    // Beside positions, so that equal tokens differ in their scores: else rounding would decide
    // which of tied scores are the largest.
    Json map = {{"map", entry.name}, {"positions", {{"kind", "alibi"}, {"slopes", "geometric"}}}};
    if (entry.name == "top-k-softmax") map["top_k"] = 3;
    add("Map_", entry, {{"attention", map}});
  }
  for (const CatalogueEntry& entry : QueryScalings()) {
    Json scaling = {{"kind", entry.name}};
    if (entry.name == "table") scaling["positions"] = 9;
    if (entry.name == "adaptive") scaling["init"] = 0.2;
    add("Scaling_", entry, {{"attention", {{"length_scaling", scaling}}}});
  }
  for (const CatalogueEntry& entry : PositionKinds()) {
    add("Positions_", entry, {{"attention", {{"positions", {{"kind", entry.name}}}}}});
  }
  for (const CatalogueEntry& entry : Activations()) {
    add("Activation_", entry, {{"activation", entry.name}});
  }
  all.insert(all.end(), kCombined.begin(), kCombined.end());
  return all;
}

}  // namespace tsallis::lab
