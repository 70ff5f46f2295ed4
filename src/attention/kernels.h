// What a kernel is to the drivers (attention.cc), and the one list of kernels: dispatch, tests and
// `tsallis info --kernels` read it. docs/adding-a-kernel.md walks through it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tsallis/attention.h"

namespace tsallis {

// What is wanted of the rows' supports: their sizes, or themselves.
struct WeightSink {
  std::int64_t* counts = nullptr;  // then nothing else
  const std::int64_t* row_offsets = nullptr;
  std::int64_t* columns = nullptr;
  float* values = nullptr;

  // The support of one row of the statistics: keys ascend and count from `first` on k's axis.
  // Throws InvalidArgument if n is not what row_offsets say.
  void Put(std::int64_t row, std::int64_t first, const std::uint32_t* keys, const float* p,
           std::size_t n) const;
};

struct AttentionKernel {
  const char* name;
  const char* serves;  // one line for people
  // Instruction set it would run on here; empty if this machine has none for it.
  std::string (*instruction_set)();
  // Empty if it can serve these params; else why not, in a few words.
  std::string (*refuses)(const AttentionParams& params);
  // Empty if it is the best so far for what it can serve; else why a later kernel of the list is
  // better. Null: it always is.
  std::string (*declines)(const AttentionParams& params);
  // Arguments are checked. Packed output rows outside all ranges are not touched.
  void (*forward)(const Context& context, const AttentionParams& params,
                  const AttentionOutputs& outputs);
  void (*backward)(const Context& context, const AttentionParams& params,
                   const AttentionGradients& gradients);
  // The supports of every row; null: a later kernel's.
  void (*weights)(const Context& context, const AttentionParams& params, const WeightSink& sink);
  // Bytes of lists that the backward pass can use; null: none.
  std::size_t (*saved_bytes)(const AttentionParams& params);
  // Bytes a call allocates at most.
  std::size_t (*workspace_bytes)(const Context& context, const AttentionParams& params,
                                 bool backward);
};

// Best first; the last one serves everything.
const std::vector<const AttentionKernel*>& AllAttentionKernels();

// The first that is usable here and neither refuses nor declines. `why` (may be null) collects the
// reasons.
const AttentionKernel& ChooseKernel(const AttentionParams& params, std::string* why);

// Runs one kernel by name whatever dispatch would choose; for tests and benchmarks. Null: no such
// kernel, or not usable here.
const AttentionKernel* FindKernel(const std::string& name);

extern const AttentionKernel kLanesAttention;
extern const AttentionKernel kSweepAmx;
extern const AttentionKernel kSweepInt8;
extern const AttentionKernel kSweepInt7;
extern const AttentionKernel kSweepFloat;
extern const AttentionKernel kReferenceAttention;

}  // namespace tsallis
