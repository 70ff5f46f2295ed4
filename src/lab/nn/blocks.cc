#include "lab/nn/blocks.h"

#include <ATen/ATen.h>

#include <algorithm>
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

void AddGain(const DecoderConfig& config, const std::string& name, LeafParameters& parameters,
             Tensor& gain) {
  if (config.norm_gain) parameters.Add(name, {config.width}, Zero, &gain);
}

// Of what a branch gives, if it is normed.
void AddOutGain(const DecoderConfig& config, const std::string& name, LeafParameters& parameters,
                Tensor& gain) {
  if (config.block == "sandwich") AddGain(config, name + "out_norm.weight", parameters, gain);
}

}  // namespace

void LeafParameters::Add(const std::string& name, std::vector<std::int64_t> shape, Draw draw,
                         Tensor* leaf, ParameterGroup group) {
  leaves_.push_back({{{name, shape, std::move(draw), group}}, shape.back(), shape, leaf, {}});
}

void LeafParameters::Add(std::vector<ParameterList::Part> parts, std::int64_t columns,
                         Tensor* leaf) {
  leaves_.push_back({std::move(parts), columns, {-1, columns}, leaf, {}});
}

void LeafParameters::Order(const std::string& prefix, const std::vector<std::string>& names) {
  const auto inside = [&](const Leaf& leaf) { return leaf.parts[0].name.starts_with(prefix); };
  const auto place = [&](const Leaf& leaf) {
    const std::string name = leaf.parts[0].name.substr(prefix.size());
    const auto found = std::find(names.begin(), names.end(), name);
    return found == names.end() ? -1 : found - names.begin();
  };
  const auto first = std::find_if(leaves_.begin(), leaves_.end(), inside);
  std::stable_sort(first, std::find_if_not(first, leaves_.end(), inside),
                   [&](const Leaf& a, const Leaf& b) { return place(a) < place(b); });
}

void LeafParameters::Allocate(std::uint64_t seed, bool half) {
  for (Leaf& leaf : leaves_) list_.Add(std::move(leaf.parts), leaf.columns, &leaf.parameter);
  list_.Allocate(seed, half, device_);
  for (Leaf& leaf : leaves_) {
    *leaf.tensor = leaf.parameter.value.view(leaf.shape).detach().requires_grad_(true);
    leaf.tensor->mutable_grad() = leaf.parameter.gradient.view(leaf.shape);
  }
}

EmbeddingBlock::EmbeddingBlock(const DecoderConfig& config, LeafParameters& parameters,
                               RowWorkers& workers)
    : width_(config.width),
      call_{.workers = &workers, .parameters = &parameters.List(), .embedding = config.embedding} {
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

Gain::Gain(const DecoderConfig& config, const std::string& name, LeafParameters& parameters) {
  AddGain(config, name, parameters, value);
}

OutputGate::OutputGate(const DecoderConfig& config, const std::string& name,
                       LeafParameters& parameters) {
  if (!config.output_gate) return;
  parameters.Add(name + "output_gate.weight", {config.heads * config.HeadDim(), config.width},
                 Weight, &weight_, kHidden);
}

Tensor OutputGate::operator()(const Tensor& x, const Tensor& value) const {
  if (!weight_.defined()) return value;
  return value * Product(Normed(x, {}), weight_, value.scalar_type()).sigmoid();
}

JoinBlock::JoinBlock(const DecoderConfig& config, const std::string& name,
                     LeafParameters& parameters, RowWorkers& workers, at::ScalarType products)
    : call_{.workers = &workers,
            .parameters = &parameters.List(),
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
                                   LeafParameters& parameters, RowWorkers& workers,
                                   at::ScalarType products)
    : call_{.workers = &workers,
            .parameters = &parameters.List(),
            .products = products,
            .norms_output = config.block == "sandwich",
            .activation = config.activation} {
  AddGain(config, name + "norm.weight", parameters, gains_.before);
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
  AddOutGain(config, name, parameters, gains_.after);
}

Tensor FeedForwardBlock::operator()(const Tensor& x, std::int64_t block) const {
  StageCall call = call_;
  call.block = block;
  call.inputs = {x, gains_.before, up_, down_, gains_.after};
  return RunStage("feed-forward", call).front();
}

}  // namespace tsallis::lab
