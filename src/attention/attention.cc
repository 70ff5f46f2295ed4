// Entry points: check, choose, run.
#include "tsallis/attention.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "attention/check.h"
#include "attention/cpu/dense.h"
#include "attention/cpu/stream.h"
#include "attention/geometry.h"
#include "attention/kernels.h"
#include "attention/reference.h"
#include "core/parallel.h"
#include "tsallis/error.h"

namespace tsallis {

void AttentionForward(const Context& context, const AttentionParams& params,
                      const AttentionOutputs& outputs) {
  CheckAttention(params);
  CheckOutputs(params, outputs);
  // Memory without lists must not look as if it had some of an earlier call.
  if (outputs.saved_bytes >= 64) std::memset(outputs.saved, 0, 64);
  ChooseKernel(params, nullptr).forward(context, params, outputs);
}

void AttentionBackward(const Context& context, const AttentionParams& params,
                       const AttentionGradients& gradients) {
  CheckAttention(params);
  CheckGradients(params, gradients);
  ChooseKernel(params, nullptr).backward(context, params, gradients);
}

std::size_t AttentionSavedBytes(const AttentionParams& params, std::size_t budget) {
  CheckAttention(params);
  const AttentionKernel& kernel = ChooseKernel(params, nullptr);
  return kernel.saved_bytes == nullptr ? 0 : std::min(budget, kernel.saved_bytes(params));
}

std::size_t AttentionWorkspaceBytes(const Context& context, const AttentionParams& params,
                                    bool backward) {
  CheckAttention(params);
  return ChooseKernel(params, nullptr).workspace_bytes(context, params, backward);
}

std::vector<AttentionKernelInfo> AttentionKernels() {
  std::vector<AttentionKernelInfo> infos;
  for (const AttentionKernel* kernel : AllAttentionKernels()) {
    const std::string set = kernel->instruction_set();
    infos.push_back({kernel->name, set, !set.empty(), kernel->serves});
  }
  return infos;
}

AttentionChoice ChooseAttentionKernel(const AttentionParams& params) {
  CheckAttention(params);
  AttentionChoice choice;
  const AttentionKernel& kernel = ChooseKernel(params, &choice.reason);
  choice.forward = choice.backward = kernel.name;
  return choice;
}

const std::vector<const AttentionKernel*>& AllAttentionKernels() {
  static const std::vector<const AttentionKernel*> kernels = {
      &kLanesAttention, &kSweepAmx,  &kSweepInt8,      &kSweepInt7,
      &kSweepFloat,     &kStreamAmx, &kDenseAttention, &kReferenceAttention};
  return kernels;
}

namespace {

// Why a kernel is not for these params; empty if it is.
std::string Reason(const AttentionKernel& kernel, const AttentionParams& params) {
  std::string reason = kernel.refuses(params);
  if (reason.empty() && kernel.declines != nullptr) reason = kernel.declines(params);
  if (reason.empty() && kernel.instruction_set().empty()) reason = "not on this machine";
  return reason;
}

}  // namespace

const AttentionKernel& ChooseKernel(const AttentionParams& params, std::string* why) {
  for (const AttentionKernel* kernel : AllAttentionKernels()) {
    const std::string reason = Reason(*kernel, params);
    if (reason.empty()) {
      if (why != nullptr) *why += std::string(kernel->name) + ": " + kernel->serves;
      return *kernel;
    }
    if (why != nullptr) *why += std::string("not ") + kernel->name + ": " + reason + "; ";
  }
  throw std::logic_error("the last attention kernel refused");
}

const AttentionKernel* FindKernel(const std::string& name) {
  for (const AttentionKernel* kernel : AllAttentionKernels()) {
    if (name == kernel->name && !kernel->instruction_set().empty()) return kernel;
  }
  return nullptr;
}

const AttentionKernel kReferenceAttention = {
    .name = "reference",
    .serves = "everything, in double precision one row at a time; float64",
    .instruction_set = [] { return std::string("portable"); },
    .refuses = [](const AttentionParams&) { return std::string(); },
    .declines = nullptr,
    .forward = ReferenceAttentionForward,
    .backward = ReferenceAttentionBackward,
    .weights = ReferenceAttentionWeights,
    .saved_bytes = nullptr,
    .workspace_bytes =
        [](const Context& context, const AttentionParams& params, bool backward) {
          const auto threads = static_cast<std::size_t>(Threads(context));
          const auto row = static_cast<std::size_t>(params.k_len + 1) * 7 * sizeof(double);
          const auto sums = static_cast<std::size_t>(params.k_len) *
                            static_cast<std::size_t>(params.head_dim + params.value_dim) *
                            sizeof(double);
          return threads * (row + (backward ? sums : 0));
        }};

void WeightSink::Put(std::int64_t row, std::int64_t first, const std::uint32_t* keys,
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

// The same kernel for both calls, so that they see the same supports.
void RunWeights(const Context& context, const AttentionParams& params, const WeightSink& sink) {
  for (const AttentionKernel* kernel : AllAttentionKernels()) {
    if (kernel->weights == nullptr || !Reason(*kernel, params).empty()) continue;
    kernel->weights(context, params, sink);
    return;
  }
}

}  // namespace

void AttentionWeightCounts(const Context& context, const AttentionParams& params,
                           std::int64_t* counts) {
  CheckAttention(params);
  const std::int64_t rows = ArrayBatch(params) * params.heads * params.q_len;
  if (rows > 0 && counts == nullptr) throw InvalidArgument("counts", "data", "null");
  std::fill_n(counts, rows, std::int64_t{0});  // rows of nobody
  RunWeights(context, params, {.counts = counts});
}

void AttentionWeights(const Context& context, const AttentionParams& params,
                      const std::int64_t* row_offsets, std::int64_t* columns, float* values) {
  CheckAttention(params);
  const std::int64_t rows = ArrayBatch(params) * params.heads * params.q_len;
  if (rows > 0 && row_offsets == nullptr) throw InvalidArgument("row_offsets", "data", "null");
  if (rows > 0 && row_offsets[rows] > row_offsets[0] && (columns == nullptr || values == nullptr)) {
    throw InvalidArgument(columns == nullptr ? "columns" : "values", "data", "null");
  }
  RunWeights(context, params, {.row_offsets = row_offsets, .columns = columns, .values = values});
}

}  // namespace tsallis
