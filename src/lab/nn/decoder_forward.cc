#include <ATen/ATen.h>

#include <cmath>
#include <cstring>

#include "lab/nn/decoder_state.h"

namespace tsallis::lab {
namespace {

using at::Tensor;

// out = x weight^T. x: [rows, in], weight: [out, in].
void Linear(const Tensor& x, const Tensor& weight, Tensor out) { at::mm_out(out, x, weight.t()); }

// to[i, :] = from[rows[i], :].
void Gather(const Tensor& from, const std::vector<std::int64_t>& rows, const Tensor& to) {
  const std::size_t bytes = static_cast<std::size_t>(from.size(1)) * from.element_size();
  const char* source = static_cast<const char*>(from.const_data_ptr());
  char* target = static_cast<char*>(to.mutable_data_ptr());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    std::memcpy(target + i * bytes, source + static_cast<std::size_t>(rows[i]) * bytes, bytes);
  }
}

}  // namespace

void Decoder::State::Embed(const DecoderRows& rows, const Tensor& x) {
  const std::int64_t width = config.width;
  const float factor = std::sqrt(static_cast<float>(width));
  const Positions& positions = config.attention.positions;
  Tensor table;
  if (positions.kind == "sinusoidal") table = Sinusoids(rows.length, width, positions.base);
  const float* weight = Data(embedding.value);
  ForBlocks(rows.rows, [&](std::int64_t begin, std::int64_t end, Scratch&) {
    for (std::int64_t r = begin; r < end; ++r) {
      const auto index = static_cast<std::size_t>(r);
      const float* from = weight + rows.token[index] * width;
      float* to = Data(x) + r * width;
      for (std::int64_t k = 0; k < width; ++k) to[k] = from[k] * factor;
      if (!table.defined()) continue;
      const float* sines = Data(table) + rows.position[index] * width;
      for (std::int64_t k = 0; k < width; ++k) to[k] += sines[k];
    }
  });
}

void Decoder::State::ForwardLayers(const DecoderRows& rows, bool keep, const Look& look) {
  const std::int64_t width = config.width;
  const std::int64_t hidden = config.feed_forward;
  const auto scored = static_cast<std::int64_t>(rows.scored.size());
  Tensor x = activations[0].x.Rows(rows.rows, width, at::kFloat);
  Embed(rows, x);
  for (std::size_t l = 0; l < layers.size(); ++l) {
    DecoderLayer& layer = layers[l];
    LayerActivations& a = activations[keep ? l : 0];
    const std::int64_t columns = layer.attention.Columns();
    const Tensor projected = a.projected.Rows(rows.rows, columns, dtype);
    a.scale[0].resize(static_cast<std::size_t>(rows.rows));
    layer.attention.Prepare(rows);
    ForBlocks(rows.rows, [&](std::int64_t begin, std::int64_t end, Scratch& s) {
      const Tensor normal = s.normal.Rows(end - begin, width, dtype);
      RmsNorm(Data(x) + begin * width, Data(layer.attention_norm.value), end - begin, width,
              CellsOf(normal), a.scale[0].data() + begin);
      Linear(normal, layer.attention.Projection().product, projected.narrow(0, begin, end - begin));
      layer.attention.Rotate(rows, begin, end, CellsOf(projected), 1.0F);
    });
    Tensor attended = a.attended.Rows(rows.rows, inner, dtype);
    // From the last attention on only rows whose logits are wanted matter.
    const bool last = l + 1 == layers.size();
    const bool fewer = last && scored < rows.rows;
    const Context context{.threads = threads};
    using Queries = LayerAttention::Queries;
    const Queries queries = fewer && !look ? Queries::kLast : Queries::kAll;
    LayerAttention::Statistics statistics;
    layer.attention.Forward(context, rows, queries, projected, attended, keep, a.kept,
                            look ? &statistics : nullptr);
    if (look) {
      look({static_cast<std::int64_t>(l), context, layer.attention, rows, rows.scored, projected,
            a.kept, statistics});
    }
    const std::int64_t after = last ? scored : rows.rows;
    Tensor before = x;
    Tensor middle = keep ? a.middle.Rows(after, width, at::kFloat) : x;
    Tensor next = x;
    if (last) {
      next = final_buffer.Rows(after, width, at::kFloat);
    } else if (keep) {
      next = activations[l + 1].x.Rows(rows.rows, width, at::kFloat);
    }
    if (fewer) {
      const Tensor selected = a.selected.Rows(after, inner, dtype);
      Gather(attended, rows.scored, selected);
      attended = selected;
      if (!keep) middle = next;
      Gather(x, rows.scored, middle);
      before = middle;
    }
    const Tensor branch = keep ? a.branch.Rows(after, width, dtype) : Tensor();
    const Tensor gate_up = keep ? a.gate_up.Rows(after, 2 * hidden, dtype) : Tensor();
    const Tensor fed = keep ? a.fed.Rows(after, width, dtype) : Tensor();
    for (int i = 1; i < 4; ++i) a.scale[i].resize(static_cast<std::size_t>(after));
    ForBlocks(after, [&](std::int64_t begin, std::int64_t end, Scratch& s) {
      const std::int64_t count = end - begin;
      const auto block = [&](const Tensor& kept, Buffer& own, std::int64_t size) {
        return keep ? kept.narrow(0, begin, count) : own.Rows(count, size, dtype);
      };
      const Tensor out = block(branch, s.branch, width);
      const Tensor gates = block(gate_up, s.gate_up, 2 * hidden);
      const Tensor fed_out = block(fed, s.fed, width);
      const Tensor normal = s.normal.Rows(count, width, dtype);
      const Tensor h = s.hidden.Rows(count, hidden, dtype);
      float* mid = Data(middle) + begin * width;
      Linear(attended.narrow(0, begin, count), layer.attention_out.product, out);
      AddRmsNorm(Data(before) + begin * width, CellsOf(out), Data(layer.attention_out_norm.value),
                 count, width, mid, a.scale[1].data() + begin);
      RmsNorm(mid, Data(layer.feed_forward_norm.value), count, width, CellsOf(normal),
              a.scale[2].data() + begin);
      Linear(normal, layer.gate_up.product, gates);
      GatedGelu(CellsOf(gates), count, hidden, CellsOf(h));
      Linear(h, layer.down.product, fed_out);
      AddRmsNorm(mid, CellsOf(fed_out), Data(layer.feed_forward_out_norm.value), count, width,
                 Data(next) + begin * width, a.scale[3].data() + begin);
    });
    x = next;
  }
  final_x = x;
  final_scale.resize(static_cast<std::size_t>(scored));
}

Tensor Decoder::State::Logits(std::int64_t begin, std::int64_t end, Scratch& s) {
  const std::int64_t width = config.width;
  const Tensor normal = s.d_normal.Rows(end - begin, width, at::kFloat);
  RmsNorm(Data(final_x) + begin * width, Data(final_norm.value), end - begin, width,
          CellsOf(normal), final_scale.data() + begin);
  Tensor logits = s.logits.Rows(end - begin, config.vocabulary, at::kFloat);
  Linear(normal, head.value, logits);
  return logits;
}

SequenceScore Decoder::State::Losses(const DecoderRows& rows) {
  const auto scored = static_cast<std::int64_t>(rows.scored.size());
  std::vector<float> loss(rows.scored.size());
  std::vector<std::int64_t> best(rows.scored.size());
  ForBlocks(scored, [&](std::int64_t begin, std::int64_t end, Scratch& s) {
    CrossEntropy(Data(Logits(begin, end, s)), end - begin, config.vocabulary,
                 rows.label.data() + begin, 0.0F, loss.data() + begin, best.data() + begin);
  });
  return ScoreOf(rows, loss, best);
}

SequenceScore ScoreOf(const DecoderRows& rows, const std::vector<float>& loss,
                      const std::vector<std::int64_t>& best) {
  SequenceScore score;
  score.sequences = rows.Sequences();
  score.is_exact.assign(rows.begin.size(), true);
  for (std::size_t i = 0; i < loss.size(); ++i) {
    const bool hit = best[i] == rows.label[i];
    score.loss += loss[i];
    score.hits += hit ? 1 : 0;
    if (!hit) score.is_exact[static_cast<std::size_t>(rows.sequence[i])] = false;
  }
  score.scored = static_cast<std::int64_t>(loss.size());
  for (const bool exact : score.is_exact) score.exact += exact ? 1 : 0;
  return score;
}

}  // namespace tsallis::lab
