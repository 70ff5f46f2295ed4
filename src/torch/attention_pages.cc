#include "torch/attention_pages.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <cstdint>
#include <utility>

#include "torch/array_view.h"
#include "torch/attention_arguments.h"
#include "torch/attention_settings.h"
#include "torch/row_view.h"

namespace tsallis {
namespace {

using at::Tensor;

void CheckOfPages(const Tensor& tensor, const char* argument, const char* shape, const Tensor& q) {
  CheckScores(tensor, argument);
  TORCH_CHECK_VALUE(tensor.dim() == 4, argument, ": expected ", shape, ", got ",
                    tensor.sym_sizes());
  TORCH_CHECK_VALUE(tensor.device() == q.device(), argument, ": expected the device of q, ",
                    q.device(), ", got ", tensor.device());
  TORCH_CHECK_VALUE(tensor.scalar_type() == q.scalar_type(), argument,
                    ": expected the dtype of q, ", q.scalar_type(), ", got ", tensor.scalar_type());
}

void CheckInteger(const Tensor& tensor, const char* argument, const char* shape, std::int64_t rank,
                  const Tensor& q) {
  TORCH_CHECK_VALUE(tensor.device() == q.device() && tensor.layout() == at::kStrided, argument,
                    ": expected a dense tensor on the device of q, ", q.device(), ", got ",
                    tensor.layout(), " on ", tensor.device());
  TORCH_CHECK_VALUE(tensor.scalar_type() == at::kInt || tensor.scalar_type() == at::kLong, argument,
                    ": expected dtype int32 or int64, got ", tensor.scalar_type());
  TORCH_CHECK_VALUE(tensor.dim() == rank && tensor.sym_size(0) == q.sym_size(0), argument,
                    ": expected ", shape, " with batch = ", q.sym_size(0), ", got ",
                    tensor.sym_sizes());
}

// A tensor in the place of keys and values for checks that do not read pages: queries, with as many
// heads as the pages have.
Tensor StandIn(const Tensor& q, const Tensor& k_pages) {
  return q.narrow_symint(1, 0, k_pages.sym_size(2));
}

// The options without the lengths, which are those of pages.
AttentionOptions CheckPages(const Tensor& q, const Tensor& k_pages, const Tensor& v_pages,
                            const Tensor& block_table, AttentionOptions options) {
  CheckScores(q, "q");
  TORCH_CHECK_VALUE(q.dim() == 4, "q: expected [batch, heads, q_len, head_dim], got ",
                    q.sym_sizes());
  const char* k_shape = "[pages, page_size, kv_heads, head_dim]";
  const char* v_shape = "[pages, page_size, kv_heads, value_dim]";
  CheckOfPages(k_pages, "k_pages", k_shape, q);
  CheckOfPages(v_pages, "v_pages", v_shape, q);
  for (int d = 0; d < 3; ++d) {
    TORCH_CHECK_VALUE(k_pages.sym_size(d) == v_pages.sym_size(d), "v_pages: expected ", v_shape,
                      " with the first three sizes of k_pages, ", k_pages.sym_sizes(), ", got ",
                      v_pages.sym_sizes());
  }
  TORCH_CHECK_VALUE(k_pages.sym_size(3) == q.sym_size(3),
                    "k_pages: expected head_dim = ", q.sym_size(3), ", got ", k_pages.sym_sizes());
  const c10::SymInt heads = q.sym_size(1), kv_heads = k_pages.sym_size(2);
  const bool grouped = kv_heads == 0 ? heads == 0 : heads % kv_heads == 0 && heads >= kv_heads;
  TORCH_CHECK_VALUE(grouped, "q: expected a multiple of kv_heads = ", kv_heads, " heads, got ",
                    heads);
  CheckInteger(block_table, "block_table", "[batch, most pages of a sequence]", 2, q);
  TORCH_CHECK_VALUE(options.lengths, "lengths: expected a tensor, got None");
  CheckInteger(*options.lengths, "lengths", "[batch]", 1, q);
  const auto none = [](const char* name, const OptionalTensor& tensor) {
    TORCH_CHECK_VALUE(!tensor, name, ": expected None for keys in pages, got a tensor");
  };
  none("mask", options.mask);
  none("block_mask", options.block_mask);
  none("bias", options.bias);
  none("query_lengths", options.query_lengths);
  none("cu_seqlens_q", options.cu_seqlens_q);
  none("cu_seqlens_k", options.cu_seqlens_k);
  TORCH_CHECK_VALUE(options.padding == Padding::kRight,
                    "padding: expected \"right\" for keys in pages, got \"left\"");
  options.lengths.reset();
  const Tensor stand_in = StandIn(q, k_pages);
  CheckAttentionTensors(q, stand_in, stand_in, options);
  return options;
}

// [batch, heads, q_len, value_dim] in the order of q, and the statistics.
AttentionResults Results(const Tensor& q, const Tensor& v_pages, bool want_stats) {
  const std::array<c10::SymInt, 4> sizes = {q.sym_size(0), q.sym_size(1), q.sym_size(2),
                                            v_pages.sym_size(3)};
  const std::array<c10::SymInt, 3> rows = {sizes[0], sizes[1], sizes[2]};
  const std::array<c10::SymInt, 1> none = {c10::SymInt(0)};
  const c10::SymIntArrayRef statistic = want_stats ? c10::SymIntArrayRef(rows) : none;
  const auto wide = q.options().dtype(at::kDouble);
  AttentionResults results;
  results.out = at::empty_strided_symint(sizes, AttentionLayout(sizes, q), q.options());
  results.tau = at::empty_symint(statistic, wide);
  results.support_size = at::empty_symint(statistic, wide.dtype(at::kLong));
  results.entropy = at::empty_symint(statistic, wide);
  results.maximum = at::empty_symint(statistic, wide);
  return results;
}

Tensors<5> Tuple(const AttentionResults& results) {
  return {results.out, results.tau, results.support_size, results.entropy, results.maximum};
}

ConstIntegers IntegersOf(const Tensor& tensor) {
  return {tensor.const_data_ptr(), tensor.scalar_type() == at::kLong};
}

}  // namespace

AttentionResults AttentionOnPagesBy(Reader reader, const PagesPass& run, const Tensor& q,
                                    const Tensor& k_pages, const Tensor& v_pages,
                                    const Tensor& block_table, const AttentionOptions& given,
                                    bool want_stats) {
  const AttentionOptions options = CheckPages(q, k_pages, v_pages, block_table, given);
  const AttentionResults results = Results(q, v_pages, want_stats);
  const Tensor rows = Readable(q, reader), stand_in = StandIn(rows, k_pages);
  const Tensor lengths = given.lengths->contiguous();
  const Tensor table = block_table.size(1) <= 1 || block_table.stride(1) == 1
                           ? block_table
                           : block_table.contiguous();
  const KernelArguments arguments(rows, stand_in, stand_in, options, reader);
  AttentionParams params = arguments.params();
  params.value_dim = v_pages.size(3);
  AttentionPages pages;
  pages.pages = k_pages.size(0);
  pages.page_size = k_pages.size(1);
  pages.k = View(k_pages.transpose(1, 2));
  pages.v = View(v_pages.transpose(1, 2));
  pages.table = IntegersOf(table);
  pages.table_width = table.size(1);
  pages.table_stride = table.stride(0);
  pages.lengths = IntegersOf(lengths);
  AttentionOutputs outputs{.out = Write(results.out)};
  if (want_stats) {
    outputs.tau = results.tau.mutable_data_ptr<double>();
    outputs.support_size = results.support_size.mutable_data_ptr<std::int64_t>();
    outputs.entropy = results.entropy.mutable_data_ptr<double>();
    outputs.maximum = results.maximum.mutable_data_ptr<double>();
  }
  Renamed([&] { run(params, pages, outputs); });
  return results;
}

namespace {

Tensors<5> OpOnPagesCpu(const AttentionOptions& options, const Tensor& q, const Tensor& k_pages,
                        const Tensor& v_pages, const Tensor& block_table, bool want_stats) {
  return Tuple(AttentionOnPagesBy(
      Reader::kHost, [](const auto&... call) { AttentionOnPages(TorchContext(), call...); }, q,
      k_pages, v_pages, block_table, options, want_stats));
}

Tensors<5> OpOnPagesCuda(const AttentionOptions& options, const Tensor& q, const Tensor& k_pages,
                         const Tensor& v_pages, const Tensor& block_table, bool want_stats) {
  const c10::DeviceGuard guard(q.device());
  const auto run = [&](const AttentionParams& params, const AttentionPages& pages,
                       const AttentionOutputs& outputs) {
    RunOnCuda(
        q.device(),
        [&](const Context& context) {
          return AttentionOnPagesWorkspaceBytes(context, params, pages);
        },
        [&](const Context& context) { AttentionOnPages(context, params, pages, outputs); });
  };
  return Tuple(AttentionOnPagesBy(Reader::kDevice, run, q, k_pages, v_pages, block_table, options,
                                  want_stats));
}

Tensors<5> OpOnPagesMeta(const AttentionOptions& options, const Tensor& q, const Tensor& k_pages,
                         const Tensor& v_pages, const Tensor& block_table, bool want_stats) {
  CheckPages(q, k_pages, v_pages, block_table, options);
  return Tuple(Results(q, v_pages, want_stats));
}

// Decoding has no gradients.
Tensors<5> OpOnPagesAutograd(const AttentionOptions& options, const Tensor& q,
                             const Tensor& k_pages, const Tensor& v_pages,
                             const Tensor& block_table, bool want_stats) {
  using Signature = AttentionSignature<Tensors<5>, const Tensor&, const Tensor&, const Tensor&,
                                       const Tensor&, bool>;
  static const auto handle = c10::Dispatcher::singleton()
                                 .findSchemaOrThrow("tsallis::attention_on_pages", "")
                                 .typed<Signature>();
  const at::AutoDispatchBelowADInplaceOrView guard;
  return CallWithSettings(handle, options, q, k_pages, v_pages, block_table, want_stats);
}

}  // namespace

TORCH_LIBRARY_IMPL(tsallis, CPU, m) {
  m.impl("attention_on_pages", AttentionOperator<OpOnPagesCpu>::Call);
}
TORCH_LIBRARY_IMPL(tsallis, CUDA, m) {
  m.impl("attention_on_pages", AttentionOperator<OpOnPagesCuda>::Call);
}
TORCH_LIBRARY_IMPL(tsallis, Meta, m) {
  m.impl("attention_on_pages", AttentionOperator<OpOnPagesMeta>::Call);
}
TORCH_LIBRARY_IMPL(tsallis, Autograd, m) {
  m.impl("attention_on_pages", AttentionOperator<OpOnPagesAutograd>::Call);
}

}  // namespace tsallis
