// The model of SPEC T1 (Velickovic et al. 2024, appendix A.3): two-layer GeLU MLPs around a single attention head.
//
//   h_i = gelu(W2 gelu(W1 x_i)),  q = Wq2 gelu(Wq1 q0),  s_i = c_n (Q q) . (K h_i) / theta,  p = map(s),
//   y = W4 gelu(W3 O V sum_i p_i h_i)                                         (biases left out here)
//
// The key and value projections are linear, so they are folded through the pooling: s_i = (K^T Q q) . h_i and
// sum p_i V h_i = V sum p_i h_i. That turns two [items, width] x [width, width] products into [sets, width] ones and
// changes nothing else. K has no bias: it would shift all the scores of a set alike, which no map sees.
// Initialisation as the paper's library does it: weights truncated normal of variance 1 / fan-in, biases zero.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "lab/config/recipe.h"
#include "lab/nn/attend_set.h"
#include "lab/tasks/max_retrieval.h"

namespace tsallis::lab {

class SetAttention {
 public:
  SetAttention(const ModelConfig& model, std::int64_t features, std::int64_t classes,
               const MethodConfig& method, std::uint64_t seed);

  // Class scores, [sets, classes].
  torch::Tensor Forward(const SetBatch& batch, AttentionView* view = nullptr) const;

  // All parameters (and their gradients) in one piece of memory each, so that the optimiser is one call; parameters
  // start at multiples of 64 bytes, the gaps stay zero.
  const torch::Tensor& FlatParameters() const { return flat_; }
  const torch::Tensor& FlatGradients() const { return flat_gradients_; }

  // Named views into FlatParameters.
  const std::vector<std::pair<std::string, torch::Tensor>>& Parameters() const {
    return parameters_;
  }

  // Changes how scores become weights, for evaluating trained weights under another map.
  void SetMethod(const MethodConfig& method);

 private:
  struct Linear {
    torch::Tensor weight, bias;  // [out, in], [out]
  };

  MethodConfig method_;
  RowMapParams map_;
  double theta_ = 1.0;
  std::int64_t width_;
  torch::Tensor flat_, flat_gradients_;
  std::vector<std::pair<std::string, torch::Tensor>> parameters_;
  Linear item1_, item2_, query1_, query2_, attention_query_, attention_value_, attention_out_,
      head1_, head2_;
  torch::Tensor attention_key_;  // [width, width]
  torch::Tensor length_scale_;   // [1], undefined without length scaling
};

// The row map of a method; `theta` is applied to the query, not here.
RowMapParams MapOf(const MethodConfig& method);

}  // namespace tsallis::lab
