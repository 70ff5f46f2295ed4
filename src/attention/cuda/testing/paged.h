// For tests: a call's keys and values in pages, in a drawn order and layout, and calls on them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "attention/cuda/testing/draw.h"
#include "attention/cuda/testing/on_device.h"
#include "attention/geometry.h"
#include "attention/pages.h"
#include "tsallis/pages.h"

namespace tsallis::cuda {

// Memory for the pages of a call whose sequences begin at key 0 and end at ranges.k_end, if that is
// given. Rows that are no keys hold NaN, entries of the table behind a sequence's pages hold
// anything.
class InPages {
 public:
  InPages(const AttentionParams& params, std::int64_t page_size, std::uint64_t seed) {
    std::mt19937_64 engine(seed);
    const auto length_of = [&](std::int64_t b) {
      return params.ranges.k_end != nullptr ? params.ranges.k_end[b] : params.k_len;
    };
    const std::int64_t batch = params.batch, heads = params.kv_heads;
    const std::int64_t width = (params.k_len + page_size - 1) / page_size;
    const std::int64_t count = batch * width + 2;
    std::vector<std::int64_t> order(static_cast<std::size_t>(count));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), engine);
    pages_.pages = count;
    pages_.page_size = page_size;
    pages_.table_width = width;
    pages_.table_stride = width + 3;
    const bool wide = seed % 2 == 0;
    std::vector<std::int64_t> table(static_cast<std::size_t>(batch * pages_.table_stride), -7);
    std::vector<std::int64_t> lengths(static_cast<std::size_t>(batch));
    for (std::int64_t b = 0; b < batch; ++b) {
      lengths[static_cast<std::size_t>(b)] = length_of(b);
      for (std::int64_t i = 0; i * page_size < length_of(b); ++i) {
        table[static_cast<std::size_t>(b * pages_.table_stride + i)] =
            order[static_cast<std::size_t>(b * width + i)];
      }
    }
    const auto fill = [&](const ConstArray4& from, std::int64_t columns,
                          std::vector<std::byte>& memory) {
      const auto size = static_cast<std::int64_t>(SizeOf(from.dtype));
      memory.assign(static_cast<std::size_t>(count * heads * page_size * columns * size + 16),
                    std::byte{0xFF});
      ConstArray4 to = {memory.data(),
                        from.dtype,
                        {heads * page_size * columns, page_size * columns, columns, 1}};
      // [pages, page_size, kv_heads, columns] is as usual.
      if (seed / 2 % 2 == 0) {
        to.strides[1] = columns;
        to.strides[2] = heads * columns;
      }
      for (std::int64_t b = 0; b < batch; ++b) {
        for (std::int64_t key = 0; key < length_of(b); ++key) {
          const std::int64_t page =
              table[static_cast<std::size_t>(b * pages_.table_stride + key / page_size)];
          for (std::int64_t h = 0; h < heads; ++h) {
            for (std::int64_t c = 0; c < columns; ++c) {
              std::memcpy(memory.data() + Offset(to.strides, page, h, key % page_size, c) * size,
                          static_cast<const std::byte*>(from.data) +
                              Offset(from.strides, b, h, key, c) * size,
                          static_cast<std::size_t>(size));
            }
          }
        }
      }
      return to;
    };
    pages_.k = fill(params.k, params.head_dim, k_);
    pages_.v = fill(params.v, params.value_dim, v_);
    pages_.table = Keep(table, wide, table_);
    pages_.lengths = Keep(lengths, wide, lengths_);
  }
  InPages(const InPages&) = delete;
  InPages& operator=(const InPages&) = delete;

  const AttentionPages& pages() const { return pages_; }
  // Changes an entry of the table.
  void SetEntry(std::int64_t b, std::int64_t i, std::int64_t page) {
    const std::int64_t at = b * pages_.table_stride + i;
    if (pages_.table.wide) {
      std::memcpy(table_.data() + at * 8, &page, 8);
    } else {
      const auto narrow = static_cast<std::int32_t>(page);
      std::memcpy(table_.data() + at * 4, &narrow, 4);
    }
  }

 private:
  static ConstIntegers Keep(const std::vector<std::int64_t>& integers, bool wide,
                            std::vector<std::byte>& memory) {
    memory.resize(std::max<std::size_t>(1, integers.size()) * (wide ? 8 : 4));
    for (std::size_t i = 0; i < integers.size(); ++i) {
      const auto narrow = static_cast<std::int32_t>(integers[i]);
      if (wide) std::memcpy(memory.data() + i * 8, &integers[i], 8);
      if (!wide) std::memcpy(memory.data() + i * 4, &narrow, 4);
    }
    return {memory.data(), wide};
  }

  AttentionPages pages_;
  std::vector<std::byte> k_, v_, table_, lengths_;
};

// Copies of pages on a device.
template <class Device>
AttentionPages PagesOn(OnDevice<Device>& device, const AttentionParams& params,
                       AttentionPages pages) {
  pages.k = device.Elements(
      pages.k, {pages.pages, params.kv_heads, pages.page_size, params.head_dim}, false);
  pages.v = device.Elements(
      pages.v, {pages.pages, params.kv_heads, pages.page_size, params.value_dim}, false);
  const auto numbers = [&](ConstIntegers& integers, std::int64_t count) {
    integers.data = device.Numbers(static_cast<const std::byte*>(integers.data),
                                   count * (integers.wide ? 8 : 4), false);
  };
  numbers(pages.table, params.batch * pages.table_stride);
  numbers(pages.lengths, params.batch);
  return pages;
}

// The call on a device, but for its keys and values.
template <class Device>
AttentionParams QueriesOn(OnDevice<Device>& device, AttentionParams params) {
  params.k = params.v = {};
  params.ranges = {};
  return device.Params(params);
}

// A drawn problem with few queries that the kernels on pages serve.
inline ProblemSpec DrawPaged(std::uint64_t seed, std::int64_t most) {
  ProblemSpec spec = DrawServed(seed, most);
  const std::int64_t queries[] = {1, 1, 2, 5, 3};
  spec.q_len = queries[seed / 3 % 5];
  // Decoding has many keys; 1 to `most` of them.
  spec.k_len = 1 + static_cast<std::int64_t>(seed * 0x9E3779B97F4A7C15u >> 33) % most;
  spec.group = 1 + static_cast<std::int64_t>(seed / 7 % 6);
  spec.kv_heads = 1 + static_cast<std::int64_t>(seed / 5 % 2);
  spec.batch = most > 100 ? 1 : 1 + static_cast<std::int64_t>(seed / 2 % 2);
  const double alphas[] = {1.0, 1.1, 1.25, 1.5, 1.5, 1.5, 1.75, 2.0};
  spec.alpha = alphas[seed / 2 % 8];
  spec.alpha_per_head = false;
  spec.visible = 1.0;
  spec.block = 0;
  spec.bias = false;
  spec.ragged = ProblemSpec::Ragged::kNone;
  spec.garbage = false;
  spec.odd = ProblemSpec::Odd::kNone;
  return spec;
}

// Rows of several runs that keep more than a list holds, or nearly.
inline std::vector<ProblemSpec> RowsThatKeepMany(DType dtype) {
  ProblemSpec spec = {.dtype = dtype,
                      .group = 3,
                      .q_len = 2,
                      .k_len = 2500,
                      .head_dim = 8,
                      .value_dim = 16,
                      .alpha = 1.1,
                      .sink = true,
                      .causal = true,
                      .values = ProblemSpec::Values::kFlat};
  std::vector<ProblemSpec> specs = {spec};
  // Many keys of a row, and units without any.
  spec.slopes = spec.negative_slopes = true;
  specs.push_back(spec);
  spec.slopes = spec.negative_slopes = false;
  spec.values = ProblemSpec::Values::kNormal;
  spec.map = RowMap::kSoftmax;
  specs.push_back(spec);
  // A key with a value of NaN that the first query sees, and the second not.
  spec.values = ProblemSpec::Values::kNaN;
  spec.left = 1248;
  specs.push_back(spec);
  spec.values = ProblemSpec::Values::kNormal;
  spec.left = -1;
  // Some 280 of 512 keys reach the bound: the parts of a list are a little short.
  spec.map = RowMap::kEntmax;
  spec.alpha = 1.19;
  spec.k_len = 1100;
  specs.push_back(spec);
  // A list in the parts of several warps.
  spec.alpha = 2.0;
  spec.k_len = 2500;
  specs.push_back(spec);
  return specs;
}

inline std::int64_t DrawPageSize(std::uint64_t seed) {
  const std::int64_t sizes[] = {16, 64, 1, 3, 100, 32};
  return sizes[seed / 11 % 6];
}

}  // namespace tsallis::cuda
