// Attention on pages: checks, and the addresses that CPU kernels read them by.
#include "attention/pages.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <string>
#include <vector>

#include "attention/check.h"
#include "attention/cuda/cuda.h"
#include "attention/geometry.h"
#include "attention/kernels.h"
#include "tsallis/error.h"

namespace tsallis {
namespace {

using std::to_string;

constexpr std::int64_t kMostPageSize = std::int64_t{1} << 20;

// Keys of every sequence, from the first of its pages on.
struct Lengths {
  std::int64_t most = 0;
  std::vector<std::int64_t> begins, ends;
};

// Checks lengths, and the entries of the table that are read.
Lengths LengthsOf(const AttentionParams& params, const AttentionPages& pages) {
  Lengths lengths;
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
    lengths.most = std::max(lengths.most, length);
  }
  return lengths;
}

// Kernels read pages of a power of two of keys: the largest of which a page is made.
std::int64_t PartOf(std::int64_t page_size) { return page_size & -page_size; }

// Addresses of the parts of every sequence's pages.
class PageTables {
 public:
  PageTables(const AttentionParams& params, const AttentionPages& pages, const ConstArray4& of,
             const Lengths& lengths)
      : rows_({.row_bytes = of.strides[2] * static_cast<std::int64_t>(SizeOf(of.dtype)),
               .head = of.strides[1] * static_cast<std::int64_t>(SizeOf(of.dtype)),
               .step = of.strides[3]}) {
    const auto page_bytes = of.strides[0] * static_cast<std::int64_t>(SizeOf(of.dtype));
    const std::int64_t part = PartOf(pages.page_size), parts = pages.page_size / part;
    std::vector<std::size_t> begins;
    for (std::int64_t b = 0; b < params.batch; ++b) {
      begins.push_back(addresses_.size());
      const std::int64_t length = lengths.ends[static_cast<std::size_t>(b)];
      for (std::int64_t i = 0; i * part < length; ++i) {
        const std::int64_t page = IntegerAt(pages.table, b * pages.table_stride + i / parts);
        addresses_.push_back(static_cast<const std::byte*>(of.data) + page * page_bytes +
                             i % parts * part * rows_.row_bytes);
      }
    }
    for (const std::size_t begin : begins) tables_.push_back(addresses_.data() + begin);
    rows_.tables = tables_.data();
  }
  PageTables(const PageTables&) = delete;
  PageTables& operator=(const PageTables&) = delete;

  const KeyValuePages::RowPages& rows() const { return rows_; }
  static std::size_t Bytes(const AttentionParams& params, const AttentionPages& pages) {
    const std::int64_t parts = pages.page_size / PartOf(pages.page_size);
    return static_cast<std::size_t>(params.batch * (pages.table_width * parts + 1)) *
           sizeof(const std::byte*);
  }

 private:
  std::vector<const std::byte*> addresses_;
  std::vector<const std::byte* const*> tables_;
  KeyValuePages::RowPages rows_;
};

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
  call.q = From(call.q, b);
  call.terms.length_scale = From(call.terms.length_scale, b);
  call.terms.alibi_slopes = From(call.terms.alibi_slopes, b);
  call.terms.bias = From(call.terms.bias, b);
  if (call.mask.visible != nullptr) call.mask.visible += b * call.mask.visible_strides[0];
  if (call.mask.blocks != nullptr) call.mask.blocks += b * call.mask.block_strides[0];
  if (call.ranges.k_begin != nullptr) call.ranges.k_begin += b;
  call.ranges.k_end += b;
  call.k_len = *call.ranges.k_end;
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
  const auto size = [](const char* name, std::int64_t value, std::int64_t least,
                       std::int64_t most) {
    if (value >= least && value <= most) return;
    throw InvalidArgument(name, "a size from " + to_string(least) + " to " + to_string(most),
                          to_string(value));
  };
  size("pages.pages", pages.pages, 0, std::int64_t{1} << 40);
  size("pages.page_size", pages.page_size, 1, kMostPageSize);
  size("pages.table_width", pages.table_width, 0, 0x7FFFFFFF / pages.page_size);
  const auto there = [&](const char* name, const ConstIntegers& integers, std::int64_t count) {
    if (count <= 0 || integers.data != nullptr) return;
    throw InvalidArgument(name, "data of " + to_string(count) + " integers", "null");
  };
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
  CheckAttention(params, DeviceKind::kCuda);
  params.k_len = pages.table_width * pages.page_size;
  params.k = pages.k;
  params.v = pages.v;
  return params;
}

void AttentionOnPages(const Context& context, const AttentionParams& params,
                      const AttentionPages& pages, const AttentionOutputs& outputs) {
  AttentionParams call = CheckedOnPages(params, pages);
  CheckOutputs(call, outputs);
  if (context.device == DeviceKind::kCuda) {
    cuda::ForwardOnPages(context, call, pages, outputs);
    return;
  }
  const Lengths lengths = LengthsOf(call, pages);
  call.k_len = lengths.most;
  call.ranges.k_begin = lengths.begins.data();
  call.ranges.k_end = lengths.ends.data();
  const PageTables keys(call, pages, pages.k, lengths), values(call, pages, pages.v, lengths);
  const KeyValuePages in_place{
      .page_shift = ShiftOf(pages), .keys = keys.rows(), .values = values.rows()};
  call.pages = &in_place;
  if (call.q_len == 1) {  // one kernel has them all, at every length
    RunForward(context, call, outputs);
    return;
  }
  for (std::int64_t b = 0; b < call.batch; ++b) RunForwardOfSequence(context, call, outputs, b);
}

std::size_t AttentionOnPagesWorkspaceBytes(const Context& context, const AttentionParams& params,
                                           const AttentionPages& pages) {
  AttentionParams call = CheckedOnPages(params, pages);
  if (context.device == DeviceKind::kCuda) return cuda::OnPagesWorkspaceBytes(call, pages);
  KeyValuePages in_place;
  in_place.page_shift = ShiftOf(pages);
  call.pages = &in_place;
  return 2 * PageTables::Bytes(call, pages) + RunBytes(context, call, Pass::kForward);
}

}  // namespace tsallis
