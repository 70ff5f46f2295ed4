// Attention on keys and values in pages of the caller's, as serving engines keep them: any number
// of sequences own pages through a table, and may share them. For decoding: few queries, many keys.
// (KvCache in kv_cache.h is a cache of this library's own.)
//
// Key i of sequence b is row i % page_size of page table[b][i / page_size].
//
// AttentionOnPages() is AttentionForward() on the first lengths[b] keys of every sequence: the same
// map, mask, terms and statistics, and the same edges. With Alignment::kEnd and a causal mask the
// queries are the newest tokens, whose keys are in the pages already; queries before the first key
// see nothing and get 0.
//
// Entries of the table behind a sequence's last page are not read. The CPU checks lengths and the
// entries that it reads. On a CUDA device both lie in its memory and are not checked: a length is
// cut off at what the table has room for, and a query that sees a page that does not exist gets NaN
// as its output and -1 as its support size.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tsallis/attention.h"

namespace tsallis {

// Integers of the caller, of 32 or 64 bits, side by side.
struct ConstIntegers {
  const void* data = nullptr;
  bool wide = true;  // std::int64_t; else std::int32_t
};

struct AttentionPages {
  std::int64_t pages = 0;      // number of pages in k and v
  std::int64_t page_size = 0;  // keys of a page, 1 ... 2^20
  // The dtype is that of q. Strides may be anything on CPUs. On a CUDA device they are not
  // negative, columns lie side by side, and rows begin at multiples of 16 bytes.
  ConstArray4 k;                  // [pages, kv_heads, page_size, head_dim]
  ConstArray4 v;                  // [pages, kv_heads, page_size, value_dim]
  ConstIntegers table;            // [batch, table_width]
  std::int64_t table_width = 0;   // most pages of a sequence
  std::int64_t table_stride = 0;  // from a sequence to the next, in integers
  ConstIntegers lengths;          // [batch]: keys that each sequence has
};

// k, v, k_len and ranges of `params` are not used; `saved` of the outputs neither. Softmax and
// entmax on CUDA devices (alpha in [1.1, 2] and 1), every map on CPUs; no boolean masks, block
// masks and bias. Throws InvalidArgument, and DeviceError where a device fails.
void AttentionOnPages(const Context& context, const AttentionParams& params,
                      const AttentionPages& pages, const AttentionOutputs& outputs);

// Bytes that a call allocates at most.
std::size_t AttentionOnPagesWorkspaceBytes(const Context& context, const AttentionParams& params,
                                           const AttentionPages& pages);

}  // namespace tsallis
