#include "tsallis/kv_cache.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "attention/check.h"
#include "attention/cpu/decode/decode.h"
#include "attention/geometry.h"
#include "attention/pages.h"
#include "cache/page_pool.h"
#include "cache/reader.h"
#include "core/elements.h"
#include "core/parallel.h"
#include "tsallis/error.h"

namespace tsallis {
using std::to_string;

static_assert(KvCache::kPage == HeadRows::kPage);

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
    // [layers][kv_heads]: no key has a larger norm. Tokens that are forgotten may leave it too
    // large.
    std::vector<float> key_norms;

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
  // Forgets the tokens of a layer from `length` on.
  void Shorten(Tokens& tokens, std::int64_t layer, std::int64_t length) {
    std::int64_t& own = tokens.length[static_cast<std::size_t>(layer)];
    own = std::min(own, length);
    if (own == 0) std::fill_n(&tokens.key_norms[0] + layer * shape.kv_heads, shape.kv_heads, 0.0f);
  }
  // Gives back what no layer reaches.
  void DropPages(Tokens& tokens) {
    const auto pages = static_cast<std::size_t>((tokens.Longest() + kPage - 1) / kPage);
    while (tokens.pages.size() > pages) {
      pool.Leave(tokens.pages.back());
      tokens.pages.pop_back();
    }
  }
  // Writes `count` rows of a head behind the tokens of a layer, and what is kept beside them.
  // floats: [head_dim], of the calling thread.
  void Put(Tokens& tokens, std::int64_t layer, std::int64_t head, const HeadRows& keys,
           const HeadRows& values, std::int64_t count, float* floats) const;
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
  layout.fact_head = RoundUp(decode::FactBytes(shape.head_dim), 64);
  std::int64_t at = 0;
  const auto place = [&](std::int64_t head, std::int64_t* begin) {
    *begin = at;
    at += head * shape.kv_heads;
  };
  // The bytes of a layer lie side by side: a page of them is what screening reads.
  place(layout.byte_head, &layout.bytes);
  if (options.ranges) place(layout.fact_head, &layout.ranges);
  if (options.moments) place(layout.fact_head, &layout.moments);
  place(layout.key_head, &layout.keys);
  place(layout.value_head, &layout.values);
  layout.layer = at;
  layout.page_bytes = at * shape.layers;
  return layout;
}

KvCache::KvCache(const KvCacheShape& shape, const KvCacheOptions& options) {
  CheckSize("shape.layers", shape.layers, 1, 1 << 20);
  CheckSize("shape.kv_heads", shape.kv_heads, 1, 1 << 20);
  CheckSize("shape.head_dim", shape.head_dim, 1, 512);
  CheckSize("shape.value_dim", shape.value_dim, 1, 512);
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
  tokens->key_norms.assign(static_cast<std::size_t>(state_->shape.layers * state_->shape.kv_heads),
                           0.0f);
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
  tokens->key_norms = other.key_norms;
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
  for (std::int64_t layer = 0; layer < state_->shape.layers; ++layer) {
    state_->Shorten(tokens, layer, length);
  }
  state_->DropPages(tokens);
}

void KvCache::TruncateLayer(Sequence sequence, std::int64_t layer, std::int64_t length) {
  State::Tokens& tokens = state_->Of(sequence);
  state_->CheckLayer(layer);
  if (length < 0) throw InvalidArgument("length", "0 or more", to_string(length));
  state_->Shorten(tokens, layer, length);
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

}  // namespace

void KvCache::State::Put(Tokens& tokens, std::int64_t layer, std::int64_t head,
                         const HeadRows& keys, const HeadRows& values, std::int64_t count,
                         float* floats) const {
  const auto element = static_cast<std::int64_t>(SizeOf(shape.dtype));
  const std::int64_t length = tokens.length[static_cast<std::size_t>(layer)];
  float& norm = tokens.key_norms[static_cast<std::size_t>(layer * shape.kv_heads + head)];
  const decode::Functions functions = decode::GetFunctions();
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t slot = (length + i) % kPage;
    std::byte* page =
        tokens.pages[static_cast<std::size_t>((length + i) / kPage)] + layer * layout.layer;
    std::byte* rows = page + layout.keys + head * layout.key_head;
    const HeadRows on_page = {
        .data = rows, .dtype = shape.dtype, .row_bytes = shape.head_dim * element};
    const auto load = [&](std::int64_t row) {
      functions.load(on_page, row, shape.head_dim, floats);
    };
    CopyRow(keys, i, shape.head_dim, rows + slot * shape.head_dim * element);
    CopyRow(values, i, shape.value_dim,
            page + layout.values + head * layout.value_head + slot * shape.value_dim * element);
    load(slot);
    std::byte* bytes = page + layout.bytes + head * layout.byte_head;
    norm = std::max(norm, layout.byte_head > 0 ? decode::PutKey(floats, shape.head_dim, slot, bytes)
                                               : decode::NormOf(floats, shape.head_dim));
    const auto note = [&](std::int64_t at, const auto& put) {
      if (at < 0) return;
      std::byte* facts = page + at + head * layout.fact_head;
      // After Truncate() the facts of a page count keys that are gone: they are computed again.
      if (slot > 0 && decode::CountAt(facts) != slot) {
        for (std::int64_t row = 0; row < slot; ++row) {
          load(row);
          put(floats, shape.head_dim, row, facts);
        }
        load(slot);
      }
      put(floats, shape.head_dim, slot, facts);
    };
    note(layout.ranges, decode::PutRange);
    note(layout.moments, decode::PutMoments);
  }
}

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
  ParallelFor(context, s.shape.kv_heads, 1, [&](std::int64_t begin, std::int64_t stop) {
    std::vector<float> floats(static_cast<std::size_t>(s.shape.head_dim));
    for (std::int64_t head = begin; head < stop; ++head) {
      s.Put(tokens, layer, head, HeadRows::Of(k, 0, head), HeadRows::Of(v, 0, head), count,
            floats.data());
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
  key_norms_ = tokens.key_norms.data() + layer * shape_.kv_heads;
  length_ = tokens.length[static_cast<std::size_t>(layer)];
}

}  // namespace tsallis
