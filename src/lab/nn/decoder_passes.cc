#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/parallel.h"
#include "lab/nn/decoder_state.h"

namespace tsallis::lab {
namespace {

// Blocks of rows whose logits stand in memory at least, so that threads have work.
constexpr std::int64_t kLeastBlocks = 4;

using at::Tensor;
using Queries = LayerAttention::Queries;

std::size_t RowBytes(const Tensor& tensor) {
  return static_cast<std::size_t>(tensor.size(1)) * tensor.element_size();
}

// to[i, :] = from[rows[i], :].
void Gather(const Tensor& from, const std::vector<std::int64_t>& rows, const Tensor& to) {
  const std::size_t bytes = RowBytes(from);
  const char* source = static_cast<const char*>(from.const_data_ptr());
  char* target = static_cast<char*>(to.mutable_data_ptr());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    std::memcpy(target + i * bytes, source + static_cast<std::size_t>(rows[i]) * bytes, bytes);
  }
}

// to[rows[i], :] = from[i, :], 0 elsewhere.
void Scatter(const Tensor& from, const std::vector<std::int64_t>& rows, const Tensor& to) {
  to.zero_();
  const std::size_t bytes = RowBytes(from);
  const char* source = static_cast<const char*>(from.const_data_ptr());
  char* target = static_cast<char*>(to.mutable_data_ptr());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    std::memcpy(target + static_cast<std::size_t>(rows[i]) * bytes, source + i * bytes, bytes);
  }
}

// The mean norm of the rows of a matrix.
double MeanNorm(const Tensor& rows) {
  return rows.size(0) == 0 ? 0.0 : rows.norm(2, {1}).mean(at::kDouble).item<double>();
}

}  // namespace

void Decoder::State::Embed(const DecoderRows& rows, const Tensor& x) {
  const std::int64_t width = config.width;
  const float factor = config.embedding == "scaled" ? std::sqrt(static_cast<float>(width)) : 1.0F;
  const bool normed = config.embedding == "normed";
  const Positions& positions = config.attention.positions;
  Tensor table;
  if (positions.kind == "sinusoidal") {
    if (!sinusoids.defined() || sinusoids.size(0) < rows.length) {
      // Twice as long, for sequences that grow by a token.
      const std::int64_t before = sinusoids.defined() ? sinusoids.size(0) : 0;
      sinusoids = Sinusoids(std::max(rows.length, 2 * before), width, positions.base);
    }
    table = sinusoids;
  }
  const Tensor no_gain = at::zeros({width});
  if (normed) embedding_scale.resize(static_cast<std::size_t>(rows.rows));
  const float* weight = Data(embedding.value);
  const auto embed = [&](std::int64_t begin, std::int64_t end, RowWorkers::Scratch&) {
    for (std::int64_t r = begin; r < end; ++r) {
      const auto index = static_cast<std::size_t>(r);
      const float* from = weight + rows.token[index] * width;
      float* to = Data(x) + r * width;
      if (normed) {
        RmsNorm(from, Data(no_gain), 1, width, {to, false}, embedding_scale.data() + r);
      } else {
        for (std::int64_t k = 0; k < width; ++k) to[k] = from[k] * factor;
      }
      if (!table.defined()) continue;
      const float* sines = Data(table) + rows.position[index] * width;
      for (std::int64_t k = 0; k < width; ++k) to[k] += sines[k];
    }
  };
  workers.ForBlocks(rows.rows, kRowBlock, embed);
}

void Decoder::State::BackwardEmbedding(const DecoderRows& rows, const Tensor& d_x) {
  const std::int64_t width = config.width;
  const float factor = config.embedding == "scaled" ? std::sqrt(static_cast<float>(width)) : 1.0F;
  if (config.embedding == "normed") {
    const Tensor no_gain = at::zeros({width});
    const auto add = [&](std::int64_t begin, std::int64_t end, RowWorkers::Scratch&) {
      std::vector<float> unused(static_cast<std::size_t>(width));
      for (std::int64_t r = begin; r < end; ++r) {
        const float* weight =
            Data(embedding.value) + rows.token[static_cast<std::size_t>(r)] * width;
        // In place: the gradient of the branch x + norm(weight), without the x.
        float* d_row = Data(d_x) + r * width;
        AddRmsNormBackward({const_cast<float*>(weight), false}, embedding_scale.data() + r,
                           Data(no_gain), d_row, 1, width, {d_row, false}, unused.data());
      }
    };
    workers.ForBlocks(rows.rows, kRowBlock, add);
  }
  // Tokens repeat, so their rows are added in order; columns are apart.
  float* to = Data(embedding.gradient);
  ParallelFor(Threads(), width, 64, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = 0; r < rows.rows; ++r) {
      const float* from = Data(d_x) + r * width;
      float* row = to + rows.token[static_cast<std::size_t>(r)] * width;
      for (std::int64_t k = begin; k < end; ++k) row[k] += factor * from[k];
    }
  });
}

void Decoder::State::ForwardLayers(const DecoderRows& rows, bool keep, const Visitors& visitors,
                                   const CacheSequences* cached) {
  const Context threads = Threads();
  const std::int64_t width = config.width;
  const auto scored = static_cast<std::int64_t>(rows.scored.size());
  Tensor x = activations[0].x.Rows(rows.rows, width, at::kFloat);
  Embed(rows, x);
  for (std::size_t l = 0; l < layers.size(); ++l) {
    DecoderLayer& layer = layers[l];
    LayerActivations& a = activations[keep ? l : 0];
    const Tensor projected = a.projected.Rows(rows.rows, layer.attention.Columns(), dtype);
    layer.attention.Prepare(rows);
    layer.before->Forward(PassOf(rows, rows.rows), x, {}, {}, projected,
                          keep ? &a.before : nullptr);
    Tensor attended = a.attended.Rows(rows.rows, inner, dtype);
    // From the last attention on only rows whose logits are wanted matter.
    const bool last_layer = l + 1 == layers.size();
    const bool fewer = last_layer && scored < rows.rows;
    const LayerInput input{
        static_cast<std::int64_t>(l), threads, layer.attention, rows, projected, a.kept};
    LayerAttention::Statistics statistics;
    if (cached != nullptr) {
      layer.attention.Extend(threads, rows,
                             {cached->cache, cached->sequences, static_cast<std::int64_t>(l)},
                             projected, attended, a.kept);
    } else {
      Tensor visible;
      if (visitors.visible) {
        layer.attention.Scale(rows, projected, a.kept);
        visible = visitors.visible(input);
      }
      const bool fewer_queries = fewer && !visitors.visit;
      layer.attention.Forward(threads, rows, fewer_queries ? Queries::kLast : Queries::kAll,
                              projected, attended, keep, a.kept,
                              visitors.visit ? &statistics : nullptr, visible);
    }
    if (visitors.visit) visitors.visit({input, rows.scored, statistics});
    const std::int64_t after = last_layer ? scored : rows.rows;
    Tensor next = x;
    if (last_layer) {
      next = final_buffer.Rows(after, width, at::kFloat);
    } else if (keep) {
      next = activations[l + 1].x.Rows(rows.rows, width, at::kFloat);
    }
    if (fewer) {
      const Tensor selected = a.selected.Rows(after, inner, dtype);
      Gather(attended, rows.scored, selected);
      attended = selected;
      const Tensor selected_x = keep ? a.selected_x.Rows(after, width, at::kFloat) : next;
      Gather(x, rows.scored, selected_x);
      x = selected_x;
    }
    layer.after->Forward(PassOf(rows, after), x, attended, next, {}, keep ? &a.after : nullptr);
    x = next;
  }
  final_x = x;
}

SequenceScore Decoder::State::Head(const DecoderRows& rows, const Tensor& wanted) {
  const auto scored = static_cast<std::int64_t>(rows.scored.size());
  std::vector<float> losses(rows.label.size());
  std::vector<std::int64_t> best(rows.label.size());
  loss->Prepare(rows.label.empty() ? nullptr : rows.label.data(), 0.0F, losses.data(), best.data());
  last->Forward(PassOf(rows, scored), final_x, {}, {}, wanted, nullptr);
  return SequenceScore::Of(rows.Sequences(), std::move(losses), best, rows.label, rows.sequence);
}

SequenceScore Decoder::State::HeadAndGradient(const DecoderRows& rows, float weight,
                                              std::int64_t most_logits, const Tensor& d_x) {
  const auto scored = static_cast<std::int64_t>(rows.scored.size());
  const std::int64_t blocks = most_logits / config.vocabulary / kRowBlock;
  const std::int64_t piece = std::max(blocks, kLeastBlocks) * kRowBlock;
  std::vector<float> losses(rows.label.size());
  std::vector<std::int64_t> best(rows.label.size());
  d_x.zero_();
  // At least once, so that whoever reads gradients finds them made.
  for (std::int64_t begin = 0; begin == 0 || begin < scored; begin += piece) {
    const std::int64_t count = std::min(piece, scored - begin);
    const Tensor x = final_x.narrow(0, begin, count);
    // The cross-entropy makes gradients of the logits in their place.
    const Tensor of_piece = logits.Rows(count, config.vocabulary, at::kFloat);
    loss->Prepare(rows.label.data() + begin, weight, losses.data() + begin, best.data() + begin);
    last->Forward(PassOf(rows, count), x, {}, {}, of_piece, &last_kept);
    last->Backward(PassOf(rows, count), x, {}, of_piece, d_x.narrow(0, begin, count), of_piece, {},
                   last_kept, backward.last);
  }
  return SequenceScore::Of(rows.Sequences(), std::move(losses), best, rows.label, rows.sequence);
}

void Decoder::State::BackwardLayers(const DecoderRows& rows, const GradientOptions& options,
                                    Tensor d_x) {
  const std::int64_t width = config.width;
  const auto scored = static_cast<std::int64_t>(rows.scored.size());
  std::int64_t ready = parameters.Flat().numel();
  const auto report = [&](std::int64_t begin) {
    if (options.ready) options.ready(begin, ready);
    ready = begin;
  };
  report(parameters.Begin(config.norm_gain ? final_norm : head));
  for (std::size_t l = layers.size(); l-- > 0;) {
    DecoderLayer& layer = layers[l];
    LayerActivations& a = activations[l];
    const bool fewer = l + 1 == layers.size() && scored < rows.rows;
    const std::int64_t after = fewer ? scored : rows.rows;
    const Tensor x = a.x.Rows(rows.rows, width, at::kFloat);
    const Tensor after_x = fewer ? a.selected_x.Rows(after, width, at::kFloat) : x;
    const Tensor attended =
        fewer ? a.selected.Rows(after, inner, dtype) : a.attended.Rows(after, inner, dtype);
    Tensor d_attended = (fewer ? backward.selected : backward.attended).Rows(after, inner, dtype);
    layer.after->Backward(PassOf(rows, after), after_x, attended, {}, d_x, {}, d_attended, a.after,
                          backward.after);
    if (fewer) {
      const Tensor all = backward.attended.Rows(rows.rows, inner, dtype);
      Scatter(d_attended, rows.scored, all);
      d_attended = all;
      const Tensor all_x = backward.x.Rows(rows.rows, width, at::kFloat);
      Scatter(d_x, rows.scored, all_x);
      d_x = all_x;
    }
    const std::int64_t columns = layer.attention.Columns();
    const Tensor projected = a.projected.Rows(rows.rows, columns, dtype);
    const Tensor d_projected = backward.projected.Rows(rows.rows, columns, dtype);
    layer.attention.Backward(Threads(), rows, fewer ? Queries::kLast : Queries::kAll, projected,
                             d_attended, a.kept, d_projected);
    layer.before->Backward(PassOf(rows, rows.rows), x, {}, projected, d_x, d_projected, {},
                           a.before, backward.before);
    if (options.flow) options.flow(static_cast<std::int64_t>(l), MeanNorm(d_x));
    report(layer.begin);
  }
  BackwardEmbedding(rows, d_x);
  report(0);
}

}  // namespace tsallis::lab
