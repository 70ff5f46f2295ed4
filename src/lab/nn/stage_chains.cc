// The stages whose kernels are chains of norms, products and activations (row_chain.h).
#include <ATen/ATen.h>

#include <memory>
#include <utility>

#include "lab/nn/decoder_kernels.h"
#include "lab/nn/row_stages.h"
#include "lab/nn/stage_pass.h"

namespace tsallis::lab {
namespace {

using at::Tensor;

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
    chain_->Forward(Pass(keep ? kRowBlock : call_.block), x_, value_,
                    columns == 0 ? x_out : value_out, keep);
    return Outputs(x_out, value_out);
  }

  Tensors Backward(Tensors& d_out) override {
    const auto [d_x, d_value_out] = Entering(d_out);
    const Tensor d_value = value_.defined() ? at::empty_like(value_) : Tensor();
    chain_->Backward(Pass(kRowBlock), x_, value_, output_, d_x, d_value_out, d_value);
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
};

class ProjectionPass : public ChainPass {
 public:
  using ChainPass::ChainPass;

  Tensors Forward(const Tensors& in, bool keep) override {
    heads_ = {call_.parts, call_.heads, call_.head_dim, call_.qk_norm, in[3], in[4], in[5]};
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
  const std::int64_t columns = call.parts * call.heads * call.head_dim;
  const auto heads = projected.narrow(1, 0, columns)
                         .view({projected.size(0), call.parts, call.heads, call.head_dim});
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
    stages.push_back(MakeCrossEntropy(
        Rows(1),
        {label_.const_data_ptr<std::int64_t>(), gradient_ ? static_cast<float>(call_.weight) : 0.0F,
         Data(loss_), best_.mutable_data_ptr<std::int64_t>()}));
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

}  // namespace

std::vector<Stage> ChainStages() {
  return {
      {"projection",
       {{"x", "rw"},
        {"gain", "w", true},
        {"weight", "pw"},
        {"cosine", "tnd", true},
        {"sine", "tnd", true},
        {"position", "r", true}},
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
      {"cross-entropy",
       {{"x", "rw"}, {"gain", "w", true}, {"weight", "ow"}, {"labels", "r"}},
       CrossEntropyOnHost,
       CrossEntropyOperations}};
}

}  // namespace tsallis::lab
