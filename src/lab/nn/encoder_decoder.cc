#include "lab/nn/encoder_decoder.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "lab/base/errors.h"
#include "tsallis/error.h"

namespace tsallis::lab {
namespace {

using at::Tensor;

// What a block's parameters are called, in the order in which they lie.
const std::vector<std::string> kNames = {"norm.weight",      "out_norm.weight", "query.weight",
                                         "key_value.weight", "up.weight",       "out.weight",
                                         "down.weight",      "alpha",           "sink"};

void Order(ParameterList& parameters, const std::string& layer) {
  for (const char* block : {"attention.", "context.", "feed_forward."}) {
    parameters.Order(layer + block, kNames);
  }
}

}  // namespace

void CheckEncoderDecoder(const DecoderConfig& config, const std::string& path) {
  CheckDecoder(config, path);
  const auto expect = [&](bool fine, const char* key, const char* expected,
                          const std::string& got = "") {
    if (fine) return;
    throw UsageError(fmt::format("{}.{}: expected {} with model \"encoder-decoder\"{}", path, key,
                                 expected, got.empty() ? "" : ", got \"" + got + "\""));
  };
  const AttentionConfig& attention = config.attention;
  const std::string& positions = attention.positions.kind;
  const std::string& scaling = attention.length_scaling.kind;
  expect(positions == "nope" || positions == "sinusoidal", "attention.positions.kind",
         "\"nope\" or \"sinusoidal\"", positions);
  expect(attention.map != "stick-breaking", "attention.map", "a map that needs no order of keys",
         attention.map);
  expect(scaling == "none", "attention.length_scaling.kind", "\"none\"", scaling);
  expect(attention.pattern.kind == "none", "attention.pattern.kind", "\"none\"",
         attention.pattern.kind);
  expect(attention.scale_invariant.value_or(0.0) <= 0.0, "attention.scale_invariant", "none");
  expect(config.overrides.empty(), "override", "none");
  expect(config.compute != "bfloat16", "compute", "\"auto\" or \"float32\"", config.compute);
}

EncoderDecoder::TargetLayer::TargetLayer(const DecoderConfig& config, std::int64_t layer,
                                         const std::string& name, ParameterList& parameters,
                                         RowWorkers& workers)
    : self(config, {"decoder", layer, Sight::kBefore}, name + "attention.", parameters, workers,
           at::kFloat),
      context(config, {"context", layer, Sight::kOther}, name + "context.", parameters, workers,
              at::kFloat),
      feed_forward(config, name + "feed_forward.", parameters, workers, at::kFloat) {}

EncoderDecoder::EncoderDecoder(const DecoderConfig& config, std::uint64_t seed,
                               const c10::Device& device)
    : SequenceModel(WithDefaults(config, CheckEncoderDecoder, "float32"), device,
                    Naming::kTogether) {
  for (std::int64_t l = 0; l < config_.layers; ++l) {
    const std::string name = fmt::format("encoder.{}.", l);
    encoder_.emplace_back(config_, LayerPlace{"encoder", l, Sight::kAll}, name, parameters_,
                          workers_, at::kFloat);
    Order(parameters_, name);
  }
  memory_gain_.emplace(config_, "encoder.norm.weight", parameters_);
  for (std::int64_t l = 0; l < config_.layers; ++l) {
    const std::string name = fmt::format("decoder.{}.", l);
    decoder_.emplace_back(config_, l, name, parameters_, workers_);
    Order(parameters_, name);
  }
  Finish(seed, false);
}

std::vector<const AttentionBranch*> EncoderDecoder::Attention() const {
  std::vector<const AttentionBranch*> all;
  for (const SelfLayer& layer : encoder_) all.push_back(&layer.attention);
  for (const TargetLayer& layer : decoder_) {
    all.push_back(&layer.self);
    all.push_back(&layer.context);
  }
  return all;
}

EncoderDecoder::Samples EncoderDecoder::Read(const TokenBatch& batch,
                                             const SequencePart* part) const {
  if (part != nullptr) {
    throw InvalidArgument("options.part", "null: this model takes whole sequences", "a part");
  }
  CheckBatch(batch, config_.vocabulary);
  const Tensor tokens = batch.tokens.contiguous(), labels = batch.labels.contiguous();
  const std::int64_t count = tokens.size(0), n = tokens.size(1);
  std::vector<std::vector<std::int64_t>> sources, targets, target_labels;
  for (std::int64_t b = 0; b < count; ++b) {
    const std::int64_t length =
        batch.lengths.defined() ? batch.lengths.const_data_ptr<std::int64_t>()[b] : n;
    const std::int64_t* token = tokens.const_data_ptr<std::int64_t>() + b * n;
    const std::int64_t* label = labels.const_data_ptr<std::int64_t>() + b * n;
    const std::int64_t* first =
        std::find_if(label, label + length, [](std::int64_t l) { return l != kNotScored; });
    const std::int64_t split = first - label;
    if (split == 0 || split == length) {
      throw InvalidArgument(
          "labels",
          "samples that begin with tokens that are not scored, the source, and "
          "go on with some that are",
          split == 0 ? "one whose first token is scored" : "one without scored tokens");
    }
    sources.emplace_back(token, token + split);
    targets.emplace_back(token + split, token + length);
    target_labels.emplace_back(first, label + length);
  }
  return {.target = RowsOf(targets, target_labels, config_.vocabulary, device_),
          .source = RowsOf(sources, {}, config_.vocabulary, device_)};
}

MemoryStream EncoderDecoder::Encode(const DecoderRows& source, const LayerPass& pass) {
  Tensor x = Embed(source);
  for (SelfLayer& layer : encoder_) {
    x = layer.feed_forward(layer.attention(x, source, pass), source.block);
  }
  return {x, memory_gain_->value, source};
}

Tensor EncoderDecoder::Decode(const DecoderRows& target, MemoryStream* memory,
                              const LayerPass& pass) {
  Tensor x = Embed(target);
  for (TargetLayer& layer : decoder_) {
    x = layer.self(x, target, pass);
    x = layer.context(x, target, pass, {}, memory);
    x = layer.feed_forward(x, target.block);
  }
  return x.index_select(0, at::tensor(target.scored, at::kLong).to(device_));
}

Tensor EncoderDecoder::Run(const Samples& samples, const LayerPass& pass) {
  MemoryStream memory = Encode(samples.source, pass);
  return Decode(samples.target, &memory, pass);
}

Tensor EncoderDecoder::Extend(const DecodingState::NewTokens& more) {
  const std::size_t count = more.sequences.size();
  std::vector<std::vector<std::int64_t>> source(count), target = more.tokens;
  for (std::size_t s = 0; s < std::min(count, target.size()); ++s) {
    std::vector<std::int64_t>& tokens = target[s];
    if (LengthOf(more.cache, more.sources[s]) > 0 || tokens.empty()) continue;
    if (tokens.size() < 2) {
      throw InvalidArgument(fmt::format("tokens[{}]", s),
                            "a source and the token that the target begins with", "1 token");
    }
    source[s].assign(tokens.begin(), tokens.end() - 1);
    tokens = {tokens.back()};
  }
  const DecoderRows rows = RowsOf(more.cache, config_.vocabulary, more.sequences, target, device_);
  if (more.sequences.empty()) return at::empty({0, config_.vocabulary});
  for (std::size_t s = 0; s < count; ++s) {
    if (source[s].empty()) continue;
    const std::vector<KvCache::Sequence> to = {more.sources[s]};
    const DecoderRows read = RowsOf({source[s]}, {}, config_.vocabulary, device_);
    const CachedRows cached(more.cache, to, read, true);
    MemoryStream memory = Encode(read, {});
    for (TargetLayer& layer : decoder_) layer.context.Remember(memory, cached);
  }
  const CachedRows own(more.cache, more.sequences, rows, true);
  const CachedRows sources(more.cache, more.sources, rows, false);
  const Tensor x = Decode(rows, nullptr, {.own = &own, .sources = &sources});
  return Product(Normed(x, gain_->value), Head())
      .narrow(0, 0, static_cast<std::int64_t>(count))
      .cpu();
}

}  // namespace tsallis::lab
