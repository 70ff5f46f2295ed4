#include "lab/nn/device_attention.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

#include "lab/nn/layer_attention.h"
#include "lab/nn/maps.h"
#include "tsallis/attention.h"
#include "tsallis/cuda.h"
#include "tsallis/distance_law.h"
#include "tsallis/error.h"
#include "tsallis/pages.h"

namespace tsallis::lab {
namespace {

using at::Tensor;

// Scores that stand in memory at a time, at least those of one query of every head.
constexpr std::int64_t kMostScores = std::int64_t{1} << 27;
// A score that has no weight. Not an infinity, whose products with 0 are NaN in gradients.
constexpr double kNone = -1e30;
constexpr double kLeastAlpha = 1.001;

bool HasMasks(const AttentionOptions& options) { return options.mask || options.block_mask; }

// Refuses the options that torch's operations do not serve here.
void CheckServed(const Tensor& q, const Tensor& k, const AttentionOptions& options) {
  const auto refuse = [](const char* name, const char* expected) {
    throw InvalidArgument(name,
                          std::string(expected) + ", which attention by torch's operations needs",
                          "something else");
  };
  if (options.bias) refuse("bias", "none");
  if (options.left >= 0 || options.right >= 0) refuse("left, right", "no window");
  if (options.lengths || options.query_lengths) refuse("lengths", "none");
  if (options.terms.softcap != 0.0) refuse("terms.softcap", "0");
  if (options.terms.scale != 0.0) refuse("terms.scale", "0");
  if (options.alignment != Alignment::kEnd) refuse("alignment", "kEnd");
  if (q.size(1) != k.size(1)) refuse("k", "as many heads as q");
  const bool ordered = options.alibi_slopes || options.terms.scale_invariant > 0.0 ||
                       options.map == RowMap::kStickBreaking;
  if (ordered && !options.causal) refuse("causal", "true beside terms of the distance");
  if (options.cu_seqlens_q.has_value() != options.cu_seqlens_k.has_value()) {
    refuse("cu_seqlens_k", "both or none of queries and keys");
  }
  if (options.cu_seqlens_q && HasMasks(options)) refuse("mask", "none beside packed sequences");
}

// Rows of packed sequences as [sequences, heads, longest, dim], and back.
class Padding {
 public:
  Padding(const Tensor& begins, std::int64_t rows, std::int64_t longest)
      : rows_(rows), longest_(longest) {
    const at::TensorOptions integers = begins.options();
    const std::int64_t sequences = begins.size(0) - 1;
    const Tensor first = begins.narrow(0, 0, sequences).unsqueeze(1);
    const Tensor place = at::arange(longest, integers).unsqueeze(0);
    lengths_ = begins.narrow(0, 1, sequences).unsqueeze(1) - first;
    counts_ = place < lengths_;
    row_ = (first + place).clamp_max(std::max<std::int64_t>(rows - 1, 0)).flatten();
    const Tensor all = at::arange(rows, integers);
    const Tensor sequence = at::bucketize(all, begins.slice(0, 1), false, true);
    cell_ = sequence * longest + all - begins.index_select(0, sequence);
  }

  const Tensor& Lengths() const { return lengths_; }  // [sequences, 1]
  const Tensor& Counts() const { return counts_; }    // [sequences, longest]: what is no padding

  // x: [1, heads, rows, dim]
  Tensor Padded(const Tensor& x) const {
    return x.squeeze(0)
        .index_select(1, row_)
        .view({x.size(1), -1, longest_, x.size(3)})
        .transpose(0, 1);
  }
  Tensor Packed(const Tensor& x) const {
    const Tensor rows = x.transpose(1, 2).flatten(0, 1);  // [sequences longest, heads, dim]
    return rows.index_select(0, cell_).transpose(0, 1).unsqueeze(0);
  }

 private:
  std::int64_t rows_, longest_;
  Tensor lengths_, counts_, row_, cell_;
};

Tensor Filled(const Tensor& scores, const Tensor& visible) {
  return scores.masked_fill(visible.logical_not(), kNone);
}

// alpha-entmax of rows by bisection for the threshold and one step of Newton's method from there,
// which autograd sees: a step from the root has the root's derivatives, in scores and in alpha.
Tensor PlainEntmax(const Tensor& scores, const Tensor& alpha) {
  const Tensor steep = (alpha - 1.0).clamp_min(kLeastAlpha - 1.0);
  const Tensor power = steep.reciprocal();
  const Tensor z = steep * (scores - std::get<0>(scores.detach().max(-1, true)));
  Tensor tau, slope;
  {
    const c10::NoGradGuard no_gradient;
    const auto weights = [&](const Tensor& gap, const Tensor& by) {
      const Tensor in = gap > 0.0;
      return at::where(in, at::where(in, gap, 1.0).pow(by), 0.0);
    };
    tau = at::full_like(z.narrow(-1, 0, 1), -1.0);
    Tensor width = at::ones_like(tau);
    const int halvings = z.scalar_type() == at::kDouble ? 52 : 26;
    for (int i = 0; i < halvings; ++i) {
      width = width * 0.5;
      const Tensor middle = tau + width;
      const Tensor enough = weights(z - middle, power).sum(-1, true) >= 1.0;
      tau = at::where(enough, middle, tau);
    }
    slope = (power * weights(z - tau, power - 1.0)).sum(-1, true);
  }
  const auto weights = [&](const Tensor& threshold) {
    const Tensor gap = z - threshold;
    const Tensor in = gap.detach() > 0.0;
    return at::where(in, at::where(in, gap, 1.0).pow(power), 0.0);
  };
  const Tensor step = (weights(tau).sum(-1, true) - 1.0) / slope;
  return weights(tau + step);
}

Tensor AdaptiveSoftmax(const Tensor& scores, const Tensor& visible,
                       const AdaptiveTemperature& adaptive) {
  const Tensor log_q = scores.log_softmax(-1).masked_fill(visible.logical_not(), 0.0);
  const Tensor entropy =
      -(log_q.exp() * log_q).masked_fill(visible.logical_not(), 0.0).sum(-1, true);
  Tensor beta = at::zeros_like(entropy);
  for (std::size_t i = adaptive.coefficients.size(); i-- > 0;) {
    beta = beta * entropy + adaptive.coefficients[i];
  }
  beta = at::where(entropy > adaptive.threshold, beta.clamp_min(1.0), 1.0);
  return (beta * scores).softmax(-1);
}

Tensor TopKSoftmax(const Tensor& scores, const Tensor& visible, const TopK& top_k) {
  const Tensor keys = visible.sum(-1, true);
  const Tensor share = (keys.to(at::kDouble) * top_k.fraction).floor().to(at::kLong);
  const Tensor kept = share.clamp_min(top_k.k).minimum(keys).clamp_min(1) - 1;
  const Tensor sorted = std::get<0>(scores.detach().sort(-1, true));
  std::vector<std::int64_t> rows = sorted.sizes().vec();
  rows.back() = 1;
  const Tensor least = sorted.gather(-1, kept.expand(rows));
  return Filled(scores, scores.detach() >= least).softmax(-1);
}

Tensor Softpick(const Tensor& scores, const Tensor& visible) {
  const Tensor top = std::get<0>(scores.detach().max(-1, true)).clamp_min(0.0);
  const Tensor above =
      ((scores - top).exp() - (-top).exp()).masked_fill(visible.logical_not(), 0.0);
  return at::relu(above) / (above.abs().sum(-1, true) + kSoftpickEpsilon * (-top).exp());
}

Tensor StickBreaking(const Tensor& scores, const Tensor& visible) {
  const Tensor kept = at::log_sigmoid(-scores).masked_fill(visible.logical_not(), 0.0);
  const Tensor from = kept.flip({-1}).cumsum(-1).flip({-1});
  return (at::log_sigmoid(scores) + from - kept).exp();
}

// The weights of scores, both [batch, heads, q_len, k_len]; visible broadcasts to them.
Tensor Weights(const Tensor& all_scores, const Tensor& visible, const AttentionOptions& options) {
  Tensor scores = Filled(all_scores, visible);
  const std::int64_t keys = scores.size(-1);
  if (options.sink) {
    const Tensor sink = options.sink->to(scores.scalar_type()).clamp_min(kNone).view({1, -1, 1, 1});
    scores =
        at::cat({scores, sink.expand({scores.size(0), scores.size(1), scores.size(2), 1})}, -1);
  }
  Tensor weights;
  switch (options.map) {
    case RowMap::kSoftmax: weights = scores.softmax(-1); break;
    case RowMap::kEntmax:
      if (options.alpha_heads) {
        weights = PlainEntmax(scores, options.alpha_heads->view({1, -1, 1, 1}));
      } else if (options.alpha == 1.0) {
        weights = scores.softmax(-1);
      } else {
        weights = PlainEntmax(scores, at::full({1, 1, 1, 1}, options.alpha, scores.options()));
      }
      break;
    case RowMap::kAdaptiveTemperature:
      weights = AdaptiveSoftmax(scores, visible, options.adaptive);
      break;
    case RowMap::kTopKSoftmax: weights = TopKSoftmax(scores, visible, options.top_k); break;
    case RowMap::kSigmoid:
      weights = options.sigmoid_bias
                    ? (scores + *options.sigmoid_bias).sigmoid()
                    : (scores - visible.sum(-1, true).clamp_min(1).log()).sigmoid();
      break;
    case RowMap::kSoftpick: weights = Softpick(scores, visible); break;
    case RowMap::kStickBreaking: weights = StickBreaking(scores, visible); break;
    default: throw InvalidArgument("map", "one of AttentionMaps()", std::string(Name(options.map)));
  }
  return weights.narrow(-1, 0, keys).masked_fill(visible.logical_not(), 0.0);
}

// The keys that queries see, in a batch of sequences that may be padded.
struct Extents {
  std::int64_t q_len, k_len;
  const Padding* queries = nullptr;  // both or none
  const Padding* keys = nullptr;

  // j - i counted from the ends of a sequence's queries and keys, for queries [begin, begin +
  // count): 0 where a causal query's last key is. [1 or batch, 1, count, k_len] int64.
  Tensor Ahead(std::int64_t begin, std::int64_t count, const c10::Device& device) const {
    const at::TensorOptions integers = at::TensorOptions().dtype(at::kLong).device(device);
    const Tensor i = at::arange(begin, begin + count, integers).unsqueeze(1);
    const Tensor ahead = (at::arange(k_len, integers).unsqueeze(0) - i).view({1, 1, count, k_len});
    if (queries == nullptr) return ahead - (k_len - q_len);
    return ahead - (keys->Lengths() - queries->Lengths()).view({-1, 1, 1, 1});
  }

  // Rows of padding see every key, so that no row is without one; their output is dropped.
  Tensor Visible(const Tensor& ahead, std::int64_t begin, const AttentionOptions& options) const {
    const std::int64_t count = ahead.size(2);
    Tensor visible;
    if (options.causal) visible = ahead <= (options.map == RowMap::kStickBreaking ? -1 : 0);
    for (const Tensor& shown : Shown(begin, count, options)) {
      visible = visible.defined() ? visible.logical_and(shown) : shown;
    }
    if (keys != nullptr) {
      const Tensor counts = keys->Counts().view({-1, 1, 1, k_len});
      const Tensor padding =
          queries->Counts().narrow(1, begin, count).logical_not().view({-1, 1, count, 1});
      visible = (visible.defined() ? visible.logical_and(counts) : counts).logical_or(padding);
    }
    return visible.defined() ? visible : at::ones_like(ahead, at::kBool);
  }

  // The keys that each mask of the call shows them, broadcastable to [batch, heads, count, k_len].
  std::vector<Tensor> Shown(std::int64_t begin, std::int64_t count,
                            const AttentionOptions& options) const {
    std::vector<Tensor> shown;
    if (options.mask) {
      const Tensor mask = at::atleast_2d(*options.mask);
      shown.push_back(mask.size(-2) == 1 ? mask : mask.narrow(-2, begin, count));
    }
    if (options.block_mask) {
      const Tensor blocks = at::atleast_2d(*options.block_mask);
      const auto of = [&](std::int64_t dim, std::int64_t from, std::int64_t upto,
                          std::int64_t size) {
        const Tensor places = at::arange(from, upto, blocks.options().dtype(at::kLong));
        return blocks.size(dim) == 1 ? at::zeros_like(places) : places.floor_divide(size);
      };
      shown.push_back(blocks.index_select(-2, of(-2, begin, begin + count, options.block_q))
                          .index_select(-1, of(-1, 0, k_len, options.block_k)));
    }
    return shown;
  }
};

Tensor Distances(const Tensor& scores, const Tensor& ahead, const AttentionOptions& options) {
  Tensor terms = scores;
  const Tensor distance = ahead.neg().clamp_min(0).to(scores.scalar_type());
  if (const double length = options.terms.scale_invariant; length > 0.0) {
    const DistanceLaw law = DistanceLaw::Of(options.terms);
    const Tensor square = 2.0 * (distance / length + 1.0).log() + law.nearest;
    terms = square.sqrt() * terms + (law.sum - square);
  }
  if (options.alibi_slopes) {
    terms = terms - options.alibi_slopes->to(scores.scalar_type()).view({1, -1, 1, 1}) * distance;
  }
  return terms;
}

// q: [batch, heads, q_len, dim], k and v likewise.
Tensor AttendPadded(const Tensor& q, const Tensor& k, const Tensor& v,
                    const AttentionOptions& options, const Extents& extents) {
  const bool half = q.scalar_type() == at::kBFloat16 || q.scalar_type() == at::kHalf;
  const auto exact = [&](const Tensor& x) { return half ? x.to(at::kFloat) : x; };
  const double scale = 1.0 / std::sqrt(static_cast<double>(q.size(3)));
  const std::int64_t row = std::max<std::int64_t>(1, q.size(0) * q.size(1) * k.size(2));
  const std::int64_t piece = std::max<std::int64_t>(1, kMostScores / row);
  const Tensor keys = k.transpose(2, 3);
  const bool distances = options.alibi_slopes || options.terms.scale_invariant > 0.0;
  std::vector<Tensor> outputs;
  for (std::int64_t begin = 0; begin < extents.q_len; begin += piece) {
    const std::int64_t count = std::min(piece, extents.q_len - begin);
    Tensor scores = exact(at::matmul(q.narrow(2, begin, count), keys)) * scale;
    if (options.length_scale) {
      scores = scores * options.length_scale->narrow(2, begin, count).unsqueeze(3);
    }
    const Tensor ahead = extents.Ahead(begin, count, q.device());
    if (distances) scores = Distances(scores, ahead, options);
    const Tensor visible = extents.Visible(ahead, begin, options);
    outputs.push_back(at::matmul(Weights(scores, visible, options).to(v.scalar_type()), v));
  }
  if (outputs.empty()) return at::empty_like(q);
  return outputs.size() == 1 ? outputs.front() : at::cat(outputs, 2);
}

// Softmax alone, with or without a length scale, by torch's fused attention.
Tensor SdpaPadded(const Tensor& q, const Tensor& k, const Tensor& v,
                  const AttentionOptions& options, const Extents& extents) {
  Tensor queries = q;
  if (options.length_scale) {
    queries = (q * options.length_scale->unsqueeze(3)).to(q.scalar_type());
  }
  if (extents.queries == nullptr && !HasMasks(options) &&
      (!options.causal || extents.q_len == extents.k_len)) {
    return at::scaled_dot_product_attention(queries, k, v, {}, 0.0, options.causal);
  }
  const Tensor visible = extents.Visible(extents.Ahead(0, extents.q_len, q.device()), 0, options);
  return at::scaled_dot_product_attention(queries, k, v, visible, 0.0, false);
}

template <class Attend>
Tensor Unpacked(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& options,
                const LongestSequence& longest, const Attend& attend) {
  CheckServed(q, k, options);
  if (!options.cu_seqlens_q) {
    return attend(q, k, v, options, Extents{q.size(2), k.size(2), nullptr, nullptr});
  }
  const Padding queries(*options.cu_seqlens_q, q.size(2), longest.queries);
  const Padding keys(*options.cu_seqlens_k, k.size(2), longest.keys);
  const Extents extents{longest.queries, longest.keys, &queries, &keys};
  AttentionOptions padded = options;
  if (options.length_scale) {
    padded.length_scale = queries.Padded(options.length_scale->unsqueeze(3)).squeeze(3);
  }
  return queries.Packed(attend(queries.Padded(q), keys.Padded(k), keys.Padded(v), padded, extents));
}

// Memory of the device, which the host never reads.
alignas(64) constexpr std::byte kThere[64] = {};

// A call of such heads, one of them on 64 keys.
AttentionParams CallOf(const AttentionConfig& heads, std::int64_t head_dim, at::ScalarType dtype,
                       bool sloped, bool scaled) {
  const DType type = dtype == at::kBFloat16 ? DType::kBFloat16 : DType::kFloat32;
  const std::int64_t rows = 64;
  AttentionParams params;
  params.batch = params.heads = params.kv_heads = 1;
  params.q_len = params.k_len = rows;
  params.head_dim = params.value_dim = head_dim;
  const ConstArray4 array{kThere, type, {rows * head_dim, rows * head_dim, head_dim, 1}};
  params.q = params.k = params.v = array;
  params.mask.causal = true;
  if (heads.pattern.kind != "none") {
    params.mask.visible = params.mask.blocks = reinterpret_cast<const std::uint8_t*>(kThere);
    params.mask.visible_strides[2] = params.mask.block_q = params.mask.block_k = rows;
  }
  params.setting() = SettingOf(heads);
  SetDistances(heads, params.terms);
  if (scaled) params.terms.length_scale = {kThere, DType::kFloat32, {rows, rows, 1, 1}};
  if (sloped) params.terms.alibi_slopes = {kThere, DType::kFloat32, {1, 1, 1, 1}};
  if (heads.sink != "none") params.terms.sink = reinterpret_cast<const double*>(kThere);
  return params;
}

// Why the CUDA kernels refuse such a call, in their own words; empty: they run it.
std::string CudaRefusal(const AttentionConfig& heads, const Context& context,
                        const AttentionParams& params) {
  // 1 + sigmoid(a) stays between 1 and 2, whose alphas are served, at the price of a copy to the
  // host for every layer.
  if (heads.learn_alpha == "free") return "a learned alpha without an upper bound";
  try {
    AttentionWorkspaceBytes(context, params, false);
    AttentionWorkspaceBytes(context, params, true);
  } catch (const InvalidArgument& error) {
    // "kCpu, as ...", from the library's choice of a kernel.
    const std::string as = ", as ";
    const std::size_t from = error.expected().find(as);
    if (error.actual() != "kCuda" || from == std::string::npos) return error.what();
    return error.expected().substr(from + as.size());
  }
  // The kernels serve the call; whether they were compiled for this GPU is another matter.
  const CudaInfo info = QueryCuda();
  const auto index = static_cast<std::size_t>(std::max<int>(0, context.device_index));
  return index < info.devices.size() ? info.devices[index].why_unusable : info.why_no_devices;
}

}  // namespace

Tensor PlainAttention(const Tensor& q, const Tensor& k, const Tensor& v,
                      const AttentionOptions& options, const LongestSequence& longest) {
  return Unpacked(q, k, v, options, longest, AttendPadded);
}

DeviceAttention::DeviceAttention(const AttentionConfig& heads, std::int64_t head_dim,
                                 at::ScalarType dtype, bool sloped, bool scaled,
                                 const c10::Device& device)
    : call_(CallOf(heads, head_dim, dtype, sloped, scaled)) {
  if (device.is_cpu()) return;
  context_.device = DeviceKind::kCuda;
  context_.device_index = device.index();
  const std::string why = device.is_cuda() ? CudaRefusal(heads, context_, call_)
                                           : "there are no kernels for this device";
  if (why.empty()) return;
  const bool sdpa = heads.map == "softmax" && heads.sink == "none" && !sloped &&
                    !heads.scale_invariant.has_value();
  way_ = sdpa ? Way::kSdpa : Way::kPlain;
  note_ = fmt::format("heads with map \"{}\" attend on {} by {}: {}", heads.map, device.str(),
                      sdpa ? "torch's SDPA" : "plain torch operations", why);
}

Tensor DeviceAttention::operator()(const Tensor& q, const Tensor& k, const Tensor& v,
                                   const AttentionOptions& options,
                                   const LongestSequence& longest) const {
  switch (way_) {
    case Way::kKernels: return tsallis::Attention(q, k, v, options);
    case Way::kSdpa: return Unpacked(q, k, v, options, longest, SdpaPadded);
    default: return PlainAttention(q, k, v, options, longest);
  }
}

bool DeviceAttention::KernelsReadPages(const AttentionOptions& options) const {
  if (way_ != Way::kKernels) return false;
  AttentionParams call = call_;
  std::vector<double> alphas;
  if (options.alpha_heads) {  // which alphas they serve is narrower on pages
    const Tensor numbers = options.alpha_heads->to(at::kDouble).cpu();
    alphas.assign(numbers.const_data_ptr<double>(),
                  numbers.const_data_ptr<double>() + numbers.numel());
    call.heads = call.kv_heads = numbers.numel();
    call.alpha_per_head = alphas.data();
  }
  AttentionPages pages;
  pages.pages = pages.table_width = pages.table_stride = 1;
  pages.page_size = KvCache::kPage;
  pages.k = pages.v = call.k;
  pages.table.data = pages.lengths.data = kThere;
  try {
    AttentionOnPagesWorkspaceBytes(context_, call, pages);
  } catch (const InvalidArgument&) {
    return false;
  }
  return true;
}

Tensor DeviceAttention::OnPages(const Tensor& q, const Tensor& k, const Tensor& v,
                                const RowPages& pages, const Tensor& visible,
                                const AttentionOptions& options) const {
  AttentionOptions own = options;
  const Tensor queries = q.unsqueeze(2);
  if (!visible.defined() && KernelsReadPages(options)) {
    own.lengths = pages.lengths;
    return AttentionOnPages(queries, k, v, pages.table, own).squeeze(2);
  }
  // The last keys of all rows in one column, since queries count distances from there. Before its
  // first key a row has copies of that, which it does not see.
  const std::int64_t rows = q.size(0), longest = pages.longest, page = k.size(1);
  const Tensor key = pages.lengths.to(at::kLong).unsqueeze(1) +
                     at::arange(-longest, 0, pages.lengths.options().dtype(at::kLong));
  const Tensor place = key.clamp_min(0);
  const Tensor slots =
      pages.table.to(at::kLong).gather(1, place.floor_divide(page)) * page + place.remainder(page);
  const auto gathered = [&](const Tensor& from) {
    return from.flatten(0, 1)
        .index_select(0, slots.flatten())
        .view({rows, longest, from.size(2), from.size(3)})
        .transpose(1, 2);
  };
  Tensor seen = key >= 0;
  if (visible.defined()) seen = seen.logical_and(visible.gather(1, place));
  own.mask = seen.view({rows, 1, 1, longest});
  return (*this)(queries, gathered(k), gathered(v), own).squeeze(2);
}

}  // namespace tsallis::lab
