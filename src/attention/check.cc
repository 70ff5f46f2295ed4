#include "attention/check.h"

#include <cmath>
#include <cstdint>
#include <string>

#include "attention/geometry.h"
#include "attention/terms.h"
#include "simplex/map.h"
#include "tsallis/error.h"

namespace tsallis {
using std::to_string;

void CheckSize(const char* name, std::int64_t size, std::int64_t least, std::int64_t most) {
  if (size >= least && size <= most) return;
  throw InvalidArgument(name, "a size from " + to_string(least) + " to " + to_string(most),
                        to_string(size));
}

namespace {

void CheckDType(const std::string& name, DType dtype) {
  if (static_cast<int>(dtype) > static_cast<int>(DType::kFloat64)) {
    throw InvalidArgument(name, "a known dtype", "value " + to_string(static_cast<int>(dtype)));
  }
}

// An array that is there and has q's dtype. `elements` = 0: nothing is read.
void CheckArray(const char* name, const ConstArray4& array, std::int64_t elements, DType dtype) {
  CheckDType(name, array.dtype);
  if (array.dtype != dtype) {
    throw InvalidArgument(name, std::string("the dtype of q, ") + Name(dtype), Name(array.dtype));
  }
  if (array.data == nullptr && elements > 0) {
    throw InvalidArgument(name, "data of " + to_string(elements) + " elements", "null");
  }
}

// Strides of what is written must not make two elements one: an axis longer than 1 needs its own.
void CheckWritable(const char* name, const MutableArray4& array, std::int64_t batch,
                   std::int64_t heads, std::int64_t rows, std::int64_t columns) {
  const std::int64_t sizes[4] = {batch, heads, rows, columns};
  const char* axes[4] = {"batch", "heads", "rows", "columns"};
  // The usual strides of an array without elements have zeros.
  if (batch * heads * rows * columns == 0) return;
  for (int i = 0; i < 4; ++i) {
    if (sizes[i] > 1 && array.strides[i] == 0) {
      throw InvalidArgument(name, std::string("a stride other than 0 along ") + axes[i], "0");
    }
  }
}

void CheckSpan(const char* side, std::int64_t b, const Span& span, std::int64_t length) {
  if (span.begin >= 0 && span.begin <= span.end && span.end <= length) return;
  throw InvalidArgument(std::string("ranges.") + side + "[" + to_string(b) + "]",
                        "0 <= begin <= end <= " + to_string(length),
                        "[" + to_string(span.begin) + ", " + to_string(span.end) + ")");
}

void CheckMap(const AttentionParams& params) {
  const ReferenceMap& map = FindMap(params.map);
  if (!map.in_attention) {
    std::string names;
    for (const RowMap served : AttentionMaps()) {
      names += (names.empty() ? "" : ", ") + std::string(Name(served));
    }
    throw InvalidArgument("map", "one of " + names, map.name);
  }
  if (params.map == RowMap::kStickBreaking && !params.mask.causal) {
    throw InvalidArgument("mask.causal", "true for stick_breaking, which goes back from the query",
                          "false");
  }
  if (params.terms.sink != nullptr && !map.takes_sink) {
    throw InvalidArgument("terms.sink", std::string("null for ") + map.name, "a pointer");
  }
  if (map.check == nullptr) return;
  if (params.alpha_per_head == nullptr || params.map != RowMap::kEntmax) {
    map.check(RowSpec{params.setting()});
    return;
  }
  for (std::int64_t h = 0; h < params.heads; ++h) {
    const double alpha = params.alpha_per_head[h];
    if (IsEntmaxAlpha(alpha)) continue;
    throw InvalidArgument("alpha_per_head[" + to_string(h) + "]", kEntmaxAlphaRange,
                          to_string(alpha));
  }
}

}  // namespace

void CheckAttention(const AttentionParams& params, DeviceKind device) {
  constexpr std::int64_t kMost = std::int64_t{1} << 40;
  CheckSize("batch", params.batch, 0, kMost);
  CheckSize("heads", params.heads, 0, kMost);
  CheckSize("kv_heads", params.kv_heads, params.heads > 0 ? 1 : 0, kMost);
  if (params.kv_heads > 0 && params.heads % params.kv_heads != 0) {
    throw InvalidArgument("heads", "a multiple of kv_heads = " + to_string(params.kv_heads),
                          to_string(params.heads));
  }
  CheckSize("q_len", params.q_len, 0, kMost);
  // Lists of the support hold 32-bit columns.
  CheckSize("k_len", params.k_len, 0, 0x7FFFFFFF);
  CheckSize("head_dim", params.head_dim, 1, 512);
  CheckSize("value_dim", params.value_dim, 1, 512);
  CheckDType("q", params.q.dtype);
  const std::int64_t problems = ArrayBatch(params) * params.heads;
  const std::int64_t keys = ArrayBatch(params) * params.kv_heads * params.k_len;
  CheckArray("q", params.q, problems * params.q_len * params.head_dim, params.q.dtype);
  CheckArray("k", params.k, keys * params.head_dim, params.q.dtype);
  CheckArray("v", params.v, keys * params.value_dim, params.q.dtype);
  CheckMap(params);

  const AttentionMask& mask = params.mask;
  if (static_cast<int>(mask.alignment) > static_cast<int>(Alignment::kStart)) {
    throw InvalidArgument("mask.alignment", "kEnd or kStart",
                          "value " + to_string(static_cast<int>(mask.alignment)));
  }
  if (mask.blocks != nullptr) {
    CheckSize("mask.block_q", mask.block_q, 1, kMost);
    CheckSize("mask.block_k", mask.block_k, 1, kMost);
  }
  const AttentionTerms& terms = params.terms;
  CheckNumbers(terms);
  CheckDType("terms.length_scale", terms.length_scale.dtype);
  CheckDType("terms.alibi_slopes", terms.alibi_slopes.dtype);
  CheckDType("terms.bias", terms.bias.dtype);

  const AttentionRanges& ranges = params.ranges;
  if (ranges.packed && params.batch > 0 &&
      (ranges.q_begin == nullptr || ranges.q_end == nullptr || ranges.k_begin == nullptr ||
       ranges.k_end == nullptr)) {
    throw InvalidArgument("ranges", "all four arrays for a packed batch", "a null pointer");
  }
  for (std::int64_t b = 0; b < params.batch && device == DeviceKind::kCpu; ++b) {
    const Sequence sequence = Sequence::Of(params, b);
    CheckSpan("q", b, sequence.q, params.q_len);
    CheckSpan("k", b, sequence.k, params.k_len);
    if (!ranges.packed || b == 0) continue;
    // Ascending order is how packed batches come, and makes overlap easy to see.
    const Sequence before = Sequence::Of(params, b - 1);
    if (sequence.q.begin < before.q.end || sequence.k.begin < before.k.end) {
      throw InvalidArgument("ranges[" + to_string(b) + "]",
                            "packed sequences in ascending order without overlap",
                            "one that begins before the last one ends");
    }
  }
}

void CheckOutputs(const AttentionParams& params, const AttentionOutputs& outputs) {
  const std::int64_t rows = ArrayBatch(params) * params.heads * params.q_len;
  CheckArray("out", outputs.out, rows * params.value_dim, params.q.dtype);
  CheckWritable("out", outputs.out, ArrayBatch(params), params.heads, params.q_len,
                params.value_dim);
  if (outputs.saved_bytes > 0 && outputs.saved == nullptr) {
    throw InvalidArgument("saved", to_string(outputs.saved_bytes) + " bytes", "null");
  }
  if (reinterpret_cast<std::uintptr_t>(outputs.saved) % 64 != 0) {
    throw InvalidArgument("saved", "memory aligned to 64 bytes", "an odd address");
  }
}

void CheckWeightCounts(const AttentionParams& params, const std::int64_t* counts) {
  if (counts != nullptr || ArrayBatch(params) * params.heads * params.q_len == 0) return;
  throw InvalidArgument("counts", "data", "null");
}

void CheckWeights(const AttentionParams& params, const std::int64_t* row_offsets,
                  const std::int64_t* columns, const float* values, DeviceKind device) {
  const std::int64_t rows = ArrayBatch(params) * params.heads * params.q_len;
  if (rows == 0) return;
  if (row_offsets == nullptr) throw InvalidArgument("row_offsets", "data", "null");
  if (device == DeviceKind::kCuda || row_offsets[rows] == row_offsets[0]) return;
  if (columns == nullptr || values == nullptr) {
    throw InvalidArgument(columns == nullptr ? "columns" : "values", "data", "null");
  }
}

void CheckGradients(const AttentionParams& params, const AttentionGradients& gradients) {
  const std::int64_t batch = ArrayBatch(params), q_len = params.q_len, k_len = params.k_len;
  const std::int64_t rows = batch * params.heads * q_len;
  CheckArray("d_out", gradients.d_out, rows * params.value_dim, params.q.dtype);
  if (gradients.tau == nullptr && rows > 0) {
    throw InvalidArgument("tau", "the thresholds of the forward pass", "null");
  }
  if (gradients.saved_bytes > 0 && gradients.saved == nullptr) {
    throw InvalidArgument("saved", to_string(gradients.saved_bytes) + " bytes", "null");
  }
  const auto check = [&](const char* name, const MutableArray4& array, std::int64_t heads,
                         std::int64_t length, std::int64_t columns) {
    if (array.data == nullptr) return;
    CheckArray(name, array, 0, params.q.dtype);
    CheckWritable(name, array, batch, heads, length, columns);
  };
  check("dq", gradients.dq, params.heads, q_len, params.head_dim);
  check("dk", gradients.dk, params.kv_heads, k_len, params.head_dim);
  check("dv", gradients.dv, params.kv_heads, k_len, params.value_dim);
  if (gradients.d_alpha != nullptr && params.map != RowMap::kEntmax) {
    throw InvalidArgument("d_alpha", "null for a map without a gradient in alpha",
                          Name(params.map));
  }
  const auto needs = [](const char* name, const void* wanted, const void* input) {
    if (wanted != nullptr && input == nullptr) {
      throw InvalidArgument(name, "null where the forward pass has no such input", "a pointer");
    }
  };
  needs("d_length_scale", gradients.d_length_scale, params.terms.length_scale.data);
  needs("d_slopes", gradients.d_slopes, params.terms.alibi_slopes.data);
  needs("d_sink", gradients.d_sink, params.terms.sink);
  needs("d_bias", gradients.d_bias.data, params.terms.bias.data);
  const DType bias = gradients.d_bias.dtype;
  if (gradients.d_bias.data != nullptr && bias != DType::kFloat32 && bias != DType::kFloat64) {
    throw InvalidArgument("d_bias", "float32 or float64", Name(bias));
  }
}

}  // namespace tsallis
