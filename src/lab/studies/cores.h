// Cores that the running jobs of a study share: one each, and what is left over when there are
// fewer jobs than cores.
#pragma once

#include <algorithm>
#include <cstddef>
#include <mutex>
#include <vector>

namespace tsallis::lab {

class Cores {
 public:
  // `cores` of them, for as many workers at most.
  Cores(int cores, int workers) : cores_(cores), busy_(static_cast<std::size_t>(workers), false) {}

  void SetBusy(int worker, bool busy) {
    const std::lock_guard lock(mutex_);
    busy_[static_cast<std::size_t>(worker)] = busy;
  }

  // Cores of a busy worker at this moment, at least one; together they are all there are.
  int Share(int worker) const {
    const std::lock_guard lock(mutex_);
    const auto running = static_cast<int>(std::count(busy_.begin(), busy_.end(), true));
    const auto before = static_cast<int>(std::count(busy_.begin(), busy_.begin() + worker, true));
    return cores_ / running + (before < cores_ % running ? 1 : 0);
  }

 private:
  const int cores_;
  mutable std::mutex mutex_;
  std::vector<bool> busy_;  // [workers]
};

}  // namespace tsallis::lab
