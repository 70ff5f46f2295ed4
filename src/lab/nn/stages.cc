#include "lab/nn/stages.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>

#include "core/parallel.h"
#include "lab/nn/decoder_kernels.h"
#include "lab/nn/stage_pass.h"

namespace tsallis::lab {
namespace {

using at::Tensor;

// ---- embeddings ---------------------------------------------------------------------------------

class EmbeddingPass : public StagePass {
 public:
  using StagePass::StagePass;

  Tensors Forward(const Tensors& in, bool keep) override {
    table_ = Take(in[0], at::kFloat, keep);
    token_ = in[1].contiguous();
    const std::int64_t rows = token_.numel(), width = Width();
    const Tensor x = at::empty({rows, width}), no_gain = at::zeros({width});
    const float* table = Data(table_.parameter.value);
    const auto* token = token_.const_data_ptr<std::int64_t>();
    const float* sinusoids = in[2].defined() ? Data(in[2]) : nullptr;
    const auto* position = in[3].const_data_ptr<std::int32_t>();
    const bool normed = Normed();
    const float factor = Factor();
    if (normed) scale_ = at::empty({rows});
    ForRows(rows, [&](std::int64_t begin, std::int64_t count) {
      for (std::int64_t r = begin; r < begin + count; ++r) {
        const float* from = table + token[r] * width;
        float* to = Data(x) + r * width;
        if (normed) {
          RowKernels().rms_norm(from, Data(no_gain), 1, width, {to, false}, Data(scale_) + r);
        } else {
          for (std::int64_t k = 0; k < width; ++k) to[k] = from[k] * factor;
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
    float* table = Data(table_.parameter.value);
    const auto* token = token_.const_data_ptr<std::int64_t>();
    if (Normed()) {
      const Tensor no_gain = at::zeros({width});
      ForRows(rows, [&](std::int64_t begin, std::int64_t count) {
        std::vector<float> unused(static_cast<std::size_t>(width));
        for (std::int64_t r = begin; r < begin + count; ++r) {
          // In place: the gradient of the branch x + norm(weight), without the x.
          float* d_row = Data(d_x) + r * width;
          RowKernels().add_rms_norm_backward({table + token[r] * width, false}, Data(scale_) + r,
                                             Data(no_gain), d_row, 1, width, {d_row, false},
                                             unused.data());
        }
      });
    }
    // Tokens repeat, so their rows are added in order; columns are apart.
    const float* gradients = Data(d_x);
    float* gradient = Data(table_.parameter.gradient);
    const float factor = Factor();
    ParallelFor({.threads = Workers().threads()}, width, 64,
                [&](std::int64_t begin, std::int64_t end) {
                  for (std::int64_t r = 0; r < rows; ++r) {
                    const float* from = gradients + r * width;
                    float* to = gradient + token[r] * width;
                    for (std::int64_t k = begin; k < end; ++k) to[k] += factor * from[k];
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
      RowKernels().adaptive_scale(Settings(), beta, beta + heads, Stride(), Data(in_[4]) + begin,
                                  count, Data(c) + begin * heads, heads);
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
      RowKernels().adaptive_scale_backward(Settings(), beta, beta + heads, Stride(),
                                           Data(in_[4]) + begin, count, Data(d_c) + begin * heads,
                                           heads, d_beta, d_beta + heads, d_bias,
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
    shape_ = in[0].sizes().vec();
    rows_ = in[1];
    const Tensor picked = at::empty({rows_.numel(), in[0].size(1)}, in[0].options());
    ForRows(rows_.numel(), [&](std::int64_t begin, std::int64_t count) {
      Tensor to = picked.narrow(0, begin, count);
      at::index_select_out(to, in[0], 0, rows_.narrow(0, begin, count));
    });
    return {picked};
  }
  Tensors Backward(Tensors& d_out) override {
    const Tensor d_x = at::zeros(shape_, d_out[0].options());
    ForRows(rows_.numel(), [&](std::int64_t begin, std::int64_t count) {
      Tensor(d_x).index_copy_(0, rows_.narrow(0, begin, count), d_out[0].narrow(0, begin, count));
    });
    return {d_x, {}};
  }

 private:
  std::vector<std::int64_t> shape_;
  Tensor rows_;
};

Tensors RowsOperations(const StageCall& call) {
  return {call.inputs[0].index_select(0, call.inputs[1])};
}

}  // namespace

const std::vector<Stage>& Stages() {
  static const std::vector<Stage> all = [] {
    std::vector<Stage> stages = ChainStages();
    const std::vector<Stage> others = {
        {"embedding",
         {{"weight", "vw"}, {"token", "r"}, {"sinusoids", "nw", true}, {"position", "r"}},
         OnHost<EmbeddingPass>,
         EmbeddingOperations},
        {"length-scale",
         {{"projected", "rp"},
          {"beta_bias", "c", true},
          {"gamma_bias", "c", true},
          {"delta", "c"},
          {"log_log_n", "r"}},
         OnHost<LengthScalePass>,
         LengthScaleOperations},
        {"rows", {{"x", "rw"}, {"row", "m"}}, OnHost<RowsPass>, RowsOperations}};
    stages.insert(stages.end(), others.begin(), others.end());
    return stages;
  }();
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
