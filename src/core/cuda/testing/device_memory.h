// Device memory of the emulation: what was allocated, and who wrote which address in a launch.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <new>
#include <unordered_map>

#include "core/cuda/testing/simt.h"

namespace tsallis::simt {

struct BlockWord {
  SharedWord word;
  std::uint64_t block = 0;
};

struct DeviceMemory {
  std::map<std::uintptr_t, std::size_t> pieces;  // address of the first byte: bytes
  std::uintptr_t begin = 0, end = 0;             // the piece that was asked for last
  // The thread of the running launch that wrote each pair of bytes.
  std::unordered_map<std::uintptr_t, std::uint64_t> writers;
  // Words that a block of the running launch has for itself.
  std::unordered_map<std::uintptr_t, BlockWord> of_blocks;
  std::size_t limit = SIZE_MAX, used = 0;  // bytes; beyond, allocations fail
};
inline DeviceMemory device_memory;

// Allocates as cudaMalloc does, aligned to 256. Every word is 0x7FFFFFFF, a NaN of each
// floating-point type and as a count of entries beyond all memory. Throws std::bad_alloc beyond the
// limit.
inline void* AllocateDevice(std::size_t bytes) {
  DeviceMemory& memory = device_memory;
  if (bytes > memory.limit - memory.used) throw std::bad_alloc();
  const std::size_t words = bytes / 4 + 1;
  void* data = ::operator new(4 * words, std::align_val_t(256));
  std::fill_n(static_cast<std::uint32_t*>(data), words, 0x7FFFFFFFu);
  memory.pieces[reinterpret_cast<std::uintptr_t>(data)] = bytes;
  memory.used += bytes;
  return data;
}

inline void FreeDevice(void* data) {
  if (data == nullptr) return;
  DeviceMemory& memory = device_memory;
  const auto piece = memory.pieces.find(reinterpret_cast<std::uintptr_t>(data));
  if (piece == memory.pieces.end()) throw Fault("memory is freed that was never allocated");
  memory.used -= piece->second;
  memory.pieces.erase(piece);
  memory.begin = memory.end = 0;
  ::operator delete(data, std::align_val_t(256));
}

inline void BeginDeviceLaunch() {
  device_memory.writers.clear();
  device_memory.of_blocks.clear();
}

inline void CheckDevice(const void* data, std::size_t size, std::size_t alignment,
                        const char* what) {
  DeviceMemory& memory = device_memory;
  const auto at = reinterpret_cast<std::uintptr_t>(data);
  if (at % alignment != 0) Fail("%s of device memory that is not aligned", what);
  if (at >= memory.begin && at + size <= memory.end) return;
  auto piece = memory.pieces.upper_bound(at);
  if (piece != memory.pieces.begin()) {
    --piece;
    if (at >= piece->first && at + size <= piece->first + piece->second) {
      memory.begin = piece->first;
      memory.end = piece->first + piece->second;
      return;
    }
  }
  Fail("%s outside of device memory", what);
}

inline std::uint64_t ThreadNumber() {
  const Machine& m = machine;
  const Dim3 &block = m.block_index, &grid = m.grid;
  return ((std::uint64_t{block.z} * grid.y + block.y) * grid.x + block.x) * kMostThreads +
         m.self->id;
}

inline void ReadDevice(const void* data, std::size_t size, std::size_t alignment) {
  CheckDevice(data, size, alignment, "a read");
  machine.counters.read_bytes += size;
  const auto& writers = device_memory.writers;
  if (writers.empty()) return;
  for (std::size_t i = 0; i < size; i += 2) {
    const auto writer = writers.find(reinterpret_cast<std::uintptr_t>(data) + i);
    if (writer != writers.end() && writer->second != ThreadNumber()) {
      Fail("a read of device memory that another thread of the launch wrote");
    }
  }
}

inline void WriteDevice(void* data, std::size_t size, std::size_t alignment) {
  CheckDevice(data, size, alignment, "a write");
  machine.counters.written_bytes += size;
  for (std::size_t i = 0; i < size; i += 2) {
    const auto [writer, fresh] = device_memory.writers.try_emplace(
        reinterpret_cast<std::uintptr_t>(data) + i, ThreadNumber());
    if (!fresh && writer->second != ThreadNumber()) {
      Fail("two threads of a launch write the same device memory");
    }
  }
}

}  // namespace tsallis::simt

namespace tsallis::cuda {

// The emulation's memory, as tests use that of any device (copies.h).
struct Emulation {
  static void* Allocate(std::size_t bytes) { return simt::AllocateDevice(bytes); }
  static void Free(void* data) { simt::FreeDevice(data); }
  static void ToDevice(void* to, const void* from, std::size_t bytes) {
    std::memcpy(to, from, bytes);
  }
  static void ToHost(void* to, const void* from, std::size_t bytes) {
    std::memcpy(to, from, bytes);
  }
};

}  // namespace tsallis::cuda
