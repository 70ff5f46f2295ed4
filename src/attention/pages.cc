// Attention on pages: checks, the addresses that CPU kernels read them by, and which sequences of a
// call go to a kernel together.
#include "attention/pages.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "attention/check.h"
#include "attention/cpu/decode/decode.h"
#include "attention/cuda/cuda.h"
#include "attention/geometry.h"
#include "attention/kernels.h"
#include "tsallis/error.h"

namespace tsallis {
namespace {

using std::to_string;

// Keys of every sequence, from the first of its pages on, and the queries of packed ones.
struct Lengths {
  std::vector<std::int64_t> begins, ends, q_begins, q_ends;
};

// Checks lengths, starts of queries, and the entries of the table that are read.
Lengths LengthsOf(const AttentionParams& params, const AttentionPages& pages) {
  Lengths lengths;
  std::int64_t last = 0;
  for (std::int64_t b = 0; params.ranges.packed && b <= params.batch; ++b) {
    const std::int64_t start = IntegerAt(pages.query_starts, b);
    if (start < last || start > params.q_len) {
      throw InvalidArgument("pages.query_starts[" + to_string(b) + "]",
                            "an integer in [" + to_string(last) + ", " + to_string(params.q_len) +
                                "] (ascending, within the packed rows)",
                            to_string(start));
    }
    if (b > 0) lengths.q_ends.push_back(start);
    if (b < params.batch) lengths.q_begins.push_back(start);
    last = start;
  }
  for (std::int64_t b = 0; b < params.batch; ++b) {
    const std::int64_t length = IntegerAt(pages.lengths, b);
    if (length < 0 || length > params.k_len) {
      throw InvalidArgument(
          "pages.lengths[" + to_string(b) + "]",
          "0 to " + to_string(params.k_len) + ", as many keys as a sequence's pages have room for",
          to_string(length));
    }
    for (std::int64_t i = 0; i * pages.page_size < length; ++i) {
      const std::int64_t page = IntegerAt(pages.table, b * pages.table_stride + i);
      if (page >= 0 && page < pages.pages) continue;
      throw InvalidArgument("pages.table[" + to_string(b) + ", " + to_string(i) + "]",
                            "one of " + to_string(pages.pages) + " pages", to_string(page));
    }
    lengths.begins.push_back(0);
    lengths.ends.push_back(length);
  }
  return lengths;
}

// Kernels read pages of a power of two of keys: the largest of which a page is made.
std::int64_t PartOf(std::int64_t page_size) { return page_size & -page_size; }

// Addresses of parts of every sequence's pages, [batch] tables of them.
class PageTables {
 public:
  // `part` keys of a page begin part_bytes behind those before them.
  PageTables(const AttentionParams& params, const AttentionPages& pages, const Lengths& lengths,
             const void* data, std::int64_t page_bytes, std::int64_t part,
             std::int64_t part_bytes) {
    const std::int64_t parts = pages.page_size / part;
    std::vector<std::size_t> begins;
    for (std::int64_t b = 0; b < params.batch; ++b) {
      begins.push_back(addresses_.size());
      const std::int64_t length = lengths.ends[static_cast<std::size_t>(b)];
      for (std::int64_t i = 0; i * part < length; ++i) {
        const std::int64_t page = IntegerAt(pages.table, b * pages.table_stride + i / parts);
        addresses_.push_back(static_cast<const std::byte*>(data) + page * page_bytes +
                             i % parts * part_bytes);
      }
    }
    for (const std::size_t begin : begins) tables_.push_back(addresses_.data() + begin);
  }
  static PageTables OfRows(const AttentionParams& params, const AttentionPages& pages,
                           const Lengths& lengths, const ConstArray4& rows) {
    const auto size = static_cast<std::int64_t>(SizeOf(rows.dtype));
    const std::int64_t part = PartOf(pages.page_size);
    return PageTables(params, pages, lengths, rows.data, rows.strides[0] * size, part,
                      part * rows.strides[2] * size);
  }
  PageTables(const PageTables&) = delete;
  PageTables& operator=(const PageTables&) = delete;

  const std::byte* const* const* data() const { return tables_.data(); }
  static std::size_t Bytes(const AttentionParams& params, const AttentionPages& pages) {
    const std::int64_t parts = pages.page_size / PartOf(pages.page_size);
    return static_cast<std::size_t>(params.batch * (pages.table_width * parts + 1)) *
           sizeof(const std::byte*);
  }

 private:
  std::vector<const std::byte*> addresses_;
  std::vector<const std::byte* const*> tables_;
};

KeyValuePages::RowPages RowsOf(const ConstArray4& array, const PageTables& tables) {
  const auto size = static_cast<std::int64_t>(SizeOf(array.dtype));
  return {.tables = tables.data(),
          .row_bytes = array.strides[2] * size,
          .head = array.strides[1] * size,
          .step = array.strides[3]};
}

int ShiftOf(const AttentionPages& pages) {
  return std::countr_zero(static_cast<std::uint64_t>(PartOf(pages.page_size)));
}

ConstArray4 From(ConstArray4 array, std::int64_t b) {
  if (array.data == nullptr) return array;
  array.data = static_cast<const std::byte*>(array.data) +
               b * array.strides[0] * static_cast<std::int64_t>(SizeOf(array.dtype));
  return array;
}

}  // namespace

void RunForwardOfSequence(const Context& context, AttentionParams call, AttentionOutputs outputs,
                          std::int64_t b) {
  KeyValuePages pages = *call.pages;
  pages.keys.tables += b;
  pages.values.tables += b;
  call.pages = &pages;
  call.batch = 1;
  if (call.ranges.k_begin != nullptr) call.ranges.k_begin += b;
  call.ranges.k_end += b;
  call.k_len = *call.ranges.k_end;
  if (call.ranges.packed) {  // its rows are where they are
    call.ranges.q_begin += b;
    call.ranges.q_end += b;
    RunForward(context, call, outputs);
    return;
  }
  call.q = From(call.q, b);
  call.terms.length_scale = From(call.terms.length_scale, b);
  call.terms.alibi_slopes = From(call.terms.alibi_slopes, b);
  call.terms.bias = From(call.terms.bias, b);
  if (call.mask.visible != nullptr) call.mask.visible += b * call.mask.visible_strides[0];
  if (call.mask.blocks != nullptr) call.mask.blocks += b * call.mask.block_strides[0];
  const auto rows = b * call.heads * call.q_len;
  outputs.out.data =
      static_cast<std::byte*>(outputs.out.data) +
      b * outputs.out.strides[0] * static_cast<std::int64_t>(SizeOf(outputs.out.dtype));
  if (outputs.tau != nullptr) outputs.tau += rows;
  if (outputs.support_size != nullptr) outputs.support_size += rows;
  if (outputs.entropy != nullptr) outputs.entropy += rows;
  if (outputs.maximum != nullptr) outputs.maximum += rows;
  RunForward(context, call, outputs);
}

AttentionParams CheckedOnPages(AttentionParams params, const AttentionPages& pages) {
  CheckSize("pages.pages", pages.pages, 0, std::int64_t{1} << 40);
  CheckSize("pages.page_size", pages.page_size, 1, kMostPageSize);
  CheckSize("pages.table_width", pages.table_width, 0, 0x7FFFFFFF / pages.page_size);
  const auto there = [&](const char* name, const ConstIntegers& integers, std::int64_t count) {
    if (count <= 0 || integers.data != nullptr) return;
    throw InvalidArgument(name, "data of " + to_string(count) + " integers", "null");
  };
  const bool packed = pages.query_starts.data != nullptr;
  const std::int64_t sequences = params.batch;
  CheckSize("batch", sequences, 0, std::int64_t{1} << 40);
  there("pages.table", pages.table, params.batch * pages.table_width);
  there("pages.lengths", pages.lengths, params.batch);
  const auto array = [&](const char* name, const ConstArray4& of_pages, std::int64_t columns) {
    if (of_pages.dtype != params.q.dtype) {
      throw InvalidArgument(name, std::string("the dtype of q, ") + Name(params.q.dtype),
                            Name(of_pages.dtype));
    }
    const std::int64_t count = pages.pages * params.kv_heads * pages.page_size * columns;
    if (count <= 0 || of_pages.data != nullptr) return;
    throw InvalidArgument(name, "data of " + to_string(count) + " elements", "null");
  };
  array("pages.k", pages.k, params.head_dim);
  array("pages.v", pages.v, params.value_dim);
  CheckScreen("pages.screen", pages.screen, pages.page_size);
  const AttentionMask& mask = params.mask;
  if (mask.visible != nullptr || mask.blocks != nullptr) {
    throw InvalidArgument("mask", "no boolean mask and no block mask on pages", "a pointer");
  }
  if (params.terms.bias.data != nullptr) {
    throw InvalidArgument("terms.bias", "none on pages", "a bias");
  }
  params.ranges = {};
  // The checks of arrays see no keys.
  params.k_len = 0;
  params.k = params.v = params.q;
  if (packed) params.batch = 1;  // the length of the batch axis
  CheckAttention(params, DeviceKind::kCuda);
  params.batch = sequences;
  params.ranges.packed = packed;
  params.k_len = pages.table_width * pages.page_size;
  params.k = pages.k;
  params.v = pages.v;
  return params;
}

std::size_t ScreenBytes(std::int64_t head_dim) {
  CheckSize("head_dim", head_dim, 1, 512);
  return static_cast<std::size_t>(decode::PageBytes(head_dim) + kScreenKeys);
}

void CheckScreen(const char* name, const PageScreen& screen, std::int64_t page_size) {
  if (screen.data == nullptr) return;
  if (page_size % kScreenKeys != 0) {
    throw InvalidArgument(name, "none for pages that are no multiple of 64 keys",
                          "one for pages of " + to_string(page_size));
  }
  const auto odd = [](std::int64_t number) { return number % 4 != 0; };
  if (odd(screen.page) || odd(screen.head) ||
      odd(static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(screen.data)))) {
    throw InvalidArgument(name, "addresses that are multiples of 4", "others");
  }
}

namespace {

// The norm of the largest key of each sequence and key head, as far as the pages know.
class KeyNorms {
 public:
  KeyNorms(const AttentionParams& call, const PageScreen& screen, const Lengths& lengths,
           const PageTables& tables)
      : norms_(static_cast<std::size_t>(call.batch * call.kv_heads)) {
    for (std::int64_t b = 0; b < call.batch; ++b) {
      rows_.push_back(norms_.data() + b * call.kv_heads);
      for (std::int64_t kv = 0; kv < call.kv_heads; ++kv) {
        float& norm = norms_[static_cast<std::size_t>(b * call.kv_heads + kv)];
        for (std::int64_t i = 0; i * kScreenKeys < lengths.ends[static_cast<std::size_t>(b)]; ++i) {
          norm = std::max(norm, *ScreenNorm(tables.data()[b][i] + kv * screen.head, call.head_dim));
        }
      }
    }
  }
  const float* const* data() const { return rows_.data(); }

 private:
  std::vector<float> norms_;
  std::vector<const float*> rows_;
};

}  // namespace

void AttentionOnPages(const Context& context, const AttentionParams& params,
                      const AttentionPages& pages, const AttentionOutputs& outputs) {
  AttentionParams call = CheckedOnPages(params, pages);
  CheckOutputs(call, outputs);
  if (context.device == DeviceKind::kCuda) {
    const auto none = [](const char* name, const void* data) {
      if (data != nullptr) throw InvalidArgument(name, "null on a CUDA device", "a pointer");
    };
    none("pages.query_starts", pages.query_starts.data);
    none("pages.screen", pages.screen.data);
    cuda::ForwardOnPages(context, call, pages, outputs);
    return;
  }
  const Lengths lengths = LengthsOf(call, pages);
  call.ranges.k_begin = lengths.begins.data();
  call.ranges.k_end = lengths.ends.data();
  if (call.ranges.packed) {
    call.ranges.q_begin = lengths.q_begins.data();
    call.ranges.q_end = lengths.q_ends.data();
  }
  for (const std::int64_t end : lengths.ends) call.k_len = std::max(call.k_len, end);
  const PageTables keys = PageTables::OfRows(call, pages, lengths, pages.k),
                   values = PageTables::OfRows(call, pages, lengths, pages.v);
  const KeyValuePages in_place{.page_shift = ShiftOf(pages),
                               .keys = RowsOf(pages.k, keys),
                               .values = RowsOf(pages.v, values)};
  call.pages = &in_place;
  if (pages.screen.data == nullptr || call.map != RowMap::kEntmax) {
    RunForwardOfSequences(context, call, {}, outputs);
    return;
  }
  const PageTables bytes(call, pages, lengths, pages.screen.data, pages.screen.page, kScreenKeys,
                         static_cast<std::int64_t>(ScreenBytes(call.head_dim)));
  decode::Screens screens{
      .byte_offset = 0, .byte_head = pages.screen.head, .byte_tables = bytes.data()};
  std::optional<KeyNorms> norms;
  if (call.terms.alibi_slopes.data != nullptr || call.terms.scale_invariant > 0.0) {
    norms.emplace(call, pages.screen, lengths, bytes);
    screens.key_norms = norms->data();
  }
  RunForwardOfSequences(context, call, screens, outputs);
}

std::size_t AttentionOnPagesWorkspaceBytes(const Context& context, const AttentionParams& params,
                                           const AttentionPages& pages) {
  AttentionParams call = CheckedOnPages(params, pages);
  if (context.device == DeviceKind::kCuda) return cuda::OnPagesWorkspaceBytes(call, pages);
  KeyValuePages in_place;
  in_place.page_shift = ShiftOf(pages);
  call.pages = &in_place;
  // Without ranges each sequence counts as one with all queries.
  call.ranges = {};
  if (pages.query_starts.data != nullptr) call.batch = std::min<std::int64_t>(call.batch, 1);
  const std::size_t integers =
      static_cast<std::size_t>(params.batch) *
      (5 * sizeof(std::int64_t) + static_cast<std::size_t>(params.kv_heads + 2) * sizeof(float));
  return 3 * PageTables::Bytes(params, pages) + integers + RunBytes(context, call, Pass::kForward);
}

}  // namespace tsallis
