// Keys and values of every layer of texts that a model continues, where the model is: KvCache on
// the CPU, DevicePages elsewhere. Both have pages of KvCache::kPage tokens, which forks share.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <map>
#include <memory>
#include <variant>
#include <vector>

#include "lab/nn/sequence_rows.h"
#include "tsallis/kv_cache.h"

namespace tsallis::lab {

// Where rows of a call find the keys that they see: key i of a row is row i % kPage of page
// table[row, i / kPage].
struct RowPages {
  at::Tensor slots{};        // [rows] int64, page * kPage + row of a row's own key; undefined: none
  at::Tensor table{};        // [rows, most pages of a row] int32
  at::Tensor lengths{};      // [rows] int32, keys that each row sees
  std::int64_t longest = 0;  // of lengths
};

// Pages in one tensor of a device, which grows to twice its pages, with their tables on the host.
class DevicePages : Fixed {
 public:
  using Sequence = KvCache::Sequence;

  // max_bytes: of pages; 0: no limit.
  DevicePages(const KvCacheShape& shape, std::int64_t max_bytes, const c10::Device& device);

  // These are as KvCache's.
  Sequence Create() { return Add({}); }
  Sequence Fork(Sequence from) { return Add(Of(from)); }
  void Free(Sequence sequence);
  void Truncate(Sequence sequence, std::int64_t length);
  std::int64_t Length(Sequence sequence) const { return Of(sequence).length; }

  // Adds the rows to the sequences, whose keys and values are still to be written. Throws
  // CacheFull, and then has added nothing.
  void Grow(const std::vector<Sequence>& sequences, const SequenceRows& rows);
  // new_rows: each row sees the keys up to its own; else all of its sequence.
  RowPages PagesOf(const std::vector<Sequence>& sequences, const SequenceRows& rows,
                   bool new_rows) const;

  // A layer's keys, or values: [pages, kPage, heads, head_dim].
  at::Tensor Keys(std::int64_t layer) const { return stored_.select(0, 0).select(0, layer); }
  at::Tensor Values(std::int64_t layer) const { return stored_.select(0, 1).select(0, layer); }

 private:
  using Page = std::shared_ptr<const std::int32_t>;  // its number, which is free with the last use
  struct Tokens {
    std::vector<Page> pages;
    std::int64_t length = 0;
  };
  Tokens& Of(Sequence sequence) const;
  Sequence Add(Tokens tokens);
  void MakeRoom(std::size_t pages);  // so many free ones
  Page Take();

  std::int64_t max_bytes_;
  at::Tensor stored_;  // [keys and values, layers, pages, kPage, heads, head_dim]
  std::vector<std::int32_t> free_;
  std::map<Sequence, std::unique_ptr<Tokens>> sequences_;
  Sequence next_ = 1;
};

using TextCache = std::variant<KvCache, DevicePages>;

inline std::int64_t LengthOf(const TextCache& cache, KvCache::Sequence sequence) {
  return std::visit([&](const auto& of) { return of.Length(sequence); }, cache);
}

// Rows of a call, and the sequences of a cache that they are of.
struct CachedRows {
  // new_rows: the sequences grow by the rows, which may throw CacheFull; else the rows see all that
  // there is of them. All must outlive it.
  CachedRows(TextCache& of, const std::vector<KvCache::Sequence>& which, const SequenceRows& rows,
             bool new_rows);

  TextCache& cache;
  const std::vector<KvCache::Sequence>& sequences;  // as the rows'
  RowPages pages;                                   // of DevicePages
};

}  // namespace tsallis::lab
