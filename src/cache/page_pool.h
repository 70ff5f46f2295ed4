// The memory of a cache's pages.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <new>
#include <string>
#include <unordered_map>
#include <vector>

#include "tsallis/kv_cache.h"

namespace tsallis {

inline std::int64_t RoundUp(std::int64_t value, std::int64_t to) {
  return (value + to - 1) / to * to;
}

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
  static constexpr std::int64_t kSlabBytes = std::int64_t{4} << 20;
  static constexpr std::size_t kHugePage = std::size_t{2} << 20;

  void Grow() {
    using std::to_string;
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

}  // namespace tsallis
