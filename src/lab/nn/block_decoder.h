// The decoder (decoder.h) as blocks whose gradients torch records: the same architecture,
// parameters and results up to rounding, on any device. Models on a GPU use it, and
// processes that split sequences. Otherwise the CPU uses the decoder of decoder.h, whose chains
// keep activations in the cache.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lab/nn/decoder.h"
#include "lab/nn/sequence_model.h"

namespace tsallis::lab {

// CheckDecoder, and UsageError, naming the key, for what a decoder of blocks does not have: fixed
// patterns.
void CheckBlockDecoder(const DecoderConfig& config, const std::string& path = "model");

class BlockDecoder : public SequenceModel {
 public:
  // The parameters of Decoder(config, seed), bit for bit, on a device. Throws UsageError as
  // CheckBlockDecoder.
  BlockDecoder(const DecoderConfig& config, std::uint64_t seed, const c10::Device& device);
  ~BlockDecoder() override;

  const char* Architecture() const override { return "decoder"; }
  const DecoderConfig& Config() const override;
  std::string Note() const override;

  // The host waits for the device once, when all is under way. Gradients are ready all at once.
  SequenceScore LossAndGradient(const TokenBatch& batch,
                                const GradientOptions& options = {}) override;
  SequenceScore Evaluate(const TokenBatch& batch) override;

  // Decodes on the CPU, with a copy of the present weights.
  std::unique_ptr<DecodingState> StartDecoding(std::int64_t max_bytes = 0) override;

  // By layer: "gradient L", as Decoder's.
  std::vector<std::pair<std::string, double>> Observe(const TokenBatch& batch) override;

  const at::Tensor& FlatParameters() const override;
  const at::Tensor& FlatGradients() const override;
  const std::vector<std::pair<std::string, at::Tensor>>& Parameters() const override;
  const std::vector<ParameterGroup>& Groups() const override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tsallis::lab
