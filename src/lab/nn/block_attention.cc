#include "lab/nn/block_attention.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <limits>
#include <numeric>

#include "lab/nn/blocks.h"
#include "lab/nn/decoder_kernels.h"
#include "lab/nn/positions.h"

namespace tsallis::lab {
namespace {

using at::Tensor;

Tensor Leaf(const Tensor& value, const Tensor& gradient) {
  Tensor leaf = value.detach().requires_grad_(true);
  leaf.mutable_grad() = gradient;
  return leaf;
}

// Heads that agree in more than LayerAttention asks for: alphas that are not learned are numbers.
bool SameGroup(const AttentionConfig& a, const AttentionConfig& b) {
  return SameCall(a, b) && a.learn_alpha == b.learn_alpha &&
         (a.learn_alpha != "no" || a.alpha == b.alpha);
}

}  // namespace

DecoderLeaves::DecoderLeaves(const Decoder& decoder, const c10::Device& device)
    : flat_(decoder.FlatParameters().to(device, at::kFloat, false, true)),
      gradients_(at::zeros_like(flat_)) {
  for (const auto& [name, value] : decoder.Parameters()) {
    const auto view = [&, &value = value](const Tensor& flat) {
      return flat.narrow(0, value.storage_offset(), value.numel()).view(value.sizes());
    };
    named_.emplace_back(name, view(flat_));
    leaves_[name] = Leaf(named_.back().second, view(gradients_));
  }
}

Tensor DecoderLeaves::Find(const std::string& name) const {
  const auto found = leaves_.find(name);
  return found == leaves_.end() ? Tensor() : found->second;
}

Tensor DecoderLeaves::From(const std::string& name, const std::vector<std::int64_t>& shape) const {
  const std::int64_t begin = leaves_.at(name).storage_offset();
  const auto view = [&](const Tensor& flat) {
    return flat.narrow(0, begin, c10::multiply_integers(shape)).view(shape);
  };
  return Leaf(view(flat_), view(gradients_));
}

PaddedAttention::PaddedAttention(const DecoderConfig& config, std::int64_t layer,
                                 at::ScalarType products, const DecoderLeaves& leaves,
                                 RowWorkers& workers)
    : heads_(config.heads),
      head_dim_(config.HeadDim()),
      qk_norm_(config.qk_norm),
      call_{.workers = &workers,
            .products = products,
            .heads = heads_,
            .head_dim = head_dim_,
            .qk_norm = qk_norm_} {
  const std::string prefix = "layers." + std::to_string(layer) + ".attention.";
  columns_ = {3 * heads_ * head_dim_};
  slopes_ = leaves.Find(prefix + "slopes");
  alpha_ = leaves.Find(prefix + "alpha");
  sink_ = leaves.Find(prefix + "sink");
  std::vector<double> slopes, sinks;
  std::vector<std::int64_t> learns_slope, learns_sink;
  for (std::int64_t h = 0; h < heads_; ++h) {
    const AttentionConfig& head = head_.emplace_back(config.Head(layer, h));
    const bool sloped = HasSlope(head, heads_, h);
    slopes.push_back(sloped ? AlibiSlopes(head.positions, heads_)[static_cast<std::size_t>(h)]
                            : 0.0);
    learns_slope.push_back(sloped && head.positions.learn_slopes ? 1 : 0);
    sinks.push_back(head.sink == "none" ? -std::numeric_limits<double>::infinity() : 0.0);
    learns_sink.push_back(head.sink == "learned" ? 1 : 0);
  }
  const c10::Device device = leaves.Flat().device();
  const auto there = [&](const auto& numbers, at::ScalarType dtype) {
    return at::tensor(numbers).to(dtype).to(device);
  };
  const bool any_slope = std::any_of(head_.begin(), head_.end(), [&](const AttentionConfig& head) {
    return SlopedHeads(head.positions, heads_) > 0;
  });
  if (any_slope) {
    fixed_slopes_ = there(slopes, at::kFloat);
    learns_slope_ = there(learns_slope, at::kBool);
  }
  const bool any_sink = std::any_of(
      head_.begin(), head_.end(), [](const AttentionConfig& head) { return head.sink != "none"; });
  if (any_sink) {
    fixed_sinks_ = there(sinks, at::kFloat);
    learns_sink_ = there(learns_sink, at::kBool);
  }
  for (const ScaledHeads& run : ScaledHeadsOf(config, layer)) {
    Scaling& scaling = scalings_.emplace_back();
    scaling.heads = run;
    scaling.config = head_[static_cast<std::size_t>(run.first)].length_scaling;
    if (scaling.config.kind == "adaptive") columns_.push_back(2 * run.count);
    for (const char* name : {"b", "g", "delta", "beta.bias", "gamma.bias", "table"}) {
      const Tensor leaf = leaves.Find(prefix + run.prefix + name);
      if (leaf.defined()) scaling.leaves[name] = leaf;
    }
  }
  // They lie behind each other in this order.
  projection_ = leaves.From(
      prefix + "query.weight",
      {std::accumulate(columns_.begin(), columns_.end(), std::int64_t{0}), config.width});
  whole_ = PlanOf(0, heads_);
}

PaddedAttention::Plan PaddedAttention::PlanOf(std::int64_t first, std::int64_t count) const {
  const c10::Device device = projection_.device();
  Plan plan{first, count, {}, {}};
  std::vector<std::pair<AttentionConfig, std::vector<std::int64_t>>> groups;
  for (std::int64_t h = 0; h < count; ++h) {
    const AttentionConfig& head = head_[static_cast<std::size_t>(first + h)];
    const auto same = std::find_if(groups.begin(), groups.end(),
                                   [&](const auto& group) { return SameGroup(group.first, head); });
    if (same == groups.end()) {
      groups.push_back({head, {h}});
    } else {
      same->second.push_back(h);
      if (head.sink != "none") same->first.sink = head.sink;
    }
  }
  for (const auto& [head, heads] : groups) {
    const Tensor index = groups.size() == 1 ? Tensor() : at::tensor(heads, at::kLong).to(device);
    plan.groups.push_back({heads, head, index,
                           DeviceAttention(head, head_dim_, call_.products, fixed_slopes_.defined(),
                                           !scalings_.empty(), device)});
  }
  if (groups.size() == 1) return plan;
  std::vector<std::int64_t> back(static_cast<std::size_t>(count));
  std::int64_t place = 0;
  for (const Group& group : plan.groups) {
    for (const std::int64_t h : group.heads) back[static_cast<std::size_t>(h)] = place++;
  }
  plan.back = at::tensor(back, at::kLong).to(device);
  return plan;
}

std::vector<std::string> PaddedAttention::Notes() const {
  std::vector<std::string> notes;
  for (const Group& group : whole_.groups) {
    if (!group.attend.Note().empty()) notes.push_back(group.attend.Note());
  }
  return notes;
}

void PaddedAttention::PrepareRotation(std::int64_t length, const c10::Device& device) {
  bool any = false, equal = true, by_length = false;
  for (const AttentionConfig& head : head_) {
    any = any || head.positions.kind == "rope";
    equal = equal && head.positions == head_.front().positions;
    by_length = by_length || head.positions.scaling.kind == "ntk";
  }
  if (!any || (by_length ? table_length_ == length : table_length_ >= length)) return;
  std::vector<Tensor> cosine, sine;
  for (std::size_t h = 0; h < (equal ? 1 : head_.size()); ++h) {
    const Positions& positions = head_[h].positions;
    const bool turns = positions.kind == "rope";
    const RopeTable table = turns ? MakeRopeTable(positions, head_dim_, length) : RopeTable();
    cosine.push_back(turns ? table.cosine : at::ones({length, head_dim_ / 2}));
    sine.push_back(turns ? table.sine : at::zeros({length, head_dim_ / 2}));
  }
  cosine_ = at::stack(cosine).to(device);
  sine_ = at::stack(sine).to(device);
  table_length_ = length;
}

Tensor PaddedAttention::ScaleOf(const Scaling& scaling, const Tensor& projected,
                                std::int64_t sequences, const Tensor& place) const {
  const QueryScaling& config = scaling.config;
  const std::int64_t count = scaling.heads.count, length = place.size(0);
  const Tensor log_n = (place.to(at::kDouble) + 2.0).log();
  const auto leaf = [&](const char* name) {
    const auto found = scaling.leaves.find(name);
    return found == scaling.leaves.end() ? Tensor() : found->second;
  };
  const Tensor delta = config.learn_delta
                           ? leaf("delta")
                           : at::full({count}, config.delta, log_n.options().dtype(at::kFloat));
  const auto of_all = [&](const Tensor& c) {
    return c.unsqueeze(0).expand({sequences, count, length});
  };
  if (config.kind == "ssmax") return of_all(leaf("b").unsqueeze(1) * log_n.to(at::kFloat));
  if (config.kind == "table") {
    const Tensor entry = place.clamp_max(config.positions - 1);
    return of_all(leaf("table").index_select(0, entry).t());
  }
  const Tensor log_log_n = log_n.log().to(at::kFloat);
  if (config.kind == "scalar") {
    return of_all(delta.unsqueeze(1) +
                  leaf("b").unsqueeze(1) * (leaf("g").unsqueeze(1) * log_log_n).exp());
  }
  StageCall call = call_;
  call.gamma_range = config.gamma_range;
  call.inputs = {projected, leaf("beta.bias"), leaf("gamma.bias"), delta,
                 log_log_n.repeat({sequences})};
  return RunStage("length-scale", call)[0].view({sequences, length, count}).transpose(1, 2);
}

Tensor PaddedAttention::Scales(const Tensors& projected, std::int64_t sequences,
                               const Tensor& place) const {
  Tensors parts;
  std::int64_t next = 0;
  std::size_t column = 0;
  const auto plain = [&](std::int64_t upto) {
    if (upto > next) {
      parts.push_back(
          at::ones({sequences, upto - next, place.size(0)}, place.options().dtype(at::kFloat)));
    }
  };
  for (const Scaling& scaling : scalings_) {
    plain(scaling.heads.first);
    const bool reads = scaling.config.kind == "adaptive";
    parts.push_back(ScaleOf(scaling, reads ? projected[++column] : Tensor(), sequences, place));
    next = scaling.heads.first + scaling.heads.count;
  }
  plain(heads_);
  return at::cat(parts, 1);
}

Tensor PaddedAttention::operator()(const Tensor& stream, const Tensor& gain, std::int64_t sequences,
                                   const SequencePart* part) {
  const std::int64_t length = stream.size(0) / sequences;
  const std::int64_t total = part == nullptr ? length : part->length;
  const std::int64_t begin = part == nullptr ? 0 : part->Own(total).first;
  PrepareRotation(total, stream.device());
  const Tensor place = at::arange(begin, begin + length, stream.options().dtype(at::kLong));
  StageCall call = call_;
  call.inputs = {stream, gain, projection_};
  // The products of queries, keys and values, and those that each scaling reads.
  const Tensors projected = RunStage("projection", call)[0].split_with_sizes(columns_, 1);
  Tensor heads = projected[0];
  if (qk_norm_ || cosine_.defined()) {
    call.inputs = {heads, cosine_, sine_, place.repeat({sequences}).to(at::kInt)};
    heads = RunStage("heads", call)[0];
  }
  const Tensors parts = heads.view({sequences, length, 3, heads_, head_dim_})
                            .permute({2, 0, 3, 1, 4})
                            .unbind(0);  // each [sequences, heads, length, head_dim]
  Tensor q = parts[0], k = parts[1], v = parts[2];
  Tensor c = scalings_.empty() ? Tensor() : Scales(projected, sequences, place);
  if (part != nullptr) {
    const auto [first, count] = part->Own(heads_);
    if (own_.first != first || own_.count != count) own_ = PlanOf(first, count);
    const std::vector<Tensor> all = Traded(*part, at::stack({q, k, v}), 2, 3, total).unbind(0);
    q = all[0], k = all[1], v = all[2];
    if (c.defined()) c = Traded(*part, c, 1, 2, total);
  }
  const Plan& plan = part == nullptr ? whole_ : own_;
  const auto learned = [](const Tensor& which, const Tensor& leaf, const Tensor& fixed) {
    return leaf.defined() ? at::where(which, leaf, fixed) : fixed;
  };
  const auto planned = [&](const Tensor& x) {
    return x.defined() ? x.narrow(0, plan.first, plan.count) : x;
  };
  const Tensor slopes =
      planned(fixed_slopes_.defined() ? learned(learns_slope_, slopes_, fixed_slopes_) : Tensor());
  const Tensor sinks =
      planned(fixed_sinks_.defined() ? learned(learns_sink_, sink_, fixed_sinks_) : Tensor());
  const Tensor alpha = planned(alpha_);
  std::vector<Tensor> outputs;
  for (const Group& group : plan.groups) {
    const auto own = [&](const Tensor& x, std::int64_t dim) {
      return group.index.defined() ? x.index_select(dim, group.index) : x;
    };
    const AttentionConfig& config = group.config;
    AttentionOptions options;
    SetMap(config, config.learn_alpha == "no" ? Tensor() : own(alpha, 0), options);
    SetDistances(config, options.terms);
    options.causal = true;
    if (c.defined()) options.length_scale = own(c, 1);
    // Beside scale-invariant scores there are none.
    if (slopes.defined() && !config.scale_invariant) options.alibi_slopes = own(slopes, 0);
    if (config.sink != "none") options.sink = own(sinks, 0);
    outputs.push_back(group.attend(own(q, 1), own(k, 1), own(v, 1), options));
  }
  Tensor out =
      plan.back.defined() ? at::cat(outputs, 1).index_select(1, plan.back) : outputs.front();
  if (part != nullptr) out = Traded(*part, out, 2, 1, heads_);
  return out.transpose(1, 2).reshape({sequences * length, heads_ * head_dim_});
}

}  // namespace tsallis::lab
