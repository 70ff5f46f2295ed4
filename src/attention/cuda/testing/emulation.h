// For tests: the passes of the CUDA kernels on the emulation, with arrays of the host.
#pragma once

#include <algorithm>
#include <cstddef>

#include "attention/cuda/testing/emulated_runs.h"
#include "attention/cuda/testing/on_device.h"
#include "attention/cuda/testing/paged.h"
#include "tsallis/attention.h"

namespace tsallis::cuda {

// run.operator()<Type>() for the type of a call's arrays, which is served.
template <class Run>
auto ForType(const AttentionParams& params, const Run& run) {
  if (params.q.dtype == DType::kFloat32) return run.template operator()<Float32>();
  if (params.q.dtype == DType::kFloat16) return run.template operator()<Float16>();
  return run.template operator()<BFloat16>();
}

// Compute AttentionForward and AttentionBackward; throw simt::Fault for a kernel's mistakes.
inline void EmulatedForward(const Context& context, const AttentionParams& params,
                            const AttentionOutputs& outputs) {
  OnDevice<Emulation> device;
  const AttentionParams there = device.Params(params);
  const AttentionOutputs results = device.Outputs(params, outputs);
  ForType(params, [&]<class Type>() { RunForward<Type>(context, there, results); });
  device.CopyBack();
}
inline void EmulatedBackward(const Context& context, const AttentionParams& params,
                             const AttentionGradients& gradients) {
  OnDevice<Emulation> device;
  const AttentionParams there = device.Params(params);
  const AttentionGradients results = device.Gradients(params, gradients);
  ForType(params, [&]<class Type>() { RunBackward<Type>(context, there, results); });
  device.CopyBack();
}

// Returns AttentionSavedBytes.
inline std::size_t EmulatedSavedBytes(const AttentionParams& params, std::size_t budget) {
  return std::min(budget,
                  ForType(params, [&]<class Type>() { return RunSavedBytes<Type>(params); }));
}

// Computes AttentionOnPages.
inline void EmulatedOnPages(const Context& context, const AttentionParams& params,
                            const AttentionPages& pages, const AttentionOutputs& outputs) {
  OnDevice<Emulation> device;
  const AttentionPages pages_there = PagesOn(device, params, pages);
  const AttentionParams there = CheckedOnPages(QueriesOn(device, params), pages_there);
  const AttentionOutputs results = device.Outputs(params, outputs);
  ForType(params, [&]<class Type>() { RunOnPages<Type>(context, there, pages_there, results); });
  device.CopyBack();
}

// Compute AttentionWeightCounts and AttentionWeights, for `entries` entries.
inline void EmulatedWeightCounts(const AttentionParams& params, std::int64_t* counts) {
  CountWeights<Emulation>(params, counts, [&](const auto&... there) {
    ForType(params, [&]<class Type>() { RunWeightCounts<Type>({}, there...); });
  });
}
inline void EmulatedWeights(const AttentionParams& params, const std::int64_t* row_offsets,
                            std::int64_t entries, std::int64_t* columns, float* values) {
  PutWeights<Emulation>(params, row_offsets, entries, columns, values, [&](const auto&... there) {
    ForType(params, [&]<class Type>() { RunWeights<Type>({}, there...); });
  });
}

}  // namespace tsallis::cuda
