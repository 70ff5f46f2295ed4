// Attention on pages of the caller's, and writing to them.
#include <algorithm>
#include <string>
#include <utility>

#include "stable/attention.h"

namespace tsallis::stable {
namespace {

using Sizes4 = std::array<std::int64_t, 4>;

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
