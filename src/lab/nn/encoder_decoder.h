// A transformer that reads a source and writes a target: an encoder whose tokens see all of the
// source, and a decoder whose tokens see those of the target before them and, by heads of their
// own, the encoder's output (Vaswani et al. 2017; with alpha learned by every head Correia, Niculae
// and Martins 2019). For a token t at position i, in layers of config.layers each:
//
//   encoder  x = E[t] f + sinusoid_i;  x += self(x);  x += feed_forward(x);  m = norm(x)
//   decoder  y = E[t] f + sinusoid_i;  y += self(y);  y += context(y, m);  y += feed_forward(y)
//   logits   E norm(y)
//
// E is one matrix for source, target and logits. Blocks, norms, activations and f are those of the
// decoder's configuration; every head, of all three kinds, attends as config.attention says.
//
// Batches are those of the decoder. In a sample, the tokens before the first scored one are the
// source, and the target begins with that token. Results do not depend on the number of threads:
// there is one.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lab/nn/sequence_model.h"

namespace tsallis::lab {

// UsageError, naming the key, for what an encoder-decoder does not have: positions other than none
// and sinusoids, length scaling, patterns, overrides, bfloat16; and as CheckDecoder.
void CheckEncoderDecoder(const DecoderConfig& config, const std::string& path = "model");

class EncoderDecoder : public SequenceModel {
 public:
  // Parameters drawn from `seed`, each from a stream of its own. Throws UsageError as
  // CheckEncoderDecoder.
  EncoderDecoder(const DecoderConfig& config, std::uint64_t seed,
                 const c10::Device& device = c10::kCPU);
  ~EncoderDecoder() override;

  const char* Architecture() const override { return "encoder-decoder"; }
  const DecoderConfig& Config() const override;
  std::string Note() const override;

  // GradientOptions::logits and flow are not asked. InvalidArgument for a batch with a sample that
  // has no source, or nothing that is scored.
  SequenceScore LossAndGradient(const TokenBatch& batch,
                                const GradientOptions& options = {}) override;
  SequenceScore Evaluate(const TokenBatch& batch, const VisibleKeys& visible = nullptr) override;
  // Layers of the encoder, then of the decoder "decoder" and "context" of each.
  std::vector<LayerPlace> Places() const override;
  void VisitLayers(const TokenBatch& batch,
                   const std::function<void(const LayerView&)>& visit) override;

  // The first tokens that a sequence is extended by are its source and, the last of them, where its
  // target begins; InvalidArgument for fewer than two.
  std::unique_ptr<DecodingState> StartDecoding(std::int64_t max_bytes = 0) override;

 private:
  struct State;
  const ParameterList& Learned() const override;
  EncoderDecoder& OnCpu();
  std::unique_ptr<State> state_;
};

}  // namespace tsallis::lab
