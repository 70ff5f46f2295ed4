// Aligned memory: of a size, or growing for what one problem after the other needs.
#pragma once

#include <hwy/aligned_allocator.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>

namespace tsallis {

// T[n], aligned, left as it is. Throws std::bad_alloc.
template <typename T>
hwy::AlignedFreeUniquePtr<T[]> Aligned(std::int64_t n) {
  auto memory = hwy::AllocateAligned<T>(static_cast<std::size_t>(std::max<std::int64_t>(n, 1)));
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

template <typename T>
class GrowingBuffer {
 public:
  // Room for `count`; what was there is lost if it has to grow.
  T* Reserve(std::int64_t count) {
    if (count > size_) {
      Free();
      Allocate(count);
    }
    return memory_.get();
  }
  // Room for `count`, the first `kept` staying as they are.
  T* Extend(std::int64_t count, std::int64_t kept) {
    if (count > size_) {
      const hwy::AlignedFreeUniquePtr<T[]> old = std::move(memory_);
      Allocate(std::max(count, 2 * size_));
      std::copy_n(old.get(), kept, memory_.get());
    }
    return memory_.get();
  }
  T* get() const { return memory_.get(); }
  std::size_t bytes() const { return static_cast<std::size_t>(size_) * sizeof(T); }

 private:
  void Free() {
    memory_.reset();
    size_ = 0;
  }
  void Allocate(std::int64_t count) {
    size_ = 0;
    memory_ = Aligned<T>(count);
    size_ = count;
  }

  hwy::AlignedFreeUniquePtr<T[]> memory_;
  std::int64_t size_ = 0;
};

}  // namespace tsallis
