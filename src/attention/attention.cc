// Entry points and the driver: check, choose, hand the work from kernel to kernel, clear what
// belongs to no sequence, add up what heads share.
#include "tsallis/attention.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>
#include <tuple>

#include "attention/check.h"
#include "attention/cuda/cuda.h"
#include "attention/geometry.h"
#include "attention/kernels.h"
#include "core/elements.h"
#include "core/parallel.h"
#include "tsallis/error.h"

namespace tsallis {

std::vector<RowBlock> AllRows(const AttentionParams& params) {
  std::vector<RowBlock> rows;
  rows.reserve(static_cast<std::size_t>(params.batch * params.heads));
  for (std::int64_t b = 0; b < params.batch; ++b) {
    const Span q = Sequence::Of(params, b).q;
    for (std::int64_t h = 0; q.size() > 0 && h < params.heads; ++h) rows.push_back({b, h, q});
  }
  return rows;
}

namespace {

// Why a kernel is not for these params; empty if it is.
std::string Reason(const AttentionKernel& kernel, const AttentionParams& params,
                   const Features& asked, Pass pass, bool remaining) {
  std::string reason = Refusal(kernel.serves, params, asked, pass);
  if (reason.empty() && kernel.declines != nullptr) reason = kernel.declines(params, remaining);
  if (reason.empty() && kernel.instruction_set().empty()) reason = "not on this machine";
  return reason;
}

const AttentionKernel& Choose(const AttentionParams& params, const Features& asked, Pass pass,
                              std::string* why) {
  for (const AttentionKernel* kernel : AllAttentionKernels()) {
    const std::string reason = Reason(*kernel, params, asked, pass, /*remaining=*/false);
    if (reason.empty()) {
      if (why != nullptr) *why += std::string(kernel->name) + ": " + kernel->summary;
      return *kernel;
    }
    if (why != nullptr) *why += std::string("not ") + kernel->name + ": " + reason + "; ";
  }
  throw std::logic_error("the last attention kernel refused");
}

bool Precedes(const RowBlock& a, const RowBlock& b) {
  return std::tie(a.b, a.h, a.q.begin) < std::tie(b.b, b.h, b.q.begin);
}
bool Precedes(const KeyHead& a, const KeyHead& b) {
  return std::tie(a.b, a.kv) < std::tie(b.b, b.kv);
}

// Calls run(kernel, work, remaining) for the first kernel, and for those behind it as long as work
// remains.
template <class Item, class Run>
void Walk(KernelList kernels, const AttentionParams& params, const Features& asked, Pass pass,
          std::vector<Item> work, const Run& run) {
  bool remaining = false;
  for (const AttentionKernel* kernel : kernels) {
    if (work.empty()) return;
    const std::string reason = kernel == kernels.front()
                                   ? Refusal(kernel->serves, params, asked, pass)
                                   : Reason(*kernel, params, asked, pass, remaining);
    if (!reason.empty()) continue;
    std::vector<Item> rest;
    if (!run(*kernel, work, &rest)) continue;
    std::sort(rest.begin(), rest.end(),
              [](const Item& a, const Item& b) { return Precedes(a, b); });
    work = std::move(rest);
    remaining = true;
  }
  if (!work.empty()) throw std::logic_error("the last attention kernel left work");
}

std::vector<KeyHead> AllKeyHeads(const AttentionParams& params) {
  std::vector<KeyHead> key_heads;
  key_heads.reserve(static_cast<std::size_t>(params.batch * params.kv_heads));
  for (std::int64_t b = 0; b < params.batch; ++b) {
    for (std::int64_t kv = 0; kv < params.kv_heads; ++kv) key_heads.push_back({b, kv});
  }
  return key_heads;
}

// ---- rows that belong to no sequence of a padded batch ------------------------------------------

bool HasOutside(const AttentionParams& params) {
  return !params.ranges.packed && params.kv_heads > 0 && FeaturesOf(params).Has(Feature::kRanges);
}

// Both sides of `inside` along an axis.
template <class Body>
void ForEachRowOutside(const Span& inside, std::int64_t length, const Body& body) {
  for (std::int64_t row = 0; row < std::min(inside.begin, length); ++row) body(row);
  for (std::int64_t row = std::max(inside.begin, inside.end); row < length; ++row) body(row);
}

void ClearRow(const MutableArray4& array, std::int64_t b, std::int64_t h, std::int64_t row,
              std::int64_t columns) {
  const std::int64_t start = Offset(array.strides, b, h, row);
  if (array.strides[3] == 1) {
    const auto size = static_cast<std::int64_t>(SizeOf(array.dtype));
    std::memset(static_cast<std::byte*>(array.data) + start * size, 0,
                static_cast<std::size_t>(columns * size));
    return;
  }
  for (std::int64_t x = 0; x < columns; ++x) {
    StoreElement(array.data, array.dtype, start + x * array.strides[3], 0.0);
  }
}

// Gives rows outside of every sequence the output 0 and the statistics of a row without keys.
void ClearRowsOutside(const Context& context, const AttentionParams& params,
                      const AttentionOutputs& outputs) {
  if (!HasOutside(params)) return;
  ParallelFor(context, params.batch * params.heads, 16, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t head = begin; head < end; ++head) {
      const Sequence sequence = Sequence::Of(params, head / params.heads);
      const std::int64_t h = head % params.heads;
      ForEachRowOutside(sequence.q, params.q_len, [&](std::int64_t row) {
        ClearRow(outputs.out, sequence.array_batch, h, row, params.value_dim);
        const std::int64_t index = RowIndex(params, sequence, h, row);
        if (outputs.tau != nullptr) outputs.tau[index] = -__builtin_inf();
        if (outputs.support_size != nullptr) outputs.support_size[index] = 0;
        if (outputs.entropy != nullptr) outputs.entropy[index] = 0.0;
        if (outputs.maximum != nullptr) outputs.maximum[index] = -__builtin_inf();
      });
    }
  });
}

void ClearGradientsOutside(const Context& context, const AttentionParams& params,
                           const AttentionGradients& gradients) {
  if (!HasOutside(params)) return;
  const auto clear = [&](const MutableArray4& array, std::int64_t b, std::int64_t h,
                         const Span& inside, std::int64_t length, std::int64_t columns) {
    if (array.data == nullptr) return;
    ForEachRowOutside(inside, length,
                      [&](std::int64_t row) { ClearRow(array, b, h, row, columns); });
  };
  const std::int64_t group = params.heads / params.kv_heads;
  ParallelFor(context, params.batch * params.kv_heads, 16,
              [&](std::int64_t begin, std::int64_t end) {
                for (std::int64_t key_head = begin; key_head < end; ++key_head) {
                  const Sequence sequence = Sequence::Of(params, key_head / params.kv_heads);
                  const std::int64_t b = sequence.batch, kv = key_head % params.kv_heads;
                  clear(gradients.dk, b, kv, sequence.k, params.k_len, params.head_dim);
                  clear(gradients.dv, b, kv, sequence.k, params.k_len, params.value_dim);
                  for (std::int64_t h = kv * group; h < (kv + 1) * group; ++h) {
                    clear(gradients.dq, b, h, sequence.q, params.q_len, params.head_dim);
                    if (gradients.d_length_scale == nullptr) continue;
                    ForEachRowOutside(sequence.q, params.q_len, [&](std::int64_t row) {
                      gradients.d_length_scale[RowIndex(params, sequence, h, row)] = 0.0;
                    });
                  }
                }
              });
}

// ---- what rows and heads share ------------------------------------------------------------------

// Sets the bias's gradient to 0, every element once (it has one element along an axis of stride 0).
void ClearBiasGradient(const AttentionParams& params, const MutableArray4& bias) {
  if (bias.data == nullptr) return;
  const std::int64_t* s = bias.strides;
  const std::int64_t sizes[4] = {s[0] == 0 ? 1 : ArrayBatch(params), s[1] == 0 ? 1 : params.heads,
                                 s[2] == 0 ? 1 : params.q_len, s[3] == 0 ? 1 : params.k_len};
  if (params.batch * params.heads * params.q_len * params.k_len == 0) return;
  for (std::int64_t b = 0; b < sizes[0]; ++b) {
    for (std::int64_t h = 0; h < sizes[1]; ++h) {
      for (std::int64_t i = 0; i < sizes[2]; ++i) {
        for (std::int64_t j = 0; j < sizes[3]; ++j) {
          StoreElement(bias.data, bias.dtype, Offset(bias.strides, b, h, i, j), 0.0);
        }
      }
    }
  }
}

// Adds the sums of heads up to the gradients in alpha, sink and slopes. heads: [batch heads]
void AddHeads(const AttentionParams& params, const std::vector<HeadSums>& heads,
              const AttentionGradients& gradients) {
  const std::int64_t count = params.heads;
  if (gradients.d_alpha != nullptr) std::fill_n(gradients.d_alpha, count, 0.0);
  if (gradients.d_sink != nullptr) std::fill_n(gradients.d_sink, count, 0.0);
  if (gradients.d_slopes != nullptr) {
    std::fill_n(gradients.d_slopes, ArrayBatch(params) * count, 0.0);
  }
  for (std::int64_t i = 0; i < params.batch * count; ++i) {
    const HeadSums& sums = heads[static_cast<std::size_t>(i)];
    if (gradients.d_alpha != nullptr) gradients.d_alpha[i % count] += sums.d_alpha;
    if (gradients.d_sink != nullptr) gradients.d_sink[i % count] += sums.d_sink;
    // Packed sequences share one set of slopes.
    if (gradients.d_slopes != nullptr) {
      gradients.d_slopes[params.ranges.packed ? i % count : i] += sums.d_slope;
    }
  }
}

}  // namespace

const AttentionKernel& ChooseKernel(const AttentionParams& params, Pass pass, std::string* why) {
  return Choose(params, FeaturesOf(params), pass, why);
}

void RunForward(KernelList kernels, const Context& context, const AttentionParams& params,
                const AttentionOutputs& outputs) {
  ClearRowsOutside(context, params, outputs);
  Walk(kernels, params, FeaturesOf(params), Pass::kForward, AllRows(params),
       [&](const AttentionKernel& kernel, const std::vector<RowBlock>& rows,
           std::vector<RowBlock>* remaining) {
         kernel.forward(context, params, outputs, rows, remaining);
         return true;
       });
}

void RunBackward(KernelList kernels, const Context& context, const AttentionParams& params,
                 const AttentionGradients& gradients) {
  ClearGradientsOutside(context, params, gradients);
  ClearBiasGradient(params, gradients.d_bias);
  std::vector<HeadSums> heads(static_cast<std::size_t>(params.batch * params.heads));
  Walk(kernels, params, FeaturesOf(params, gradients), Pass::kBackward, AllKeyHeads(params),
       [&](const AttentionKernel& kernel, const std::vector<KeyHead>& key_heads,
           std::vector<KeyHead>* remaining) {
         kernel.backward(context, params, gradients, key_heads, heads.data(), remaining);
         const std::int64_t group = params.heads / params.kv_heads;
         for (const KeyHead& key_head : *remaining) {
           std::fill_n(heads.begin() + key_head.b * params.heads + key_head.kv * group, group,
                       HeadSums());
         }
         return true;
       });
  AddHeads(params, heads, gradients);
}

void RunForward(const Context& context, const AttentionParams& params,
                const AttentionOutputs& outputs) {
  RunForward(KernelsFrom(ChooseKernel(params, Pass::kForward, nullptr)), context, params, outputs);
}

void AttentionForward(const Context& context, const AttentionParams& params,
                      const AttentionOutputs& outputs) {
  if (context.device == DeviceKind::kCuda) {
    cuda::Forward(context, params, outputs);
    return;
  }
  CheckAttention(params);
  CheckOutputs(params, outputs);
  // Memory without lists must not look as if it had some of an earlier call.
  if (outputs.saved_bytes >= 64) std::memset(outputs.saved, 0, 64);
  RunForward(context, params, outputs);
}

void AttentionBackward(const Context& context, const AttentionParams& params,
                       const AttentionGradients& gradients) {
  if (context.device == DeviceKind::kCuda) {
    cuda::Backward(context, params, gradients);
    return;
  }
  CheckAttention(params);
  CheckGradients(params, gradients);
  const AttentionKernel& kernel =
      Choose(params, FeaturesOf(params, gradients), Pass::kBackward, nullptr);
  RunBackward(KernelsFrom(kernel), context, params, gradients);
}

std::size_t AttentionSavedBytes(const Context& context, const AttentionParams& params,
                                std::size_t budget) {
  if (context.device == DeviceKind::kCuda) return std::min(budget, cuda::SavedBytes(params));
  CheckAttention(params);
  const AttentionKernel& kernel = ChooseKernel(params, Pass::kBackward, nullptr);
  return kernel.saved_bytes == nullptr ? 0 : std::min(budget, kernel.saved_bytes(params));
}

namespace {

// The kernel that runs, and those that take what the one before leaves.
std::vector<const AttentionKernel*> Chain(const AttentionParams& params, Pass pass,
                                          std::string* why) {
  const Features asked = FeaturesOf(params);
  const KernelList kernels = KernelsFrom(Choose(params, asked, pass, why));
  std::vector<const AttentionKernel*> chain = {kernels.front()};
  for (const AttentionKernel* kernel : kernels.subspan(1)) {
    if (chain.back()->leaves == nullptr) break;
    if (Reason(*kernel, params, asked, pass, /*remaining=*/true).empty()) chain.push_back(kernel);
  }
  return chain;
}

}  // namespace

std::size_t RunBytes(const Context& context, const AttentionParams& params, Pass pass) {
  std::size_t bytes = 0;
  for (const AttentionKernel* kernel : Chain(params, pass, nullptr)) {
    bytes = std::max(bytes, kernel->workspace_bytes(context, params, pass == Pass::kBackward));
  }
  // Lists of work, in pieces of 32 rows and in memory that grows by doubling.
  const auto heads = static_cast<std::size_t>(params.batch * params.heads);
  const auto pieces = static_cast<std::size_t>(params.q_len / 32 + 2);
  return bytes + heads * (4 * pieces * sizeof(RowBlock) + sizeof(HeadSums));
}

std::size_t AttentionWorkspaceBytes(const Context& context, const AttentionParams& params,
                                    bool backward) {
  if (context.device == DeviceKind::kCuda) return cuda::WorkspaceBytes(params, backward);
  CheckAttention(params);
  return RunBytes(context, params, backward ? Pass::kBackward : Pass::kForward);
}

std::vector<AttentionKernelInfo> AttentionKernels() {
  std::vector<AttentionKernelInfo> infos;
  for (const AttentionKernel* kernel : AllAttentionKernels()) {
    const std::string set = kernel->instruction_set();
    infos.push_back({kernel->name, set, !set.empty(), kernel->summary});
  }
  return infos;
}

AttentionChoice ChooseAttentionKernel(const AttentionParams& params) {
  CheckAttention(params);
  AttentionChoice choice;
  const std::vector<const AttentionKernel*> chain = Chain(params, Pass::kForward, &choice.reason);
  for (std::size_t i = 0; i + 1 < chain.size(); ++i) {
    choice.reason += std::string("; ") + chain[i]->leaves + ": " + chain[i + 1]->name;
    choice.leftovers.emplace_back(chain[i + 1]->name);
  }
  choice.forward = chain.front()->name;
  choice.backward = ChooseKernel(params, Pass::kBackward, nullptr).name;
  return choice;
}

void WeightReceiver::Put(std::int64_t row, std::int64_t first, const std::uint32_t* keys,
                         const float* p, std::size_t n) const {
  if (counts != nullptr) {
    counts[row] = static_cast<std::int64_t>(n);
    return;
  }
  const std::int64_t at = row_offsets[row], room = row_offsets[row + 1] - at;
  if (room != static_cast<std::int64_t>(n)) {
    throw InvalidArgument("row_offsets",
                          std::to_string(n) + " entries in row " + std::to_string(row),
                          std::to_string(room));
  }
  for (std::size_t i = 0; i < n; ++i) {
    columns[at + static_cast<std::int64_t>(i)] = first + keys[i];
    values[at + static_cast<std::int64_t>(i)] = p[i];
  }
}

namespace {

void RunWeights(const Context& context, const AttentionParams& params,
                const WeightReceiver& receiver) {
  const AttentionKernel& first = ChooseKernel(params, Pass::kForward, nullptr);
  Walk(KernelsFrom(first), params, FeaturesOf(params), Pass::kForward, AllRows(params),
       [&](const AttentionKernel& kernel, const std::vector<RowBlock>& rows,
           std::vector<RowBlock>* remaining) {
         if (kernel.weights == nullptr) return false;
         kernel.weights(context, params, receiver, rows, remaining);
         return true;
       });
}

}  // namespace

void AttentionWeightCounts(const Context& context, const AttentionParams& params,
                           std::int64_t* counts) {
  if (context.device == DeviceKind::kCuda) {
    cuda::WeightCounts(context, params, counts);
    return;
  }
  CheckAttention(params);
  CheckWeightCounts(params, counts);
  const std::int64_t rows = ArrayBatch(params) * params.heads * params.q_len;
  std::fill_n(counts, rows, std::int64_t{0});  // rows of no sequence
  RunWeights(context, params, {.counts = counts});
}

void AttentionWeights(const Context& context, const AttentionParams& params,
                      const std::int64_t* row_offsets, std::int64_t* columns, float* values) {
  if (context.device == DeviceKind::kCuda) {
    cuda::Weights(context, params, row_offsets, columns, values);
    return;
  }
  CheckAttention(params);
  CheckWeights(params, row_offsets, columns, values);
  RunWeights(context, params, {.row_offsets = row_offsets, .columns = columns, .values = values});
}

}  // namespace tsallis
