// Backward passes over key heads, whose sums a thread keeps in memory of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "attention/kernels.h"
#include "core/parallel.h"

namespace tsallis {

// Calls run(context, worker, key_head, memory) once a key head. With `heads_per_thread` of them or
// more for every thread of `context`, a thread takes whole key heads and `run` gets a context of
// one thread; with fewer, all threads work on one after the other. The order of every sum is the
// same either way. `run` returns false for a key head that it leaves: those are added to
// `remaining`, in their order.
template <class Memory, class Run>
void ForEachKeyHead(const Context& context, std::int64_t heads_per_thread,
                    const std::vector<KeyHead>& key_heads, std::vector<KeyHead>* remaining,
                    const Run& run) {
  const auto count = static_cast<std::int64_t>(key_heads.size());
  std::vector<std::uint8_t> served(key_heads.size(), 0);
  const auto run_one = [&](const Context& own, int worker, std::int64_t i, Memory& memory) {
    const auto at = static_cast<std::size_t>(i);
    served[at] = run(own, worker, key_heads[at], memory) ? 1 : 0;
  };
  if (count >= heads_per_thread * Threads(context)) {
    std::vector<Memory> memory(static_cast<std::size_t>(Threads(context)));
    ParallelTasks(context, count, [&](std::int64_t i, int worker) {
      run_one({.threads = 1}, worker, i, memory[static_cast<std::size_t>(worker)]);
    });
  } else {
    Memory memory;
    for (std::int64_t i = 0; i < count; ++i) run_one(context, 0, i, memory);
  }
  for (std::size_t i = 0; i < key_heads.size(); ++i) {
    if (served[i] == 0) remaining->push_back(key_heads[i]);
  }
}

}  // namespace tsallis
