#include "lab/nn/text_cache.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>

#include "tsallis/error.h"

namespace tsallis::lab {
namespace {

using at::Tensor;

constexpr std::int64_t kPage = KvCache::kPage;

std::size_t PagesFor(std::int64_t tokens) {
  return static_cast<std::size_t>((tokens + kPage - 1) / kPage);
}

}  // namespace

DevicePages::DevicePages(const KvCacheShape& shape, std::int64_t max_bytes,
                         const c10::Device& device)
    : max_bytes_(max_bytes),
      stored_(at::empty({2, shape.layers, 0, kPage, shape.kv_heads, shape.head_dim},
                        at::TensorOptions()
                            .dtype(shape.dtype == DType::kBFloat16 ? at::kBFloat16 : at::kFloat)
                            .device(device))) {}

void DevicePages::Free(Sequence sequence) {
  Truncate(sequence, 0);
  sequences_.erase(sequence);
}

void DevicePages::Truncate(Sequence sequence, std::int64_t length) {
  Tokens& tokens = Of(sequence);
  tokens.length = std::min(tokens.length, length);
  tokens.pages.resize(PagesFor(tokens.length));
}

void DevicePages::Grow(const std::vector<Sequence>& sequences, const SequenceRows& rows) {
  // A page that is not full is copied before it is written to, but for the last one that has it.
  const auto begun = [](Tokens& tokens) {
    return tokens.length % kPage == 0 ? nullptr : &tokens.pages.back();
  };
  std::map<std::int32_t, std::int64_t> writers;
  std::size_t wanted = 0;
  for (std::size_t b = 0; b < sequences.size(); ++b) {
    Tokens& tokens = Of(sequences[b]);
    wanted += PagesFor(tokens.length + rows.end[b] - rows.begin[b]) - tokens.pages.size();
    if (const Page* page = begun(tokens)) {
      wanted += ++writers[**page] < page->use_count() ? 1 : 0;
    }
  }
  MakeRoom(wanted);
  std::vector<std::int64_t> from, to;
  for (std::size_t b = 0; b < sequences.size(); ++b) {
    Tokens& tokens = Of(sequences[b]);
    if (Page* page = begun(tokens); page != nullptr && page->use_count() > 1) {
      from.push_back(**page);
      *page = Take();
      to.push_back(**page);
    }
    tokens.length += rows.end[b] - rows.begin[b];
    while (tokens.pages.size() < PagesFor(tokens.length)) tokens.pages.push_back(Take());
  }
  if (from.empty()) return;
  const auto there = [&](const std::vector<std::int64_t>& pages) {
    return at::tensor(pages, at::kLong).to(stored_.device());
  };
  stored_.index_copy_(2, there(to), stored_.index_select(2, there(from)));
}

RowPages DevicePages::PagesOf(const std::vector<Sequence>& sequences, const SequenceRows& rows,
                              bool new_rows) const {
  std::size_t width = 1;
  for (const Sequence sequence : sequences) width = std::max(width, Of(sequence).pages.size());
  std::vector<std::int32_t> table, lengths;
  std::vector<std::int64_t> slots;
  RowPages pages;
  for (std::size_t b = 0; b < sequences.size(); ++b) {
    const Tokens& tokens = Of(sequences[b]);
    for (std::int64_t r = rows.begin[b]; r < rows.end[b]; ++r) {
      for (const Page& page : tokens.pages) table.push_back(*page);
      table.resize(table.size() + width - tokens.pages.size());
      const std::int64_t position = rows.position[static_cast<std::size_t>(r)];
      lengths.push_back(static_cast<std::int32_t>(new_rows ? position + 1 : tokens.length));
      pages.longest = std::max<std::int64_t>(pages.longest, lengths.back());
      if (!new_rows) continue;
      const Page& page = tokens.pages[static_cast<std::size_t>(position / kPage)];
      slots.push_back(*page * kPage + position % kPage);
    }
  }
  const auto there = [&](const std::vector<std::int32_t>& numbers) {
    return at::tensor(at::ArrayRef<std::int32_t>(numbers), at::kInt).to(stored_.device());
  };
  pages.table = there(table).view({-1, static_cast<std::int64_t>(width)});
  pages.lengths = there(lengths);
  if (new_rows) pages.slots = at::tensor(slots, at::kLong).to(stored_.device());
  return pages;
}

DevicePages::Tokens& DevicePages::Of(Sequence sequence) const {
  const auto found = sequences_.find(sequence);
  if (found == sequences_.end()) {
    throw InvalidArgument("sequence", "one that was created and not freed",
                          std::to_string(sequence));
  }
  return *found->second;
}

DevicePages::Sequence DevicePages::Add(Tokens tokens) {
  sequences_.emplace(next_, std::make_unique<Tokens>(std::move(tokens)));
  return next_++;
}

void DevicePages::MakeRoom(std::size_t pages) {
  if (pages <= free_.size()) return;
  std::vector<std::int64_t> sizes = stored_.sizes().vec();
  const std::int64_t had = std::exchange(sizes[2], 1);
  const std::int64_t bytes = c10::multiply_integers(sizes) * stored_.itemsize();  // of a page
  const auto unused = static_cast<std::int64_t>(free_.size());
  const std::int64_t least = had + static_cast<std::int64_t>(pages) - unused;
  sizes[2] = std::max<std::int64_t>({least, 2 * had, 16});
  if (max_bytes_ > 0) sizes[2] = std::min(sizes[2], max_bytes_ / bytes);
  if (sizes[2] < least) {
    throw CacheFull(fmt::format(
        "the cache is full: {} pages of {} bytes are in use, and max_bytes allows no more",
        had - unused, bytes));
  }
  const Tensor grown = at::empty(sizes, stored_.options());
  grown.narrow(2, 0, had).copy_(stored_);
  stored_ = grown;
  for (std::int64_t page = sizes[2]; page-- > had;) {
    free_.push_back(static_cast<std::int32_t>(page));
  }
}

DevicePages::Page DevicePages::Take() {
  const auto give_back = [this](const std::int32_t* page) {
    free_.push_back(*page);
    delete page;
  };
  const Page page(new std::int32_t(free_.back()), give_back);
  free_.pop_back();
  return page;
}

CachedRows::CachedRows(TextCache& of, const std::vector<KvCache::Sequence>& which,
                       const SequenceRows& rows, bool new_rows)
    : cache(of), sequences(which) {
  auto* const device = std::get_if<DevicePages>(&cache);
  if (device == nullptr) return;  // LayerAttention appends to a KvCache
  if (new_rows) device->Grow(sequences, rows);
  pages = device->PagesOf(sequences, rows, new_rows);
}

}  // namespace tsallis::lab
