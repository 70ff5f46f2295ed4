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

#include "lab/nn/blocks.h"
#include "lab/nn/sequence_model.h"

namespace tsallis::lab {

// UsageError, naming the key, for what an encoder-decoder does not have: positions other than none
// and sinusoids, length scaling, patterns, overrides, bfloat16; and as CheckDecoder.
void CheckEncoderDecoder(const DecoderConfig& config, const std::string& path = "model");

// The attention of one layer on a batch.
struct PackedAttention {
  const char* kind = "";  // "encoder", "decoder", "context"
  std::int64_t layer = 0;
  AttentionBlock::Seen& seen;
  const at::Tensor& queries_begin;  // [samples + 1]: of every sample
  const at::Tensor& keys_begin;
};

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
  SequenceScore Evaluate(const TokenBatch& batch) override;

  // Given what a layer is about to attend with, returns which keys its queries see: bool, broadcast
  // to [heads, rows of queries, rows of keys]; undefined: all that the layer shows by itself. The
  // tensor can only hide some of these. Rows of all samples follow one another.
  using VisibleKeys = std::function<at::Tensor(const PackedAttention&)>;
  // Evaluate with queries that see only the keys that `visible` returns, as Decoder::Evaluate.
  SequenceScore Evaluate(const TokenBatch& batch, const VisibleKeys& visible);

  // On the CPU: of a model elsewhere a copy of its present weights writes. The first tokens that a
  // sequence is extended by are its source and, the last of them, where its target begins;
  // InvalidArgument for fewer than two.
  std::unique_ptr<DecodingState> StartDecoding(std::int64_t max_bytes = 0) override;

  // Runs a batch and calls `visit` with the attention of every layer, the encoder's first. The
  // attention is valid only during the call.
  void VisitLayers(const TokenBatch& batch,
                   const std::function<void(const PackedAttention&)>& visit);

  const at::Tensor& FlatParameters() const override;
  const at::Tensor& FlatGradients() const override;
  const std::vector<std::pair<std::string, at::Tensor>>& Parameters() const override;
  const std::vector<ParameterGroup>& Groups() const override;

 private:
  struct State;
  class CacheDecodingState;
  EncoderDecoder& OnCpu();
  std::unique_ptr<State> state_;
};

}  // namespace tsallis::lab
