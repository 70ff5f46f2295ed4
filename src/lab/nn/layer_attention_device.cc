// Attention of a layer on any device: by torch's operations and the operators of attention.
#include <ATen/ATen.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "lab/nn/layer_attention.h"

namespace tsallis::lab {
namespace {

using at::Tensor;

// Heads that agree in more than a call of the kernels asks for: alphas that are not learned are
// numbers.
bool SameGroup(const AttentionConfig& a, const AttentionConfig& b) {
  return SameCall(a, b) && a.learn_alpha == b.learn_alpha &&
         (a.learn_alpha != "no" || a.alpha == b.alpha);
}

// Those heads of all, or all if `index` is undefined.
Tensor OwnOf(const Tensor& index, const Tensor& all, std::int64_t dim = 1) {
  return index.defined() ? all.index_select(dim, index) : all;
}

// The outputs of groups, which have heads along dimension 1, in the order of the heads.
Tensor Joined(const Tensors& outputs, const Tensor& back) {
  return back.defined() ? at::cat(outputs, 1).index_select(1, back) : outputs.front();
}

}  // namespace

LayerAttention::Plan LayerAttention::PlanOf(std::int64_t first, std::int64_t count) const {
  Plan plan{first, count, {}, {}, {}};
  std::vector<std::pair<AttentionConfig, std::vector<std::int64_t>>> groups;
  for (std::int64_t h = 0; h < count; ++h) {
    const AttentionConfig& head = HeadOf(first + h);
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
    const Tensor index = groups.size() == 1 ? Tensor() : at::tensor(heads, at::kLong).to(device_);
    plan.groups.push_back({heads, head, index,
                           DeviceAttention(head, head_dim_, project_.products,
                                           fixed_slopes_.defined(), !scalings_.empty(), device_)});
  }
  if (groups.size() == 1) return plan;
  Tensors orders;
  for (const Group& group : plan.groups) orders.push_back(group.index);
  plan.order = at::cat(orders);
  plan.back = plan.order.argsort();
  return plan;
}

std::vector<std::string> LayerAttention::Notes() const {
  std::vector<std::string> notes;
  for (const Group& group : whole_.groups) {
    if (!group.attend.Note().empty()) notes.push_back(group.attend.Note());
  }
  return notes;
}

Tensor LayerAttention::OnDevice(const Inputs& inputs, const SequenceRows& rows,
                                const SequencePart* part) {
  const SequenceRows& keys = inputs.KeyRows(rows);
  const bool packed = rows.begins.defined();  // as one sequence
  const std::int64_t inner = heads_ * head_dim_, sequences = packed ? 1 : rows.Sequences();
  // The first columns as parts, each [sequences, heads, length, head_dim].
  const auto parts_of = [&](const Tensor& matrix, std::int64_t count) {
    return matrix.narrow(1, 0, count * inner)
        .view({sequences, -1, count, heads_, head_dim_})
        .permute({2, 0, 3, 1, 4})
        .unbind(0);
  };
  Tensors parts = parts_of(inputs.projected, parts_);
  if (sight_ == Sight::kOther) {
    for (const Tensor& part_of_memory : parts_of(inputs.memory.projected, 2)) {
      parts.push_back(part_of_memory);
    }
  }
  Tensor q = parts[0], k = parts[1], v = parts[2], c;
  if (inputs.c.defined()) c = inputs.c.view({sequences, -1, heads_}).transpose(1, 2);
  if (part != nullptr) {
    const auto [first, count] = part->Own(heads_);
    if (own_.groups.empty() || own_.first != first || own_.count != count) {
      own_ = PlanOf(first, count);
    }
    const Tensors all = Traded(*part, at::stack({q, k, v}), 2, 3, part->length).unbind(0);
    q = all[0], k = all[1], v = all[2];
    if (c.defined()) c = Traded(*part, c.contiguous(), 1, 2, part->length);
  }
  const Plan& plan = part == nullptr ? whole_ : own_;
  Tensors outputs;
  for (const Group& group : plan.groups) {
    AttentionOptions options = OptionsOf(plan, group, inputs);
    SetPattern({plan.first + group.heads.front(), 1, 1}, q.size(2), options);
    if (packed) options.cu_seqlens_q = rows.begins, options.cu_seqlens_k = keys.begins;
    if (c.defined()) options.length_scale = OwnOf(group.index, c);
    outputs.push_back(group.attend(OwnOf(group.index, q), OwnOf(group.index, k),
                                   OwnOf(group.index, v), options, {rows.length, keys.length}));
  }
  Tensor out = Joined(outputs, plan.back);
  if (part != nullptr) out = Traded(*part, out, 2, 1, heads_);
  return out.transpose(1, 2).reshape({rows.rows, inner});
}

AttentionOptions LayerAttention::OptionsOf(const Plan& plan, const Group& group,
                                           const Inputs& inputs) const {
  const auto numbers = [&](const Tensor& of_heads) {
    return OwnOf(group.index, of_heads.narrow(0, plan.first, plan.count), 0).to(at::kFloat);
  };
  const AttentionConfig& config = group.config;
  AttentionOptions options;
  options.setting() = SettingOf(config);
  if (config.learn_alpha != "no") options.alpha_heads = numbers(inputs.alpha);
  SetDistances(config, options.terms);
  options.causal = sight_ == Sight::kBefore;
  options.threads = workers_.threads();
  // Beside scale-invariant scores there are none.
  if (inputs.slopes.defined() && !config.scale_invariant) {
    options.alibi_slopes = numbers(inputs.slopes);
  }
  if (config.sink != "none") options.sink = numbers(inputs.sinks);
  return options;
}

// ---- on pages

void LayerAttention::Write(const Tensor& k, const Tensor& v, const CachedRows& cached,
                           std::int64_t layer) const {
  const auto& pages = std::get<DevicePages>(cached.cache);
  const auto write = [&](const Tensor& to, const Tensor& rows) {
    to.flatten(0, 1).index_copy_(0, cached.pages.slots, OwnOf(whole_.order, rows));
  };
  write(pages.Keys(layer), k);
  write(pages.Values(layer), v);
}

Tensor LayerAttention::ExtendOnDevice(const Inputs& inputs, const SequenceRows& rows,
                                      const CachedRows& cached, std::int64_t layer) {
  const std::int64_t inner = heads_ * head_dim_;
  const Tensor parts =
      inputs.projected.narrow(1, 0, parts_ * inner).view({rows.rows, parts_, heads_, head_dim_});
  if (sight_ != Sight::kOther) {
    Write(parts.select(1, 1), parts.select(1, 2), cached, layer);
    const bool fresh = std::all_of(rows.begin.begin(), rows.begin.end(), [&](std::int64_t begin) {
      return rows.position[static_cast<std::size_t>(begin)] == 0;
    });
    // The projection holds all there is. Masks are not for packed sequences.
    if (fresh && (patterns_.empty() || !rows.packed)) return OnDevice(inputs, rows, nullptr);
  }
  const auto& pages = std::get<DevicePages>(cached.cache);
  const Tensor q = parts.select(1, 0), keys = pages.Keys(layer), values = pages.Values(layer);
  Tensors outputs;
  std::int64_t first = 0;
  for (const Group& group : whole_.groups) {
    const auto count = static_cast<std::int64_t>(group.heads.size());
    AttentionOptions options = OptionsOf(whole_, group, inputs);
    if (inputs.c.defined()) options.length_scale = OwnOf(group.index, inputs.c).unsqueeze(2);
    outputs.push_back(group.attend.OnPages(OwnOf(group.index, q), keys.narrow(2, first, count),
                                           values.narrow(2, first, count), cached.pages,
                                           PatternOf({group.heads.front(), 1, 1}, rows), options));
    first += count;
  }
  return Joined(outputs, whole_.back).reshape({rows.rows, inner});
}

}  // namespace tsallis::lab
