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
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "lab/nn/sequence_model.h"

namespace tsallis::lab {

// UsageError, naming the key, for what an encoder-decoder does not have: positions other than none
// and sinusoids, length scaling, patterns, overrides, bfloat16; and as CheckDecoder.
void CheckEncoderDecoder(const DecoderConfig& config, const std::string& path = "model");

class EncoderDecoder : public SequenceModel {
 public:
  // Parameters drawn from `seed`, each from a stream of its own. Throws UsageError as
  // CheckEncoderDecoder. GradientOptions::flow is not asked. InvalidArgument for a part of
  // sequences, and for a batch with a sample that has no source, or nothing that is scored. The
  // first tokens that a growing sequence is extended by are its source and, the last of them, where
  // its target begins; InvalidArgument for fewer than two.
  EncoderDecoder(const DecoderConfig& config, std::uint64_t seed,
                 const c10::Device& device = c10::kCPU);

  const char* Architecture() const override { return "encoder-decoder"; }

 private:
  struct TargetLayer : Fixed {
    TargetLayer(const DecoderConfig& config, std::int64_t layer, const std::string& name,
                ParameterList& parameters, RowWorkers& workers);

    AttentionBranch self, context;
    FeedForwardBlock feed_forward;
  };

  Samples Read(const TokenBatch& batch, const SequencePart* part) const override;
  at::Tensor Run(const Samples& samples, const LayerPass& pass) override;
  bool ReadsSources() const override { return true; }
  at::Tensor Extend(const DecodingState::NewTokens& more) override;
  // Layers of the encoder, then of the decoder "decoder" and "context" of each.
  std::vector<const AttentionBranch*> Attention() const override;

  MemoryStream Encode(const DecoderRows& source, const LayerPass& pass);
  // The output for every row of the target, before the last norm. memory: null on a cache.
  at::Tensor Decode(const DecoderRows& target, MemoryStream* memory, const LayerPass& pass);

  std::optional<Gain> memory_gain_;
  std::deque<SelfLayer> encoder_;
  std::deque<TargetLayer> decoder_;
};

}  // namespace tsallis::lab
