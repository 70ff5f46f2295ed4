// A decoder for every task but max retrieval and translation (docs/definitions.md). As configured
// unless told otherwise it is Gemma-2-like (ASEntmax, appendix G). For a token t at position i:
//
//   x = E[t] sqrt(width)                                             (+ sinusoids)
//   x += n2(attention(n1(x))),  x += n4(W_d (gelu(W_g n3(x)) * W_u n3(x)))      in every layer
//   logits = W_h n5(x),  n(x) = x / rms(x) (1 + w)
//
// without biases, soft-capping or windows; gelu in its tanh form; E and W_h are not tied. Attention
// is causal, 1 / sqrt(head_dim) scaled, with as many key heads as query heads; what a head does
// beyond that is its AttentionConfig. Weights and embeddings start at N(0, 0.02^2), norms at w = 0.
// DecoderConfig has other norms, activations and embeddings. docs/explain/decoder.md lists how this
// departs from the reference implementation.
//
// A model is made of blocks (blocks.h, attention_branch.h), whose gradients torch's autograd
// records: of stages (stages.h), fused kernels on the CPU and torch's operations on other devices.
// On the CPU results do not depend on the number of threads, to the bit.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "lab/nn/sequence_model.h"

namespace tsallis::lab {

class Decoder : public SequenceModel {
 public:
  // Parameters drawn from `seed`, each from a stream of its own, the same on every device. Throws
  // UsageError as CheckDecoder. Evaluation takes memory that grows with the longest sequence by
  // little more than keys, values and the residual stream. On the CPU, where every list of new
  // tokens has one, the logits of a growing text have the same bits whatever others share the call.
  Decoder(const DecoderConfig& config, std::uint64_t seed, const c10::Device& device = c10::kCPU);

  const char* Architecture() const override { return "decoder"; }

  // On the CPU, of a model elsewhere on a copy of its present weights: logits of the scored
  // positions, in order, [scored, vocabulary] float32. Without labels, of all positions: [batch *
  // n, vocabulary]; those beyond a sequence's length are 0.
  at::Tensor Forward(const TokenBatch& batch);

  // By layer: "gradient L", how much of the loss's gradient arrives (GradientOptions::flow), and,
  // on the CPU, "keys L", keys that have weight, mean over heads and scored tokens (ASEntmax,
  // figures 3 and 7). On the CPU also "reach D" for powers of two: the Frobenius norm of the
  // Jacobian of y by the stream of a token D to 2 D - 1 before it, where the first layer reads it;
  // y is the output of a sequence's last scored token, divided by its root mean square (ASEntmax,
  // proposition 3.3). Root mean square over tokens and sequences, from a random direction each.
  std::vector<std::pair<std::string, double>> Observe(const TokenBatch& batch) override;

 private:
  Samples Read(const TokenBatch& batch, const SequencePart* part) const override;
  at::Tensor Run(const Samples& samples, const LayerPass& pass) override;
  at::Tensor Extend(const DecodingState::NewTokens& more) override;
  std::vector<const AttentionBranch*> Attention() const override;
  at::Tensor Logits(const at::Tensor& x, std::int64_t block);  // [rows, vocabulary] float32
  void ObserveReach(const TokenBatch& batch, std::vector<std::pair<std::string, double>>& observed);

  std::deque<SelfLayer> layers_;
};

}  // namespace tsallis::lab
