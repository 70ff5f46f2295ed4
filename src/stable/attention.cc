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

// A result of `sizes` that keeps the order in which `like` has heads and rows in memory:
// projections are usually [batch, rows, heads, dim] seen as [batch, heads, rows, dim], and a result
// in that order is merged again without a copy. Zeroed where the kernel leaves elements unwritten.
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

// The tensor, or `copy` of it: a device's kernels load 16 bytes at once, and rows may not begin at
// multiples, as autograd's expanded gradients do not.
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

// Statistics of rows, and where the kernel writes them. Kernels write those of every row that they
// write the output of.
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

// As `_reserved` in python/tsallis/_fakes.py.
std::int64_t ReservedBytes(const Tensor& q, const AttentionArguments& arguments) {
  const AttentionParams& params = arguments.params;
  const bool sparse = params.map == RowMap::kEntmax && !arguments.sink.defined() &&
                      (arguments.alpha_heads.defined() || params.alpha != 1.0);
  if (!sparse || q.dtype() == dtypes::kFloat64 || !q.device().is_cpu()) return 0;
  constexpr std::int64_t kBytesPerRow = 512;
  return std::min(q.size(0) * q.size(1) * q.size(2) * kBytesPerRow, arguments.saved_budget);
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
    if (request.saves == Saves::kUseful && passes.saves) {
      bytes[0] = static_cast<std::int64_t>(
          AttentionSavedBytes(params, static_cast<std::size_t>(arguments.saved_budget)));
    }
    if (request.tau) results.saved = Empty(bytes, dtypes::kUInt8, q.device());
    if (bytes[0] > 0 && passes.saves) {
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
  if (lists.numel() > 0 && passes.saves) {
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

// ---- on pages

namespace {

void CheckOfPages(const Tensor& tensor, const char* argument, const char* shape, const Tensor& q) {
  CheckFloating(tensor, argument);
  if (tensor.dim() != 4) throw InvalidArgument(argument, shape, Text(tensor.sizes()));
  CheckDevice(tensor, argument, q);
  CheckDType(tensor, argument, q);
}

void CheckInteger(const Tensor& tensor, const char* argument, const char* shape, std::int64_t rank,
                  const Tensor& q, std::int64_t batch) {
  CheckIntegers(tensor, argument, q);
  if (tensor.dim() != rank || tensor.size(0) != batch) {
    throw InvalidArgument(argument, std::string(shape) + " with batch = " + std::to_string(batch),
                          Text(tensor.sizes()));
  }
}

// A tensor in the place of keys and values for checks that do not read pages: no key, with as many
// heads as the pages have.
Tensor StandIn(const Tensor& q, const Tensor& k_pages) {
  const Sizes4 sizes = {q.size(0), k_pages.size(2), 0, q.size(3)}, strides = {0, 0, 0, 1};
  return Restrided(q, sizes, strides);
}

// Bytes to screen by, as the kernels have them.
PageScreen ScreenOf(const Tensor& screen, const Tensor& k_pages) {
  if (!screen.defined()) return {};
  const std::int64_t pages = k_pages.size(0), page_size = k_pages.size(1),
                     kv_heads = k_pages.size(2), head_dim = k_pages.size(3);
  const std::int64_t bytes = (page_size + kScreenKeys - 1) / kScreenKeys * Renamed([&] {
                               return static_cast<std::int64_t>(ScreenBytes(head_dim));
                             });
  CheckDevice(screen, "screen", k_pages);
  if (screen.dtype() != dtypes::kUInt8 || screen.dim() != 3 || screen.size(0) != pages ||
      screen.size(1) != kv_heads || screen.size(2) < bytes ||
      (screen.size(2) > 1 && screen.stride(2) != 1)) {
    throw InvalidArgument("screen",
                          "uint8 [pages, kv_heads, page_size / 64 * screen_bytes(head_dim)] = [" +
                              std::to_string(pages) + ", " + std::to_string(kv_heads) + ", " +
                              std::to_string(bytes) + "], bytes side by side",
                          DTypeName(screen.dtype()) + ' ' + Text(screen.sizes()));
  }
  return {screen.mutable_data(), screen.stride(0), screen.stride(1)};
}

void CheckPages(const Tensor& q, const Tensor& k_pages, const Tensor& v_pages,
                const Tensor& block_table, const Tensor& lengths, const Tensor& starts,
                const AttentionArguments& arguments) {
  if (arguments.mistake) throw InvalidArgument(*arguments.mistake);
  CheckFloating(q, "q");
  if (q.dim() != 4) {
    throw InvalidArgument("q", "[batch, heads, q_len, head_dim]", Text(q.sizes()));
  }
  const std::string v_shape = "[pages, page_size, kv_heads, value_dim]";
  CheckOfPages(k_pages, "k_pages", "[pages, page_size, kv_heads, head_dim]", q);
  CheckOfPages(v_pages, "v_pages", v_shape.c_str(), q);
  if (!std::ranges::equal(k_pages.sizes().first(3), v_pages.sizes().first(3))) {
    throw InvalidArgument(
        "v_pages", v_shape + " with the first three sizes of k_pages, " + Text(k_pages.sizes()),
        Text(v_pages.sizes()));
  }
  if (k_pages.size(3) != q.size(3)) {
    throw InvalidArgument("k_pages", "head_dim = " + std::to_string(q.size(3)),
                          Text(k_pages.sizes()));
  }
  const std::int64_t heads = q.size(1), kv_heads = k_pages.size(2);
  CheckGroups(heads, kv_heads);
  if (heads < kv_heads) {
    throw InvalidArgument("q", "a multiple of kv_heads = " + std::to_string(kv_heads) + " heads",
                          std::to_string(heads));
  }
  if (starts.defined()) {
    CheckIntegers(starts, "cu_seqlens_q", q);
    if (starts.dim() != 1 || starts.size(0) < 1) {
      throw InvalidArgument("cu_seqlens_q", "[sequences + 1]", Text(starts.sizes()));
    }
    if (q.size(0) != 1) {
      throw InvalidArgument("q", "[1, heads, tokens, head_dim] with cu_seqlens_q", Text(q.sizes()));
    }
  }
  const std::int64_t batch = starts.defined() ? starts.size(0) - 1 : q.size(0);
  CheckInteger(block_table, "block_table", "[batch, most pages of a sequence]", 2, q, batch);
  CheckInteger(lengths, "lengths", "[batch]", 1, q, batch);
  const auto none = [](const char* name, const Tensor& tensor) {
    if (tensor.defined()) throw InvalidArgument(name, "None for keys in pages", "a tensor");
  };
  none("mask", arguments.mask);
  none("block_mask", arguments.block_mask);
  none("bias", arguments.bias);
  none("query_lengths", arguments.query_lengths);
  none("cu_seqlens_k", arguments.cu_seqlens_k);
  if (arguments.padding != Padding::kRight) {
    throw InvalidArgument("padding", "\"right\" for keys in pages", "\"left\"");
  }
}

ConstIntegers IntegersOf(const Tensor& tensor) {
  return {tensor.data(), tensor.dtype() == dtypes::kInt64};
}

// [pages, rows, heads, columns] as the kernels have it: [pages, heads, rows, columns].
ConstArray4 PagesView(const Tensor& pages) {
  return {pages.data(),
          KernelDType(pages),
          {pages.stride(0), pages.stride(2), pages.stride(1), pages.stride(3)}};
}

}  // namespace

AttentionResults AttentionOnPages(const AttentionPasses& passes, const PagesCall& call,
                                  AttentionArguments& arguments, bool want_stats) {
  const auto& [q, k_pages, v_pages, block_table, screen, out] = call;
  const Tensor lengths = std::exchange(arguments.lengths, Tensor());
  const Tensor starts = std::exchange(arguments.cu_seqlens_q, Tensor());
  CheckPages(q, k_pages, v_pages, block_table, lengths, starts, arguments);
  Tensor copy;
  const Tensor& rows = Readable(q, passes.reader, copy);
  const Tensor stand_in = StandIn(rows, k_pages);
  arguments.Check(rows, stand_in, stand_in);
  const DeviceScope scope(q.device());
  arguments.Bind(rows, stand_in, stand_in, passes.reader);
  AttentionParams& params = arguments.params;
  params.value_dim = v_pages.size(3);
  const Tensor counts = Contiguous(lengths);
  const Tensor table = block_table.size(1) <= 1 || block_table.stride(1) == 1
                           ? block_table.Share()
                           : Contiguous(block_table);
  AttentionPages pages;
  pages.pages = k_pages.size(0);
  pages.page_size = k_pages.size(1);
  pages.k = PagesView(k_pages);
  pages.v = PagesView(v_pages);
  pages.table = IntegersOf(table);
  pages.table_width = table.size(1);
  pages.table_stride = table.stride(0);
  pages.lengths = IntegersOf(counts);
  pages.screen = ScreenOf(screen, k_pages);
  Tensor row_starts;
  const bool has_gaps = starts.defined();  // maybe
  if (starts.defined()) {
    row_starts = Contiguous(starts);
    pages.query_starts = IntegersOf(row_starts);
    params.batch = starts.size(0) - 1;
  }
  AttentionResults results;
  const Sizes4 sizes = {q.size(0), q.size(1), q.size(2), v_pages.size(3)};
  if (out.defined()) {
    CheckDevice(out, "out", q);
    CheckDType(out, "out", q);
    if (!std::ranges::equal(out.sizes(), sizes)) {
      throw InvalidArgument("out", "the shape of the output, " + Text(sizes), Text(out.sizes()));
    }
    results.out = out.Share();
  } else {
    results.out = Output(sizes, q, has_gaps);
  }
  AttentionOutputs outputs{.out = Write(results.out)};
  MakeStatistics(arguments, q.device(), has_gaps, false, want_stats, results, outputs);
  Renamed([&] { passes.on_pages(params, pages, outputs); });
  return results;
}

// ---- writing to pages

namespace {

// [tokens, heads, columns] as the kernels have it: [1, heads, tokens, columns].
ConstArray4 TokensView(const Tensor& rows) {
  return {rows.data(), KernelDType(rows), {0, rows.stride(1), rows.stride(0), rows.stride(2)}};
}

}  // namespace

void PutOnPages(const Tensor& k, const Tensor& v, const Tensor& k_pages, const Tensor& v_pages,
                const Tensor& slots, const std::optional<Tensor>& screen) {
  const auto floating = [&](const char* name, const Tensor& tensor, const char* shape,
                            std::int64_t rank) {
    CheckFloating(tensor, name);
    if (tensor.dim() != rank) throw InvalidArgument(name, shape, Text(tensor.sizes()));
    CheckDevice(tensor, name, k);
    if (tensor.dtype() != k.dtype()) {
      throw InvalidArgument(name, "the dtype of k, " + DTypeName(k.dtype()),
                            DTypeName(tensor.dtype()));
    }
  };
  floating("k", k, "[tokens, kv_heads, head_dim]", 3);
  floating("v", v, "[tokens, kv_heads, value_dim]", 3);
  floating("k_pages", k_pages, "[pages, page_size, kv_heads, head_dim]", 4);
  floating("v_pages", v_pages, "[pages, page_size, kv_heads, value_dim]", 4);
  const auto same = [](const char* name, const Tensor& tensor, const std::string& expected,
                       std::initializer_list<std::int64_t> sizes) {
    if (std::ranges::equal(tensor.sizes(), sizes)) return;
    throw InvalidArgument(name, expected + ", " + Text(Sizes(sizes.begin(), sizes.size())),
                          Text(tensor.sizes()));
  };
  same("v", v, "tokens and heads of k", {k.size(0), k.size(1), v.size(2)});
  same("k_pages", k_pages, "heads and columns of k",
       {k_pages.size(0), k_pages.size(1), k.size(1), k.size(2)});
  same("v_pages", v_pages, "pages of k_pages, heads and columns of v",
       {k_pages.size(0), k_pages.size(1), v.size(1), v.size(2)});
  CheckIntegers(slots, "slots", k);
  same("slots", slots, "one slot a token", {k.size(0)});
  const Tensor places = Contiguous(slots);
  PageTokens tokens{.tokens = k.size(0),
                    .kv_heads = k.size(1),
                    .head_dim = k.size(2),
                    .value_dim = v.size(2),
                    .k = TokensView(k),
                    .v = TokensView(v),
                    .slots = IntegersOf(places)};
  const auto writable = [](const Tensor& of_pages) {
    const ConstArray4 view = PagesView(of_pages);
    const auto& s = view.strides;
    return MutableArray4{of_pages.mutable_data(), view.dtype, {s[0], s[1], s[2], s[3]}};
  };
  PageArrays pages{.pages = k_pages.size(0),
                   .page_size = k_pages.size(1),
                   .k = writable(k_pages),
                   .v = writable(v_pages),
                   .screen = screen ? ScreenOf(*screen, k_pages) : PageScreen{}};
  Renamed([&] { tsallis::PutOnPages(TorchContext(), tokens, pages); });
}

}  // namespace tsallis::stable
