#include "lab/nn/row_stages.h"

#include <ATen/ATen.h>

#include <stdexcept>
#include <utility>

namespace tsallis::lab {
namespace {

using at::Tensor;

// A gain that is learned, or zeros, which the kernels take for none.
class Gained : public RowStage {
 public:
  Gained(Kind kind, std::int64_t width, const Parameter* gain)
      : RowStage(kind, width),
        gain_(gain),
        zeros_(gain == nullptr ? at::zeros({width}) : at::Tensor()) {}

  const Parameter* Gain() const override { return gain_; }
  std::int64_t Kept() const override { return 1; }

 protected:
  const float* Factors() const { return Data(gain_ != nullptr ? gain_->value : zeros_); }
  // Receives the gain's gradient; without a gain it is memory that nobody reads.
  float* Sums(const Backwards& block, std::vector<float>& unused) const {
    if (block.d_gain != nullptr) return block.d_gain;
    unused.resize(static_cast<std::size_t>(columns()));
    return unused.data();
  }

 private:
  const Parameter* gain_;
  Tensor zeros_;
};

class NormStage : public Gained {
 public:
  NormStage(std::int64_t width, const Parameter* gain) : Gained(Kind::kFromStream, width, gain) {}

  void Forward(const Forwards& block) const override {
    RowKernels().rms_norm(Data(block.x), Factors(), block.span.count, columns(), CellsOf(block.out),
                          block.kept);
  }
  void Backward(const Backwards& block) const override {
    std::vector<float> unused;
    RowKernels().rms_norm_backward(Data(block.x), block.kept, Factors(), CellsOf(block.d_out),
                                   block.span.count, columns(), Data(block.d_x),
                                   Sums(block, unused), CellsOf(block.out));
  }
};

class AddNormStage : public Gained {
 public:
  AddNormStage(std::int64_t width, const Parameter* gain) : Gained(Kind::kToStream, width, gain) {}

  void Forward(const Forwards& block) const override {
    RowKernels().add_rms_norm(Data(block.x), CellsOf(block.value), Factors(), block.span.count,
                              columns(), Data(block.out), block.kept);
  }
  void Backward(const Backwards& block) const override {
    std::vector<float> unused;
    RowKernels().add_rms_norm_backward(CellsOf(block.value), block.kept, Factors(),
                                       Data(block.d_out), block.span.count, columns(),
                                       CellsOf(block.d_value), Sums(block, unused));
  }
};

class AddStage : public RowStage {
 public:
  explicit AddStage(std::int64_t width) : RowStage(Kind::kToStream, width) {}

  void Forward(const Forwards& block) const override {
    Tensor out = block.out;
    at::add_out(out, block.x, block.value);
  }
  void Backward(const Backwards& block) const override { block.d_value.copy_(block.d_out); }
};

class LinearStage : public RowStage {
 public:
  LinearStage(std::int64_t out, const Parameter* weight, bool exact)
      : RowStage(Kind::kValue, out), weight_(weight), exact_(exact) {}

  const Parameter* Weight() const override { return weight_; }
  void Forward(const Forwards& block) const override {
    Tensor out = block.out;
    at::mm_out(out, block.value, Factor().t());
  }
  void Backward(const Backwards& block) const override {
    Tensor d_value = block.d_value;
    at::mm_out(d_value, block.d_out, Factor());
  }

 private:
  const Tensor& Factor() const { return exact_ ? weight_->value : weight_->product; }

  const Parameter* weight_;
  bool exact_;
};

class HeadsStage : public RowStage {
 public:
  HeadsStage(std::int64_t columns, const HeadRows& rows)
      : RowStage(Kind::kInPlace, columns), rows_(rows) {}

  std::int64_t Kept() const override { return rows_.norm ? Vectors() : 0; }
  void Forward(const Forwards& block) const override {
    const Cells value = CellsOf(block.value);
    if (rows_.norm) {
      RowKernels().norm_heads(value, columns(), block.span.count, Vectors(), rows_.head_dim,
                              block.kept);
    }
    Turn(value, block.span, 1.0F);
  }
  void Backward(const Backwards& block) const override {
    const Cells d_value = CellsOf(block.d_value);
    if (rows_.norm) {
      RowKernels().norm_heads_backward(CellsOf(block.value), columns(), block.kept,
                                       block.span.count, Vectors(), rows_.head_dim, d_value);
    }
    Turn(d_value, block.span, -1.0F);
  }

 private:
  std::int64_t Vectors() const { return rows_.parts * rows_.heads; }
  void Turn(Cells value, const RowSpan& span, float turn) const {
    if (!rows_.cosine.defined()) return;
    const bool one = rows_.cosine.size(0) == 1;
    const std::int64_t together = one ? Vectors() : 1;
    for (std::int64_t v = 0; v < Vectors(); v += together) {
      const std::int64_t table = one ? 0 : v % rows_.heads * rows_.cosine.stride(0);
      RowKernels().rotate(value + v * rows_.head_dim, columns(), span.count, together,
                          rows_.head_dim, Data(rows_.cosine) + table, Data(rows_.sine) + table,
                          rows_.position.const_data_ptr<std::int32_t>() + span.begin, turn);
    }
  }

  HeadRows rows_;
};

// A kernel and its gradient: out = f(in); d_in and `out` again; and f in torch's operations.
struct Activation {
  CatalogueEntry entry;
  std::int64_t inputs;
  decltype(RowKernelTable::gated_gelu) RowKernelTable::*forward;
  decltype(RowKernelTable::gated_gelu_backward) RowKernelTable::*backward;
  Tensor (*operations)(const Tensor& in);
};

const std::vector<Activation>& AllActivations() {
  static const std::vector<Activation> all = {
      {{"gelu-gated", "gelu(g) u, gelu in its tanh form"},
       2,
       &RowKernelTable::gated_gelu,
       &RowKernelTable::gated_gelu_backward,
       [](const Tensor& in) {
         const std::vector<Tensor> halves = in.chunk(2, 1);
         return at::gelu(halves[0], "tanh") * halves[1];
       }},
      {{"silu-gated", "silu(g) u"},
       2,
       &RowKernelTable::gated_silu,
       &RowKernelTable::gated_silu_backward,
       [](const Tensor& in) {
         const std::vector<Tensor> halves = in.chunk(2, 1);
         return at::silu(halves[0]) * halves[1];
       }},
      {{"relu2", "max(u, 0)^2 (So et al. 2021)"},
       1,
       &RowKernelTable::squared_relu,
       &RowKernelTable::squared_relu_backward,
       [](const Tensor& in) { return at::relu(in).square(); }}};
  return all;
}

const Activation& FindActivation(const std::string& name) {
  for (const Activation& activation : AllActivations()) {
    if (activation.entry.name == name) return activation;
  }
  throw std::logic_error("no activation " + name);  // configurations are checked before
}

class ActivationStage : public RowStage {
 public:
  ActivationStage(const Activation& activation, std::int64_t hidden)
      : RowStage(Kind::kValue, hidden), activation_(activation) {}

  void Forward(const Forwards& block) const override {
    (RowKernels().*activation_.forward)(CellsOf(block.value), block.span.count, columns(),
                                        CellsOf(block.out));
  }
  void Backward(const Backwards& block) const override {
    (RowKernels().*activation_.backward)(CellsOf(block.value), CellsOf(block.d_out),
                                         block.span.count, columns(), CellsOf(block.d_value),
                                         CellsOf(block.out));
  }

 private:
  const Activation& activation_;
};

class CrossEntropyStage : public RowStage {
 public:
  CrossEntropyStage(std::int64_t vocabulary, const Judgement& judgement)
      : RowStage(Kind::kInPlace, vocabulary), judgement_(judgement) {}

  void Forward(const Forwards& block) const override {
    const auto& [label, weight, loss, best] = judgement_;
    RowKernels().cross_entropy(Data(block.value), block.span.count, columns(),
                               label + block.span.begin, weight, loss + block.span.begin,
                               best + block.span.begin);
  }
  void Backward(const Backwards&) const override {}  // done in Forward

 private:
  Judgement judgement_;
};

}  // namespace

std::unique_ptr<RowStage> MakeNorm(std::int64_t width, const Parameter* gain) {
  return std::make_unique<NormStage>(width, gain);
}

std::unique_ptr<RowStage> MakeAddNorm(std::int64_t width, const Parameter* gain) {
  return std::make_unique<AddNormStage>(width, gain);
}

std::unique_ptr<RowStage> MakeAdd(std::int64_t width) { return std::make_unique<AddStage>(width); }

std::unique_ptr<RowStage> MakeLinear(std::int64_t out, const Parameter* weight, bool exact) {
  return std::make_unique<LinearStage>(out, weight, exact);
}

std::unique_ptr<RowStage> MakeHeads(std::int64_t columns, const HeadRows& rows) {
  return std::make_unique<HeadsStage>(columns, rows);
}

const std::vector<CatalogueEntry>& Activations() {
  static const std::vector<CatalogueEntry> entries = [] {
    std::vector<CatalogueEntry> list;
    for (const Activation& activation : AllActivations()) list.push_back(activation.entry);
    return list;
  }();
  return entries;
}

std::int64_t ActivationInputs(const std::string& name) { return FindActivation(name).inputs; }

Tensor Activated(const std::string& name, const Tensor& in) {
  const Activation& activation = FindActivation(name);
  if (activation.operations == nullptr) {
    throw std::logic_error("activation " + name + " has no form in torch's operations");
  }
  return activation.operations(in);
}

std::unique_ptr<RowStage> MakeActivation(const std::string& name, std::int64_t hidden) {
  return std::make_unique<ActivationStage>(FindActivation(name), hidden);
}

std::unique_ptr<RowStage> MakeCrossEntropy(std::int64_t vocabulary, const Judgement& judgement) {
  return std::make_unique<CrossEntropyStage>(vocabulary, judgement);
}

}  // namespace tsallis::lab
