// Emulation of CUDA's threads on the host, for tests: blocks run one after the other, each thread
// of a block on a fibre. Between two collectives (a barrier, a shuffle, a vote, a product of a
// warp) a thread runs alone, in an order that the policy draws.
//
// A fault of the kernel ends the launch with an exception of type Fault that says which threads did
// what:
//   - a barrier that not all threads reach, or reach at different places; lanes of a warp that meet
//     at different instructions; threads that wait for ever;
//   - shared memory (shared_memory.h): out of bounds, read before it was written, read while a copy
//     is under way, and races: two accesses, one of them a write, with no barrier between;
//   - device memory (device_memory.h): accesses outside of what was allocated, and addresses that
//     two threads of a launch write, or that one writes and another reads.
// Kernels hold nothing that needs a destructor, so the fibres of an ended launch are left as they
// are.
//
// src/attention/cuda/README.md lists what the emulation cannot see.
#pragma once

#include <algorithm>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core/cuda/testing/fibres.h"

namespace tsallis::simt {

constexpr unsigned kWarpSize = 32, kAllLanes = 0xFFFFFFFFu, kMostThreads = 1024;

struct Dim3 {
  unsigned x = 1, y = 1, z = 1;

  unsigned size() const { return x * y * z; }
};

enum class Order : std::uint8_t { kForward, kBackward, kRandom };
// When an asynchronous copy moves its bytes: when it is issued, or when it is waited for.
enum class CopyTime : std::uint8_t { kEarly, kLate };
// How a matrix instruction adds 16 products to a sum: one after the other in float32; or, as tensor
// cores are found to do, aligned to the largest term and cut off.
enum class MatrixSum : std::uint8_t { kSequential, kTruncated };

struct Policy {
  Order order = Order::kForward;
  CopyTime copies = CopyTime::kLate;
  MatrixSum sum = MatrixSum::kTruncated;
  std::uint64_t seed = 1;    // of Order::kRandom
  bool much_shared = false;  // memory: as sm_90 has, else as sm_86

  // Every combination of the first three comes up within 12 seeds, and each with either memory
  // within 24.
  static Policy Draw(std::uint64_t seed) {
    return {static_cast<Order>(seed % 3), static_cast<CopyTime>(seed / 3 % 2),
            static_cast<MatrixSum>(seed / 6 % 2), seed, (seed + seed / 12) % 2 == 1};
  }
  // The same device, whose threads and copies come in another order: bits are to be the same.
  Policy InOrderOf(std::uint64_t other_seed) const {
    Policy other = Draw(other_seed);
    other.sum = sum;
    other.much_shared = much_shared;
    return other;
  }
};

// Counts the work of launches since it was last set to 0: tests of a kernel's cost read it.
struct Counters {
  std::uint64_t launches = 0, blocks = 0, barriers = 0, products = 0, matrix_loads = 0;
  std::uint64_t bank_conflicts = 0;  // of matrix loads: rows that wait for another of the eight
  std::uint64_t copied_bytes = 0;    // to shared memory
  std::uint64_t read_bytes = 0, written_bytes = 0;  // of device memory; what is copied is read
  std::uint64_t work[2] = {};                       // device.h's Work
};

// A kernel broke a rule of CUDA's.
class Fault : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The accesses of a word of shared memory (shared_memory.h).
struct SharedWord {
  // The last write: epoch 0 means none.
  std::uint32_t write_epoch = 0, write_warp_epoch = 0;
  unsigned writer = 0;
  // Reads since the last barrier with any: which warps, and of the last warp which lanes.
  std::uint32_t read_epoch = 0, read_warps = 0;
  std::uint32_t read_warp_epoch = 0, read_lanes = 0;
  unsigned read_warp = 0;
  bool pending = false;
};

// One lane's part in a collective of its warp.
struct Warp {
  const char* name = nullptr;  // of the collective that lanes wait in
  int line = 0;
  unsigned arrived = 0;
  void* arguments[kWarpSize] = {};
  unsigned ready = 0;       // lanes that can go on
  unsigned ended = 0;       // lanes that have ended
  std::uint32_t epoch = 0;  // __syncwarp so far
};

struct Thread {
  // cp.async: copies that were not waited for, and the number of groups closed.
  struct Copy {
    std::size_t to = 0;
    const void* from = nullptr;
    bool used = false;
    unsigned group = 0;
  };

  Fibre fibre;
  unsigned id = 0, lane = 0;
  Warp* warp = nullptr;
  unsigned warp_index = 0;
  const char* place = "the start";
  std::vector<Copy> copies;
  unsigned groups = 0;
};

// The machine: what is running. One in a process.
struct Machine {
  Policy policy;
  Counters counters;

  Dim3 grid, block_index;
  unsigned threads = 0, warps = 0, running = 0;
  std::deque<Thread> thread;
  std::deque<Stack> stacks;
  std::vector<Warp> warp;
  Thread* self = nullptr;
  Fibre scheduler;
  std::uint64_t random = 1;
  // The block's barrier.
  unsigned waiting = 0;
  int barrier_line = 0;
  int votes = 0, voted = 0;  // of those that wait, and of all at the last one
  std::uint32_t epoch = 0;   // barriers so far
  // Dynamic shared memory: words and what is known of them.
  std::vector<std::uint32_t> shared;
  std::vector<SharedWord> shadow;
  std::uint32_t launch = 0;  // its number
  // The most bytes that a launch of each kernel may have, on devices of either memory.
  std::map<std::pair<std::uintptr_t, bool>, std::size_t> shared_limits;
  void (*invoke)(void*) = nullptr;
  void* closure = nullptr;
  char fault[1024] = {};
};
inline Machine machine;

// Ends the launch with a Fault of the text that printf makes of its arguments. Threads that wait
// are left where they are, so nothing on their stacks may own memory: hence no strings here.
[[noreturn]] __attribute__((format(printf, 1, 2))) inline void Fail(const char* format, ...) {
  Machine& m = machine;
  Thread* self = m.self;
  va_list arguments;
  va_start(arguments, format);
  const int written = std::vsnprintf(m.fault, sizeof(m.fault), format, arguments);
  va_end(arguments);
  if (self == nullptr) std::abort();  // called by the emulation, not by a kernel
  const auto used = std::min<std::size_t>(static_cast<std::size_t>(written), sizeof(m.fault) - 1);
  const Dim3& block = m.block_index;
  std::snprintf(m.fault + used, sizeof(m.fault) - used,
                " (block (%u, %u, %u) thread %u, last at %s)", block.x, block.y, block.z, self->id,
                self->place);
  m.self = nullptr;
  Fibre::Switch(self->fibre, m.scheduler);
  std::abort();
}

inline std::uint64_t Draw() {
  std::uint64_t& x = machine.random;
  x ^= x << 13;
  x ^= x >> 7;
  x ^= x << 17;
  return x;
}

// A thread that can go on: the next of its warp if there is one, unless the order is random.
inline Thread* NextThread(unsigned warp, unsigned lane) {
  Machine& m = machine;
  if (m.policy.order == Order::kRandom) {
    warp = static_cast<unsigned>(Draw() % m.warps);
    lane = static_cast<unsigned>(Draw() % kWarpSize);
  }
  const bool backward = m.policy.order == Order::kBackward;
  for (unsigned i = 0; i < m.warps; ++i) {
    if (const unsigned ready = m.warp[warp].ready; ready != 0) {
      const unsigned after = lane + 1 < kWarpSize ? ready >> (lane + 1) << (lane + 1) : 0;
      const unsigned before = ready & ((1u << lane) - 1u);
      unsigned next = 0;
      if (backward) {
        next = 31u - static_cast<unsigned>(__builtin_clz(before != 0 ? before : ready));
      } else {
        next = static_cast<unsigned>(__builtin_ctz(after != 0 ? after : ready));
      }
      return &m.thread[warp * kWarpSize + next];
    }
    warp = backward ? (warp + m.warps - 1) % m.warps : (warp + 1) % m.warps;
  }
  return nullptr;
}

// Leaves the running thread for another; it goes on once it is ready again and chosen.
inline void GoOn() {
  Machine& m = machine;
  Thread& me = *m.self;
  Thread* next = NextThread(me.warp_index, me.lane);
  if (next == &me) return;
  if (next == nullptr && m.running > 0) {
    const Thread* stuck = &me;
    for (const Thread& thread : m.thread) {
      if (thread.id < m.threads && thread.place != me.place) stuck = &thread;
    }
    Fail("threads wait for ever: one at %s, thread %u at %s", me.place, stuck->id, stuck->place);
  }
  m.self = next;
  Fibre::Switch(me.fibre, next != nullptr ? next->fibre : m.scheduler);
}

inline void ThreadMain() {
  Machine& m = machine;
  m.self->fibre.Arrive();
  m.invoke(m.closure);
  Thread& me = *m.self;
  if (!me.copies.empty()) Fail("a thread ends before it waits for its asynchronous copies");
  if (me.warp->arrived != 0) Fail("a thread ends while lanes of its warp wait for it");
  if (m.waiting > 0) Fail("a thread ends while others wait for it at a barrier");
  me.place = "its end";
  me.warp->ready &= ~(1u << me.lane);
  me.warp->ended |= 1u << me.lane;
  --m.running;
  GoOn();
  std::abort();
}

// All lanes of the warp meet; the last to come calls finish(arguments) for all. No order of memory
// between lanes follows from that.
template <class Argument, class Finish>
void Meet(Argument& argument, const char* name, int line, const Finish& finish) {
  Thread& me = *machine.self;
  Warp& warp = *me.warp;
  me.place = name;
  if (warp.ended != 0) Fail("%s: lanes of the warp have ended", name);
  if (warp.arrived == 0) {
    warp.name = name;
    warp.line = line;
  } else if (warp.name != name || warp.line != line) {
    Fail("lanes of a warp meet at different instructions: %s in line %d, %s in line %d", warp.name,
         warp.line, name, line);
  }
  warp.arguments[me.lane] = &argument;
  warp.arrived |= 1u << me.lane;
  if (warp.arrived == kAllLanes) {
    Argument* arguments[kWarpSize];
    for (unsigned i = 0; i < kWarpSize; ++i) {
      arguments[i] = static_cast<Argument*>(warp.arguments[i]);
    }
    finish(arguments);
    warp.arrived = 0;
    warp.ready = kAllLanes;
    // The policy decides who goes on first.
    if (machine.policy.order == Order::kRandom) GoOn();
  } else {
    warp.ready &= ~(1u << me.lane);
    GoOn();
  }
}

inline void SyncWarp(int line) {
  struct Nothing {
  } nothing;
  Meet(nothing, "__syncwarp", line, [](Nothing**) { ++machine.self->warp->epoch; });
}

inline void SyncBlock(int line) {
  Machine& m = machine;
  Thread& me = *m.self;
  me.place = "__syncthreads";
  if (m.running != m.threads) Fail("a barrier that some threads have ended before");
  if (m.waiting == 0) {
    m.barrier_line = line;
  } else if (m.barrier_line != line) {
    Fail("threads meet at different barriers: lines %d and %d", m.barrier_line, line);
  }
  if (++m.waiting == m.threads) {
    m.waiting = 0;
    m.voted = m.votes;
    m.votes = 0;
    ++m.epoch;
    ++m.counters.barriers;
    for (unsigned i = 0; i < m.warps; ++i) m.warp[i].ready = kAllLanes;
    if (m.policy.order == Order::kRandom) GoOn();
  } else {
    me.warp->ready &= ~(1u << me.lane);
    GoOn();
  }
}

inline int SyncBlockCount(bool vote, int line) {
  machine.votes += vote ? 1 : 0;
  SyncBlock(line);
  return machine.voted;
}

inline void ResetShared();        // shared_memory.h
inline void BeginDeviceLaunch();  // device_memory.h

inline void RunBlock(Dim3 index) {
  Machine& m = machine;
  m.block_index = index;
  m.running = m.threads;
  m.waiting = 0;
  m.votes = 0;
  m.epoch = 1;
  ++m.counters.blocks;
  ResetShared();
  while (m.stacks.size() < m.threads) m.stacks.emplace_back();
  while (m.thread.size() < m.threads) m.thread.emplace_back();
  m.warps = m.threads / kWarpSize;
  m.warp.assign(m.warps, Warp{.ready = kAllLanes, .epoch = 1});
  for (unsigned i = 0; i < m.threads; ++i) {
    Thread& thread = m.thread[i];
    thread.id = i;
    thread.lane = i % kWarpSize;
    thread.warp_index = i / kWarpSize;
    thread.warp = &m.warp[thread.warp_index];
    thread.place = "the start";
    thread.copies.clear();
    thread.groups = 0;
    thread.fibre.Begin(m.stacks[i], i, ThreadMain);
  }
  m.self = m.policy.order == Order::kBackward ? &m.thread[m.threads - 1] : &m.thread[0];
  Fibre::Switch(m.scheduler, m.self->fibre);
  m.self = nullptr;
  if (m.fault[0] != 0) {
    const std::string text = m.fault;
    m.fault[0] = 0;
    throw Fault(text);
  }
}

// A launch sets its kernel's limit of dynamic shared memory. Two host threads at once must not set
// different ones, so all launches set the same.
inline void LimitShared(std::uintptr_t kernel, std::size_t bytes, std::size_t most) {
  if (bytes > most) throw Fault("a launch with more shared memory than its kernel's limit");
  Machine& m = machine;
  const auto [limit, fresh] = m.shared_limits.try_emplace({kernel, m.policy.much_shared}, most);
  if (!fresh && limit->second != most) {
    throw Fault("launches of a kernel set different limits of shared memory");
  }
}

// kernel<<<grid, threads, shared_bytes>>>(arguments...), blocks one after the other. Throws Fault.
template <class... Parameters, class... Arguments>
void Launch(void (*kernel)(Parameters...), Dim3 grid, unsigned threads, std::size_t shared_bytes,
            const Arguments&... arguments) {
  Machine& m = machine;
  if (threads == 0 || threads % kWarpSize != 0 || threads > kMostThreads) {
    throw Fault("a launch with " + std::to_string(threads) + " threads a block");
  }
  if (grid.size() == 0 || grid.y > 65535 || grid.z > 65535) throw Fault("a launch with a bad grid");
  using Closure = std::tuple<void (*)(Parameters...), std::tuple<Parameters...>>;
  Closure closure{kernel, std::tuple<Parameters...>(arguments...)};
  m.closure = &closure;
  m.invoke = [](void* p) {
    auto& [function, parameters] = *static_cast<Closure*>(p);
    std::apply(function, parameters);
  };
  m.grid = grid;
  m.threads = threads;
  m.shared.resize((shared_bytes + 3) / 4);
  m.random = m.policy.seed * 0x9E3779B97F4A7C15u + 1;
  ++m.launch;
  ++m.counters.launches;
  BeginDeviceLaunch();
  const unsigned blocks = grid.size();
  for (unsigned i = 0; i < blocks; ++i) {
    const unsigned at = m.policy.order == Order::kBackward ? blocks - 1 - i : i;
    RunBlock({at % grid.x, at / grid.x % grid.y, at / (grid.x * grid.y)});
  }
}

}  // namespace tsallis::simt

#include "core/cuda/testing/device_memory.h"
#include "core/cuda/testing/shared_memory.h"
