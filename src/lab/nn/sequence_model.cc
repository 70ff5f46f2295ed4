#include "lab/nn/sequence_model.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>

#include "lab/nn/models.h"
#include "tsallis/error.h"

namespace tsallis::lab {
namespace {

// Rows whose logits stand in memory at a time, at least: four blocks, so that threads have work.
constexpr std::int64_t kLeastRows = 4 * kRowBlock;
// Logits of an evaluation on a device.
constexpr std::int64_t kEvaluatedLogits = std::int64_t{1} << 28;

void CheckTensor(const at::Tensor& tensor, const char* name, const TokenBatch& batch) {
  if (tensor.dim() == 2 && tensor.scalar_type() == at::kLong &&
      tensor.sizes() == batch.tokens.sizes()) {
    return;
  }
  throw InvalidArgument(name, "int64 [batch, n]",
                        std::string(c10::toString(tensor.scalar_type())) + " of rank " +
                            std::to_string(tensor.dim()));
}

}  // namespace

void CheckBatch(const TokenBatch& batch, std::int64_t vocabulary) {
  CheckTensor(batch.tokens, "tokens", batch);
  if (batch.labels.defined()) CheckTensor(batch.labels, "labels", batch);
  const std::int64_t sequences = batch.tokens.size(0), n = batch.tokens.size(1);
  const at::Tensor tokens = batch.tokens.contiguous();
  const at::Tensor labels = batch.labels.defined() ? batch.labels.contiguous() : at::Tensor();
  const at::Tensor lengths =
      batch.lengths.defined() ? batch.lengths.to(at::kLong).contiguous() : at::Tensor();
  if (lengths.defined() && (lengths.dim() != 1 || lengths.size(0) != sequences)) {
    throw InvalidArgument("lengths", "[batch]", "another shape");
  }
  const std::string tokens_there = "0 to " + std::to_string(vocabulary - 1);
  for (std::int64_t b = 0; b < sequences; ++b) {
    const std::int64_t length = lengths.defined() ? lengths.const_data_ptr<std::int64_t>()[b] : n;
    if (length < 1 || length > n) {
      throw InvalidArgument("lengths", "1 to " + std::to_string(n), std::to_string(length));
    }
    for (std::int64_t i = b * n; i < b * n + length; ++i) {
      const std::int64_t token = tokens.const_data_ptr<std::int64_t>()[i];
      if (token < 0 || token >= vocabulary) {
        throw InvalidArgument("tokens", tokens_there, std::to_string(token));
      }
      const std::int64_t label =
          labels.defined() ? labels.const_data_ptr<std::int64_t>()[i] : kNotScored;
      if (label != kNotScored && (label < 0 || label >= vocabulary)) {
        throw InvalidArgument("labels", tokens_there + ", or " + std::to_string(kNotScored),
                              std::to_string(label));
      }
    }
  }
}

SequenceScore SequenceScore::Of(std::int64_t sequences, const std::vector<at::Tensor>& losses,
                                const std::vector<at::Tensor>& best,
                                const std::vector<std::int64_t>& label,
                                const std::vector<std::int64_t>& sequence) {
  SequenceScore score;
  score.sequences = sequences;
  score.is_exact.assign(static_cast<std::size_t>(sequences), true);
  if (!losses.empty()) {
    const at::Tensor loss = at::cat(losses).cpu(), said = at::cat(best).cpu();
    score.scored = loss.numel();
    score.losses.assign(loss.const_data_ptr<float>(), loss.const_data_ptr<float>() + score.scored);
    for (std::size_t i = 0; i < score.losses.size(); ++i) {
      const bool hit = said.const_data_ptr<std::int64_t>()[i] == label[i];
      score.loss += score.losses[i];
      score.hits += hit ? 1 : 0;
      if (!hit) score.is_exact[static_cast<std::size_t>(sequence[i])] = false;
    }
  }
  for (const bool exact : score.is_exact) score.exact += exact ? 1 : 0;
  return score;
}

SequenceModel::SequenceModel(DecoderConfig config, const c10::Device& device, Naming naming)
    : config_(std::move(config)),
      device_(device),
      products_(config_.compute == "bfloat16" ? at::kBFloat16 : at::kFloat),
      parameters_(device, naming),
      embed_(config_, parameters_, workers_) {}

void SequenceModel::Finish(std::uint64_t seed, bool own_head) {
  gain_.emplace(config_, "norm.weight", parameters_);
  const auto normal = [](RandomStream& random) { return Normal(random, 0.02); };
  if (own_head) {
    parameters_.Add("head.weight", {config_.vocabulary, config_.width}, normal, &head_);
  }
  parameters_.Allocate(seed, products_ == at::kBFloat16);
}

std::string SequenceModel::Note() const {
  std::vector<std::string> notes;
  for (const AttentionBranch* branch : Attention()) {
    for (const std::string& note : branch->Notes()) {
      if (std::find(notes.begin(), notes.end(), note) == notes.end()) notes.push_back(note);
    }
  }
  return fmt::format("{}", fmt::join(notes, "; "));
}

std::vector<LayerPlace> SequenceModel::Places() const {
  std::vector<LayerPlace> places;
  for (const AttentionBranch* branch : Attention()) places.push_back(branch->Place());
  return places;
}

SequenceModel::Judged SequenceModel::Judge(const at::Tensor& x, const DecoderRows& rows,
                                           std::int64_t most, double weight, bool gradient) {
  const at::Tensor labels = at::tensor(rows.label, at::kLong).to(device_);
  const std::int64_t judged_rows = gradient ? x.size(0) : labels.numel();
  Judged all;
  Tensors gradients;
  for (std::int64_t begin = 0; begin < judged_rows; begin += most) {
    const std::int64_t count = std::min(most, judged_rows - begin);
    at::Tensor piece = x.detach().narrow(0, begin, count).requires_grad_(gradient);
    const Tensors judged = RunStage(
        "cross-entropy", {.inputs = {piece, gain_->value, Head(), labels.narrow(0, begin, count)},
                          .workers = &workers_,
                          .parameters = &parameters_,
                          .weight = weight});
    if (gradient) {
      judged[0].backward();
      gradients.push_back(piece.grad());
    }
    all.losses.push_back(judged[1]);
    all.best.push_back(judged[2]);
  }
  if (gradient) {
    all.d_x = gradients.empty()       ? at::zeros_like(x)
              : gradients.size() == 1 ? gradients.front()
                                      : at::cat(gradients);
  }
  return all;
}

SequenceScore SequenceModel::LossAndGradient(const TokenBatch& batch,
                                             const GradientOptions& options) {
  const Running running(*this);
  const SequencePart* part = options.part;
  const bool whole = device_.is_cpu() && part == nullptr;
  const Samples samples = Read(batch, part);
  const DecoderRows& rows = samples.target;
  if (!options.accumulate) FlatGradients().zero_();
  // Gradients lie in the order of the layers, and become final from the back.
  std::int64_t ready = FlatGradients().numel();
  const auto report = [&](std::int64_t begin) {
    if (options.ready && (whole || begin == 0)) {
      options.ready(begin, ready);
      ready = begin;
    }
  };
  LayerPass pass{.part = part};
  if (options.flow || options.ready) {
    pass.reached = [&](const AttentionBranch& branch, const at::Tensor& d_x) {
      if (options.flow) options.flow(branch.Place().layer, rows.MeanNorm(d_x));
      report(branch.First().storage_offset());
    };
  }
  Judged judged;
  // Other processes may score what they get from this one, and expect the same reports.
  if (whole || part != nullptr || !rows.scored.empty()) {
    const at::Tensor x = Run(samples, pass);
    const std::int64_t blocks = options.logits / config_.vocabulary / kRowBlock;
    const std::int64_t of = options.denominator > 0 ? options.denominator : x.size(0);
    judged = Judge(x, rows, std::max(kLeastRows, blocks * kRowBlock), 1.0 / static_cast<double>(of),
                   true);
    const at::Tensor& first = gain_->value.defined() ? gain_->value : head_;
    if (first.defined()) report(first.storage_offset());
    x.backward(judged.d_x);
  }
  report(0);
  return SequenceScore::Of(rows.Sequences(), judged.losses, judged.best, rows.label, rows.sequence);
}

SequenceScore SequenceModel::Evaluate(const TokenBatch& batch, const VisibleKeys& visible) {
  if (visible && !device_.is_cpu()) return OnCpu().Evaluate(batch, visible);
  const Running running(*this);
  const c10::NoGradGuard no_gradient;
  const Samples samples = Read(batch, nullptr);
  const DecoderRows& rows = samples.target;
  const at::Tensor x = Run(samples, {.visible = visible});
  // Kernels of the host have few logits in memory anyway.
  const std::int64_t most = device_.is_cpu()
                                ? std::max<std::int64_t>(1, x.size(0))
                                : std::max(kLeastRows, kEvaluatedLogits / config_.vocabulary);
  const Judged judged = Judge(x, rows, most, 1.0, false);
  return SequenceScore::Of(rows.Sequences(), judged.losses, judged.best, rows.label, rows.sequence);
}

void SequenceModel::VisitLayers(const TokenBatch& batch,
                                const std::function<void(const LayerView&)>& visit) {
  SequenceModel& model = OnCpu();
  const Running running(model);
  const c10::NoGradGuard no_gradient;
  model.Run(model.Read(batch, nullptr), {.visit = visit});
}

std::unique_ptr<DecodingState> SequenceModel::StartDecoding(std::int64_t max_bytes) {
  return std::make_unique<DecodingState>(config_, ReadsSources(), max_bytes, device_,
                                         [this](const DecodingState::NewTokens& more) {
                                           const Running running(*this);
                                           const c10::NoGradGuard no_gradient;
                                           return Extend(more);
                                         });
}

SequenceModel& SequenceModel::OnCpu() {
  if (device_.is_cpu()) return *this;
  if (!copy_) copy_ = MakeSequenceModel(Architecture(), config_, 1);
  at::Tensor(copy_->FlatParameters()).copy_(FlatParameters());
  return *copy_;
}

}  // namespace tsallis::lab
