// Fused attention (docs/definitions.md, A1-A9): outputs and gradients of map(scores) v without ever
// storing the [q_len, k_len] weights.
//
// For query i and key j of one sequence, at positions i and j counted from its start (queries are
// aligned with the end of the keys, see Alignment), with d = |i - j|:
//
//   s_ij = m_d + a_d (c_i scale <q_i, k_j>) - slope d + bias_ij        for visible j, else -inf
//   a_d^2 = 2 [ln(d / l + 1) - ln A + B / A], m_d = B / A - a_d^2    (P7, P8; 1 and 0 without)
//   p_i = map(s_i), out_i = sum_j p_ij v_j
//
// slope is ALiBi's (P5: slope (j - i) for keys before the query; symmetric after it, as in
// FlashAttention), c_i the length scaling (L0-L4). Maps and their notation: rows.h.
// Stick-breaking goes backwards from the query and leaves out the key at its own position: it needs
// a causal mask, whose rule is j < i then.
//
// Edges: a query that sees no key, or only scores of -inf, has output 0, gradients 0, tau -inf and
// support 0, even if it has a sink. NaN or +inf among a query's visible scores gives NaN in that
// query's output (and in the gradients it reaches), nowhere else. Keys that are not visible may
// hold anything. Where |v| k_len exceeds 3.4e38, float32's largest number, an output may overflow:
// some kernels multiply values with softmax's weights before these are divided by their sum, which
// is up to k_len. (PyTorch's SDPA overflows on such values too.)
//
// With a context of a CUDA device (types.h) every pointer is to that device's memory, except
// alpha_per_head, which the host reads. A call that the CUDA kernels do not serve throws
// InvalidArgument, which names the reason (docs/guide/cuda.md). Contents of arrays on the device
// are not checked: a range beyond its axis is cut off there.
//
// Results do not depend on the number of threads, to the bit. Calls share only caches behind locks,
// which change no result, so any number of threads may call at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tsallis/rows.h"
#include "tsallis/types.h"

namespace tsallis {

// A [batch, heads, rows, columns] array of the caller. Strides count elements and may be anything
// for what is read; a stride of 0 repeats.
struct ConstArray4 {
  const void* data = nullptr;
  DType dtype = DType::kFloat32;
  std::int64_t strides[4] = {0, 0, 0, 1};
};
struct MutableArray4 {
  void* data = nullptr;
  DType dtype = DType::kFloat32;
  std::int64_t strides[4] = {0, 0, 0, 1};

  operator ConstArray4() const {
    return {data, dtype, {strides[0], strides[1], strides[2], strides[3]}};
  }
};

// Position of a sequence's first query if it has fewer or more queries than keys.
enum class Alignment : std::uint8_t {
  kEnd,    // the last query at the last key: position i + k_len - q_len (decoding, FlashAttention)
  kStart,  // the first query at the first key: position i (PyTorch's is_causal)
};

struct AttentionMask {
  bool causal = false;  // key j visible to query i: j <= i; j < i for kStickBreaking
  Alignment alignment = Alignment::kEnd;
  // Sliding window: i - left <= j <= i + right; negative: no limit on that side.
  std::int64_t left = -1;
  std::int64_t right = -1;
  // [batch, heads, q_len, k_len], nonzero = visible; null: all. Indices count along the axes of q
  // and k, also for ragged batches.
  const std::uint8_t* visible = nullptr;
  std::int64_t visible_strides[4] = {0, 0, 0, 1};
  // [batch, heads, ceil(q_len / block_q), ceil(k_len / block_k)], nonzero = visible; null: all.
  const std::uint8_t* blocks = nullptr;
  std::int64_t block_strides[4] = {0, 0, 0, 1};
  std::int64_t block_q = 0;
  std::int64_t block_k = 0;
};

// Sequences shorter than the arrays: sequence b holds rows [q_begin[b], q_end[b]) of the query axis
// and [k_begin[b], k_end[b]) of the key axis; null: all rows. Right padding is k_begin = 0, left
// padding k_end = k_len. Output rows outside the range are 0.
//
// `packed`: all sequences lie behind each other in one array; batch strides are ignored (also those
// of every other part), `batch` counts sequences, and only rows inside the ranges are written.
// All four arrays are needed then, and query ranges and key ranges each ascend without overlap.
struct AttentionRanges {
  const std::int64_t* q_begin = nullptr;
  const std::int64_t* q_end = nullptr;
  const std::int64_t* k_begin = nullptr;
  const std::int64_t* k_end = nullptr;
  bool packed = false;
};

struct AttentionTerms {
  double scale = 0.0;  // finite and > 0; 0: 1 / sqrt(head_dim)
  // c, by which queries are multiplied: [batch, heads, q_len, 1]; null: 1. A row with an infinite c
  // ends as its scores' limit or as NaN, whichever the order of operations gives.
  ConstArray4 length_scale;
  // x = c scale <q, k> becomes softcap tanh(x / softcap) before any other term (Gemma 2, 2024);
  // from 1e-6 to 1e6; 0: without.
  double softcap = 0.0;
  ConstArray4 alibi_slopes;      // [batch, heads, 1, 1]; null: 0. May be negative
  double scale_invariant = 0.0;  // l of P7, > 0; 0: without
  // A and B beside l: for normal scores before the term, a key at distance d has the expected
  // weight E[e^s] = A / (d / l + 1) and E[s e^s] = B / (d / l + 1) before they are divided by their
  // sum (Anson et al. 2025, eq. 12, 13 and 16). A from 1e-6 to 1e6, A ln A <= B <= 100 A. 0 stands
  // for e^(1/2). If both are 0, a_d^2 = 2 ln(d / l + 1) + 1: scores at distance 0 stay as they are.
  double scale_invariant_alpha = 0.0;
  double scale_invariant_beta = 0.0;
  ConstArray4 bias;  // [batch, heads, q_len, k_len]; null: 0. May hold -inf
  // [heads] or null: the score of one more key of every query, whose value is 0: it takes weight
  // from the others and does nothing else (a learned logit in softmax's denominator: gpt-oss,
  // OpenAI 2025). tau counts it; support_size, entropy, maximum and the weights as CSR do not.
  // Softmax and entmax only. -inf: none.
  const double* sink = nullptr;
};

struct KeyValuePages;  // of the library's own

// What attention takes beside its map.
struct AttentionArguments {
  // Sizes. heads is a multiple of kv_heads: query head h reads key head h / (heads / kv_heads).
  std::int64_t batch = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t q_len = 0;
  std::int64_t k_len = 0;
  std::int64_t head_dim = 0;   // 1 ... 512
  std::int64_t value_dim = 0;  // 1 ... 512
  // float32, bfloat16, float16 (float32 arithmetic) or float64 (the reference); all of one dtype.
  ConstArray4 q;  // [batch, heads, q_len, head_dim]
  ConstArray4 k;  // [batch, kv_heads, k_len, head_dim]
  ConstArray4 v;  // [batch, kv_heads, k_len, value_dim]

  const double* alpha_per_head = nullptr;  // [heads], in place of MapSetting::alpha

  AttentionMask mask;
  AttentionRanges ranges;
  AttentionTerms terms;
  // Whether AttentionBackward() follows a forward pass. Its kernel must round scores as the forward
  // kernel did, or else the weights of few queries lose digits.
  bool gradients = false;
  // Internal: keys and values in pages, in place of k and v. AttentionOnPages() (pages.h) and
  // Decode() (kv_cache.h) set it. Callers leave it null.
  const KeyValuePages* pages = nullptr;
};

// `map` is one of AttentionMaps().
struct AttentionParams : MapSetting, AttentionArguments {};

// The forward pass writes these. Everything but `out` is optional (null). The statistics are
// [batch, heads, q_len], without the batch axis if packed; their meaning is that of RowStats.
struct AttentionOutputs {
  MutableArray4 out;  // [batch, heads, q_len, value_dim], the dtype of q
  double* tau = nullptr;
  std::int64_t* support_size = nullptr;
  double* entropy = nullptr;
  double* maximum = nullptr;  // largest visible score; -inf without one
  // Memory for what spares the backward pass work: lists of entmax's supports, or softmax's outputs
  // in float32; contents are the library's. Any number of bytes, aligned to 64: what does not fit
  // is computed again, with the same bits. AttentionSavedBytes() says how much is useful. Same
  // params, same bytes in AttentionBackward.
  void* saved = nullptr;
  std::size_t saved_bytes = 0;
};

// The backward pass reads the first four and writes the rest.
struct AttentionGradients {
  ConstArray4 d_out;  // [batch, heads, q_len, value_dim], the dtype of q, any strides
  // From the forward pass of the same params: tau is needed, `saved` may be null.
  const double* tau = nullptr;
  const void* saved = nullptr;
  std::size_t saved_bytes = 0;
  // Any may be null: not wanted. dq, dk, dv have the dtype of q, and strides under which no two
  // elements share a place. Rows outside of all ranges get 0 unless packed.
  MutableArray4 dq, dk, dv;
  double* d_length_scale = nullptr;  // [batch, heads, q_len] (no batch axis if packed)
  double* d_alpha = nullptr;         // [heads]: kEntmax only
  double* d_slopes = nullptr;        // [batch, heads]; [heads] if packed
  double* d_sink = nullptr;          // [heads]
  // float32 or float64, with the bias's broadcasting: a stride of 0 sums over that axis.
  MutableArray4 d_bias;
};

// out = attention(q, k, v). Throws InvalidArgument, and DeviceError where a device fails.
void AttentionForward(const Context& context, const AttentionParams& params,
                      const AttentionOutputs& outputs);

// The vector-Jacobian product of AttentionForward. Throws as AttentionForward does.
void AttentionBackward(const Context& context, const AttentionParams& params,
                       const AttentionGradients& gradients);

// Bytes of AttentionOutputs::saved that hold the lists of almost every row of usual inputs, or
// every output of softmax, at most `budget`; 0 where the backward pass has no use for them.
std::size_t AttentionSavedBytes(const Context& context, const AttentionParams& params,
                                std::size_t budget);

// Bytes that one call allocates at most beside its arguments, for a given number of threads.
std::size_t AttentionWorkspaceBytes(const Context& context, const AttentionParams& params,
                                    bool backward);

// The weights p_ij > 0 of every row as CSR, for any length and without n^2 memory, in two calls:
// first the sizes of the rows, then, with room for their sum, the rows. A row of NaN has no entry.
// On a CUDA device both calls need at most the AttentionWorkspaceBytes() of a backward pass, and do
// not read v: pass k.
//   counts: [batch heads q_len] (no batch axis if packed)
void AttentionWeightCounts(const Context& context, const AttentionParams& params,
                           std::int64_t* counts);
// Columns and values of a row begin at its entry of row_offsets; columns ascend, along k's axis.
//   row_offsets: [batch heads q_len + 1], prefix sums of the counts
//   columns, values: [row_offsets.back()]
// Throws InvalidArgument if row_offsets disagree with the counts. On a CUDA device they are not
// checked: entries that have no room in their row are left out.
void AttentionWeights(const Context& context, const AttentionParams& params,
                      const std::int64_t* row_offsets, std::int64_t* columns, float* values);

// One kernel of the list that `tsallis info --kernels` prints.
struct AttentionKernelInfo {
  std::string name;
  std::string instruction_set;
  bool usable = false;  // on this machine
  std::string serves;   // one line: which maps, shapes and dtypes
};
std::vector<AttentionKernelInfo> AttentionKernels();

// The kernel that these params run on here, and why.
struct AttentionChoice {
  std::string forward;
  std::string backward;
  std::string reason;
  // Kernels that take, each in turn, the rows that the kernel before them leaves in the forward
  // pass: rows that keep many keys, for example.
  std::vector<std::string> leftovers;
};
AttentionChoice ChooseAttentionKernel(const AttentionParams& params);

}  // namespace tsallis
