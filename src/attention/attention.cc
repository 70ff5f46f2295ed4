// Entry points: check, choose, run.
#include "tsallis/attention.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "attention/check.h"
#include "attention/cpu/dense.h"
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
      &kLanesAttention, &kSweepAmx,       &kSweepBf16,
      &kSweepFloat,     &kDenseAttention, &kReferenceAttention};
  return kernels;
}

const AttentionKernel& ChooseKernel(const AttentionParams& params, std::string* why) {
  for (const AttentionKernel* kernel : AllAttentionKernels()) {
    std::string refusal = kernel->refuses(params);
    if (refusal.empty() && kernel->declines != nullptr) refusal = kernel->declines(params);
    if (refusal.empty() && kernel->instruction_set().empty()) refusal = "not on this machine";
    if (refusal.empty()) {
      if (why != nullptr) *why += std::string(kernel->name) + ": " + kernel->serves;
      return *kernel;
    }
    if (why != nullptr) *why += std::string("not ") + kernel->name + ": " + refusal + "; ";
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
    .saved_bytes = nullptr,
    .workspace_bytes =
        [](const Context& context, const AttentionParams& params, bool backward) {
          const auto threads = static_cast<std::size_t>(Threads(context));
          const auto row = static_cast<std::size_t>(params.k_len) * 7 * sizeof(double);
          const auto sums = static_cast<std::size_t>(params.k_len) *
                            static_cast<std::size_t>(params.head_dim + params.value_dim) *
                            sizeof(double);
          return threads * (row + (backward ? sums : 0));
        }};

void AttentionWeights(const Context& context, const AttentionParams& params, const double* tau,
                      const std::int64_t* row_offsets, std::int64_t* columns, float* values) {
  CheckAttention(params);
  const std::int64_t rows = ArrayBatch(params) * params.heads * params.q_len;
  if (rows > 0 && tau == nullptr) throw InvalidArgument("tau", "the forward pass's", "null");
  if (rows > 0 && row_offsets == nullptr) throw InvalidArgument("row_offsets", "data", "null");
  ParallelFor(context, params.batch * params.heads, 1, [&](std::int64_t begin, std::int64_t end) {
    ReferenceRow row;
    for (std::int64_t problem = begin; problem < end; ++problem) {
      const Sequence sequence = Sequence::Of(params, problem / params.heads);
      const std::int64_t h = problem % params.heads;
      for (std::int64_t q_row = sequence.q.begin; q_row < sequence.q.end; ++q_row) {
        const std::int64_t index = RowIndex(params, sequence, h, q_row);
        std::int64_t at = row_offsets[index];
        row.Compute(params, sequence, h, q_row);
        // A row of NaN has no support to list.
        const std::int64_t support = std::max<std::int64_t>(row.result.support_size, 0);
        if (row_offsets[index + 1] - at != support) {
          throw InvalidArgument(
              "row_offsets", std::to_string(support) + " entries in row " + std::to_string(index),
              std::to_string(row_offsets[index + 1] - at));
        }
        for (std::int64_t j = 0; support > 0 && j < row.keys.size(); ++j) {
          if (!(row.p[j] > 0.0)) continue;
          columns[at] = row.keys.begin + j;
          values[at++] = static_cast<float>(row.p[j]);
        }
      }
    }
  });
}

}  // namespace tsallis
