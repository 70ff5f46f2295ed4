// The passes of attention on tensors: results become tensors, and so do gradients. Without
// autograd, which stands above (python/tsallis/_autograd.py, src/torch).
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "stable/arguments.h"
#include "stable/device.h"
#include "stable/tensor.h"

namespace tsallis::stable {

// Tensors that autograd may ask gradients for: q, k, v and the first settings of
// kAttentionSettings.
enum AttentionInput : std::uint8_t {
  kQ,
  kK,
  kV,
  kAlpha,
  kLengthScale,
  kSlopes,
  kBias,
  kSink,
  kInputs
};
using AttentionWanted = std::array<bool, kInputs>;

// Empty where not asked for. With packed sequences `batch` is 1.
struct AttentionResults {
  Tensor out;               // [batch, heads, q_len, value_dim]
  Tensor tau;               // [batch, heads, q_len], float64
  Tensor saved;             // [bytes], uint8
  Tensor support_size;      // [batch, heads, q_len], int64
  Tensor entropy, maximum;  // [batch, heads, q_len], float64
};

// Memory for what spares the backward pass work (AttentionOutputs::saved).
enum class Saves : std::int64_t {
  kNothing,
  kUseful,  // what the kernel that runs can use, within the budget
  // A size that shapes and settings alone tell, for tracing: room for 64 entries a row, several
  // times the usual support, or for softmax's output; within the budget. Memory without use is not
  // touched.
  kReserved,
};

struct AttentionRequest {
  bool tau = false;    // and `saved`, for gradients
  bool stats = false;  // tau as well
  Saves saves = Saves::kNothing;
};

// q: [batch, heads, q_len, head_dim]; k: [batch, kv_heads, k_len, head_dim]; v: [batch, kv_heads,
// k_len, value_dim]; heads is a multiple of kv_heads. `out` has q's dtype, and rows before heads in
// memory if q has them so. Throws InvalidArgument.
AttentionResults AttentionForward(const AttentionPasses& passes, const Tensor& q, const Tensor& k,
                                  const Tensor& v, AttentionArguments& arguments,
                                  const AttentionRequest& request);

// tau and saved: of the forward pass with the same arguments. dq, dk and dv are like q, k and v.
// The others are not yet summed over what their tensors repeat: float64 [heads], [batch, heads,
// q_len], [batch, heads] and [heads] for alpha, length scale, slopes and sink; float32 (float64 for
// a float64 bias) and the bias's own shape for the bias. Throws InvalidArgument.
std::array<Tensor, kInputs> AttentionBackward(const AttentionPasses& passes, const Tensor& d_out,
                                              const Tensor& q, const Tensor& k, const Tensor& v,
                                              const Tensor& tau, const Tensor& saved,
                                              AttentionArguments& arguments,
                                              const AttentionWanted& wanted);

// The weights > 0 as CSR with batch heads q_len rows. Synchronises with a device, since the number
// of entries must be counted first. Throws InvalidArgument.
struct AttentionWeightTensors {
  Tensor row_offsets, columns;  // int64 [rows + 1], [entries]
  Tensor values;                // float32 [entries]
};
AttentionWeightTensors AttentionWeights(const AttentionPasses& passes, const Tensor& q,
                                        const Tensor& k, AttentionArguments& arguments);

struct PagesCall {
  const Tensor& q;
  const Tensor &k_pages, &v_pages;  // [pages, page_size, kv_heads, head_dim or value_dim]
  const Tensor& block_table;        // int32 or int64 [batch, most pages of a sequence]
  // uint8 [pages, kv_heads, page_size / 64 ScreenBytes(head_dim) or more], or empty
  const Tensor& screen;
  const Tensor& out;  // receives the output; empty: a new tensor does
};

// Attention on keys and values in pages. arguments.lengths: [batch]. With arguments.cu_seqlens_q
// ([batch + 1]) the queries of all sequences lie behind each other, and q, out and the statistics
// have a batch axis of 1; rows of no sequence get 0 in a new output. Throws InvalidArgument.
AttentionResults AttentionOnPages(const AttentionPasses& passes, const PagesCall& call,
                                  AttentionArguments& arguments, bool want_stats);

// Writes tokens to their slots on pages, and the bytes to screen by. k, v: [tokens, kv_heads,
// head_dim or value_dim]; slots: int32 or int64 [tokens]. Throws InvalidArgument.
void PutOnPages(const Tensor& k, const Tensor& v, const Tensor& k_pages, const Tensor& v_pages,
                const Tensor& slots, const std::optional<Tensor>& screen);

// ---- what the passes share, on pages and elsewhere

// A result of `sizes` that keeps the order in which `like` has heads and rows in memory:
// projections are usually [batch, rows, heads, dim] seen as [batch, heads, rows, dim], and a result
// in that order is merged again without a copy. Zeroed where the kernel leaves elements unwritten.
Tensor Output(const std::array<std::int64_t, 4>& sizes, const Tensor& like, bool has_gaps);

// The tensor, or `copy` of it: a device's kernels load 16 bytes at once, and rows may not begin at
// multiples, as autograd's expanded gradients do not.
const Tensor& Readable(const Tensor& tensor, Reader reader, Tensor& copy);

// Statistics of rows, and where the kernel writes them. Kernels write those of every row that they
// write the output of.
void MakeStatistics(const AttentionArguments& arguments, const Device& device, bool has_gaps,
                    bool tau, bool stats, AttentionResults& results, AttentionOutputs& outputs);

}  // namespace tsallis::stable
