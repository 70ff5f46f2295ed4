// Finds the keys and values of a sequence in a cache.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention/geometry.h"
#include "tsallis/kv_cache.h"

namespace tsallis {

// Bytes of a page: layers behind each other, in a layer the bytes, keys and values of all key
// heads.
struct CacheLayout {
  std::int64_t bytes = 0, keys = 0, values = 0;              // within a layer
  std::int64_t byte_head = 0, key_head = 0, value_head = 0;  // from a key head to the next
  // Ranges and moments; -1: none.
  std::int64_t ranges = -1, moments = -1, fact_head = 0;
  std::int64_t layer = 0, page_bytes = 0;

  static CacheLayout Of(const KvCacheShape& shape, const KvCacheOptions& options);
};

// One layer of a sequence, as long as nothing changes the sequence.
class CacheReader {
 public:
  // Throws InvalidArgument.
  CacheReader(const KvCache& cache, KvCache::Sequence sequence, std::int64_t layer);

  std::int64_t length() const { return length_; }
  const std::byte* const* pages() const { return pages_; }
  // [kv_heads]: no key of the layer has a larger norm.
  const float* key_norms() const { return key_norms_; }
  HeadRows Keys(std::int64_t head) const {
    return Rows(layer_ + layout_.keys + head * layout_.key_head, shape_.head_dim);
  }
  HeadRows Values(std::int64_t head) const {
    return Rows(layer_ + layout_.values + head * layout_.value_head, shape_.value_dim);
  }

 private:
  HeadRows Rows(std::int64_t offset, std::int64_t columns) const {
    return HeadRows::InPages(pages_, offset, shape_.dtype,
                             columns * static_cast<std::int64_t>(SizeOf(shape_.dtype)),
                             HeadRows::kPageShift);
  }

  const CacheLayout& layout_;
  const KvCacheShape& shape_;
  const std::byte* const* pages_ = nullptr;
  const float* key_norms_ = nullptr;
  std::int64_t layer_ = 0;  // where it begins in a page
  std::int64_t length_ = 0;
};

}  // namespace tsallis
