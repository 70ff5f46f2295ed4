// The parts of models whose gradients torch's autograd records: each is some lines over tensors of
// rows, [rows, width], and new architectures are made of them (encoder_decoder.cc). Blocks are made
// of stages (stages.h), compute where their parameters are, and take what they read from there.
// Attention is a block of its own file (layer_attention.h).
//
// A block stays where it is made: its parameters are filled in by address.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>

#include "lab/nn/decoder_config.h"
#include "lab/nn/parameters.h"
#include "lab/nn/stages.h"

namespace tsallis::lab {

// Neither copied nor moved.
struct Fixed {
  Fixed() = default;
  Fixed(const Fixed&) = delete;
  Fixed& operator=(const Fixed&) = delete;
};

// The input of the first layer: embeddings by config.embedding, and sinusoids where positions are.
class EmbeddingBlock : Fixed {
 public:
  EmbeddingBlock(const DecoderConfig& config, ParameterList& parameters, RowWorkers& workers);
  // tokens: [rows] int64; positions: [rows] integers below `length`.
  at::Tensor operator()(const at::Tensor& tokens, const at::Tensor& positions, std::int64_t length);
  const at::Tensor& Table() const { return weight_; }  // [vocabulary, width]

 private:
  std::int64_t width_;
  StageCall call_;  // without inputs
  at::Tensor weight_;
  std::optional<double> base_;  // of sinusoids
  at::Tensor sinusoids_;        // [positions so far, width]
};

// The learned gain of a norm, [width], where config.norm_gain; undefined elsewhere.
struct Gain : Fixed {
  Gain(const DecoderConfig& config, const std::string& name, ParameterList& parameters);
  at::Tensor value;
};

// value * sigmoid(W norm(x)) where config.output_gate, else value.
class OutputGate : Fixed {
 public:
  OutputGate(const DecoderConfig& config, const std::string& name, ParameterList& parameters);
  // x: [rows, width]; value: [rows, heads head_dim].
  at::Tensor operator()(const at::Tensor& x, const at::Tensor& value) const;

 private:
  at::Tensor weight_;  // [heads head_dim, width]; undefined: no gate
};

// x + W value, or x + norm(W value) where config.block is "sandwich".
class JoinBlock : Fixed {
 public:
  JoinBlock(const DecoderConfig& config, const std::string& name, ParameterList& parameters,
            RowWorkers& workers, at::ScalarType products);
  // x: [rows, width]; value: [rows, heads head_dim]; block: as StageCall's.
  at::Tensor operator()(const at::Tensor& x, const at::Tensor& value, std::int64_t block) const;

 private:
  StageCall call_;  // without inputs
  at::Tensor weight_, gain_;
  OutputGate gate_;
};

// x + W_d activation(W_u norm(x)), config.activation, or with a norm of the sum's second part where
// config.block is "sandwich".
class FeedForwardBlock : Fixed {
 public:
  // products: what they are computed in.
  FeedForwardBlock(const DecoderConfig& config, const std::string& name, ParameterList& parameters,
                   RowWorkers& workers, at::ScalarType products);
  // block: as StageCall's.
  at::Tensor operator()(const at::Tensor& x, std::int64_t block = kRowBlock) const;

 private:
  StageCall call_;  // without inputs
  at::Tensor gain_, out_gain_;
  at::Tensor up_, down_;  // [1 or 2 hidden, width] with the gate first, [width, hidden]
};

}  // namespace tsallis::lab
