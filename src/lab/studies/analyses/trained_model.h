// A trained model of max retrieval for the analyses that look at one.
#pragma once

#include <string>

#include "lab/nn/set_attention.h"
#include "lab/studies/analyses/analysis.h"
#include "lab/tasks/max_retrieval.h"

namespace tsallis::lab {

struct TrainedModel {
  SetAttention model;
  MaxRetrieval task;
  SetAttentionConfig config;
  std::string about;  // where it comes from, in words
};

// The softmax model of context.checkpoint; without one, that of the recipe max-retrieval, trained
// for a tenth of its steps (a twentieth of that where quick) in context.models, or what was trained
// there before. Reports as the first `share` of the work. UsageError if the checkpoint's map is
// another.
TrainedModel SoftmaxModel(const AnalysisContext& context, double share);

// The scores of a softmax head up to a constant a row, from its weights: -inf where those are 0.
// weights: [sets, n] float32.
at::Tensor ScoresOf(const at::Tensor& weights);

}  // namespace tsallis::lab
