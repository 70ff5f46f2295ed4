#include "lab/nn/encoder_decoder.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <optional>

#include "lab/base/errors.h"
#include "lab/base/sequential_products.h"
#include "lab/nn/decoder_kernels.h"
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
  std::vector<std::int64_t> label;     // [rows of target], or kNotScored
  std::vector<std::int64_t> sequence;  // [rows of target]
};

Samples SamplesOf(const TokenBatch& batch, std::int64_t vocabulary, const c10::Device& device) {
  const Tensor tokens = batch.tokens.contiguous(), labels = batch.labels.contiguous();
  const std::int64_t count = tokens.size(0), n = tokens.size(1);
  std::vector<std::vector<std::int64_t>> sources, targets;
  Samples samples;
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
    samples.label.insert(samples.label.end(), label + split, label + length);
    samples.sequence.insert(samples.sequence.end(), static_cast<std::size_t>(length - split), b);
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

  Tensor Embed(const Packed& rows) { return embed(rows.tokens, rows.positions, rows.length); }

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

  // The losses of the scored rows, their best columns, and their sum over `denominator`, 0: over
  // their number.
  Tensors Judge(const Tensor& x, const Samples& samples, std::int64_t denominator = 0) {
    const Tensor all = at::tensor(samples.label, at::kLong);
    const Tensor scored = all.ne(kNotScored).nonzero().squeeze(1);
    const Tensor labels = all.index_select(0, scored).to(device);
    const Tensor there = x.index_select(0, scored.to(device));
    const std::int64_t piece =
        c10::GradMode::is_enabled() ? std::max<std::int64_t>(1, there.size(0)) : kLogitRows;
    const std::int64_t of = denominator > 0 ? denominator : labels.numel();
    Tensors losses, best, sums;
    for (std::int64_t begin = 0; begin == 0 || begin < there.size(0); begin += piece) {
      const std::int64_t count = std::min(piece, there.size(0) - begin);
      const Tensors judged = RunStage(
          "cross-entropy", {.inputs = {there.narrow(0, begin, count), gain, embed.Table(),
                                       labels.narrow(0, begin, count)},
                            .workers = &workers,
                            .parameters = &parameters.List(),
                            .weight = 1.0 / static_cast<double>(std::max<std::int64_t>(1, of))});
      sums.push_back(judged[0]);
      losses.push_back(judged[1]);
      best.push_back(judged[2]);
    }
    return {at::cat(losses), at::cat(best), at::stack(sums).sum()};
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
};

namespace {

// losses, best: of the scored rows.
SequenceScore ScoreOf(const Samples& samples, std::int64_t sequences, const Tensor& losses,
                      const Tensor& best) {
  const Tensor loss = losses.cpu(), said = best.cpu();
  const float* numbers = loss.const_data_ptr<float>();
  const std::int64_t* tokens = said.const_data_ptr<std::int64_t>();
  std::vector<std::int64_t> label, sequence;
  for (std::size_t i = 0; i < samples.label.size(); ++i) {
    if (samples.label[i] == kNotScored) continue;
    label.push_back(samples.label[i]);
    sequence.push_back(samples.sequence[i]);
  }
  return SequenceScore::Of(sequences, {numbers, numbers + loss.numel()},
                           {tokens, tokens + said.numel()}, label, sequence);
}

}  // namespace

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
  const Tensors judged = state_->Judge(state_->Run(samples), samples, options.denominator);
  judged[2].backward();
  if (options.ready) options.ready(0, FlatGradients().numel());
  // The host waits for the device here alone.
  return ScoreOf(samples, batch.tokens.size(0), judged[0], judged[1]);
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
  const Tensors judged = state_->Judge(state_->Run(samples, restrict), samples);
  return ScoreOf(samples, batch.tokens.size(0), judged[0], judged[1]);
}

void EncoderDecoder::VisitLayers(const TokenBatch& batch,
                                 const std::function<void(const PackedAttention&)>& visit) {
  const SequentialProducts guard;
  const c10::NoGradGuard no_gradient;
  state_->workers.SetThreads(guard.threads());
  state_->Run(SamplesOf(batch, state_->config.vocabulary, state_->device), visit);
}

// Keys and values of every layer: of the source once, for all that is forked from it; of the target
// in tensors that are never written to, so that forks share them.
class EncoderDecoder::TensorDecodingState : public DecodingState {
 public:
  TensorDecodingState(State& state, std::int64_t max_bytes)
      : state_(state), max_bytes_(max_bytes) {}

  Sequence Create() override {
    sequences_.emplace(next_, Text());
    return next_++;
  }
  Sequence Fork(Sequence sequence) override {
    const Text& text = At(sequence);
    sequences_.emplace(next_, text);
    return next_++;
  }
  void Free(Sequence sequence) override {
    At(sequence);
    sequences_.erase(sequence);
  }

  Tensor Extend(const std::vector<Sequence>& sequences,
                const std::vector<std::vector<std::int64_t>>& tokens) override {
    const SequentialProducts guard;
    const c10::NoGradGuard no_gradient;
    state_.workers.SetThreads(guard.threads());
    if (tokens.size() != sequences.size()) {
      throw InvalidArgument("tokens", std::to_string(sequences.size()) + " lists, one a sequence",
                            std::to_string(tokens.size()));
    }
    if (sequences.empty()) return at::empty({0, state_.config.vocabulary});
    std::vector<Text> extended;
    std::vector<std::vector<std::int64_t>> target = tokens;
    for (std::size_t s = 0; s < sequences.size(); ++s) {
      if (std::count(sequences.begin(), sequences.end(), sequences[s]) > 1) {
        throw InvalidArgument("sequences", "each once", std::to_string(sequences[s]) + " again");
      }
      extended.push_back(At(sequences[s]));
      if (target[s].empty()) {
        throw InvalidArgument(fmt::format("tokens[{}]", s), "one token or more", "none");
      }
      if (extended[s].source) continue;
      if (target[s].size() < 2) {
        throw InvalidArgument(fmt::format("tokens[{}]", s),
                              "a source and the token that the target begins with",
                              std::to_string(target[s].size()) + " tokens");
      }
      extended[s].source = Read({target[s].begin(), target[s].end() - 1});
      target[s] = {target[s].back()};
    }
    const Tensor logits = Decode(extended, target).cpu();
    CheckBytes(sequences, extended);
    for (std::size_t s = 0; s < sequences.size(); ++s) At(sequences[s]) = std::move(extended[s]);
    return logits;
  }

 private:
  struct KeysValues {
    Tensor k, v;  // [1, heads, tokens, head_dim]
  };
  using Layers = std::vector<KeysValues>;
  struct Text {
    std::shared_ptr<const Layers> source;  // null: nothing is read yet
    Layers target;                         // empty before the first token
    std::int64_t tokens = 0;               // of the target
  };

  Text& At(Sequence sequence) {
    const auto found = sequences_.find(sequence);
    if (found == sequences_.end()) {
      throw InvalidArgument("sequence", "one that is there", std::to_string(sequence));
    }
    return found->second;
  }

  std::shared_ptr<const Layers> Read(const std::vector<std::int64_t>& source) {
    const Tensor memory =
        state_.Encode(Packed::Of({source}, state_.config.vocabulary, state_.device), nullptr);
    auto layers = std::make_shared<Layers>();
    for (const TargetLayer& layer : state_.decoder) {
      const auto [k, v] = layer.context.Memory(memory);
      layers->push_back({k, v});
    }
    return layers;
  }

  // One tensor of all sequences' tokens behind each other, where each begins, and how long the
  // longest is.
  struct Memory {
    KeysValues all;
    Tensor begins;
    std::int64_t longest = 0;
  };
  static Memory Joined(const std::vector<KeysValues>& parts) {
    std::vector<Tensor> k, v;
    std::vector<std::int64_t> begins = {0};
    std::int64_t longest = 0;
    for (const KeysValues& part : parts) {
      longest = std::max(longest, part.k.size(2));
      k.push_back(part.k);
      v.push_back(part.v);
      begins.push_back(begins.back() + part.k.size(2));
    }
    const Tensor all = at::cat(k, 2);
    return {{all, at::cat(v, 2)}, at::tensor(begins, at::kLong).to(all.device()), longest};
  }

  // Adds the tokens to the texts; the logits behind the last of each.
  Tensor Decode(std::vector<Text>& texts, const std::vector<std::vector<std::int64_t>>& tokens) {
    std::vector<std::int64_t> past;
    for (const Text& text : texts) past.push_back(text.tokens);
    const Packed rows = Packed::Of(tokens, state_.config.vocabulary, state_.device, past);
    const std::vector<std::int64_t>& begins = rows.begin;
    Tensor x = state_.Embed(rows);
    for (std::size_t l = 0; l < state_.decoder.size(); ++l) {
      const TargetLayer& layer = state_.decoder[l];
      const Tensor in = layer.self.Norm(x);
      const auto [k, v] = layer.self.Memory(in);
      std::vector<KeysValues> all;
      for (std::size_t s = 0; s < texts.size(); ++s) {
        const std::int64_t count = begins[s + 1] - begins[s];
        KeysValues own = {k.narrow(2, begins[s], count), v.narrow(2, begins[s], count)};
        Layers& target = texts[s].target;
        if (target.size() > l) {
          own = {at::cat({target[l].k, own.k}, 2), at::cat({target[l].v, own.v}, 2)};
          target[l] = own;
        } else {
          target.push_back(own);
        }
        all.push_back(own);
      }
      const auto attend = [&](const AttentionBlock& heads, const Tensor& normed,
                              const Memory& memory) {
        x = heads.Attend(x, heads.Queries(normed), memory.all.k, memory.all.v, rows.begins,
                         memory.begins, {rows.longest, memory.longest});
      };
      attend(layer.self, in, Joined(all));
      all.clear();
      for (const Text& text : texts) all.push_back((*text.source)[l]);
      attend(layer.context, layer.context.Norm(x), Joined(all));
      x = layer.feed_forward(x);
    }
    for (std::size_t s = 0; s < texts.size(); ++s) {
      texts[s].tokens += static_cast<std::int64_t>(tokens[s].size());
    }
    return state_.Logits(x.index_select(0, rows.begins.slice(0, 1) - 1));
  }

  static std::int64_t Bytes(const Layers& layers) {
    std::int64_t bytes = 0;
    for (const KeysValues& layer : layers) {
      bytes += static_cast<std::int64_t>(layer.k.nbytes() + layer.v.nbytes());
    }
    return bytes;
  }

  // Counts the extended texts in place of the earlier ones.
  void CheckBytes(const std::vector<Sequence>& sequences, const std::vector<Text>& extended) const {
    if (max_bytes_ == 0) return;
    std::map<const Layers*, std::int64_t> sources;
    std::int64_t bytes = 0;
    const auto add = [&](const Text& text) {
      bytes += Bytes(text.target);
      if (text.source) sources[text.source.get()] = Bytes(*text.source);
    };
    for (const auto& [sequence, text] : sequences_) {
      const auto at = std::find(sequences.begin(), sequences.end(), sequence);
      add(at == sequences.end() ? text
                                : extended[static_cast<std::size_t>(at - sequences.begin())]);
    }
    for (const auto& [source, count] : sources) bytes += count;
    if (bytes > max_bytes_)
      throw CacheFull(
          fmt::format("the texts need {} bytes, expected at most {}", bytes, max_bytes_));
  }

  State& state_;
  std::int64_t max_bytes_;
  std::map<Sequence, Text> sequences_;
  Sequence next_ = 0;
};

std::unique_ptr<DecodingState> EncoderDecoder::StartDecoding(std::int64_t max_bytes) {
  return std::make_unique<TensorDecodingState>(*state_, max_bytes);
}

}  // namespace tsallis::lab
