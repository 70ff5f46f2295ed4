#include "lab/nn/layer_attention.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <utility>

#include "lab/nn/maps.h"

namespace tsallis::lab {
namespace {

double Sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }
double Softplus(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))); }

// The slope of alpha in the learned number.
double AlphaSlope(const AttentionConfig& head, double a) {
  const double s = Sigmoid(a);
  return head.learn_alpha == "sigmoid" ? s * (1.0 - s) : s;
}

// Bytes of support lists that one call may keep for its backward pass.
constexpr std::size_t kListBudget = std::size_t{1} << 28;

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

bool SameDistances(const AttentionConfig& a, const AttentionConfig& b) {
  return a.scale_invariant == b.scale_invariant &&
         a.scale_invariant_alpha == b.scale_invariant_alpha &&
         a.scale_invariant_beta == b.scale_invariant_beta;
}

void SetDistances(const AttentionConfig& head, AttentionTerms& terms) {
  terms.scale_invariant = head.scale_invariant.value_or(0.0);
  terms.scale_invariant_alpha = head.scale_invariant_alpha.value_or(0.0);
  terms.scale_invariant_beta = head.scale_invariant_beta.value_or(0.0);
}

LayerAttention::LayerAttention(const DecoderConfig& config, std::int64_t layer)
    : heads_(config.heads),
      head_dim_(config.HeadDim()),
      width_(config.width),
      qk_norm_(config.qk_norm) {
  fixed_slopes_.assign(static_cast<std::size_t>(heads_), 0.0F);
  for (std::int64_t h = 0; h < heads_; ++h) {
    const AttentionConfig& head = head_.emplace_back(config.Head(layer, h));
    has_slope_.push_back(HasSlope(head, heads_, h));
    if (has_slope_.back()) {
      const std::vector<double> slopes = AlibiSlopes(head.positions, heads_);
      fixed_slopes_[static_cast<std::size_t>(h)] =
          static_cast<float>(slopes[static_cast<std::size_t>(h)]);
      sloped_ = true;
      learned_slopes_ = learned_slopes_ || head.positions.learn_slopes;
    }
    learned_alpha_ = learned_alpha_ || head.learn_alpha != "no";
    learned_sinks_ = learned_sinks_ || head.sink == "learned";
  }
  slopes_ = fixed_slopes_;
  alphas_.resize(static_cast<std::size_t>(heads_));
  sinks_.resize(static_cast<std::size_t>(heads_));
  PlanCalls();
  PlanPatterns();
  PlanRotations();
  PlanScalings(config, layer);
}

// Heads of one kind at equal distances make a call; torch's usual case is one call of all heads.
void LayerAttention::PlanCalls() {
  std::vector<bool> taken(static_cast<std::size_t>(heads_), false);
  for (std::int64_t h = 0; h < heads_; ++h) {
    if (taken[static_cast<std::size_t>(h)]) continue;
    const auto joins = [&](std::int64_t other) {
      return other < heads_ && !taken[static_cast<std::size_t>(other)] &&
             SameCall(head_[static_cast<std::size_t>(h)], head_[static_cast<std::size_t>(other)]);
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

void LayerAttention::PlanRotations() {
  for (std::int64_t h = 0; h < heads_; ++h) {
    const Positions& positions = head_[static_cast<std::size_t>(h)].positions;
    if (positions.kind != "rope") continue;
    if (!rotations_.empty() && rotations_.back().first + rotations_.back().count == h &&
        rotations_.back().positions == positions) {
      ++rotations_.back().count;
    } else {
      rotations_.push_back({h, 1, positions, {}, 0});
    }
  }
}

void LayerAttention::PlanScalings(const DecoderConfig& config, std::int64_t layer) {
  columns_ = 3 * heads_ * head_dim_;
  for (const ScaledHeads& run : ScaledHeadsOf(config, layer)) {
    const QueryScaling& scaling = head_[static_cast<std::size_t>(run.first)].length_scaling;
    scalings_.push_back({run, columns_, MakeQueryScale(scaling, run.count)});
    columns_ += scalings_.back().scale->Columns();
  }
}

void LayerAttention::Declare(const std::string& prefix, ParameterList& list) {
  const auto draw = [](RandomStream& random) { return Normal(random, 0.02); };
  std::vector<ParameterList::Part> parts;
  for (const char* name : {"query", "key", "value"}) {
    parts.push_back(
        {prefix + name + ".weight", {heads_, head_dim_, width_}, draw, ParameterGroup::kHidden});
  }
  for (const Scaling& scaling : scalings_) {
    for (auto& part : scaling.scale->Projection(prefix + scaling.heads.prefix, width_)) {
      parts.push_back(std::move(part));
    }
  }
  list.Add(std::move(parts), width_, &projection_);
  for (const Scaling& scaling : scalings_)
    scaling.scale->Declare(prefix + scaling.heads.prefix, list);
  if (learned_slopes_) {
    const auto first = [this, h = std::size_t{0}](RandomStream&) mutable {
      return fixed_slopes_[h++];
    };
    list.Add({{prefix + "slopes", {heads_}, first}}, heads_, &slope_parameters_);
  }
  if (learned_alpha_) {
    const auto first = [this, h = std::size_t{0}](RandomStream&) mutable {
      const AttentionConfig& head = head_[h++];
      return head.learn_alpha == "no" ? 0.0F : static_cast<float>(AlphaParameter(head));
    };
    list.Add({{prefix + "alpha", {heads_}, first}}, heads_, &alpha_parameters_);
  }
  if (learned_sinks_) {
    const auto zero = [](RandomStream&) { return 0.0F; };
    list.Add({{prefix + "sink", {heads_}, zero}}, heads_, &sink_parameters_);
  }
}

bool LayerAttention::LearnsSlope(std::int64_t h) const {
  const auto index = static_cast<std::size_t>(h);
  return has_slope_[index] && head_[index].positions.learn_slopes;
}

double LayerAttention::AlphaOf(std::int64_t h) const {
  const AttentionConfig& head = head_[static_cast<std::size_t>(h)];
  if (head.learn_alpha == "no") return head.alpha;
  const double a = alpha_parameters_.value.const_data_ptr<float>()[h];
  return 1.0 + (head.learn_alpha == "sigmoid" ? Sigmoid(a) : Softplus(a));
}

void LayerAttention::Prepare(const SequenceRows& rows) {
  for (Rotation& rotation : rotations_) {
    const bool by_length = rotation.positions.scaling.kind == "ntk";
    if (by_length ? rotation.table_length == rows.length : rotation.table_length >= rows.length) {
      continue;
    }
    // Twice as long as before, for sequences that grow by a token.
    const std::int64_t length =
        by_length ? rows.length : std::max(rows.length, 2 * rotation.table_length);
    rotation.table = MakeRopeTable(rotation.positions, head_dim_, length);
    rotation.table_length = length;
  }
  PreparePatterns(rows.length);
  for (std::int64_t h = 0; h < heads_; ++h) {
    const auto index = static_cast<std::size_t>(h);
    alphas_[index] = AlphaOf(h);
    if (LearnsSlope(h)) slopes_[index] = slope_parameters_.value.const_data_ptr<float>()[h];
    const std::string& sink = head_[index].sink;
    sinks_[index] = sink == "none" ? -std::numeric_limits<double>::infinity() : 0.0;
    if (sink == "learned") sinks_[index] = sink_parameters_.value.const_data_ptr<float>()[h];
  }
}

void LayerAttention::Rotate(const RowSpan& span, Cells projected, float turn) const {
  const std::int64_t inner = heads_ * head_dim_;
  for (const Rotation& rotation : rotations_) {
    for (const std::int64_t part : {std::int64_t{0}, inner}) {  // queries, keys
      lab::Rotate(projected + (part + rotation.first * head_dim_), columns_, span.count,
                  rotation.count, head_dim_, rotation.table.cosine.const_data_ptr<float>(),
                  rotation.table.sine.const_data_ptr<float>(),
                  span.rows.position.data() + span.begin, turn);
    }
  }
}

class LayerAttention::Input : public RowStage {
 public:
  explicit Input(const LayerAttention& attention)
      : RowStage(Kind::kInPlace, attention.Columns()), attention_(attention) {}

  // Queries and keys, heads behind each other.
  std::int64_t Kept() const override { return attention_.qk_norm_ ? Normed() : 0; }

  void Forward(const Forwards& block) const override {
    const Cells projected = CellsOf(block.value);
    if (attention_.qk_norm_) {
      NormHeads(projected, columns(), block.span.count, Normed(), attention_.head_dim_, block.kept);
    }
    attention_.Rotate(block.span, projected, 1.0F);
  }
  void Backward(const Backwards& block) const override {
    const Cells d_projected = CellsOf(block.d_value);
    if (attention_.qk_norm_) {
      NormHeadsBackward(CellsOf(block.value), columns(), block.kept, block.span.count, Normed(),
                        attention_.head_dim_, d_projected);
    }
    attention_.Rotate(block.span, d_projected, -1.0F);
  }

 private:
  std::int64_t Normed() const { return 2 * attention_.heads_; }

  const LayerAttention& attention_;
};

std::unique_ptr<RowStage> LayerAttention::InputStage() const {
  return std::make_unique<Input>(*this);
}

AttentionParams LayerAttention::ParamsOf(const CallHeads& call, const SequenceRows& rows,
                                         Queries queries, const at::Tensor& projected,
                                         const at::Tensor& c) const {
  const std::int64_t inner = heads_ * head_dim_;
  AttentionParams p;
  p.batch = rows.Sequences();
  p.heads = p.kv_heads = call.count;
  const bool last = queries == Queries::kLast;
  const bool packed = rows.packed || last;
  p.q_len = p.k_len = packed ? rows.rows : rows.length;
  p.head_dim = p.value_dim = head_dim_;
  const Cells cells = CellsOf(projected);
  const auto view = [&](std::int64_t part) {
    return ConstArray4{(cells + (part * inner + call.first * head_dim_)).data,
                       DTypeOf(projected),
                       {rows.length * columns_, call.step * head_dim_, columns_, 1}};
  };
  p.q = view(0);
  p.k = view(1);
  p.v = view(2);
  p.mask.causal = true;
  if (packed) {
    p.ranges = {(last ? rows.last_begin : rows.begin).data(), rows.end.data(), rows.begin.data(),
                rows.end.data(), true};
  }
  p.terms = TermsOf(call, 0, rows.length, c);
  return p;
}

AttentionTerms LayerAttention::TermsOf(const CallHeads& call, std::int64_t begin,
                                       std::int64_t count, const at::Tensor& c) const {
  AttentionTerms terms;
  SetDistances(head_[static_cast<std::size_t>(call.first)], terms);
  if (c.defined()) {
    terms.length_scale = {c.const_data_ptr<float>() + begin * heads_ + call.first,
                          DType::kFloat32,
                          {count * heads_, call.step, heads_, 1}};
  }
  if (sloped_) {
    terms.alibi_slopes = {slopes_.data() + call.first, DType::kFloat32, {0, call.step, 0, 0}};
  }
  return terms;
}

void LayerAttention::SetMap(AttentionParams& params, const CallHeads& call,
                            const MapNumbers& numbers) const {
  const AttentionConfig& head = head_[static_cast<std::size_t>(call.first)];
  params.setting() = SettingOf(head);
  params.alpha = numbers.alphas.front();
  const bool equal = std::all_of(numbers.alphas.begin(), numbers.alphas.end(),
                                 [&](double alpha) { return alpha == params.alpha; });
  if (!equal) params.alpha_per_head = numbers.alphas.data();
  if (!numbers.sinks.empty()) params.terms.sink = numbers.sinks.data();
}

LayerAttention::MapNumbers LayerAttention::NumbersOf(const CallHeads& call) const {
  MapNumbers numbers;
  bool any = false;
  for (std::int64_t h = 0; h < call.count; ++h) {
    const auto head = static_cast<std::size_t>(call.first + h * call.step);
    numbers.alphas.push_back(alphas_[head]);
    numbers.sinks.push_back(sinks_[head]);
    any = any || head_[head].sink != "none";
  }
  if (!any) numbers.sinks.clear();
  return numbers;
}

void LayerAttention::Scale(const SequenceRows& rows, const at::Tensor& projected,
                           Kept& kept) const {
  if (scalings_.empty()) return;
  if (!kept.c.defined() || kept.c.size(0) != rows.rows) kept.c = at::empty({rows.rows, heads_});
  kept.c.fill_(1.0);
  for (const Scaling& scaling : scalings_) {
    scaling.scale->Forward(rows.ForScales(), {CellsOf(projected) + scaling.column, columns_},
                           {kept.c.mutable_data_ptr<float>() + scaling.heads.first, heads_});
  }
}

void LayerAttention::Forward(const Context& context, const SequenceRows& rows, Queries queries,
                             const at::Tensor& projected, const at::Tensor& out, bool keep,
                             Kept& kept, Statistics* statistics, const at::Tensor& visible) const {
  const at::Tensor mask = Checked(rows, visible);
  Scale(rows, projected, kept);
  kept.tau.resize(calls_.size());
  kept.lists.resize(calls_.size());
  if (statistics != nullptr) {
    statistics->entropy.resize(calls_.size());
    statistics->support.resize(calls_.size());
  }
  for (std::size_t i = 0; i < calls_.size(); ++i) {
    const CallHeads& call = calls_[i];
    AttentionParams p = ParamsOf(call, rows, queries, projected, kept.c);
    const MapNumbers numbers = NumbersOf(call);
    SetMap(p, call, numbers);
    AttentionOutputs outputs;
    outputs.out = {
        (CellsOf(out) + call.first * head_dim_).data,
        DTypeOf(out),
        {rows.length * heads_ * head_dim_, call.step * head_dim_, heads_ * head_dim_, 1}};
    if (keep) {
      const std::int64_t count = rows.rows * call.count;
      if (!kept.tau[i].defined() || kept.tau[i].numel() < count) {
        kept.tau[i] = at::empty({count}, at::kDouble);
      }
      outputs.tau = kept.tau[i].mutable_data_ptr<double>();
      const std::size_t budget = PatternOf(call) != nullptr ? 0 : kListBudget;
      const auto bytes = static_cast<std::int64_t>(AttentionSavedBytes(p, budget));
      if (!kept.lists[i].defined() || kept.lists[i].numel() != bytes) {
        kept.lists[i] = at::empty({bytes}, at::kByte);
      }
      outputs.saved = bytes > 0 ? kept.lists[i].data_ptr() : nullptr;
      outputs.saved_bytes = static_cast<std::size_t>(bytes);
    }
    if (statistics != nullptr) {
      const auto count = static_cast<std::size_t>(rows.rows * call.count);
      statistics->entropy[i].resize(count);
      statistics->support[i].resize(count);
      outputs.entropy = statistics->entropy[i].data();
      outputs.support_size = statistics->support[i].data();
    }
    Attend(context, call, p, mask, outputs);
  }
}

void LayerAttention::Backward(const Context& context, const SequenceRows& rows, Queries queries,
                              const at::Tensor& projected, const at::Tensor& d_out,
                              const Kept& kept, const at::Tensor& d_projected) {
  const std::int64_t inner = heads_ * head_dim_;
  if (queries == Queries::kLast) {  // queries that did not attend
    for (std::size_t b = 0; b < rows.begin.size(); ++b) {
      d_projected.narrow(0, rows.begin[b], rows.last_begin[b] - rows.begin[b])
          .narrow(1, 0, inner)
          .zero_();
    }
  }
  std::vector<float> dc(scalings_.empty() ? 0 : static_cast<std::size_t>(rows.rows * heads_));
  for (std::size_t i = 0; i < calls_.size(); ++i) {
    const CallHeads& call = calls_[i];
    AttentionParams p = ParamsOf(call, rows, queries, projected, kept.c);
    const MapNumbers numbers = NumbersOf(call);
    SetMap(p, call, numbers);
    AttentionGradients g;
    g.d_out = {(CellsOf(d_out) + call.first * head_dim_).data,
               DTypeOf(d_out),
               {rows.length * inner, call.step * head_dim_, inner, 1}};
    g.tau = kept.tau[i].const_data_ptr<double>();
    g.saved = kept.lists[i].numel() > 0 ? kept.lists[i].data_ptr() : nullptr;
    g.saved_bytes = static_cast<std::size_t>(kept.lists[i].numel());
    const auto view = [&](std::int64_t part) {
      return MutableArray4{(CellsOf(d_projected) + (part * inner + call.first * head_dim_)).data,
                           DTypeOf(d_projected),
                           {rows.length * columns_, call.step * head_dim_, columns_, 1}};
    };
    g.dq = view(0);
    g.dk = view(1);
    g.dv = view(2);
    const std::int64_t batch = p.ranges.packed ? 1 : rows.Sequences();
    std::vector<double> d_scale(dc.empty() ? 0 : static_cast<std::size_t>(rows.rows * call.count));
    std::vector<double> d_slopes(learned_slopes_ ? static_cast<std::size_t>(batch * call.count)
                                                 : 0);
    std::vector<double> d_alpha(static_cast<std::size_t>(call.count));
    if (!d_scale.empty()) g.d_length_scale = d_scale.data();
    if (!d_slopes.empty()) g.d_slopes = d_slopes.data();
    const bool learns = learned_alpha_ && p.map == RowMap::kEntmax;
    if (learns) g.d_alpha = d_alpha.data();
    std::vector<double> d_sink(numbers.sinks.size());
    if (learned_sinks_ && !d_sink.empty()) g.d_sink = d_sink.data();
    AttendBackward(context, call, p, g);

    // [batch, heads, length] -> [rows, heads]
    const std::int64_t length = p.q_len;
    for (std::int64_t b = 0; b < batch && !d_scale.empty(); ++b) {
      for (std::int64_t h = 0; h < call.count; ++h) {
        const double* from = d_scale.data() + (b * call.count + h) * length;
        float* to = dc.data() + b * length * heads_ + call.first + h * call.step;
        for (std::int64_t r = 0; r < length; ++r) to[r * heads_] = static_cast<float>(from[r]);
      }
    }
    for (std::int64_t h = 0; h < call.count; ++h) {
      const std::int64_t head = call.first + h * call.step;
      const AttentionConfig& config = head_[static_cast<std::size_t>(head)];
      if (LearnsSlope(head)) {
        double sum = 0.0;
        for (std::int64_t b = 0; b < batch; ++b) {
          sum += d_slopes[static_cast<std::size_t>(b * call.count + h)];
        }
        slope_parameters_.gradient.mutable_data_ptr<float>()[head] += static_cast<float>(sum);
      }
      if (config.sink == "learned") {
        sink_parameters_.gradient.mutable_data_ptr<float>()[head] +=
            static_cast<float>(d_sink[static_cast<std::size_t>(h)]);
      }
      if (learns && config.learn_alpha != "no") {
        const double a = alpha_parameters_.value.const_data_ptr<float>()[head];
        alpha_parameters_.gradient.mutable_data_ptr<float>()[head] +=
            static_cast<float>(d_alpha[static_cast<std::size_t>(h)] * AlphaSlope(config, a));
      }
    }
  }
  for (Scaling& scaling : scalings_) {
    scaling.scale->Backward(rows.ForScales(), {CellsOf(projected) + scaling.column, columns_},
                            {dc.data() + scaling.heads.first, heads_},
                            {CellsOf(d_projected) + scaling.column, columns_});
  }
}

}  // namespace tsallis::lab
