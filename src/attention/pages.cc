// Attention on pages: checks, and CPUs, which read few queries' pages where they lie and else
// gather those of every sequence into one array.
#include "attention/pages.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include "attention/check.h"
#include "attention/cpu/decode/decode.h"
#include "attention/cuda/cuda.h"
#include "attention/features.h"
#include "attention/geometry.h"
#include "attention/kernels.h"
#include "core/parallel.h"
#include "tsallis/error.h"

namespace tsallis {
namespace {

using std::to_string;

constexpr std::int64_t kMostPageSize = std::int64_t{1} << 20;

// Rows of all sequences, one after the other: [batch, kv_heads, most, columns].
struct Gathered {
  std::int64_t most = 0;  // of a sequence
  std::vector<std::int64_t> begins, ends;
  std::vector<std::byte> k, v;

  static std::size_t Bytes(const AttentionParams& params, std::int64_t keys) {
    return static_cast<std::size_t>(params.batch * params.kv_heads * keys *
                                    (params.head_dim + params.value_dim)) *
           SizeOf(params.q.dtype);
  }
};

// Checks lengths, and the entries of the table that are read.
void SetLengths(const AttentionParams& params, const AttentionPages& pages, Gathered& gathered) {
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
    gathered.begins.push_back(0);
    gathered.ends.push_back(length);
    gathered.most = std::max(gathered.most, length);
  }
}

ConstArray4 Gather(const Context& context, const AttentionParams& params,
                   const AttentionPages& pages, const ConstArray4& from, std::int64_t columns,
                   const Gathered& gathered, std::vector<std::byte>& memory) {
  const auto size = static_cast<std::int64_t>(SizeOf(from.dtype));
  const std::int64_t row = columns * size, head = gathered.most * row;
  memory.resize(static_cast<std::size_t>(params.batch * params.kv_heads * head));
  ParallelFor(context, params.batch * params.kv_heads, 1, [&](std::int64_t i, std::int64_t end) {
    for (; i < end; ++i) {
      const std::int64_t b = i / params.kv_heads, kv = i % params.kv_heads;
      for (std::int64_t key = 0; key < gathered.ends[static_cast<std::size_t>(b)]; ++key) {
        const std::int64_t place = b * pages.table_stride + key / pages.page_size;
        const auto* source =
            static_cast<const std::byte*>(from.data) +
            Offset(from.strides, IntegerAt(pages.table, place), kv, key % pages.page_size) * size;
        std::byte* to = memory.data() + i * head + key * row;
        if (from.strides[3] == 1) {
          std::memcpy(to, source, static_cast<std::size_t>(row));
          continue;
        }
        for (std::int64_t c = 0; c < columns; ++c) {
          std::memcpy(to + c * size, source + c * from.strides[3] * size,
                      static_cast<std::size_t>(size));
        }
      }
    }
  });
  return {memory.data(),
          from.dtype,
          {params.kv_heads * gathered.most * columns, gathered.most * columns, columns, 1}};
}

// Queries of a sequence for which every one may read all keys, at most: gathering reads them once,
// writes them and reads them again.
constexpr std::int64_t kFewQueries = 16;

// Whether the decode kernel reads these pages.
bool InPlace(const AttentionParams& params, const AttentionPages& pages) {
  return params.q_len <= kFewQueries &&
         std::has_single_bit(static_cast<std::uint64_t>(pages.page_size)) &&
         pages.k.strides[3] == 1 && pages.v.strides[3] == 1 &&
         Refusal(kDecodeAttention.serves, params, FeaturesOf(params), Pass::kForward).empty();
}

// Addresses of the pages of every sequence: [batch] tables.
class PageTables {
 public:
  PageTables(const AttentionParams& params, const AttentionPages& pages, const ConstArray4& of,
             const Gathered& lengths) {
    const auto page_bytes = of.strides[0] * static_cast<std::int64_t>(SizeOf(of.dtype));
    std::vector<std::size_t> begins;
    for (std::int64_t b = 0; b < params.batch; ++b) {
      begins.push_back(addresses_.size());
      for (std::int64_t i = 0; i * pages.page_size < lengths.ends[static_cast<std::size_t>(b)];
           ++i) {
        const std::int64_t page = IntegerAt(pages.table, b * pages.table_stride + i);
        addresses_.push_back(static_cast<const std::byte*>(of.data) + page * page_bytes);
      }
    }
    for (const std::size_t begin : begins) tables_.push_back(addresses_.data() + begin);
  }
  const std::byte* const* const* data() const { return tables_.data(); }

 private:
  std::vector<const std::byte*> addresses_;
  std::vector<const std::byte* const*> tables_;
};

void ReadInPlace(const Context& context, const AttentionParams& params, const AttentionPages& pages,
                 const Gathered& lengths, const AttentionOutputs& outputs) {
  const PageTables keys(params, pages, pages.k, lengths), values(params, pages, pages.v, lengths);
  const auto size = static_cast<std::int64_t>(SizeOf(params.q.dtype));
  const decode::Pages in_place{
      .tables = keys.data(),
      .value_tables = values.data(),
      .page_shift = std::countr_zero(static_cast<std::uint64_t>(pages.page_size)),
      .key_bytes = pages.k.strides[2] * size,
      .value_bytes = pages.v.strides[2] * size,
      .key_head = pages.k.strides[1] * size,
      .value_head = pages.v.strides[1] * size};
  decode::Forward(context, params, &in_place, outputs, {}, AllRows(params), nullptr);
}

}  // namespace

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
  Gathered gathered;
  SetLengths(call, pages, gathered);
  const bool in_place = InPlace(call, pages);
  call.k_len = gathered.most;
  call.ranges.k_begin = gathered.begins.data();
  call.ranges.k_end = gathered.ends.data();
  if (in_place) {
    ReadInPlace(context, call, pages, gathered, outputs);
    return;
  }
  call.k = Gather(context, call, pages, pages.k, call.head_dim, gathered, gathered.k);
  call.v = Gather(context, call, pages, pages.v, call.value_dim, gathered, gathered.v);
  AttentionForward(context, call, outputs);
}

std::size_t AttentionOnPagesWorkspaceBytes(const Context& context, const AttentionParams& params,
                                           const AttentionPages& pages) {
  const AttentionParams call = CheckedOnPages(params, pages);
  if (context.device == DeviceKind::kCuda) return cuda::OnPagesWorkspaceBytes(call, pages);
  return InPlace(call, pages) ? 0 : Gathered::Bytes(call, call.k_len);
}

}  // namespace tsallis
