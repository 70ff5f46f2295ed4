#include "lab/nn/encoder_decoder.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>

#include "lab/base/errors.h"
#include "lab/base/sequential_products.h"
#include "lab/nn/attention_branch.h"
#include "tsallis/error.h"

namespace tsallis::lab {
namespace {

using at::Tensor;

// Rows whose logits are in memory at a time where no gradient is wanted.
constexpr std::int64_t kLogitRows = 2048;

// What a block's parameters are called, in the order in which they lie.
const std::vector<std::string> kNames = {"norm.weight",      "out_norm.weight", "query.weight",
                                         "key_value.weight", "up.weight",       "out.weight",
                                         "down.weight",      "alpha",           "sink"};

struct EncoderLayer {
  EncoderLayer(const DecoderConfig& config, std::int64_t layer, ParameterList& parameters,
               RowWorkers& workers, const std::string& name)
      : self(config, {"encoder", layer, Sight::kAll}, name + "attention.", parameters, workers,
             at::kFloat),
        feed_forward(config, name + "feed_forward.", parameters, workers, at::kFloat) {
    for (const char* block : {"attention.", "feed_forward."}) {
      parameters.Order(name + block, kNames);
    }
  }

  AttentionBranch self;
  FeedForwardBlock feed_forward;
};

struct TargetLayer {
  TargetLayer(const DecoderConfig& config, std::int64_t layer, ParameterList& parameters,
              RowWorkers& workers, const std::string& name)
      : self(config, {"decoder", layer, Sight::kBefore}, name + "attention.", parameters, workers,
             at::kFloat),
        context(config, {"context", layer, Sight::kOther}, name + "context.", parameters, workers,
                at::kFloat),
        feed_forward(config, name + "feed_forward.", parameters, workers, at::kFloat) {
    for (const char* block : {"attention.", "context.", "feed_forward."}) {
      parameters.Order(name + block, kNames);
    }
  }

  AttentionBranch self, context;
  FeedForwardBlock feed_forward;
};

// A batch as the model reads it.
struct Samples {
  DecoderRows source, target;
};

Samples SamplesOf(const TokenBatch& batch, std::int64_t vocabulary, const c10::Device& device) {
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
  return {RowsOf(sources, {}, vocabulary, device),
          RowsOf(targets, target_labels, vocabulary, device)};
}

[[noreturn]] void Refuse(const std::string& key, const std::string& what) {
  throw UsageError(key + ": " + what);
}

}  // namespace

void CheckEncoderDecoder(const DecoderConfig& config, const std::string& path) {
  CheckDecoder(config, path);
  const AttentionConfig& attention = config.attention;
  const std::string key = path + ".attention";
  const std::string of = " with model \"encoder-decoder\"";
  const std::string& positions = attention.positions.kind;
  if (positions != "nope" && positions != "sinusoidal") {
    Refuse(key + ".positions.kind",
           "expected \"nope\" or \"sinusoidal\"" + of + ", got \"" + positions + "\"");
  }
  if (attention.map == "stick-breaking") {
    Refuse(key + ".map",
           "expected a map that needs no order of keys" + of + ", got \"stick-breaking\"");
  }
  if (attention.length_scaling.kind != "none") {
    Refuse(key + ".length_scaling.kind",
           "expected \"none\"" + of + ", got \"" + attention.length_scaling.kind + "\"");
  }
  if (attention.pattern.kind != "none") {
    Refuse(key + ".pattern.kind",
           "expected \"none\"" + of + ", got \"" + attention.pattern.kind + "\"");
  }
  if (attention.scale_invariant.value_or(0.0) > 0.0)
    Refuse(key + ".scale_invariant", "expected none" + of);
  if (!config.overrides.empty()) Refuse(path + ".override", "expected none" + of);
  if (config.compute == "bfloat16") {
    Refuse(path + ".compute", "expected \"auto\" or \"float32\"" + of + ", got \"bfloat16\"");
  }
}

struct EncoderDecoder::State {
  State(const DecoderConfig& given, std::uint64_t seed, const c10::Device& on)
      : config(WithDefaults(given, CheckEncoderDecoder, "float32")),
        device(on),
        parameters(on, Naming::kTogether),
        embed(config, parameters, workers) {
    for (std::int64_t l = 0; l < config.layers; ++l) {
      encoder.emplace_back(config, l, parameters, workers, fmt::format("encoder.{}.", l));
    }
    memory_gain.emplace(config, "encoder.norm.weight", parameters);
    for (std::int64_t l = 0; l < config.layers; ++l) {
      decoder.emplace_back(config, l, parameters, workers, fmt::format("decoder.{}.", l));
    }
    gain.emplace(config, "norm.weight", parameters);
    parameters.Allocate(seed);
  }

  Tensor Embed(const DecoderRows& rows) { return embed(rows.tokens, rows.positions, rows.reach); }

  MemoryStream Encode(const DecoderRows& source, const LayerPass& pass) {
    Tensor x = Embed(source);
    for (EncoderLayer& layer : encoder) {
      x = layer.feed_forward(layer.self(x, source, pass), source.block);
    }
    return {x, memory_gain->value, source};
  }

  // The output for every row of the target, before the last norm. memory: null on a cache.
  Tensor Decode(const DecoderRows& target, MemoryStream* memory, const LayerPass& pass) {
    Tensor x = Embed(target);
    for (TargetLayer& layer : decoder) {
      x = layer.self(x, target, pass);
      x = layer.context(x, target, pass, {}, memory);
      x = layer.feed_forward(x, target.block);
    }
    return x;
  }

  Tensor Logits(const Tensor& x) const { return Product(Normed(x, gain->value), embed.Table()); }

  // The losses of the scored rows and their best columns, in pieces, and the sum of the losses over
  // `denominator`, 0: over their number.
  struct Judged {
    Tensors losses, best;
    Tensor sum;
    SequenceScore Score(const DecoderRows& target) const {
      return SequenceScore::Of(target.Sequences(), losses, best, target.label, target.sequence);
    }
  };
  Judged Judge(const Tensor& x, const DecoderRows& target, std::int64_t denominator = 0) {
    const auto there = [&](const std::vector<std::int64_t>& numbers) {
      return at::tensor(numbers, at::kLong).to(device);
    };
    const Tensor scored = x.index_select(0, there(target.scored)), labels = there(target.label);
    const std::int64_t rows = scored.size(0), of = denominator > 0 ? denominator : rows;
    const std::int64_t piece =
        c10::GradMode::is_enabled() ? std::max<std::int64_t>(1, rows) : kLogitRows;
    Judged all;
    Tensors sums;
    for (std::int64_t begin = 0; begin == 0 || begin < rows; begin += piece) {
      const std::int64_t count = std::min(piece, rows - begin);
      const Tensors judged = RunStage(
          "cross-entropy", {.inputs = {scored.narrow(0, begin, count), gain->value, embed.Table(),
                                       labels.narrow(0, begin, count)},
                            .workers = &workers,
                            .parameters = &parameters,
                            .weight = 1.0 / static_cast<double>(std::max<std::int64_t>(1, of))});
      sums.push_back(judged[0]);
      all.losses.push_back(judged[1]);
      all.best.push_back(judged[2]);
    }
    all.sum = at::stack(sums).sum();
    return all;
  }

  Tensor Run(const Samples& samples, const LayerPass& pass = {}) {
    MemoryStream memory = Encode(samples.source, pass);
    return Decode(samples.target, &memory, pass);
  }

  Tensor Extend(const DecodingState::NewTokens& more) {
    const SequentialProducts guard;
    const c10::NoGradGuard no_gradient;
    workers.SetThreads(guard.threads());
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
    const DecoderRows rows = RowsOf(more.cache, config.vocabulary, more.sequences, target, device);
    if (more.sequences.empty()) return at::empty({0, config.vocabulary});
    for (std::size_t s = 0; s < count; ++s) {
      if (!source[s].empty()) Read(source[s], more.cache, {more.sources[s]});
    }
    const CachedRows own(more.cache, more.sequences, rows, true);
    const CachedRows sources(more.cache, more.sources, rows, false);
    const Tensor x = Decode(rows, nullptr, {.own = &own, .sources = &sources});
    return Logits(x.index_select(0, at::tensor(rows.scored, at::kLong).to(device)))
        .narrow(0, 0, static_cast<std::int64_t>(count))
        .cpu();
  }

  void Read(const std::vector<std::int64_t>& source, TextCache& cache,
            const std::vector<KvCache::Sequence>& to) {
    const DecoderRows rows = RowsOf({source}, {}, config.vocabulary, device);
    const CachedRows cached(cache, to, rows, true);
    MemoryStream memory = Encode(rows, {});
    for (TargetLayer& layer : decoder) layer.context.Remember(memory, cached);
  }

  DecoderConfig config;
  c10::Device device;
  ParameterList parameters;
  RowWorkers workers;
  EmbeddingBlock embed;
  std::optional<Gain> memory_gain, gain;
  std::deque<EncoderLayer> encoder;
  std::deque<TargetLayer> decoder;
  std::unique_ptr<EncoderDecoder> copy;  // of a model elsewhere, on the CPU
};

EncoderDecoder::EncoderDecoder(const DecoderConfig& config, std::uint64_t seed,
                               const c10::Device& device)
    : state_(std::make_unique<State>(config, seed, device)) {}
EncoderDecoder::~EncoderDecoder() = default;

const DecoderConfig& EncoderDecoder::Config() const { return state_->config; }
std::string EncoderDecoder::Note() const {
  return fmt::format("{}", fmt::join(state_->encoder.front().self.Notes(), "; "));
}
const ParameterList& EncoderDecoder::Learned() const { return state_->parameters; }

SequenceScore EncoderDecoder::LossAndGradient(const TokenBatch& batch,
                                              const GradientOptions& options) {
  CheckWhole(options);
  const SequentialProducts guard;
  state_->workers.SetThreads(guard.threads());
  const Samples samples = SamplesOf(batch, state_->config.vocabulary, state_->device);
  if (!options.accumulate) FlatGradients().zero_();
  const State::Judged judged =
      state_->Judge(state_->Run(samples), samples.target, options.denominator);
  judged.sum.backward();
  if (options.ready) options.ready(0, FlatGradients().numel());
  return judged.Score(samples.target);  // the host waits for the device here alone
}

SequenceScore EncoderDecoder::Evaluate(const TokenBatch& batch, const VisibleKeys& visible) {
  if (visible && !state_->device.is_cpu()) return OnCpu().Evaluate(batch, visible);
  const SequentialProducts guard;
  const c10::NoGradGuard no_gradient;
  state_->workers.SetThreads(guard.threads());
  const Samples samples = SamplesOf(batch, state_->config.vocabulary, state_->device);
  const Tensor x = state_->Run(samples, {.visible = visible});
  return state_->Judge(x, samples.target).Score(samples.target);
}

std::vector<LayerPlace> EncoderDecoder::Places() const {
  std::vector<LayerPlace> places;
  for (const EncoderLayer& layer : state_->encoder) places.push_back(layer.self.Place());
  for (const TargetLayer& layer : state_->decoder) {
    places.push_back(layer.self.Place());
    places.push_back(layer.context.Place());
  }
  return places;
}

void EncoderDecoder::VisitLayers(const TokenBatch& batch,
                                 const std::function<void(const LayerView&)>& visit) {
  State& state = *OnCpu().state_;
  const SequentialProducts guard;
  const c10::NoGradGuard no_gradient;
  state.workers.SetThreads(guard.threads());
  state.Run(SamplesOf(batch, state.config.vocabulary, state.device), {.visit = visit});
}

EncoderDecoder& EncoderDecoder::OnCpu() { return lab::OnCpu(*this, state_->copy); }

std::unique_ptr<DecodingState> EncoderDecoder::StartDecoding(std::int64_t max_bytes) {
  State& state = *state_;
  return std::make_unique<DecodingState>(
      state.config, true, max_bytes, state.device,
      [&state](const DecodingState::NewTokens& more) { return state.Extend(more); });
}

}  // namespace tsallis::lab
