// Shared memory of an emulated block, by words of four bytes: what is in a word, who wrote and who
// read it since which barrier, and whether a copy to it is under way.
//
// Two accesses by different threads, one of them a write, are a race unless a barrier lies between:
// the block's, or for lanes of one warp the warp's. Shuffles and votes order nothing, as CUDA's
// documentation has it ("Warp Shuffle Functions": they do not imply a memory barrier).
#pragma once

#include <cstdint>
#include <cstring>

#include "core/cuda/testing/simt.h"

namespace tsallis::simt {

inline void ResetShared() {
  Machine& m = machine;
  std::fill(m.shared.begin(), m.shared.end(), 0xFFFFFFFFu);
  m.shadow.assign(m.shared.size(), SharedWord());
}

inline void CheckShared(std::size_t byte, std::size_t size, std::size_t alignment,
                        const char* what) {
  if (byte % alignment != 0) Fail("%s is not aligned (byte %zu)", what, byte);
  const std::size_t all = machine.shared.size() * 4;
  if (size > all || byte > all - size) {
    Fail("%s lies outside of shared memory (byte %zu of %zu)", what, byte, all);
  }
}

inline bool Unordered(std::uint32_t epoch, std::uint32_t warp_epoch, unsigned other_warp) {
  const Thread& me = *machine.self;
  return epoch == machine.epoch && (other_warp != me.warp_index || warp_epoch == me.warp->epoch);
}

inline void CheckWriter(const SharedWord& word, std::size_t byte, const char* what) {
  const Thread& me = *machine.self;
  if (word.pending) Fail("%s of memory that a copy is still under way to (byte %zu)", what, byte);
  if (word.write_epoch != 0 && word.writer != me.id &&
      Unordered(word.write_epoch, word.write_warp_epoch, word.writer / kWarpSize)) {
    Fail("a race: %s after thread %u wrote, without a barrier between (byte %zu)", what,
         word.writer, byte);
  }
}

// A word is read by the running thread.
inline void ReadWord(SharedWord& word, std::size_t byte) {
  const Thread& me = *machine.self;
  CheckWriter(word, byte, "a read");
  if (word.write_epoch == 0) {
    Fail("a read of shared memory that was never written (byte %zu)", byte);
  }
  if (word.read_epoch != machine.epoch) {
    word.read_epoch = machine.epoch;
    word.read_warps = 0;
  }
  word.read_warps |= 1u << me.warp_index;
  if (word.read_warp != me.warp_index || word.read_warp_epoch != me.warp->epoch) {
    word.read_warp = me.warp_index;
    word.read_warp_epoch = me.warp->epoch;
    word.read_lanes = 0;
  }
  word.read_lanes |= 1u << me.lane;
}

inline void WriteWord(SharedWord& word, std::size_t byte) {
  const Thread& me = *machine.self;
  CheckWriter(word, byte, "a write");
  if (word.read_epoch == machine.epoch) {
    const bool other_warps = (word.read_warps & ~(1u << me.warp_index)) != 0;
    const bool other_lanes = word.read_warp == me.warp_index &&
                             word.read_warp_epoch == me.warp->epoch &&
                             (word.read_lanes & ~(1u << me.lane)) != 0;
    if (other_warps || other_lanes) {
      Fail("a race: a write after another thread read, without a barrier between (byte %zu)", byte);
    }
  }
  word.write_epoch = machine.epoch;
  word.write_warp_epoch = me.warp->epoch;
  word.writer = me.id;
}

// `count` words from `byte` on are read by the running thread.
inline void ReadShared(std::size_t byte, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) ReadWord(machine.shadow[byte / 4 + i], byte + 4 * i);
}
inline void WriteShared(std::size_t byte, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) WriteWord(machine.shadow[byte / 4 + i], byte + 4 * i);
}

template <typename T>
T LoadShared(std::size_t byte) {
  CheckShared(byte, sizeof(T), alignof(T), "a read");
  ReadShared(byte, sizeof(T) / 4);
  T value;
  std::memcpy(static_cast<void*>(&value), machine.shared.data() + byte / 4, sizeof(T));
  return value;
}

template <typename T>
void StoreShared(std::size_t byte, const T& value) {
  CheckShared(byte, sizeof(T), alignof(T), "a write");
  WriteShared(byte, sizeof(T) / 4);
  std::memcpy(machine.shared.data() + byte / 4, &value, sizeof(T));
}

// ---- device memory that a block has for itself: the same rules ----------------------------------

inline void OfBlock(const void* data, std::size_t size, void (*use)(SharedWord&, std::size_t)) {
  for (std::size_t i = 0; i < size; i += 4) {
    const auto at = reinterpret_cast<std::uintptr_t>(data) + i;
    BlockWord& word = device_memory.of_blocks[at];
    const std::uint64_t block = ThreadNumber() / kMostThreads;
    if (word.block != block && word.word.write_epoch != 0) Fail("device memory of another block");
    word.block = block;
    use(word.word, at);
  }
}
inline void ReadOfBlock(const void* data, std::size_t size) {
  CheckDevice(data, size, size, "a read");
  machine.counters.read_bytes += size;
  OfBlock(data, size, ReadWord);
}
inline void WriteOfBlock(void* data, std::size_t size) {
  CheckDevice(data, size, size, "a write");
  machine.counters.written_bytes += size;
  OfBlock(data, size, WriteWord);
}

// ---- cp.async of 16 bytes -----------------------------------------------------------------------

inline void MoveCopy(const Thread::Copy& copy) {
  std::uint32_t* to = machine.shared.data() + copy.to / 4;
  if (copy.used) {
    std::memcpy(to, copy.from, 16);
  } else {
    std::memset(to, 0, 16);
  }
}

// used: whether the bytes are read; else zeros are written.
inline void IssueCopy(std::size_t to, const void* from, bool used) {
  Thread& me = *machine.self;
  CheckShared(to, 16, 16, "an asynchronous copy");
  if (used) ReadDevice(from, 16, 16);
  WriteShared(to, 4);
  for (std::size_t i = 0; i < 4; ++i) machine.shadow[to / 4 + i].pending = true;
  me.copies.push_back({to, from, used, me.groups});
  if (used) machine.counters.copied_bytes += 16;
  if (machine.policy.copies == CopyTime::kEarly) {
    MoveCopy(me.copies.back());
  } else {
    std::memset(machine.shared.data() + to / 4, 0xFF, 16);
  }
}

inline void CommitCopies() { ++machine.self->groups; }

// Until at most `open` of the running thread's groups are under way.
inline void WaitForCopies(unsigned open) {
  Thread& me = *machine.self;
  std::size_t kept = 0;
  for (const Thread::Copy& copy : me.copies) {
    if (copy.group + open >= me.groups) {
      me.copies[kept++] = copy;
      continue;
    }
    MoveCopy(copy);
    for (std::size_t i = 0; i < 4; ++i) machine.shadow[copy.to / 4 + i].pending = false;
    WriteShared(copy.to, 4);
  }
  me.copies.resize(kept);
}

}  // namespace tsallis::simt
