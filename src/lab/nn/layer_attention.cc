#include "lab/nn/layer_attention.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <limits>
#include <utility>

namespace tsallis::lab {
namespace {

using at::Tensor;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

bool SameDistances(const AttentionConfig& a, const AttentionConfig& b) {
  return a.scale_invariant == b.scale_invariant &&
         a.scale_invariant_alpha == b.scale_invariant_alpha &&
         a.scale_invariant_beta == b.scale_invariant_beta;
}

}  // namespace

double AlphaParameter(const AttentionConfig& head) {
  const double above = head.alpha - 1.0;
  return head.learn_alpha == "sigmoid" ? std::log(above / (1.0 - above))
                                       : above + std::log(-std::expm1(-above));
}

bool SameCall(const AttentionConfig& a, const AttentionConfig& b) {
  MapConfig map = a;
  map.alpha = b.alpha;  // each head of a call may have its own
  return map == b && a.pattern == b.pattern && SameDistances(a, b);
}

std::vector<ScaledHeads> ScaledHeadsOf(const DecoderConfig& config, std::int64_t layer) {
  std::vector<ScaledHeads> runs;
  const auto scaled = [&](std::int64_t h) {
    return h < config.heads && IsScaled(config.Head(layer, h), config.heads, h);
  };
  for (std::int64_t h = 0; h < config.heads; ++h) {
    if (!scaled(h)) continue;
    const QueryScaling scaling = config.Head(layer, h).length_scaling;
    std::int64_t end = h + 1;
    while (scaled(end) && config.Head(layer, end).length_scaling == scaling) ++end;
    runs.push_back({h, end - h, "scale."});
    h = end - 1;
  }
  if (runs.size() < 2) return runs;
  for (ScaledHeads& run : runs) run.prefix += std::to_string(run.first) + ".";
  return runs;
}

void SetDistances(const AttentionConfig& head, AttentionTerms& terms) {
  terms.scale_invariant = head.scale_invariant.value_or(0.0);
  terms.scale_invariant_alpha = head.scale_invariant_alpha.value_or(0.0);
  terms.scale_invariant_beta = head.scale_invariant_beta.value_or(0.0);
}

LayerAttention::LayerAttention(const DecoderConfig& config, std::int64_t layer, Sight sight,
                               const std::string& prefix, ParameterList& parameters,
                               RowWorkers& workers, at::ScalarType products)
    : sight_(sight),
      heads_(config.heads),
      head_dim_(config.HeadDim()),
      parts_(sight == Sight::kOther ? 1 : 3),
      columns_(parts_ * heads_ * head_dim_),
      workers_(workers),
      device_(parameters.Device()),
      project_{.workers = &workers,
               .parameters = &parameters,
               .products = products,
               .parts = parts_ == 1 ? 1 : 2,
               .heads = heads_,
               .head_dim = head_dim_,
               .qk_norm = config.qk_norm} {
  for (std::int64_t h = 0; h < heads_; ++h) head_.push_back(config.Head(layer, h));
  PlanCalls();
  PlanPatterns();
  DeclareProjections(config, layer, prefix, parameters);
  Declare(prefix, parameters);
  whole_ = PlanOf(0, heads_);
}

// Heads of one kind at equal distances make a call; torch's usual case is one call of all heads.
void LayerAttention::PlanCalls() {
  std::vector<bool> taken(static_cast<std::size_t>(heads_), false);
  for (std::int64_t h = 0; h < heads_; ++h) {
    if (taken[static_cast<std::size_t>(h)]) continue;
    const auto joins = [&](std::int64_t other) {
      return other < heads_ && !taken[static_cast<std::size_t>(other)] &&
             SameCall(HeadOf(h), HeadOf(other));
    };
    std::int64_t next = h + 1;
    while (next < heads_ && !joins(next)) ++next;
    CallHeads call{h, next < heads_ ? next - h : 1, 1};
    taken[static_cast<std::size_t>(h)] = true;
    for (std::int64_t other = h + call.step; joins(other); other += call.step) {
      taken[static_cast<std::size_t>(other)] = true;
      ++call.count;
    }
    calls_.push_back(call);
  }
}

void LayerAttention::PlanPatterns() {
  for (const AttentionConfig& head : head_) {
    const auto same = [&](const PatternTable& table) { return table.config == head.pattern; };
    const auto found = std::find_if(patterns_.begin(), patterns_.end(), same);
    pattern_of_.push_back(
        head.pattern.kind == "none" ? -1 : static_cast<int>(found - patterns_.begin()));
    if (head.pattern.kind != "none" && found == patterns_.end()) {
      patterns_.push_back({.config = head.pattern, .mask = {}, .visible = {}, .blocks = {}});
    }
  }
}

void LayerAttention::DeclareProjections(const DecoderConfig& config, std::int64_t layer,
                                        const std::string& prefix, ParameterList& parameters) {
  const auto part = [&](const char* name, std::vector<std::int64_t> shape) {
    shape.push_back(config.width);
    return ParameterList::Part{prefix + name + ".weight", std::move(shape),
                               [](RandomStream& random) { return Normal(random, 0.02); },
                               ParameterGroup::kHidden};
  };
  std::vector<ParameterList::Part> parts, of_memory;
  std::vector<ParameterList::Part>& keys = sight_ == Sight::kOther ? of_memory : parts;
  if (parameters.Together()) {
    const std::int64_t inner = heads_ * head_dim_;
    parts.push_back(part("query", {inner}));
    keys.push_back(part("key_value", {2 * inner}));
  } else {
    parts.push_back(part("query", {heads_, head_dim_}));
    for (const char* name : {"key", "value"}) keys.push_back(part(name, {heads_, head_dim_}));
  }
  for (const ScaledHeads& run : ScaledHeadsOf(config, layer)) {
    scalings_.push_back(
        {run, columns_, MakeQueryScale(HeadOf(run.first).length_scaling, run.count, workers_)});
    const QueryScale& scale = *scalings_.back().scale;
    for (auto& read : scale.Projection(prefix + run.prefix, config.width)) {
      columns_ += read.shape.front();
      parts.push_back(std::move(read));
    }
  }
  parameters.Add(std::move(parts), config.width, &projection_);
  if (!of_memory.empty()) {
    parameters.Add(std::move(of_memory), config.width, &memory_projection_);
  }
  for (const Scaling& scaling : scalings_) {
    scaling.scale->Declare(prefix + scaling.heads.prefix, parameters);
  }
}

void LayerAttention::Declare(const std::string& prefix, ParameterList& parameters) {
  std::vector<double> alphas, alpha_spreads, slopes, sinks;
  // Of each head: whether it has the number, and whether it is learned.
  std::vector<std::int64_t> learns_alpha, free_alpha, learns_slope, learns_sink;
  std::vector<float> first_alphas;
  bool sloped = false, sunk = false;
  for (std::int64_t h = 0; h < heads_; ++h) {
    const AttentionConfig& head = HeadOf(h);
    const bool learned = head.learn_alpha != "no", slope = HasSlope(head, heads_, h);
    alphas.push_back(head.alpha);
    alpha_spreads.push_back(head.alpha_spread);
    learns_alpha.push_back(learned ? 1 : 0);
    free_alpha.push_back(head.learn_alpha == "free" ? 1 : 0);
    first_alphas.push_back(learned ? static_cast<float>(AlphaParameter(head)) : 0.0F);
    slopes.push_back(slope ? AlibiSlopes(head.positions, heads_)[static_cast<std::size_t>(h)]
                           : 0.0);
    learns_slope.push_back(slope && head.positions.learn_slopes ? 1 : 0);
    sinks.push_back(head.sink == "none" ? -kInfinity : 0.0);
    learns_sink.push_back(head.sink == "learned" ? 1 : 0);
    sloped = sloped || slope;
    sunk = sunk || head.sink != "none";
  }
  const auto there = [&](const auto& numbers, at::ScalarType dtype) {
    return at::tensor(numbers).to(dtype).to(device_);
  };
  fixed_alpha_ = there(alphas, at::kDouble);
  if (sloped) fixed_slopes_ = there(slopes, at::kFloat);
  if (sunk) fixed_sinks_ = there(sinks, at::kDouble);
  // [heads] parameters where a head learns, with the mean and the deviation of their first values.
  const std::vector<double> zeros(alphas.size());
  const auto declare = [&](const char* name, const std::vector<std::int64_t>& learns,
                           const auto& first, const std::vector<double>& spread, Tensor& which,
                           Tensor& leaf) {
    if (std::count(learns.begin(), learns.end(), 1) == 0) return;
    which = there(learns, at::kBool);
    parameters.Add(
        prefix + name, {heads_},
        [first, spread, h = std::size_t{0}](RandomStream& random) mutable {
          const float deviation = spread[h] == 0.0 ? 0.0F : Normal(random, spread[h]);
          return static_cast<float>(first[h++]) + deviation;
        },
        &leaf);
  };
  declare("slopes", learns_slope, slopes, zeros, learns_slope_, slopes_);
  declare("alpha", learns_alpha, first_alphas, alpha_spreads, learns_alpha_, alpha_);
  declare("sink", learns_sink, zeros, zeros, learns_sink_, sink_);
  if (learns_alpha_.defined()) free_alpha_ = there(free_alpha, at::kBool);
}

void LayerAttention::PrepareRotation(std::int64_t length) {
  bool any = false, equal = true, by_length = false;
  for (const AttentionConfig& head : head_) {
    any = any || head.positions.kind == "rope";
    equal = equal && head.positions == head_.front().positions;
    by_length = by_length || head.positions.scaling.kind == "ntk";
  }
  if (!any || (by_length ? table_length_ == length : table_length_ >= length)) return;
  // Twice as long as before, for sequences that grow by a token.
  table_length_ = by_length ? length : std::max(length, 2 * table_length_);
  std::vector<Tensor> cosine, sine;
  for (std::size_t h = 0; h < (equal ? 1 : head_.size()); ++h) {
    const Positions& positions = head_[h].positions;
    const bool turns = positions.kind == "rope";
    const RopeTable table =
        turns ? MakeRopeTable(positions, head_dim_, table_length_) : RopeTable();
    cosine.push_back(turns ? table.cosine : at::ones({table_length_, head_dim_ / 2}));
    sine.push_back(turns ? table.sine : at::zeros({table_length_, head_dim_ / 2}));
  }
  cosine_ = at::stack(cosine).to(device_);
  sine_ = at::stack(sine).to(device_);
}

Tensor LayerAttention::Scales(const SequenceRows& rows, Tensor& projected) const {
  if (scalings_.empty()) return {};
  Tensors parts;
  std::int64_t next = 0;
  const auto plain = [&](std::int64_t upto) {
    if (upto > next) parts.push_back(at::ones({rows.rows, upto - next}, device_));
  };
  for (const Scaling& scaling : scalings_) {
    plain(scaling.heads.first);
    parts.push_back((*scaling.scale)(rows.for_scales, projected, scaling.column));
    next = scaling.heads.first + scaling.heads.count;
  }
  plain(heads_);
  return at::cat(parts, 1);
}

Tensor LayerAttention::Numbers(const Tensor& learns, const Tensor& learned, const Tensor& fixed) {
  return learns.defined() ? at::where(learns, learned.to(fixed.scalar_type()), fixed) : fixed;
}

LayerAttention::Inputs LayerAttention::Project(const Tensor& stream, const Tensor& gain,
                                               const SequenceRows& rows) {
  PrepareRotation(rows.reach);
  PreparePatterns(rows.reach);
  StageCall call = project_;
  call.block = rows.block;
  call.inputs = {stream, gain, projection_, cosine_, sine_, rows.positions};
  const Tensors projected = RunStage("projection", call);
  Inputs inputs{.stream = projected[1],
                .projected = projected[0],
                .c = {},
                .alpha = {},
                .slopes = {},
                .sinks = {}};
  inputs.c = Scales(rows, inputs.projected);
  Tensor alpha;
  if (learns_alpha_.defined()) {
    const Tensor a = alpha_.to(at::kDouble);
    alpha = 1.0 + at::where(free_alpha_, at::softplus(a), at::sigmoid(a));
  }
  inputs.alpha = Numbers(learns_alpha_, alpha, fixed_alpha_);
  inputs.slopes = Numbers(learns_slope_, slopes_, fixed_slopes_);
  inputs.sinks = Numbers(learns_sink_, sink_, fixed_sinks_);
  return inputs;
}

LayerAttention::Memory LayerAttention::ProjectMemory(const Tensor& stream, const Tensor& gain,
                                                     const SequenceRows& rows) {
  StageCall call = project_;
  call.inputs = {stream, gain, memory_projection_, {}, {}, {}};
  const Tensors projected = RunStage("projection", call);
  return {projected[1], projected[0], &rows};
}

Tensor LayerAttention::operator()(const Inputs& inputs, const SequenceRows& rows, Queries queries,
                                  const SequencePart* part) {
  if (!device_.is_cpu() || part != nullptr) return OnDevice(inputs, rows, part);
  return OnHost(inputs, rows, queries);
}

Tensor LayerAttention::Extend(const Inputs& inputs, const SequenceRows& rows,
                              const CachedRows& cached, std::int64_t layer) {
  auto* const host = std::get_if<KvCache>(&cached.cache);
  if (host == nullptr) return ExtendOnDevice(inputs, rows, cached, layer);
  return ExtendOnHost(inputs, rows, {*host, cached.sequences, layer});
}

void LayerAttention::Append(const Memory& memory, const CachedRows& cached,
                            std::int64_t layer) const {
  const Tensor& projected = memory.projected;
  if (auto* const host = std::get_if<KvCache>(&cached.cache)) {
    return Append({projected, 0}, {projected, heads_ * head_dim_}, *memory.rows,
                  {*host, cached.sequences, layer});
  }
  const Tensor parts = projected.view({-1, 2, heads_, head_dim_});
  Write(parts.select(1, 0), parts.select(1, 1), cached, layer);
}

}  // namespace tsallis::lab
