// For tests: a call's keys and values in pages that lie anywhere.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "attention/geometry.h"

namespace tsallis {

// Copies in pages of 2^page_shift rows, each in memory of its own that begins with something else;
// rows that are no keys are left out, so that a sanitizer sees who reads them.
class PagedRows {
 public:
  PagedRows(const AttentionParams& params, int page_shift, std::uint64_t seed) : engine_(seed) {
    pages_.page_shift = page_shift;
    const std::int64_t batch = ArrayBatch(params);
    Fill(params.k, batch, params, params.head_dim, pages_.keys, keys_);
    Fill(params.v, batch, params, params.value_dim, pages_.values, values_);
  }
  PagedRows(const PagedRows&) = delete;
  PagedRows& operator=(const PagedRows&) = delete;

  // The call on the copies.
  AttentionParams Call(AttentionParams params) const {
    params.k.data = params.v.data = nullptr;
    params.pages = &pages_;
    return params;
  }

 private:
  struct Memory {
    std::vector<std::vector<std::byte>> pages;
    std::vector<const std::byte*> addresses;
    std::vector<const std::byte* const*> tables;
  };

  void Fill(const ConstArray4& from, std::int64_t batch, const AttentionParams& params,
            std::int64_t columns, KeyValuePages::RowPages& rows, Memory& memory) {
    const auto size = static_cast<std::int64_t>(SizeOf(from.dtype));
    const std::int64_t count = std::int64_t{1} << pages_.page_shift, heads = params.kv_heads;
    const std::int64_t each = (params.k_len + count - 1) / count;
    const auto draw = [&](std::uint64_t below) {
      return static_cast<std::int64_t>(engine_() % below);
    };
    rows.step = from.strides[3] == 1 ? 1 : 2;
    rows.row_bytes = (columns * rows.step + draw(3)) * size;
    rows.offset = draw(5) * size;
    rows.head = count * rows.row_bytes + draw(2) * size;
    for (std::int64_t b = 0; b < batch; ++b) {
      for (std::int64_t page = 0; page < each; ++page) {
        const std::int64_t last = std::min(count, params.k_len - page * count) - 1;
        const std::int64_t bytes = rows.offset + (heads - 1) * rows.head + last * rows.row_bytes +
                                   ((columns - 1) * rows.step + 1) * size;
        std::vector<std::byte>& here =
            memory.pages.emplace_back(static_cast<std::size_t>(heads > 0 ? bytes : 0));
        for (std::int64_t h = 0; h < heads; ++h) {
          for (std::int64_t i = 0; i <= last; ++i) {
            for (std::int64_t x = 0; x < columns; ++x) {
              std::memcpy(here.data() + rows.offset + h * rows.head + i * rows.row_bytes +
                              x * rows.step * size,
                          static_cast<const std::byte*>(from.data) +
                              Offset(from.strides, b, h, page * count + i, x) * size,
                          static_cast<std::size_t>(size));
            }
          }
        }
      }
    }
    for (const std::vector<std::byte>& page : memory.pages) {
      memory.addresses.push_back(page.data());
    }
    // Packed sequences share what is one sequence of pages here.
    for (std::int64_t b = 0; b < params.batch; ++b) {
      memory.tables.push_back(memory.addresses.data() + (params.ranges.packed ? 0 : b * each));
    }
    rows.tables = memory.tables.data();
  }

  std::mt19937_64 engine_;
  KeyValuePages pages_;
  Memory keys_, values_;
};

}  // namespace tsallis
