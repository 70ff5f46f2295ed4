#include "lab/nn/block_decoder.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <deque>
#include <functional>
#include <optional>

#include "lab/base/errors.h"
#include "lab/base/sequential_products.h"
#include "lab/nn/block_attention.h"
#include "lab/nn/blocks.h"
#include "lab/nn/row_stages.h"
#include "lab/nn/sequence_part.h"
#include "tsallis/cpu.h"
#include "tsallis/error.h"

namespace tsallis::lab {
namespace {

using at::Tensor;

// A batch as rows of equal length, and what is scored of it.
struct PaddedBatch {
  Tensor tokens;  // [sequences length] int64, 0 behind a sequence's end
  std::int64_t sequences = 0;
  std::int64_t length = 0;             // of the longest sequence
  std::vector<std::int64_t> scored;    // rows
  std::vector<std::int64_t> label;     // [scored]
  std::vector<std::int64_t> sequence;  // [scored]
  std::int64_t counted = 0;            // tokens that are no padding
  Tensor counts;                       // [sequences length] bool: which
};

PaddedBatch PaddedBatchOf(const TokenBatch& batch, std::int64_t vocabulary) {
  CheckBatch(batch, vocabulary);
  PaddedBatch rows;
  rows.sequences = batch.tokens.size(0);
  const std::int64_t n = batch.tokens.size(1);
  const Tensor lengths = batch.lengths.defined() ? batch.lengths.to(at::kLong)
                                                 : at::full({rows.sequences}, n, at::kLong);
  rows.length = rows.sequences == 0 ? 0 : lengths.max().item<std::int64_t>();
  const Tensor counts = at::arange(rows.length, at::kLong) < lengths.unsqueeze(1);
  rows.counts = counts.flatten();
  rows.counted = lengths.sum().item<std::int64_t>();
  const auto part = [&](const Tensor& tensor, std::int64_t elsewhere) {
    return tensor.narrow(1, 0, rows.length)
        .masked_fill(counts.logical_not(), elsewhere)
        .flatten()
        .contiguous();
  };
  rows.tokens = part(batch.tokens, 0);
  const Tensor labels = part(batch.labels, kNotScored);
  for (std::int64_t r = 0; r < labels.numel(); ++r) {
    const std::int64_t label = labels.const_data_ptr<std::int64_t>()[r];
    if (label == kNotScored) continue;
    rows.scored.push_back(r);
    rows.label.push_back(label);
    rows.sequence.push_back(r / rows.length);
  }
  return rows;
}

// One layer.
struct Layer {
  Layer(const DecoderConfig& config, std::int64_t layer, at::ScalarType products,
        const DecoderLeaves& leaves, RowWorkers& workers)
      : prefix("layers." + std::to_string(layer) + "."),
        gains(Gains(leaves, "attention.")),
        out(leaves.At(prefix + "attention.out.weight")),
        join{.workers = &workers, .products = products, .norms_output = config.block == "sandwich"},
        attention(config, layer, products, leaves, workers),
        feed_forward(config, Gains(leaves, "feed_forward."), Up(config, leaves),
                     leaves.At(prefix + "feed_forward.down.weight"), products, workers) {}

  BranchGains Gains(const DecoderLeaves& leaves, const std::string& branch) const {
    return {leaves.Find(prefix + branch + "norm.weight"),
            leaves.Find(prefix + branch + "out_norm.weight")};
  }
  // Gate and up lie behind each other.
  Tensor Up(const DecoderConfig& config, const DecoderLeaves& leaves) const {
    const std::int64_t parts = ActivationInputs(config.activation);
    return leaves.From(
        prefix + (parts == 2 ? "feed_forward.gate.weight" : "feed_forward.up.weight"),
        {parts * config.feed_forward, config.width});
  }

  // x: of all rows. What leaves the layer at the rows `picked` ([n] int64); undefined: all.
  Tensor operator()(const Tensor& x, std::int64_t sequences, const Tensor& picked,
                    const SequencePart* part) {
    const auto wanted = [&](const Tensor& rows) {
      return picked.defined() ? rows.index_select(0, picked) : rows;
    };
    StageCall call = join;
    call.inputs = {wanted(x), wanted(attention(x, gains.before, sequences, part)), out,
                   gains.after};
    return feed_forward(RunStage("join", call)[0]);
  }

  std::string prefix;
  BranchGains gains;
  Tensor out;
  StageCall join;  // without inputs
  PaddedAttention attention;
  FeedForwardBlock feed_forward;
};

}  // namespace

void CheckBlockDecoder(const DecoderConfig& config, const std::string& path) {
  CheckDecoder(config, path);
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    for (std::int64_t head = 0; head < config.heads; ++head) {
      const std::string kind = config.Head(layer, head).pattern.kind;
      if (kind == "none") continue;
      throw UsageError(
          fmt::format("{}.attention.pattern.kind: expected \"none\" on a device other than the "
                      "CPU and with train.split \"sequence\", got \"{}\" (layer {}, head {})",
                      path, kind, layer, head));
    }
  }
}

struct BlockDecoder::State {
  State(const DecoderConfig& given, std::uint64_t seed, const c10::Device& on)
      : config(WithDefaults(given, CheckBlockDecoder,
                            on.is_cpu() && FastBfloat16(QueryCpu()) ? "bfloat16" : "float32")),
        device(on),
        products(config.compute == "bfloat16" ? at::kBFloat16 : at::kFloat),
        host(config, seed),
        leaves(host, device),
        embed(config) {
    for (std::int64_t l = 0; l < config.layers; ++l) {
      layers.emplace_back(config, l, products, leaves, workers);
    }
  }

  // The last layer's output at the scored rows, [scored, width]. `streams`: filled with the
  // residual stream before each layer, whose gradients are kept. `part`: that of the sequences that
  // the rows are; null: all.
  Tensor Run(const PaddedBatch& rows, const SequencePart* part, std::vector<Tensor>* streams) {
    const at::TensorOptions integers = at::TensorOptions().dtype(at::kLong).device(device);
    const std::int64_t total = part == nullptr ? rows.length : part->length;
    const std::int64_t begin = part == nullptr ? 0 : part->Own(total).first;
    const Tensor positions =
        at::arange(begin, begin + rows.length, integers).repeat({rows.sequences});
    Tensor x = embed(leaves.At("embedding.weight"), rows.tokens.to(device), positions, total);
    const Tensor scored = at::tensor(rows.scored, at::kLong).to(device);
    for (Layer& layer : layers) {
      if (streams != nullptr) {
        x.retain_grad();
        streams->push_back(x);
      }
      Tensor picked;  // from the last attention on only rows whose logits are wanted matter
      if (&layer == &layers.back()) picked = scored;
      x = layer(x, rows.sequences, picked, part);
    }
    return x;
  }

  // Cross-entropy of rows, and their best tokens.
  Tensors Judge(const Tensor& x, const Tensor& labels) {
    return RunStage("cross-entropy",
                    {.inputs = {x, leaves.Find("norm.weight"), leaves.At("head.weight"), labels},
                     .workers = &workers});
  }

  // Calls `take` with the first row and the number of rows whose logits are in memory at a time.
  void InPieces(std::int64_t rows, std::int64_t most_logits,
                const std::function<void(std::int64_t, std::int64_t)>& take) const {
    const std::int64_t piece = std::max(kLeastRows, most_logits / config.vocabulary);
    for (std::int64_t begin = 0; begin < rows; begin += piece) {
      take(begin, std::min(piece, rows - begin));
    }
  }

  // Reads what the device has found: here the host waits for it.
  static SequenceScore ScoreOf(const PaddedBatch& rows, const std::vector<Tensor>& losses,
                               const std::vector<Tensor>& best) {
    if (losses.empty()) return SequenceScore::Of(rows.sequences, {}, {}, {}, {});
    const Tensor loss = at::cat(losses).cpu(), said = at::cat(best).cpu();
    const float* numbers = loss.const_data_ptr<float>();
    const std::int64_t* tokens = said.const_data_ptr<std::int64_t>();
    return SequenceScore::Of(rows.sequences, {numbers, numbers + loss.numel()},
                             {tokens, tokens + said.numel()}, rows.label, rows.sequence);
  }

  // GradientOptions::logits: at least those of so many rows.
  static constexpr std::int64_t kLeastRows = 4096;
  static constexpr std::int64_t kEvaluatedLogits = std::int64_t{1} << 28;

  DecoderConfig config;
  c10::Device device;
  at::ScalarType products;
  Decoder host;  // names, shapes and first values of the parameters; decodes
  DecoderLeaves leaves;
  RowWorkers workers;
  EmbeddingBlock embed;
  std::deque<Layer> layers;
};

BlockDecoder::BlockDecoder(const DecoderConfig& config, std::uint64_t seed,
                           const c10::Device& device)
    : state_(std::make_unique<State>(config, seed, device)) {}
BlockDecoder::~BlockDecoder() = default;

const DecoderConfig& BlockDecoder::Config() const { return state_->config; }
const Tensor& BlockDecoder::FlatParameters() const { return state_->leaves.Flat(); }
const Tensor& BlockDecoder::FlatGradients() const { return state_->leaves.FlatGradients(); }
const std::vector<std::pair<std::string, Tensor>>& BlockDecoder::Parameters() const {
  return state_->leaves.Named();
}

const std::vector<ParameterGroup>& BlockDecoder::Groups() const { return state_->host.Groups(); }

std::string BlockDecoder::Note() const {
  std::vector<std::string> notes;
  for (const Layer& layer : state_->layers) {
    for (const std::string& note : layer.attention.Notes()) {
      if (std::find(notes.begin(), notes.end(), note) == notes.end()) notes.push_back(note);
    }
  }
  return fmt::format("{}", fmt::join(notes, "; "));
}

SequenceScore BlockDecoder::LossAndGradient(const TokenBatch& batch,
                                            const GradientOptions& options) {
  const SequentialProducts guard;
  State& state = *state_;
  state.workers.SetThreads(guard.threads());
  const PaddedBatch rows = PaddedBatchOf(batch, state.config.vocabulary);
  if (!options.accumulate) FlatGradients().zero_();
  const auto scored = static_cast<std::int64_t>(rows.scored.size());
  std::vector<Tensor> streams, losses, best;
  const SequencePart* part = options.part;
  if (part != nullptr && rows.length != part->Own(part->length).second) {
    throw InvalidArgument("batch.tokens",
                          fmt::format("{} of each sequence, this process's share of {}",
                                      part->Own(part->length).second, part->length),
                          std::to_string(rows.length));
  }
  if (scored > 0 || part != nullptr) {  // others may score what they get from this process
    const Tensor x = state.Run(rows, part, options.flow ? &streams : nullptr);
    const Tensor end = x.detach().requires_grad_(true);
    const Tensor labels = at::tensor(rows.label, at::kLong).to(state.device);
    const auto denominator =
        static_cast<double>(options.denominator > 0 ? options.denominator : scored);
    state.InPieces(scored, options.logits, [&](std::int64_t begin, std::int64_t count) {
      const Tensors judged =
          state.Judge(end.narrow(0, begin, count), labels.narrow(0, begin, count));
      (judged[0].sum() / denominator).backward();
      losses.push_back(judged[0].detach());
      best.push_back(judged[1]);
    });
    x.backward(end.grad().defined() ? end.grad() : at::zeros_like(end));
  }
  const Tensor counts = options.flow ? rows.counts.to(state.device) : Tensor();
  for (std::size_t l = streams.size(); l-- > 0;) {
    const Tensor norms = streams[l].grad().norm(2, {1}).masked_fill(counts.logical_not(), 0.0);
    options.flow(static_cast<std::int64_t>(l),
                 norms.sum().item<double>() / static_cast<double>(rows.counted));
  }
  if (options.ready) options.ready(0, FlatGradients().numel());
  return State::ScoreOf(rows, losses, best);
}

SequenceScore BlockDecoder::Evaluate(const TokenBatch& batch) {
  const SequentialProducts guard;
  const c10::NoGradGuard no_gradient;
  State& state = *state_;
  state.workers.SetThreads(guard.threads());
  const PaddedBatch rows = PaddedBatchOf(batch, state.config.vocabulary);
  std::vector<Tensor> losses, best;
  if (rows.scored.empty()) return State::ScoreOf(rows, losses, best);
  const Tensor x = state.Run(rows, nullptr, nullptr);
  const Tensor labels = at::tensor(rows.label, at::kLong).to(state.device);
  state.InPieces(x.size(0), State::kEvaluatedLogits, [&](std::int64_t begin, std::int64_t count) {
    const Tensors judged = state.Judge(x.narrow(0, begin, count), labels.narrow(0, begin, count));
    losses.push_back(judged[0]);
    best.push_back(judged[1]);
  });
  return State::ScoreOf(rows, losses, best);
}

std::unique_ptr<DecodingState> BlockDecoder::StartDecoding(std::int64_t max_bytes) {
  Tensor(state_->host.FlatParameters()).copy_(FlatParameters());
  return state_->host.StartDecoding(max_bytes);
}

std::vector<std::pair<std::string, double>> BlockDecoder::Observe(const TokenBatch& batch) {
  std::vector<std::pair<std::string, double>> observed;
  GradientOptions options;
  options.flow = [&](std::int64_t layer, double norm) {
    observed.insert(observed.begin(), {fmt::format("gradient {}", layer), norm});
  };
  LossAndGradient(batch, options);
  return observed;
}

}  // namespace tsallis::lab
