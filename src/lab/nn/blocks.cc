#include "lab/nn/blocks.h"

#include <ATen/ATen.h>

#include <cmath>
#include <cstddef>
#include <utility>

#include "lab/nn/decoder_kernels.h"
#include "lab/nn/positions.h"
#include "lab/nn/row_stages.h"

namespace tsallis::lab {
namespace {

using at::Tensor;

float Weight(RandomStream& random) { return Normal(random, 0.02); }
float Zero(RandomStream&) { return 0.0F; }
constexpr ParameterGroup kHidden = ParameterGroup::kHidden;

void AddGain(const DecoderConfig& config, const std::string& name, ParameterList& parameters,
             Tensor& gain) {
  if (config.norm_gain) parameters.Add(name, {config.width}, Zero, &gain);
}

// Of what a branch gives, if it is normed.
void AddOutGain(const DecoderConfig& config, const std::string& name, ParameterList& parameters,
                Tensor& gain) {
  if (config.block == "sandwich") AddGain(config, name + "out_norm.weight", parameters, gain);
}

}  // namespace

EmbeddingBlock::EmbeddingBlock(const DecoderConfig& config, ParameterList& parameters,
                               RowWorkers& workers)
    : width_(config.width),
      call_{.workers = &workers, .parameters = &parameters, .embedding = config.embedding} {
  parameters.Add("embedding.weight", {config.vocabulary, width_}, Weight, &weight_,
                 ParameterGroup::kEmbedding);
  const Positions& positions = config.attention.positions;
  if (positions.kind == "sinusoidal") base_ = positions.base;
}

Tensor EmbeddingBlock::operator()(const Tensor& tokens, const Tensor& positions,
                                  std::int64_t length) {
  if (base_ && (!sinusoids_.defined() || sinusoids_.size(0) < length)) {
    sinusoids_ = Sinusoids(2 * length, width_, *base_).to(weight_.device());
  }
  StageCall call = call_;
  call.inputs = {weight_, tokens, sinusoids_, positions.to(at::kInt)};
  return RunStage("embedding", call).front();
}

Gain::Gain(const DecoderConfig& config, const std::string& name, ParameterList& parameters) {
  AddGain(config, name, parameters, value);
}

OutputGate::OutputGate(const DecoderConfig& config, const std::string& name,
                       ParameterList& parameters) {
  if (!config.output_gate) return;
  parameters.Add(name + "output_gate.weight", {config.heads * config.HeadDim(), config.width},
                 Weight, &weight_, kHidden);
}

Tensor OutputGate::operator()(const Tensor& x, const Tensor& value) const {
  if (!weight_.defined()) return value;
  return value * Product(Normed(x, {}), weight_, value.scalar_type()).sigmoid();
}

JoinBlock::JoinBlock(const DecoderConfig& config, const std::string& name,
                     ParameterList& parameters, RowWorkers& workers, at::ScalarType products)
    : call_{.workers = &workers,
            .parameters = &parameters,
            .products = products,
            .norms_output = config.block == "sandwich"},
      gate_(config, name, parameters) {
  parameters.Add(name + "out.weight", {config.width, config.heads * config.HeadDim()}, Weight,
                 &weight_, kHidden);
  AddOutGain(config, name, parameters, gain_);
}

Tensor JoinBlock::operator()(const Tensor& x, const Tensor& value, std::int64_t block) const {
  StageCall call = call_;
  call.block = block;
  call.inputs = {x, gate_(x, value), weight_, gain_};
  return RunStage("join", call).front();
}

FeedForwardBlock::FeedForwardBlock(const DecoderConfig& config, const std::string& name,
                                   ParameterList& parameters, RowWorkers& workers,
                                   at::ScalarType products)
    : call_{.workers = &workers,
            .parameters = &parameters,
            .products = products,
            .norms_output = config.block == "sandwich",
            .activation = config.activation} {
  AddGain(config, name + "norm.weight", parameters, gain_);
  const std::int64_t width = config.width, hidden = config.feed_forward;
  const std::int64_t inputs = ActivationInputs(config.activation);
  if (parameters.Together()) {
    parameters.Add(name + "up.weight", {inputs * hidden, width}, Weight, &up_, kHidden);
  } else {
    std::vector<ParameterList::Part> up;
    if (inputs == 2) up.push_back({name + "gate.weight", {hidden, width}, Weight, kHidden});
    up.push_back({name + "up.weight", {hidden, width}, Weight, kHidden});
    parameters.Add(std::move(up), width, &up_);
  }
  parameters.Add(name + "down.weight", {width, hidden}, Weight, &down_, kHidden);
  AddOutGain(config, name, parameters, out_gain_);
}

Tensor FeedForwardBlock::operator()(const Tensor& x, std::int64_t block) const {
  StageCall call = call_;
  call.block = block;
  call.inputs = {x, gain_, up_, down_, out_gain_};
  return RunStage("feed-forward", call).front();
}

}  // namespace tsallis::lab
