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

}  // namespace

LayerAttention::Plan LayerAttention::PlanOf(std::int64_t first, std::int64_t count) const {
  Plan plan{first, count, {}, {}};
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
  std::vector<std::int64_t> back(static_cast<std::size_t>(count));
  std::int64_t place = 0;
  for (const Group& group : plan.groups) {
    for (const std::int64_t h : group.heads) back[static_cast<std::size_t>(h)] = place++;
  }
  plan.back = at::tensor(back, at::kLong).to(device_);
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
    const auto own = [&](const Tensor& x, std::int64_t dim) {
      return group.index.defined() ? x.index_select(dim, group.index) : x;
    };
    const auto numbers = [&](const Tensor& of_heads) {
      return own(of_heads.narrow(0, plan.first, plan.count), 0).to(at::kFloat);
    };
    const AttentionConfig& config = group.config;
    AttentionOptions options;
    options.setting() = SettingOf(config);
    if (config.learn_alpha != "no") options.alpha_heads = numbers(inputs.alpha);
    SetDistances(config, options.terms);
    SetPattern({plan.first + group.heads.front(), 1, 1}, q.size(2), options);
    options.causal = sight_ == Sight::kBefore;
    options.threads = workers_.threads();
    if (packed) options.cu_seqlens_q = rows.begins, options.cu_seqlens_k = keys.begins;
    if (c.defined()) options.length_scale = own(c, 1);
    // Beside scale-invariant scores there are none.
    if (inputs.slopes.defined() && !config.scale_invariant) {
      options.alibi_slopes = numbers(inputs.slopes);
    }
    if (config.sink != "none") options.sink = numbers(inputs.sinks);
    outputs.push_back(
        group.attend(own(q, 1), own(k, 1), own(v, 1), options, {rows.length, keys.length}));
  }
  Tensor out =
      plan.back.defined() ? at::cat(outputs, 1).index_select(1, plan.back) : outputs.front();
  if (part != nullptr) out = Traded(*part, out, 2, 1, heads_);
  return out.transpose(1, 2).reshape({rows.rows, inner});
}

}  // namespace tsallis::lab
