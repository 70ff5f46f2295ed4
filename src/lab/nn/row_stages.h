// The operations that models' chains are made of (row_chain.h), and how to make them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lab/base/catalogue.h"
#include "lab/nn/row_chain.h"

namespace tsallis::lab {

using RowStages = std::vector<std::unique_ptr<RowStage>>;

// value = norm(x), RMSNorm (Zhang and Sennrich 2019). gain: w of the factor 1 + w, [1, width],
// which must outlive the stage; null: none.
std::unique_ptr<RowStage> MakeNorm(std::int64_t width, const Parameter* gain);

// x += norm(value), as above.
std::unique_ptr<RowStage> MakeAddNorm(std::int64_t width, const Parameter* gain);

// x += value.
std::unique_ptr<RowStage> MakeAdd(std::int64_t width);

// value = value W^T. weight: [out, in], allocated later. `exact`: in float32 whatever the model's
// dtype.
std::unique_ptr<RowStage> MakeLinear(std::int64_t out, const Parameter* weight, bool exact = false);

// What is done to queries and keys, the first `parts` heads head_dim columns of a value, in place:
// QK-norm, and rotation by tables [1 or heads, positions, head_dim / 2] at a row's position [rows]
// int32; undefined tables: no rotation. columns: of the value.
struct HeadRows {
  std::int64_t parts = 2, heads = 0, head_dim = 0;  // parts: 1 where queries and keys lie apart
  bool norm = false;
  at::Tensor cosine{}, sine{}, position{};
};
std::unique_ptr<RowStage> MakeHeads(std::int64_t columns, const HeadRows& rows);

// The nonlinearities of feed-forward layers. Gated ones read two halves [g, u] of a value (Shazeer
// 2020). Each stands once in row_stages.cc: its kernel with the gradient, for the CPU, and the same
// in torch's operations.
const std::vector<CatalogueEntry>& Activations();
// Columns that an activation takes, as a multiple of those that it gives: 2 if gated.
std::int64_t ActivationInputs(const std::string& name);
// The same in torch's operations: in [rows, inputs hidden] -> [rows, hidden].
at::Tensor Activated(const std::string& name, const at::Tensor& in);
// hidden: columns that it gives.
std::unique_ptr<RowStage> MakeActivation(const std::string& name, std::int64_t hidden);

// Cross-entropy of rows of logits, in place (decoder_kernels.h says what it is). label, loss, best:
// [rows]; the last two are received. With weight > 0 the logits become the gradient of weight times
// the sum of the losses.
struct Judgement {
  const std::int64_t* label;
  float weight;
  float* loss;
  std::int64_t* best;
};
std::unique_ptr<RowStage> MakeCrossEntropy(std::int64_t vocabulary, const Judgement& judgement);

}  // namespace tsallis::lab
