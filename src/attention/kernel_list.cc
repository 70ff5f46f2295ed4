// The one list of kernels. In a file of its own, so that a program can link the driver and the
// reference alone (gpu/kernel_list.cc, for machines without Highway).
#include <algorithm>

#include "attention/kernels.h"

namespace tsallis {

KernelList AllAttentionKernels() {
  static const AttentionKernel* const kernels[] = {
      &kDecodeAttention, &kLanesAttention, &kSweepAmx,          &kSweepInt8,
      &kSweepInt7,       &kSweepFloat,     &kStreamAmx,         &kStreamPairs,
      &kStreamFloat,     &kDenseAttention, &kReferenceAttention};
  return kernels;
}

KernelList KernelsFrom(const AttentionKernel& kernel) {
  const KernelList all = AllAttentionKernels();
  const auto at = std::find(all.begin(), all.end(), &kernel);
  return all.subspan(static_cast<std::size_t>(at - all.begin()));
}

}  // namespace tsallis
