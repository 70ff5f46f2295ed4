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
// Sequences may differ in their number of queries (query_starts): prompts in pieces and single new
// tokens go in one call.
//
// Entries of the table behind a sequence's last page are not read. The CPU checks lengths and the
// entries that it reads. On a CUDA device both lie in its memory and are not checked: a length is
// cut off at what the table has room for, and a query that sees a page that does not exist gets NaN
// as its output and -1 as its support size.
//
// Screening bytes lie beside the pages, in memory of the caller's. PutOnPages() writes them with
// the keys, and for few queries a sequence AttentionOnPages() scores exactly those keys that may
// have a weight by them, as KvCache does: the output keeps its bits. They belong to a page as its
// keys do: a copy of a page is a copy of its bytes, and sequences that share a page share them.
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

// Bytes to screen by of 64 keys of a key head: 64 (head_dim + 13), with head_dim rounded up to a
// multiple of 4.
std::size_t ScreenBytes(std::int64_t head_dim);

inline constexpr std::int64_t kScreenKeys = 64;

// [pages, kv_heads, page_size / 64, ScreenBytes(head_dim)] bytes, at addresses that are multiples
// of 4; null: none. page_size is a multiple of 64.
struct PageScreen {
  void* data = nullptr;
  std::int64_t page = 0, head = 0;  // bytes from a page to the next, from a key head to the next
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
  // [batch + 1] or null: sequence b has the queries [query_starts[b], query_starts[b + 1]) of the
  // axis of rows, on which all lie behind each other. q, the output, its statistics and the terms
  // have a batch axis of 1 then, and q_len is the length of the axis: rows that belong to no
  // sequence are not written. Not on CUDA devices.
  ConstIntegers query_starts;
  // Entmax takes up to 64 queries a sequence through it, every other call ignores it. CPUs alone.
  PageScreen screen;
};

// k, v, k_len and ranges of `params` are not used; `saved` of the outputs neither. Softmax and
// entmax on CUDA devices (alpha in [1.1, 2] and 1), every map on CPUs; no boolean masks, block
// masks and bias. Throws InvalidArgument, and DeviceError where a device fails.
void AttentionOnPages(const Context& context, const AttentionParams& params,
                      const AttentionPages& pages, const AttentionOutputs& outputs);

// New keys and values, and where on the pages they go.
struct PageTokens {
  std::int64_t tokens = 0, kv_heads = 0, head_dim = 0, value_dim = 0;
  ConstArray4 k;  // [1, kv_heads, tokens, head_dim]
  ConstArray4 v;  // [1, kv_heads, tokens, value_dim]
  // [tokens]: slot page * page_size + row. -1: the token is skipped. Of two tokens for one slot the
  // later one stays.
  ConstIntegers slots;
};
struct PageArrays {
  std::int64_t pages = 0, page_size = 0;
  MutableArray4 k, v;  // as AttentionPages has them, of the dtype of the tokens
  PageScreen screen;
};

// Writes keys, values and screening bytes of tokens. The keys before a token on its page are there
// already: pages fill from their first row on, and what was on a page before is forgotten with a
// token for its first row. CPUs alone. Throws InvalidArgument, and then has written nothing.
void PutOnPages(const Context& context, const PageTokens& tokens, const PageArrays& pages);

// Bytes that a call allocates at most.
std::size_t AttentionOnPagesWorkspaceBytes(const Context& context, const AttentionParams& params,
                                           const AttentionPages& pages);

}  // namespace tsallis
