// The two forms of every stage, held to each other: values and gradients.
#include "lab/nn/stages.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "lab/base/sequential_products.h"
#include "lab/nn/row_stages.h"
#include "lab/testing/lab_test_support.h"

namespace tsallis::lab {
namespace {

using at::Tensor;

constexpr std::int64_t kHeads = 3, kHeadDim = 8;

struct Case {
  StageCall call;
  std::int64_t rows;
  bool optional;        // whether optional inputs are there
  std::int64_t tables;  // of rotations
};

// Every setting that a stage may read, with every other.
std::vector<Case> Cases(const Stage& stage) {
  const bool activates = stage.name == "feed-forward", embeds = stage.name == "embedding";
  std::vector<Case> cases;
  for (const CatalogueEntry& activation : Activations()) {
    for (const at::ScalarType products : {at::kFloat, at::kBFloat16}) {
      for (const bool flag : {false, true}) {
        for (const bool optional : {false, true}) {
          Case& one = cases.emplace_back();
          one.call.products = products;
          one.call.norms_output = one.call.qk_norm = flag;
          one.call.activation = activation.name;
          one.call.heads = kHeads, one.call.head_dim = kHeadDim;
          one.call.parts = optional ? 2 : 1;
          one.call.gamma_range = 2.0;
          one.call.embedding = embeds ? (flag ? "normed" : "scaled") : "";
          one.call.column = 3 * kHeadDim;
          one.call.weight = flag ? 0.25 : 1.0;
          one.rows = flag ? 1100 : 7;  // several blocks, a part of one
          one.optional = optional;
          one.tables = flag ? 1 : kHeads;
        }
      }
    }
    if (!activates) break;
  }
  return cases;
}

Tensors Draw(const Stage& stage, const Case& one) {
  const std::int64_t hidden = 20;
  const std::map<char, std::int64_t> sizes = {
      {'r', one.rows},  {'w', 24},           {'o', 40},
      {'i', 16},        {'h', hidden},       {'u', hidden * ActivationInputs(one.call.activation)},
      {'v', 11},        {'c', kHeads},       {'m', 3},
      {'n', 9},         {'d', kHeadDim / 2}, {'p', 3 * kHeads * kHeadDim},
      {'t', one.tables}};
  Tensors inputs;
  for (const Stage::Input& input : stage.inputs) {
    const std::string name = input.name;
    std::vector<std::int64_t> shape;
    for (const char letter : std::string(input.sizes)) shape.push_back(sizes.at(letter));
    const bool unused = name == "out_gain" && !one.call.norms_output;
    if (unused || (input.optional && !one.optional)) {
      inputs.emplace_back();
    } else if (name == "position") {
      inputs.push_back(at::randint(9, shape, at::kInt));
    } else if (name == "token") {
      inputs.push_back(at::randint(11, shape, at::kLong));
    } else if (name == "row") {
      inputs.push_back(at::tensor({0, 2, 5}, at::kLong));
    } else if (name == "cosine") {
      inputs.push_back(at::randn(shape).cos());
    } else if (name == "sine") {  // of the same angles: a rotation keeps lengths
      inputs.push_back((1.0 - inputs.back().square()).clamp_min(0.0).sqrt());
    } else if (name == "labels") {
      inputs.push_back(at::randint(40, shape, at::kLong));
    } else {
      const bool made = name == "value" || name == "projected";  // by a product
      inputs.push_back((0.5 * at::randn(shape)).to(made ? one.call.products : at::kFloat));
    }
  }
  return inputs;
}

// Outputs, then the gradients of the inputs, in float32.
Tensors ValuesAndGradients(const Stage& stage, Stage::Form form, StageCall call) {
  Tensors found;
  for (std::size_t i = 0; i < call.inputs.size(); ++i) {
    Tensor& x = call.inputs[i];
    if (!x.defined()) continue;
    const std::string name = stage.inputs[i].name;
    const bool constant =
        name == "cosine" || name == "sine" || name == "log_log_n" || name == "sinusoids";
    x = x.detach().clone().requires_grad_(x.is_floating_point() && !constant);
  }
  Tensor sum = at::zeros({});
  at::manual_seed(5);
  for (const Tensor& out : form(call)) {
    found.push_back(out.detach().to(at::kFloat));
    if (out.requires_grad()) sum = sum + (out.to(at::kFloat) * at::randn(out.sizes())).sum();
  }
  sum.backward();
  for (const Tensor& x : call.inputs) {
    if (x.defined() && x.requires_grad() && x.grad().defined()) {
      found.push_back(x.grad().to(at::kFloat));
    }
  }
  return found;
}

TEST(Stages, BothFormsOfEveryStageAgree) {
  for (const Stage& stage : Stages()) {
    ASSERT_NE(stage.host, nullptr) << stage.name;
    ASSERT_NE(stage.operations, nullptr) << stage.name;
    for (Case& one : Cases(stage)) {
      SCOPED_TRACE(stage.name + " " + one.call.activation + " " + std::to_string(one.rows) +
                   (one.optional ? " with all inputs " : " ") + toString(one.call.products));
      at::manual_seed(7);
      one.call.inputs = Draw(stage, one);
      const Tensors host = ValuesAndGradients(stage, stage.host, one.call);
      const Tensors operations = ValuesAndGradients(stage, stage.operations, one.call);
      ASSERT_EQ(host.size(), operations.size());
      const double bound = one.call.products == at::kFloat ? 2e-5 : 3e-2;
      for (std::size_t i = 0; i < host.size(); ++i) {
        const double size = operations[i].abs().max().item<double>();
        EXPECT_LT((host[i] - operations[i]).abs().max().item<double>(), bound * size + 1e-6) << i;
      }
    }
  }
}

TEST(Stages, TheBitsDoNotDependOnTheNumberOfThreads) {
  const SequentialProducts sequential;
  for (const Stage& stage : Stages()) {
    for (Case& one : Cases(stage)) {
      at::manual_seed(7);
      one.call.inputs = Draw(stage, one);
      const Tensors alone = ValuesAndGradients(stage, stage.host, one.call);
      RowWorkers workers;
      workers.SetThreads(3);
      one.call.workers = &workers;
      const Tensors together = ValuesAndGradients(stage, stage.host, one.call);
      for (std::size_t i = 0; i < alone.size(); ++i) {
        EXPECT_TRUE(at::equal(alone[i], together[i])) << stage.name << " " << i;
      }
    }
  }
}

TEST(Stages, WhatThereIsNotIsNamed) {
  ExpectContains(
      ErrorTextOf<std::logic_error>([] { RunStage("swish", {.inputs = {at::ones({1})}}); }),
      "swish");
  ExpectContains(ErrorTextOf<std::logic_error>([] {
                   Activated("swish", at::ones({1, 2}));
                 }),
                 "swish");
}

}  // namespace
}  // namespace tsallis::lab
