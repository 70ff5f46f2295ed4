// Row maps and their losses on NVIDIA's GPUs: what rows.cc calls for a context of such a device.
// Arguments are checked, but for sizes that the kernels have no room for. Throw InvalidArgument for
// those, or if the library was built without the kernels, and DeviceError if CUDA's runtime fails.
#pragma once

#include <cstdint>

#include "tsallis/rows.h"

namespace tsallis::cuda {

// Coefficients of adaptive temperature that a launch has room for.
inline constexpr int kMostCoefficients = 32;

void RowsForward(const Context& context, const RowMapParams& params, const ConstRows& scores,
                 const MutableRows& probabilities, const RowStats& stats);
void RowsBackward(const Context& context, const RowMapParams& params, const ConstRows& scores,
                  const ConstRows& probabilities, const ConstRows& d_probabilities,
                  const MutableRows& d_scores, double* d_alpha);
void FenchelYoungLoss(const Context& context, const RowMapParams& params, const ConstRows& scores,
                      const std::int64_t* targets, std::int64_t ignore_index, double* losses,
                      const MutableRows& d_scores);

// The calls of one dtype, as nvcc compiles them (launch_rows.cu).
struct RowLaunches {
  void (*forward)(const Context& context, const RowMapParams& params, const ConstRows& scores,
                  const MutableRows& probabilities, const RowStats& stats);
  void (*backward)(const Context& context, const RowMapParams& params, const ConstRows& scores,
                   const ConstRows& probabilities, const ConstRows& d_probabilities,
                   const MutableRows& d_scores, double* d_alpha);
  void (*loss)(const Context& context, const RowMapParams& params, const ConstRows& scores,
               const std::int64_t* targets, std::int64_t ignore_index, double* losses,
               const MutableRows& d_scores);
};
// In the order of DType. Defined where TSALLIS_HAS_CUDA is.
extern const RowLaunches kRowLaunches[4];

}  // namespace tsallis::cuda
