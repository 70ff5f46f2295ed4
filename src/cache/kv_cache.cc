#include "tsallis/kv_cache.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "attention/check.h"
#include "attention/cpu/decode/decode.h"
#include "attention/geometry.h"
#include "cache/reader.h"
#include "core/parallel.h"
#include "simplex/elements.h"
#include "tsallis/error.h"

namespace tsallis {
namespace {

using std::to_string;

constexpr std::int64_t kSlabBytes = std::int64_t{4} << 20;
constexpr std::size_t kHugePage = std::size_t{2} << 20;

std::int64_t RoundUp(std::int64_t value, std::int64_t to) { return (value + to - 1) / to * to; }

void CheckSize(const char* name, std::int64_t size, std::int64_t most) {
  if (size >= 1 && size <= most) return;
  throw InvalidArgument(name, "a size from 1 to " + to_string(most), to_string(size));
}

}  // namespace

static_assert(KvCache::kPage == HeadRows::kPage);

// Pages, and who uses them.
class PagePool {
 public:
  PagePool(std::int64_t page_bytes, std::int64_t max_bytes)
      : page_bytes_(page_bytes),
        max_pages_(max_bytes > 0 ? max_bytes / page_bytes : INT64_MAX),
        slab_pages_(std::max<std::int64_t>(1, kSlabBytes / page_bytes)) {}
  ~PagePool() {
    for (std::byte* slab : slabs_) std::free(slab);
  }
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;

  // A page for one user.
  std::byte* Take() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) Grow();
    std::byte* page = free_.back();
    free_.pop_back();
    users_[page] = 1;
    return page;
  }
  void Share(std::byte* page) {
    const std::lock_guard lock(mutex_);
    ++users_.at(page);
  }
  void Leave(std::byte* page) {
    const std::lock_guard lock(mutex_);
    const auto found = users_.find(page);
    if (--found->second > 0) return;
    users_.erase(found);
    free_.push_back(page);
  }
  bool IsShared(std::byte* page) const {
    const std::lock_guard lock(mutex_);
    return users_.at(page) > 1;
  }
  void Account(KvCacheUse* use) const {
    const std::lock_guard lock(mutex_);
    use->pages = static_cast<std::int64_t>(users_.size());
    use->page_bytes = page_bytes_;
    use->bytes = (use->pages + static_cast<std::int64_t>(free_.size())) * page_bytes_;
    for (const auto& [page, users] : users_) use->shared_pages += users > 1 ? 1 : 0;
  }

 private:
  void Grow() {
    const auto used = static_cast<std::int64_t>(users_.size());
    const std::int64_t pages = std::min(slab_pages_, max_pages_ - used);
    if (pages < 1) {
      throw CacheFull("the cache is full: " + to_string(used) + " pages of " +
                      to_string(page_bytes_) + " bytes are in use, and max_bytes allows no more");
    }
    const auto bytes = static_cast<std::size_t>(
        RoundUp(pages * page_bytes_, static_cast<std::int64_t>(kHugePage)));
    slabs_.reserve(slabs_.size() + 1);
    free_.reserve(users_.size() + static_cast<std::size_t>(pages));
    auto* slab = static_cast<std::byte*>(std::aligned_alloc(kHugePage, bytes));
    if (slab == nullptr) throw std::bad_alloc();
    madvise(slab, bytes, MADV_HUGEPAGE);  // slower without, not wrong
    slabs_.push_back(slab);
    for (std::int64_t i = pages; i-- > 0;) free_.push_back(slab + i * page_bytes_);
  }

  std::int64_t page_bytes_, max_pages_, slab_pages_;
  mutable std::mutex mutex_;
  std::vector<std::byte*> slabs_, free_;
  std::unordered_map<std::byte*, std::int64_t> users_;
};

// A page holds, for every layer and key head, rows of keys, rows of values, and the keys' bytes.
struct KvCache::State {
  State(const KvCacheShape& of, const KvCacheOptions& with)
      : shape(of),
        options(with),
        layout(CacheLayout::Of(of, with)),
        pool(layout.page_bytes, with.max_bytes) {}

  struct Tokens {
    std::vector<std::int64_t> length;  // [layers]
    std::vector<std::byte*> pages;     // of the longest layer

    std::int64_t Shortest() const { return *std::min_element(length.begin(), length.end()); }
    std::int64_t Longest() const { return *std::max_element(length.begin(), length.end()); }
  };

  Tokens& Of(Sequence sequence) const {
    const std::lock_guard lock(mutex);
    const auto found = sequences.find(sequence);
    if (found == sequences.end()) {
      throw InvalidArgument("sequence", "one that was created and not freed", to_string(sequence));
    }
    return *found->second;
  }
  Sequence Add(std::unique_ptr<Tokens> tokens) {
    const std::lock_guard lock(mutex);
    sequences.emplace(next, std::move(tokens));
    return next++;
  }
  // Gives back what no layer reaches.
  void DropPages(Tokens& tokens) {
    const auto pages = static_cast<std::size_t>((tokens.Longest() + kPage - 1) / kPage);
    while (tokens.pages.size() > pages) {
      pool.Leave(tokens.pages.back());
      tokens.pages.pop_back();
    }
  }
  void CheckLayer(std::int64_t layer) const {
    if (layer >= 0 && layer < shape.layers) return;
    throw InvalidArgument("layer", "one from 0 to " + to_string(shape.layers - 1),
                          to_string(layer));
  }

  KvCacheShape shape;
  KvCacheOptions options;
  CacheLayout layout;
  PagePool pool;
  mutable std::mutex mutex;
  std::unordered_map<Sequence, std::unique_ptr<Tokens>> sequences;
  Sequence next = 1;
};

CacheLayout CacheLayout::Of(const KvCacheShape& shape, const KvCacheOptions& options) {
  const auto element = static_cast<std::int64_t>(SizeOf(shape.dtype));
  CacheLayout layout;
  // Everything at a multiple of a cache line.
  layout.key_head = RoundUp(KvCache::kPage * shape.head_dim * element, 64);
  layout.value_head = RoundUp(KvCache::kPage * shape.value_dim * element, 64);
  layout.byte_head =
      options.screen == KeyScreen::kNone ? 0 : RoundUp(decode::PageBytes(shape.head_dim), 64);
  std::int64_t at = 0;
  const auto place = [&](std::int64_t head, std::int64_t* begin) {
    *begin = at;
    at += head * shape.kv_heads;
  };
  // The bytes of a layer lie side by side: a page of them is what screening reads.
  place(layout.byte_head, &layout.bytes);
  place(layout.key_head, &layout.keys);
  place(layout.value_head, &layout.values);
  layout.layer = at;
  layout.page_bytes = at * shape.layers;
  return layout;
}

KvCache::KvCache(const KvCacheShape& shape, const KvCacheOptions& options) {
  CheckSize("shape.layers", shape.layers, 1 << 20);
  CheckSize("shape.kv_heads", shape.kv_heads, 1 << 20);
  CheckSize("shape.head_dim", shape.head_dim, 512);
  CheckSize("shape.value_dim", shape.value_dim, 512);
  if (shape.dtype > DType::kFloat16) {
    throw InvalidArgument("shape.dtype", "float32, bfloat16 or float16",
                          shape.dtype == DType::kFloat64 ? "float64" : "an unknown one");
  }
  if (options.max_bytes < 0) {
    throw InvalidArgument("options.max_bytes", "0 for no limit, or bytes",
                          to_string(options.max_bytes));
  }
  const std::int64_t page = CacheLayout::Of(shape, options).page_bytes;
  if (options.max_bytes > 0 && options.max_bytes < page) {
    throw InvalidArgument("options.max_bytes", "at least a page of " + to_string(page) + " bytes",
                          to_string(options.max_bytes));
  }
  state_ = std::make_unique<State>(shape, options);
}

KvCache::~KvCache() = default;

const KvCacheShape& KvCache::shape() const { return state_->shape; }
const KvCacheOptions& KvCache::options() const { return state_->options; }

KvCache::Sequence KvCache::Create() {
  auto tokens = std::make_unique<State::Tokens>();
  tokens->length.assign(static_cast<std::size_t>(state_->shape.layers), 0);
  return state_->Add(std::move(tokens));
}

KvCache::Sequence KvCache::Fork(Sequence from, std::int64_t length) {
  const State::Tokens& other = state_->Of(from);
  const std::int64_t most = other.Shortest();
  if (length > most) {
    throw InvalidArgument("length", "at most the " + to_string(most) + " tokens of the sequence",
                          to_string(length));
  }
  if (length < 0) length = most;
  auto tokens = std::make_unique<State::Tokens>();
  tokens->length.assign(static_cast<std::size_t>(state_->shape.layers), length);
  tokens->pages.assign(other.pages.begin(), other.pages.begin() + (length + kPage - 1) / kPage);
  const std::vector<std::byte*> pages = tokens->pages;
  for (std::byte* page : pages) state_->pool.Share(page);
  try {
    return state_->Add(std::move(tokens));
  } catch (...) {
    for (std::byte* page : pages) state_->pool.Leave(page);
    throw;
  }
}

void KvCache::Free(Sequence sequence) {
  const State::Tokens& tokens = state_->Of(sequence);
  for (std::byte* page : tokens.pages) state_->pool.Leave(page);
  const std::lock_guard lock(state_->mutex);
  state_->sequences.erase(sequence);
}

void KvCache::Truncate(Sequence sequence, std::int64_t length) {
  State::Tokens& tokens = state_->Of(sequence);
  if (length < 0) throw InvalidArgument("length", "0 or more", to_string(length));
  for (std::int64_t& own : tokens.length) own = std::min(own, length);
  state_->DropPages(tokens);
}

void KvCache::TruncateLayer(Sequence sequence, std::int64_t layer, std::int64_t length) {
  State::Tokens& tokens = state_->Of(sequence);
  state_->CheckLayer(layer);
  if (length < 0) throw InvalidArgument("length", "0 or more", to_string(length));
  std::int64_t& own = tokens.length[static_cast<std::size_t>(layer)];
  own = std::min(own, length);
  state_->DropPages(tokens);
}

namespace {

void CheckRows(const char* name, const ConstArray4& array, DType dtype, std::int64_t count) {
  if (array.dtype != dtype) {
    throw InvalidArgument(name, std::string("the dtype of the cache, ") + Name(dtype),
                          Name(array.dtype));
  }
  if (array.data == nullptr && count > 0) throw InvalidArgument(name, "data", "null");
}

// Row `from` of a head of an array, to where its columns lie side by side.
void CopyRow(const HeadRows& rows, std::int64_t from, std::int64_t columns, std::byte* to) {
  const auto size = static_cast<std::int64_t>(SizeOf(rows.dtype));
  const auto* row = static_cast<const std::byte*>(rows.At(from));
  if (rows.step == 1) {
    std::memcpy(to, row, static_cast<std::size_t>(columns * size));
    return;
  }
  for (std::int64_t x = 0; x < columns; ++x) {
    std::memcpy(to + x * size, row + x * rows.step * size, static_cast<std::size_t>(size));
  }
}

}  // namespace

void KvCache::Append(const Context& context, Sequence sequence, std::int64_t layer,
                     const ConstArray4& k, const ConstArray4& v, std::int64_t count) {
  State& s = *state_;
  State::Tokens& tokens = s.Of(sequence);
  s.CheckLayer(layer);
  if (count < 0) throw InvalidArgument("count", "0 or more", to_string(count));
  CheckRows("k", k, s.shape.dtype, count);
  CheckRows("v", v, s.shape.dtype, count);
  if (count == 0) return;
  std::int64_t& length = tokens.length[static_cast<std::size_t>(layer)];
  const std::int64_t first = length / kPage, end = (length + count + kPage - 1) / kPage;
  // All memory first: what does not fit leaves the sequence as it is.
  std::vector<std::pair<std::size_t, std::byte*>> copies;  // of pages that others use as well
  const std::size_t before = tokens.pages.size();
  try {
    tokens.pages.reserve(static_cast<std::size_t>(std::max<std::int64_t>(end, 0)));
    for (std::int64_t i = first; i < end; ++i) {
      const auto at = static_cast<std::size_t>(i);
      if (at >= tokens.pages.size()) {
        tokens.pages.push_back(s.pool.Take());
      } else if (s.pool.IsShared(tokens.pages[at])) {
        copies.reserve(copies.size() + 1);
        copies.emplace_back(at, s.pool.Take());
      }
    }
  } catch (...) {
    for (const auto& [at, page] : copies) s.pool.Leave(page);
    while (tokens.pages.size() > before) {
      s.pool.Leave(tokens.pages.back());
      tokens.pages.pop_back();
    }
    throw;
  }
  for (const auto& [at, page] : copies) {
    std::memcpy(page, tokens.pages[at], static_cast<std::size_t>(s.layout.page_bytes));
    s.pool.Leave(std::exchange(tokens.pages[at], page));
  }
  const auto element = static_cast<std::int64_t>(SizeOf(s.shape.dtype));
  ParallelFor(context, s.shape.kv_heads, 1, [&](std::int64_t begin, std::int64_t stop) {
    std::vector<float> floats(static_cast<std::size_t>(s.shape.head_dim));
    for (std::int64_t head = begin; head < stop; ++head) {
      const HeadRows keys = HeadRows::Of(k, 0, head), values = HeadRows::Of(v, 0, head);
      for (std::int64_t i = 0; i < count; ++i) {
        const std::int64_t slot = (length + i) % kPage;
        std::byte* page =
            tokens.pages[static_cast<std::size_t>((length + i) / kPage)] + layer * s.layout.layer;
        std::byte* key =
            page + s.layout.keys + head * s.layout.key_head + slot * s.shape.head_dim * element;
        CopyRow(keys, i, s.shape.head_dim, key);
        CopyRow(values, i, s.shape.value_dim,
                page + s.layout.values + head * s.layout.value_head +
                    slot * s.shape.value_dim * element);
        if (s.options.screen == KeyScreen::kNone) continue;
        for (std::int64_t x = 0; x < s.shape.head_dim; ++x) {
          floats[static_cast<std::size_t>(x)] = LoadElement<float>(key, s.shape.dtype, x);
        }
        decode::PutKey(floats.data(), s.shape.head_dim, slot,
                       page + s.layout.bytes + head * s.layout.byte_head);
      }
    }
  });
  length += count;
}

std::int64_t KvCache::Length(Sequence sequence, std::int64_t layer) const {
  state_->CheckLayer(layer);
  return state_->Of(sequence).length[static_cast<std::size_t>(layer)];
}

std::int64_t KvCache::Length(Sequence sequence) const { return state_->Of(sequence).Shortest(); }

void KvCache::Read(Sequence sequence, std::int64_t layer, std::int64_t begin, std::int64_t end,
                   const MutableArray4& k, const MutableArray4& v) const {
  const State& s = *state_;
  const std::int64_t length = Length(sequence, layer);
  if (begin < 0 || begin > end || end > length) {
    throw InvalidArgument("tokens", "0 <= begin <= end <= " + to_string(length),
                          "[" + to_string(begin) + ", " + to_string(end) + ")");
  }
  const CacheReader reader(*this, sequence, layer);
  const auto copy = [&](const char* name, const MutableArray4& to, std::int64_t columns,
                        const auto& rows_of) {
    if (to.data == nullptr) return;
    CheckRows(name, to, s.shape.dtype, 0);
    for (std::int64_t head = 0; head < s.shape.kv_heads; ++head) {
      const HeadRows rows = rows_of(head);
      for (std::int64_t i = begin; i < end; ++i) {
        for (std::int64_t x = 0; x < columns; ++x) {
          StoreElement(to.data, to.dtype, Offset(to.strides, 0, head, i - begin, x),
                       LoadElement<double>(rows.At(i), rows.dtype, x));
        }
      }
    }
  };
  copy("k", k, s.shape.head_dim, [&](std::int64_t head) { return reader.Keys(head); });
  copy("v", v, s.shape.value_dim, [&](std::int64_t head) { return reader.Values(head); });
}

KvCacheUse KvCache::Use() const {
  KvCacheUse use;
  state_->pool.Account(&use);
  const std::lock_guard lock(state_->mutex);
  use.sequences = static_cast<std::int64_t>(state_->sequences.size());
  return use;
}

CacheReader::CacheReader(const KvCache& cache, KvCache::Sequence sequence, std::int64_t layer)
    : layout_(cache.state_->layout),
      shape_(cache.state_->shape),
      layer_(layer * cache.state_->layout.layer) {
  cache.state_->CheckLayer(layer);
  const KvCache::State::Tokens& tokens = cache.state_->Of(sequence);
  pages_ = tokens.pages.data();
  length_ = tokens.length[static_cast<std::size_t>(layer)];
}

}  // namespace tsallis
