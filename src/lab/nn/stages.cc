#include "lab/nn/stages.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <utility>

#include "core/parallel.h"
#include "lab/nn/decoder_kernels.h"
#include "lab/nn/row_stages.h"

namespace tsallis::lab {
namespace {

using at::Tensor;

// A pass that a stage's call describes.
class StagePass : public HostPass {
 public:
  explicit StagePass(const StageCall& call) : call_(call) { call_.inputs.clear(); }

 protected:
  RowWorkers& Workers() { return call_.workers != nullptr ? *call_.workers : own_; }
  // Calls body(begin, count) on blocks of rows.
  template <class Body>
  void ForRows(std::int64_t rows, const Body& body) {
    Workers().ForBlocks(rows, kRowBlock,
                        [&](std::int64_t begin, std::int64_t end, RowWorkers::Scratch&) {
                          body(begin, end - begin);
                        });
  }

  // A learned tensor, and whether its gradient goes to memory of its own.
  struct Learned {
    Parameter parameter;
    bool own = false;
  };
  Learned Take(const Tensor& in, at::ScalarType products, bool keep) const {
    if (!in.defined()) return {};
    if (call_.parameters != nullptr) {
      if (const auto found = call_.parameters->Find(in)) return {*found, true};
    }
    const Tensor value = in.contiguous();
    return {{value, keep ? at::zeros_like(value) : Tensor(),
             value.dim() == 2 ? value.to(products) : value}};
  }
  // What autograd is told.
  static Tensor Gradient(const Learned& learned) {
    return learned.own ? Tensor() : learned.parameter.gradient;
  }

  StageCall call_;

 private:
  RowWorkers own_;
};

template <class Pass>
Tensors OnHost(const StageCall& call) {
  return Record(std::make_unique<Pass>(call), call.inputs);
}

// ---- embeddings ---------------------------------------------------------------------------------

class EmbeddingPass : public StagePass {
 public:
  using StagePass::StagePass;

  Tensors Forward(const Tensors& in, bool keep) override {
    table_ = Take(in[0], at::kFloat, keep);
    token_ = in[1].contiguous();
    const std::int64_t rows = token_.numel(), width = Width();
    const Tensor x = at::empty({rows, width}), no_gain = at::zeros({width});
    const float* sinusoids = in[2].defined() ? Data(in[2]) : nullptr;
    const auto* position = in[3].const_data_ptr<std::int32_t>();
    if (Normed()) scale_ = at::empty({rows});
    ForRows(rows, [&](std::int64_t begin, std::int64_t count) {
      for (std::int64_t r = begin; r < begin + count; ++r) {
        float* to = Data(x) + r * width;
        if (Normed()) {
          RmsNorm(Row(r), Data(no_gain), 1, width, {to, false}, Data(scale_) + r);
        } else {
          for (std::int64_t k = 0; k < width; ++k) to[k] = Row(r)[k] * Factor();
        }
        if (sinusoids == nullptr) continue;
        const float* sines = sinusoids + position[r] * width;
        for (std::int64_t k = 0; k < width; ++k) to[k] += sines[k];
      }
    });
    return {x};
  }

  Tensors Backward(Tensors& d_out) override {
    const Tensor d_x = Owned(d_out[0]);
    const std::int64_t rows = token_.numel(), width = Width();
    if (Normed()) {
      const Tensor no_gain = at::zeros({width});
      ForRows(rows, [&](std::int64_t begin, std::int64_t count) {
        std::vector<float> unused(static_cast<std::size_t>(width));
        for (std::int64_t r = begin; r < begin + count; ++r) {
          // In place: the gradient of the branch x + norm(weight), without the x.
          float* d_row = Data(d_x) + r * width;
          AddRmsNormBackward({const_cast<float*>(Row(r)), false}, Data(scale_) + r, Data(no_gain),
                             d_row, 1, width, {d_row, false}, unused.data());
        }
      });
    }
    // Tokens repeat, so their rows are added in order; columns are apart.
    float* gradient = Data(table_.parameter.gradient);
    const auto* token = token_.const_data_ptr<std::int64_t>();
    ParallelFor({.threads = Workers().threads()}, width, 64,
                [&](std::int64_t begin, std::int64_t end) {
                  for (std::int64_t r = 0; r < rows; ++r) {
                    const float* from = Data(d_x) + r * width;
                    float* to = gradient + token[r] * width;
                    for (std::int64_t k = begin; k < end; ++k) to[k] += Factor() * from[k];
                  }
                });
    return {Gradient(table_), {}, {}, {}};
  }

 private:
  bool Normed() const { return call_.embedding == "normed"; }
  std::int64_t Width() const { return table_.parameter.value.size(1); }
  float Factor() const {
    return call_.embedding == "scaled" ? std::sqrt(static_cast<float>(Width())) : 1.0F;
  }
  const float* Row(std::int64_t r) const {
    return Data(table_.parameter.value) + token_.const_data_ptr<std::int64_t>()[r] * Width();
  }

  Learned table_;
  Tensor token_, scale_;
};

Tensors EmbeddingOperations(const StageCall& call) {
  const Tensor& weight = call.inputs[0];
  Tensor x = at::embedding(weight, call.inputs[1]);
  if (call.embedding == "scaled") x = x * std::sqrt(static_cast<double>(weight.size(1)));
  if (call.embedding == "normed") x = Normed(x, {});
  if (call.inputs[2].defined()) x = x + call.inputs[2].index_select(0, call.inputs[3]);
  return {x};
}

// ---- chains of row stages -----------------------------------------------------------------------

// A chain (row_chain.h) that is made for one call.
class ChainPass : public StagePass {
 public:
  using StagePass::StagePass;

  Tensors Forward(const Tensors& in, bool keep) override {
    x_ = in[0].contiguous();
    if (HasValue()) value_ = in[1].contiguous();
    inputs_ = in.size();
    const std::size_t first = HasValue() ? 2 : 1;
    for (std::size_t i = first; i < first + Parameters(); ++i) {
      learned_.push_back(Take(in[i], Dtype(), keep));
    }
    chain_ = std::make_unique<RowChain>(MakeStages(), Dtype());
    const std::int64_t columns = chain_->Columns();
    const Tensor x_out = columns == 0 ? at::empty_like(x_) : Tensor();
    Tensor value_out;
    if (columns > 0 && (keep || KeepsValue())) {
      value_out = at::empty({x_.size(0), columns}, x_.options().dtype(Dtype()));
    }
    if (value_out.defined()) output_ = value_out.detach();  // the output would keep itself alive
    chain_->Forward(Pass(keep ? kRowBlock : call_.block), x_, value_, x_out, value_out,
                    keep ? &kept_ : nullptr);
    return Outputs(x_out, value_out);
  }

  Tensors Backward(Tensors& d_out) override {
    const auto [d_x, d_value_out] = Entering(d_out);
    const Tensor d_value = value_.defined() ? at::empty_like(value_) : Tensor();
    ChainGradients memory;
    chain_->Backward(Pass(kRowBlock), x_, value_, output_, d_x, d_value_out, d_value, kept_,
                     memory);
    Tensors gradients = {d_x};
    if (HasValue()) gradients.push_back(d_value);
    for (const Learned& learned : learned_) gradients.push_back(Gradient(learned));
    gradients.resize(inputs_);
    return gradients;
  }

 protected:
  virtual bool HasValue() const { return false; }
  virtual bool KeepsValue() const { return true; }
  virtual std::size_t Parameters() const = 0;  // behind x and the value
  virtual at::ScalarType Dtype() const { return call_.products; }
  virtual RowStages MakeStages() = 0;
  virtual Tensors Outputs(const Tensor& x_out, const Tensor& value_out) {
    return {x_out.defined() ? x_out : value_out};
  }
  // The gradients of the stream and of the value that leave the chain, to be written to.
  virtual std::pair<Tensor, Tensor> Entering(Tensors& d_out) { return {Owned(d_out[0]), {}}; }

  // An input behind x and the value; null: left out.
  const Parameter* At(std::size_t index) const {
    const Parameter& parameter = learned_[index].parameter;
    return parameter.value.defined() ? &parameter : nullptr;
  }
  std::int64_t Width() const { return x_.size(1); }
  void Join(RowStages& stages, const Parameter* gain) const {
    stages.push_back(call_.norms_output ? MakeAddNorm(Width(), gain) : MakeAdd(Width()));
  }
  std::int64_t Rows(std::size_t index) const { return learned_[index].parameter.value.size(0); }
  // W norm(x) of the gain and the weight behind x. exact: as MakeLinear's.
  RowStages NormAndProduct(bool exact = false) const {
    RowStages stages;
    stages.push_back(MakeNorm(Width(), At(0)));
    stages.push_back(MakeLinear(Rows(1), At(1), exact));
    return stages;
  }

  Tensor x_;
  Tensor output_;  // the value that left the chain

 private:
  RowChain::Pass Pass(std::int64_t block) { return {Workers(), x_.size(0), block}; }

  Tensor value_;
  std::size_t inputs_ = 0;
  std::vector<Learned> learned_;
  std::unique_ptr<RowChain> chain_;
  ChainActivations kept_;
};

class ProjectionPass : public ChainPass {
 public:
  using ChainPass::ChainPass;

  Tensors Forward(const Tensors& in, bool keep) override {
    heads_ = {call_.heads, call_.head_dim, call_.qk_norm, in[3], in[4], in[5]};
    return ChainPass::Forward(in, keep);
  }

 private:
  std::size_t Parameters() const override { return 2; }
  RowStages MakeStages() override {
    RowStages stages = NormAndProduct(Dtype() == at::kFloat);
    if (heads_.norm || heads_.cosine.defined()) stages.push_back(MakeHeads(Rows(1), heads_));
    return stages;
  }
  Tensors Outputs(const Tensor&, const Tensor& value_out) override {
    return {value_out, x_.detach()};
  }
  std::pair<Tensor, Tensor> Entering(Tensors& d_out) override {
    Tensor d_value = d_out[0].defined() ? Owned(d_out[0]) : at::zeros_like(output_);
    return {d_out[1].defined() ? Owned(d_out[1]) : at::zeros_like(x_), std::move(d_value)};
  }

  HeadRows heads_;
};

// Queries and keys of a projection normed and rotated.
Tensor HeadsOperations(const StageCall& call, const Tensor& projected) {
  const Tensor &cosine_table = call.inputs[3], &sine_table = call.inputs[4];
  if (!call.qk_norm && !cosine_table.defined()) return projected;
  const std::int64_t columns = 2 * call.heads * call.head_dim;
  const auto heads =
      projected.narrow(1, 0, columns).view({projected.size(0), 2, call.heads, call.head_dim});
  Tensor turned = call.qk_norm ? at::rms_norm(heads, {call.head_dim}, {}, kNormEpsilon) : heads;
  if (cosine_table.defined()) {
    // [rows, 1, 1 or heads, head_dim / 2]
    const auto entries = [&](const Tensor& table) {
      return table.index_select(1, call.inputs[5]).transpose(0, 1).unsqueeze(1);
    };
    const Tensor cosine = entries(cosine_table), sine = entries(sine_table);
    const Tensors halves = turned.chunk(2, 3);
    turned =
        at::cat({halves[0] * cosine - halves[1] * sine, halves[0] * sine + halves[1] * cosine}, 3)
            .to(projected.scalar_type());
  }
  return at::cat({turned.reshape({projected.size(0), columns}),
                  projected.narrow(1, columns, projected.size(1) - columns)},
                 1);
}

Tensors ProjectionOperations(const StageCall& call) {
  const Tensor& x = call.inputs[0];
  const Tensor projected = Product(Normed(x, call.inputs[1]), call.inputs[2], call.products);
  return {HeadsOperations(call, projected), x};
}

// x plus a branch.
Tensor Joined(const StageCall& call, const Tensor& branch, const Tensor& gain) {
  return call.inputs[0] + (call.norms_output ? Normed(branch, gain) : branch);
}

class JoinPass : public ChainPass {
 public:
  using ChainPass::ChainPass;

 private:
  bool HasValue() const override { return true; }
  std::size_t Parameters() const override { return 2; }
  RowStages MakeStages() override {
    RowStages stages;
    stages.push_back(MakeLinear(Width(), At(0)));
    Join(stages, At(1));
    return stages;
  }
};

Tensors JoinOperations(const StageCall& call) {
  return {Joined(call, Product(call.inputs[1], call.inputs[2], call.products), call.inputs[3])};
}

class FeedForwardPass : public ChainPass {
 public:
  using ChainPass::ChainPass;

 private:
  std::size_t Parameters() const override { return 4; }
  RowStages MakeStages() override {
    RowStages stages = NormAndProduct();
    stages.push_back(
        MakeActivation(call_.activation, Rows(1) / ActivationInputs(call_.activation)));
    stages.push_back(MakeLinear(Width(), At(2)));
    Join(stages, At(3));
    return stages;
  }
};

Tensors FeedForwardOperations(const StageCall& call) {
  const Tensor up = Product(Normed(call.inputs[0], call.inputs[1]), call.inputs[2], call.products);
  const Tensor down = Product(Activated(call.activation, up), call.inputs[3], call.products);
  return {Joined(call, down, call.inputs[4])};
}

class CrossEntropyPass : public ChainPass {
 public:
  using ChainPass::ChainPass;

  Tensors Forward(const Tensors& in, bool keep) override {
    label_ = in[3].contiguous();
    loss_ = at::empty({in[0].size(0)}, in[0].options());
    best_ = at::empty_like(label_);
    gradient_ = keep;
    return ChainPass::Forward(in, keep);
  }

 private:
  std::size_t Parameters() const override { return 2; }
  at::ScalarType Dtype() const override { return at::kFloat; }
  bool KeepsValue() const override { return false; }
  RowStages MakeStages() override {
    RowStages stages = NormAndProduct(true);
    auto loss = std::make_unique<CrossEntropyStage>(Rows(1));
    loss->Prepare(label_.const_data_ptr<std::int64_t>(),
                  gradient_ ? static_cast<float>(call_.weight) : 0.0F, Data(loss_),
                  best_.mutable_data_ptr<std::int64_t>());
    stages.push_back(std::move(loss));
    return stages;
  }
  // The logits have become the gradient of the weighted sum of the losses.
  Tensors Outputs(const Tensor&, const Tensor&) override {
    const Tensor sum = loss_.sum() * call_.weight;
    return {sum, std::exchange(loss_, {}), std::exchange(best_, {})};  // kept, they would keep this
  }
  std::pair<Tensor, Tensor> Entering(Tensors& d_out) override {
    if (const float factor = d_out[0].item<float>(); factor != 1.0F) output_.mul_(factor);
    return {at::zeros_like(x_), output_};
  }

  Tensor label_, loss_, best_;
  bool gradient_ = false;
};

Tensors CrossEntropyOnHost(const StageCall& call) {
  Tensors out = OnHost<CrossEntropyPass>(call);
  out[1] = out[1].detach();
  return out;
}

Tensors CrossEntropyOperations(const StageCall& call) {
  const Tensor logits = Product(Normed(call.inputs[0], call.inputs[1]), call.inputs[2]);
  const Tensor loss = at::cross_entropy_loss(logits, call.inputs[3], {}, at::Reduction::None);
  return {loss.sum() * call.weight, loss.detach(), logits.detach().argmax(1)};
}

// ---- parts of rows ------------------------------------------------------------------------------

class LengthScalePass : public StagePass {
 public:
  using StagePass::StagePass;

  Tensors Forward(const Tensors& in, bool) override {
    in_ = in;
    in_[0] = in[0].contiguous();
    const std::int64_t heads = Heads();
    const Tensor c = at::empty({in_[0].size(0), heads}, at::kFloat);
    ForRows(c.size(0), [&](std::int64_t begin, std::int64_t count) {
      const Cells beta = Columns(in_[0], begin);
      AdaptiveScaleForward(Settings(), beta, beta + heads, Stride(), Data(in_[4]) + begin, count,
                           Data(c) + begin * heads, heads);
    });
    in_[0] = in_[0].detach();
    return {c, in_[0].detach()};
  }

  Tensors Backward(Tensors& d_out) override {
    const Tensor d_c = d_out[0].contiguous();
    const Tensor d_in = d_out[1].defined() ? Owned(d_out[1]) : at::zeros_like(in_[0]);
    const std::int64_t rows = d_c.size(0), heads = Heads();
    // Blocks sum apart, so that sums have one order.
    const bool biased = in_[1].defined();
    const Tensor sums = at::zeros({biased ? (rows + kRowBlock - 1) / kRowBlock : 0, 2, heads});
    const Tensor columns = d_in.narrow(1, call_.column, 2 * heads), given = columns.clone();
    ForRows(rows, [&](std::int64_t begin, std::int64_t count) {
      const Cells beta = Columns(in_[0], begin), d_beta = Columns(d_in, begin);
      float* d_bias = biased ? Data(sums) + begin / kRowBlock * 2 * heads : nullptr;
      AdaptiveScaleBackward(Settings(), beta, beta + heads, Stride(), Data(in_[4]) + begin, count,
                            Data(d_c) + begin * heads, heads, d_beta, d_beta + heads, d_bias,
                            biased ? d_bias + heads : nullptr);
    });
    columns.add_(given);
    const Tensor d_bias = biased ? sums.sum(0) : Tensor();
    return {d_in, biased ? d_bias[0] : Tensor(), biased ? d_bias[1] : Tensor(), d_c.sum(0), {}};
  }

 private:
  std::int64_t Heads() const { return in_[3].size(0); }
  std::int64_t Stride() const { return in_[0].size(1); }
  Cells Columns(const Tensor& rows, std::int64_t begin) const {
    return CellsOf(rows) + (begin * Stride() + call_.column);
  }
  AdaptiveScale Settings() const {
    const auto bias = [&](std::size_t i) { return in_[i].defined() ? Data(in_[i]) : nullptr; };
    return {Heads(), Data(in_[3]), static_cast<float>(call_.gamma_range), bias(1), bias(2)};
  }

  Tensors in_;
};

Tensors LengthScaleOperations(const StageCall& call) {
  const std::int64_t heads = call.inputs[3].size(0);
  const Tensors halves =
      call.inputs[0].narrow(1, call.column, 2 * heads).to(at::kFloat).chunk(2, 1);
  const auto with = [](const Tensor& x, const Tensor& bias) {
    return bias.defined() ? x + bias : x;
  };
  const Tensor beta = with(halves[0], call.inputs[1]), gamma = with(halves[1], call.inputs[2]);
  const Tensor power = call.gamma_range * gamma.tanh() * call.inputs[4].unsqueeze(1);
  return {call.inputs[3] + at::softplus(beta) * power.exp(), call.inputs[0]};
}

// Some rows, each once at most.
class RowsPass : public StagePass {
 public:
  using StagePass::StagePass;

  Tensors Forward(const Tensors& in, bool) override {
    const Tensor x = in[0].contiguous();
    shape_ = x.sizes().vec();
    rows_ = in[1].contiguous();
    const Tensor picked = at::empty({rows_.numel(), x.size(1)}, x.options());
    Each(x, [&](std::size_t i, std::size_t row, std::size_t bytes) {
      std::memcpy(At(picked) + i * bytes, At(x) + row * bytes, bytes);
    });
    return {picked};
  }
  Tensors Backward(Tensors& d_out) override {
    const Tensor d_picked = d_out[0].contiguous();
    const Tensor d_x = at::zeros(shape_, d_picked.options());
    Each(d_x, [&](std::size_t i, std::size_t row, std::size_t bytes) {
      std::memcpy(At(d_x) + row * bytes, At(d_picked) + i * bytes, bytes);
    });
    return {d_x, {}};
  }

 private:
  static char* At(const Tensor& rows) { return static_cast<char*>(rows.data_ptr()); }
  template <class Move>
  void Each(const Tensor& x, const Move& move) const {
    const std::size_t bytes = static_cast<std::size_t>(x.size(1)) * x.element_size();
    const auto* rows = rows_.const_data_ptr<std::int64_t>();
    for (std::int64_t i = 0; i < rows_.numel(); ++i) {
      move(static_cast<std::size_t>(i), static_cast<std::size_t>(rows[i]), bytes);
    }
  }

  std::vector<std::int64_t> shape_;
  Tensor rows_;
};

Tensors RowsOperations(const StageCall& call) {
  return {call.inputs[0].index_select(0, call.inputs[1])};
}

}  // namespace

const std::vector<Stage>& Stages() {
  static const std::vector<Stage> all = {
      {"embedding",
       {{"weight", "vw"}, {"token", "r"}, {"sinusoids", "nw", true}, {"position", "r"}},
       OnHost<EmbeddingPass>,
       EmbeddingOperations},
      {"projection",
       {{"x", "rw"},
        {"gain", "w", true},
        {"weight", "pw"},
        {"cosine", "tnd", true},
        {"sine", "tnd", true},
        {"position", "r", true}},
       OnHost<ProjectionPass>,
       ProjectionOperations},
      {"length-scale",
       {{"projected", "rp"},
        {"beta_bias", "c", true},
        {"gamma_bias", "c", true},
        {"delta", "c"},
        {"log_log_n", "r"}},
       OnHost<LengthScalePass>,
       LengthScaleOperations},
      {"join",
       {{"x", "rw"}, {"value", "ri"}, {"weight", "wi"}, {"out_gain", "w", true}},
       OnHost<JoinPass>,
       JoinOperations},
      {"feed-forward",
       {{"x", "rw"}, {"gain", "w", true}, {"up", "uw"}, {"down", "wh"}, {"out_gain", "w", true}},
       OnHost<FeedForwardPass>,
       FeedForwardOperations},
      {"rows", {{"x", "rw"}, {"row", "m"}}, OnHost<RowsPass>, RowsOperations},
      {"cross-entropy",
       {{"x", "rw"}, {"gain", "w", true}, {"weight", "ow"}, {"labels", "r"}},
       CrossEntropyOnHost,
       CrossEntropyOperations}};
  return all;
}

Tensors RunStage(const std::string& name, const StageCall& call) {
  const auto stage = std::find_if(Stages().begin(), Stages().end(),
                                  [&](const Stage& one) { return one.name == name; });
  if (stage == Stages().end()) throw std::logic_error("no stage \"" + name + "\"");
  const bool host = call.inputs.front().is_cpu();
  const Stage::Form form = host ? stage->host : stage->operations;
  if (form == nullptr) {
    throw std::logic_error("stage \"" + name + "\" has no " +
                           (host ? "kernel of the host" : "form in torch's operations"));
  }
  return form(call);
}

Tensor Normed(const Tensor& x, const Tensor& gain) {
  return at::rms_norm(x.to(at::kFloat), {x.size(-1)},
                      gain.defined() ? std::optional(1.0 + gain) : std::nullopt, kNormEpsilon);
}

Tensor Product(const Tensor& x, const Tensor& weight, at::ScalarType dtype) {
  return at::linear(x.to(dtype), weight.to(dtype));
}

}  // namespace tsallis::lab
