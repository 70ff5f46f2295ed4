#include "lab/nn/encoder_decoder.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>

#include "lab/base/errors.h"
#include "lab/base/sequential_products.h"
#include "lab/nn/decoder_rows.h"
#include "tsallis/error.h"
#include "tsallis/kv_cache.h"

namespace tsallis::lab {
namespace {

using at::Tensor;
using SeenVisitor = std::function<void(AttentionBlock::Seen&)>;

// Rows whose logits are in memory at a time where no gradient is wanted.
constexpr std::int64_t kLogitRows = 2048;

// x plus attention of its tokens to `memory`; undefined: to x itself.
Tensor Attended(const AttentionBlock& heads, const Tensor& x, const Tensor& memory,
                const Packed& queries, const Packed& keys, const SeenVisitor& visit) {
  const Tensor in = heads.Norm(x);
  const auto [k, v] = heads.Memory(memory.defined() ? memory : in);
  return heads.Attend(x, heads.Queries(in), k, v, queries.begins, keys.begins,
                      {queries.longest, keys.longest}, visit);
}

struct EncoderLayer {
  EncoderLayer(const DecoderConfig& config, const std::string& name, LeafParameters& parameters,
               RowWorkers& workers)
      : self(config, name + "attention.", false, parameters, workers),
        feed_forward(config, name + "feed_forward.", FeedForwardBlock::Layout::kTogether,
                     parameters, workers) {}

  AttentionBlock self;
  FeedForwardBlock feed_forward;
};

struct TargetLayer {
  TargetLayer(const DecoderConfig& config, const std::string& name, LeafParameters& parameters,
              RowWorkers& workers)
      : self(config, name + "attention.", true, parameters, workers),
        context(config, name + "context.", false, parameters, workers),
        feed_forward(config, name + "feed_forward.", FeedForwardBlock::Layout::kTogether,
                     parameters, workers) {}

  AttentionBlock self, context;
  FeedForwardBlock feed_forward;
};

// A batch as the model reads it.
struct Samples {
  Packed source, target;
  std::vector<std::int64_t> scored;           // rows of the target
  std::vector<std::int64_t> label, sequence;  // [scored]
};

Samples SamplesOf(const TokenBatch& batch, std::int64_t vocabulary, const c10::Device& device) {
  const Tensor tokens = batch.tokens.contiguous(), labels = batch.labels.contiguous();
  const std::int64_t count = tokens.size(0), n = tokens.size(1);
  std::vector<std::vector<std::int64_t>> sources, targets;
  Samples samples;
  std::int64_t row = 0;
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
    for (std::int64_t i = split; i < length; ++i, ++row) {
      if (label[i] == kNotScored) continue;
      samples.scored.push_back(row);
      samples.label.push_back(label[i]);
      samples.sequence.push_back(b);
    }
  }
  samples.source = Packed::Of(sources, vocabulary, device);
  samples.target = Packed::Of(targets, vocabulary, device);
  return samples;
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
  using Visitor = std::function<void(const PackedAttention&)>;

  State(const DecoderConfig& given, std::uint64_t seed, const c10::Device& on)
      : config(WithDefaults(given, CheckEncoderDecoder, "float32")),
        device(on),
        parameters(on),
        embed(config, parameters, workers) {
    for (std::int64_t l = 0; l < config.layers; ++l) {
      encoder.emplace_back(config, fmt::format("encoder.{}.", l), parameters, workers);
    }
    AddNorm("encoder.norm.weight", memory_gain);
    for (std::int64_t l = 0; l < config.layers; ++l) {
      decoder.emplace_back(config, fmt::format("decoder.{}.", l), parameters, workers);
    }
    AddNorm("norm.weight", gain);
    parameters.Allocate(seed);
  }

  void AddNorm(const std::string& name, Tensor& to) {
    if (!config.norm_gain) return;
    parameters.Add(
        name, {config.width}, [](RandomStream&) { return 0.0F; }, &to);
  }

  Tensor Embed(const Packed& rows) { return embed(rows.tokens, rows.positions, rows.longest); }

  // A function that passes one layer's attention to `visit`; null if there is no `visit`.
  static SeenVisitor Shown(const Visitor& visit, const char* kind, std::size_t layer,
                           const Tensor& queries_begin, const Tensor& keys_begin) {
    if (!visit) return nullptr;
    return [=, &visit, &queries_begin, &keys_begin](AttentionBlock::Seen& seen) {
      visit({kind, static_cast<std::int64_t>(layer), seen, queries_begin, keys_begin});
    };
  }

  Tensor Encode(const Packed& source, const Visitor& visit) {
    Tensor x = Embed(source);
    for (std::size_t l = 0; l < encoder.size(); ++l) {
      x = Attended(encoder[l].self, x, {}, source, source,
                   Shown(visit, "encoder", l, source.begins, source.begins));
      x = encoder[l].feed_forward(x);
    }
    return Normed(x, memory_gain);
  }

  // The output for every row of the target, before the last norm.
  Tensor Decode(const Packed& target, const Packed& source, const Tensor& memory,
                const Visitor& visit) {
    Tensor x = Embed(target);
    for (std::size_t l = 0; l < decoder.size(); ++l) {
      x = Attended(decoder[l].self, x, {}, target, target,
                   Shown(visit, "decoder", l, target.begins, target.begins));
      x = Attended(decoder[l].context, x, memory, target, source,
                   Shown(visit, "context", l, target.begins, source.begins));
      x = decoder[l].feed_forward(x);
    }
    return x;
  }

  Tensor Logits(const Tensor& x) const { return Product(Normed(x, gain), embed.Table()); }

  // The losses of the scored rows and their best columns, in pieces, and the sum of the losses over
  // `denominator`, 0: over their number.
  struct Judged {
    Tensors losses, best;
    Tensor sum;
    SequenceScore Score(const Samples& samples, const TokenBatch& batch) const {
      return SequenceScore::Of(batch.tokens.size(0), losses, best, samples.label, samples.sequence);
    }
  };
  Judged Judge(const Tensor& x, const Samples& samples, std::int64_t denominator = 0) {
    const auto there = [&](const std::vector<std::int64_t>& numbers) {
      return at::tensor(numbers, at::kLong).to(device);
    };
    const Tensor scored = x.index_select(0, there(samples.scored)), labels = there(samples.label);
    const std::int64_t rows = scored.size(0), of = denominator > 0 ? denominator : rows;
    const std::int64_t piece =
        c10::GradMode::is_enabled() ? std::max<std::int64_t>(1, rows) : kLogitRows;
    Judged all;
    Tensors sums;
    for (std::int64_t begin = 0; begin == 0 || begin < rows; begin += piece) {
      const std::int64_t count = std::min(piece, rows - begin);
      const Tensors judged = RunStage(
          "cross-entropy", {.inputs = {scored.narrow(0, begin, count), gain, embed.Table(),
                                       labels.narrow(0, begin, count)},
                            .workers = &workers,
                            .parameters = &parameters.List(),
                            .weight = 1.0 / static_cast<double>(std::max<std::int64_t>(1, of))});
      sums.push_back(judged[0]);
      all.losses.push_back(judged[1]);
      all.best.push_back(judged[2]);
    }
    all.sum = at::stack(sums).sum();
    return all;
  }

  Tensor Run(const Samples& samples, const Visitor& visit = nullptr) {
    const Tensor memory = Encode(samples.source, visit);
    return Decode(samples.target, samples.source, memory, visit);
  }

  DecoderConfig config;
  c10::Device device;
  LeafParameters parameters;
  RowWorkers workers;
  EmbeddingBlock embed;
  Tensor memory_gain, gain;
  std::deque<EncoderLayer> encoder;
  std::deque<TargetLayer> decoder;
  std::unique_ptr<EncoderDecoder> copy;  // of a model elsewhere, on the CPU
};

EncoderDecoder::EncoderDecoder(const DecoderConfig& config, std::uint64_t seed,
                               const c10::Device& device)
    : state_(std::make_unique<State>(config, seed, device)) {}
EncoderDecoder::~EncoderDecoder() = default;

const DecoderConfig& EncoderDecoder::Config() const { return state_->config; }
std::string EncoderDecoder::Note() const { return state_->encoder.front().self.Note(); }
const Tensor& EncoderDecoder::FlatParameters() const { return state_->parameters.List().Flat(); }
const Tensor& EncoderDecoder::FlatGradients() const {
  return state_->parameters.List().FlatGradients();
}
const std::vector<std::pair<std::string, Tensor>>& EncoderDecoder::Parameters() const {
  return state_->parameters.List().Named();
}

const std::vector<ParameterGroup>& EncoderDecoder::Groups() const {
  return state_->parameters.List().Groups();
}

SequenceScore EncoderDecoder::LossAndGradient(const TokenBatch& batch,
                                              const GradientOptions& options) {
  CheckWhole(options);
  const SequentialProducts guard;
  state_->workers.SetThreads(guard.threads());
  const Samples samples = SamplesOf(batch, state_->config.vocabulary, state_->device);
  if (!options.accumulate) FlatGradients().zero_();
  const State::Judged judged = state_->Judge(state_->Run(samples), samples, options.denominator);
  judged.sum.backward();
  if (options.ready) options.ready(0, FlatGradients().numel());
  return judged.Score(samples, batch);  // the host waits for the device here alone
}

SequenceScore EncoderDecoder::Evaluate(const TokenBatch& batch) { return Evaluate(batch, nullptr); }

SequenceScore EncoderDecoder::Evaluate(const TokenBatch& batch, const VisibleKeys& visible) {
  const SequentialProducts guard;
  const c10::NoGradGuard no_gradient;
  state_->workers.SetThreads(guard.threads());
  const Samples samples = SamplesOf(batch, state_->config.vocabulary, state_->device);
  State::Visitor restrict;
  if (visible) {
    restrict = [&](const PackedAttention& attention) {
      const Tensor mask = visible(attention);
      if (mask.defined()) attention.seen.options.mask = mask.unsqueeze(0);
    };
  }
  return state_->Judge(state_->Run(samples, restrict), samples).Score(samples, batch);
}

void EncoderDecoder::VisitLayers(const TokenBatch& batch,
                                 const std::function<void(const PackedAttention&)>& visit) {
  const SequentialProducts guard;
  const c10::NoGradGuard no_gradient;
  state_->workers.SetThreads(guard.threads());
  state_->Run(SamplesOf(batch, state_->config.vocabulary, state_->device), visit);
}

// Keys and values of every layer on pages. Those of a text's target are the sequence's own; those
// of its source stand in another sequence of the same cache, which forks share.
class EncoderDecoder::CacheDecodingState : public DecodingState {
 public:
  CacheDecodingState(State& state, std::int64_t max_bytes)
      : state_(state), cache_(ShapeOf(state.config), OptionsOf(state.config, max_bytes)) {}

  Sequence Create() override {
    const Sequence target = cache_.Create();
    sources_.emplace(target, cache_.Create());
    return target;
  }
  Sequence Fork(Sequence sequence) override {
    const Sequence source = SourceOf(sequence), target = cache_.Fork(sequence);
    sources_.emplace(target, cache_.Fork(source));
    return target;
  }
  void Free(Sequence sequence) override {
    cache_.Free(SourceOf(sequence));
    cache_.Free(sequence);
    sources_.erase(sequence);
  }

  Tensor Extend(const std::vector<Sequence>& sequences,
                const std::vector<std::vector<std::int64_t>>& tokens) override {
    const SequentialProducts guard;
    const c10::NoGradGuard no_gradient;
    state_.workers.SetThreads(guard.threads());
    std::vector<std::vector<std::int64_t>> source(sequences.size()), target = tokens;
    for (std::size_t s = 0; s < std::min(sequences.size(), tokens.size()); ++s) {
      if (cache_.Length(SourceOf(sequences[s])) > 0 || tokens[s].empty()) continue;
      if (tokens[s].size() < 2) {
        throw InvalidArgument(fmt::format("tokens[{}]", s),
                              "a source and the token that the target begins with", "1 token");
      }
      source[s].assign(tokens[s].begin(), tokens[s].end() - 1);
      target[s] = {tokens[s].back()};
    }
    const DecoderRows rows = RowsOf(cache_, state_.config.vocabulary, sequences, target);
    if (sequences.empty()) return at::empty({0, state_.config.vocabulary});
    try {
      for (std::size_t s = 0; s < sequences.size(); ++s) {
        if (!source[s].empty()) Read(source[s], SourceOf(sequences[s]));
      }
      return Decode(rows, sequences);
    } catch (...) {
      for (std::size_t s = 0; s < sequences.size(); ++s) {
        cache_.Truncate(sequences[s], rows.position[static_cast<std::size_t>(rows.begin[s])]);
        if (!source[s].empty()) cache_.Truncate(SourceOf(sequences[s]), 0);
      }
      throw;
    }
  }

 private:
  static KvCacheShape ShapeOf(const DecoderConfig& config) {
    return {config.layers, config.heads, config.head_dim, config.head_dim, DType::kFloat32};
  }
  static KvCacheOptions OptionsOf(const DecoderConfig& config, std::int64_t max_bytes) {
    const bool sparse = config.attention.map == "entmax";
    return {.screen = sparse ? KeyScreen::kBytes : KeyScreen::kNone, .max_bytes = max_bytes};
  }

  Sequence SourceOf(Sequence sequence) const {
    const auto found = sources_.find(sequence);
    if (found == sources_.end()) {
      throw InvalidArgument("sequence", "one that is there", std::to_string(sequence));
    }
    return found->second;
  }

  // Rows [begin, end) of keys and values.
  void Append(Sequence sequence, std::size_t layer, const std::pair<Tensor, Tensor>& memory,
              std::int64_t begin, std::int64_t end) {
    const auto rows = [begin](const Tensor& all) {
      return ConstArray4{all.const_data_ptr<float>() + begin * all.stride(2),
                         DType::kFloat32,
                         {0, all.stride(1), all.stride(2), 1}};
    };
    cache_.Append({.threads = state_.workers.threads()}, sequence, static_cast<std::int64_t>(layer),
                  rows(memory.first), rows(memory.second), end - begin);
  }

  void Read(const std::vector<std::int64_t>& source, Sequence to) {
    const Tensor memory =
        state_.Encode(Packed::Of({source}, state_.config.vocabulary, state_.device), nullptr);
    for (std::size_t l = 0; l < state_.decoder.size(); ++l) {
      Append(to, l, state_.decoder[l].context.Memory(memory), 0, memory.size(0));
    }
  }

  // The logits behind the last row of each sequence.
  Tensor Decode(const DecoderRows& rows, const std::vector<Sequence>& sequences) {
    // Each row looks at all of its source.
    std::vector<Sequence> sources;
    std::vector<std::int64_t> row, next;
    for (std::size_t s = 0; s < sequences.size(); ++s) {
      for (std::int64_t i = rows.begin[s]; i < rows.end[s]; ++i) {
        sources.push_back(SourceOf(sequences[s]));
        row.push_back(i);
        next.push_back(i + 1);
      }
    }
    Tensor x = state_.embed(rows.tokens, rows.positions, rows.reach);
    for (std::size_t l = 0; l < state_.decoder.size(); ++l) {
      const TargetLayer& layer = state_.decoder[l];
      const Tensor in = layer.self.Norm(x);
      const std::pair<Tensor, Tensor> memory = layer.self.Memory(in);
      for (std::size_t s = 0; s < sequences.size(); ++s) {
        Append(sequences[s], l, memory, rows.begin[s], rows.end[s]);
      }
      const auto index = static_cast<std::int64_t>(l);
      x = layer.self.Extend(x, in, {cache_, index, sequences, rows.begin, rows.end});
      x = layer.context.Extend(x, layer.context.Norm(x), {cache_, index, sources, row, next});
      x = layer.feed_forward(x, rows.block);
    }
    const auto count = static_cast<std::int64_t>(sequences.size());
    return state_.Logits(x.index_select(0, at::tensor(rows.scored, at::kLong))).narrow(0, 0, count);
  }

  State& state_;
  KvCache cache_;
  std::map<Sequence, Sequence> sources_;  // of each text
};

EncoderDecoder& EncoderDecoder::OnCpu() { return lab::OnCpu(*this, state_->copy); }

std::unique_ptr<DecodingState> EncoderDecoder::StartDecoding(std::int64_t max_bytes) {
  return std::make_unique<CacheDecodingState>(*OnCpu().state_, max_bytes);
}

}  // namespace tsallis::lab
