// The model of max retrieval, T1 (Velickovic et al. 2024, appendix A.3): two-layer GeLU MLPs around
// a single attention head.
//
//   h_i = gelu(W2 gelu(W1 x_i)),  q = Wq2 gelu(Wq1 q0),  s_i = c_n (Q q) . (K h_i) / theta,
//   p = map(s),  y = W4 gelu(W3 O V sum_i p_i h_i)                      (biases left out here)
//
// With output_norm = "layer-norm" the head's MLP reads a layer norm of that: W3 LN(O V sum_i p_i
// h_i), with a learned gain and bias (Li, Boduljak and Zhou 2025, arXiv 2504.02827). They apply it
// "after the attention outputs", because the variance of what an attention module gives falls as
// sets grow, and the MLP behind it never saw such values in training. The module ends with O, so
// the norm stands behind O and before W3: what the MLP reads then has one scale at every length,
// whatever V and O do. The gain is 1 + w as of the decoder's norms, so that weight decay draws it
// to 1, not to 0.
//
// The key and value projections are linear, so they are folded through the pooling: s_i = (K^T Q q)
// . h_i and sum p_i V h_i = V sum p_i h_i. That turns two [items, width] x [width, width] products
// into [sets, width] ones and changes nothing else. K has no bias: it would shift all the scores of
// a set alike, which no map sees. Initialisation as the paper's library does it: weights truncated
// normal of variance 1 / fan-in, biases zero.
//
// Cost of one gradient on one core, 128 sets of 10.5 items on average, width 128: three products of
// [1344, 128] x [128, 128] (encoder forward, its two gradients) and eighteen of [128, 128] x [128,
// 128], 210 MFLOP in all. The gradient is written out by hand rather than recorded: at two
// milliseconds a step, recording, dispatching and allocating took longer than the arithmetic
// (docs/log.md). The encoder's gradient visits only the items that have one: entmax leaves most
// weights exactly zero, and with them most rows of two of the three large products.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "lab/base/catalogue.h"
#include "lab/nn/maps.h"
#include "lab/nn/parameters.h"
#include "lab/tasks/max_retrieval.h"
#include "tsallis/rows.h"

namespace tsallis::lab {

// Length scaling (docs/definitions.md, L): what multiplies the query of a row that sees n keys.
struct LengthScaling {
  enum class Kind : std::uint8_t { kNone, kSSMax, kScalar };
  Kind kind =
      Kind::kNone;  // "none" | "ssmax": b ln n | "scalar": delta + beta (ln n)^gamma, beta learned
  double gamma = 1.0;  // scalar: the exponent, fixed
  double delta = 1.0;  // scalar: the additive term, fixed

  bool operator==(const LengthScaling&) const = default;
};

// How scores become weights. The keys are the items of a set, which have no order: no
// stick-breaking.
struct SetAttentionConfig : MapConfig {
  // Divides q.k (Velickovic et al. 2024, eq. 12); unset: sqrt(width), as in the listing of their
  // appendix A.3.
  std::optional<double> theta;
  LengthScaling length_scaling;
  // The norm of the attention's output, before the head's MLP; of SetOutputNorms().
  std::string output_norm = "none";

  bool operator==(const SetAttentionConfig&) const = default;
};

// As config.json has it, and the opposite. The latter throws what nlohmann::json throws.
nlohmann::ordered_json ToJson(const SetAttentionConfig& config);
SetAttentionConfig SetAttentionFromJson(const nlohmann::ordered_json& json);

// In the order of LengthScaling::Kind.
const std::vector<CatalogueEntry>& SetLengthScalings();

const std::vector<CatalogueEntry>& SetOutputNorms();

// A caller may ask for these to see the attention itself.
struct AttentionView {
  at::Tensor weights;       // [sets, n] float32
  at::Tensor entropy;       // [sets] float64, nats
  at::Tensor support_size;  // [sets] int64
};

// Result of one batch in training.
struct BatchScore {
  double loss = 0.0;      // cross-entropy, nats, divided as its gradient is
  std::int64_t hits = 0;  // sets whose class was predicted
};

// How far the scores of a set lie apart, mean over the sets of a batch.
struct LogitSpread {
  double spread = 0.0;  // max e_i - min e_i
  // Its upper bound (Velickovic et al. 2024, proposition 3.1; here Q has a bias b and scores have a
  // factor c): 2 |c| (s(Q) |y| + |b|) s(K) max |x_i|, s the largest singular value, y the input of
  // the query projection and x_i those of the key projection.
  double bound = 0.0;
};

class SetAttention {
 public:
  // UsageError if a word of the configuration is unknown.
  SetAttention(std::int64_t width, std::int64_t features, std::int64_t classes,
               const SetAttentionConfig& config, std::uint64_t seed);
  SetAttention(SetAttention&&) noexcept;
  ~SetAttention();

  // Class scores, [sets, classes]. Valid until the next call.
  at::Tensor Forward(const SetBatch& batch, AttentionView* view = nullptr);

  // The spread of the scores as the map sees them.
  LogitSpread Spread(const SetBatch& batch);

  // Forward, mean cross-entropy and its gradient, which replaces FlatGradients(). The mean is over
  // `denominator` sets, of which these may be a part; 0: over these.
  BatchScore LossAndGradient(const SetBatch& batch, std::int64_t denominator = 0);

  // All parameters, and their gradients, in one piece of memory each, so that the optimiser is one
  // call; a parameter starts at a multiple of 64 bytes, the gaps stay zero.
  const at::Tensor& FlatParameters() const { return list_.Flat(); }
  const at::Tensor& FlatGradients() const { return list_.FlatGradients(); }

  // Named views into FlatParameters, and the same of the gradients.
  const std::vector<std::pair<std::string, at::Tensor>>& Parameters() const {
    return list_.Named();
  }
  const std::vector<at::Tensor>& Gradients() const { return list_.Gradients(); }

  // Changes how scores become weights, for evaluating trained weights under another map. UsageError
  // if one of the two length scalings is learned and the other is none, or if the norms differ.
  void Attend(const SetAttentionConfig& config);

 private:
  struct Layer {
    at::Tensor weight, bias;  // [out, in], [1, out]
  };
  struct Workspace;

  // The factor of the folded query of sets of n items, and its derivative in the learned scale.
  struct QueryScale {
    double value = 1.0;
    double slope = 0.0;
  };
  QueryScale ScaleFor(std::int64_t n) const;
  void RunForward(const SetBatch& batch, bool slopes, const RowStats& stats);
  void RunBackward(const SetBatch& batch);

  SetAttentionConfig config_;
  RowMapParams map_;
  double theta_ = 1.0;
  std::int64_t width_, classes_;
  ParameterList list_;
  Layer item1_, item2_, query1_, query2_, attend_query_, attend_key_, attend_value_, attend_out_,
      head1_, head2_;
  Layer out_norm_;           // weight: w of the gain 1 + w, and bias; undefined without a norm
  at::Tensor length_scale_;  // [1, 1]; undefined without length scaling
  std::unique_ptr<Workspace> work_;
};

// The row map; `theta` is applied to the query, not here.
RowMapParams MapOf(const SetAttentionConfig& config);

}  // namespace tsallis::lab
