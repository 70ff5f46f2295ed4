// The list of kernels of programs without those for CPUs: the reference alone.
#include "attention/kernels.h"
#include "attention/pages.h"

namespace tsallis {

KernelList AllAttentionKernels() {
  static const AttentionKernel* const kernels[] = {&kReferenceAttention};
  return kernels;
}

KernelList KernelsFrom(const AttentionKernel&) { return AllAttentionKernels(); }

void RunForwardOfSequences(const Context& context, const AttentionParams& call,
                           const decode::Screens&, const AttentionOutputs& outputs) {
  for (std::int64_t b = 0; b < call.batch; ++b) RunForwardOfSequence(context, call, outputs, b);
}

}  // namespace tsallis
