// From a call of rows.h to launches. Arguments are checked; arrays are the device's.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "core/cuda/runtime.h"
#include "simplex/cuda/kernels.h"
#include "simplex/cuda/other_maps.h"
#include "simplex/map.h"
#include "tsallis/rows.h"

namespace tsallis::cuda {
inline namespace TSALLIS_SIDE {

// Longer rows are a block's, and those that are longer still are read again for every sum.
inline constexpr std::int64_t kMostOfWarp = 512, kMostInRegisters = 4096;

inline MapNumbers NumbersOf(const RowMapParams& params) {
  MapNumbers numbers;
  numbers.map = params.map;
  numbers.alpha = params.alpha;
  numbers.temperature = params.temperature;
  numbers.budget = params.budget;
  numbers.coefficient_count = static_cast<int>(params.adaptive.coefficients.size());
  std::copy(params.adaptive.coefficients.begin(), params.adaptive.coefficients.end(),
            numbers.coefficients);
  numbers.entropy_threshold = params.adaptive.threshold;
  numbers.top_k = params.top_k.k;
  numbers.top_fraction = params.top_k.fraction;
  // It is a number or a multiple of ln n: two n tell which.
  numbers.bias = SigmoidBias(params, 1);
  numbers.bias_of_log = (SigmoidBias(params, 2) - numbers.bias) / std::log(2.0);
  numbers.alpha_per_row = params.alpha_per_row;
  return numbers;
}

template <class Element>
Strided<const Element> Of(const ConstRows& rows) {
  return {static_cast<const Element*>(rows.data), rows.row_stride, rows.stride};
}
template <class Element>
Strided<Element> Of(const MutableRows& rows) {
  return {static_cast<Element*>(rows.data), rows.row_stride, rows.stride};
}

inline bool IsOther(RowMap map) {
  return map != RowMap::kSoftmax && map != RowMap::kEntmax && map != RowMap::kNormmax;
}

// Whether float32 looks for the threshold, by a power that is 1 or 2.
template <class Type>
bool IsPlain(const RowMapParams& params) {
  if (sizeof(typename Type::Element) == 8 || params.alpha_per_row != nullptr) return false;
  const bool softmax = params.map == RowMap::kSoftmax;
  if (!softmax && params.map != RowMap::kEntmax) return false;
  const double alpha = softmax ? 1.0 : params.alpha;
  const double scale = (alpha == 1.0 ? 1.0 : alpha - 1.0) / params.temperature;
  return (alpha == 1.0 || alpha == 1.5 || alpha == 2.0) && scale > 1e-30 && scale < 1e30;
}

template <class Way, class Call>
void LaunchRows(const Stream& stream, const char* name, void (*kernel)(Call), const Call& call) {
  const std::int64_t blocks = (call.rows + Way::kRowsOfBlock - 1) / Way::kRowsOfBlock;
  stream.Launch(name, kernel, {.x = static_cast<int>(blocks)}, Way::kBlockThreads,
                Way::kThreads == kWarp ? 0 : kTeamBytes, call);
}

// launch.operator()<Way>() for the way of a row's length.
template <class Launch>
void ForLength(std::int64_t length, const Launch& launch) {
  if (length <= kMostOfWarp) return launch.template operator()<WarpRows>();
  if (length <= kMostInRegisters) return launch.template operator()<BlockRows>();
  launch.template operator()<LongRows>();
}
template <class Launch>
void ForLengthOfDoubles(std::int64_t length, const Launch& launch) {
  if (length <= kMostOfWarp) return launch.template operator()<WarpPasses>();
  launch.template operator()<LongRows>();
}

template <class Call>
Call CallOf(const RowMapParams& params, const ConstRows& scores) {
  Call call;
  call.numbers = NumbersOf(params);
  call.rows = scores.rows;
  call.length = static_cast<int>(scores.length);
  call.scores = Of<typename Call::Element>(scores);
  return call;
}

template <class Type>
void RunRowsForward(const Context& context, const RowMapParams& params, const ConstRows& scores,
                    const MutableRows& probabilities, const RowStats& stats) {
  using Element = typename Type::Element;
  const Stream stream(context);
  auto call = CallOf<RowsCall<Type>>(params, scores);
  call.out = Of<Element>(probabilities);
  call.tau = stats.tau;
  call.support_size = stats.support_size;
  call.entropy = stats.entropy;
  if (IsOther(params.map)) {
    return LaunchRows<LongRows>(stream, "OtherMapsKernel", OtherMapsKernel<Type>, call);
  }
  if constexpr (sizeof(Element) < 8) {
    if (IsPlain<Type>(params)) {
      return ForLength(scores.length, [&]<class Way>() {
        LaunchRows<Way>(stream, "RowsKernel", RowsKernel<Type, Way, true>, call);
      });
    }
  }
  ForLengthOfDoubles(scores.length, [&]<class Way>() {
    LaunchRows<Way>(stream, "RowsKernel", RowsKernel<Type, Way, false>, call);
  });
}

template <class Type>
void RunRowsBackward(const Context& context, const RowMapParams& params, const ConstRows& scores,
                     const ConstRows& probabilities, const ConstRows& d_probabilities,
                     const MutableRows& d_scores, double* d_alpha) {
  using Element = typename Type::Element;
  const Stream stream(context);
  auto call = CallOf<RowsCall<Type>>(params, scores);
  call.probabilities = Of<Element>(probabilities);
  call.d_probabilities = Of<Element>(d_probabilities);
  call.out = Of<Element>(d_scores);
  call.d_alpha = d_alpha;
  call.recompute = sizeof(Element) == 2 && BackwardReadsScores(params, scores.dtype);
  if (IsOther(params.map)) {
    return LaunchRows<LongRows>(stream, "OtherGradientsKernel", OtherGradientsKernel<Type>, call);
  }
  if constexpr (sizeof(Element) < 8) {
    if (IsPlain<Type>(params) && d_alpha == nullptr) {
      return ForLength(scores.length, [&]<class Way>() {
        LaunchRows<Way>(stream, "PlainGradientKernel", PlainGradientKernel<Type, Way>, call);
      });
    }
  }
  ForLengthOfDoubles(scores.length, [&]<class Way>() {
    LaunchRows<Way>(stream, "ExactGradientKernel", ExactGradientKernel<Type, Way>, call);
  });
}

template <class Type>
void RunFenchelYoungLoss(const Context& context, const RowMapParams& params,
                         const ConstRows& scores, const std::int64_t* targets,
                         std::int64_t ignore_index, double* losses, const MutableRows& d_scores) {
  const Stream stream(context);
  auto call = CallOf<LossCall<Type>>(params, scores);
  call.targets = targets;
  call.ignore_index = ignore_index;
  call.losses = losses;
  call.d_scores = Of<RealOf<Type>>(d_scores);
  if constexpr (sizeof(typename Type::Element) < 8) {
    if (IsPlain<Type>(params)) {
      return LaunchRows<LongRows>(stream, "LossKernel", LossKernel<Type, true>, call);
    }
  }
  LaunchRows<LongRows>(stream, "LossKernel", LossKernel<Type, false>, call);
}

}  // namespace TSALLIS_SIDE

}  // namespace tsallis::cuda
