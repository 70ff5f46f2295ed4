// Describes a kernel to the driver (attention.cc), and declares the one list of kernels: dispatch,
// tests and `tsallis info --kernels` read it. docs/change/adding-a-kernel.md walks through it.
//
// Work comes as lists: blocks of query rows forward, key heads backward. The driver hands the first
// kernel that serves a call all of it; what that kernel leaves goes to the next one of the list,
// and so on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "attention/features.h"
#include "attention/geometry.h"
#include "tsallis/attention.h"

namespace tsallis {

// Query rows of query head h of sequence b. Rows lie inside the sequence's range.
struct RowBlock {
  std::int64_t b = 0, h = 0;
  Span q;
};

// All of a call, by sequences, then heads.
std::vector<RowBlock> AllRows(const AttentionParams& params);

// A key head with all its query heads: sequence b.
struct KeyHead {
  std::int64_t b = 0, kv = 0;
};

// Gradients that are sums over all rows of one query head of one sequence.
struct HeadSums {
  double d_alpha = 0.0, d_slope = 0.0, d_sink = 0.0;

  void Add(const HeadSums& other) {
    d_alpha += other.d_alpha;
    d_slope += other.d_slope;
    d_sink += other.d_sink;
  }
};

// Receives the supports of rows from a kernel: their sizes alone, or their columns and weights.
struct WeightReceiver {
  std::int64_t* counts = nullptr;  // [rows] sizes; if set, the other members are null
  const std::int64_t* row_offsets = nullptr;
  std::int64_t* columns = nullptr;
  float* values = nullptr;

  // The support of one row of the statistics: keys ascend and count from `first` on k's axis.
  // Throws InvalidArgument if n is not what row_offsets say.
  void Put(std::int64_t row, std::int64_t first, const std::uint32_t* keys, const float* p,
           std::size_t n) const;
};

// Arguments are checked. The driver clears what belongs to no sequence, and d_bias, which kernels
// add to. A list of work is sorted by (b, h) and row, or (b, kv).
struct AttentionKernel {
  const char* name;
  const char* summary;  // one line for people
  // Instruction set it would run on here; empty if this machine has none for it.
  std::string (*instruction_set)();
  Serves serves;
  // Why a later kernel of the list is better for these params; empty: none is. A null pointer: none
  // ever is. `remaining`: whether an earlier kernel has left this work.
  std::string (*declines)(const AttentionParams& params, bool remaining);
  // Names the work that it leaves to later kernels; null: nothing.
  const char* leaves;
  // Computes outputs and statistics of `rows`. Adds the rows that it leaves to `remaining`.
  void (*forward)(const Context& context, const AttentionParams& params,
                  const AttentionOutputs& outputs, const std::vector<RowBlock>& rows,
                  std::vector<RowBlock>* remaining);
  // dq, dk, dv and d_length_scale of `key_heads`; adds to d_bias. heads: [batch heads], 0 at the
  // call, receives the sums of the query heads of `key_heads`. The driver discards the sums of key
  // heads in `remaining`.
  void (*backward)(const Context& context, const AttentionParams& params,
                   const AttentionGradients& gradients, const std::vector<KeyHead>& key_heads,
                   HeadSums* heads, std::vector<KeyHead>* remaining);
  // The supports of `rows`; null: a later kernel finds them.
  void (*weights)(const Context& context, const AttentionParams& params,
                  const WeightReceiver& receiver, const std::vector<RowBlock>& rows,
                  std::vector<RowBlock>* remaining);
  // Bytes of AttentionOutputs::saved that the backward pass can use; null: none.
  std::size_t (*saved_bytes)(const AttentionParams& params);
  // Bytes a call allocates at most, without what its leftovers take.
  std::size_t (*workspace_bytes)(const Context& context, const AttentionParams& params,
                                 bool backward);
};

// Kernels in the order in which they are asked. The last one serves everything.
using KernelList = std::span<const AttentionKernel* const>;

// Best first.
KernelList AllAttentionKernels();
// The list from a kernel on: what it leaves goes to those behind it.
KernelList KernelsFrom(const AttentionKernel& kernel);

// The first that is usable here and neither refuses nor declines. `why` (may be null) collects the
// reasons.
const AttentionKernel& ChooseKernel(const AttentionParams& params, Pass pass, std::string* why);

// Runs a checked call on the kernels that serve it. RunBytes(): bytes that it allocates at most.
void RunForward(const Context& context, const AttentionParams& params,
                const AttentionOutputs& outputs);
std::size_t RunBytes(const Context& context, const AttentionParams& params, Pass pass);

// The passes on a given list, whose first kernel takes part whatever it declines.
void RunForward(KernelList kernels, const Context& context, const AttentionParams& params,
                const AttentionOutputs& outputs);
void RunBackward(KernelList kernels, const Context& context, const AttentionParams& params,
                 const AttentionGradients& gradients);

extern const AttentionKernel kDecodeAttention;
extern const AttentionKernel kLanesAttention;
extern const AttentionKernel kSweepAmx;
extern const AttentionKernel kSweepInt8;
extern const AttentionKernel kSweepInt7;
extern const AttentionKernel kSweepFloat;
extern const AttentionKernel kStreamAmx;
extern const AttentionKernel kStreamPairs;
extern const AttentionKernel kStreamFloat;
extern const AttentionKernel kDenseAttention;
extern const AttentionKernel kReferenceAttention;

}  // namespace tsallis
