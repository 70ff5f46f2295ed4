// The parts of models whose gradients torch's autograd records: each is some lines over tensors of
// rows, [rows, width], and new architectures are made of them (encoder_decoder.cc). Blocks are made
// of stages (stages.h), compute where their parameters are, and take what they read from there.
// Attention is a block of its own file (layer_attention.h).
//
// A block stays where it is made: its parameters are filled in by address.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lab/nn/decoder_config.h"
#include "lab/nn/parameters.h"
#include "lab/nn/stages.h"

namespace tsallis::lab {

// What a model calls the parameters of its blocks.
enum class Naming : std::uint8_t {
  kApart,     // key, value, and the gate of a feed-forward layer have names of their own
  kTogether,  // "key_value", and "up" whose first half is the gate
};

// Learned tensors that autograd sees. Blocks declare theirs, then all are made at once.
class LeafParameters {
 public:
  explicit LeafParameters(const c10::Device& device, Naming naming = Naming::kApart)
      : device_(device), naming_(naming) {}
  const c10::Device& Device() const { return device_; }
  bool Together() const { return naming_ == Naming::kTogether; }

  using Draw = std::function<float(RandomStream&)>;

  // `leaf` becomes a leaf of this shape whose gradient is that of the list; it must live until
  // Allocate().
  void Add(const std::string& name, std::vector<std::int64_t> shape, Draw draw, at::Tensor* leaf,
           ParameterGroup group = ParameterGroup::kScalar);
  // Parts that lie behind each other as one leaf, [rows, columns].
  void Add(std::vector<ParameterList::Part> parts, std::int64_t columns, at::Tensor* leaf);
  // Those whose names begin with `prefix`, which were added one after the other, lie in this order
  // of what follows it; before them those that it leaves out, as they were added.
  void Order(const std::string& prefix, const std::vector<std::string>& names);
  // half: products read rounded copies, which Refresh() renews.
  void Allocate(std::uint64_t seed, bool half = false);
  void Refresh() { list_.Refresh(); }

  const ParameterList& List() const { return list_; }

 private:
  struct Leaf {
    std::vector<ParameterList::Part> parts;
    std::int64_t columns;
    std::vector<std::int64_t> shape;
    at::Tensor* tensor;
    Parameter parameter;
  };
  c10::Device device_;
  Naming naming_;
  ParameterList list_;
  std::deque<Leaf> leaves_;
};

// Neither copied nor moved.
struct Fixed {
  Fixed() = default;
  Fixed(const Fixed&) = delete;
  Fixed& operator=(const Fixed&) = delete;
};

// The input of the first layer: embeddings by config.embedding, and sinusoids where positions are.
class EmbeddingBlock : Fixed {
 public:
  EmbeddingBlock(const DecoderConfig& config, LeafParameters& parameters, RowWorkers& workers);
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
  Gain(const DecoderConfig& config, const std::string& name, LeafParameters& parameters);
  at::Tensor value;
};

// The gains of a branch's norms, as above.
struct BranchGains {
  at::Tensor before, after;
};

// value * sigmoid(W norm(x)) where config.output_gate, else value.
class OutputGate : Fixed {
 public:
  OutputGate(const DecoderConfig& config, const std::string& name, LeafParameters& parameters);
  // x: [rows, width]; value: [rows, heads head_dim].
  at::Tensor operator()(const at::Tensor& x, const at::Tensor& value) const;

 private:
  at::Tensor weight_;  // [heads head_dim, width]; undefined: no gate
};

// x + W value, or x + norm(W value) where config.block is "sandwich".
class JoinBlock : Fixed {
 public:
  JoinBlock(const DecoderConfig& config, const std::string& name, LeafParameters& parameters,
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
  FeedForwardBlock(const DecoderConfig& config, const std::string& name, LeafParameters& parameters,
                   RowWorkers& workers, at::ScalarType products);
  // block: as StageCall's.
  at::Tensor operator()(const at::Tensor& x, std::int64_t block = kRowBlock) const;

 private:
  StageCall call_;  // without inputs
  BranchGains gains_;
  at::Tensor up_, down_;  // [1 or 2 hidden, width] with the gate first, [width, hidden]
};

}  // namespace tsallis::lab
