#include "lab/nn/stages.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <utility>

#include "lab/nn/decoder_kernels.h"
#include "lab/nn/row_stages.h"
#include "torch/operators.h"

namespace tsallis::lab {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Kernels of the host on the inputs of one call, and their gradient.
class HostPass {
 public:
  explicit HostPass(const StageCall& call) : call_(call) {}
  virtual ~HostPass() = default;

  // keep: Backward() follows.
  virtual Tensors Forward(const Tensors& in, bool keep) = 0;
  // The gradients of the inputs from those of the outputs; undefined where there is none. Called
  // once.
  virtual Tensors Backward(const Tensors& d_out) = 0;

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

  StageCall call_;

 private:
  RowWorkers own_;
};

struct KeptPass : torch::CustomClassHolder {
  std::unique_ptr<HostPass> pass;
  std::vector<bool> given;  // of all inputs: autograd takes those that are there
};

// Any pass as one function of autograd.
class StageFunction : public torch::autograd::Function<StageFunction> {
 public:
  static variable_list forward(AutogradContext* context, at::TensorList inputs,
                               const c10::intrusive_ptr<KeptPass>& kept, bool keep) {
    context->saved_data["pass"] = c10::IValue::make_capsule(kept);
    const at::AutoDispatchBelowADInplaceOrView no_autograd;
    Tensors all(kept->given.size());
    for (std::size_t i = 0, next = 0; i < all.size(); ++i) {
      if (kept->given[i]) all[i] = inputs[next++];
    }
    return kept->pass->Forward(all, keep);
  }
  static variable_list backward(AutogradContext* context, const variable_list& d_out) {
    const auto kept = context->saved_data.at("pass").toCapsule();
    auto& held = static_cast<KeptPass&>(*kept);
    const std::vector<bool>& given = held.given;
    const at::AutoDispatchBelowADInplaceOrView no_autograd;
    const Tensors all = held.pass->Backward(d_out);
    held.pass.reset();  // its memory serves the stages before it
    variable_list gradients;
    for (std::size_t i = 0; i < given.size(); ++i) {
      if (given[i]) gradients.push_back(all[i]);
    }
    gradients.resize(gradients.size() + 2);
    return gradients;
  }
};

template <class Pass>
Tensors OnHost(const StageCall& call) {
  const auto kept = c10::make_intrusive<KeptPass>();
  StageCall settings = call;
  settings.inputs.clear();
  kept->pass = std::make_unique<Pass>(settings);
  Tensors inputs;
  for (const Tensor& x : call.inputs) {
    kept->given.push_back(x.defined());
    if (x.defined()) inputs.push_back(x);
  }
  const bool keep =
      c10::GradMode::is_enabled() &&
      std::any_of(inputs.begin(), inputs.end(), [](const Tensor& x) { return x.requires_grad(); });
  return StageFunction::apply(at::TensorList(inputs), kept, keep);
}

// ---- chains of row stages -----------------------------------------------------------------------

// A chain (row_chain.h) that is made for one call.
class ChainPass : public HostPass {
 public:
  using HostPass::HostPass;

  Tensors Forward(const Tensors& in, bool keep) override {
    x_ = in[0].contiguous();
    if (HasValue()) value_ = in[1].contiguous();
    const at::ScalarType dtype = Dtype();
    for (std::size_t i = HasValue() ? 2 : 1; i < in.size(); ++i) {
      Parameter& parameter = parameters_.emplace_back();
      if (!in[i].defined() || !in[i].is_floating_point()) continue;
      parameter.value = in[i].contiguous();
      parameter.product = in[i].dim() == 2 ? parameter.value.to(dtype) : parameter.value;
      if (keep) parameter.gradient = at::zeros_like(parameter.value);
    }
    chain_ = std::make_unique<RowChain>(MakeStages(), dtype);
    const std::int64_t columns = chain_->Columns();
    const Tensor x_out = columns == 0 ? at::empty_like(x_) : Tensor();
    Tensor value_out;
    if (columns > 0 && (keep || KeepsValue())) {
      value_out = at::empty({x_.size(0), columns}, x_.options().dtype(dtype));
    }
    if (value_out.defined()) output_ = value_out.detach();  // the output would keep itself alive
    chain_->Forward(Pass(), x_, value_, x_out, value_out, keep ? &kept_ : nullptr);
    return Outputs(x_out, value_out);
  }

  Tensors Backward(const Tensors& d_out) override {
    const auto [d_x, d_value_out] = Entering(d_out);
    const Tensor d_value = value_.defined() ? at::empty_like(value_) : Tensor();
    ChainGradients memory;
    chain_->Backward(Pass(), x_, value_, output_, d_x, d_value_out, d_value, kept_, memory);
    Tensors gradients = {d_x};
    if (HasValue()) gradients.push_back(d_value);
    for (const Parameter& parameter : parameters_) gradients.push_back(parameter.gradient);
    return gradients;
  }

 protected:
  virtual bool HasValue() const { return false; }
  virtual bool KeepsValue() const { return true; }
  virtual at::ScalarType Dtype() const { return call_.products; }
  virtual RowStages MakeStages() = 0;
  virtual Tensors Outputs(const Tensor& x_out, const Tensor& value_out) {
    return {x_out.defined() ? x_out : value_out};
  }
  // The gradients of the stream and of the value that leave the chain, to be written to.
  virtual std::pair<Tensor, Tensor> Entering(const Tensors& d_out) {
    if (chain_->Columns() == 0) return {d_out[0].clone(at::MemoryFormat::Contiguous), {}};
    return {at::zeros_like(x_), d_out[0].contiguous()};
  }

  // An input behind x and the value; null: left out.
  const Parameter* At(std::size_t index) const {
    return parameters_[index].value.defined() ? &parameters_[index] : nullptr;
  }
  std::int64_t Width() const { return x_.size(1); }
  void Join(RowStages& stages, const Parameter* gain) const {
    stages.push_back(call_.norms_output ? MakeAddNorm(Width(), gain) : MakeAdd(Width()));
  }
  std::int64_t Rows(std::size_t index) const { return parameters_[index].value.size(0); }
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
  RowChain::Pass Pass() {
    static const SequenceRows unused;
    return {Workers(), unused, x_.size(0)};
  }

  Tensor value_;
  std::vector<Parameter> parameters_;
  std::unique_ptr<RowChain> chain_;
  ChainActivations kept_;
};

class ProjectionPass : public ChainPass {
 public:
  using ChainPass::ChainPass;
  RowStages MakeStages() override { return NormAndProduct(); }
};

Tensors ProjectionOperations(const StageCall& call) {
  return {Product(Normed(call.inputs[0], call.inputs[1]), call.inputs[2], call.products)};
}

// x plus a branch.
Tensor Joined(const StageCall& call, const Tensor& branch, const Tensor& gain) {
  return call.inputs[0] + (call.norms_output ? Normed(branch, gain) : branch);
}

class JoinPass : public ChainPass {
 public:
  using ChainPass::ChainPass;
  bool HasValue() const override { return true; }
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
  at::ScalarType Dtype() const override { return at::kFloat; }
  bool KeepsValue() const override { return false; }
  RowStages MakeStages() override {
    RowStages stages = NormAndProduct(true);
    auto loss = std::make_unique<CrossEntropyStage>(Rows(1));
    loss->Prepare(label_.const_data_ptr<std::int64_t>(), gradient_ ? 1.0F : 0.0F, Data(loss_),
                  best_.mutable_data_ptr<std::int64_t>());
    stages.push_back(std::move(loss));
    return stages;
  }
  // The logits have become the gradient of the sum of the losses.
  Tensors Outputs(const Tensor&, const Tensor&) override {
    return {std::exchange(loss_, {}), std::exchange(best_, {})};  // kept, they would keep this pass
  }
  std::pair<Tensor, Tensor> Entering(const Tensors& d_out) override {
    output_.mul_(d_out[0].unsqueeze(1));
    return {at::zeros_like(x_), output_};
  }

  Tensor label_, loss_, best_;
  bool gradient_ = false;
};

Tensors CrossEntropyOperations(const StageCall& call) {
  const Tensor logits = Product(Normed(call.inputs[0], call.inputs[1]), call.inputs[2]);
  return {at::cross_entropy_loss(logits, call.inputs[3], {}, at::Reduction::None),
          logits.detach().argmax(1)};
}

// ---- heads --------------------------------------------------------------------------------------

// QK-norm and rotation of queries and keys; values pass.
class HeadsPass : public HostPass {
 public:
  using HostPass::HostPass;

  Tensors Forward(const Tensors& in, bool) override {
    out_ = in[0].clone(at::MemoryFormat::Contiguous);
    cosine_ = in[1], sine_ = in[2], position_ = in[3];
    if (call_.qk_norm) scale_ = at::empty({out_.size(0), 2 * call_.heads});
    ForRows(out_.size(0), [&](std::int64_t begin, std::int64_t count) {
      const Cells rows = At(out_, begin);
      if (call_.qk_norm) {
        NormHeads(rows, out_.size(1), count, 2 * call_.heads, call_.head_dim, Scale(begin));
      }
      Turn(rows, begin, count, 1.0F);
    });
    const Tensor result = out_;
    out_ = out_.detach();  // the output would keep itself alive
    return {result};
  }

  Tensors Backward(const Tensors& d_out) override {
    const Tensor d_in = d_out[0].clone(at::MemoryFormat::Contiguous);
    ForRows(d_in.size(0), [&](std::int64_t begin, std::int64_t count) {
      const Cells rows = At(d_in, begin);
      if (call_.qk_norm) {
        NormHeadsBackward(At(out_, begin), out_.size(1), Scale(begin), count, 2 * call_.heads,
                          call_.head_dim, rows);
      }
      Turn(rows, begin, count, -1.0F);
    });
    return {d_in, {}, {}, {}};
  }

 private:
  static Cells At(const Tensor& rows, std::int64_t begin) {
    return CellsOf(rows) + begin * rows.size(1);
  }
  float* Scale(std::int64_t begin) const { return Data(scale_) + begin * 2 * call_.heads; }

  void Turn(Cells rows, std::int64_t begin, std::int64_t count, float turn) const {
    if (!cosine_.defined()) return;
    const std::int64_t tables = cosine_.size(0), heads = call_.heads;
    const std::int64_t together = tables == 1 ? 2 * heads : 1;
    for (std::int64_t h = 0; h < 2 * heads; h += together) {
      const std::int64_t table = (tables == 1 ? 0 : h % heads) * cosine_.stride(0);
      Rotate(rows + h * call_.head_dim, out_.size(1), count, together, call_.head_dim,
             cosine_.const_data_ptr<float>() + table, sine_.const_data_ptr<float>() + table,
             position_.const_data_ptr<std::int32_t>() + begin, turn);
    }
  }

  Tensor out_, scale_, cosine_, sine_, position_;
};

Tensors HeadsOperations(const StageCall& call) {
  const Tensor& projected = call.inputs[0];
  const auto heads = projected.view({projected.size(0), 3, call.heads, call.head_dim});
  Tensor turned = heads.narrow(1, 0, 2);
  if (call.qk_norm) turned = at::rms_norm(turned, {call.head_dim}, {}, kNormEpsilon);
  if (call.inputs[1].defined()) {
    // [rows, 1, 1 or heads, head_dim / 2]
    const auto entries = [&](const Tensor& table) {
      return table.index_select(1, call.inputs[3]).transpose(0, 1).unsqueeze(1);
    };
    const Tensor cosine = entries(call.inputs[1]), sine = entries(call.inputs[2]);
    const Tensors halves = turned.chunk(2, 3);
    turned =
        at::cat({halves[0] * cosine - halves[1] * sine, halves[0] * sine + halves[1] * cosine}, 3)
            .to(projected.scalar_type());
  }
  return {at::cat({turned, heads.narrow(1, 2, 1)}, 1).view_as(projected)};
}

class LengthScalePass : public HostPass {
 public:
  using HostPass::HostPass;

  Tensors Forward(const Tensors& in, bool) override {
    in_ = in;
    in_[0] = in[0].contiguous();
    const std::int64_t heads = in_[0].size(1) / 2;
    const Tensor c = at::empty({in_[0].size(0), heads}, at::kFloat);
    ForRows(c.size(0), [&](std::int64_t begin, std::int64_t count) {
      const Cells beta = CellsOf(in_[0]) + begin * 2 * heads;
      AdaptiveScaleForward(Settings(), beta, beta + heads, 2 * heads, Data(in_[4]) + begin, count,
                           Data(c) + begin * heads, heads);
    });
    return {c};
  }

  Tensors Backward(const Tensors& d_out) override {
    const Tensor d_c = d_out[0].contiguous();
    const std::int64_t rows = d_c.size(0), heads = d_c.size(1);
    const Tensor d_in = at::empty_like(in_[0]);
    // Blocks sum apart, so that sums have one order.
    const bool biased = in_[1].defined();
    const Tensor sums = at::zeros({biased ? (rows + kRowBlock - 1) / kRowBlock : 0, 2, heads});
    ForRows(rows, [&](std::int64_t begin, std::int64_t count) {
      const std::int64_t at = begin * 2 * heads;
      const Cells beta = CellsOf(in_[0]) + at, d_beta = CellsOf(d_in) + at;
      float* d_bias = biased ? Data(sums) + begin / kRowBlock * 2 * heads : nullptr;
      AdaptiveScaleBackward(Settings(), beta, beta + heads, 2 * heads, Data(in_[4]) + begin, count,
                            Data(d_c) + begin * heads, heads, d_beta, d_beta + heads, d_bias,
                            biased ? d_bias + heads : nullptr);
    });
    const Tensor d_bias = biased ? sums.sum(0) : Tensor();
    return {d_in, biased ? d_bias[0] : Tensor(), biased ? d_bias[1] : Tensor(), d_c.sum(0), {}};
  }

 private:
  AdaptiveScale Settings() const {
    const auto bias = [&](std::size_t i) { return in_[i].defined() ? Data(in_[i]) : nullptr; };
    return {in_[0].size(1) / 2, Data(in_[3]), static_cast<float>(call_.gamma_range), bias(1),
            bias(2)};
  }

  Tensors in_;
};

Tensors LengthScaleOperations(const StageCall& call) {
  const Tensors halves = call.inputs[0].to(at::kFloat).chunk(2, 1);
  const auto with = [](const Tensor& x, const Tensor& bias) {
    return bias.defined() ? x + bias : x;
  };
  const Tensor beta = with(halves[0], call.inputs[1]), gamma = with(halves[1], call.inputs[2]);
  const Tensor power = call.gamma_range * gamma.tanh() * call.inputs[4].unsqueeze(1);
  return {call.inputs[3] + at::softplus(beta) * power.exp()};
}

Tensors AttentionOnHost(const StageCall& call) {
  return {tsallis::Attention(call.inputs[0], call.inputs[1], call.inputs[2], *call.attention)};
}

Tensors AttentionOperations(const StageCall& call) {
  return {PlainAttention(call.inputs[0], call.inputs[1], call.inputs[2], *call.attention,
                         call.longest)};
}

}  // namespace

const std::vector<Stage>& Stages() {
  static const std::vector<Stage> all = {
      {"projection",
       {{"x", "rw"}, {"gain", "w", true}, {"weight", "ow"}},
       OnHost<ProjectionPass>,
       ProjectionOperations},
      {"join",
       {{"x", "rw"}, {"value", "ri"}, {"weight", "wi"}, {"out_gain", "w", true}},
       OnHost<JoinPass>,
       JoinOperations},
      {"feed-forward",
       {{"x", "rw"}, {"gain", "w", true}, {"up", "uw"}, {"down", "wh"}, {"out_gain", "w", true}},
       OnHost<FeedForwardPass>,
       FeedForwardOperations},
      {"heads",
       {{"projected", "rp"}, {"cosine", "tnd", true}, {"sine", "tnd", true}, {"position", "r"}},
       OnHost<HeadsPass>,
       HeadsOperations},
      {"length-scale",
       {{"projected", "rs"},
        {"beta_bias", "c", true},
        {"gamma_bias", "c", true},
        {"delta", "c"},
        {"log_log_n", "r"}},
       OnHost<LengthScalePass>,
       LengthScaleOperations},
      {"attention",
       {{"q", "bcnw"}, {"k", "bcnw"}, {"v", "bcnw"}},
       AttentionOnHost,
       AttentionOperations},
      {"cross-entropy",
       {{"x", "rw"}, {"gain", "w", true}, {"weight", "ow"}, {"labels", "r"}},
       OnHost<CrossEntropyPass>,
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
