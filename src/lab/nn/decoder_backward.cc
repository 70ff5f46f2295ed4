#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/parallel.h"
#include "lab/nn/decoder_state.h"

namespace tsallis::lab {
namespace {

using at::Tensor;

// Rows of a weight's gradient that one thread makes at a time; every piece packs the activations
// anew.
constexpr std::int64_t kWeightRows = 1024;

// dx = dy weight. dy: [rows, out], weight: [out, in].
void LinearBackward(const Tensor& dy, const Tensor& weight, Tensor dx) {
  at::mm_out(dx, dy, weight);
}

// to[rows[i], :] = from[i, :], 0 elsewhere.
void Scatter(const Tensor& from, const std::vector<std::int64_t>& rows, const Tensor& to) {
  to.zero_();
  const std::size_t bytes = static_cast<std::size_t>(from.size(1)) * from.element_size();
  const char* source = static_cast<const char*>(from.const_data_ptr());
  char* target = static_cast<char*>(to.mutable_data_ptr());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    std::memcpy(target + static_cast<std::size_t>(rows[i]) * bytes, source + i * bytes, bytes);
  }
}

// Gradients of a product's output, as the product that makes its weight's gradient reads them:
// [out, rows]. In bfloat16 they are transposed block by block, because torch's product takes twice
// as long on a transposed view (docs/log.md); in float32 the view costs nothing.
class OutputGradient {
 public:
  OutputGradient(Buffer& buffer, std::int64_t rows, std::int64_t columns, at::ScalarType dtype)
      : rows_(rows), columns_(columns), half_(dtype == at::kBFloat16) {
    memory_ = half_ ? Room(buffer) : buffer.Rows(rows, columns, dtype);
  }
  // Of gradients that stand somewhere already: [rows, columns].
  OutputGradient(Buffer& buffer, const Tensor& given)
      : rows_(given.size(0)), columns_(given.size(1)), half_(given.scalar_type() == at::kBFloat16) {
    memory_ = half_ ? Room(buffer) : given;
  }

  // Where rows [begin, begin + count) are written before Done(): [count, columns].
  Tensor Block(std::int64_t begin, std::int64_t count, Buffer& scratch) const {
    return half_ ? scratch.Rows(count, columns_, at::kBFloat16) : memory_.narrow(0, begin, count);
  }
  void Done(const Tensor& block, std::int64_t begin) const {
    if (!half_) return;
    TransposeHalves(static_cast<const std::uint16_t*>(block.const_data_ptr()), block.size(0),
                    columns_, static_cast<std::uint16_t*>(memory_.data_ptr()) + begin,
                    memory_.size(1));
  }
  Tensor Transposed() const { return half_ ? memory_.narrow(1, 0, rows_) : memory_.t(); }

 private:
  // Rows of a multiple of 4 KB would share a few sets of the cache. What lies between them has to
  // be numbers: torch's product of a strided matrix reads up to 31 of them and multiplies them by
  // 0.
  Tensor Room(Buffer& buffer) const {
    const std::int64_t stride = (rows_ + 63) / 64 * 64 + 32;
    Tensor memory = buffer.Rows(columns_, stride, at::kBFloat16);
    memory.narrow(1, rows_, stride - rows_).zero_();
    return memory;
  }

  std::int64_t rows_, columns_;
  bool half_;
  Tensor memory_;
};

// Gradients of gains that blocks of rows sum up apart, so that their sum has one order.
class Gains {
 public:
  Gains(Buffer& buffer, std::int64_t rows, std::int64_t width, std::int64_t count)
      : partial_(buffer.Rows((rows + kRowBlock - 1) / kRowBlock * count, width, at::kFloat)),
        width_(width),
        count_(count) {
    partial_.zero_();
  }

  // The sums of gain `index` of the block that begins at row `begin`. [width]
  float* Of(std::int64_t begin, std::int64_t index) const {
    return Data(partial_) + (begin / kRowBlock * count_ + index) * width_;
  }

  void AddTo(std::int64_t index, const Parameter& gain) const {
    float* to = Data(gain.gradient);
    for (std::int64_t block = 0; block < partial_.size(0) / count_; ++block) {
      const float* from = Of(block * kRowBlock, index);
      for (std::int64_t k = 0; k < width_; ++k) to[k] += from[k];
    }
  }

 private:
  Tensor partial_;
  std::int64_t width_, count_;
};

}  // namespace

void Decoder::State::AddWeightGradients(const std::vector<WeightGradient>& gradients) {
  struct Task {
    const WeightGradient* gradient;
    std::int64_t begin, end;
  };
  std::vector<Task> tasks;
  for (const WeightGradient& gradient : gradients) {
    const std::int64_t out = gradient.dy.size(0);
    for (std::int64_t begin = 0; begin < out; begin += kWeightRows) {
      tasks.push_back({&gradient, begin, std::min(out, begin + kWeightRows)});
    }
  }
  const Context context{.threads = threads};
  const auto count = static_cast<std::int64_t>(tasks.size());
  const auto workers = static_cast<std::size_t>(Workers(context, count));
  if (scratch.size() < workers) scratch.resize(workers);
  ParallelTasks(context, count, [&](std::int64_t index, int worker) {
    const at::AutoDispatchBelowADInplaceOrView no_autograd;
    const auto& [gradient, begin, end] = tasks[static_cast<std::size_t>(index)];
    Tensor product = scratch[static_cast<std::size_t>(worker)].product.Rows(
        end - begin, gradient->x.size(1), gradient->x.scalar_type());
    at::mm_out(product, gradient->dy.narrow(0, begin, end - begin), gradient->x);
    gradient->weight->gradient.narrow(0, begin, end - begin).add_(product);
  });
}

SequenceScore Decoder::State::LossesAndGradient(const DecoderRows& rows, float weight) {
  const std::int64_t width = config.width;
  const auto scored = static_cast<std::int64_t>(rows.scored.size());
  std::vector<float> loss(rows.scored.size());
  std::vector<std::int64_t> best(rows.scored.size());
  const Tensor d_logits = backward.logits.Rows(scored, config.vocabulary, at::kFloat);
  const Tensor normal = backward.final_normal.Rows(scored, width, at::kFloat);
  const Tensor d_x = backward.final_x.Rows(scored, width, at::kFloat);
  d_x.zero_();
  const Gains gains(backward.gains, scored, width, 1);
  ForBlocks(scored, [&](std::int64_t begin, std::int64_t end, Scratch& s) {
    const std::int64_t count = end - begin;
    const Tensor logits = d_logits.narrow(0, begin, count);
    logits.copy_(Logits(begin, end, s));
    CrossEntropy(Data(logits), count, config.vocabulary, rows.label.data() + begin, weight,
                 loss.data() + begin, best.data() + begin);
    const Tensor d_normal = s.d_normal.Rows(count, width, at::kFloat);
    LinearBackward(logits, head.value, d_normal);
    RmsNormBackward(Data(final_x) + begin * width, final_scale.data() + begin,
                    Data(final_norm.value), CellsOf(d_normal), count, width,
                    Data(d_x) + begin * width, gains.Of(begin, 0),
                    CellsOf(normal.narrow(0, begin, count)));
  });
  gains.AddTo(0, final_norm);
  AddWeightGradients({{d_logits.t(), normal, &head}});
  return ScoreOf(rows, loss, best);
}

// The layer's part behind attention. d_x: [after, width], the gradient of what the layer puts out,
// becomes that of the residual stream before the layer.
void Decoder::State::BackwardAfter(DecoderLayer& layer, LayerActivations& a, std::int64_t after,
                                   const Tensor& attended, const Tensor& d_x,
                                   const Tensor& d_attended) {
  const std::int64_t width = config.width;
  const std::int64_t hidden = config.feed_forward;
  const Tensor branch = a.branch.Rows(after, width, dtype);
  const Tensor middle = a.middle.Rows(after, width, at::kFloat);
  const Tensor gate_up = a.gate_up.Rows(after, 2 * hidden, dtype);
  const Tensor fed = a.fed.Rows(after, width, dtype);
  const OutputGradient d_branch(backward.branch, after, width, dtype);
  const OutputGradient d_gate_up(backward.gate_up, after, 2 * hidden, dtype);
  const OutputGradient d_fed(backward.fed, after, width, dtype);
  const Tensor normal = backward.after_normal.Rows(after, width, dtype);
  const Tensor h = backward.hidden.Rows(after, hidden, dtype);
  const Gains gains(backward.gains, after, width, 3);
  ForBlocks(after, [&](std::int64_t begin, std::int64_t end, Scratch& s) {
    const std::int64_t count = end - begin;
    const auto block = [&](const Tensor& tensor) { return tensor.narrow(0, begin, count); };
    float* dx = Data(d_x) + begin * width;
    const Tensor dh = s.d_hidden.Rows(count, hidden, dtype);
    const Tensor dn = s.normal.Rows(count, width, dtype);
    const Tensor to_fed = d_fed.Block(begin, count, s.fed);
    const Tensor to_gates = d_gate_up.Block(begin, count, s.gate_up);
    const Tensor to_branch = d_branch.Block(begin, count, s.branch);
    AddRmsNormBackward(CellsOf(block(fed)), a.scale[3].data() + begin,
                       Data(layer.feed_forward_out_norm.value), dx, count, width, CellsOf(to_fed),
                       gains.Of(begin, 2));
    LinearBackward(to_fed, layer.down.product, dh);
    GatedGeluBackward(CellsOf(block(gate_up)), CellsOf(dh), count, hidden, CellsOf(to_gates),
                      CellsOf(block(h)));
    LinearBackward(to_gates, layer.gate_up.product, dn);
    RmsNormBackward(Data(middle) + begin * width, a.scale[2].data() + begin,
                    Data(layer.feed_forward_norm.value), CellsOf(dn), count, width, dx,
                    gains.Of(begin, 1), CellsOf(block(normal)));
    AddRmsNormBackward(CellsOf(block(branch)), a.scale[1].data() + begin,
                       Data(layer.attention_out_norm.value), dx, count, width, CellsOf(to_branch),
                       gains.Of(begin, 0));
    LinearBackward(to_branch, layer.attention_out.product, block(d_attended));
    d_fed.Done(to_fed, begin);
    d_gate_up.Done(to_gates, begin);
    d_branch.Done(to_branch, begin);
  });
  gains.AddTo(0, layer.attention_out_norm);
  gains.AddTo(1, layer.feed_forward_norm);
  gains.AddTo(2, layer.feed_forward_out_norm);
  AddWeightGradients({{d_gate_up.Transposed(), normal, &layer.gate_up},
                      {d_fed.Transposed(), h, &layer.down},
                      {d_branch.Transposed(), attended, &layer.attention_out}});
}

// The part before attention. d_x: [rows, width] already holds the gradient that passes by.
void Decoder::State::BackwardBefore(const DecoderRows& rows, DecoderLayer& layer,
                                    LayerActivations& a, const Tensor& d_x,
                                    const Tensor& d_projected) {
  const std::int64_t width = config.width;
  const Tensor x = a.x.Rows(rows.rows, width, at::kFloat);
  const Tensor normal = backward.normal.Rows(rows.rows, width, dtype);
  const OutputGradient gradient(backward.transposed, d_projected);
  const Gains gains(backward.gains, rows.rows, width, 1);
  ForBlocks(rows.rows, [&](std::int64_t begin, std::int64_t end, Scratch& s) {
    const std::int64_t count = end - begin;
    layer.attention.Rotate(rows, begin, end, CellsOf(d_projected), -1.0F);
    const Tensor dn = s.normal.Rows(count, width, dtype);
    const Tensor block = d_projected.narrow(0, begin, count);
    LinearBackward(block, layer.attention.Projection().product, dn);
    gradient.Done(block, begin);
    RmsNormBackward(Data(x) + begin * width, a.scale[0].data() + begin,
                    Data(layer.attention_norm.value), CellsOf(dn), count, width,
                    Data(d_x) + begin * width, gains.Of(begin, 0),
                    CellsOf(normal.narrow(0, begin, count)));
  });
  gains.AddTo(0, layer.attention_norm);
  AddWeightGradients({{gradient.Transposed(), normal, &layer.attention.Projection()}});
}

void Decoder::State::BackwardLayers(const DecoderRows& rows, const GradientOptions& options) {
  const std::int64_t width = config.width;
  const auto scored = static_cast<std::int64_t>(rows.scored.size());
  std::int64_t ready = parameters.Flat().numel();
  const auto report = [&](const Parameter& first) {
    const std::int64_t begin = parameters.Begin(first);
    if (options.ready) options.ready(begin, ready);
    ready = begin;
  };
  report(final_norm);
  Tensor d_x = backward.final_x.Rows(scored, width, at::kFloat);
  for (std::size_t l = layers.size(); l-- > 0;) {
    DecoderLayer& layer = layers[l];
    LayerActivations& a = activations[l];
    const bool fewer = l + 1 == layers.size() && scored < rows.rows;
    const std::int64_t after = fewer ? scored : rows.rows;
    const Tensor attended =
        fewer ? a.selected.Rows(after, inner, dtype) : a.attended.Rows(after, inner, dtype);
    Tensor d_attended = (fewer ? backward.selected : backward.attended).Rows(after, inner, dtype);
    BackwardAfter(layer, a, after, attended, d_x, d_attended);
    if (fewer) {
      const Tensor all = backward.attended.Rows(rows.rows, inner, dtype);
      Scatter(d_attended, rows.scored, all);
      d_attended = all;
      const Tensor all_x = backward.x.Rows(rows.rows, width, at::kFloat);
      Scatter(d_x, rows.scored, all_x);
      d_x = all_x;
    }
    const std::int64_t columns = layer.attention.Columns();
    const Tensor d_projected = backward.projected.Rows(rows.rows, columns, dtype);
    layer.attention.Backward({.threads = threads}, rows,
                             fewer ? LayerAttention::Queries::kLast : LayerAttention::Queries::kAll,
                             a.projected.Rows(rows.rows, columns, dtype), d_attended, a.kept,
                             d_projected);
    BackwardBefore(rows, layer, a, d_x, d_projected);
    report(layer.attention_norm);
  }
  // Tokens repeat, so their rows are added in order; columns are apart.
  const float factor = std::sqrt(static_cast<float>(width));
  float* to = Data(embedding.gradient);
  ParallelFor({.threads = threads}, width, 64, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = 0; r < rows.rows; ++r) {
      const float* from = Data(d_x) + r * width;
      float* row = to + rows.token[static_cast<std::size_t>(r)] * width;
      for (std::int64_t k = begin; k < end; ++k) row[k] += factor * from[k];
    }
  });
  report(embedding);
}

}  // namespace tsallis::lab
