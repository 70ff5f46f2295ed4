// For tests: arrays of the host, copied to a device. Every array is copied to memory that has just
// its size, and what a call writes is copied back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

namespace tsallis::cuda {

// Device: Allocate(bytes), Free(data), ToDevice(to, from, bytes), ToHost(to, from, bytes).
template <class Device>
class Copies {
 public:
  Copies() = default;
  Copies(const Copies&) = delete;
  Copies& operator=(const Copies&) = delete;
  ~Copies() {
    for (const Copy& copy : copies_) Device::Free(copy.memory);
  }

  // `count` numbers; written back by CopyBack() if `written`.
  template <typename T>
  T* Numbers(T* data, std::int64_t count, bool written) {
    if (data == nullptr) return nullptr;
    return static_cast<T*>(Place(const_cast<std::remove_const_t<T>*>(data),
                                 static_cast<std::size_t>(count) * sizeof(T), written));
  }
  // The bytes between the first and the last element of an array. size: of an element.
  void* Stretch(const void* data, std::int64_t size, const std::int64_t (&strides)[4],
                const std::int64_t (&sizes)[4], bool written) {
    if (data == nullptr) return nullptr;
    std::int64_t low = 0, high = 0;
    bool empty = false;
    for (int i = 0; i < 4; ++i) {
      empty = empty || sizes[i] == 0;
      const std::int64_t reach = (sizes[i] - 1) * strides[i];
      (reach < 0 ? low : high) += reach;
    }
    const std::int64_t bytes = empty ? 0 : (high - low + 1) * size;
    auto* from = const_cast<char*>(static_cast<const char*>(data));
    auto* memory = static_cast<char*>(
        Place(from + (empty ? 0 : low * size), static_cast<std::size_t>(bytes), written));
    return memory - (empty ? 0 : low * size);
  }
  void CopyBack() {
    for (const Copy& copy : copies_) {
      if (copy.written && copy.bytes > 0) Device::ToHost(copy.host, copy.at, copy.bytes);
    }
  }

 private:
  struct Copy {
    void* memory = nullptr;
    void* at = nullptr;
    void* host = nullptr;
    std::size_t bytes = 0;
    bool written = false;
  };

  // Aligned to 16 as it was, and no more.
  void* Place(void* host, std::size_t bytes, bool written) {
    const std::size_t offset = reinterpret_cast<std::uintptr_t>(host) % 16;
    Copy copy = {Device::Allocate(offset + bytes), nullptr, host, bytes, written};
    copy.at = static_cast<char*>(copy.memory) + offset;
    if (bytes > 0) Device::ToDevice(copy.at, host, bytes);
    copies_.push_back(copy);
    return copy.at;
  }

  std::vector<Copy> copies_;
};

}  // namespace tsallis::cuda
