#include "stable/attention.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace tsallis::stable {
namespace {

using Sizes4 = std::array<std::int64_t, 4>;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// As `_reserved` in python/tsallis/_fakes.py.
std::int64_t ReservedBytes(const Tensor& q, const AttentionArguments& arguments) {
  const AttentionParams& params = arguments.params;
  const bool sparse =
      params.map == RowMap::kEntmax && (arguments.alpha_heads.defined() || params.alpha != 1.0);
  const bool softmax =
      params.map == RowMap::kSoftmax && !arguments.sink.defined() && q.device().is_cpu();
  if ((!sparse && !softmax) || q.dtype() == dtypes::kFloat64) return 0;
  // Lists of 64 entries, or a header and the output in float32 (SavedValues).
  const std::int64_t head = sparse ? 0 : 64, row = sparse ? 512 : (params.value_dim + 15) / 16 * 64;
  return std::min(head + q.size(0) * q.size(1) * q.size(2) * row, arguments.saved_budget);
}

void CheckBackward(const Tensor& d_out, const Tensor& q, const Tensor& v, const Tensor& tau,
                   const AttentionArguments& arguments, const AttentionWanted& wanted) {
  const std::int64_t out[4] = {q.size(0), q.size(1), q.size(2), v.size(3)};
  if (!std::ranges::equal(d_out.sizes(), out)) {
    throw InvalidArgument("d_out", "the shape of the output, " + Text(out), Text(d_out.sizes()));
  }
  CheckDevice(d_out, "d_out", q);
  CheckDType(d_out, "d_out", q);
  const Sizes rows(out, 3);
  if (tau.dtype() != dtypes::kFloat64 || !std::ranges::equal(tau.sizes(), rows)) {
    throw InvalidArgument("tau", "that of attention_forward, float64 of " + Text(rows),
                          DTypeName(tau.dtype()) + " of " + Text(tau.sizes()));
  }
  const Tensor* const terms[] = {&arguments.alpha_heads, &arguments.length_scale,
                                 &arguments.alibi_slopes, &arguments.bias, &arguments.sink};
  for (int i = 0; i < kInputs - kAlpha; ++i) {
    if (!wanted[kAlpha + i] || terms[i]->defined()) continue;
    throw InvalidArgument("wanted", "no gradient of an argument that is None",
                          "bit " + std::to_string(kAlpha + i));
  }
}

}  // namespace

Tensor Output(const Sizes4& sizes, const Tensor& like, bool has_gaps) {
  // As torch does, an empty axis counts as one: strides of 0 mean repetition.
  const std::int64_t heads = std::max<std::int64_t>(sizes[1], 1),
                     rows = std::max<std::int64_t>(sizes[2], 1),
                     row = std::max<std::int64_t>(sizes[3], 1);
  const bool rows_first = like.stride(1) < like.stride(2);
  const Sizes4 strides = {heads * rows * row, rows_first ? row : rows * row,
                          rows_first ? heads * row : row, 1};
  Tensor tensor = EmptyStrided(sizes, strides, like.dtype(), like.device());
  if (has_gaps) Zero(tensor);
  return tensor;
}

const Tensor& Readable(const Tensor& tensor, Reader reader, Tensor& copy) {
  if (reader == Reader::kHost || !tensor.defined()) return tensor;
  const auto size = static_cast<std::int64_t>(SizeOf(KernelDType(tensor)));
  bool aligned = reinterpret_cast<std::uintptr_t>(tensor.data()) % 16 == 0 &&
                 (tensor.size(3) <= 1 || tensor.stride(3) == 1);
  for (int d = 0; d < 3; ++d) {
    aligned = aligned && (tensor.size(d) <= 1 || tensor.stride(d) * size % 16 == 0);
  }
  if (aligned) return tensor;
  copy = Clone(tensor);
  return copy;
}

void MakeStatistics(const AttentionArguments& arguments, const Device& device, bool has_gaps,
                    bool tau, bool stats, AttentionResults& results, AttentionOutputs& outputs) {
  const auto rows = arguments.Rows();
  const auto make = [&](std::int32_t dtype, double outside) {
    Tensor tensor = Empty(rows, dtype, device);
    if (has_gaps) Fill(tensor, outside);
    return tensor;
  };
  if (tau || stats) {
    results.tau = make(dtypes::kFloat64, -kInfinity);
    outputs.tau = results.tau.mutable_as<double>();
  }
  if (!stats) return;
  results.support_size = make(dtypes::kInt64, 0.0);
  results.entropy = make(dtypes::kFloat64, 0.0);
  results.maximum = make(dtypes::kFloat64, -kInfinity);
  outputs.support_size = results.support_size.mutable_as<std::int64_t>();
  outputs.entropy = results.entropy.mutable_as<double>();
  outputs.maximum = results.maximum.mutable_as<double>();
}

AttentionResults AttentionForward(const AttentionPasses& passes, const Tensor& q, const Tensor& k,
                                  const Tensor& v, AttentionArguments& arguments,
                                  const AttentionRequest& request) {
  arguments.Check(q, k, v);
  const DeviceScope scope(q.device());
  Tensor copies[3];
  const Tensor &q_rows = Readable(q, passes.reader, copies[0]),
               &k_rows = Readable(k, passes.reader, copies[1]),
               &v_rows = Readable(v, passes.reader, copies[2]);
  arguments.Bind(q_rows, k_rows, v_rows, passes.reader);
  AttentionParams& params = arguments.params;
  params.gradients = request.tau;
  AttentionResults results;
  results.out = Output({arguments.array_batch(), params.heads, params.q_len, params.value_dim}, q,
                       arguments.q_has_gaps());
  AttentionOutputs outputs{.out = Write(results.out)};
  MakeStatistics(arguments, q.device(), arguments.q_has_gaps(), request.tau, request.stats, results,
                 outputs);
  Renamed([&] {
    std::int64_t bytes[1] = {0};
    if (request.saves == Saves::kReserved) bytes[0] = ReservedBytes(q, arguments);
    if (request.saves == Saves::kUseful) {
      bytes[0] = static_cast<std::int64_t>(
          passes.saved_bytes(params, static_cast<std::size_t>(arguments.saved_budget)));
    }
    if (request.tau) results.saved = Empty(bytes, dtypes::kUInt8, q.device());
    if (bytes[0] > 0) {
      outputs.saved = results.saved.mutable_data();
      outputs.saved_bytes = static_cast<std::size_t>(bytes[0]);
    }
    passes.forward(params, outputs);
  });
  return results;
}

std::array<Tensor, kInputs> AttentionBackward(const AttentionPasses& passes, const Tensor& d_out,
                                              const Tensor& q, const Tensor& k, const Tensor& v,
                                              const Tensor& tau, const Tensor& saved,
                                              AttentionArguments& arguments,
                                              const AttentionWanted& wanted) {
  arguments.Check(q, k, v);
  CheckBackward(d_out, q, v, tau, arguments, wanted);
  const DeviceScope scope(q.device());
  Tensor copies[4];
  const Tensor &q_rows = Readable(q, passes.reader, copies[0]),
               &k_rows = Readable(k, passes.reader, copies[1]),
               &v_rows = Readable(v, passes.reader, copies[2]),
               &d_out_rows = Readable(d_out, passes.reader, copies[3]);
  arguments.Bind(q_rows, k_rows, v_rows, passes.reader);
  const AttentionParams& params = arguments.params;
  // torch may have copied what the forward pass kept (checkpoints, hooks).
  const Tensor thresholds = Contiguous(tau);
  Tensor lists = Contiguous(saved);
  if (reinterpret_cast<std::uintptr_t>(lists.data()) % 64 != 0) lists = Clone(lists);
  AttentionGradients gradients;
  gradients.d_out = View(d_out_rows);
  gradients.tau = thresholds.data_as<double>();
  if (lists.numel() > 0) {
    gradients.saved = lists.data();
    gradients.saved_bytes = static_cast<std::size_t>(lists.numel());
  }
  std::array<Tensor, kInputs> results;
  const auto like = [&](AttentionInput input, const Tensor& tensor, bool has_gaps) {
    if (!wanted[input]) return MutableArray4{};
    results[input] =
        Output({tensor.size(0), tensor.size(1), tensor.size(2), tensor.size(3)}, tensor, has_gaps);
    return Write(results[input]);
  };
  gradients.dq = like(kQ, q, arguments.q_has_gaps());
  gradients.dk = like(kK, k, arguments.k_has_gaps());
  gradients.dv = like(kV, v, arguments.k_has_gaps());
  const std::array<std::int64_t, 3> rows = arguments.Rows();
  const auto doubles = [&](AttentionInput input, Sizes sizes) {
    if (!wanted[input]) return static_cast<double*>(nullptr);
    results[input] = Empty(sizes, dtypes::kFloat64, q.device());
    Zero(results[input]);
    return results[input].mutable_as<double>();
  };
  const Sizes heads(&rows[1], 1);
  gradients.d_alpha = doubles(kAlpha, heads);
  gradients.d_length_scale = doubles(kLengthScale, rows);
  gradients.d_slopes = doubles(kSlopes, Sizes(rows.data(), 2));
  gradients.d_sink = doubles(kSink, heads);
  if (wanted[kBias]) {
    const Tensor& bias = arguments.bias;
    results[kBias] =
        Empty(bias.sizes(), bias.dtype() == dtypes::kFloat64 ? dtypes::kFloat64 : dtypes::kFloat32,
              q.device());
    // Without a single score the kernel has nothing to write.
    if (params.batch * params.heads * params.q_len * params.k_len == 0) Zero(results[kBias]);
    const auto strides = Broadcast4(results[kBias], arguments.Scores());
    gradients.d_bias = {results[kBias].mutable_data(),
                        KernelDType(results[kBias]),
                        {strides[0], strides[1], strides[2], strides[3]}};
  }
  Renamed([&] { passes.backward(params, gradients); });
  return results;
}

AttentionWeightTensors AttentionWeights(const AttentionPasses& passes, const Tensor& q,
                                        const Tensor& k, AttentionArguments& arguments) {
  arguments.Check(q, k, Tensor());
  const DeviceScope scope(q.device());
  Tensor copies[2];
  const Tensor &q_rows = Readable(q, passes.reader, copies[0]),
               &k_rows = Readable(k, passes.reader, copies[1]);
  arguments.Bind(q_rows, k_rows, Tensor(), passes.reader);
  const AttentionParams& params = arguments.params;
  const std::int64_t rows =
      (params.ranges.packed ? std::min<std::int64_t>(params.batch, 1) : params.batch) *
      params.heads * params.q_len;
  AttentionWeightTensors weights;
  Renamed([&] {
    const std::int64_t count[1] = {rows}, more[1] = {rows + 1};
    const Tensor counts = Empty(count, dtypes::kInt64, q.device());
    passes.weight_counts(params, counts.mutable_as<std::int64_t>());
    const Tensor host_counts = OnDevice(counts, Device::Cpu());
    const Tensor offsets = Empty(more, dtypes::kInt64, Device::Cpu());
    auto* const sums = offsets.mutable_as<std::int64_t>();
    sums[0] = 0;
    for (std::int64_t r = 0; r < rows; ++r) {
      sums[r + 1] = sums[r] + host_counts.data_as<std::int64_t>()[r];
    }
    const std::int64_t entries[1] = {sums[rows]};
    weights.row_offsets = OnDevice(offsets, q.device());
    weights.columns = Empty(entries, dtypes::kInt64, q.device());
    weights.values = Empty(entries, dtypes::kFloat32, q.device());
    passes.weights(params, weights.row_offsets.data_as<std::int64_t>(),
                   weights.columns.mutable_as<std::int64_t>(), weights.values.mutable_as<float>());
  });
  return weights;
}

}  // namespace tsallis::stable
