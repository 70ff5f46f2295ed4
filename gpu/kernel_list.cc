// The list of kernels of programs without those for CPUs: the reference alone.
#include "attention/kernels.h"

namespace tsallis {

KernelList AllAttentionKernels() {
  static const AttentionKernel* const kernels[] = {&kReferenceAttention};
  return kernels;
}

KernelList KernelsFrom(const AttentionKernel&) { return AllAttentionKernels(); }

}  // namespace tsallis
