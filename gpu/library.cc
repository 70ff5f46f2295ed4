// Attention and row maps on a device for the benchmark, which has no more than ctypes: plain data.
// bench.py has the same structs.
#include <cstdint>
#include <cstdio>
#include <exception>

#include "simplex/cuda/cuda.h"
#include "tsallis/attention.h"
#include "tsallis/pages.h"

extern "C" {

struct TsallisCall {
  std::int64_t backward, dtype, batch, heads, kv_heads, q_len, k_len, head_dim, causal, softmax;
  double alpha;
  // Contiguous: q, out, d_out, dq [batch, heads, q_len, head_dim]; k, v, dk, dv [batch, kv_heads,
  // k_len, head_dim]; tau, support_size [batch, heads, q_len], of which the latter may be null.
  void *q, *k, *v, *out, *tau, *support_size, *d_out, *dq, *dk, *dv;
  void* stream;
  void* workspace;
  std::int64_t workspace_bytes;
};

// 0, or 1 with what went wrong in `message`, [length]. workspace_bytes 0: the bytes that the call
// needs are written there, and nothing runs.
__attribute__((visibility("default"))) int tsallis_attention(TsallisCall* call, char* message,
                                                             std::int64_t length) {
  using namespace tsallis;
  try {
    const auto dtype = static_cast<DType>(call->dtype);
    const auto array = [&](void* data, std::int64_t heads, std::int64_t rows) {
      return MutableArray4{
          data, dtype, {heads * rows * call->head_dim, rows * call->head_dim, call->head_dim, 1}};
    };
    const auto constant = [&](void* data, std::int64_t heads, std::int64_t rows) {
      const MutableArray4 a = array(data, heads, rows);
      return ConstArray4{a.data, dtype, {a.strides[0], a.strides[1], a.strides[2], 1}};
    };
    AttentionParams params;
    params.batch = call->batch;
    params.heads = call->heads;
    params.kv_heads = call->kv_heads;
    params.q_len = call->q_len;
    params.k_len = call->k_len;
    params.head_dim = params.value_dim = call->head_dim;
    params.q = constant(call->q, call->heads, call->q_len);
    params.k = constant(call->k, call->kv_heads, call->k_len);
    params.v = constant(call->v, call->kv_heads, call->k_len);
    params.map = call->softmax != 0 ? RowMap::kSoftmax : RowMap::kEntmax;
    params.alpha = call->alpha;
    params.mask.causal = call->causal != 0;
    Context context;
    context.device = DeviceKind::kCuda;
    context.stream = call->stream;
    if (call->workspace_bytes == 0) {
      call->workspace_bytes =
          static_cast<std::int64_t>(AttentionWorkspaceBytes(context, params, call->backward != 0));
      return 0;
    }
    context.workspace = call->workspace;
    context.workspace_bytes = static_cast<std::size_t>(call->workspace_bytes);
    if (call->backward == 0) {
      AttentionOutputs outputs;
      outputs.out = array(call->out, call->heads, call->q_len);
      outputs.tau = static_cast<double*>(call->tau);
      outputs.support_size = static_cast<std::int64_t*>(call->support_size);
      AttentionForward(context, params, outputs);
    } else {
      AttentionGradients gradients;
      gradients.d_out = constant(call->d_out, call->heads, call->q_len);
      gradients.tau = static_cast<const double*>(call->tau);
      gradients.dq = array(call->dq, call->heads, call->q_len);
      gradients.dk = array(call->dk, call->kv_heads, call->k_len);
      gradients.dv = array(call->dv, call->kv_heads, call->k_len);
      AttentionBackward(context, params, gradients);
    }
    return 0;
  } catch (const std::exception& error) {
    std::snprintf(message, static_cast<std::size_t>(length), "%s", error.what());
    return 1;
  }
}

struct TsallisPagesCall {
  std::int64_t dtype, batch, heads, kv_heads, head_dim, softmax, pages, page_size, table_width;
  double alpha;
  // Contiguous: q, out [batch, heads, 1, head_dim]; k, v [pages, page_size, kv_heads, head_dim];
  // int32: table [batch, table_width], lengths [batch].
  void *q, *k, *v, *table, *lengths, *out;
  void* stream;
  void* workspace;
  std::int64_t workspace_bytes;
};

// Does the same for keys and values in pages.
__attribute__((visibility("default"))) int tsallis_attention_on_pages(TsallisPagesCall* call,
                                                                      char* message,
                                                                      std::int64_t length) {
  using namespace tsallis;
  try {
    const auto dtype = static_cast<DType>(call->dtype);
    const std::int64_t d = call->head_dim, row = call->kv_heads * d;
    AttentionParams params;
    params.batch = call->batch;
    params.heads = call->heads;
    params.kv_heads = call->kv_heads;
    params.q_len = 1;
    params.head_dim = params.value_dim = d;
    params.q = {call->q, dtype, {call->heads * d, d, d, 1}};
    params.map = call->softmax != 0 ? RowMap::kSoftmax : RowMap::kEntmax;
    params.alpha = call->alpha;
    params.mask.causal = true;
    AttentionPages pages;
    pages.pages = call->pages;
    pages.page_size = call->page_size;
    pages.k = {call->k, dtype, {call->page_size * row, d, row, 1}};
    pages.v = {call->v, dtype, {call->page_size * row, d, row, 1}};
    pages.table = {call->table, false};
    pages.table_width = pages.table_stride = call->table_width;
    pages.lengths = {call->lengths, false};
    Context context;
    context.device = DeviceKind::kCuda;
    context.stream = call->stream;
    if (call->workspace_bytes == 0) {
      call->workspace_bytes =
          static_cast<std::int64_t>(AttentionOnPagesWorkspaceBytes(context, params, pages));
      return 0;
    }
    context.workspace = call->workspace;
    context.workspace_bytes = static_cast<std::size_t>(call->workspace_bytes);
    AttentionOutputs outputs;
    outputs.out = {call->out, dtype, {call->heads * d, d, d, 1}};
    AttentionOnPages(context, params, pages, outputs);
    return 0;
  } catch (const std::exception& error) {
    std::snprintf(message, static_cast<std::size_t>(length), "%s", error.what());
    return 1;
  }
}

struct TsallisRowsCall {
  std::int64_t backward, dtype, rows, length;
  double alpha;  // 1: softmax
  // Contiguous, [rows, length] each.
  void *scores, *probabilities, *d_probabilities, *d_scores;
  void* stream;
};

// A row map, or its gradient.
__attribute__((visibility("default"))) int tsallis_rows(TsallisRowsCall* call, char* message,
                                                        std::int64_t length) {
  using namespace tsallis;
  try {
    const auto rows = [&](void* data) {
      return MutableRows{
          data, static_cast<DType>(call->dtype), call->rows, call->length, call->length, 1};
    };
    RowMapParams params;
    params.map = call->alpha == 1.0 ? RowMap::kSoftmax : RowMap::kEntmax;
    params.alpha = call->alpha;
    Context context;
    context.device = DeviceKind::kCuda;
    context.stream = call->stream;
    if (call->backward == 0) {
      cuda::RowsForward(context, params, rows(call->scores), rows(call->probabilities), {});
    } else {
      cuda::RowsBackward(context, params, rows(call->scores), rows(call->probabilities),
                         rows(call->d_probabilities), rows(call->d_scores), nullptr);
    }
    return 0;
  } catch (const std::exception& error) {
    std::snprintf(message, static_cast<std::size_t>(length), "%s", error.what());
    return 1;
  }
}
}
